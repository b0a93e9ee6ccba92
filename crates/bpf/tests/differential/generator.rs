//! Programs that end, touch only their memory, and read only what has a value.

use palimpsest_bpf::insn::{
    AluOp, AtomicOp, ByteOrder, Condition, Extension, Instruction, Operand, Reach, Register, Size, Wide, Width, encode,
};
use proptest::prelude::*;

/// Bytes of the block that a program works on.
pub(crate) const BLOCK: usize = 256;

/// Memory aligned for atomic operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(8))]
pub(crate) struct Block([u8; BLOCK]);

impl std::ops::Deref for Block {
    type Target = [u8; BLOCK];

    fn deref(&self) -> &[u8; BLOCK] {
        &self.0
    }
}

impl std::ops::DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8; BLOCK] {
        &mut self.0
    }
}

/// Keeps the address of the block.
const BASE: Register = Register::R9;
/// Bytes of the stack that a program works on.
const STACK: i16 = 64;

/// A register that a program computes with.
fn register() -> impl Strategy<Value = Register> {
    prop::sample::select(&Register::ALL[..9])
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::W32), Just(Width::W64)]
}

/// Constants, most of them near a limit of an encoding.
fn immediate() -> impl Strategy<Value = i32> {
    let limits = [0, 7, 8, 12, 15, 16, 24, 31].map(|log| 1_i32.wrapping_shl(log));
    let near = (prop::sample::select(limits.to_vec()), -2..=2).prop_map(|(limit, by)| limit.wrapping_add(by));
    let pattern = (0..32_u32, 0..32_u32).prop_map(|(ones, by)| ((1_u64 << ones) - 1).rotate_left(by) as i32);
    prop_oneof![near.clone(), near.prop_map(i32::wrapping_neg), pattern, any::<i32>()]
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![register().prop_map(Operand::Register), immediate().prop_map(Operand::Immediate)]
}

fn alu() -> impl Strategy<Value = Instruction> {
    (width(), prop::sample::select(AluOp::ALL.to_vec()), register(), operand())
        .prop_map(|(width, op, dst, operand)| Instruction::Alu { width, op, dst, operand })
}

fn move_signed() -> impl Strategy<Value = Instruction> {
    let kinds = [
        (Width::W32, Size::Byte),
        (Width::W32, Size::Half),
        (Width::W64, Size::Byte),
        (Width::W64, Size::Half),
        (Width::W64, Size::Word),
    ];
    (prop::sample::select(kinds.to_vec()), register(), register())
        .prop_map(|((width, from), dst, src)| Instruction::MoveSigned { width, from, dst, src })
}

fn swap() -> impl Strategy<Value = Instruction> {
    let orders = prop::sample::select(vec![ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap]);
    let sizes = prop::sample::select(vec![Size::Half, Size::Word, Size::Double]);
    (orders, sizes, register()).prop_map(|(order, size, dst)| Instruction::Swap { order, size, dst })
}

fn size() -> impl Strategy<Value = Size> {
    prop::sample::select(vec![Size::Byte, Size::Half, Size::Word, Size::Double])
}

/// A place for `size` bytes, in the block or on the stack; aligned to that size if it must be.
fn place(size: Size, aligned: bool) -> impl Strategy<Value = (Register, i16)> {
    let len = size.bytes() as i16;
    let round = move |offset: i16| if aligned { offset / len * len } else { offset };
    prop_oneof![
        (0..=BLOCK as i16 - len).prop_map(move |offset| (BASE, round(offset))),
        (0..=STACK - len).prop_map(move |offset| (Register::R10, round(offset) - STACK)),
    ]
}

fn access() -> impl Strategy<Value = Instruction> {
    let load = (size(), any::<bool>(), register()).prop_flat_map(|(size, signed, dst)| {
        let extension = if signed && size != Size::Double { Extension::Sign } else { Extension::Zero };
        place(size, false).prop_map(move |(base, offset)| Instruction::Load { size, extension, dst, base, offset })
    });
    let store = (size(), operand()).prop_flat_map(|(size, value)| {
        place(size, false).prop_map(move |(base, offset)| Instruction::Store { size, base, offset, value })
    });
    let acquire = (size(), register()).prop_flat_map(|(size, dst)| {
        place(size, true).prop_map(move |(base, offset)| Instruction::LoadAcquire { size, dst, base, offset })
    });
    let release = (size(), register()).prop_flat_map(|(size, src)| {
        place(size, true).prop_map(move |(base, offset)| Instruction::StoreRelease { size, base, offset, src })
    });
    prop_oneof![load, store, acquire, release]
}

fn atomic() -> impl Strategy<Value = Instruction> {
    (prop::sample::select(AtomicOp::ALL.to_vec()), width(), register()).prop_flat_map(|(op, width, src)| {
        let size = if width == Width::W32 { Size::Word } else { Size::Double };
        place(size, true).prop_map(move |(base, offset)| Instruction::Atomic { op, width, base, offset, src })
    })
}

/// A jump, whose distance counts steps, and is cut to what is left of the program.
fn jump() -> impl Strategy<Value = Instruction> {
    let branch = (width(), prop::sample::select(Condition::ALL.to_vec()), register(), operand(), 0..20_i16).prop_map(
        |(width, condition, dst, operand, offset)| Instruction::Branch { width, condition, dst, operand, offset },
    );
    let plain = (0..8_i32, any::<bool>())
        .prop_map(|(offset, far)| Instruction::Jump { offset, reach: if far { Reach::Far } else { Reach::Near } });
    prop_oneof![4 => branch, 1 => plain]
}

fn wide() -> impl Strategy<Value = Instruction> {
    let value =
        prop_oneof![any::<u64>(), any::<i32>().prop_map(|value| value as u64), any::<u32>().prop_map(u64::from)];
    (register(), value).prop_map(|(dst, value)| Instruction::LoadWide { dst, value: Wide::Value(value) })
}

fn step() -> impl Strategy<Value = Instruction> {
    prop_oneof![
        8 => alu(),
        1 => move_signed(),
        1 => swap(),
        3 => access(),
        2 => atomic(),
        2 => jump(),
        1 => wide(),
        1 => (width(), register()).prop_map(|(width, dst)| Instruction::Negate { width, dst }),
    ]
}

/// An exchange that takes place, since memory holds what it is compared with; with 32 bits the upper half of `r0` is
/// something else.
fn exchange() -> impl Strategy<Value = Vec<Instruction>> {
    (width(), register(), any::<u32>()).prop_flat_map(|(width, src, upper)| {
        let size = if width == Width::W32 { Size::Word } else { Size::Double };
        place(size, true).prop_map(move |(base, offset)| {
            let (r0, r8) = (Register::R0, Register::R8);
            let (op, operand) = (AluOp::Or, Operand::Register(r8));
            let mut steps = vec![Instruction::Load { size, extension: Extension::Zero, dst: r0, base, offset }];
            if width == Width::W32 {
                steps.push(Instruction::LoadWide { dst: r8, value: Wide::Value(u64::from(upper) << 32) });
                steps.push(Instruction::Alu { width: Width::W64, op, dst: r0, operand });
            }
            steps.push(Instruction::Atomic { op: AtomicOp::CompareExchange, width, base, offset, src });
            steps
        })
    })
}

/// A load or store at a place of the stack, or of the block, that is known when the program runs.
fn access_by_number() -> impl Strategy<Value = Vec<Instruction>> {
    let mask = prop::sample::select(vec![7, 8, 15, 24, 31, 48, 63 - 7]);
    let access = (size(), any::<bool>(), operand(), register());
    (any::<bool>(), prop::sample::select(&Register::ALL[..9]), register(), mask, access).prop_map(
        |(on_stack, index, from, mask, (size, is_load, value, dst))| {
            let (width, base) = (Width::W64, index);
            let step = |op, operand| Instruction::Alu { width, op, dst: index, operand };
            let around = if on_stack { Register::R10 } else { BASE };
            let offset = if on_stack { -STACK } else { 0 };
            // What would lie behind is cut off.
            let mask = Operand::Immediate(mask & (STACK as i32 - size.bytes() as i32));
            let steps = [
                step(AluOp::Move, Operand::Register(from)),
                step(AluOp::And, mask),
                step(AluOp::Add, Operand::Register(around)),
            ];
            let value = if value == Operand::Register(index) { Operand::Immediate(-3) } else { value };
            let access = if is_load {
                Instruction::Load { size, extension: Extension::Zero, dst, base, offset }
            } else {
                Instruction::Store { size, base, offset, value }
            };
            // The address would differ each time.
            steps.into_iter().chain([access, step(AluOp::Move, Operand::Immediate(9))]).collect()
        },
    )
}

/// A program, and what its block holds first.
pub(crate) fn program() -> impl Strategy<Value = (Vec<Instruction>, Block)> {
    let block = prop::array::uniform32(any::<u64>()).prop_map(|words| {
        let mut block = Block([0; BLOCK]);
        for (bytes, word) in block.0.chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        block
    });
    let steps = prop_oneof![30 => step().prop_map(|step| vec![step]), 1 => exchange(), 2 => access_by_number()];
    let again =
        prop::sample::select(vec![Again::Never, Again::Branch, Again::Jump(Reach::Near), Again::Jump(Reach::Far)]);
    let body = prop::collection::vec(steps, 1..120);
    ((body, again).prop_map(|(steps, again)| whole(&steps, again)), block)
}

/// How a program goes back to its first instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Again {
    Never,
    Branch,
    Jump(Reach),
}

/// Where the number of remaining rounds is: below what the body works on.
const ROUNDS: i16 = -STACK - 8;

/// Adds what goes back to `program`'s first instruction while rounds remain.
fn go_back(program: &mut Vec<Instruction>, again: Again) {
    if again == Again::Never {
        return;
    }
    let (size, base, rounds) = (Size::Double, Register::R10, Register::R2);
    let (width, op) = (Width::W64, AluOp::Add);
    program.extend([
        Instruction::Load { size, extension: Extension::Zero, dst: rounds, base, offset: ROUNDS },
        Instruction::Alu { width, op, dst: rounds, operand: Operand::Immediate(-1) },
        Instruction::Alu { width, op: AluOp::Move, dst: Register::R1, operand: Operand::Register(BASE) },
    ]);
    let slots = program.iter().map(|instruction| instruction.slots() as i32).sum::<i32>();
    let branch = |condition, offset| {
        let operand = Operand::Immediate(0);
        Instruction::Branch { width, condition, dst: rounds, operand, offset }
    };
    if let Again::Jump(reach) = again {
        program.push(branch(Condition::Equal, 1));
        program.push(Instruction::Jump { offset: -slots - 2, reach });
    } else {
        program.push(branch(Condition::NotEqual, -slots as i16 - 1));
    }
    // The address would differ each time.
    program.push(Instruction::Alu { width, op: AluOp::Move, dst: Register::R1, operand: Operand::Immediate(-7) });
}

/// Puts the steps of `body` between what gives values to registers and to the stack, and what folds them into `r0`; its
/// jumps end inside, between steps. `r2` is how many rounds there are.
fn whole(body: &[Vec<Instruction>], again: Again) -> Vec<Instruction> {
    let set = |dst, operand| Instruction::Alu { width: Width::W64, op: AluOp::Move, dst, operand };
    let rounds = Operand::Register(Register::R2);
    let mut program =
        vec![Instruction::Store { size: Size::Double, base: Register::R10, offset: ROUNDS, value: rounds }];
    program.push(set(BASE, Operand::Register(Register::R1)));
    for (number, register) in [Register::R0, Register::R6, Register::R7, Register::R8].into_iter().enumerate() {
        program.push(set(register, Operand::Immediate(0x0101 * (number as i32 - 2))));
    }
    // The address would differ each time.
    program.push(set(Register::R1, Operand::Immediate(-7)));
    for offset in (-STACK..0).step_by(8) {
        let value = Operand::Immediate(i32::from(offset) * 0x0123_4567);
        program.push(Instruction::Store { size: Size::Double, base: Register::R10, offset, value });
    }
    let lengths: Vec<i64> =
        body.iter().map(|step| step.iter().map(|instruction| instruction.slots() as i64).sum()).collect();
    for (index, step) in body.iter().enumerate() {
        // Jumps are steps by themselves.
        program.extend(step.iter().map(|instruction| aimed(*instruction, &lengths[index + 1..])));
    }
    go_back(&mut program, again);
    for register in &Register::ALL[1..9] {
        for (op, operand) in [(AluOp::Mul, Operand::Immediate(31)), (AluOp::Xor, Operand::Register(*register))] {
            program.push(Instruction::Alu { width: Width::W64, op, dst: Register::R0, operand });
        }
    }
    for offset in (-STACK..0).step_by(8) {
        let (size, dst, base) = (Size::Double, Register::R1, Register::R10);
        program.push(Instruction::Load { size, extension: Extension::Zero, dst, base, offset });
        for (op, operand) in [(AluOp::Mul, Operand::Immediate(31)), (AluOp::Xor, Operand::Register(dst))] {
            program.push(Instruction::Alu { width: Width::W64, op, dst: Register::R0, operand });
        }
    }
    program.push(Instruction::Exit);
    program
}

/// Returns the program with arguments of its own, as the test gives them, for a verifier.
pub(crate) fn with_arguments(program: &[Instruction]) -> Vec<Instruction> {
    let arguments = [3, u64::MAX, 1 << 63, 0x1234_5678_9abc_def0];
    let set = |(dst, value): (&Register, u64)| Instruction::LoadWide { dst: *dst, value: Wide::Value(value) };
    let mut whole: Vec<Instruction> = Register::ALL[2..6].iter().zip(arguments).map(set).collect();
    whole.extend_from_slice(program);
    whole
}

/// Converts a jump, whose distance counts steps so far, to slots; `behind` are the lengths of those that follow.
fn aimed(mut instruction: Instruction, behind: &[i64]) -> Instruction {
    let slots = |count: i64| behind.iter().take(count as usize).sum::<i64>();
    match &mut instruction {
        Instruction::Branch { offset, .. } => *offset = slots((*offset).into()) as i16,
        Instruction::Jump { offset, .. } => *offset = slots((*offset).into()) as i32,
        _ => {}
    }
    instruction
}

/// The byte code of a program.
pub(crate) fn bytes(program: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for instruction in program {
        encode(instruction, &mut |slot| bytes.extend(slot));
    }
    bytes
}
