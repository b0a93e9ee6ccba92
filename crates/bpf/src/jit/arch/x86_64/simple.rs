//! Operations that are one instruction of the machine, whatever the second operand is: most of a program. They are put
//! together from tables, without a branch on the operation or on the kind of the operand, which the CPU could not
//! predict from one instruction of a program to the next.

use super::encode::{self, Bits};
use super::native;
use crate::insn::{AluOp, Condition, Operand, Register};
use crate::jit::buffer::Buffer;

/// How an operation is encoded.
#[derive(Clone, Copy)]
struct Forms {
    /// Opcodes by the operand: a constant of 32 bits, one of 8 bits, and a register, twice. 0 if the operation is not
    /// one instruction.
    opcodes: [u8; 4],
    /// What extends the opcode, with a constant.
    extension: u8,
    /// The bits of a constant that count.
    mask: i32,
}

/// Bits of the constant, in the same order.
const CONSTANT: [u32; 4] = [32, 8, 0, 0];

impl Forms {
    /// The operation of the group whose opcodes are 81 and 83.
    const fn group(group: encode::Group) -> Self {
        let by_register = group.opcode() as u8;
        Self { opcodes: [0x81, 0x83, by_register, by_register], extension: group as u8, mask: -1 }
    }

    /// A shift by a constant.
    const fn shift(extension: u8) -> Self {
        Self { opcodes: [0, 0xc1, 0, 0], extension, mask: 63 }
    }

    /// Returns how an operation is encoded.
    const fn of(op: AluOp) -> Self {
        match op {
            AluOp::Add => Self::group(encode::Group::Add),
            AluOp::Sub => Self::group(encode::Group::Sub),
            AluOp::Or => Self::group(encode::Group::Or),
            AluOp::And => Self::group(encode::Group::And),
            AluOp::Xor => Self::group(encode::Group::Xor),
            AluOp::ShiftLeft => Self::shift(4),
            AluOp::ShiftRight => Self::shift(5),
            AluOp::ShiftRightSigned => Self::shift(7),
            // Constants have shorter ways.
            AluOp::Move => Self { opcodes: [0, 0, 0x89, 0x89], extension: 0, mask: -1 },
            AluOp::Mul | AluOp::Div | AluOp::SignedDiv | AluOp::Mod | AluOp::SignedMod => {
                Self { opcodes: [0; 4], extension: 0, mask: -1 }
            }
        }
    }
}

/// By operation.
static FORMS: [Forms; AluOp::ALL.len()] = {
    let mut all = [Forms::of(AluOp::Add); AluOp::ALL.len()];
    let mut index = 0;
    while index < all.len() {
        let op = AluOp::ALL[index];
        all[op as usize] = Forms::of(op);
        index += 1;
    }
    all
};

static COMPARE: Forms = Forms::group(encode::Group::Compare);

/// Writes `dst = dst op operand`, if that is one instruction. Returns whether it is.
#[inline(always)]
pub(super) fn alu(buffer: &mut Buffer, bits: Bits, op: AluOp, dst: Register, operand: Operand) -> bool {
    write(buffer, bits, &FORMS[op as usize], dst, operand)
}

/// Compares two operands, if there is no better way. Returns whether that was done.
#[inline(always)]
pub(super) fn compare(buffer: &mut Buffer, bits: Bits, condition: Condition, dst: Register, operand: Operand) -> bool {
    let has_better = condition == Condition::Common || operand == Operand::Immediate(0);
    !has_better && write(buffer, bits, &COMPARE, dst, operand)
}

#[inline(always)]
fn write(buffer: &mut Buffer, bits: Bits, forms: &Forms, dst: Register, operand: Operand) -> bool {
    // What the operand is not counts as 0.
    let (is_register, src, value) = match operand {
        Operand::Register(src) => (true, src.number(), 0),
        Operand::Immediate(value) => (false, 0, value),
    };
    let value = value & forms.mask;
    let form = 2 * usize::from(is_register) + usize::from(value as i8 as i32 == value);
    let opcode = forms.opcodes[form];
    if opcode == 0 {
        return false;
    }
    let extension = forms.extension * u8::from(!is_register);
    // For a constant this is register 0.
    let reg = NATIVE[usize::from(src)] | extension;
    encode::either(buffer, bits, opcode, reg, native(dst), (value, CONSTANT[form]));
    true
}

/// The machine's numbers of registers, by ours.
static NATIVE: [u8; Register::ALL.len()] = {
    let mut all = [0; Register::ALL.len()];
    let mut index = 0;
    while index < all.len() {
        all[index] = native(Register::ALL[index]).0;
        index += 1;
    }
    all
};

// That is what a constant's extension is added to.
const _: () = assert!(native(Register::R0).0 == 0, "the first register has the number 0");
