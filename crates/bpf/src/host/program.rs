//! Compiled programs of a host.

use std::cell::RefCell;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use palimpsest_text::Packs;

use super::{Host, Linked};
use crate::interp::{Answer, HelperError};
use crate::jit::Resolve;
use crate::map::Map;
use crate::program::{ContextError, LoadError, VerifiedProgram};

/// Tail calls of one run at most (`MAX_TAIL_CALL_CNT` of Linux, `include/linux/bpf.h`).
const MOST_TAIL_CALLS: u32 = 33;

/// A compiled program with the host that it was verified for. It runs from any thread.
#[derive(Debug)]
pub struct HostedProgram {
    program: VerifiedProgram,
    /// What the program has addresses of.
    _host: Arc<Host>,
}

/// Why a program has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostedError {
    /// The context is none for it.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// A helper has failed. The program went on to its end with 0 for the answer.
    #[error("call of helper {id}: {error}")]
    Helper {
        /// Its number.
        id: i32,
        /// Why.
        error: HelperError,
    },
}

/// What helpers of the run in progress tell it.
#[derive(Debug, Default)]
struct Run {
    context: Option<Context>,
    tail_calls: u32,
    next: Option<Arc<HostedProgram>>,
    failure: Option<(i32, HelperError)>,
}

/// The context of a run: what must be known to say whether another program may have it.
#[derive(Clone, Copy, Debug)]
struct Context {
    address: usize,
    len: usize,
    access: Access,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
}

std::thread_local! {
    static RUN: RefCell<Run> = RefCell::default();
}

/// Notes that a helper has failed; the first one counts.
pub(super) fn note(id: i32, error: HelperError) {
    RUN.with_borrow_mut(|run| {
        run.failure.get_or_insert((id, error));
    });
}

/// Has the program in `index` of `map` run next; 0 if it cannot, and the program goes on.
pub(super) fn tail_call(map: &Map, index: u64) -> Result<Answer, HelperError> {
    let index = u32::try_from(index).ok();
    let next = index.and_then(|index| map.programs()?.get(index));
    let taken = RUN.with_borrow_mut(|run| {
        let (Some(next), Some(context)) = (next, run.context) else { return false };
        if run.tail_calls == MOST_TAIL_CALLS || next.check(context).is_err() {
            return false;
        }
        run.tail_calls += 1;
        run.next = Some(next);
        true
    });
    Ok(Answer::Value(taken.into()))
}

impl HostedProgram {
    /// Compiles `linked` into `packs`.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load(packs: &Packs, linked: &Linked) -> Result<Self, LoadError> {
        let resolve: &dyn Resolve = &*linked.host;
        let program = VerifiedProgram::resolved(packs, &linked.verified, resolve)?;
        Ok(Self { program, _host: Arc::clone(&linked.host) })
    }

    /// Whether contexts of `len` bytes that are aligned to `align` and must not be written are some for it.
    pub(crate) fn fits(&self, len: usize, align: usize) -> Result<(), ContextError> {
        // An address that is aligned to no more than that.
        self.check(Context { address: align, len, access: Access::Read })
    }

    fn check(&self, context: Context) -> Result<(), ContextError> {
        self.program.check(context.address, context.len)?;
        if context.access == Access::Read && self.program.may_write() {
            return Err(ContextError::ReadOnly);
        }
        Ok(())
    }

    /// Runs it with `context`, whose address and length are `r1` and `r2`; returns `r0`.
    ///
    /// # Errors
    ///
    /// [`HostedError`].
    pub fn run(&self, context: &mut [u8]) -> Result<u64, HostedError> {
        let (address, len) = (context.as_ptr().addr(), context.len());
        let mut enter = |program: &VerifiedProgram| program.run(context);
        self.run_with(Context { address, len, access: Access::Write }, &mut enter)
    }

    /// The same for a program that was verified for a read-only context, which others may read meanwhile.
    ///
    /// # Errors
    ///
    /// [`HostedError`].
    pub fn run_read_only(&self, context: &[u8]) -> Result<u64, HostedError> {
        let (address, len) = (context.as_ptr().addr(), context.len());
        let mut enter = |program: &VerifiedProgram| program.run_read_only(context);
        self.run_with(Context { address, len, access: Access::Read }, &mut enter)
    }

    fn run_with(
        &self,
        context: Context,
        enter: &mut dyn FnMut(&VerifiedProgram) -> Result<u64, ContextError>,
    ) -> Result<u64, HostedError> {
        // A helper may run a program, too: the outer run goes on with its own.
        let outer = RUN.replace(Run { context: Some(context), ..Run::default() });
        let mut result = enter(&self.program);
        while let (Ok(_), Some(next)) = (result, RUN.with_borrow_mut(|run| run.next.take())) {
            result = enter(&next.program);
        }
        let run = RUN.replace(outer);
        match run.failure {
            Some((_, HelperError::Exit(value))) => Ok(value),
            Some((id, error)) => Err(HostedError::Helper { id, error }),
            None => Ok(result?),
        }
    }
}

/// A place for a program that is replaced while others run it: readers pay a load, and the program that was there goes
/// when the last of them has left it.
#[derive(Debug)]
pub struct Slot<T = HostedProgram> {
    program: ArcSwap<T>,
}

impl<T> Slot<T> {
    /// A place with a program.
    pub fn new(program: Arc<T>) -> Self {
        Self { program: ArcSwap::new(program) }
    }

    /// The program that is there now; it stays as long as the result does.
    pub fn get(&self) -> Guard<Arc<T>> {
        self.program.load()
    }

    /// Puts another one there; returns the one that was, which others may still run.
    pub fn replace(&self, program: Arc<T>) -> Arc<T> {
        self.program.swap(program)
    }
}
