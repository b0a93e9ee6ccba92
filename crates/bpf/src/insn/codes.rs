//! The numbers of instructions: what fields of slots mean.

use super::{AluOp, AtomicOp, Condition};

// RFC 9669, section 3: classes, and the bits above them.
pub(super) const CLASS_MASK: u8 = 0x07;
pub(super) const LD: u8 = 0x00;
pub(super) const LDX: u8 = 0x01;
pub(super) const ST: u8 = 0x02;
pub(super) const STX: u8 = 0x03;
pub(super) const ALU: u8 = 0x04;
pub(super) const JMP: u8 = 0x05;
pub(super) const JMP32: u8 = 0x06;
pub(super) const ALU64: u8 = 0x07;
pub(super) const SOURCE_REGISTER: u8 = 0x08;

// Section 5: sizes and modes of loads and stores.
pub(super) const SIZE_MASK: u8 = 0x18;
pub(super) const WORD: u8 = 0x00;
pub(super) const HALF: u8 = 0x08;
pub(super) const BYTE: u8 = 0x10;
pub(super) const DOUBLE: u8 = 0x18;
pub(super) const MODE_MASK: u8 = 0xe0;
pub(super) const IMM: u8 = 0x00;
pub(super) const ABS: u8 = 0x20;
pub(super) const IND: u8 = 0x40;
pub(super) const MEM: u8 = 0x60;
pub(super) const MEMSX: u8 = 0x80;
pub(super) const ATOMIC: u8 = 0xc0;

// Section 4: operations of ALU and ALU64, and of JMP and JMP32.
pub(super) const CODE_MASK: u8 = 0xf0;
pub(super) const NEG: u8 = 0x80;
pub(super) const END: u8 = 0xd0;
pub(super) const JA: u8 = 0x00;
pub(super) const CALL: u8 = 0x80;
pub(super) const EXIT: u8 = 0x90;
/// `BPF_JCOND` of Linux (`include/uapi/linux/bpf.h`), since 6.9.
pub(super) const JCOND: u8 = 0xe0;

pub(super) const ALU_CODES: [(u8, AluOp); 12] = [
    (0x00, AluOp::Add),
    (0x10, AluOp::Sub),
    (0x20, AluOp::Mul),
    (0x30, AluOp::Div),
    (0x40, AluOp::Or),
    (0x50, AluOp::And),
    (0x60, AluOp::ShiftLeft),
    (0x70, AluOp::ShiftRight),
    (0x90, AluOp::Mod),
    (0xa0, AluOp::Xor),
    (0xb0, AluOp::Move),
    (0xc0, AluOp::ShiftRightSigned),
];

pub(super) const CONDITION_CODES: [(u8, Condition); 11] = [
    (0x10, Condition::Equal),
    (0x20, Condition::Greater),
    (0x30, Condition::GreaterEqual),
    (0x40, Condition::Common),
    (0x50, Condition::NotEqual),
    (0x60, Condition::SignedGreater),
    (0x70, Condition::SignedGreaterEqual),
    (0xa0, Condition::Less),
    (0xb0, Condition::LessEqual),
    (0xc0, Condition::SignedLess),
    (0xd0, Condition::SignedLessEqual),
];

/// Returns the meaning of the high half of an opcode, for all values.
const fn by_code<T: Copy, const COUNT: usize>(codes: &[(u8, T); COUNT]) -> [Option<T>; 16] {
    let mut all = [None; 16];
    let mut index = 0;
    while index < COUNT {
        all[(codes[index].0 >> 4) as usize] = Some(codes[index].1);
        index += 1;
    }
    all
}

pub(super) const ALU_OPS: [Option<AluOp>; 16] = by_code(&ALU_CODES);
pub(super) const CONDITIONS: [Option<Condition>; 16] = by_code(&CONDITION_CODES);

// Section 5.3, and for the last two `include/uapi/linux/bpf.h` since Linux 6.15.
pub(super) const ATOMIC_CODES: [(i32, AtomicOp); 10] = [
    (0x00, AtomicOp::Add),
    (0x40, AtomicOp::Or),
    (0x50, AtomicOp::And),
    (0xa0, AtomicOp::Xor),
    (0x01, AtomicOp::FetchAdd),
    (0x41, AtomicOp::FetchOr),
    (0x51, AtomicOp::FetchAnd),
    (0xa1, AtomicOp::FetchXor),
    (0xe1, AtomicOp::Exchange),
    (0xf1, AtomicOp::CompareExchange),
];
pub(super) const LOAD_ACQUIRE: i32 = 0x100;
pub(super) const STORE_RELEASE: i32 = 0x110;
