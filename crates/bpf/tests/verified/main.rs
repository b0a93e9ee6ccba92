//! What the verifier accepts does no harm: random programs, most of them wrong, run within exactly what they were
//! promised.
//!
//! What the verifier knows of numbers is also compared with the interpreter's results, for every operation and
//! condition. Mutants that are caught: a bound of the context that is off by one, a comparison that learns too much, 32
//! bits taken for 64, a register that is forgotten too early.
//!
//! All programs run a second time as programs whose makers are not trusted. Mutants that are caught: a mask that is too
//! small by one, the last mask of several paths taken for all, constants that are not blinded, a comparison whose
//! constant is not.

#[path = "../common/mod.rs"]
mod common;
mod links;
mod logs;
mod parts;
mod used;

use palimpsest_bpf::insn::{
    AluOp, Callee, Condition, Extension, Instruction, Operand, Reach, Register, Size, Width, encode,
};
use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers, RunError, Trap};
use palimpsest_bpf::jit::Target;
use palimpsest_bpf::verify::{ContextAccess, Contract, FunctionType, Null, Parameter, Trust, Verified};
use palimpsest_bpf::{Code, ContextError, VerifiedError, VerifiedProgram, asm};
use palimpsest_text::Packs;

use common::packs;

/// Bytes of context.
const LEN: u32 = 32;

/// Random numbers, the same each time: xorshift by Marsaglia.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, count: u64) -> u64 {
        (self.next() >> 11) % count
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Makes an instruction that is often wrong, but not always.
fn instruction(random: &mut Random) -> Instruction {
    let registers = [Register::R0, Register::R3, Register::R4, Register::R5];
    let (dst, src) = (random.one_of(&registers), random.one_of(&registers));
    let base = random.one_of(&[Register::R1, Register::R1, Register::R10, Register::R6, Register::R7, dst]);
    let width = random.one_of(&[Width::W64, Width::W64, Width::W32]);
    let size = random.one_of(&[Size::Byte, Size::Half, Size::Word, Size::Double]);
    let offset = random.below(48) as i16 - if base == Register::R10 { 48 } else { 8 };
    let small =
        Operand::Immediate(random.one_of(&[0, 1, 3, 4, 7, 8, 15, 16, 24, 31, 32, 33, -1, -8, i32::MAX, i32::MIN]));
    let operand = random.one_of(&[Operand::Register(src), small, small]);
    match random.below(10) {
        0 | 1 => {
            let ops = [AluOp::And, AluOp::And, AluOp::Mod, AluOp::ShiftRight, AluOp::ShiftLeft, AluOp::Add, AluOp::Sub];
            let more = [AluOp::Mul, AluOp::Xor, AluOp::Or, AluOp::Div, AluOp::ShiftRightSigned, AluOp::SignedMod];
            let op = if random.below(3) == 0 { random.one_of(&more) } else { random.one_of(&ops) };
            Instruction::Alu { width, op, dst, operand }
        }
        2 => Instruction::Alu { width: Width::W64, op: AluOp::Move, dst, operand },
        // Addresses: copied, and moved by numbers.
        3 => {
            let dst = random.one_of(&[Register::R6, Register::R7]);
            let operand = Operand::Register(random.one_of(&[Register::R1, Register::R1, Register::R10]));
            Instruction::Alu { width: Width::W64, op: AluOp::Move, dst, operand }
        }
        4 => {
            let dst = random.one_of(&[Register::R6, Register::R7]);
            let op = random.one_of(&[AluOp::Add, AluOp::Add, AluOp::Sub]);
            Instruction::Alu { width: Width::W64, op, dst, operand }
        }
        5 | 6 => {
            let extension = if size == Size::Double || random.below(3) > 0 { Extension::Zero } else { Extension::Sign };
            Instruction::Load { size, extension, dst, base, offset }
        }
        7 => Instruction::Store { size, base, offset, value: operand },
        8 => {
            let (condition, offset) = (random.one_of(&Condition::ALL), random.below(4) as i16);
            Instruction::Branch { width, condition, dst, operand, offset }
        }
        _ => Instruction::Jump { offset: random.below(2) as i32, reach: Reach::Near },
    }
}

/// Makes a sum that is of an address on one way, and of numbers or a distance on the other, in either order.
fn sum_of_two_ways(random: &mut Random) -> Vec<Instruction> {
    let set = |dst, operand| Instruction::Alu { width: Width::W64, op: AluOp::Move, dst, operand };
    let (left, right, kind, base) = (Register::R6, Register::R7, Register::R4, Register::R1);
    let number = |random: &mut Random| Operand::Immediate(random.below(16) as i32);
    let address = Operand::Register(base);
    let op = random.one_of(&[AluOp::Add, AluOp::Sub]);
    let mut ways = [[address, number(random)], [number(random), number(random)]];
    if op == AluOp::Sub {
        ways[1] = random.one_of(&[ways[1], [address, address]]);
    }
    let is_address = random.below(2) as usize;
    ways.rotate_left(is_address);
    let branch = |condition, dst, value, offset| {
        let operand = Operand::Immediate(value);
        Instruction::Branch { width: Width::W64, condition, dst, operand, offset }
    };
    let (condition, extension) = (Condition::Greater, Extension::Zero);
    let [[first, by], [other, other_by]] = ways;
    vec![
        Instruction::Load { size: Size::Byte, extension, dst: Register::R3, base, offset: 0 },
        set(left, first),
        set(right, by),
        set(kind, Operand::Immediate(0)),
        branch(condition, Register::R3, random.below(256) as i32, 3),
        set(left, other),
        set(right, other_by),
        set(kind, Operand::Immediate(1)),
        Instruction::Alu { width: Width::W64, op, dst: left, operand: Operand::Register(right) },
        branch(Condition::NotEqual, kind, is_address as i32, 2),
        Instruction::Load { size: Size::Byte, extension, dst: Register::R0, base: left, offset: 15 },
        Instruction::Exit,
        set(Register::R0, Operand::Register(left)),
        Instruction::Exit,
    ]
}

fn program(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let set =
        |dst, value| Instruction::Alu { width: Width::W64, op: AluOp::Move, dst, operand: Operand::Immediate(value) };
    let mut push = |instruction: &Instruction| encode(instruction, &mut |slot| bytes.extend(slot));
    for (register, value) in [(Register::R0, 0), (Register::R3, 3), (Register::R4, -4)] {
        push(&set(register, value));
    }
    let base = Register::R1;
    push(&Instruction::Load { size: Size::Double, extension: Extension::Zero, dst: Register::R5, base, offset: 8 });
    for _ in 0..2 + random.below(12) {
        push(&instruction(random));
    }
    if random.below(4) == 0 {
        for instruction in sum_of_two_ways(random) {
            push(&instruction);
        }
    }
    // Jumps over the end land here.
    for _ in 0..4 {
        push(&set(Register::R0, 0));
    }
    push(&Instruction::Exit);
    bytes
}

/// Makes a program whose jumps may go back, with a function that it may call.
fn looping(random: &mut Random) -> Vec<u8> {
    let lengths = [6 + random.below(10), 3 + random.below(8)];
    // What comes before and behind the body, each of one slot.
    let function = 4 + lengths[0] as i32 + 5;
    let mut bytes = Vec::new();
    let mut slot = 0;
    let mut push = |instruction: &Instruction| encode(instruction, &mut |slot| bytes.extend(slot));
    let set =
        |dst, value| Instruction::Alu { width: Width::W64, op: AluOp::Move, dst, operand: Operand::Immediate(value) };
    for (len, start) in lengths.into_iter().zip([0, function]) {
        for (register, value) in [(Register::R0, 0), (Register::R3, 3), (Register::R4, -4), (Register::R5, 5)] {
            push(&set(register, value));
            slot += 1;
        }
        for _ in 0..len {
            let back = -1 - random.below((slot - start + 1) as u64) as i32;
            let ahead = random.below(4) as i32;
            let jump = if random.below(3) > 0 { back } else { ahead };
            push(&match (random.below(12), instruction(random)) {
                (0, _) if start == 0 => Instruction::Call(Callee::Local(function - slot - 1)),
                (1, _) => Instruction::MayGoto { offset: jump as i16 },
                (2, _) | (_, Instruction::Jump { .. }) => Instruction::Jump { offset: jump, reach: Reach::Near },
                (_, Instruction::Branch { width, condition, dst, operand, .. }) => {
                    Instruction::Branch { width, condition, dst, operand, offset: jump as i16 }
                }
                (_, other) => other,
            });
            slot += 1;
        }
        for _ in 0..4 {
            push(&set(Register::R0, 0));
        }
        push(&Instruction::Exit);
        slot += 5;
    }
    bytes
}

/// What the function of [`looping`] takes, as somebody may claim.
fn takes(random: &mut Random) -> FunctionType {
    let memory = |random: &mut Random| {
        let (len, align) = (random.one_of(&[8, 24, LEN, LEN, LEN + 8]), random.one_of(&[1, 8]));
        Parameter::Memory { len, align, null: random.one_of(&[Null::Excluded, Null::Excluded, Null::Possible]) }
    };
    let first = match random.below(4) {
        0 => Parameter::Number,
        1 => memory(random),
        _ => Parameter::Context,
    };
    let mut parameters = vec![first];
    parameters.resize(1 + random.below(5) as usize, Parameter::Number);
    FunctionType::new(parameters).expect("a type")
}

/// Runs a program with eight contexts, interpreted and compiled, with guards and without, which must agree. Returns how
/// often it had no fuel left.
fn agrees(contract: &Contract, verified: &Verified, packs: Option<&Packs>, random: &mut Random) -> u32 {
    let code = verified.code();
    let hardened = contract.clone().trust(Trust::None).verify(code.clone()).expect("guards refuse nothing");
    let load = |verified: &Verified, packs| VerifiedProgram::load(packs, verified, &()).expect("room");
    let compiled = packs.map(|packs| [load(verified, packs), load(&hardened, packs)]);
    let mut spent = 0;
    for _ in 0..8 {
        let mut context = [0_u64; LEN as usize / 8].map(|_| match random.below(3) {
            0 => random.below(64),
            1 => random.next(),
            _ => random.below(64).wrapping_neg(),
        });
        let first = context;
        let mut bytes: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut memory = Memory::new();
        memory.add(0x10_0000, &mut bytes).expect("free");
        let arguments = [0x10_0000, LEN.into(), 0, 0, 0];
        // A `may_goto` is passed 65 535 times in each call, of which there are few.
        let interpreter = Interpreter::default().budget(50_000_000);
        let interpreter = verified.fuel().map_or(interpreter, |fuel| interpreter.fuel(fuel));
        let result = interpreter.run(code, arguments, &mut memory, &mut NoHelpers);
        let listing = || code.instructions().iter().map(|step| format!("{step}\n")).collect::<String>();
        let expected = match result {
            Ok(value) => Ok(value),
            Err(RunError { trap: Trap::Fuel { fuel }, .. }) => {
                spent += 1;
                Err(VerifiedError::Fuel { fuel })
            }
            Err(error) => panic!("accepted, and {error}:\n{}context {context:x?}", listing()),
        };
        drop(memory);
        for (word, bytes) in context.iter_mut().zip(bytes.chunks(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
        }
        for compiled in compiled.iter().flatten() {
            let mut same = first;
            let mut view: Vec<u8> = same.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(compiled.run(&mut view), expected, "{}", listing());
            for (word, bytes) in same.iter_mut().zip(view.chunks(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
            }
            assert_eq!(same, context, "{}", listing());
        }
    }
    spent
}

#[test]
fn what_is_accepted_stays_inside_its_memory() {
    let packs = Target::NATIVE.map(|_| Packs::new().expect("packs"));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let contract = Contract::new().context(LEN, ContextAccess::Write);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..programs() {
        let bytes = program(&mut random);
        let Ok(code) = Code::new(&bytes) else { continue };
        match contract.verify(code) {
            Ok(verified) => {
                accepted += 1;
                agrees(&contract, &verified, packs.as_ref(), &mut random);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused: the programs tell nothing");
}

#[test]
fn what_loops_ends_by_itself_or_by_its_fuel() {
    let packs = Target::NATIVE.map(|_| Packs::new().expect("packs"));
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (mut proven, mut fuelled, mut spent) = (0, 0, 0);
    // Verifying those takes longer.
    for _ in 0..programs() / 4 {
        let bytes = looping(&mut random);
        let Ok(code) = Code::new(&bytes) else { continue };
        let function = code.functions().nth(1).map(|first| (code.slot(first), takes(&mut random)));
        let code = code.with_types(function);
        let contract = Contract::new().context(LEN, ContextAccess::Write).budget(2000).fuel(random.below(40));
        let Ok(verified) = contract.verify(code) else { continue };
        *(if verified.fuel().is_some() { &mut fuelled } else { &mut proven }) += 1;
        spent += agrees(&contract, &verified, packs.as_ref(), &mut random);
    }
    let counts = format!("{proven} proven, {fuelled} fuelled, {spent} runs without fuel");
    assert!(proven > 10 && fuelled > 100 && spent > 100, "{counts}: the programs tell nothing");
}

/// Returns how many programs to try.
fn programs() -> u32 {
    std::env::var("PALIMPSEST_BPF_VERIFIED").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000)
}

#[test]
fn sums_that_differ_from_way_to_way_are_what_they_are() {
    let Some(packs) = packs() else { return };
    let start = "r3 = *(u8 *)(r1 + 0)\n";
    let end = "r0 = *(u8 *)(r5 + 0)\nexit";
    let greater = |first: u32, second: u32| {
        format!("{start}r5 = r1\nr4 = {first}\nif r3 != 0 goto on\nr4 = {second}\non: r5 += r4\n{end}")
    };
    let sides = "r4 = 9\nr5 = r1\nif r3 != 0 goto on\nr4 = r1\nr5 = 20\non: r5 += r4\n";
    let negative = "r5 = r1\nr5 += 10\nr4 = -3\nif r3 != 0 goto on\nr4 = 5\non: r5 += r4\n";
    let taken = "r5 = r1\nr5 += 20\nr4 = 15\nif r3 != 0 goto on\nr4 = 2\non: r5 -= r4\n";
    let number = "r0 = 1\nr7 = 0\nr5 = r1\nr4 = 21\nif r3 != 0 goto sum\nr5 = 1\nr4 = 100\nr7 = 1\nsum: r5 += r4\n\
                  if r7 == 0 goto use\nr0 = r5\nexit\nuse: r0 = *(u8 *)(r5 + 0)\nexit";
    let distance = "r7 = 0\nr5 = r1\nr5 += 6\nr4 = 4\nif r3 != 0 goto on\nr4 = r1\nr4 += 2\nr7 = 1\non: r5 -= r4\n\
                    if r7 == 0 goto use\nr0 = r5\nexit\nuse: r0 = *(u8 *)(r5 + 0)\nexit";
    for (text, expected) in [
        (greater(3, 8), [8, 3]),
        (greater(8, 3), [3, 8]),
        (format!("{start}{sides}{end}"), [20, 9]),
        (format!("{start}{negative}{end}"), [15, 7]),
        (format!("{start}{taken}{end}"), [18, 5]),
        // An address on one way, and a number or a distance on the other.
        (format!("{start}{number}"), [101, 21]),
        (format!("{start}{distance}"), [4, 2]),
        (format!("{start}r5 = r1\nr4 = r3\nr4 &= 3\nif r3 != 0 goto on\nr4 = 8\non: r5 += r4\n{end}"), [8, 1]),
    ] {
        let code = Code::new(&asm::assemble(&text).expect("a program")).expect("its structure is right");
        let contract = Contract::new().context(LEN, ContextAccess::Read).trust(Trust::None);
        let program = VerifiedProgram::load(&packs, &contract.verify(code).expect(&text), &()).expect("room");
        for (first, expected) in [0, 1].into_iter().zip(expected) {
            let mut context: Vec<u8> = (0..LEN as u8).collect();
            context[0] = first;
            assert_eq!(program.run_read_only(&context), Ok(expected), "{text}");
        }
    }
}

#[test]
fn a_context_is_what_was_promised() {
    let Some(packs) = packs() else { return };
    let load = |text: &str, access| {
        let code = Code::new(&asm::assemble(text).expect("a program")).expect("its structure is right");
        let verified = Contract::new().context(16, access).verify(code).expect("it is harmless");
        VerifiedProgram::load(&packs, &verified, &()).expect("room")
    };
    let reader = load("r0 = *(u64 *)(r1 + 8)\nexit", ContextAccess::Read);
    let context: Vec<u8> = (0..16).collect();
    assert_eq!(reader.run_read_only(&context), Ok(u64::from_ne_bytes([8, 9, 10, 11, 12, 13, 14, 15])));
    assert_eq!(reader.run_read_only(&context[..15]), Err(ContextError::Short { len: 15, least: 16 }.into()));
    let writer = load("r2 = 1\nlock *(u64 *)(r1 + 0) += r2\nr0 = 0\nexit", ContextAccess::Write);
    assert_eq!(writer.run_read_only(&context), Err(ContextError::ReadOnly.into()));
    let mut words = [0_u8; 32];
    let start = words.as_ptr().align_offset(8);
    assert_eq!(writer.run(&mut words[start..start + 16]), Ok(0));
    assert_eq!(words[start..start + 8], 1_u64.to_ne_bytes());
    let unaligned = writer.run(&mut words[start + 1..start + 17]);
    assert!(
        matches!(unaligned, Err(VerifiedError::Context(ContextError::Unaligned { align: 8, .. }))),
        "{unaligned:?}"
    );
}
