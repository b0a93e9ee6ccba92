//! Encodes instructions to bytes.

use super::codes::{
    ABS, ALU, ALU_CODES, ALU64, ATOMIC, ATOMIC_CODES, BYTE, CALL, CONDITION_CODES, DOUBLE, END, EXIT, HALF, IMM, IND,
    JA, JCOND, JMP, JMP32, LD, LDX, LOAD_ACQUIRE, MEM, MEMSX, NEG, SOURCE_REGISTER, ST, STORE_RELEASE, STX, WORD,
};
use super::decode::Slot;
use super::{AluOp, ByteOrder, Callee, Extension, Instruction, Operand, Reach, Register, SLOT, Size, Wide, Width};

/// Calls `emit` with the slots of `instruction`, one or two.
pub fn encode(instruction: &Instruction, emit: &mut dyn FnMut([u8; SLOT])) {
    let (first, second) = slots(instruction);
    emit(first.to_bytes());
    if let Some(immediate) = second {
        emit(Slot { immediate, ..EMPTY }.to_bytes());
    }
}

const EMPTY: Slot = Slot { opcode: 0, dst: 0, src: 0, offset: 0, immediate: 0 };

/// Returns the first slot, and the immediate of the second.
fn slots(instruction: &Instruction) -> (Slot, Option<i32>) {
    let slot = match *instruction {
        Instruction::Alu { width, op, dst, operand } => {
            let (plain, offset) = match op {
                AluOp::SignedDiv => (AluOp::Div, 1),
                AluOp::SignedMod => (AluOp::Mod, 1),
                op => (op, 0),
            };
            let code = ALU_CODES.iter().find(|(_, known)| *known == plain).map_or(0, |(code, _)| *code);
            with_operand(Slot { opcode: class(width) | code, dst: dst.number(), offset, ..EMPTY }, operand)
        }
        Instruction::Negate { width, dst } => Slot { opcode: class(width) | NEG, dst: dst.number(), ..EMPTY },
        Instruction::MoveSigned { width, from, dst, src } => {
            let offset = from.bits() as i16;
            let opcode = class(width) | MOVE | SOURCE_REGISTER;
            Slot { opcode, dst: dst.number(), src: src.number(), offset, ..EMPTY }
        }
        Instruction::Swap { order, size, dst } => {
            let opcode = match order {
                ByteOrder::Little => ALU | END,
                ByteOrder::Big => ALU | END | SOURCE_REGISTER,
                ByteOrder::Swap => ALU64 | END,
            };
            Slot { opcode, dst: dst.number(), immediate: size.bits() as i32, ..EMPTY }
        }
        Instruction::Cast { dst, src, to, from } => {
            let immediate = (u32::from(to) << 16 | u32::from(from)) as i32;
            let opcode = ALU64 | MOVE | SOURCE_REGISTER;
            Slot { opcode, dst: dst.number(), src: src.number(), offset: 1, immediate }
        }
        Instruction::LoadWide { dst, value } => return wide(dst, value),
        Instruction::Load { size, extension, dst, base, offset } => {
            let mode = match extension {
                Extension::Zero => MEM,
                Extension::Sign => MEMSX,
            };
            access(LDX | mode, size, dst, base, offset)
        }
        Instruction::Store { size, base, offset, value: Operand::Register(src) } => {
            access(STX | MEM, size, base, src, offset)
        }
        Instruction::Store { size, base, offset, value: Operand::Immediate(immediate) } => {
            Slot { immediate, ..access(ST | MEM, size, base, Register::R0, offset) }
        }
        Instruction::Atomic { op, width, base, offset, src } => {
            let size = match width {
                Width::W32 => Size::Word,
                Width::W64 => Size::Double,
            };
            let immediate = ATOMIC_CODES.iter().find(|(_, known)| *known == op).map_or(0, |(code, _)| *code);
            Slot { immediate, ..access(STX | ATOMIC, size, base, src, offset) }
        }
        Instruction::LoadAcquire { size, dst, base, offset } => {
            Slot { immediate: LOAD_ACQUIRE, ..access(STX | ATOMIC, size, dst, base, offset) }
        }
        Instruction::StoreRelease { size, base, offset, src } => {
            Slot { immediate: STORE_RELEASE, ..access(STX | ATOMIC, size, base, src, offset) }
        }
        // A near jump has 16 bits: decoding never gives it more, and the assembler chooses the far one.
        Instruction::Jump { offset, reach: Reach::Near } => Slot { opcode: JMP | JA, offset: offset as i16, ..EMPTY },
        Instruction::Jump { offset, reach: Reach::Far } => Slot { opcode: JMP32 | JA, immediate: offset, ..EMPTY },
        Instruction::Branch { width, condition, dst, operand, offset } => {
            let class = match width {
                Width::W32 => JMP32,
                Width::W64 => JMP,
            };
            let code = CONDITION_CODES.iter().find(|(_, known)| *known == condition).map_or(0, |(code, _)| *code);
            with_operand(Slot { opcode: class | code, dst: dst.number(), offset, ..EMPTY }, operand)
        }
        Instruction::MayGoto { offset } => Slot { opcode: JMP | JCOND, offset, ..EMPTY },
        Instruction::Call(callee) => call(callee),
        Instruction::Exit => Slot { opcode: JMP | EXIT, ..EMPTY },
        Instruction::Packet { size, index, offset } => {
            let mode = if index.is_some() { IND } else { ABS };
            let src = index.map_or(0, Register::number);
            Slot { opcode: LD | mode | bits(size), src, immediate: offset, ..EMPTY }
        }
    };
    (slot, None)
}

/// Code of a move.
const MOVE: u8 = 0xb0;

const fn class(width: Width) -> u8 {
    match width {
        Width::W32 => ALU,
        Width::W64 => ALU64,
    }
}

const fn bits(size: Size) -> u8 {
    match size {
        Size::Byte => BYTE,
        Size::Half => HALF,
        Size::Word => WORD,
        Size::Double => DOUBLE,
    }
}

fn with_operand(slot: Slot, operand: Operand) -> Slot {
    match operand {
        Operand::Immediate(immediate) => Slot { immediate, ..slot },
        Operand::Register(src) => Slot { opcode: slot.opcode | SOURCE_REGISTER, src: src.number(), ..slot },
    }
}

fn access(opcode: u8, size: Size, dst: Register, src: Register, offset: i16) -> Slot {
    Slot { opcode: opcode | bits(size), dst: dst.number(), src: src.number(), offset, immediate: 0 }
}

fn call(callee: Callee) -> Slot {
    let opcode = JMP | CALL;
    match callee {
        Callee::Helper(immediate) => Slot { opcode, immediate, ..EMPTY },
        Callee::Local(immediate) => Slot { opcode, src: 1, immediate, ..EMPTY },
        Callee::Kernel { id, module } => Slot { opcode, src: 2, offset: module, immediate: id, ..EMPTY },
        Callee::Register(register) => Slot { opcode: opcode | SOURCE_REGISTER, dst: register.number(), ..EMPTY },
    }
}

fn wide(dst: Register, value: Wide) -> (Slot, Option<i32>) {
    let (src, low, high) = match value {
        Wide::Value(value) => (0, value as i32, (value >> 32) as i32),
        Wide::MapByDescriptor(map) => (1, map, 0),
        Wide::MapValueByDescriptor { map, offset } => (2, map, offset as i32),
        Wide::Variable(id) => (3, id, 0),
        Wide::Function(offset) => (4, offset, 0),
        Wide::MapByIndex(map) => (5, map, 0),
        Wide::MapValueByIndex { map, offset } => (6, map, offset as i32),
    };
    (Slot { opcode: LD | IMM | DOUBLE, dst: dst.number(), src, immediate: low, ..EMPTY }, Some(high))
}
