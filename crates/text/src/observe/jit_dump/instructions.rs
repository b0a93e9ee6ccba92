//! Call frame instructions: they say from which instruction on of a function which rules hold.

use gimli::constants::{self as dwarf, DwCfa};

use super::cursor::Cursor;

/// The bits of an opcode that has its first operand in its other bits.
const HIGH: u8 = 0xc0;

/// What an instruction does.
enum Step {
    /// What follows holds from this many bytes further on, by the code's factor.
    Advance(usize),
    /// It changes rules.
    Rule,
}

/// Returns the instructions for the same function without its first `skipped` bytes: the rules that hold there come
/// first, and later ones from the same instructions on as before. `code_factor` is the CIE's. `None` if an instruction
/// is unknown, or an address is between two multiples of the factor.
pub(super) fn after(instructions: &[u8], code_factor: usize, skipped: usize) -> Option<Vec<u8>> {
    let mut output = Vec::with_capacity(instructions.len());
    let mut rest = Cursor { data: instructions };
    let mut ahead = skipped;
    while ahead != 0 && !rest.data.is_empty() {
        let here = rest.data;
        match step(&mut rest)? {
            Step::Rule => output.extend(&here[..here.len() - rest.data.len()]),
            Step::Advance(units) => {
                let bytes = units.checked_mul(code_factor)?;
                if bytes > ahead {
                    let left = bytes - ahead;
                    if !left.is_multiple_of(code_factor) {
                        return None;
                    }
                    output.push(dwarf::DW_CFA_advance_loc4.0);
                    output.extend(u32::try_from(left / code_factor).ok()?.to_ne_bytes());
                }
                ahead = ahead.saturating_sub(bytes);
            }
        }
    }
    output.extend(rest.data);
    Some(output)
}

/// Reads an instruction with its operands.
fn step(rest: &mut Cursor<'_>) -> Option<Step> {
    let opcode = rest.byte()?;
    match DwCfa(opcode & HIGH) {
        dwarf::DW_CFA_advance_loc => return Some(Step::Advance(usize::from(opcode & !HIGH))),
        dwarf::DW_CFA_offset => {
            rest.leb128()?;
            return Some(Step::Rule);
        }
        dwarf::DW_CFA_restore => return Some(Step::Rule),
        _ => {}
    }
    let numbers = match DwCfa(opcode) {
        dwarf::DW_CFA_advance_loc1 => return rest.byte().map(|units| Step::Advance(units.into())),
        dwarf::DW_CFA_advance_loc2 => {
            let units = rest.take(2)?.try_into().ok().map(u16::from_ne_bytes)?;
            return Some(Step::Advance(units.into()));
        }
        dwarf::DW_CFA_advance_loc4 => return rest.word().map(|units| Step::Advance(units as usize)),
        dwarf::DW_CFA_def_cfa_expression => return expression(rest),
        dwarf::DW_CFA_expression | dwarf::DW_CFA_val_expression => {
            number(rest)?;
            return expression(rest);
        }
        // `DW_CFA_AARCH64_negate_ra_state` has the number of the third.
        dwarf::DW_CFA_nop
        | dwarf::DW_CFA_remember_state
        | dwarf::DW_CFA_restore_state
        | dwarf::DW_CFA_GNU_window_save => 0,
        dwarf::DW_CFA_restore_extended
        | dwarf::DW_CFA_undefined
        | dwarf::DW_CFA_same_value
        | dwarf::DW_CFA_def_cfa_register
        | dwarf::DW_CFA_def_cfa_offset
        | dwarf::DW_CFA_def_cfa_offset_sf
        | dwarf::DW_CFA_GNU_args_size => 1,
        dwarf::DW_CFA_offset_extended
        | dwarf::DW_CFA_offset_extended_sf
        | dwarf::DW_CFA_register
        | dwarf::DW_CFA_def_cfa
        | dwarf::DW_CFA_def_cfa_sf
        | dwarf::DW_CFA_val_offset
        | dwarf::DW_CFA_val_offset_sf
        | dwarf::DW_CFA_GNU_negative_offset_extended => 2,
        // `DW_CFA_set_loc` too, which no compiler writes.
        _ => return None,
    };
    (0..numbers).try_for_each(|_| number(rest))?;
    Some(Step::Rule)
}

/// Skips a LEB128 number, with a sign or without.
fn number(rest: &mut Cursor<'_>) -> Option<()> {
    let len = rest.leb128_len()?;
    rest.take(len).map(|_| ())
}

fn expression(rest: &mut Cursor<'_>) -> Option<Step> {
    let len = rest.leb128()?;
    rest.take(len).map(|_| Step::Rule)
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    #[test]
    fn rules_stay_at_their_instructions() {
        // def_cfa_offset 16; after 4 bytes offset r6, 2; after 300 more def_cfa r7, 8; after 1 more remember_state.
        let all = [0x0e, 16, 0x44, 0x86, 2, 0x03, 0x2c, 1, 0x0c, 7, 8, 0x41, 0x0a];
        assert_eq!(after(&all, 1, 0).expect("whole"), all);
        assert_eq!(after(&all, 1, 3).expect("cut"), [&[0x0e, 16, 0x04, 1, 0, 0, 0][..], &all[3..]].concat());
        assert_eq!(after(&all, 1, 4).expect("cut"), [&all[..2], &all[3..]].concat());
        assert_eq!(after(&all, 1, 44).expect("cut"), [&[0x0e, 16, 0x86, 2, 0x04, 4, 1, 0, 0][..], &all[8..]].concat());
        assert_eq!(after(&all, 1, 1000).expect("behind all"), [0x0e, 16, 0x86, 2, 0x0c, 7, 8, 0x0a]);
        // By words: the first row begins after 16 bytes.
        assert_eq!(after(&all, 4, 12).expect("cut"), [&[0x0e, 16, 0x04, 1, 0, 0, 0][..], &all[3..]].concat());
        assert_eq!(after(&all, 4, 10), None, "between two instructions");
    }

    #[test]
    fn operands_are_no_instructions() {
        // Each has operands that look like an advance by 1 (0x41).
        let all: [&[u8]; 6] = [
            &[0x10, 0x41, 2, 0x41, 0x41],
            &[0x0f, 1, 0x41],
            &[0x13, 0x41],
            &[0x05, 0xc1, 0x41, 0x41],
            &[0x2e, 0x41],
            &[0x2d],
        ];
        let all = all.concat();
        assert_eq!(after(&all, 1, 100).expect("known"), all);
        assert_eq!(after(&[0x01, 0, 0, 0, 0, 0, 0, 0, 0], 1, 1), None, "an address");
        assert_eq!(after(&[0x17], 1, 1), None, "an unknown instruction");
        assert_eq!(after(&[0x0f, 2, 0], 1, 1), None, "cut off");
    }
}
