//! The reference interpreter: what a program means, as simply as it can be said.
//!
//! It is made to be trusted, not to be fast. Memory is what the host hands over ([`Memory`]); everything else is a
//! fault. Compilers are measured against it.

mod answer;
mod memory;
pub(crate) mod value;

use alloc::vec::Vec;

pub use answer::{Answer, Iteration};
#[cfg(feature = "std")]
pub(crate) use memory::MOST_HELD;
pub use memory::{Access, Memory, MemoryFault, RegionError};

use crate::code::{Code, MOST_FRAMES};
use crate::insn::{AtomicOp, Callee, Extension, Instruction, Operand, Register, Size, Wide, Width};
use value::{alu, holds, replaced, sign_extended, swapped};

/// Bytes of each function's stack frame: `MAX_BPF_STACK` of Linux (`include/linux/filter.h`).
pub const FRAME: usize = 512;

/// What the host answers to calls.
pub trait Helpers {
    /// Calls helper `id`; the result goes to `r0`.
    ///
    /// # Errors
    ///
    /// [`HelperError`] ends the program.
    fn call(&mut self, id: i32, arguments: [u64; 5], memory: &mut Memory<'_>) -> Result<u64, HelperError>;

    /// Does the same for helpers that call functions of the program.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call).
    fn answer(&mut self, id: i32, arguments: [u64; 5], memory: &mut Memory<'_>) -> Result<Answer, HelperError> {
        self.call(id, arguments, memory).map(Answer::Value)
    }

    /// Does the same for a function that programs know by this index, if there is one.
    fn function(
        &mut self,
        _index: i32,
        _arguments: [u64; 5],
        _memory: &mut Memory<'_>,
    ) -> Option<Result<Answer, HelperError>> {
        None
    }

    /// Returns what programs know the map with this index by.
    fn map(&self, _index: i32) -> Option<u64> {
        None
    }

    /// Returns the address of byte `offset` of the first value of the map with this index.
    fn map_value(&self, _index: i32, _offset: u32) -> Option<u64> {
        None
    }
}

/// A host without helpers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHelpers;

impl Helpers for NoHelpers {
    fn call(&mut self, _id: i32, _arguments: [u64; 5], _memory: &mut Memory<'_>) -> Result<u64, HelperError> {
        Err(HelperError::Unknown)
    }
}

/// Why a helper ends the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HelperError {
    /// There is no such helper.
    #[error("there is no such helper")]
    Unknown,
    /// It was given memory that the program does not have.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// The helper asked for an argument that its signature does not have, or has with another type: the host's mistake.
    #[error("the helper has no such argument {index}; look at its signature")]
    NoArgument {
        /// Its number, from 0.
        index: usize,
    },
    /// It panicked.
    #[error("the helper has panicked")]
    Panicked,
    /// It makes a tail call, which only compiled programs do.
    #[error("tail calls are made by compiled programs; load the program")]
    TailCall,
    /// An interpreted program sets a timer's callback; only functions of compiled programs can be one.
    #[error("timers call functions of compiled programs only; load the program instead of interpreting it")]
    Timer,
    /// It asks for a lock that its own thread holds: the program has interrupted what the thread does under the lock.
    #[error("this thread holds the lock already; a signal handler must not run programs that may interrupt others")]
    Deadlock,
    /// The thread, with all programs that it runs now, holds as many records, locks and objects as it can.
    #[error("this thread holds {most} records, locks and objects already; have programs give some back first")]
    Held {
        /// How many it can hold.
        most: usize,
    },
    /// It ends the program, which returns this.
    #[error("the helper ended the program with {0:#x}")]
    Exit(u64),
}

/// What an access to memory that does not exist does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFault {
    /// It ends the program.
    #[default]
    Stop,
    /// A load gives 0, and the program goes on, as after `BPF_PROBE_MEM` of Linux; a store ends the program.
    LoadZero,
}

/// How a program is run.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    budget: u64,
    fuel: Option<u64>,
    may_goto: u64,
    on_fault: OnFault,
    stack: u64,
}

impl Default for Interpreter {
    fn default() -> Self {
        // `BPF_MAX_TIMED_LOOPS` of Linux (`include/linux/bpf.h`) is 0xffff rounds of a `may_goto` that is not timed.
        Self { budget: 100_000_000, fuel: None, may_goto: 0xffff, on_fault: OnFault::Stop, stack: 0x7fff_0000_0000 }
    }
}

/// Why a program ended without a result. Slots are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("slot {slot}: {trap}")]
pub struct RunError {
    /// Where.
    pub slot: usize,
    /// Why.
    pub trap: Trap,
}

/// Why a program ended without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trap {
    /// It used memory that it does not have.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// It runs for too long.
    #[error("the budget of {budget} instructions is spent")]
    Budget {
        /// Instructions.
        budget: u64,
    },
    /// It jumps back more often than it may.
    #[error("the fuel of {fuel} jumps back is spent")]
    Fuel {
        /// Jumps back that it had.
        fuel: u64,
    },
    /// A helper ended it.
    #[error("call of helper {id}: {error}")]
    Helper {
        /// Its number.
        id: i32,
        /// Why.
        error: HelperError,
    },
    /// A function of the host ended it.
    #[error("call of the host's function with index {index}: {error}")]
    HostFunction {
        /// Its index.
        index: i32,
        /// Why.
        error: HelperError,
    },
    /// It uses a map that the host does not have.
    #[error("the host has no map with index {index}")]
    Map {
        /// Its index.
        index: i32,
    },
    /// Something is called that is not a function, or a function is called too deeply.
    #[error("slot {slot} is called, where no function begins, or {MOST_FRAMES} functions are active already")]
    Function {
        /// The slot.
        slot: u64,
    },
    /// It calls a function of a platform that is not here.
    #[error("call of kernel function {id}: there is none here")]
    Kernel {
        /// Id of the function.
        id: i32,
    },
    /// The host has put something else where the stack would be.
    #[error("there is no room for the stack: {0}")]
    Stack(#[from] RegionError),
}

/// Where a function was called.
struct Caller {
    /// The instruction after the call.
    next: usize,
    /// `r6` to `r9`.
    kept: [u64; 4],
    /// How often it has passed its `may_goto`s.
    passed: u64,
    /// Further calls by the helper that made this one.
    iteration: Option<Iteration>,
}

impl Interpreter {
    /// Ends the program after this many instructions; 100 million if not set.
    pub const fn budget(self, budget: u64) -> Self {
        Self { budget, ..self }
    }

    /// Ends the program before it jumps back more than `fuel` times, counting calls of functions by helpers; no limit
    /// if not set.
    pub const fn fuel(self, fuel: u64) -> Self {
        Self { fuel: Some(fuel), ..self }
    }

    /// Lets each call of a function pass its `may_goto`s this many times before it must leave its loops; 65 535 if not
    /// set.
    pub const fn may_goto(self, may_goto: u64) -> Self {
        Self { may_goto, ..self }
    }

    /// Sets what an access to memory that does not exist does; [`OnFault::Stop`] if not set.
    pub const fn on_fault(self, on_fault: OnFault) -> Self {
        Self { on_fault, ..self }
    }

    /// Puts the stack, of [`FRAME`] bytes for each active function, at this address.
    pub const fn stack(self, stack: u64) -> Self {
        Self { stack, ..self }
    }

    /// Runs `code` with `arguments` in `r1` to `r5`. Returns `r0`. Registers without a value are 0.
    ///
    /// # Errors
    ///
    /// [`RunError`]. What the program wrote until then stays written.
    pub fn run(
        &self,
        code: &Code,
        arguments: [u64; 5],
        memory: &mut Memory<'_>,
        helpers: &mut dyn Helpers,
    ) -> Result<u64, RunError> {
        let added = memory.add_zeros(self.stack, FRAME * MOST_FRAMES);
        added.map_err(|error| RunError { slot: 0, trap: error.into() })?;
        let (registers, callers, fuel) = ([0; 11], Vec::new(), self.fuel.unwrap_or(u64::MAX));
        let mut run = Run { code, options: self, registers, callers, at: 0, passed: 0, fuel };
        run.registers[1..6].copy_from_slice(&arguments);
        run.registers[10] = self.stack + (FRAME * MOST_FRAMES) as u64;
        let result = run.run_out(memory, helpers);
        memory.remove(self.stack);
        result.map_err(|trap| RunError { slot: code.slot(run.at), trap })
    }
}

/// A program that is being run.
struct Run<'a> {
    code: &'a Code,
    options: &'a Interpreter,
    registers: [u64; 11],
    callers: Vec<Caller>,
    /// The instruction.
    at: usize,
    /// How often the function has passed its `may_goto`s.
    passed: u64,
    /// How often it may still jump back.
    fuel: u64,
}

/// Where a program goes on.
enum Next {
    /// With the next instruction.
    Behind,
    /// With the one that many slots behind it.
    Jump(i32),
    /// With this instruction.
    At(usize),
    /// Nowhere.
    Ended(u64),
}

impl Run<'_> {
    fn run_out(&mut self, memory: &mut Memory<'_>, helpers: &mut dyn Helpers) -> Result<u64, Trap> {
        let budget = self.options.budget;
        for _ in 0..budget {
            self.at = match self.step(memory, helpers)? {
                Next::Behind => self.at + 1,
                Next::Jump(distance) => {
                    if self.code.goes_back(self.at).is_some() {
                        self.pay()?;
                    }
                    self.target(distance)
                }
                Next::At(index) => index,
                Next::Ended(value) => return Ok(value),
            };
        }
        Err(Trap::Budget { budget })
    }

    /// Pays for a jump back, or for a call of a function by a helper.
    fn pay(&mut self) -> Result<(), Trap> {
        let Some(fuel) = self.options.fuel else { return Ok(()) };
        self.fuel = self.fuel.checked_sub(1).ok_or(Trap::Fuel { fuel })?;
        Ok(())
    }

    fn target(&self, distance: i32) -> usize {
        self.code.target(self.at, distance).expect("targets were checked when the code was made")
    }

    fn get(&self, register: Register) -> u64 {
        self.registers[usize::from(register.number())]
    }

    fn set(&mut self, register: Register, value: u64) {
        self.registers[usize::from(register.number())] = value;
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.get(register),
            Operand::Immediate(value) => i64::from(value) as u64,
        }
    }

    fn address(&self, base: Register, offset: i16) -> u64 {
        self.get(base).wrapping_add_signed(offset.into())
    }

    fn load(&self, memory: &Memory<'_>, size: Size, base: Register, offset: i16) -> Result<u64, Trap> {
        match (memory.load(self.address(base, offset), size), self.options.on_fault) {
            (Err(_), OnFault::LoadZero) => Ok(0),
            (result, _) => Ok(result?),
        }
    }

    fn step(&mut self, memory: &mut Memory<'_>, helpers: &mut dyn Helpers) -> Result<Next, Trap> {
        match self.code.instructions()[self.at] {
            Instruction::Alu { width, op, dst, operand } => {
                self.set(dst, alu(width, op, self.get(dst), self.operand(operand)));
            }
            Instruction::Negate { width, dst } => {
                self.set(dst, alu(width, crate::insn::AluOp::Sub, 0, self.get(dst)));
            }
            Instruction::MoveSigned { width, from, dst, src } => {
                self.set(dst, sign_extended(width, from, self.get(src)));
            }
            Instruction::Swap { order, size, dst } => self.set(dst, swapped(order, size, self.get(dst))),
            Instruction::LoadWide { dst, value } => {
                let value = match value {
                    Wide::Value(value) => value,
                    // Functions have no addresses here: a reference is the slot of the first instruction.
                    Wide::Function(distance) => self.code.slot(self.target(distance)) as u64,
                    Wide::MapByIndex(index) => helpers.map(index).ok_or(Trap::Map { index })?,
                    Wide::MapValueByIndex { map: index, offset } => {
                        helpers.map_value(index, offset).ok_or(Trap::Map { index })?
                    }
                    _ => unreachable!("`Code` has no other references"),
                };
                self.set(dst, value);
            }
            Instruction::Load { size, extension, dst, base, offset } => {
                let value = self.load(memory, size, base, offset)?;
                self.set(
                    dst,
                    match extension {
                        Extension::Zero => value,
                        Extension::Sign => sign_extended(Width::W64, size, value),
                    },
                );
            }
            Instruction::LoadAcquire { size, dst, base, offset } => {
                let value = self.load(memory, size, base, offset)?;
                self.set(dst, value);
            }
            Instruction::Store { size, base, offset, value } => {
                let address = self.address(base, offset);
                memory.may_store(self.at, address, size)?;
                memory.store(address, size, self.operand(value))?;
            }
            Instruction::StoreRelease { size, base, offset, src } => {
                memory.store(self.address(base, offset), size, self.get(src))?;
            }
            Instruction::Atomic { op, width, base, offset, src } => {
                self.atomic(memory, op, width, self.address(base, offset), src)?;
            }
            Instruction::Jump { offset, .. } => return Ok(Next::Jump(offset)),
            Instruction::Branch { width, condition, dst, operand, offset } => {
                if holds(width, condition, self.get(dst), self.operand(operand)) {
                    return Ok(Next::Jump(offset.into()));
                }
            }
            Instruction::MayGoto { offset } => {
                if self.passed == self.options.may_goto {
                    return Ok(Next::Jump(offset.into()));
                }
                self.passed += 1;
            }
            Instruction::Call(callee) => return self.call(callee, memory, helpers),
            Instruction::Exit => return self.leave(),
            Instruction::Packet { .. } | Instruction::Cast { .. } => unreachable!("`Code` has none"),
        }
        Ok(Next::Behind)
    }

    fn atomic(
        &mut self,
        memory: &mut Memory<'_>,
        op: AtomicOp,
        width: Width,
        address: u64,
        src: Register,
    ) -> Result<(), Trap> {
        let (size, expected) = match width {
            Width::W32 => (Size::Word, u64::from(self.get(Register::R0) as u32)),
            Width::W64 => (Size::Double, self.get(Register::R0)),
        };
        // What must not be written is not read either.
        memory.may_write(address, size.bytes())?;
        let old = memory.load(address, size)?;
        memory.store(address, size, replaced(op, old, self.get(src), expected))?;
        match op {
            AtomicOp::CompareExchange => self.set(Register::R0, old),
            op if op.fetches_to_source() => self.set(src, old),
            _ => {}
        }
        Ok(())
    }

    fn call(&mut self, callee: Callee, memory: &mut Memory<'_>, helpers: &mut dyn Helpers) -> Result<Next, Trap> {
        let [_, r1, r2, r3, r4, r5, ..] = self.registers;
        let arguments = [r1, r2, r3, r4, r5];
        let mut helper =
            |id| helpers.answer(id, arguments, memory).map_err(|error| (Trap::Helper { id, error }, error));
        let answer = match callee {
            Callee::Local(distance) => return self.enter(distance),
            Callee::Helper(id) => helper(id),
            Callee::Register(register) => helper(self.get(register) as i32),
            Callee::Kernel { id: index, .. } => {
                let answer = helpers.function(index, arguments, memory).ok_or(Trap::Kernel { id: index })?;
                answer.map_err(|error| (Trap::HostFunction { index, error }, error))
            }
        };
        match answer {
            Ok(Answer::Value(value)) => self.take_back(value),
            Ok(Answer::Iterate(iteration)) => return self.iterate(iteration, None, self.at + 1),
            Err((_, HelperError::Exit(value))) => return Ok(Next::Ended(value)),
            Err((trap, _)) => return Err(trap),
        }
        Ok(Next::Behind)
    }

    /// Goes on behind a call with its result, and without the arguments.
    fn take_back(&mut self, result: u64) {
        self.registers[1..6].fill(0);
        self.set(Register::R0, result);
    }

    fn enter(&mut self, distance: i32) -> Result<Next, Trap> {
        let target = self.target(distance);
        if self.callers.len() + 1 >= MOST_FRAMES {
            // A function calls itself through a helper; `Code` refuses all other calls that nest so deeply.
            return Err(Trap::Function { slot: self.code.slot(target) as u64 });
        }
        self.push(self.at + 1, None);
        Ok(Next::At(target))
    }

    fn push(&mut self, next: usize, iteration: Option<Iteration>) {
        let [.., r6, r7, r8, r9, _] = self.registers;
        let passed = core::mem::take(&mut self.passed);
        self.callers.push(Caller { next, kept: [r6, r7, r8, r9], passed, iteration });
        self.registers[10] -= FRAME as u64;
    }

    /// Makes the next call of a function by a helper; the previous one returned `last`. If there is none, the program
    /// goes on at `next`.
    fn iterate(&mut self, mut iteration: Iteration, last: Option<u64>, next: usize) -> Result<Next, Trap> {
        let Some(arguments) = iteration.next(last) else {
            self.take_back(iteration.made());
            return Ok(Next::At(next));
        };
        self.pay()?;
        let slot = iteration.function();
        let at = usize::try_from(slot).ok().and_then(|slot| self.code.at_slot(slot as i64));
        let at = at.filter(|_| self.callers.len() + 1 < MOST_FRAMES).ok_or(Trap::Function { slot })?;
        self.push(next, Some(iteration));
        self.registers[1..6].copy_from_slice(&arguments);
        Ok(Next::At(at))
    }

    fn leave(&mut self) -> Result<Next, Trap> {
        let result = self.get(Register::R0);
        let Some(caller) = self.callers.pop() else { return Ok(Next::Ended(result)) };
        self.registers[6..10].copy_from_slice(&caller.kept);
        self.registers[10] += FRAME as u64;
        self.passed = caller.passed;
        match caller.iteration {
            None => {
                self.take_back(result);
                Ok(Next::At(caller.next))
            }
            Some(iteration) => self.iterate(iteration, Some(result), caller.next),
        }
    }
}

#[cfg(test)]
mod tests;
