//! Compilers: programs to machine code, for every architecture on every host.
//!
//! A program is translated instruction by instruction with a fixed map of registers, as Linux does, so that what a
//! register holds is known at every address. The result can be put anywhere: it has no address inside but those of
//! helpers, which are literals behind the code.
//!
//! There are two passes. The first finds where each instruction will be at the latest, taking the long form of every
//! jump; the second takes the short form where that is near enough. Nothing moves away by this, so the choice holds,
//! and distances are filled in at the end.
//!
//! Machine code does what the program says with the addresses that it computes. Whether it may is not asked here.

mod arch;
mod buffer;
mod frame;

use alloc::vec::Vec;

use crate::code::Code;
use crate::insn::{Callee, Instruction};
use arch::{Isa, Place};
use buffer::{Buffer, Mark};
use frame::Frame;

/// What machine code is made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// x86-64 with the System V calling convention.
    X86_64,
    /// AArch64 with the Procedure Call Standard of Arm.
    Aarch64,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// That of this machine, if there is a compiler for it.
    pub const NATIVE: Option<Self> = arch::NATIVE;

    /// To how many bytes its code must be aligned.
    pub const fn alignment(self) -> usize {
        match self {
            // Instructions may begin anywhere; literals have 8 bytes.
            Self::X86_64 | Self::Aarch64 => 8,
        }
    }
}

/// A helper of the host: it gets `r1` to `r5`, and what it returns goes to `r0`. It must not unwind.
pub type Helper = extern "C" fn(u64, u64, u64, u64, u64) -> u64;

/// What calls whose number is known at run time alone (`callx`) go to: the number comes last.
pub type Dispatcher = extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;

/// The helpers of a host, by number.
pub trait HelperTable {
    /// The helper with this number.
    fn helper(&self, id: i32) -> Option<Helper>;

    /// What `callx` goes to.
    fn dispatcher(&self) -> Option<Dispatcher> {
        None
    }
}

/// No helpers.
impl HelperTable for () {
    fn helper(&self, _id: i32) -> Option<Helper> {
        None
    }
}

/// Helpers in a list.
impl HelperTable for [(i32, Helper)] {
    fn helper(&self, id: i32) -> Option<Helper> {
        self.iter().find(|(known, _)| *known == id).map(|(_, helper)| *helper)
    }
}

/// Why a program is not compiled. Slots are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// It calls a helper that the host does not have.
    #[error("slot {slot} calls helper {id}, which the host does not have")]
    Helper {
        /// Slot of the call.
        slot: usize,
        /// Its number.
        id: i32,
    },
    /// It calls by number, and the host has nothing for that.
    #[error("slot {slot} calls a helper by a register, and the host has no dispatcher for that")]
    Dispatcher {
        /// Slot of the call.
        slot: usize,
    },
    /// It has something that is not compiled.
    #[error("`{instruction}` in slot {slot} is interpreted alone")]
    Unsupported {
        /// Its slot.
        slot: usize,
        /// The instruction.
        instruction: Instruction,
    },
    /// Its code is longer than jumps reach.
    #[error("the program has {len} bytes of code, and {most} are allowed")]
    Long {
        /// Bytes.
        len: usize,
        /// Bytes.
        most: usize,
    },
}

/// Machine code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    bytes: Vec<u8>,
    starts: Vec<u32>,
    code_len: usize,
}

impl Compiled {
    /// Code, and the literals behind it; it begins with the program's first instruction.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How much of that is code.
    pub const fn code_len(&self) -> usize {
        self.code_len
    }

    /// Where the code of each instruction begins, in bytes.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }
}

/// Most bytes that code can have: what jumps of AArch64 reach, which is less than those of x86-64.
const MOST_BYTES: usize = 128 << 20;

/// Compiles `code` for `target`.
///
/// # Errors
///
/// [`CompileError`].
pub fn compile<H: HelperTable + ?Sized>(code: &Code, target: Target, helpers: &H) -> Result<Compiled, CompileError> {
    let literals = Literals::of(code, &|id| helpers.helper(id), helpers.dispatcher())?;
    match target {
        Target::X86_64 => translate::<arch::x86_64::X86_64>(code, &literals),
        Target::Aarch64 => translate::<arch::aarch64::Aarch64>(code, &literals),
    }
}

/// Addresses that calls load.
struct Literals {
    /// Helpers by number, in order; calls by register go to `None`.
    values: Vec<(Option<i32>, u64)>,
}

impl Literals {
    fn of(
        code: &Code,
        helper: &dyn Fn(i32) -> Option<Helper>,
        dispatcher: Option<Dispatcher>,
    ) -> Result<Self, CompileError> {
        let mut values = Vec::new();
        for (index, instruction) in code.instructions().iter().enumerate() {
            let slot = code.slot(index);
            let value = match *instruction {
                Instruction::Call(Callee::Helper(id)) => {
                    let helper = helper(id).ok_or(CompileError::Helper { slot, id })?;
                    (Some(id), helper as usize as u64)
                }
                Instruction::Call(Callee::Register(_)) => {
                    let dispatcher = dispatcher.ok_or(CompileError::Dispatcher { slot })?;
                    (None, dispatcher as usize as u64)
                }
                _ => continue,
            };
            if let Err(place) = values.binary_search(&value) {
                values.insert(place, value);
            }
        }
        Ok(Self { values })
    }

    /// The place of a literal.
    fn place(&self, id: Option<i32>) -> usize {
        self.values.binary_search_by_key(&id, |(known, _)| *known).expect("every helper that is called has a literal")
    }

    fn mark(&self, id: Option<i32>) -> Mark {
        Mark::Literal(self.place(id))
    }

    fn value(&self, id: Option<i32>) -> u64 {
        self.values[self.place(id)].1
    }
}

/// What the translation of an instruction knows of its surroundings.
struct Surroundings<'a> {
    code: &'a Code,
    literals: &'a Literals,
    frame: Frame,
    /// The instruction.
    index: usize,
}

impl Surroundings<'_> {
    /// Where the instruction goes that is `distance` slots behind the next one.
    fn mark(&self, distance: i32) -> Mark {
        Mark::Instruction(self.code.target(self.index, distance).expect("targets were checked when the code was made"))
    }

    fn unsupported(&self) -> CompileError {
        CompileError::Unsupported {
            slot: self.code.slot(self.index),
            instruction: self.code.instructions()[self.index],
        }
    }
}

fn translate<I: Isa>(code: &Code, literals: &Literals) -> Result<Compiled, CompileError> {
    let mut buffer = Buffer::new(code.instructions().len(), code.functions().len());
    pass::<I>(code, literals, &mut buffer)?;
    buffer.begin_again();
    pass::<I>(code, literals, &mut buffer)?;
    let code_len = buffer.len();
    if code_len > MOST_BYTES {
        return Err(CompileError::Long { len: code_len, most: MOST_BYTES });
    }
    if I::LITERALS == Place::BehindTheCode {
        buffer.append_literals(literals.values.iter().map(|(_, value)| *value));
    }
    buffer.fill_in(I::patch);
    let (bytes, starts) = buffer.into_parts();
    Ok(Compiled { bytes, starts, code_len })
}

fn pass<I: Isa>(code: &Code, literals: &Literals, buffer: &mut Buffer) -> Result<(), CompileError> {
    let mut starts = code.functions().skip(1);
    let mut first = 0;
    let mut function = 0;
    while first < code.instructions().len() {
        let end = starts.next().unwrap_or(code.instructions().len());
        let frame = Frame::of(code, first..end, function);
        let mut surroundings = Surroundings { code, literals, frame, index: first };
        buffer.begin_function(function);
        for index in first..end {
            surroundings.index = index;
            buffer.begin_instruction(index);
            if index == first {
                I::prologue(buffer, &surroundings.frame);
            }
            I::instruction(buffer, &surroundings)?;
        }
        (first, function) = (end, function + 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
