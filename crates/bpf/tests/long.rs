//! Programs of the greatest length: their length or the budget bounds the verifier's work. It is counted, since time
//! would say more about the machine.

use palimpsest_bpf::insn::{AluOp, Condition, Extension, Instruction, Operand, Register, Size, Width, encode};
use palimpsest_bpf::verify::{ContextAccess, Contract, Fault, Verified, VerifyError};
use palimpsest_bpf::{Code, MOST_SLOTS};

/// What is known of a number on two ways that meet again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ways {
    /// The same, or nobody looks at it.
    Same,
    /// Different on each, so that the rest is followed again.
    Differ,
}

/// A program of [`MOST_SLOTS`] slots, every fifth of which is a branch.
fn branching(ways: Ways) -> Code {
    let mut bytes = Vec::with_capacity(MOST_SLOTS * 8);
    let mut push = |instruction: &Instruction| encode(instruction, &mut |slot| bytes.extend(slot));
    let width = Width::W64;
    let set = |dst, value| Instruction::Alu { width, op: AluOp::Move, dst, operand: Operand::Immediate(value) };
    let add = |dst, value| Instruction::Alu { width, op: AluOp::Add, dst, operand: Operand::Immediate(value) };
    push(&set(Register::R0, 0));
    push(&set(Register::R4, 0));
    let rounds = (MOST_SLOTS - 8) / 5;
    for round in 0..rounds as i32 {
        let (dst, base) = (Register::R3, Register::R1);
        push(&Instruction::Load {
            size: Size::Byte,
            extension: Extension::Zero,
            dst,
            base,
            offset: (round % 16) as i16,
        });
        let (condition, operand) = (Condition::Greater, Operand::Immediate(round % 256));
        push(&Instruction::Branch { width, condition, dst, operand, offset: 1 });
        push(&match ways {
            Ways::Same if round % 2 == 0 => set(Register::R4, 0),
            Ways::Same => set(Register::R5, round),
            Ways::Differ => add(Register::R4, 1 << (round % 30)),
        });
        push(&set(Register::R2, round));
        push(&set(Register::R0, round));
    }
    // Something reads `r4`: bytes that it says of the context.
    push(&Instruction::Alu { width, op: AluOp::And, dst: Register::R4, operand: Operand::Immediate(15) });
    push(&Instruction::Alu { width, op: AluOp::Add, dst: Register::R1, operand: Operand::Register(Register::R4) });
    let (dst, base) = (Register::R0, Register::R1);
    push(&Instruction::Load { size: Size::Byte, extension: Extension::Zero, dst, base, offset: 0 });
    push(&Instruction::Exit);
    assert!(bytes.len() / 8 <= MOST_SLOTS && bytes.len() / 8 > MOST_SLOTS - 10);
    Code::new(&bytes).expect("its structure is right")
}

fn verify(ways: Ways, budget: Option<usize>) -> Result<Verified, VerifyError> {
    let contract = Contract::new().context(16, ContextAccess::Read);
    let contract = budget.map_or(contract.clone(), |budget| contract.budget(budget));
    contract.verify(branching(ways))
}

#[test]
fn a_million_instructions_are_followed_about_once() {
    let verified = verify(Ways::Same, Some(2 * MOST_SLOTS)).expect("it is harmless");
    let most = MOST_SLOTS + MOST_SLOTS / 2;
    assert!(verified.followed() <= most, "{} instructions were followed", verified.followed());
}

#[test]
fn what_doubles_with_each_branch_is_refused_by_the_budget() {
    // The budget that nobody has set is that many instructions, whatever the program.
    let error = verify(Ways::Differ, None).expect_err("too much");
    assert_eq!(error.fault, Fault::Budget { budget: 1_000_000 });
}
