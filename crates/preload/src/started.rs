//! What the object knows once it has started.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_sys::proc::stat::Incarnation;

use crate::channel::Noted;
use crate::filters::Filters;
use crate::settings::{Moment, Settings};

/// `palimpsest run` sets it: to its own process, which becomes the program's.
const FIRST: &str = "PALIMPSEST_STARTED";

/// How this process came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// `palimpsest run` has started it, whatever it has executed since.
    Run,
    /// The process that `palimpsest run` has started, or one of its heirs, has started it.
    Heir,
    /// Somebody has set the variables himself.
    Variables,
}

impl Origin {
    /// Returns the origin of this process, as its variables tell.
    #[inline]
    pub(crate) fn of_this_process<'a>(variable: &impl Fn(&str) -> Option<&'a [u8]>) -> Self {
        match variable(FIRST) {
            None => Self::Variables,
            // When it was started is in a file, which heirs, of which there are many, need not open.
            Some(first) if number_in(first) != rustix::process::getpid().as_raw_nonzero().get().cast_unsigned() => {
                Self::Heir
            }
            Some(first) if str::from_utf8(first).is_ok_and(is_this_process) => Self::Run,
            Some(_) => Self::Heir,
        }
    }
}

/// Returns the process in a value `PROCESS-STARTED`; 0, which is none, if there is no number.
fn number_in(first: &[u8]) -> u32 {
    let digits = first.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u32, digit| number.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')))
}

#[cold]
fn is_this_process(first: &str) -> bool {
    first.parse() == Ok(Incarnation::of_this_process())
}

/// Whether to report the end of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// If nothing was frozen in the process with this id. Its children have other ids.
    Told(u32),
    Silent,
}

impl End {
    /// Returns that of this process, as its variables tell.
    #[inline]
    pub(crate) fn of_this_process<'a>(variable: &impl Fn(&str) -> Option<&'a [u8]>) -> Self {
        match Origin::of_this_process(variable) {
            Origin::Run => Self::Told(std::process::id()),
            Origin::Heir | Origin::Variables => Self::Silent,
        }
    }
}

/// What the object knows once it has started.
pub(crate) struct Started {
    pub(crate) settings: Settings,
    /// Standard error as the program got it.
    pub(crate) standard_error: Option<Noted>,
    /// The descriptor for the report, if that is where it goes.
    pub(crate) report: Option<Noted>,
    /// seccomp filters under which the program was started, or `palimpsest run` below which it was; `None` without
    /// `/proc`, or if there are some in Linux before 5.9.
    pub(crate) filters: Option<Filters>,
    /// Whether to report its end.
    pub(crate) end: End,
    /// Why this program is never frozen, if it is not among the named ones.
    pub(crate) left_out: Option<String>,
}

/// Written once, before `main`, and read from then on: without the standard library's locks, whose code no other part
/// of a start needs.
struct Place {
    is_set: AtomicBool,
    /// # Invariants
    ///
    /// Written before `is_set` is raised, and never afterwards.
    started: UnsafeCell<MaybeUninit<Started>>,
}

// SAFETY: one thread writes before `is_set` is raised, and all others read after that; what is read can be shared.
unsafe impl Sync for Place {}

const _: () = {
    const fn can_be_shared<T: Sync + Send>() {}
    can_be_shared::<Started>();
};

static STARTED: Place = Place { is_set: AtomicBool::new(false), started: UnsafeCell::new(MaybeUninit::uninit()) };

/// Returns what the object knows; `None` before it has started, and for good if it must do nothing. Async-signal-safe.
pub(crate) fn get() -> Option<&'static Started> {
    // Acquire, partner: the Release store in `set`. Forbids seeing the flag before what it stands for.
    if !STARTED.is_set.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: by the invariant of the field nobody writes any more.
    let started = unsafe { &*STARTED.started.get() };
    // SAFETY: by the invariant of the field it was written.
    Some(unsafe { started.assume_init_ref() })
}

/// Whether this object freezes or gathers the process, or tells what that would do, as far as its settings go: programs
/// that can do so by themselves ask, as the package for Python does. Returns 0 if it leaves the process alone.
/// Async-signal-safe.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn palimpsest_serves() -> c_int {
    c_int::from(get().is_some_and(|started| started.settings.moment != Moment::Never))
}

/// Notes it.
///
/// # Safety
///
/// 1. Nobody has called it before, or calls it at the same time.
pub(crate) unsafe fn set(started: Started) {
    // SAFETY: contract 1; readers wait for the flag.
    let place = unsafe { &mut *STARTED.started.get() };
    place.write(started);
    // Release, partner: the Acquire load in `get`.
    STARTED.is_set.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_others_by_its_number_and_its_start() {
        for (value, number) in [("4711-99", 4711), ("4711", 4711), ("", 0), ("-1", 0), ("x4711", 0)] {
            assert_eq!(number_in(value.as_bytes()), number, "{value}");
        }
        let own = Incarnation::of_this_process();
        assert!(is_this_process(&own.to_string()));
        assert!(!is_this_process(&Incarnation { started: own.started + 1, ..own }.to_string()));
        assert!(!is_this_process(&own.process.to_string()));
    }
}
