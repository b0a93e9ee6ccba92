//! The `stat` of threads, the `fdinfo` of rings and records of `smaps`: no text panics, a name in the first may contain
//! anything, and numbers in the second are read as they were written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_sys::fuzzing::{ring, smaps_record, stat};

fuzz_target!(|text: &[u8]| {
    let _ = ring(text);
    let _ = stat(text);
    let _ = smaps_record(text);
    // A line as the kernel writes it, around a name of the program's choice.
    let name: Vec<u8> = text.iter().copied().filter(|byte| *byte != 0).take(15).collect();
    let started = text.len() as u64 * 1_000_003;
    let (before, after) = ("S 1 2 3 0 -1 4194560 0 0 0 0 0 0 0 0 20 0", "0");
    let line = [b"77 (".as_slice(), &name, format!(") {before} 3 {after} {started} 0 0").as_bytes()].concat();
    assert_eq!(stat(&line), Some((false, 3, started)), "{}", String::from_utf8_lossy(&line));
    let numbers: Vec<u64> =
        text.chunks_exact(8).take(4).map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("eight bytes"))).collect();
    if let [buffers, taken, queued, posted] = numbers[..] {
        let lines = format!(
            "pos:\t0\nSqTail:\t{queued}\nCachedSqHead:\t{taken}\nCachedCqTail:\t{posted}\nUserBufs:\t{buffers}\n"
        );
        let told = ring(lines.as_bytes()).expect("all four are there");
        assert_eq!((told.buffers, told.taken, told.queued, told.posted), (buffers, taken, queued, posted));
    }
});
