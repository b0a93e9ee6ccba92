//! What disassemblers make of machine code.

use iced_x86::{Decoder as X86Decoder, DecoderOptions, Formatter as _, IntelFormatter};
use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::InstDecoder;

use super::Native;
use crate::bpf::hex;

/// Nothing is missing.
pub(super) const NOTE: Option<&str> = None;

/// Returns the instructions of x86-64 code that begins at `start`.
pub(super) fn x86_64(start: usize, bytes: &[u8]) -> Vec<Native> {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(true);
    let instructions = X86Decoder::with_ip(64, bytes, start as u64, DecoderOptions::NONE).into_iter();
    let native = |instruction: iced_x86::Instruction| {
        let offset = instruction.ip() as usize;
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let bytes = hex::write(&bytes[offset - start..][..instruction.len()]);
        Native { offset, bytes, text }
    };
    instructions.map(native).collect()
}

/// Returns the instructions of AArch64 code that begins at `start`.
pub(super) fn aarch64(start: usize, bytes: &[u8]) -> Vec<Native> {
    let decoder = InstDecoder::default();
    let native = |(index, word): (usize, &[u8])| {
        let text = match decoder.decode(&mut U8Reader::new(word)) {
            Ok(instruction) => instruction.to_string(),
            Err(error) => format!("({error})"),
        };
        Native { offset: start + index * 4, bytes: hex::write(word), text }
    };
    bytes.chunks(4).enumerate().map(native).collect()
}
