//! Instructions that do the same wherever they are: those that a probe can run out of line.
//!
//! Encodings: Intel SDM volume 2, 2.1 and appendix A. What is not listed here is refused.

/// Returns the length of the first instruction of `code`, if it has the same effect at any address: it neither reads
/// the instruction pointer nor changes it, nor the interrupt or the trap flag.
pub(crate) fn ordinary(code: &[u8]) -> Option<usize> {
    let has_rex = code.first().is_some_and(|byte| byte & 0xf0 == 0x40);
    let is_wide = has_rex && code[0] & 8 != 0;
    let start = usize::from(has_rex);
    let opcode = *code.get(start)?;
    let behind = start + 1;
    let len = match opcode {
        // PUSH and POP of a register.
        0x50..=0x5f => behind,
        // MOV of a constant to a register.
        0xb8..=0xbf => behind + if is_wide { 8 } else { 4 },
        // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP with a register; TEST, MOV and LEA.
        0x00..=0x3b if opcode & 7 <= 3 => behind + operand(code.get(behind..)?)?,
        0x84 | 0x85 | 0x88..=0x8b | 0x8d => behind + operand(code.get(behind..)?)?,
        // The same with a constant; shifts by a constant; MOV of one.
        0x83 | 0xc1 => behind + operand(code.get(behind..)?)? + 1,
        0x81 => behind + operand(code.get(behind..)?)? + 4,
        0xc7 if code.get(behind)? >> 3 & 7 == 0 => behind + operand(code.get(behind..)?)? + 4,
        // INC and DEC; the others of this group jump, call or push.
        0xff if code.get(behind)? >> 3 & 7 <= 1 => behind + operand(code.get(behind..)?)?,
        _ => return None,
    };
    (len <= code.len()).then_some(len)
}

/// Returns the length of a ModR/M byte with what belongs to it, unless that counts from the instruction pointer.
fn operand(code: &[u8]) -> Option<usize> {
    let (mode, base) = (code.first()? >> 6, code[0] & 7);
    if mode == 3 {
        return Some(1);
    }
    let has_sib = base == 4;
    let base = if has_sib { code.get(1)? & 7 } else { base };
    let displacement = match (mode, base) {
        (0, 5) if has_sib => 4,
        (0, 5) => return None,
        (0, _) => 0,
        (1, _) => 1,
        _ => 4,
    };
    Some(1 + usize::from(has_sib) + displacement)
}
