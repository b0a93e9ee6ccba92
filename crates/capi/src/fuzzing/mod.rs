//! Random calls of the functions for C, compared with a model: for the fuzz target `capi` and the test `random`
//! (feature `fuzzing`). Not an interface: it may change at any time.
//!
//! Nothing that is loaded is run, so that any bytes are programs. Structures are passed in memory of exactly the length
//! that they give, so that AddressSanitizer notices one byte too many.

mod allocations;
mod arena;
mod keys;
mod lines;
mod memory;
mod packs;
pub mod panics;
mod reports;
mod snapshots;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::ptr::NonNull;
use std::thread;

use crate::result::palimpsest_error_message;
use crate::result::palimpsest_result::{self, PALIMPSEST_PANIC};

/// The result of a step: `Err` tells what was wrong.
type Step = Result<(), String>;

/// Calls of one input.
const CALLS: usize = 120;

/// Does what `input` says. Returns what was wrong.
///
/// # Errors
///
/// An answer that the model does not expect, a byte that is not where it should be, or a panic of the library.
pub fn play(input: &[u8]) -> Step {
    let mut input = Input(input);
    let mut packs = packs::Player::default();
    let mut allocations = allocations::Player::default();
    let mut arena = arena::Player::default();
    let mut snapshots = snapshots::Player::default();
    let mut keys = keys::Player::default();
    let mut memory = memory::Player::default();
    for _ in 0..CALLS {
        let Some(choice) = input.next() else { break };
        match choice % 16 {
            0..6 => packs.step(choice / 16, &mut input)?,
            6..9 => allocations.step(choice / 16, &mut input)?,
            9..11 => arena.step(choice / 16, &mut input)?,
            11 | 12 => snapshots.step(choice / 16, &mut input)?,
            13 => keys.step(choice / 16, &mut input)?,
            _ => memory.step(choice / 16, &mut input)?,
        }
    }
    packs.end()?;
    allocations.end()?;
    arena.end()?;
    snapshots.end()?;
    keys.end()
}

/// The rest of an input. Behind its end are zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> usize {
        usize::from(self.next().unwrap_or(0))
    }

    /// Mostly small numbers, and some with which wrong sums would overflow.
    fn number(&mut self) -> usize {
        match self.byte() {
            small @ 0..200 => small,
            kibi @ 200..240 => (kibi - 199) << 10,
            near @ 240..248 => usize::MAX - (near - 240),
            half @ 248..252 => isize::MAX as usize - 1 + (half - 248),
            power => 1 << (power - 252 + 19),
        }
    }

    /// Picks one of `count`; `None` if there are none.
    fn pick(&mut self, count: usize) -> Option<usize> {
        self.byte().checked_rem(count)
    }
}

/// Handles of one kind, with what the model knows of each.
struct Named<T> {
    live: Vec<(u64, T)>,
    /// All that were ever handed out.
    known: BTreeSet<u64>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self { live: Vec::new(), known: BTreeSet::new() }
    }
}

impl<T> Named<T> {
    fn add(&mut self, handle: u64, value: T) -> Step {
        if handle == 0 || !self.known.insert(handle) {
            return Err(format!("the handle {handle:#x} was handed out before"));
        }
        self.live.push((handle, value));
        Ok(())
    }

    /// Mostly one that exists; otherwise one that did, or never did.
    fn any(&self, input: &mut Input<'_>) -> u64 {
        let which = input.byte();
        match which % 8 {
            0 => 0,
            1 => (input.number() as u64) << (which / 8),
            2 | 3 => self.known.iter().nth(input.byte() % (self.known.len() + 1)).copied().unwrap_or(u64::MAX),
            _ => input.pick(self.live.len()).map_or(1, |index| self.live[index].0),
        }
    }

    fn find(&self, handle: u64) -> Option<&T> {
        self.live.iter().find(|(live, _)| *live == handle).map(|(_, value)| value)
    }

    fn find_mut(&mut self, handle: u64) -> Option<&mut T> {
        self.live.iter_mut().find(|(live, _)| *live == handle).map(|(_, value)| value)
    }

    fn take(&mut self, handle: u64) -> Option<T> {
        let index = self.live.iter().position(|(live, _)| *live == handle)?;
        Some(self.live.swap_remove(index).1)
    }
}

/// Compares an answer.
fn expect(what: &str, answer: palimpsest_result, wanted: &[palimpsest_result]) -> Step {
    if answer != PALIMPSEST_PANIC && wanted.contains(&answer) {
        return Ok(());
    }
    Err(format!("{what}: {answer:?} and not {wanted:?}: {}", message()))
}

/// Returns this thread's message.
fn message() -> String {
    // SAFETY: never null, and valid until the next failure of this thread.
    unsafe { CStr::from_ptr(palimpsest_error_message()) }.to_string_lossy().into_owned()
}

/// Does it here, or in a thread that the library has not seen.
fn somewhere<R: Send>(input: &mut Input<'_>, work: impl FnOnce() -> R + Send) -> R {
    if input.byte().is_multiple_of(4) { elsewhere(work) } else { work() }
}

/// Does it in a thread that the library has not seen.
fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Two threads do the same at once.
fn twice(work: impl Fn() -> palimpsest_result + Sync) -> [palimpsest_result; 2] {
    let answers = thread::scope(|scope| [scope.spawn(&work), scope.spawn(&work)].map(|thread| thread.join()));
    answers.map(|answer| answer.unwrap_or(PALIMPSEST_PANIC))
}

/// Memory of exactly `len` bytes, aligned as structures are.
struct Exactly {
    place: NonNull<u8>,
    layout: Layout,
}

impl Exactly {
    /// Copies the first bytes of `value`, followed by zeros if there are more; the first field says how many.
    fn of<T: Copy>(value: T, len: usize) -> Self {
        let made = Self::zeros(len.max(size_of::<usize>()));
        let from = (&raw const value).cast::<u8>();
        // SAFETY: that many are valid on both sides.
        unsafe { made.place.as_ptr().copy_from_nonoverlapping(from, size_of::<T>().min(made.layout.size())) };
        // SAFETY: at least a word, aligned as one.
        unsafe { made.place.cast::<usize>().write(len) };
        made
    }

    fn zeros(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), align_of::<u64>()).unwrap_or(Layout::new::<u64>());
        // SAFETY: 1. not of length 0.
        let Some(place) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { std::alloc::handle_alloc_error(layout) };
        Self { place, layout }
    }

    fn as_ptr<T>(&self) -> *mut T {
        self.place.as_ptr().cast()
    }
}

impl Drop for Exactly {
    fn drop(&mut self) {
        // SAFETY: 1. and 2. allocated with this layout, and not used again.
        unsafe { dealloc(self.place.as_ptr(), self.layout) };
    }
}
