//! Machine code as bytes.

use super::Native;
use crate::bpf::hex;

/// What is missing.
pub(super) const NOTE: Option<&str> =
    Some("this program was built without the feature `disassemblers`: machine code is shown as bytes");

/// Returns x86-64 code that begins at `start`, some bytes in each row.
pub(super) fn x86_64(start: usize, bytes: &[u8]) -> Vec<Native> {
    rows(start, bytes, 8)
}

/// Returns AArch64 code that begins at `start`, an instruction in each row.
pub(super) fn aarch64(start: usize, bytes: &[u8]) -> Vec<Native> {
    rows(start, bytes, 4)
}

fn rows(start: usize, bytes: &[u8], len: usize) -> Vec<Native> {
    let rows = bytes.chunks(len).enumerate();
    let row = |(index, row)| Native { offset: start + index * len, bytes: hex::write(row), text: String::new() };
    rows.map(row).collect()
}
