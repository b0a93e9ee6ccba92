//! Decodes bytes to instructions.
//!
//! Unused fields of an instruction must be zero, as RFC 9669 says (section 3.1) and as Linux checks: what was accepted
//! here with a stray bit would mean something else to a later kernel.

use super::codes::{
    ABS, ALU, ALU_OPS, ALU64, ATOMIC, ATOMIC_CODES, BYTE, CALL, CLASS_MASK, CODE_MASK, CONDITIONS, DOUBLE, END, EXIT,
    HALF, IMM, IND, JA, JCOND, JMP, JMP32, LD, LDX, LOAD_ACQUIRE, MEM, MEMSX, MODE_MASK, NEG, SIZE_MASK,
    SOURCE_REGISTER, ST, STORE_RELEASE, WORD,
};
use super::common;
use super::{
    AluOp, AtomicOp, ByteOrder, Callee, Extension, Instruction, Operand, Reach, Register, SLOT, Size, Wide, Width,
};

/// Why a slot is not an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("slot {slot} is not an instruction: {fault}")]
pub struct DecodeError {
    /// Number of the slot, from 0.
    pub slot: usize,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The opcode is unknown.
    #[error("opcode {opcode:#04x} is unknown")]
    Opcode {
        /// The opcode.
        opcode: u8,
    },
    /// The register does not exist.
    #[error("there is no register r{number}")]
    Register {
        /// The number.
        number: u8,
    },
    /// A write to `r10`, which is read-only.
    #[error("opcode {opcode:#04x} writes to r10, which is read-only")]
    FramePointer {
        /// The opcode.
        opcode: u8,
    },
    /// The source field has an unknown meaning.
    #[error("opcode {opcode:#04x} has {source_field} in the source field, which means nothing there")]
    Source {
        /// The opcode.
        opcode: u8,
        /// The field.
        source_field: u8,
    },
    /// The destination field is unused, and not zero.
    #[error("opcode {opcode:#04x} has {destination} in the destination field, which must be 0")]
    Destination {
        /// The opcode.
        opcode: u8,
        /// The field.
        destination: u8,
    },
    /// The offset has no meaning here.
    #[error("opcode {opcode:#04x} has offset {offset}, which means nothing there")]
    Offset {
        /// The opcode.
        opcode: u8,
        /// The field.
        offset: i16,
    },
    /// The immediate has no meaning here.
    #[error("opcode {opcode:#04x} has immediate {immediate:#x}, which means nothing there")]
    Immediate {
        /// The opcode.
        opcode: u8,
        /// The field.
        immediate: i32,
    },
    /// The second slot of a 64-bit immediate has more than an immediate.
    #[error("the slot behind it is not the second half of a 64-bit immediate")]
    SecondHalf,
    /// The program ends within the instruction.
    #[error("the program ends after {bytes} bytes of it")]
    Cut {
        /// Bytes that are there.
        bytes: usize,
    },
}

/// The fields of a slot.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) opcode: u8,
    pub(super) dst: u8,
    pub(super) src: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

impl Slot {
    pub(super) const fn from_bytes(bytes: [u8; SLOT]) -> Self {
        let [opcode, registers, o0, o1, i0, i1, i2, i3] = bytes;
        Self {
            opcode,
            dst: registers & 0xf,
            src: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            immediate: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    pub(super) const fn to_bytes(self) -> [u8; SLOT] {
        let [o0, o1] = self.offset.to_le_bytes();
        let [i0, i1, i2, i3] = self.immediate.to_le_bytes();
        [self.opcode, self.dst | self.src << 4, o0, o1, i0, i1, i2, i3]
    }

    fn unknown(self) -> Fault {
        Fault::Opcode { opcode: self.opcode }
    }

    /// Returns the register in the destination field, which is only read.
    fn read_dst(self) -> Result<Register, Fault> {
        Register::new(self.dst).ok_or(Fault::Register { number: self.dst })
    }

    /// Returns the register in the destination field, which is written.
    fn dst(self) -> Result<Register, Fault> {
        match self.read_dst()? {
            Register::R10 => Err(Fault::FramePointer { opcode: self.opcode }),
            register => Ok(register),
        }
    }

    fn src(self) -> Result<Register, Fault> {
        Register::new(self.src).ok_or(Fault::Register { number: self.src })
    }

    /// Returns the source register, which is written too.
    fn written_src(self) -> Result<Register, Fault> {
        match self.src()? {
            Register::R10 => Err(Fault::FramePointer { opcode: self.opcode }),
            register => Ok(register),
        }
    }

    fn no_src(self) -> Result<(), Fault> {
        if self.src == 0 { Ok(()) } else { Err(Fault::Source { opcode: self.opcode, source_field: self.src }) }
    }

    fn no_dst(self) -> Result<(), Fault> {
        if self.dst == 0 { Ok(()) } else { Err(Fault::Destination { opcode: self.opcode, destination: self.dst }) }
    }

    fn bad_offset(self) -> Fault {
        Fault::Offset { opcode: self.opcode, offset: self.offset }
    }

    fn no_offset(self) -> Result<(), Fault> {
        if self.offset == 0 { Ok(()) } else { Err(self.bad_offset()) }
    }

    fn bad_immediate(self) -> Fault {
        Fault::Immediate { opcode: self.opcode, immediate: self.immediate }
    }

    fn no_immediate(self) -> Result<(), Fault> {
        if self.immediate == 0 { Ok(()) } else { Err(self.bad_immediate()) }
    }

    /// Returns the second operand; the opcode tells what it is.
    fn operand(self) -> Result<Operand, Fault> {
        if self.opcode & SOURCE_REGISTER == 0 {
            self.no_src()?;
            Ok(Operand::Immediate(self.immediate))
        } else {
            self.no_immediate()?;
            Ok(Operand::Register(self.src()?))
        }
    }

    fn size(self) -> Size {
        match self.opcode & SIZE_MASK {
            WORD => Size::Word,
            HALF => Size::Half,
            BYTE => Size::Byte,
            _ => Size::Double,
        }
    }
}

/// Decodes the instruction that begins at `slot` of `code`.
///
/// # Errors
///
/// [`DecodeError`], also when `slot` is behind the end.
pub fn decode(code: &[u8], slot: usize) -> Result<Instruction, DecodeError> {
    let rest = slot.checked_mul(SLOT).and_then(|start| code.get(start..)).unwrap_or_default();
    match rest.first_chunk().and_then(|slot| common::decode(slot, |instruction, _| instruction)) {
        Some(instruction) => Ok(instruction),
        None => decode_any(rest).map_err(|fault| DecodeError { slot, fault }),
    }
}

/// Decodes the instruction that `rest` begins with, whatever it is.
pub(super) fn decode_any(rest: &[u8]) -> Result<Instruction, Fault> {
    let Some(first) = rest.first_chunk::<SLOT>() else { return Err(Fault::Cut { bytes: rest.len() }) };
    let first = Slot::from_bytes(*first);
    if first.opcode == LD | IMM | DOUBLE {
        let rest = &rest[SLOT..];
        let second = rest.first_chunk::<SLOT>().ok_or(Fault::Cut { bytes: SLOT + rest.len() })?;
        return wide(first, Slot::from_bytes(*second));
    }
    match first.opcode & CLASS_MASK {
        ALU => alu(first, Width::W32),
        ALU64 => alu(first, Width::W64),
        JMP => jump(first, Width::W64),
        JMP32 => jump(first, Width::W32),
        LD => packet(first),
        LDX => load(first),
        ST => store(first),
        _ => store_register(first),
    }
}

fn alu(slot: Slot, width: Width) -> Result<Instruction, Fault> {
    match slot.opcode & CODE_MASK {
        NEG if slot.opcode & SOURCE_REGISTER == 0 => {
            slot.no_src()?;
            slot.no_offset()?;
            slot.no_immediate()?;
            Ok(Instruction::Negate { width, dst: slot.dst()? })
        }
        END => swap(slot, width),
        code => {
            let op = ALU_OPS[usize::from(code >> 4)].ok_or_else(|| slot.unknown())?;
            match (op, slot.offset) {
                (AluOp::Div, 1) => operation(slot, width, AluOp::SignedDiv),
                (AluOp::Mod, 1) => operation(slot, width, AluOp::SignedMod),
                (AluOp::Move, 1..) if slot.opcode & SOURCE_REGISTER != 0 => move_signed(slot, width),
                (_, 0) => operation(slot, width, op),
                _ => Err(slot.bad_offset()),
            }
        }
    }
}

fn operation(slot: Slot, width: Width, op: AluOp) -> Result<Instruction, Fault> {
    Ok(Instruction::Alu { width, op, dst: slot.dst()?, operand: slot.operand()? })
}

fn move_signed(slot: Slot, width: Width) -> Result<Instruction, Fault> {
    let (dst, src) = (slot.dst()?, slot.src()?);
    let from = match (slot.offset, width) {
        (8, _) => Size::Byte,
        (16, _) => Size::Half,
        (32, Width::W64) => Size::Word,
        // `BPF_ADDR_SPACE_CAST` of Linux since 6.9.
        (1, Width::W64) => {
            let spaces = slot.immediate as u32;
            return Ok(Instruction::Cast { dst, src, to: (spaces >> 16) as u16, from: spaces as u16 });
        }
        _ => return Err(slot.bad_offset()),
    };
    slot.no_immediate()?;
    Ok(Instruction::MoveSigned { width, from, dst, src })
}

fn swap(slot: Slot, width: Width) -> Result<Instruction, Fault> {
    slot.no_src()?;
    slot.no_offset()?;
    let order = match (width, slot.opcode & SOURCE_REGISTER) {
        (Width::W32, 0) => ByteOrder::Little,
        (Width::W32, _) => ByteOrder::Big,
        (Width::W64, 0) => ByteOrder::Swap,
        _ => return Err(slot.unknown()),
    };
    let size = match slot.immediate {
        16 => Size::Half,
        32 => Size::Word,
        64 => Size::Double,
        _ => return Err(slot.bad_immediate()),
    };
    Ok(Instruction::Swap { order, size, dst: slot.dst()? })
}

fn jump(slot: Slot, width: Width) -> Result<Instruction, Fault> {
    let has_register = slot.opcode & SOURCE_REGISTER != 0;
    match (slot.opcode & CODE_MASK, width) {
        (JA, _) if !has_register => {
            slot.no_dst()?;
            slot.no_src()?;
            match width {
                Width::W64 => {
                    slot.no_immediate()?;
                    Ok(Instruction::Jump { offset: slot.offset.into(), reach: Reach::Near })
                }
                Width::W32 => {
                    slot.no_offset()?;
                    Ok(Instruction::Jump { offset: slot.immediate, reach: Reach::Far })
                }
            }
        }
        (JCOND, Width::W64) if !has_register => {
            slot.no_dst()?;
            slot.no_src()?;
            slot.no_immediate()?;
            Ok(Instruction::MayGoto { offset: slot.offset })
        }
        (CALL, Width::W64) => call(slot),
        (EXIT, Width::W64) if !has_register => {
            slot.no_dst()?;
            slot.no_src()?;
            slot.no_offset()?;
            slot.no_immediate()?;
            Ok(Instruction::Exit)
        }
        (code, _) => {
            let condition = CONDITIONS[usize::from(code >> 4)].ok_or_else(|| slot.unknown())?;
            let (dst, operand) = (slot.read_dst()?, slot.operand()?);
            Ok(Instruction::Branch { width, condition, dst, operand, offset: slot.offset })
        }
    }
}

fn call(slot: Slot) -> Result<Instruction, Fault> {
    if slot.opcode & SOURCE_REGISTER != 0 {
        slot.no_src()?;
        slot.no_offset()?;
        slot.no_immediate()?;
        return Ok(Instruction::Call(Callee::Register(slot.read_dst()?)));
    }
    slot.no_dst()?;
    let callee = match slot.src {
        0 => Callee::Helper(slot.immediate),
        1 => Callee::Local(slot.immediate),
        2 => return Ok(Instruction::Call(Callee::Kernel { id: slot.immediate, module: slot.offset })),
        source_field => return Err(Fault::Source { opcode: slot.opcode, source_field }),
    };
    slot.no_offset()?;
    Ok(Instruction::Call(callee))
}

fn packet(slot: Slot) -> Result<Instruction, Fault> {
    let size = slot.size();
    let index = match slot.opcode & MODE_MASK {
        ABS => {
            slot.no_src()?;
            None
        }
        IND => Some(slot.src()?),
        _ => return Err(slot.unknown()),
    };
    if size == Size::Double {
        return Err(slot.unknown());
    }
    slot.no_dst()?;
    slot.no_offset()?;
    Ok(Instruction::Packet { size, index, offset: slot.immediate })
}

fn load(slot: Slot) -> Result<Instruction, Fault> {
    let size = slot.size();
    let extension = match (slot.opcode & MODE_MASK, size) {
        (MEM, _) => Extension::Zero,
        (MEMSX, Size::Byte | Size::Half | Size::Word) => Extension::Sign,
        _ => return Err(slot.unknown()),
    };
    slot.no_immediate()?;
    Ok(Instruction::Load { size, extension, dst: slot.dst()?, base: slot.src()?, offset: slot.offset })
}

fn store(slot: Slot) -> Result<Instruction, Fault> {
    if slot.opcode & MODE_MASK != MEM {
        return Err(slot.unknown());
    }
    slot.no_src()?;
    let (base, offset) = (slot.read_dst()?, slot.offset);
    Ok(Instruction::Store { size: slot.size(), base, offset, value: Operand::Immediate(slot.immediate) })
}

fn store_register(slot: Slot) -> Result<Instruction, Fault> {
    let (size, offset) = (slot.size(), slot.offset);
    match slot.opcode & MODE_MASK {
        MEM => {
            slot.no_immediate()?;
            Ok(Instruction::Store { size, base: slot.read_dst()?, offset, value: Operand::Register(slot.src()?) })
        }
        ATOMIC => match slot.immediate {
            LOAD_ACQUIRE => Ok(Instruction::LoadAcquire { size, dst: slot.dst()?, base: slot.src()?, offset }),
            STORE_RELEASE => Ok(Instruction::StoreRelease { size, base: slot.read_dst()?, offset, src: slot.src()? }),
            code => {
                let (_, op) =
                    *ATOMIC_CODES.iter().find(|(known, _)| *known == code).ok_or_else(|| slot.bad_immediate())?;
                let width = match size {
                    Size::Word => Width::W32,
                    Size::Double => Width::W64,
                    Size::Byte | Size::Half => return Err(slot.unknown()),
                };
                let src = if op.fetches_to_source() { slot.written_src()? } else { slot.src()? };
                Ok(Instruction::Atomic { op, width, base: slot.read_dst()?, offset, src })
            }
        },
        _ => Err(slot.unknown()),
    }
}

impl AtomicOp {
    /// Whether the source register gets the old value.
    pub const fn fetches_to_source(self) -> bool {
        matches!(self, Self::FetchAdd | Self::FetchOr | Self::FetchAnd | Self::FetchXor | Self::Exchange)
    }
}

fn wide(first: Slot, second: Slot) -> Result<Instruction, Fault> {
    if second.opcode != 0 || second.dst != 0 || second.src != 0 || second.offset != 0 {
        return Err(Fault::SecondHalf);
    }
    first.no_offset()?;
    let (low, high) = (first.immediate, second.immediate as u32);
    let alone = |value| if high == 0 { Ok(value) } else { Err(Fault::SecondHalf) };
    let value = match first.src {
        0 => Wide::Value(u64::from(high) << 32 | u64::from(low as u32)),
        1 => alone(Wide::MapByDescriptor(low))?,
        2 => Wide::MapValueByDescriptor { map: low, offset: high },
        3 => alone(Wide::Variable(low))?,
        4 => alone(Wide::Function(low))?,
        5 => alone(Wide::MapByIndex(low))?,
        6 => Wide::MapValueByIndex { map: low, offset: high },
        source_field => return Err(Fault::Source { opcode: first.opcode, source_field }),
    };
    Ok(Instruction::LoadWide { dst: first.dst()?, value })
}
