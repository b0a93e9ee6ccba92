//! What the kernel tells of nodes, and of the memory of processes on them: no text panics, and figures are read as they
//! were written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_sys::numa::{NodeId, numa_maps, sysfs};

fuzz_target!(|text: &[u8]| {
    let _: Result<_, _> = sysfs::parse_meminfo(text);
    let _: Result<_, _> = sysfs::parse_distances(text);
    let _: Result<_, _> = numa_maps::parse(text);
    // Each range of a list may name 65536 numbers.
    if text.len() < 256 {
        let _: Result<_, _> = sysfs::parse_nodes(text);
        let _: Result<_, _> = sysfs::parse_cpus(text);
    }
    // A line as the kernel writes it, around a name of the program's choice: it writes these bytes in octal.
    let name: Vec<u8> = text.iter().copied().filter(|byte| *byte != 0).take(40).collect();
    let escaped: Vec<u8> = name
        .iter()
        .flat_map(|byte| match byte {
            b'\n' | b'\t' | b'=' | b' ' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            byte => vec![*byte],
        })
        .collect();
    let (first, second) = (text.len() as u64, text.len() as u64 * 1_000_003);
    let figures = format!(" N1={second} N0={first} kernelpagesize_kB=4\n");
    let line = [b"7f00 bind:0 file=".as_slice(), &escaped, figures.as_bytes()].concat();
    let maps = numa_maps::parse(&line).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line)));
    assert_eq!(maps[0].present, [(NodeId(0), first << 12), (NodeId(1), second << 12)]);
    let numa_maps::Shown::File(path) = &maps[0].shown else { panic!("{maps:?}") };
    assert_eq!(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()), name);
    let meminfo = format!("Node 3 MemTotal: {second} kB\nNode 3 MemFree:   {first} kB\n");
    let memory = sysfs::parse_meminfo(meminfo).expect("well formed");
    assert_eq!((memory.total, memory.free), (second << 10, first << 10));
});
