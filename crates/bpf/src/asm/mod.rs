//! An assembler for the text that an [`Instruction`] displays, with labels.
//!
//! A line holds an instruction, a `label:`, or both; `;`, `//` and `#` begin a comment. Jumps and calls go to a label,
//! or as many slots behind the next instruction as their number, which has a sign, says.
//!
//! ```
//! let code = palimpsest_bpf::asm::assemble(
//!     "       r0 = 0
//!      again: r0 += r1
//!             r1 -= 1
//!             if r1 != 0 goto again
//!             exit",
//! )?;
//! assert_eq!(code.len(), 5 * 8);
//! # Ok::<(), palimpsest_bpf::asm::AsmError>(())
//! ```

mod cursor;
mod statement;

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::insn::{Callee, Instruction, Reach, Wide, encode};
use cursor::Cursor;
use statement::{Statement, Target};

/// Why a text is not a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AsmError {
    /// A line has no known form.
    #[error("line {line}, column {column}: expected {expected}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What could stand there.
        expected: &'static str,
    },
    /// A label is defined twice.
    #[error("line {line}: the label `{label}` is defined in line {first} already")]
    Twice {
        /// Line, from 1.
        line: usize,
        /// The label.
        label: String,
        /// Line of the first definition.
        first: usize,
    },
    /// A label is used and not defined.
    #[error("line {line}: no line has the label `{label}`")]
    Unknown {
        /// Line, from 1.
        line: usize,
        /// The label.
        label: String,
    },
    /// A label is too far away for the instruction.
    #[error(
        "line {line}: `{label}` is {distance} slots away, and 16 bits do not reach that far; jump there by `gotol`"
    )]
    Reach {
        /// Line, from 1.
        line: usize,
        /// The label.
        label: String,
        /// Slots.
        distance: i64,
    },
}

/// Where a label is.
struct Place {
    slot: usize,
    line: usize,
}

/// Assembles the byte code of a program.
///
/// # Errors
///
/// [`AsmError`].
pub fn assemble(text: &str) -> Result<Vec<u8>, AsmError> {
    let mut labels = BTreeMap::<&str, Place>::new();
    let mut statements = Vec::new();
    let mut slot = 0;
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        let mut cursor = Cursor::new(text, line);
        while let Some(label) = cursor.label() {
            if let Some(first) = labels.insert(label, Place { slot, line }) {
                return Err(AsmError::Twice { line, label: label.to_string(), first: first.line });
            }
        }
        if cursor.is_at_end() {
            continue;
        }
        let statement = statement::read(&mut cursor)?;
        cursor.end()?;
        slot += statement.instruction.slots();
        statements.push((line, statement));
    }
    let mut code = Vec::with_capacity(slot * crate::insn::SLOT);
    let mut slot = 0;
    for (line, Statement { mut instruction, target }) in statements {
        let next = slot + instruction.slots();
        if let Target::Label(label) = target {
            let unknown = || AsmError::Unknown { line, label: label.to_string() };
            let place = labels.get(label).ok_or_else(unknown)?;
            let distance = place.slot as i64 - next as i64;
            aim(&mut instruction, distance).ok_or(AsmError::Reach { line, label: label.to_string(), distance })?;
        }
        encode(&instruction, &mut |bytes| code.extend(bytes));
        slot = next;
    }
    Ok(code)
}

/// Makes `instruction` go `distance` slots behind the next one; `None` if it cannot reach that far.
fn aim(instruction: &mut Instruction, distance: i64) -> Option<()> {
    match instruction {
        Instruction::Jump { offset, reach: Reach::Near } => *offset = i16::try_from(distance).ok()?.into(),
        Instruction::Jump { offset, .. }
        | Instruction::Call(Callee::Local(offset))
        | Instruction::LoadWide { value: Wide::Function(offset), .. } => *offset = i32::try_from(distance).ok()?,
        Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => {
            *offset = i16::try_from(distance).ok()?;
        }
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_before_and_behind() {
        let code = assemble("r0 = 1 ; one\nif r0 == 1 goto end\nr1 = 0x1122334455667788 ll\nend: exit").expect("valid");
        // Over the two slots of the constant.
        assert_eq!(code[8..16], [0x15, 0, 2, 0, 1, 0, 0, 0]);
        let back = assemble("top: goto top").expect("valid");
        assert_eq!(back, [0x05, 0, 0xff, 0xff, 0, 0, 0, 0]);
        let call = assemble("call local f\nexit\nf:\nexit").expect("valid");
        assert_eq!(call[..8], [0x85, 0x10, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn errors_point_at_the_place() {
        let error = |text| assemble(text).expect_err("no program").to_string();
        assert_eq!(error("r0 = 1\nr0 + 1"), "line 2, column 4: expected `=` with or without an operation before it");
        assert_eq!(error("r0 = r11"), "line 1, column 6: expected a register, a number, or an operation");
        assert_eq!(error("goto nowhere"), "line 1: no line has the label `nowhere`");
        assert_eq!(error("a: exit\na: exit"), "line 2: the label `a` is defined in line 1 already");
        assert_eq!(error("exit exit"), "line 1, column 6: expected the end of the line");
        assert_eq!(
            error("r0 = *(u64 *)(r1 - -2147483648)"),
            "line 1, column 31: expected an offset of 16 bits before this"
        );
        assert_eq!(error("w0 = 5000000000"), "line 1, column 6: expected a number of 32 bits");
    }
}
