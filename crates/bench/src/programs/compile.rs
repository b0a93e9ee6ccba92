//! Compiles a [`Source`] to machine code with the compiler of `palimpsest-bpf`, whose code runs wherever it is placed.

use palimpsest_bpf::Code;
use palimpsest_bpf::insn::{AluOp, Condition, Instruction, Operand, Register, Width, encode};
use palimpsest_bpf::jit::{self, Target};

use super::model::{Operation, Source, VARIABLES};
use crate::PlaceError;

/// A compiled program together with its text.
///
/// # Invariants
///
/// `code` is what the compiler made, for this machine, of a program that reads only `r1` and has no helpers, no loops
/// and no memory: a function with the C calling convention from `u64` to `u64`. The fields are private to this module,
/// which alone makes values of this type.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    code: Vec<u8>,
    source: Source,
}

impl Compiled {
    /// Position-independent machine code; the entry is its first byte.
    pub(crate) fn code(&self) -> &[u8] {
        &self.code
    }

    /// Returns what the code must return for `argument`.
    pub(crate) fn evaluate(&self, argument: u64) -> u64 {
        self.source.evaluate(argument)
    }
}

/// Compiles the programs with the numbers `0..count`.
pub(crate) fn compile_all(count: usize) -> Result<Vec<Compiled>, PlaceError> {
    (0..count as u64).map(|number| compile(Source::generate(number))).collect()
}

fn compile(source: Source) -> Result<Compiled, PlaceError> {
    let refused = |reason: &dyn std::fmt::Display| PlaceError::Compile { reason: reason.to_string() };
    let target = Target::NATIVE.ok_or_else(|| refused(&"there is no compiler for this machine"))?;
    let mut bytes = Vec::new();
    for instruction in translate(&source) {
        encode(&instruction, &mut |slot| bytes.extend_from_slice(&slot));
    }
    let checked = Code::new(&bytes).map_err(|error| refused(&error))?;
    let compiled = jit::compile(&checked, target, &()).map_err(|error| refused(&error))?;
    Ok(Compiled { code: compiled.bytes().to_vec(), source })
}

/// Registers of the variables. The first one is returned.
const OF_VARIABLES: [Register; VARIABLES] =
    [Register::R0, Register::R2, Register::R3, Register::R4, Register::R5, Register::R6];

/// The argument, and later what a rotation needs.
const SPARE: Register = Register::R1;

fn translate(source: &Source) -> Vec<Instruction> {
    let mut program = Vec::new();
    for (register, constant) in OF_VARIABLES.into_iter().zip(source.initial) {
        program.push(alu(AluOp::Move, register, Operand::Register(SPARE)));
        program.push(alu(AluOp::Xor, register, Operand::Immediate(constant)));
    }
    // A branch to be filled in, and the operation that it goes to.
    let mut open: Option<(usize, usize)> = None;
    for (place, &operation) in source.operations.iter().enumerate() {
        if let Some((branch, _)) = open.take_if(|&mut (_, until)| until == place) {
            land(&mut program, branch);
        }
        if let Operation::SkipIfOdd { tested, skipped } = operation {
            open = Some((program.len(), place + 1 + skipped));
            program.push(Instruction::Branch {
                width: Width::W64,
                condition: Condition::Common,
                dst: OF_VARIABLES[tested],
                operand: Operand::Immediate(1),
                offset: 0,
            });
        } else {
            translate_step(&mut program, operation);
        }
    }
    if let Some((branch, _)) = open {
        land(&mut program, branch);
    }
    let [sum, others @ ..] = OF_VARIABLES;
    program.extend(others.map(|register| alu(AluOp::Xor, sum, Operand::Register(register))));
    program.push(Instruction::Exit);
    program
}

/// Makes the branch at `branch` go to the end of `program`, in which every instruction has one slot.
fn land(program: &mut [Instruction], branch: usize) {
    let distance = program.len() - branch - 1;
    if let Some(Instruction::Branch { offset, .. }) = program.get_mut(branch) {
        *offset = distance as i16;
    }
}

fn translate_step(program: &mut Vec<Instruction>, operation: Operation) {
    let from_register = |number: usize| Operand::Register(OF_VARIABLES[number]);
    let (to, op, operand) = match operation {
        Operation::Add { to, from } => (to, AluOp::Add, from_register(from)),
        Operation::Subtract { to, from } => (to, AluOp::Sub, from_register(from)),
        Operation::Xor { to, from } => (to, AluOp::Xor, from_register(from)),
        Operation::Or { to, from } => (to, AluOp::Or, from_register(from)),
        Operation::AddConstant { to, constant } => (to, AluOp::Add, Operand::Immediate(constant)),
        Operation::XorConstant { to, constant } => (to, AluOp::Xor, Operand::Immediate(constant)),
        Operation::ShiftLeft { to, bits } => (to, AluOp::ShiftLeft, Operand::Immediate(bits.into())),
        Operation::RotateLeft { to, bits } => {
            program.push(alu(AluOp::Move, SPARE, from_register(to)));
            program.push(alu(AluOp::ShiftRight, SPARE, Operand::Immediate(64 - i32::from(bits))));
            program.push(alu(AluOp::ShiftLeft, OF_VARIABLES[to], Operand::Immediate(bits.into())));
            (to, AluOp::Or, Operand::Register(SPARE))
        }
        // The caller translates branches.
        Operation::SkipIfOdd { .. } => return,
    };
    program.push(alu(op, OF_VARIABLES[to], operand));
}

const fn alu(op: AluOp, dst: Register, operand: Operand) -> Instruction {
    Instruction::Alu { width: Width::W64, op, dst, operand }
}

#[cfg(test)]
mod tests {
    use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};

    use super::*;

    #[test]
    fn programs_have_about_a_hundred_instructions_and_do_as_the_model_says() {
        let programs = compile_all(100).expect("this host has a compiler");
        let bytes: usize = programs.iter().map(|program| program.code().len()).sum();
        let mean = bytes / programs.len();
        assert!((250..650).contains(&mean), "mean length {mean} bytes");
        for program in &programs {
            let mut bytes = Vec::new();
            translate(&program.source)
                .iter()
                .for_each(|instruction| encode(instruction, &mut |slot| bytes.extend_from_slice(&slot)));
            let code = Code::new(&bytes).expect("a program");
            for argument in [0, 1, u64::MAX, 0xdead_beef] {
                let found =
                    Interpreter::default().run(&code, [argument, 0, 0, 0, 0], &mut Memory::new(), &mut NoHelpers);
                assert_eq!(found.expect("it ends"), program.evaluate(argument));
            }
        }
    }
}
