//! A compiled program in a pack: the one place that enters compiled code.
#![expect(unsafe_code, reason = "compiled code is entered here and nowhere else")]

mod typed;

use std::sync::Arc;

use palimpsest_sys::fault::FaultHandlerError;
use palimpsest_text::observe::{SourceLine, SourceLines};
use palimpsest_text::{Fault, FaultError, LoadError as PackError, Packs};

use crate::code::Code;
use crate::jit::{
    CompileError, Compiled, Gauge, HelperTable, Outcome, Plain, Resolve, Target, Unwinding, Wanted, compile_resolved,
};
use crate::source::Source;
use crate::verify::{MOST_FUEL, Verified};

pub(crate) use typed::Verifies;
pub use typed::{Typed, TypedReadOnly};

/// A compiled program, which any thread can run.
///
/// When it is dropped, its memory is used again once no thread can be inside any more.
#[derive(Debug)]
pub struct Program {
    /// What `entry` is of: kept as long.
    code: Held,
    entry: Entry,
}

/// Compiled code.
#[derive(Debug)]
enum Held {
    Own(palimpsest_text::Program),
    /// Timers keep it, too.
    Shared(Arc<palimpsest_text::Program>),
}

/// Where it begins, and what it takes there. It is beside the code's handle so that a call is one load away.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// `r1` to `r5`; it returns `r0`.
    Plain(extern "C" fn(u64, u64, u64, u64, u64) -> u64),
    /// With the gauge as well.
    Gauged(extern "C" fn(u64, u64, u64, u64, u64, i64) -> Outcome),
}

/// Fuel of programs that need none.
const UNLIMITED: i64 = MOST_FUEL as i64;

/// Why a program cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no compiler for this machine.
    #[error("there is no compiler for this machine; interpret the program")]
    NoCompiler,
    /// It cannot be compiled.
    #[error("the program cannot be compiled")]
    Compile(#[from] CompileError),
    /// There is no place for its code.
    #[error("there is no place for the program's {len} bytes")]
    Place {
        /// Bytes.
        len: usize,
        /// Why.
        #[source]
        source: PackError,
    },
    /// It has loads that may fault, and faults cannot be handled.
    #[error("the program has loads that may fault")]
    Handler(#[from] FaultHandlerError),
    /// The table of such loads is wrong.
    #[error("the table of loads that may fault is wrong; please report this")]
    Faults(#[from] FaultError),
}

impl Program {
    /// Compiles `code` into `packs`.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load<H: HelperTable + ?Sized>(packs: &Packs, code: &Code, helpers: &H) -> Result<Self, LoadError> {
        Self::resolved(packs, code, &Plain(helpers), Wanted::default())
    }

    fn resolved(packs: &Packs, code: &Code, resolve: &dyn Resolve, mut wanted: Wanted<'_>) -> Result<Self, LoadError> {
        let target = Target::NATIVE.ok_or(LoadError::NoCompiler)?;
        let is_observed = packs.is_observed();
        if is_observed {
            wanted.unwinding = Unwinding::Told;
        }
        let compiled = compile_resolved(code, target, resolve, wanted)?;
        let gauge = compiled.gauge();
        let (bytes, len) = (compiled.bytes(), compiled.bytes().len());
        let no_place = |source| LoadError::Place { len, source };
        let name = code.source().map_or("", Source::name);
        let lines = if is_observed { lines(code, &compiled) } else { None };
        let align = compiled.alignment();
        if compiled.faults().is_empty() && !is_observed {
            let loaded = if name.is_empty() { packs.load(bytes, align) } else { packs.load_named(name, bytes, align) };
            return Ok(Self::new(loaded.map_err(no_place)?, gauge));
        }
        if !compiled.faults().is_empty() {
            packs.resume_after_faults()?;
        }
        let staged = packs.stage(len, align);
        let mut staged = staged.map_err(|source| no_place(source.into()))?;
        staged.image().copy_from_slice(bytes);
        staged.set_name(name);
        if is_observed {
            staged.set_eh_frame(compiled.eh_frame(staged.address().get() as u64));
        }
        if let Some(lines) = lines {
            staged.set_lines(lines);
        }
        staged.set_faults(compiled.faults().iter().map(|&(offset, landing)| Fault { offset, landing }).collect())?;
        Ok(Self::new(staged.finalize().map_err(|source| no_place(source.into()))?, gauge))
    }

    fn new(code: palimpsest_text::Program, gauge: Gauge) -> Self {
        let entry = match gauge {
            // SAFETY: 1. without a gauge the compiler makes functions of that type. 2. what is called lives as long as
            // the code, which whoever enters it has.
            Gauge::Absent => Entry::Plain(unsafe { code.function() }),
            // SAFETY: as above, of programs with a gauge.
            Gauge::Kept | Gauge::Paid => Entry::Gauged(unsafe { code.function() }),
        };
        Self { code: Held::Own(code), entry }
    }

    /// Runs it with `arguments` in `r1` to `r5`. Returns `r0`.
    ///
    /// # Safety
    ///
    /// 1. For these arguments, the program reads and writes only memory that the caller may, in a way in which Rust may
    ///    share it; it reads no register without a value; and it ends.
    /// 2. The helpers that it was loaded with may be called with the arguments that it gives them.
    #[inline]
    pub unsafe fn run(&self, arguments: [u64; 5]) -> u64 {
        // Without fuel it would be ended at its first jump back.
        // SAFETY: 1., 2. are the caller's; it ends, so it never lacks fuel. 3. `self` has the code.
        unsafe { self.entry.enter(arguments, UNLIMITED) }.value
    }
}

impl Entry {
    /// Runs the program with fuel. The result tells what is left.
    ///
    /// # Safety
    ///
    /// 1., 2. As for [`run`](Program::run), except that it need not end by itself.
    /// 3. Its code stays during the call.
    #[inline]
    unsafe fn enter(self, arguments: [u64; 5], fuel: i64) -> Outcome {
        let [r1, r2, r3, r4, r5] = arguments;
        // The caller answers for what it does to memory (1, 2).
        match self {
            // It pays for nothing, and was proven to end.
            Self::Plain(entry) => Outcome { value: entry(r1, r2, r3, r4, r5), gauge: fuel },
            Self::Gauged(entry) => entry(r1, r2, r3, r4, r5, fuel),
        }
    }
}

/// Returns the lines that the machine code comes from, if the program knows them.
fn lines(code: &Code, compiled: &Compiled) -> Option<SourceLines> {
    let mut lines = SourceLines::new();
    for (slot, file, line, column) in code.source()?.lines() {
        // Nothing begins in the middle of an instruction.
        if let Some(index) = code.at_slot(slot.into()) {
            lines.add(SourceLine { offset: compiled.starts()[index], file, line, column });
        }
    }
    (!lines.is_empty()).then_some(lines)
}

/// A verified program in a pack, which any thread runs without `unsafe`.
#[derive(Debug)]
pub struct VerifiedProgram {
    /// What `call` enters: kept as long.
    code: Held,
    call: Call,
}

/// What a call reads, in one line of the cache: many programs that take turns find nothing of each other there.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Call {
    entry: Entry,
    /// What it gets; [`UNLIMITED`] if it pays for nothing.
    fuel: i64,
    context_len: u32,
    context_align: u8,
    may_write: bool,
}

const _: () = assert!(size_of::<Call>() == align_of::<Call>(), "it never lies across two lines");

/// Why a verified program has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifiedError {
    /// The context does not fit.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// It jumped back as often as it may, and was ended.
    #[error("the fuel of {fuel} jumps back is spent")]
    Fuel {
        /// Jumps back that it had.
        fuel: u64,
    },
    /// A store that the verifier could not prove would have left its memory, and the program was ended before it.
    #[error("the store in slot {slot} would have been outside of its memory")]
    Store {
        /// Its slot, from 0.
        slot: usize,
    },
}

/// Why a context does not fit the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ContextError {
    /// It is too short.
    #[error("the context has {len} bytes, and the program was verified for {least} at least")]
    Short {
        /// Bytes that it has.
        len: usize,
        /// Bytes that it must have.
        least: usize,
    },
    /// It is not aligned, and the program works on it by atomic operations.
    #[error("the context at {address:#x} must be aligned to {align} bytes, since the program has atomic operations")]
    Unaligned {
        /// Where it is.
        address: usize,
        /// Bytes.
        align: usize,
    },
    /// It must not be written, and the program may write it.
    #[error("the program was verified for a context that it may write; give it one that it may, by `run`")]
    ReadOnly,
}

impl VerifiedProgram {
    /// Compiles `verified` into `packs`.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load<H: HelperTable + ?Sized>(packs: &Packs, verified: &Verified, helpers: &H) -> Result<Self, LoadError> {
        if verified.is_of_host() {
            return Err(CompileError::Linked.into());
        }
        // Contracts that others can make exchange only numbers with helpers, and have no maps.
        Self::resolved(packs, verified, &Plain(helpers))
    }

    /// Compiles it with maps, and with helpers that take and return addresses: `resolve` has what the program was
    /// verified for.
    pub(crate) fn resolved(packs: &Packs, verified: &Verified, resolve: &dyn Resolve) -> Result<Self, LoadError> {
        let wanted = Wanted::of(verified, crate::random::number());
        let Program { code, entry } = Program::resolved(packs, verified.code(), resolve, wanted)?;
        let call = Call {
            entry,
            fuel: verified.fuel().map_or(UNLIMITED, |fuel| fuel as i64),
            // A contract gives 32 bits of length; the alignment is that of an atomic operation at most.
            context_len: verified.context_len() as u32,
            context_align: verified.context_align() as u8,
            may_write: verified.may_write(),
        };
        Ok(Self { code, call })
    }

    /// The same program, and its code for others to keep.
    pub(crate) fn shared(self) -> (Self, Arc<palimpsest_text::Program>) {
        let code = match self.code {
            Held::Own(code) => Arc::new(code),
            Held::Shared(code) => code,
        };
        (Self { code: Held::Shared(Arc::clone(&code)), ..self }, code)
    }

    /// Runs it with `context`, whose address and length are `r1` and `r2`; returns `r0`.
    ///
    /// # Errors
    ///
    /// [`VerifiedError`].
    #[inline]
    pub fn run(&self, context: &mut [u8]) -> Result<u64, VerifiedError> {
        self.finished(self.enter(context, self.fuel())?)
    }

    /// Runs a program that was verified for a read-only context, which others may read meanwhile.
    ///
    /// # Errors
    ///
    /// [`VerifiedError`].
    #[inline]
    pub fn run_read_only(&self, context: &[u8]) -> Result<u64, VerifiedError> {
        self.finished(self.enter_read_only(context, self.fuel())?)
    }

    #[inline]
    fn finished(&self, outcome: Outcome) -> Result<u64, VerifiedError> {
        match (outcome.outside(), outcome.gauge) {
            (Some(slot), _) => Err(VerifiedError::Store { slot }),
            // Without a host no helper ends it; one that pays for nothing returns what it got.
            (None, ..0) => Err(VerifiedError::Fuel { fuel: self.call.fuel as u64 }),
            (None, 0..) => Ok(outcome.value),
        }
    }

    /// Whether nothing that it calls or does can end it: of a host's helpers it calls only those that return numbers
    /// and never fail.
    #[inline]
    pub(crate) fn runs_alone(&self) -> bool {
        matches!(self.call.entry, Entry::Plain(_))
    }

    /// Returns the fuel that it gets.
    #[inline]
    pub(crate) fn fuel(&self) -> i64 {
        self.call.fuel
    }

    /// Runs it with this much fuel.
    #[inline]
    pub(crate) fn enter(&self, context: &mut [u8], fuel: i64) -> Result<Outcome, ContextError> {
        self.check(context.as_ptr().addr(), context.len())?;
        let arguments = [context.as_mut_ptr().expose_provenance() as u64, context.len() as u64, 0, 0, 0];
        // SAFETY: 1. it was verified: it reaches its stack and the bytes of the context that it was verified for, which
        // exist and belong to nobody else during the call; unproven loads go on if nothing is there, and unproven
        // stores are compared with the context's bounds, or those of a map; it reads only what has a value; and it
        // ends, or pays where that is not proven. 2. helpers are safe functions that get numbers,
        // or those of the host that it was verified for, with what they want; what it reaches of that host's maps are
        // atomic words, which the host keeps as long as the program. 3. `self` has the code.
        Ok(unsafe { self.call.entry.enter(arguments, fuel) })
    }

    /// Does the same with a context that must not be written.
    #[inline]
    pub(crate) fn enter_read_only(&self, context: &[u8], fuel: i64) -> Result<Outcome, ContextError> {
        if self.call.may_write {
            return Err(ContextError::ReadOnly);
        }
        self.check(context.as_ptr().addr(), context.len())?;
        let arguments = [context.as_ptr().expose_provenance() as u64, context.len() as u64, 0, 0, 0];
        // SAFETY: 1. as in `enter`; it was verified that the context is not written. 2., 3. as there.
        Ok(unsafe { self.call.entry.enter(arguments, fuel) })
    }

    /// Whether it writes to its context.
    pub(crate) const fn may_write(&self) -> bool {
        self.call.may_write
    }

    /// Whether `len` bytes at `address`, which must not be written, are a context for it.
    pub(crate) fn check_read_only(&self, address: usize, len: usize) -> Result<(), ContextError> {
        self.check(address, len)?;
        if self.may_write() { Err(ContextError::ReadOnly) } else { Ok(()) }
    }

    /// Whether `len` bytes at `address` are a context for it.
    #[inline]
    pub(crate) fn check(&self, address: usize, len: usize) -> Result<(), ContextError> {
        let (least, align) = (self.call.context_len as usize, usize::from(self.call.context_align));
        if len < least {
            return Err(ContextError::Short { len, least });
        }
        // It is a power of 2, and a division would take longer than most programs.
        if address & (align - 1) != 0 {
            return Err(ContextError::Unaligned { address, align });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::println;
    use std::vec::Vec;

    use super::*;
    use crate::asm::assemble;

    #[test]
    fn programs_with_short_loops_start_with_a_line() {
        if Target::NATIVE != Some(Target::X86_64) {
            return println!("skipped: lines are known of x86-64 alone");
        }
        let packs = Packs::new().expect("packs");
        let places = |text: &str| {
            let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
            let load = |_| Program::load(&packs, &code, &()).expect("it can be compiled");
            let programs: Vec<Program> = (0..64).map(load).collect();
            let place = |program: &Program| match program.entry {
                Entry::Plain(entry) => entry as usize % 64,
                Entry::Gauged(entry) => entry as usize % 64,
            };
            programs.iter().map(place).collect::<BTreeSet<usize>>()
        };
        assert_eq!(places("r0 = 9\nagain: r0 -= 1\nif r0 != 0 goto again\nexit").into_iter().max(), Some(0));
        // The chance that 64 programs get the same of 7 places is 7^-63.
        assert!(places("r0 = 9\nexit").len() > 1);
    }
}
