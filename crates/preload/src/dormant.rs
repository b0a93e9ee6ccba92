//! A program that another one has executed below `palimpsest run` sleeps until it has a use for this object: most are
//! over before that. It has read no settings, made no mapping and written to few pages; its calls are passed on.
//!
//! It wakes
//!
//! * at a fork with enough private memory that freezing may gain anything;
//! * when it maps memory that may be put into huge pages;
//! * when it is about to install a seccomp filter, under which it could not wake later.
//!
//! Then the settings are read that its variables had at the start, which are kept: by then the program may have changed
//! its environment, or written over it.
//!
//! Who is told something at the start or at the end does not sleep, nor who is to be served at once: the process that
//! `palimpsest run` has started, and whoever has other variables than that sets by default.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::channel::Noted;
use crate::environment;
use crate::started::Origin;
use crate::{deferred, lookup};

/// What this process does: [`AWAKE`] if it has never slept, too.
static STATE: AtomicU8 = AtomicU8::new(AWAKE);

const AWAKE: u8 = 0;
const DORMANT: u8 = 1;
/// A thread wakes it.
const WAKING: u8 = 2;
/// It cannot wake any more.
const LEFT: u8 = 3;

/// Bytes of variables that are kept; who has more does not sleep.
const ROOM: usize = 768;

/// What is kept of the start.
struct Kept {
    /// # Invariants
    ///
    /// Written before `STATE` is [`DORMANT`] for the first time, and never afterwards.
    start: UnsafeCell<Start>,
}

pub(crate) struct Start {
    /// Strings of the environment, each with the null behind it.
    variables: [u8; ROOM],
    length: usize,
    pub(crate) standard_error: Option<Noted>,
}

// SAFETY: one thread writes before `STATE` says that there is something to read, and all others read after that.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept { start: UnsafeCell::new(Start { variables: [0; ROOM], length: 0, standard_error: None }) };

/// Whether this process sleeps. Async-signal-safe.
#[inline]
pub(crate) fn is() -> bool {
    STATE.load(Ordering::Relaxed) == DORMANT
}

/// Lets the process sleep, if its variables allow it. Returns whether it does.
///
/// # Safety
///
/// 1. Nobody may change the environment meanwhile.
/// 2. Nobody has called it before, and nothing else of this object runs in another thread.
#[unsafe(link_section = "palimpsest_start")]
pub(crate) unsafe fn begin(variables: &environment::Noted) -> bool {
    // SAFETY: 1. is (1).
    let value = |name: &str| unsafe { variables.value(name) };
    if !deferred::is_any() || !is_own() || Origin::of_an_heir(&value) != Some(Origin::Heir) || !suits(&value) {
        return false;
    }
    // SAFETY: contract 2; the state says that there is nothing yet.
    let start = unsafe { &mut *KEPT.start.get() };
    // SAFETY: 1. strings of the environment; is (1).
    let Some(length) = (unsafe { copy(variables.strings(), &mut start.variables) }) else { return false };
    start.length = length;
    start.standard_error = Noted::now(libc::STDERR_FILENO);
    // Release, partner: the Acquire exchange in `begin_to_wake`. Forbids that who wakes reads what is not kept yet.
    STATE.store(DORMANT, Ordering::Release);
    true
}

/// Whether nothing in these variables concerns a start, and no filter was there at that of `palimpsest run`.
#[inline]
fn suits<'a>(value: &impl Fn(&str) -> Option<&'a [u8]>) -> bool {
    let is_plain = |name: &str| value(name).is_none_or(<[u8]>::is_empty);
    let is_unconfined = value("PALIMPSEST_FILTERS").is_some_and(|told| told == b"0" || told.starts_with(b"0,"));
    let is_gathered = || value("PALIMPSEST_HUGE").is_some_and(|told| told == b"gather");
    let is_handed_over = || value(environment::PRELOAD).is_none_or(|told| told.windows(3).any(|part| part == b"fd/"));
    is_unconfined
        && is_plain("PALIMPSEST_FREEZE")
        && is_plain("PALIMPSEST_ONLY")
        && is_plain("PALIMPSEST_TEXT")
        && is_plain("PALIMPSEST_INHERIT")
        && !is_gathered()
        && !is_handed_over()
}

/// Copies strings into a buffer; returns how many bytes, or `None` if there is no room.
///
/// # Safety
///
/// 1. They must be C strings that nobody changes meanwhile.
#[inline]
unsafe fn copy(strings: impl Iterator<Item = *const c_char>, room: &mut [u8; ROOM]) -> Option<usize> {
    let mut length = 0;
    for string in strings {
        let mut at = string.cast::<u8>();
        loop {
            // SAFETY: (1); no byte before this one was the null.
            let byte = unsafe { at.read() };
            *room.get_mut(length)? = byte;
            length += 1;
            if byte == 0 {
                break;
            }
            at = at.wrapping_add(1);
        }
    }
    Some(length)
}

/// Whether the calling thread is the one that the C library takes it for. It is not in a child of `vfork`, which runs
/// in its parent's memory: the library finds its parent's number there, and a child of `fork` its own. Then no page of
/// this object's need be written in each child.
///
/// A recursive mutex holds its owner's number behind two others (glibc, `bits/struct_mutex.h`). False with another C
/// library, and before glibc 2.34 without its library for threads.
pub(crate) fn is_own() -> bool {
    type Lock = unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> c_int;
    let Some(lock) = lookup::any(c"pthread_mutex_lock") else { return false };
    // SAFETY: the C library's function, or of an object that stands for it.
    let lock = unsafe { std::mem::transmute::<*mut c_void, Lock>(lock) };
    let mut mutex = libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    // SAFETY: a mutex of this frame's, which nobody else knows; it holds nothing that would have to be given back.
    unsafe { lock(&raw mut mutex) };
    let place = (&raw const mutex).cast::<c_int>().wrapping_add(2);
    // SAFETY: it is longer than three numbers, and aligned to them.
    let owner = unsafe { place.read_volatile() };
    owner == rustix::thread::gettid().as_raw_nonzero().get()
}

/// Begins to wake the process, in one thread only; returns what was kept.
pub(crate) fn begin_to_wake() -> Option<&'static Start> {
    // Acquire, partner: the Release store in `begin`.
    STATE.compare_exchange(DORMANT, WAKING, Ordering::Acquire, Ordering::Relaxed).ok()?;
    // SAFETY: by the invariant of the field nobody writes any more.
    Some(unsafe { &*KEPT.start.get() })
}

/// Notes that the process is awake. `Relaxed`: who sees it asks `started`, which has an order of its own.
pub(crate) fn end_waking() {
    STATE.store(AWAKE, Ordering::Relaxed);
}

/// Lets a process that sleeps do so for good. If a thread is just waking it, that goes on.
pub(crate) fn stay() {
    let _ = STATE.compare_exchange(DORMANT, LEFT, Ordering::Relaxed, Ordering::Relaxed);
}

impl Start {
    /// Returns the value that a variable had at the start.
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        let strings = self.variables.get(..self.length)?.split(|&byte| byte == 0);
        let mut values = strings.filter_map(|string| string.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        values.next()
    }
}

/// Whether this is a stack that the program has given to handlers, which may be too short.
pub(crate) fn is_on_stack_for_signals() -> bool {
    // SAFETY: all zeros is a valid value.
    let mut stack: libc::stack_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the kernel writes to a local.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a program that sleeps although something is to be done, or told, at its start.
    #[test]
    fn who_is_served_at_once_does_not_sleep() {
        let usual = [("PALIMPSEST_FILTERS", "0,tried"), ("LD_PRELOAD", "/x/libpalimpsest_preload.so")];
        let sleeps = |other: (&str, &str)| {
            let all: Vec<_> = [other].into_iter().chain(usual).collect();
            suits(&|name: &str| all.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes()))
        };
        for other in [("PALIMPSEST_FREEZE", ""), ("PALIMPSEST_PAUSE", "5ms"), ("PALIMPSEST_HUGE", "off")] {
            assert!(sleeps(other), "{other:?}");
        }
        for other in [
            ("PALIMPSEST_FREEZE", "fork"),
            ("PALIMPSEST_FREEZE", "signal:USR1"),
            ("PALIMPSEST_HUGE", "gather"),
            ("PALIMPSEST_ONLY", "a"),
            ("PALIMPSEST_TEXT", "local,heirs"),
            ("PALIMPSEST_INHERIT", "no"),
            ("PALIMPSEST_FILTERS", "1,tried"),
            ("PALIMPSEST_FILTERS", ""),
            ("LD_PRELOAD", "/proc/self/fd/3"),
        ] {
            assert!(!sleeps(other), "{other:?}");
        }
        assert!(!suits(&|_: &str| None));
    }

    #[test]
    fn variables_are_kept_as_they_were() {
        let mut start = Start { variables: [0; ROOM], length: 0, standard_error: None };
        let strings = [c"PALIMPSEST_PAUSE=5ms", c"PALIMPSEST_PAUSED=1", c"PALIMPSEST_PAUSE=9ms", c"LD_PRELOAD="];
        // SAFETY: 1. constants.
        let length = unsafe { copy(strings.iter().map(|string| string.as_ptr()), &mut start.variables) };
        start.length = length.expect("there is room");
        assert_eq!(start.value("PALIMPSEST_PAUSE"), Some(&b"5ms"[..]), "the first, as of the environment");
        assert_eq!(start.value("LD_PRELOAD"), Some(&b""[..]));
        assert_eq!((start.value("PALIMPSEST_PAUS"), start.value("PALIMPSEST_")), (None, None));
        let many = std::iter::repeat_n(c"PALIMPSEST_PAUSE=5ms".as_ptr(), ROOM / 21 + 1);
        // SAFETY: 1. a constant.
        assert_eq!(unsafe { copy(many, &mut start.variables) }, None);
    }
}
