//! Compiled programs of a host.
#![expect(unsafe_code, reason = "a runner claims to pass on answers as they are")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use palimpsest_sys::published::{self, Published, Reading};
use palimpsest_text::Packs;

use super::gate::RunBy;
use super::kept::{Kept, SET_CALLBACK, Share};
use super::run::{self, Access, Context, Mark, Run};
use super::{Host, Linked, Runner};
use crate::code::Code;
use crate::insn::{Callee, Instruction};
use crate::interp::{Answer, HelperError};
use crate::jit::{CompileError, Compiled, OUT_OF_FUEL, Outcome, Target, Wanted, compile_resolved};
use crate::map::{self, Plain, Programs};
use crate::program::{ContextError, LoadError, Typed, TypedReadOnly, VerifiedProgram, Verifies};
use crate::timer::Ended;
use crate::verify::{TAIL_CALL, Unproven};

/// Tail calls of one run at most (`MAX_TAIL_CALL_CNT` of Linux, `include/linux/bpf.h`).
const MOST_TAIL_CALLS: u32 = 33;

/// A compiled program with the host that it was verified for. It runs from any thread.
#[derive(Debug)]
pub struct HostedProgram {
    program: VerifiedProgram,
    /// What the program has addresses of.
    host: Arc<Host>,
    /// What timers keep of the program, if it sets any.
    kept: Option<Share>,
    /// Whether it makes tail calls.
    calls_next: bool,
}

/// Why a program has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostedError {
    /// It was verified for another context.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// It has jumped back as often as it may, and was ended.
    #[error("the fuel of {fuel} jumps back is spent")]
    Fuel {
        /// Jumps back that it had.
        fuel: u64,
    },
    /// A store that the verifier could not prove would have left its memory, and the program was ended before it.
    #[error("the store in slot {slot} would have been outside of its memory")]
    Store {
        /// Its slot, from 0; after tail calls, in the program that ran last.
        slot: usize,
    },
    /// A helper failed, and the program was ended.
    #[error("call of helper {id}: {error}")]
    Helper {
        /// Its number.
        id: i32,
        /// Why.
        error: HelperError,
    },
    /// A function of the host failed, and the program was ended.
    #[error("call of the host's function with index {index}: {error}")]
    Function {
        /// Its index, by which [`Host::functions`] has its name.
        index: i32,
        /// Why.
        error: HelperError,
    },
}

/// The threads of this process.
struct Threads;

// SAFETY: 1. `guard` calls it once, and returns its answer, or that it panicked.
unsafe impl Runner for Threads {
    /// What a panicking helper leaves behind is the host's affair, as with any closure that is called again.
    fn guard(call: impl FnOnce() -> Result<Answer, HelperError>) -> Result<Answer, HelperError> {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|raised| {
            // Dropping it could panic again.
            std::mem::forget(raised);
            Err(HelperError::Panicked)
        })
    }

    fn peek(address: u64, bytes: &mut [u8]) -> usize {
        usize::try_from(address).map_or(0, |address| palimpsest_sys::memory::peek::read_own(address, bytes))
    }

    fn failed(callee: Callee, error: HelperError) {
        run::failed(callee, error);
    }

    fn hold(record: u64) -> Result<(), HelperError> {
        run::hold(record)
    }

    fn let_go(record: u64) {
        run::let_go(record);
    }

    fn cpu() -> u32 {
        map::this_cpu()
    }

    fn tail_call(programs: &Programs, index: u32) -> bool {
        let (Some(next), (Some(context), count)) = (programs.get(index), run::calls()) else { return false };
        if count == MOST_TAIL_CALLS || next.check(context).is_err() {
            return false;
        }
        run::call_next(next);
        true
    }
}

/// A run in progress on this thread. When it is dropped, the outer run goes on with its own: also if what the run held
/// panics while it is given back.
struct Inner {
    /// `None` when it has ended.
    outer: Option<Run>,
}

impl Inner {
    fn begin(run: Run) -> Self {
        Self { outer: Some(run::replace(run)) }
    }

    /// Returns what its helpers have told it.
    fn end(mut self) -> Run {
        run::replace(self.outer.take().unwrap_or_default())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(outer) = self.outer.take() {
            drop(run::replace(outer));
        }
    }
}

/// Runs a timer's function as a run of its own.
pub(super) fn run_later(host: &Host, kept: &Arc<Kept>, enter: impl FnOnce() -> Outcome) -> Ended {
    let run = Inner::begin(Run { kept: Some(Arc::clone(kept)), ..Run::default() });
    let outer_held = run::mark();
    let outcome = enter();
    if outcome.gauge < 0 {
        host.discard(&run::held_since(outer_held));
    }
    match run.end().failure {
        Some((_, HelperError::Exit(_))) => Ended::Returned,
        None if outcome.gauge >= 0 => Ended::Returned,
        _ => Ended::Failed,
    }
}

/// Whether a program may call the helper with this number.
fn may_call(code: &Code, helper: i32) -> bool {
    code.instructions().iter().any(|instruction| match instruction {
        Instruction::Call(Callee::Helper(id)) => *id == helper,
        Instruction::Call(Callee::Register(_)) => true,
        _ => false,
    })
}

impl Host {
    /// Compiles a program that need not be verified, to be read and not to be run: without the fuel and the guards that
    /// a contract may ask for. It knows this host's maps and helpers.
    ///
    /// # Errors
    ///
    /// [`CompileError`].
    pub fn compile_to_read(&self, code: &Code, target: Target) -> Result<Compiled, CompileError> {
        compile_resolved(code, target, &RunBy::<Threads>::new(self, Unproven::Refuse), Wanted::default())
    }
}

impl Linked {
    /// Compiles it for somebody who wants to read the code, for any machine: with all that its contract asks for.
    /// `random` blinds constants if the program's maker is not trusted.
    ///
    /// # Errors
    ///
    /// [`CompileError`].
    pub fn compile_to_read(&self, target: Target, random: u64) -> Result<Compiled, CompileError> {
        self.compile::<Threads>(target, random)
    }
}

impl HostedProgram {
    /// Compiles `linked` into `packs`.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load(packs: &Packs, linked: &Linked) -> Result<Self, LoadError> {
        let resolve = RunBy::<Threads>::new(&linked.host, linked.verified.unproven());
        let program = VerifiedProgram::resolved(packs, &linked.verified, &resolve)?;
        let host = Arc::clone(&linked.host);
        let calls_next = may_call(linked.code(), TAIL_CALL);
        if !may_call(linked.code(), SET_CALLBACK) {
            return Ok(Self { program, host, kept: None, calls_next });
        }
        let (program, code) = program.shared();
        let kept = Kept::new(code, program.fuel(), Arc::downgrade(&host));
        let kept = Some(Share::new(kept, &host));
        Ok(Self { program, host, kept, calls_next })
    }

    /// Whether it accepts contexts of `len` bytes, aligned to `align`, that must not be written.
    pub(crate) fn fits(&self, len: usize, align: usize) -> Result<(), ContextError> {
        // An address with no higher alignment than that.
        self.program.check_read_only(align, len)
    }

    /// Makes it a program whose context is a `T`. That `T` fits what the program was verified for
    /// ([`Contract::of`](crate::verify::Contract::of)) is checked here, and not in each run.
    ///
    /// # Errors
    ///
    /// [`ContextError`].
    pub fn typed<T: Plain>(self) -> Result<Typed<Self, T>, ContextError> {
        Typed::new(self)
    }

    /// Does the same for a program that was verified for a read-only context, which others may read meanwhile.
    ///
    /// # Errors
    ///
    /// [`ContextError`].
    pub fn typed_read_only<T: Plain>(self) -> Result<TypedReadOnly<Self, T>, ContextError> {
        TypedReadOnly::new(self)
    }

    fn kept(&self) -> Option<Arc<Kept>> {
        self.kept.as_ref().and_then(Share::kept).cloned()
    }

    fn check(&self, context: Context) -> Result<(), ContextError> {
        match context.access {
            Access::Read => self.program.check_read_only(context.address, context.len),
            Access::Write => self.program.check(context.address, context.len),
        }
    }

    /// Runs it with `context`, whose address and length are `r1` and `r2`. Returns `r0`.
    ///
    /// # Errors
    ///
    /// [`HostedError`].
    #[inline]
    pub fn run(&self, context: &mut [u8]) -> Result<u64, HostedError> {
        if self.program.runs_alone() {
            // No helper will ask whose run it is.
            return Ok(self.program.enter(context, self.program.fuel())?.value);
        }
        let (address, len) = (context.as_ptr().addr(), context.len());
        let mut enter = |program: &VerifiedProgram, fuel| program.enter(context, fuel);
        self.run_with(Context { address, len, access: Access::Write }, &mut enter)
    }

    /// Does the same for a program that was verified for a read-only context, which others may read meanwhile.
    ///
    /// # Errors
    ///
    /// [`HostedError`].
    #[inline]
    pub fn run_read_only(&self, context: &[u8]) -> Result<u64, HostedError> {
        if self.program.runs_alone() {
            // As above.
            return Ok(self.program.enter_read_only(context, self.program.fuel())?.value);
        }
        let (address, len) = (context.as_ptr().addr(), context.len());
        let mut enter = |program: &VerifiedProgram, fuel| program.enter_read_only(context, fuel);
        self.run_with(Context { address, len, access: Access::Read }, &mut enter)
    }

    fn run_with(
        &self,
        context: Context,
        enter: &mut dyn FnMut(&VerifiedProgram, i64) -> Result<Outcome, ContextError>,
    ) -> Result<u64, HostedError> {
        // What tail calls find stays until it has run, though it be replaced meanwhile: this thread is never the one
        // that frees it, since a signal handler must not.
        let _pinned = self.calls_next.then(published::pin);
        // A helper may run a program, too: the outer run goes on with its own.
        let run = Inner::begin(Run { context: Some(context), kept: self.kept(), ..Run::default() });
        let outer_held = run::mark();
        let mut fuel = self.program.fuel();
        let mut result = enter(&self.program, fuel);
        self.give_back(&result, outer_held);
        while let (Ok(outcome), Some(next)) = (result, run::take_next()) {
            // What is left of what the program had before, and not more than this one was verified for.
            fuel = outcome.gauge.min(next.program.fuel());
            run::set_kept(next.kept());
            result = enter(&next.program, fuel);
            next.give_back(&result, outer_held);
        }
        match (run.end().failure, result?) {
            (Some((_, HelperError::Exit(value))), _) => Ok(value),
            (Some((Callee::Kernel { id: index, .. }, error)), _) => Err(HostedError::Function { index, error }),
            (Some((Callee::Helper(id) | Callee::Local(id), error)), _) => Err(HostedError::Helper { id, error }),
            (Some((Callee::Register(register), error)), _) => {
                Err(HostedError::Helper { id: register.number().into(), error })
            }
            (None, outcome) if outcome.gauge == OUT_OF_FUEL => Err(HostedError::Fuel { fuel: fuel as u64 }),
            (None, outcome) => match outcome.outside() {
                Some(slot) => Err(HostedError::Store { slot }),
                None => Ok(outcome.value),
            },
        }
    }

    /// Gives back what the program holds if it was ended; the records up to `outer_held` belong to outer runs.
    fn give_back(&self, result: &Result<Outcome, ContextError>, outer_held: Mark) {
        if let Ok(Outcome { gauge: ..0, .. }) = result {
            // A ring buffer may call the host to wake somebody, who may run programs.
            self.host.discard(&run::held_since(outer_held));
        }
    }
}

impl Verifies for HostedProgram {
    #[inline]
    fn verified(&self) -> &VerifiedProgram {
        &self.program
    }
}

impl<T: Plain> Typed<HostedProgram, T> {
    /// Runs it with `context`, whose address and length are `r1` and `r2`. Returns `r0`.
    ///
    /// # Errors
    ///
    /// [`HostedError`], except for its `Context`.
    #[inline]
    pub fn run(&self, context: &mut T) -> Result<u64, HostedError> {
        let verified = self.program().verified();
        if verified.runs_alone() {
            // No helper will ask whose run it is.
            return Ok(self.enter(context, verified.fuel()).value);
        }
        // What tail calls lead to is compared with the context, at each of them.
        self.program().run(context.as_mut_bytes())
    }
}

impl<T: Plain> TypedReadOnly<HostedProgram, T> {
    /// Runs it with `context`, whose address and length are `r1` and `r2`. Returns `r0`.
    ///
    /// # Errors
    ///
    /// [`HostedError`], except for its `Context`.
    #[inline]
    pub fn run(&self, context: &T) -> Result<u64, HostedError> {
        let verified = self.program().verified();
        if verified.runs_alone() {
            // As above.
            return Ok(self.enter(context, verified.fuel()).value);
        }
        self.program().run_read_only(context.as_bytes())
    }
}

/// A place for a program that is replaced while others run it. Readers pay a load of the program's address, and two
/// stores to memory that only their thread writes.
#[derive(Debug)]
pub struct Slot<T = HostedProgram> {
    program: Published<Arc<T>>,
}

impl<T> Slot<T> {
    /// Makes a place with a program.
    pub fn new(program: Arc<T>) -> Self {
        Self { program: Published::new(program) }
    }

    /// Returns the present program, which stays as long as the result does. Keep that for a short time: it keeps
    /// everything that is replaced meanwhile, in any slot or hook.
    #[inline]
    pub fn get(&self) -> Reading<'_, Arc<T>> {
        self.program.read()
    }

    /// Replaces the program. Returns the old one, which others may still run: the slot lets go of it when they have
    /// left it, now or at the next change (or [`reclaim`](Self::reclaim)).
    pub fn replace(&self, program: Arc<T>) -> Arc<T> {
        self.program.replace_and(program, Arc::clone).0
    }

    /// Lets go of programs that were replaced, as far as no thread runs them any more. Returns of how many not.
    pub fn reclaim(&self) -> usize {
        self.program.reclaim()
    }
}
