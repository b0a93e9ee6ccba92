//! Programs of numbers that end, run by the interpreter, by the compiler for this machine, plain and hardened, and by
//! other engines, the crate `rbpf` or (with the feature `ubpf`) uBPF, interpreted and compiled: all give the same
//! result and leave the same bytes.
//!
//! The first byte of an input says with its lowest bit whether `rbpf` runs the program, too, or else uBPF, and then
//! how many rounds it has. Eight bytes more for each register are its first value; the rest is instructions of [`LEN`]
//! bytes each, of which every value means something: the input has no wrong form, so that what is mutated is always a
//! program.
#![no_main]

#[cfg(feature = "ubpf")]
#[path = "../../crates/bpf/tests/common/ubpf.rs"]
#[expect(unsafe_code, reason = "calls a library in C")]
mod ubpf;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use palimpsest_bpf::insn::{
    AluOp, AtomicOp, ByteOrder, Condition, Extension, Instruction, Operand, Reach, Register, Size, Wide, Width, encode,
};
use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use palimpsest_bpf::verify::{ContextAccess, Contract, Fault, Trust};
use palimpsest_bpf::{Code, Packs, VerifiedProgram};

/// Bytes of an input for each instruction.
const LEN: usize = 8;
/// Most instructions of a body.
const MOST: usize = 200;
/// Bytes of the context.
const CONTEXT: usize = 64;
/// Bytes of the stack that the body uses.
const STACK: i16 = 64;
/// Where the number of remaining rounds is, below those.
const ROUNDS: i16 = -STACK - 8;
/// Keeps the context's address.
const BASE: Register = Register::R9;
/// What a body computes with.
const VALUES: &[Register] = Register::ALL.split_at(9).0;

/// What runs the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Palimpsest, and uBPF but for the order of accesses: everything.
    Whole,
    /// `rbpf` 0.4 as well, which has the first version's instructions and those that compare 32 bits.
    Shared,
}

/// The context, as atomic operations need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(8))]
struct Context([u8; CONTEXT]);

/// One instruction's bytes.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn pick<T: Copy>(&self, at: usize, of: &[T]) -> T {
        of[usize::from(self.0[at]) % of.len()]
    }

    fn immediate(&self) -> i32 {
        i32::from_le_bytes([self.0[4], self.0[5], self.0[6], self.0[7]])
    }

    fn value(&self, at: usize) -> Register {
        self.pick(at, VALUES)
    }

    /// A register, or a constant: any, or one at which something changes, since the bytes of any also say what is done
    /// with it.
    fn operand(&self) -> Operand {
        if self.0[2] & 0x80 == 0 {
            return Operand::Register(self.value(3));
        }
        let power = 1_i32 << (self.0[3] & 31);
        Operand::Immediate(match self.0[3] >> 5 {
            0..=3 => self.immediate(),
            4 => power,
            5 => power.wrapping_sub(1),
            6 => power.wrapping_neg(),
            _ => i32::from(self.0[4] as i8),
        })
    }

    fn width(&self) -> Width {
        if self.0[2] & 0x40 == 0 { Width::W32 } else { Width::W64 }
    }

    fn size(&self) -> Size {
        self.pick(3, &[Size::Byte, Size::Half, Size::Word, Size::Double])
    }

    /// A place for `size` bytes in the context or on the stack.
    fn place(&self, size: Size, aligned: bool) -> (Register, i16) {
        let len = size.bytes();
        let offset = usize::from(self.0[4]) % (CONTEXT - len + 1);
        let offset = if aligned { offset / len * len } else { offset } as i16;
        if self.0[5] & 1 == 0 { (BASE, offset) } else { (Register::R10, offset - STACK) }
    }

    fn alu(&self, dialect: Dialect) -> Vec<Instruction> {
        let (width, dst, operand) = (self.width(), self.value(1), self.operand());
        let op = match (self.pick(6, &AluOp::ALL), dialect) {
            (AluOp::SignedDiv, Dialect::Shared) => AluOp::Div,
            (AluOp::SignedMod, Dialect::Shared) => AluOp::Mod,
            (op, _) => op,
        };
        let mut all = vec![Instruction::Alu { width, op, dst, operand }];
        if (dialect, width, op) == (Dialect::Shared, Width::W32, AluOp::Mod) {
            // rbpf keeps the upper half if it divides by 0.
            all.push(Instruction::Alu { width, op: AluOp::Move, dst, operand: Operand::Register(dst) });
        }
        all
    }

    fn branch(&self, dialect: Dialect) -> Instruction {
        let (width, condition, dst) = (self.width(), self.pick(6, &Condition::ALL), self.value(1));
        let operand = match self.operand() {
            // rbpf extends constants by zeros where it compares 64 bits without signs.
            Operand::Immediate(value) if dialect == Dialect::Shared => Operand::Immediate(value & i32::MAX),
            operand => operand,
        };
        // Instructions so far; slots later.
        Instruction::Branch { width, condition, dst, operand, offset: (self.0[7] & 15).into() }
    }

    /// What every engine has.
    fn shared(&self, dialect: Dialect) -> Vec<Instruction> {
        let (dst, size) = (self.value(1), self.size());
        vec![match self.0[0] & 7 {
            0..=3 => return self.alu(dialect),
            4 => {
                let (base, offset) = self.place(size, false);
                Instruction::Load { size, extension: Extension::Zero, dst, base, offset }
            }
            5 => {
                let (base, offset) = self.place(size, false);
                let value =
                    if self.0[2] & 0x80 == 0 { Operand::Register(dst) } else { Operand::Immediate(self.immediate()) };
                Instruction::Store { size, base, offset, value }
            }
            6 => self.branch(dialect),
            _ if self.0[2] & 0x80 == 0 => {
                let value = u64::from(self.0[3]) << 32 | u64::from(self.immediate() as u32);
                Instruction::LoadWide { dst, value: Wide::Value(value.rotate_left(self.0[2].into())) }
            }
            _ => {
                let size = self.pick(3, &[Size::Half, Size::Word, Size::Double]);
                Instruction::Swap { order: self.pick(4, &[ByteOrder::Little, ByteOrder::Big]), size, dst }
            }
        }]
    }

    /// What `rbpf` lacks, or does otherwise.
    fn whole(&self) -> Instruction {
        let (width, dst, size) = (self.width(), self.value(1), self.size());
        match self.0[0] & 7 {
            0 => Instruction::Negate { width, dst },
            1 => {
                let from = match (self.size(), width) {
                    (Size::Word | Size::Double, Width::W32) => Size::Half,
                    (Size::Double, Width::W64) => Size::Word,
                    (size, _) => size,
                };
                Instruction::MoveSigned { width, from, dst, src: self.value(4) }
            }
            2 => Instruction::Swap {
                order: ByteOrder::Swap,
                size: self.pick(3, &[Size::Half, Size::Word, Size::Double]),
                dst,
            },
            3 => {
                let size = self.pick(3, &[Size::Byte, Size::Half, Size::Word]);
                let (base, offset) = self.place(size, false);
                Instruction::Load { size, extension: Extension::Sign, dst, base, offset }
            }
            4 => {
                let (base, offset) = self.place(size, true);
                Instruction::LoadAcquire { size, dst, base, offset }
            }
            5 => {
                let (base, offset) = self.place(size, true);
                Instruction::StoreRelease { size, base, offset, src: dst }
            }
            6 => {
                let (base, offset) = self.place(if width == Width::W32 { Size::Word } else { Size::Double }, true);
                Instruction::Atomic { op: self.pick(6, &AtomicOp::ALL), width, base, offset, src: dst }
            }
            _ => Instruction::Jump { offset: (self.0[7] & 7).into(), reach: self.pick(3, &[Reach::Near, Reach::Far]) },
        }
    }
}

fn set(dst: Register, operand: Operand) -> Instruction {
    Instruction::Alu { width: Width::W64, op: AluOp::Move, dst, operand }
}

/// Folds `register` into `r0`.
fn fold(register: Register) -> [Instruction; 2] {
    let (width, dst) = (Width::W64, Register::R0);
    [(AluOp::Mul, Operand::Immediate(31)), (AluOp::Xor, Operand::Register(register))]
        .map(|(op, operand)| Instruction::Alu { width, op, dst, operand })
}

/// What comes before and after the body: values for registers and stack, rounds, and what folds all into `r0`.
fn program(values: &[u64], rounds: u8, body: &[Instruction]) -> Vec<Instruction> {
    let (size, frame) = (Size::Double, Register::R10);
    let value = Operand::Immediate(rounds.into());
    let mut all = vec![
        set(BASE, Operand::Register(Register::R1)),
        Instruction::Store { size, base: frame, offset: ROUNDS, value },
    ];
    for (dst, value) in VALUES.iter().zip(values) {
        all.push(Instruction::LoadWide { dst: *dst, value: Wide::Value(*value) });
    }
    for offset in (-STACK..0).step_by(8) {
        let value = Operand::Immediate(i32::from(offset) * 0x0123_4567);
        all.push(Instruction::Store { size, base: frame, offset, value });
    }
    let lengths: Vec<i32> = body.iter().map(|instruction| instruction.slots() as i32).collect();
    for (index, instruction) in body.iter().enumerate() {
        let mut aimed = *instruction;
        let slots = |count: i32| lengths[index + 1..].iter().take(count as usize).sum::<i32>();
        match &mut aimed {
            Instruction::Branch { offset, .. } => *offset = slots((*offset).into()) as i16,
            Instruction::Jump { offset, .. } => *offset = slots(*offset),
            _ => {}
        }
        all.push(aimed);
    }
    let (width, counter, operand) = (Width::W64, Register::R8, Operand::Immediate(-1));
    all.extend([
        Instruction::Load { size, extension: Extension::Zero, dst: counter, base: frame, offset: ROUNDS },
        Instruction::Alu { width, op: AluOp::Add, dst: counter, operand },
        Instruction::Store { size, base: frame, offset: ROUNDS, value: Operand::Register(counter) },
    ]);
    let back = -(lengths.iter().sum::<i32>() + 4) as i16;
    let (condition, operand) = (Condition::Greater, Operand::Immediate(0));
    all.push(Instruction::Branch { width, condition, dst: counter, operand, offset: back });
    all.extend(VALUES[1..].iter().flat_map(|register| fold(*register)));
    for offset in (-STACK..0).step_by(8) {
        all.push(Instruction::Load { size, extension: Extension::Zero, dst: Register::R1, base: frame, offset });
        all.extend(fold(Register::R1));
    }
    all.push(Instruction::Exit);
    all
}

/// Returns the byte code of a program.
fn encoded(instructions: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::new();
    instructions.iter().for_each(|instruction| encode(instruction, &mut |slot| bytes.extend(slot)));
    bytes
}

/// The packs of every run.
static PACKS: LazyLock<Packs> = LazyLock::new(|| Packs::new().expect("packs"));

fuzz_target!(|input: &[u8]| {
    let Some((&first, rest)) = input.split_first() else { return };
    let Some((values, rest)) = rest.split_at_checked(VALUES.len() * 8) else { return };
    let dialect = if first & 1 == 0 { Dialect::Whole } else { Dialect::Shared };
    let values: Vec<u64> = values.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let body: Vec<Instruction> = rest
        .chunks_exact(LEN)
        .take(MOST)
        .map(Bytes)
        .flat_map(|bytes| match (bytes.0[0] & 8, dialect) {
            (0, _) | (_, Dialect::Shared) => bytes.shared(dialect),
            _ => vec![bytes.whole()],
        })
        .collect();
    let instructions = program(&values, 1 + (first >> 1 & 3), &body);
    let text = || instructions.iter().map(|instruction| format!("{instruction}\n")).collect::<String>();
    let bytes = encoded(&instructions);
    let code = Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{}", text()));
    let contract = Contract::new().context(CONTEXT as u32, ContextAccess::Write).budget(10_000);
    let verify = |contract: Contract| match contract.verify(code.clone()) {
        Ok(verified) => Some(verified),
        // Too many ways lead through it.
        Err(error) if matches!(error.fault, Fault::Budget { .. }) => None,
        Err(error) => panic!("a program of numbers is refused: {error}\n{}", text()),
    };
    let Some(verified) = verify(contract.clone()) else { return };
    let mut expected_context = Context([0xa5; CONTEXT]);
    let mut memory = Memory::new();
    memory.add(0x10_0000, &mut expected_context.0).expect("nothing else is there");
    let arguments = [0x10_0000, CONTEXT as u64, 0, 0, 0];
    let expected = Interpreter::default().run(verified.code(), arguments, &mut memory, &mut NoHelpers);
    let expected = expected.unwrap_or_else(|error| panic!("accepted, and {error}\n{}", text()));
    let Some(hardened) = verify(contract.fuel(10_000).trust(Trust::None)) else { return };
    for (name, verified) in [("compiled", &verified), ("hardened", &hardened)] {
        let program = VerifiedProgram::load(&PACKS, verified, &()).expect("room");
        let mut context = Context([0xa5; CONTEXT]);
        assert_eq!(program.run(&mut context.0), Ok(expected), "{name}\n{}", text());
        assert_eq!(context, expected_context, "{name}\n{}", text());
    }
    if dialect == Dialect::Shared {
        let peer = rbpf::EbpfVmRaw::new(Some(&bytes)).unwrap_or_else(|error| panic!("rbpf: {error}\n{}", text()));
        let mut context = Context([0xa5; CONTEXT]);
        let result = peer.execute_program(&mut context.0).unwrap_or_else(|error| panic!("rbpf: {error}\n{}", text()));
        assert_eq!(result, expected, "rbpf\n{}", text());
        assert_eq!(context, expected_context, "rbpf\n{}", text());
    }
    #[cfg(feature = "ubpf")]
    if dialect == Dialect::Whole {
        let plain: Vec<Instruction> = instructions.iter().copied().map(ubpf::without_order).collect();
        let mut peer = ubpf::Ubpf::load(&encoded(&plain)).unwrap_or_else(|error| panic!("uBPF: {error}\n{}", text()));
        let (mut interpreted, mut compiled) = (Context([0xa5; CONTEXT]), Context([0xa5; CONTEXT]));
        assert_eq!(peer.interpret(&mut interpreted.0), Ok(expected), "uBPF interpreted\n{}", text());
        assert_eq!(interpreted, expected_context, "uBPF interpreted\n{}", text());
        // SAFETY: 1. the verifier has accepted it for such a context.
        #[expect(unsafe_code, reason = "runs a program of a library in C")]
        let result = unsafe { peer.run_compiled(&mut compiled.0) };
        assert_eq!(result, Ok(expected), "uBPF compiled\n{}", text());
        assert_eq!(compiled, expected_context, "uBPF compiled\n{}", text());
    }
});
