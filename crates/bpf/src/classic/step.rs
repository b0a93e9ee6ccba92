//! Instructions of classic BPF, decoded (`bpf(4)` of the BSDs; `include/uapi/linux/filter.h` for ancillary data).

use super::ClassicError;
use crate::insn::{AluOp, Condition, Size};

/// An instruction of a filter (`struct bpf_insn`, `struct sock_filter`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Insn {
    /// The operation.
    pub code: u16,
    /// How many instructions to skip if a condition holds.
    pub jt: u8,
    /// How many if it does not.
    pub jf: u8,
    /// A number.
    pub k: u32,
}

/// Words of scratch memory.
pub(super) const WORDS: u32 = 16;

/// One of the two registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Accumulator {
    A,
    X,
}

/// What a register is loaded with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Constant(u32),
    /// The packet's length on the wire.
    Len,
    /// A word of scratch memory.
    Scratch(u32),
    /// Bytes of the packet, in network order.
    Packet {
        size: Size,
        offset: u32,
    },
    /// The same at `X` plus an offset.
    Indexed {
        size: Size,
        offset: u32,
    },
    /// Four times the low half of a byte of the packet: the length of an IP header.
    HeaderLen {
        offset: u32,
    },
    /// The number of a field beside the packet.
    Beside(u32),
}

/// The second operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Second {
    K(u32),
    X,
}

/// What an instruction does. Targets are numbers of instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Load(Accumulator, Value),
    Store(Accumulator, u32),
    Alu(AluOp, Second),
    Negate,
    Jump(usize),
    Branch {
        condition: Condition,
        second: Second,
        then: usize,
        otherwise: usize,
    },
    /// `None` returns `A`.
    Return(Option<u32>),
    /// `A` to `X`.
    ToX,
    /// `X` to `A`.
    ToA,
}

/// Where loads of ancillary data begin: `SKF_AD_OFF`.
const ANCILLARY: u32 = 0xffff_f000;
/// Where loads relative to headers begin: `SKF_LL_OFF`.
const HEADERS: u32 = 0xffe0_0000;

/// Ancillary data by its offset divided by 4: the number of a field, or the name of what is missing here.
const FIELDS: [Result<u32, &str>; 16] = [
    Ok(0),
    Ok(1),
    Ok(2),
    Err("an attribute of netlink"),
    Err("a nested attribute of netlink"),
    Ok(3),
    Ok(4),
    Ok(5),
    Ok(6),
    Ok(7),
    // An operation, see below.
    Err("A ^ X"),
    Ok(8),
    Ok(9),
    Err("where the payload begins"),
    Err("a random number"),
    Ok(10),
];
/// The field that is an operation, `SKF_AD_ALU_XOR_X`.
const XOR: u32 = 40;

/// Decodes `insn`, which is number `at` of `len`.
pub(super) fn decode(insn: Insn, at: usize, len: usize) -> Result<Step, ClassicError> {
    let Insn { code, jt, jf, k } = insn;
    let unknown = ClassicError::Unknown { at, code };
    let skipped = |distance: u8| {
        let to = at + 1 + usize::from(distance);
        if to < len { Ok(to) } else { Err(ClassicError::Jump { at, to: to as i64, len }) }
    };
    let word = || if k < WORDS { Ok(k) } else { Err(ClassicError::Scratch { at, word: k }) };
    let second = if code & 0x08 == 0 { Second::K(k) } else { Second::X };
    let size = || match code & 0x18 {
        0x00 => Some(Size::Word),
        0x08 => Some(Size::Half),
        0x10 => Some(Size::Byte),
        _ => None,
    };
    Ok(match code {
        0x20 | 0x28 | 0x30 => return packet(size().ok_or(unknown)?, k, at),
        0x40 | 0x48 | 0x50 => Step::Load(Accumulator::A, Value::Indexed { size: size().ok_or(unknown)?, offset: k }),
        0x00 => Step::Load(Accumulator::A, Value::Constant(k)),
        0x01 => Step::Load(Accumulator::X, Value::Constant(k)),
        0x80 => Step::Load(Accumulator::A, Value::Len),
        0x81 => Step::Load(Accumulator::X, Value::Len),
        0x60 => Step::Load(Accumulator::A, Value::Scratch(word()?)),
        0x61 => Step::Load(Accumulator::X, Value::Scratch(word()?)),
        0xb1 => Step::Load(Accumulator::X, Value::HeaderLen { offset: k }),
        0x02 => Step::Store(Accumulator::A, word()?),
        0x03 => Step::Store(Accumulator::X, word()?),
        0x84 => Step::Negate,
        0x04 | 0x0c | 0x14 | 0x1c | 0x24 | 0x2c | 0x34 | 0x3c | 0x44 | 0x4c | 0x54 | 0x5c | 0x64 | 0x6c | 0x74
        | 0x7c | 0x94 | 0x9c | 0xa4 | 0xac => Step::Alu(operation(code, second, at)?, second),
        // Those of `protochain` go back.
        0x05 => {
            let to = at as i64 + 1 + i64::from(k as i32);
            let inside = usize::try_from(to).ok().filter(|to| *to < len);
            Step::Jump(inside.ok_or(ClassicError::Jump { at, to, len })?)
        }
        0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => Step::Branch {
            condition: match code & 0xf0 {
                0x10 => Condition::Equal,
                0x20 => Condition::Greater,
                0x30 => Condition::GreaterEqual,
                _ => Condition::Common,
            },
            second,
            then: skipped(jt)?,
            otherwise: skipped(jf)?,
        },
        0x06 => Step::Return(Some(k)),
        0x16 => Step::Return(None),
        0x07 => Step::ToX,
        0x87 => Step::ToA,
        _ => return Err(unknown),
    })
}

/// Decodes a load at a constant offset, or what Linux has at offsets that no packet has.
fn packet(size: Size, offset: u32, at: usize) -> Result<Step, ClassicError> {
    match offset {
        0..HEADERS => Ok(Step::Load(Accumulator::A, Value::Packet { size, offset })),
        HEADERS..ANCILLARY => Err(ClassicError::Kernel { at, name: "bytes relative to a header" }),
        _ if offset - ANCILLARY == XOR => Ok(Step::Alu(AluOp::Xor, Second::X)),
        _ => {
            let field = offset - ANCILLARY;
            let known = FIELDS.get(field as usize / 4).filter(|_| field.is_multiple_of(4));
            match known.copied().unwrap_or(Err("ancillary data that is not known")) {
                Ok(field) => Ok(Step::Load(Accumulator::A, Value::Beside(field))),
                Err(name) => Err(ClassicError::Kernel { at, name }),
            }
        }
    }
}

fn operation(code: u16, second: Second, at: usize) -> Result<AluOp, ClassicError> {
    let op = match code & 0xf0 {
        0x00 => AluOp::Add,
        0x10 => AluOp::Sub,
        0x20 => AluOp::Mul,
        0x30 => AluOp::Div,
        0x40 => AluOp::Or,
        0x50 => AluOp::And,
        0x60 => AluOp::ShiftLeft,
        0x70 => AluOp::ShiftRight,
        0x90 => AluOp::Mod,
        _ => AluOp::Xor,
    };
    match (op, second) {
        (AluOp::Div | AluOp::Mod, Second::K(0)) => Err(ClassicError::Division { at }),
        (AluOp::ShiftLeft | AluOp::ShiftRight, Second::K(bits @ 32..)) => Err(ClassicError::Shift { at, bits }),
        _ => Ok(op),
    }
}
