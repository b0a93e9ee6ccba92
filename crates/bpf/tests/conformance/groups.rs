//! Programs for every instruction of RFC 9669's conformance groups, with numbers near the limits: the public vectors
//! have at most two cases for each. [`model`] computes what each program returns.
//!
//! Instructions are built from their numbers here, without the crate's encoder, so that its mistakes show.

use super::model::{self, Bits, arithmetic, reversed, sign_extended, taken};
use super::vectors::Vector;

/// Numbers near the limits of 8, 16, 32 and 64 bits.
const NUMBERS: [u64; 15] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff80,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0xffff_ffff_8000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x0123_4567_89ab_cdef,
    u64::MAX,
];
const IMMEDIATES: [i32; 10] = [0, 1, 3, 31, 32, 63, i32::MAX, i32::MIN, -1, -128];

/// Instructions, one after the other.
#[derive(Default)]
struct Program(Vec<u8>);

impl Program {
    fn slot(mut self, opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Self {
        self.0.extend([opcode, dst | src << 4]);
        self.0.extend(offset.to_le_bytes());
        self.0.extend(immediate.to_le_bytes());
        self
    }

    /// `dst = value`, by `lddw`.
    fn wide(self, dst: u8, value: u64) -> Self {
        self.slot(0x18, dst, 0, 0, value as i32).slot(0, 0, 0, 0, (value >> 32) as i32)
    }

    /// `dst = src`
    fn copy(self, dst: u8, src: u8) -> Self {
        self.slot(0xbf, dst, src, 0, 0)
    }

    fn set(self, dst: u8, value: i32) -> Self {
        self.slot(0xb7, dst, 0, 0, value)
    }

    fn exit(self) -> Self {
        self.slot(0x95, 0, 0, 0, 0)
    }

    fn returns(self, name: String, expected: u64) -> Vector {
        self.with(name, expected, Vec::new())
    }

    fn with(self, name: String, expected: u64, memory: Vec<u8>) -> Vector {
        Vector { name, expected, memory, code: self.0 }
    }
}

/// The operations' codes, each with an offset for which it is defined.
const ARITHMETIC: [(u8, i16); 14] = [
    (0x00, 0),
    (0x10, 0),
    (0x20, 0),
    (0x30, 0),
    (0x30, 1),
    (0x40, 0),
    (0x50, 0),
    (0x60, 0),
    (0x70, 0),
    (0x90, 0),
    (0x90, 1),
    (0xa0, 0),
    (0xb0, 0),
    (0xc0, 0),
];
const CONDITIONS: [u8; 11] = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0];
const ATOMICS: [i32; 10] = [0x00, 0x01, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1];

/// Returns the class of arithmetic of this many bits.
const fn alu(bits: Bits) -> u8 {
    match bits {
        Bits::B32 => 0x04,
        Bits::B64 => 0x07,
    }
}

const fn jumps(bits: Bits) -> u8 {
    match bits {
        Bits::B32 => 0x06,
        Bits::B64 => 0x05,
    }
}

/// Returns all programs.
pub(super) fn programs() -> Vec<Vector> {
    let mut all = Vec::new();
    operations(&mut all);
    registers(&mut all);
    conversions(&mut all);
    branches(&mut all);
    loads(&mut all);
    stores(&mut all);
    atomics(&mut all);
    flow(&mut all);
    far(&mut all);
    all
}

/// Arithmetic on numbers near the limits, by registers and immediates.
fn operations(all: &mut Vec<Vector>) {
    for (code, offset) in ARITHMETIC {
        for bits in Bits::ALL {
            for left in NUMBERS {
                for right in NUMBERS {
                    let expected = arithmetic(code, offset, bits, left, right);
                    let program = Program::default().wide(3, left).wide(4, right);
                    let program = program.slot(alu(bits) | 0x08 | code, 3, 4, offset, 0).copy(0, 3).exit();
                    all.push(program.returns(format!("{code:#x}.{offset} {bits:?} {left:#x} {right:#x}"), expected));
                }
                for right in IMMEDIATES {
                    let expected = arithmetic(code, offset, bits, left, right as u64);
                    let program = Program::default().wide(0, left).slot(alu(bits) | code, 0, 0, offset, right).exit();
                    all.push(program.returns(format!("{code:#x}.{offset} {bits:?} {left:#x} #{right:#x}"), expected));
                }
            }
        }
    }
}

/// Every pair of registers, since compiled shifts and divisions need certain machine registers. All other registers
/// keep their values.
fn registers(all: &mut Vec<Vector>) {
    let value = |register: u8| 0x8000_0000_0000_0000_u64.rotate_left(u32::from(register) * 7) | 0x25;
    for (code, offset) in ARITHMETIC {
        for (bits, dst, src) in Bits::ALL.into_iter().flat_map(|bits| pairs().map(move |(dst, src)| (bits, dst, src))) {
            let result = arithmetic(code, offset, bits, value(dst), value(src));
            let mut program =
                (0..10).fold(Program::default(), |program, register| program.wide(register, value(register)));
            program = program.slot(alu(bits) | 0x08 | code, dst, src, offset, 0);
            let mut expected = 0_u64;
            for register in 1..10 {
                // r0 = (r0 ^ register) * 31
                program = program.slot(0xaf, 0, register, 0, 0).slot(0x27, 0, 0, 0, 31);
            }
            for register in 0..10 {
                let value = if register == dst { result } else { value(register) };
                expected = if register == 0 { value } else { (expected ^ value).wrapping_mul(31) };
            }
            all.push(program.exit().returns(format!("{code:#x}.{offset} {bits:?} r{dst} r{src}"), expected));
        }
    }
}

fn pairs() -> impl Iterator<Item = (u8, u8)> {
    (0..10).flat_map(|dst| (0..10).map(move |src| (dst, src)))
}

/// Negation, sign-extending moves, byte swaps.
fn conversions(all: &mut Vec<Vector>) {
    for value in NUMBERS {
        for bits in Bits::ALL {
            let expected = bits.low(-i128::from(value));
            let program = Program::default().wide(6, value).slot(alu(bits) | 0x80, 6, 0, 0, 0).copy(0, 6).exit();
            all.push(program.returns(format!("neg {bits:?} {value:#x}"), expected));
            for from in [8_u8, 16, 32] {
                if (bits, from) == (Bits::B32, 32) {
                    continue;
                }
                let expected = bits.low(sign_extended(from.into(), value));
                for src in [0, 1, 5, 7] {
                    let program = Program::default().wide(src, value);
                    let program = program.slot(alu(bits) | 0xb8, 0, src, from.into(), 0).exit();
                    all.push(program.returns(format!("movsx{from} {bits:?} r{src} {value:#x}"), expected));
                }
            }
        }
        for len in [2_usize, 4, 8] {
            let same = if len == 8 { value } else { value & ((1 << (len * 8)) - 1) };
            let (little, big) = if cfg!(target_endian = "little") {
                (same, reversed(len, value))
            } else {
                (reversed(len, value), same)
            };
            for (opcode, expected) in [(0xd4, little), (0xdc, big), (0xd7, reversed(len, value))] {
                for dst in [0, 2, 9] {
                    let program = Program::default().wide(dst, value).slot(opcode, dst, 0, 0, len as i32 * 8);
                    let program = program.copy(0, dst).exit();
                    all.push(program.returns(format!("swap {opcode:#x} {len} r{dst} {value:#x}"), expected));
                }
            }
        }
    }
}

fn branches(all: &mut Vec<Vector>) {
    for code in CONDITIONS {
        for bits in Bits::ALL {
            let class = jumps(bits);
            for left in NUMBERS {
                for right in NUMBERS {
                    let expected = taken(code, bits, left, right).into();
                    let program = Program::default().wide(2, left).wide(8, right).set(0, 1);
                    let program = program.slot(class | 0x08 | code, 2, 8, 1, 0).set(0, 0).exit();
                    all.push(program.returns(format!("if {code:#x} {bits:?} {left:#x} {right:#x}"), expected));
                }
                for right in IMMEDIATES {
                    let expected = taken(code, bits, left, right as u64).into();
                    let program = Program::default().wide(9, left).set(0, 1);
                    let program = program.slot(class | code, 9, 0, 1, right).set(0, 0).exit();
                    all.push(program.returns(format!("if {code:#x} {bits:?} {left:#x} #{right:#x}"), expected));
                }
            }
        }
    }
}

/// The memory in tests of loads and stores.
const PATTERN: [u8; 24] = [
    0x80, 0x91, 0x22, 0xb3, 0x44, 0xd5, 0x66, 0xf7, 0x08, 0x19, 0xaa, 0x3b, 0xcc, 0x5d, 0xee, 0x7f, 0xff, 0xfe, 0x7d,
    0x00, 0x01, 0x82, 0x03, 0x84,
];

fn number(bytes: &[u8]) -> u64 {
    let order = |all: u64, byte: &u8| all << 8 | u64::from(*byte);
    if cfg!(target_endian = "little") { bytes.iter().rev().fold(0, order) } else { bytes.iter().fold(0, order) }
}

/// Sizes: the opcode's bits, and the number of bytes.
const SIZES: [(u8, usize); 4] = [(0x10, 1), (0x08, 2), (0x00, 4), (0x18, 8)];

fn loads(all: &mut Vec<Vector>) {
    for (size, len) in SIZES {
        for at in 0..=PATTERN.len() - len {
            let value = number(&PATTERN[at..at + len]);
            let signed = sign_extended(len as u32 * 8, value) as u64;
            for (mode, expected) in [(0x60, value), (0x80, signed)] {
                if (mode, len) == (0x80, 8) {
                    continue;
                }
                for base in [1_i16, 10, 20] {
                    // With some of these registers, x86-64 needs a further byte to encode the address.
                    let (register, dst) = [(1, 0), (7, 3), (4, 4)][base as usize % 3];
                    let program = Program::default().copy(register, 1).slot(0x07, register, 0, 0, base.into());
                    let program = program.slot(0x01 | mode | size, dst, register, at as i16 - base, 0);
                    let name = format!("load {mode:#x} {len} {at} {base}");
                    all.push(program.copy(0, dst).exit().with(name, expected, PATTERN.to_vec()));
                }
            }
        }
    }
}

/// Stores change exactly the bytes that they name, in memory and on the stack.
fn stores(all: &mut Vec<Vector>) {
    for (size, len) in SIZES {
        for at in 0..=16 - len {
            for value in [0x1122_3344_5566_7788, u64::MAX, 0x8000_0000_0000_0080] {
                let mut bytes = PATTERN[..16].to_vec();
                let (first, last) = (8_u64 << 56, 1);
                let stored = |value: u64| {
                    if cfg!(target_endian = "little") {
                        value.to_le_bytes()[..len].to_vec()
                    } else {
                        value.to_be_bytes()[8 - len..].to_vec()
                    }
                };
                let sum = |bytes: &[u8]| (number(&bytes[..8]) ^ first).wrapping_sub(number(&bytes[8..])) ^ last;
                let fold = |program: Program, base: u8, start: i16| {
                    let program = program.slot(0x79, 0, base, start, 0).slot(0x79, 5, base, start + 8, 0);
                    let program = program.wide(6, first).slot(0xaf, 0, 6, 0, 0);
                    program.slot(0x1f, 0, 5, 0, 0).slot(0xa7, 0, 0, 0, 1).exit()
                };
                for src in [2, 5, 7] {
                    bytes.copy_from_slice(&PATTERN[..16]);
                    bytes[at..at + len].copy_from_slice(&stored(value));
                    let program = Program::default().wide(src, value).slot(0x63 | size, 1, src, at as i16, 0);
                    let name = format!("store r{src} {len} {at} {value:#x}");
                    all.push(fold(program, 1, 0).with(name, sum(&bytes), PATTERN[..16].to_vec()));
                }
                let immediate = value as i32;
                bytes.copy_from_slice(&PATTERN[..16]);
                bytes[at..at + len].copy_from_slice(&stored(immediate as u64));
                let program = Program::default().slot(0x62 | size, 1, 0, at as i16, immediate);
                let name = format!("store #{immediate:#x} {len} {at}");
                all.push(fold(program, 1, 0).with(name, sum(&bytes), PATTERN[..16].to_vec()));
                let program = Program::default().wide(3, number(&PATTERN[..8])).wide(4, number(&PATTERN[8..16]));
                let program = program.slot(0x7b, 10, 3, -512, 0).slot(0x7b, 10, 4, -504, 0);
                let program = program.slot(0x62 | size, 10, 0, at as i16 - 512, immediate);
                let name = format!("store on the stack #{immediate:#x} {len} {at}");
                all.push(fold(program, 10, -512).returns(name, sum(&bytes)));
            }
        }
    }
}

/// Atomic operations. Each program returns the new contents of memory, the source register and `r0`, mixed into one
/// number.
fn atomics(all: &mut Vec<Vector>) {
    const EXPECTED: u64 = 0x7fff_ffff_8000_0000;
    let olds = [0, u64::MAX, EXPECTED, 0x8000_0000, 0x7fff_ffff_ffff_ffff, 0x0123_4567_89ab_cdef];
    for code in ATOMICS {
        for bits in Bits::ALL {
            let (size, len) = if bits == Bits::B32 { (0x00, 4) } else { (0x18, 8) };
            for (old, operand) in olds.into_iter().flat_map(|old| olds.map(|operand| (old, operand))) {
                for (base, src) in [(1, 2), (7, 1), (8, 5), (10, 0), (6, 9)] {
                    let memory = model::atomic(code, bits, old, operand, if src == 0 { operand } else { EXPECTED });
                    let given = bits.low(old.into());
                    // An operation on 32 bits keeps the bytes behind them.
                    let kept = if len == 4 { old & !0xffff_ffff } else { 0 };
                    let (memory, r0) = match code {
                        0xf1 => (memory | kept, given),
                        _ if src == 0 && code & 1 != 0 => (memory | kept, given),
                        _ => (memory | kept, if src == 0 { operand } else { EXPECTED }),
                    };
                    let source = match code {
                        0xf1 | 0x00 | 0x40 | 0x50 | 0xa0 => {
                            if src == 0 {
                                r0
                            } else {
                                operand
                            }
                        }
                        _ => given,
                    };
                    if cfg!(target_endian = "big") && len == 4 {
                        continue;
                    }
                    let program = Program::default().wide(3, old).slot(0x7b, 10, 3, -8, 0).copy(4, 10);
                    let program = if base == 10 { program } else { program.copy(base, 10) };
                    let program = program.wide(0, EXPECTED).wide(src, operand);
                    let program = program.slot(0xc3 | size, base, src, -8, code).copy(3, src);
                    // r0 = (r0 * 3 ^ source) * 5 ^ memory
                    let program = program.slot(0x27, 0, 0, 0, 3).slot(0xaf, 0, 3, 0, 0).slot(0x27, 0, 0, 0, 5);
                    let program = program.slot(0x79, 5, 4, -8, 0).slot(0xaf, 0, 5, 0, 0).exit();
                    let expected = (r0.wrapping_mul(3) ^ source).wrapping_mul(5) ^ memory;
                    let name = format!("atomic {code:#x} {bits:?} r{base} r{src} {old:#x} {operand:#x}");
                    all.push(program.returns(name, expected));
                }
            }
        }
    }
    for (size, len) in SIZES {
        // Acquiring loads and releasing stores, which Linux has and RFC 9669 has not. Addresses must be aligned.
        for at in (0..16).step_by(len) {
            let value = number(&PATTERN[at..at + len]);
            let program = Program::default().slot(0xc3 | size, 3, 1, at as i16, 0x100).copy(0, 3).exit();
            all.push(program.with(format!("acquire {len} {at}"), value, PATTERN[..16].to_vec()));
            let program = Program::default().wide(3, !value).slot(0xc3 | size, 1, 3, at as i16, 0x110);
            let program = program.slot(0x61 | size, 0, 1, at as i16, 0).exit();
            let expected = if len == 8 { !value } else { !value & ((1 << (len * 8)) - 1) };
            all.push(program.with(format!("release {len} {at}"), expected, PATTERN[..16].to_vec()));
        }
    }
}

/// Calls, also of helpers whose number is in a register; jumps back and forward.
fn flow(all: &mut Vec<Vector>) {
    // Functions get five arguments, keep r6 to r9 of their caller, and have their own stack.
    let program = (6..10).fold(Program::default(), |program, kept| program.set(kept, i32::from(kept) * 100));
    let program = (1..6).fold(program, |program, argument| program.set(argument, i32::from(argument)));
    let program = program.slot(0x7a, 10, 0, -8, 7).slot(0x85, 0, 1, 0, 7);
    let program = (6..10).fold(program, |program, kept| program.slot(0x0f, 0, kept, 0, 0));
    let program = program.slot(0x79, 1, 10, -8, 0).slot(0x0f, 0, 1, 0, 0).exit();
    let program = program.slot(0x7a, 10, 0, -8, 1000).set(0, 0);
    let program =
        (1..6).fold(program, |program, argument| program.slot(0x27, 0, 0, 0, 10).slot(0x0f, 0, argument, 0, 0));
    let program = (6..10).fold(program, |program, kept| program.set(kept, -1)).exit();
    all.push(program.returns("a function".to_owned(), 12_345 + 3000 + 7));
    // Eight deep: each calls the next one, then adds 1.
    let program = Program::default().set(0, 0);
    let program =
        (0..7).fold(program, |program, _| program.slot(0x85, 0, 1, 0, 2).slot(0x07, 0, 0, 0, 1).exit().set(0, 5));
    all.push(program.exit().returns("eight functions deep".to_owned(), 12));
    // The helper returns its first argument; r6 stays.
    let program = Program::default().set(6, 40).set(1, 2).slot(0x85, 0, 0, 0, 5).slot(0x0f, 0, 6, 0, 0).exit();
    all.push(program.returns("a helper".to_owned(), 42));
    for register in [2, 5, 6, 9] {
        let program = Program::default().set(register, 5).set(1, 42).slot(0x8d, register, 0, 0, 0).exit();
        all.push(program.returns(format!("a helper by r{register}"), 42));
    }
    // Ten rounds of a loop, by each kind of jump back.
    for (name, back) in [("ja", (0x05, -4, 0)), ("ja32", (0x06, 0, -4))] {
        let (opcode, offset, immediate) = back;
        let program = Program::default().set(0, 0).set(1, 10);
        let program = program.slot(0x15, 1, 0, 3, 0).slot(0x07, 0, 0, 0, 3).slot(0x17, 1, 0, 0, 1);
        all.push(program.slot(opcode, 0, 0, offset, immediate).exit().returns(name.to_owned(), 30));
    }
    for (name, opcode) in [("jne back", 0x55), ("jne32 back", 0x56)] {
        let program = Program::default().set(0, 0).set(1, 10).slot(0x07, 0, 0, 0, 3).slot(0x17, 1, 0, 0, 1);
        all.push(program.slot(opcode, 1, 0, -3, 0).exit().returns(name.to_owned(), 30));
    }
    // A jump over both slots of a wide load, and one to a wide load.
    let program = Program::default().set(0, 1).slot(0x05, 0, 0, 2, 0).wide(0, 2).exit();
    all.push(program.returns("over lddw".to_owned(), 1));
    let program =
        Program::default().slot(0x05, 0, 0, 1, 0).exit().wide(0, 0xfedc_ba98_7654_3210).slot(0x05, 0, 0, -4, 0);
    all.push(program.returns("exit is not last".to_owned(), 0xfedc_ba98_7654_3210));
    // Linux's `may_goto`, which jumps when it has been reached often enough, does not jump the first time.
    let program = Program::default().set(0, 3).slot(0xe5, 0, 0, 1, 0).set(0, 4).exit();
    all.push(program.returns("may_goto".to_owned(), 4));
    for value in NUMBERS {
        all.push(Program::default().wide(0, value).exit().returns(format!("lddw {value:#x}"), value));
    }
}

/// Offsets at the limits.
fn far(all: &mut Vec<Vector>) {
    let mut memory = vec![0; 0x8000 + 8];
    memory[0x7fff] = 0xab;
    memory[0] = 0xcd;
    let program = Program::default().slot(0x71, 0, 1, 0x7fff, 0).exit();
    all.push(program.with("load 32767 on".to_owned(), 0xab, memory.clone()));
    let program = Program::default().slot(0x07, 1, 0, 0, 0x8000).slot(0x71, 0, 1, -0x8000, 0).exit();
    all.push(program.with("load 32768 back".to_owned(), 0xcd, memory.clone()));
    let program = Program::default().slot(0x72, 1, 0, 0x7fff, 0x12).slot(0x71, 0, 1, 0x7fff, 0).exit();
    all.push(program.with("store 32767 on".to_owned(), 0x12, memory.clone()));
    let program = Program::default().slot(0x7b, 10, 10, -512, 0).slot(0x72, 10, 0, -1, 9).slot(0x71, 0, 10, -1, 0);
    all.push(program.exit().returns("both ends of the stack".to_owned(), 9));
    // Forward and back as far as 16 bits reach, and further with 32 bits.
    let over = |count: usize| (0..count).fold(Program::default(), |program, _| program.slot(0x07, 0, 0, 0, 1)).0;
    let mut program = Program::default().set(0, 1).slot(0x05, 0, 0, i16::MAX, 0);
    program.0.extend(over(i16::MAX as usize));
    all.push(program.exit().returns("32767 slots on".to_owned(), 1));
    let mut program = Program::default().set(0, 1).slot(0x06, 0, 0, 0, 40_000);
    program.0.extend(over(40_000));
    all.push(program.exit().returns("40000 slots on".to_owned(), 1));
    for (name, taken) in [("32768 slots back", 0x15), ("32768 slots back, 32 bits", 0x16)] {
        // Jumps back once: r1 is 0 at first, and 1 after the jump's target.
        let mut program =
            Program::default().set(0, 0).set(1, 0).slot(0x05, 0, 0, 2, 0).set(1, 1).slot(0x05, 0, 0, 0, 0);
        program.0.extend(over(32_765));
        all.push(program.slot(taken, 1, 0, i16::MIN, 0).exit().returns(name.to_owned(), 2 * 32_765));
    }
    let mut program = Program::default().set(0, 0).slot(0x85, 0, 1, 0, 33_002).exit();
    program.0.extend(over(33_000));
    let program = program.exit().set(0, 77).exit();
    all.push(program.returns("a function 33002 slots on".to_owned(), 77));
}
