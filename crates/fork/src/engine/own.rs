//! Memory that must never be frozen, because it is written to while pieces are moved:
//!
//! * this library's tables, and the tables of held threads;
//! * the stack below and around the running code, and this library's [own](crate::own_stack);
//! * what the running thread and the kernel write for it beside the stack: `errno`, which on some machines lies below
//!   all thread-local variables of the program, as far from the thread pointer as those are long; and the area of
//!   restartable sequences, into which the kernel writes the CPU's number whenever it has put the thread aside;
//! * the thread's control block and what is near it. Nothing is written there during a freeze, but much right after it.
//!
//! A held thread makes no step, and the kernel writes for it when it goes on; what it needs then is left out as well,
//! since freezing it would gain nothing.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize, AtomicPtr, AtomicUsize, Ordering};

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::vec::Full;
use palimpsest_sys::threads::hold::{Stopped, World};
use palimpsest_sys::threads::own::control_block;
use palimpsest_sys::threads::rseq;

use super::records::Excluded;
use super::registry::{self, Shared};
use super::tables::Tables;
use crate::error::FreezeError;
use crate::hazards::wiped::{Slot, Wiped};
use crate::options::{Options, OtherThreads};
use crate::own_stack;
use crate::report::Skip;

/// Where a thread's area of restartable sequences is, from its control block, and how long it is; [`UNASKED`] at
/// first, 0 for none. It is at the same place in all threads. `Relaxed`: two numbers, the same for everybody who asks.
static RSEQ: (AtomicIsize, AtomicUsize) = (AtomicIsize::new(0), AtomicUsize::new(UNASKED));

const UNASKED: usize = usize::MAX;

/// How far around a control block memory is left out, for it and for variables.
const AROUND_CONTROL_BLOCK: usize = 64 << 10;
/// How deep the code below a freeze may stack, including a signal frame.
const BELOW_STACK_POINTER: usize = 256 << 10;
/// How much stack callers within this library may use.
const ABOVE_STACK_POINTER: usize = 64 << 10;

/// Adds to the excluded memory what this thread, held threads and this library use.
pub(crate) fn exclude(
    tables: &mut Tables<'_>,
    world: Option<&World>,
    stopped: Option<&Stopped<'_>>,
) -> Result<(), FreezeError> {
    tables.excluded.clear();
    let mut own = tables.own_spans().into_iter().chain(own_areas()).chain(world.map(|world| world.own_range().into()));
    own.try_for_each(|span| add(tables, span))?;
    for held in stopped.iter().flat_map(|stopped| stopped.held()) {
        areas_of(held.control_block, held.stack).into_iter().try_for_each(|span| add(tables, span))?;
    }
    Ok(())
}

fn add(tables: &mut Tables<'_>, span: Span) -> Result<(), Full> {
    if span.is_empty() {
        return Ok(());
    }
    tables.excluded.push(Excluded { span: span.rounded_out(rustix::param::page_size()), reason: Skip::InUse })
}

/// Returns a thread's own memory, given its control block and an address on its stack.
fn areas_of(control_block: usize, stack: usize) -> [Span; 3] {
    let around = |at: usize, below: usize, above: usize| Span::new(at.saturating_sub(below), at.saturating_add(above));
    let rseq = control_block.wrapping_add_signed(RSEQ.0.load(Ordering::Relaxed));
    let len = Some(RSEQ.1.load(Ordering::Relaxed)).filter(|len| *len != UNASKED).unwrap_or(0);
    [
        around(control_block, AROUND_CONTROL_BLOCK, AROUND_CONTROL_BLOCK),
        Span::new(rseq, rseq.saturating_add(len)),
        around(stack, BELOW_STACK_POINTER, ABOVE_STACK_POINTER),
    ]
}

/// Returns what the calling thread uses: its stack, its control block, `errno`, and the area of restartable sequences;
/// and this library's own stack.
fn own_areas() -> [Span; 5] {
    let here = [0_u8; 1];
    let here = std::hint::black_box(here.as_ptr().addr());
    let (own_stack, user) = own_stack::areas();
    // On that stack, what is around belongs to the program; its frames that wait are elsewhere.
    let place = user.filter(|_| own_stack.contains(here)).unwrap_or(here);
    let [control_block, rseq, stack] = areas_of(control_block(), place);
    // SAFETY: the C library gives a valid pointer to the thread's own variable.
    let errno = unsafe { libc::__errno_location() }.addr();
    [control_block, rseq, stack, own_stack, Span::new(errno, errno + size_of::<i32>())]
}

/// Whether the calling thread uses `span`, or this library's tables lie in it.
pub(crate) fn is_in_use_here(span: Span) -> bool {
    let tables = registry::shared().map(Shared::spans);
    own_areas().into_iter().chain(tables.into_iter().flatten()).any(|area| area.overlaps(span))
}

/// 1 in a process that has frozen or repaired by itself; 0 in its children.
// SAFETY: 1. the only one with this slot; a test has another `AtomicI32` there.
static HOME: Wiped<AtomicI32> = unsafe { Wiped::new(Slot::Home) };

/// Notes that this process freezes by itself, so that it may open files of `/proc`.
pub(crate) fn note_home() {
    // Relaxed, here and below: the number itself is all that is passed on.
    HOME.get().inspect(|home| home.store(1, Ordering::Relaxed));
}

/// Whether this process has frozen or repaired by itself.
pub(crate) fn is_home() -> bool {
    HOME.get().is_some_and(|home| home.load(Ordering::Relaxed) != 0)
}

/// Whether the object with this code stays loaded, as its user says.
static STAYS: AtomicBool = AtomicBool::new(false);

/// Notes that the object with this code is never unloaded.
#[inline]
pub(crate) fn note_that_it_stays() {
    // Relaxed: it is noted before anybody asks.
    STAYS.store(true, Ordering::Relaxed);
}

/// Keeps the object with this code loaded if a freeze may hold other threads: the handler that holds them stays
/// installed, and a signal may come late. Takes locks of the dynamic linker, and may allocate: so it comes before the
/// engine's lock, and before anything is looked at.
pub(crate) fn stay_loaded(options: &Options) -> Result<(), FreezeError> {
    if options.other_threads == OtherThreads::Refuse || STAYS.load(Ordering::Relaxed) {
        return Ok(());
    }
    Ok(palimpsest_sys::stay_loaded()?)
}

/// The C library's byte that says that there is one thread (`__libc_single_threaded`, glibc 2.32); null if it has none.
static SINGLE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Whether the C library knows that there is no other thread. Makes no system call.
pub(crate) fn is_alone_for_sure() -> bool {
    let place = SINGLE.load(Ordering::Relaxed);
    // SAFETY: null, or a variable of the C library that lives as long as the process: a byte that the library writes
    // whole.
    !place.is_null() && unsafe { place.read_volatile() } != 0
}

/// Asks the C library, once, where the area of restartable sequences is, and where it notes whether there is one
/// thread. Takes locks of the dynamic linker, and may allocate.
#[cfg_attr(not(miri), unsafe(link_section = "palimpsest_start"))]
pub(crate) fn ask_c_library() {
    if RSEQ.1.load(Ordering::Relaxed) != UNASKED {
        return;
    }
    let single = palimpsest_sys::global_symbol(c"__libc_single_threaded");
    SINGLE.store(single.map_or(ptr::null_mut(), NonNull::as_ptr), Ordering::Relaxed);
    let area = rseq::area();
    RSEQ.0.store(area.start.wrapping_sub(control_block()).cast_signed(), Ordering::Relaxed);
    RSEQ.1.store(area.len(), Ordering::Relaxed);
}
