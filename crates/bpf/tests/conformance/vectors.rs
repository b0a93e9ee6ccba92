//! Reads the vectors.

use std::path::PathBuf;

/// A program, and what it returns.
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) expected: u64,
    pub(crate) memory: Vec<u8>,
    pub(crate) code: Vec<u8>,
}

fn hex(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal digits");
    text.as_bytes().chunks(2).map(byte).collect()
}

/// Returns all vectors; if they are not at hand, says so and returns `None`.
pub(crate) fn vectors() -> Option<Vec<Vector>> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/bpf/conformance.txt");
    let path = std::env::var_os("PALIMPSEST_BPF_VECTORS").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("skipped: no vectors in {} ({error}); name them in PALIMPSEST_BPF_VECTORS", path.display());
            return None;
        }
    };
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let vectors = lines.map(|line| {
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap_or_else(|| panic!("four words: {line}"));
        let (name, expected, memory, code) = (word(), word(), word(), word());
        let expected = u64::from_str_radix(expected.trim_start_matches("0x"), 16).expect("a number");
        Vector { name: name.to_owned(), expected, memory: hex(memory), code: hex(code) }
    });
    let vectors: Vec<Vector> = vectors.collect();
    assert!(vectors.len() > 200, "{} vectors", vectors.len());
    Some(vectors)
}
