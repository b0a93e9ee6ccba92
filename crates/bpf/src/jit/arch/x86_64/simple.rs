//! Operations that are one instruction of the machine, whatever the second operand is: most of a program. They are put
//! together from tables, without a branch on the operation or on the kind of the operand, which the CPU could not
//! predict from one instruction of a program to the next.

use super::encode::{self, Bits};
use super::native;
use crate::insn::{AluOp, Condition, Operand, Register};
use crate::jit::buffer::Buffer;

/// How an operation with one kind of operand is encoded.
#[derive(Clone, Copy)]
struct Form {
    /// 0 if it is not one instruction.
    opcode: u8,
    /// What extends the opcode, with a constant.
    extension: u8,
    /// Bits of the constant.
    constant: u8,
}

impl Form {
    const NONE: Self = Self { opcode: 0, extension: 0, constant: 0 };

    const fn constant(bits: u8, opcode: u8, extension: u8) -> Self {
        Self { opcode, extension, constant: bits }
    }

    const fn register(opcode: u8) -> Self {
        Self { opcode, ..Self::NONE }
    }
}

/// How an operation is encoded.
#[derive(Clone, Copy)]
struct Forms {
    /// By the operand: a constant of 32 bits, one of 8 bits, and a register, twice.
    by_operand: [Form; 4],
    /// The bits of a constant that count.
    mask: i32,
}

impl Forms {
    /// The operation of the group whose opcodes are 81 and 83.
    const fn group(group: encode::Group) -> Self {
        let by_register = Form::register(group.opcode() as u8);
        let constants = [Form::constant(32, 0x81, group as u8), Form::constant(8, 0x83, group as u8)];
        Self { by_operand: [constants[0], constants[1], by_register, by_register], mask: -1 }
    }

    /// A shift by a constant.
    const fn shift(extension: u8) -> Self {
        Self { by_operand: [Form::NONE, Form::constant(8, 0xc1, extension), Form::NONE, Form::NONE], mask: 63 }
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
            AluOp::Move => {
                let by_register = Form::register(0x89);
                Self { by_operand: [Form::NONE, Form::NONE, by_register, by_register], mask: -1 }
            }
            AluOp::Mul | AluOp::Div | AluOp::SignedDiv | AluOp::Mod | AluOp::SignedMod => {
                Self { by_operand: [Form::NONE; 4], mask: -1 }
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
    let index = 2 * usize::from(is_register) + usize::from(value as i8 as i32 == value);
    let Form { opcode, extension, constant } = forms.by_operand[index];
    if opcode == 0 {
        return false;
    }
    // A constant has register 0, and a register no extension.
    let reg = NATIVE[usize::from(src)] | extension;
    encode::either(buffer, bits, opcode, reg, native(dst), (value, constant.into()));
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
