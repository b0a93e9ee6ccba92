//! Decodes the instructions that most programs consist of: by a table, without a look at each field.

use super::codes::{
    ALU, ALU_OPS, ALU64, BYTE, CLASS_MASK, CONDITIONS, HALF, JMP, JMP32, LD, LDX, MEM, MEMSX, MODE_MASK, SIZE_MASK,
    SOURCE_REGISTER, ST, STX, WORD,
};
use super::{AluOp, Condition, Extension, Instruction, Operand, Register, SLOT, Size, Width};

/// What most opcodes are: their fields are just registers, an offset and an immediate.
#[derive(Clone, Copy)]
enum Form {
    Alu(Width, AluOp),
    Load(Size, Extension),
    Store(Size),
    Branch(Width, Condition),
}

/// A form, and the bits that its slot may not have.
#[derive(Clone, Copy)]
struct Common {
    form: Form,
    /// Bits of the slot that are zero.
    zeros: u64,
    has_source: bool,
}

/// The bits of fields, with the slot as a number.
const SOURCE_BITS: u64 = 0xf000;
const OFFSET_BITS: u64 = 0xffff << 16;
const IMMEDIATE_BITS: u64 = 0xffff_ffff << 32;

const fn common(opcode: u8) -> Option<Common> {
    let has_source = match opcode & CLASS_MASK {
        LDX | STX => true,
        ST | LD => false,
        _ => opcode & SOURCE_REGISTER != 0,
    };
    let operand_zeros = if has_source { IMMEDIATE_BITS } else { SOURCE_BITS };
    let size = match opcode & SIZE_MASK {
        WORD => Size::Word,
        HALF => Size::Half,
        BYTE => Size::Byte,
        _ => Size::Double,
    };
    let width = if matches!(opcode & CLASS_MASK, ALU64 | JMP) { Width::W64 } else { Width::W32 };
    let high = (opcode >> 4) as usize;
    let (form, zeros) = match (opcode & CLASS_MASK, opcode & MODE_MASK) {
        (ALU | ALU64, _) => match ALU_OPS[high] {
            Some(op) => (Form::Alu(width, op), operand_zeros | OFFSET_BITS),
            None => return None,
        },
        (JMP | JMP32, _) => match CONDITIONS[high] {
            Some(condition) => (Form::Branch(width, condition), operand_zeros),
            None => return None,
        },
        (LDX, MEM) => (Form::Load(size, Extension::Zero), operand_zeros),
        (LDX, MEMSX) if !matches!(size, Size::Double) => (Form::Load(size, Extension::Sign), operand_zeros),
        (ST | STX, MEM) => (Form::Store(size), operand_zeros),
        _ => return None,
    };
    Some(Common { form, zeros, has_source })
}

/// By opcode.
static COMMON: [Option<Common>; 256] = {
    let mut all = [None; 256];
    let mut opcode = 0;
    while opcode < all.len() {
        all[opcode] = common(opcode as u8);
        opcode += 1;
    }
    all
};

/// Passes a common slot's instruction to `then`, with the registers that it names, a bit for each; `None` if the slot
/// is not a common one, or wrong.
///
/// Each kind of instruction is passed by itself: if one function returned any of them, it would be put together from
/// its bytes.
#[inline(always)]
pub(crate) fn decode<R>(slot: &[u8; SLOT], then: impl FnOnce(Instruction, u16) -> R) -> Option<R> {
    let raw = u64::from_le_bytes(*slot);
    let Common { form, zeros, has_source } = COMMON[usize::from(raw as u8)].as_ref()?;
    if raw & zeros != 0 {
        return None;
    }
    let dst = Register::new((raw >> 8) as u8 & 0xf)?;
    let (offset, immediate) = ((raw >> 16) as i16, (raw >> 32) as i32);
    let src = Register::new((raw >> 12) as u8 & 0xf)?;
    let operand = if *has_source { Operand::Register(src) } else { Operand::Immediate(immediate) };
    // All forms name the destination, and the source if it is an operand or an address.
    let named = 1 << dst.number() | u16::from(*has_source) << src.number();
    match *form {
        Form::Alu(..) | Form::Load(..) if dst == Register::R10 => None,
        Form::Alu(width, op) => Some(then(Instruction::Alu { width, op, dst, operand }, named)),
        Form::Load(size, extension) => Some(then(Instruction::Load { size, extension, dst, base: src, offset }, named)),
        Form::Store(size) => Some(then(Instruction::Store { size, base: dst, offset, value: operand }, named)),
        Form::Branch(width, condition) => {
            Some(then(Instruction::Branch { width, condition, dst, operand, offset }, named))
        }
    }
}
