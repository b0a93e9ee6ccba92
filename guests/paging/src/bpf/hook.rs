//! Programs that are asked before each system call.
//!
//! While no program is attached, a system call passes one instruction without effect: a site of a static key. Attaching
//! the first program rewrites it in every node's copy of the kernel and of modules, by one store and one call of each
//! CPU.
//!
//! | | CPU 0 attaches or detaches | CPU 1, in a system call |
//! |---|---|---|
//! | a | calls every CPU: what was written to packs is fetched anew from now on | |
//! | b | publishes the new list (Release) | |
//! | c | switches the key, or calls every CPU | reads the list (Acquire), runs its programs, leaves |
//! | d | drops the old list | |
//!
//! CPU 1 answers no call between reading the list and leaving: interrupts are off, and nothing there waits for another
//! CPU. So once it has answered the call of c, it has left the old list, or reads the new one.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::Program;
use crate::{cpu, flush, key};

pub(crate) use crate::arch::key::is_on;

/// What programs see of a system call, read-only.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 3],
    pub(crate) process: u64,
    pub(crate) cpu: u64,
}

/// Words of a [`Call`].
pub(crate) const WORDS: usize = size_of::<Call>() / 8;

impl Call {
    fn words(self) -> [u64; WORDS] {
        let [a, b, c] = self.arguments;
        [self.number, a, b, c, self.process, self.cpu]
    }
}

/// A program that is attached.
#[derive(Clone, Debug)]
struct Attachment {
    priority: i32,
    number: u64,
    program: Arc<Program>,
}

/// Names an attachment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attached(u64);

/// Why a program is not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AttachError {
    /// It was verified for more words of context than a call has: [`WORDS`].
    Context {
        /// The words that it needs.
        words: usize,
    },
}

/// In the order in which they run; null for none.
static LIST: AtomicPtr<Vec<Attachment>> = AtomicPtr::new(core::ptr::null_mut());
/// Whether somebody changes the list.
static CHANGING: AtomicBool = AtomicBool::new(false);
static NUMBERS: AtomicU64 = AtomicU64::new(0);
/// Programs that were ended.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Times that the list was looked at.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Returns how many programs were ended so far, and how often programs were asked.
pub(crate) fn counts() -> (u64, u64) {
    // Relaxed: statistics.
    (ENDED.load(Ordering::Relaxed), ASKED.load(Ordering::Relaxed))
}

/// Asks the programs in their order. The first answer other than 0 is returned as the call's result; the call is then
/// not made.
pub(crate) fn ask(call: Call) -> Option<u64> {
    // Relaxed: a statistic.
    ASKED.fetch_add(1, Ordering::Relaxed);
    // Acquire, partner: the Release in `publish`. Forbids entering a program that is not there yet.
    let list = LIST.load(Ordering::Acquire);
    // SAFETY: lists live until every CPU has answered a call that was made after they were replaced (see the module);
    // this CPU answers none before it returns.
    let programs = unsafe { list.as_ref() }?;
    let words = call.words();
    programs.iter().find_map(|attachment| match attachment.program.run(&words) {
        Ok(verdict) => Some(verdict).filter(|verdict| *verdict != 0),
        Err(_) => {
            // Relaxed: a statistic. The answer of a program that was ended does not count.
            ENDED.fetch_add(1, Ordering::Relaxed);
            None
        }
    })
}

/// Makes `change` to a copy of the list, and publishes the copy.
fn publish(change: impl FnOnce(&mut Vec<Attachment>)) {
    // Acquire, partner: the Release below. Waits by `CHANGING` and not by a lock, because its holder waits for other
    // CPUs.
    while CHANGING.swap(true, Ordering::Acquire) {
        cpu::relax();
    }
    // Acquire, partner: the Release of the change before.
    let old = LIST.load(Ordering::Acquire);
    // SAFETY: only whoever has set `CHANGING` replaces the list, below.
    let mut programs = unsafe { old.as_ref() }.cloned().unwrap_or_default();
    change(&mut programs);
    let is_empty = programs.is_empty();
    let new = if is_empty { core::ptr::null_mut() } else { Box::into_raw(Box::new(programs)) };
    // Release, partner: the Acquire in `ask`.
    LIST.store(new, Ordering::Release);
    match (old.is_null(), is_empty) {
        (true, true) => {}
        (true, false) => key::switch(true),
        (false, true) => key::switch(false),
        (false, false) => flush::synchronize_all(),
    }
    if !old.is_null() {
        // SAFETY: made by `into_raw` above; since it was replaced every CPU has answered a call, and so has left it.
        drop(unsafe { Box::from_raw(old) });
    }
    CHANGING.store(false, Ordering::Release);
}

/// Attaches `program`: it is asked before each system call, after those with smaller priority numbers.
pub(crate) fn attach(priority: i32, program: Arc<Program>) -> Result<Attached, AttachError> {
    if program.words() > WORDS {
        return Err(AttachError::Context { words: program.words() });
    }
    // Relaxed: only uniqueness matters.
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    // No CPU runs what it has fetched earlier from the program's place.
    flush::synchronize_all();
    publish(|programs| {
        let place = programs.partition_point(|other| other.priority <= priority);
        programs.insert(place, Attachment { priority, number, program });
    });
    Ok(Attached(number))
}

/// Detaches a program: when this returns, no CPU runs it.
pub(crate) fn detach(attached: Attached) {
    publish(|programs| programs.retain(|other| other.number != attached.0));
}
