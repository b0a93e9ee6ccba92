//! Memory that must never be frozen: what is written to while pieces are moved.
//!
//! * this library's tables, and those of held threads;
//! * the stack below and around the running code;
//! * the running thread's control block and thread-local storage: `errno`, and the restartable-sequence area, into which the kernel writes the
//!   CPU's number whenever it has put the thread aside. The same of held threads.

use palimpsest_sys::mapped_vec::Full;
use palimpsest_sys::world::{Stopped, World};

use super::plan::Excluded;
use super::registry::{Locked, State};
use super::span::Span;
use crate::error::FreezeError;
use crate::report::Skip;

/// How far below a thread pointer its variables, and above it its control block, may lie.
const AROUND_THREAD_POINTER: usize = 64 << 10;
/// How deep the code below a freeze may stack, and a signal frame with it.
const BELOW_STACK_POINTER: usize = 256 << 10;
/// What callers within this library have on the stack.
const ABOVE_STACK_POINTER: usize = 64 << 10;

impl Locked {
    /// Fills `excluded` with what this thread, held threads and this library use.
    pub(crate) fn exclude(&mut self, world: Option<&World>, stopped: Option<&Stopped<'_>>) -> Result<(), FreezeError> {
        self.exclude_own()?;
        if let Some(world) = world {
            self.add_excluded(world.own_range().into())?;
        }
        for held in stopped.iter().flat_map(|stopped| stopped.held()) {
            self.exclude_thread(held.thread_pointer, held.stack)?;
        }
        Ok(())
    }

    /// Fills `excluded` with what this thread and this library use.
    fn exclude_own(&mut self) -> Result<(), Full> {
        let shared = self.shared.span();
        let state: &mut State = &mut *self;
        state.excluded.clear();
        state.add_excluded(shared)?;
        let tables: [Span; 8] = {
            let mut tables = [Span::default(); 8];
            for (place, span) in tables.iter_mut().zip(state.own_spans()) {
                *place = span;
            }
            tables
        };
        for span in tables {
            state.add_excluded(span)?;
        }
        let here = [0_u8; 1];
        state.exclude_thread(thread_pointer(), std::hint::black_box(here.as_ptr().addr()))
    }
}

impl State {
    /// Adds a thread's own memory, given its thread pointer and an address on its stack.
    fn exclude_thread(&mut self, thread_pointer: usize, stack: usize) -> Result<(), Full> {
        let around =
            |at: usize, below: usize, above: usize| Span::new(at.saturating_sub(below), at.saturating_add(above));
        self.add_excluded(around(thread_pointer, AROUND_THREAD_POINTER, AROUND_THREAD_POINTER))?;
        self.add_excluded(around(stack, BELOW_STACK_POINTER, ABOVE_STACK_POINTER))
    }

    /// Whether running code or the kernel may write to `span`, as far as that was found out last.
    pub(crate) fn is_in_use(&self, span: Span) -> bool {
        self.excluded.iter().any(|excluded| excluded.reason == Skip::InUse && excluded.span.overlaps(span))
    }

    fn add_excluded(&mut self, span: Span) -> Result<(), Full> {
        self.excluded.push(Excluded { span: span.rounded_out(rustix::param::page_size()), reason: Skip::InUse })
    }
}

/// An address in the control block that the C library has for this thread, which is where the thread pointer points to or just below (glibc: `struct pthread`).
pub(crate) fn thread_pointer() -> usize {
    // SAFETY: only tells the calling thread's identity.
    unsafe { libc::pthread_self() as usize }
}
