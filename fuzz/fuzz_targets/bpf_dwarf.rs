//! Debug information of a host: no input panics, and what is found is BTF to which a program can be adapted. The input
//! is a file, or the sections themselves, so that what is in them need not be guessed together with the file around.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_bpf::dwarf::DebugInfo;
use palimpsest_bpf::elf::Object;

/// Asks for members, sizes, bit fields and values of the types `host`, `inner_t` and `kind`.
const PROGRAM: &[u8] = include_bytes!("../../crates/bpf/tests/dwarf/golden/fields.o");

fuzz_target!(|bytes: &[u8]| {
    let asked = ["host", "inner_t", "kind", "Session", "model::Session", "Phase"];
    let file;
    let bytes = if bytes.starts_with(b"\x7fELF") {
        bytes
    } else {
        file = around(bytes);
        &file
    };
    let Ok(types) = DebugInfo::parse(bytes).and_then(|debug| debug.types(asked)) else { return };
    let btf = types.btf().expect("what is made is right");
    let _ = Object::parse_for(PROGRAM, Some(&btf));
});

/// Makes a file with three sections of these bytes: the first two say how long two of them are.
fn around(bytes: &[u8]) -> Vec<u8> {
    let [first, second, rest @ ..] = bytes else { return Vec::new() };
    let (info, rest) = rest.split_at(usize::from(*first).min(rest.len()));
    let (abbreviations, texts) = rest.split_at(usize::from(*second).min(rest.len()));
    const NAMES: &[u8] = b"\0.debug_info\0.debug_abbrev\0.debug_str\0.shstrtab\0";
    let parts: [(u32, u32, &[u8]); 4] = [(1, 1, info), (13, 1, abbreviations), (27, 1, texts), (38, 3, NAMES)];
    let mut file = vec![0; 64];
    let mut headers = vec![0; 64];
    for (name, kind, data) in parts {
        let words = [0, 0, file.len() as u64, data.len() as u64];
        headers.extend([name, kind].into_iter().flat_map(u32::to_le_bytes));
        headers.extend(words.into_iter().flat_map(u64::to_le_bytes));
        headers.extend([0; 24]);
        file.extend(data);
    }
    let start = file.len() as u64;
    file.extend(headers);
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // A shared object for x86-64, of version 1.
    file[16..24].copy_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]);
    file[40..48].copy_from_slice(&start.to_le_bytes());
    // Lengths of the header, of a program header and of a section header; five sections, the last with the names.
    file[52..64].copy_from_slice(&[64, 0, 56, 0, 0, 0, 64, 0, 5, 0, 4, 0]);
    file
}
