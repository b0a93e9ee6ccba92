//! Results: one line for each check.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The status with which QEMU ends; `xtask/src/guest/arch.rs` repeats them. QEMU has others for its own mistakes, and 0
/// for a triple fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    /// All checks passed.
    Passed = 33,
    /// Some did not, or the kernel panicked.
    Failed = 35,
}

static PASSED: AtomicUsize = AtomicUsize::new(0);
static FAILED: AtomicUsize = AtomicUsize::new(0);

/// Notes that a check has passed, or why not.
pub(crate) fn report(name: &str, result: Result<(), fmt::Arguments<'_>>) {
    // Relaxed, here and below: the first CPU alone checks.
    match result {
        Ok(()) => {
            PASSED.fetch_add(1, Ordering::Relaxed);
            crate::say!("ok {name}");
        }
        Err(why) => {
            FAILED.fetch_add(1, Ordering::Relaxed);
            crate::say!("FAILED {name}: {why}");
        }
    }
}

/// Checks that two values are equal.
pub(crate) fn equal<T: PartialEq + fmt::Debug>(name: &str, is: T, should: T) {
    holds(name, is == should, format_args!("it is {is:?} and should be {should:?}"));
}

/// Checks that something holds. `why` is printed if it does not.
pub(crate) fn holds(name: &str, holds: bool, why: fmt::Arguments<'_>) {
    report(name, if holds { Ok(()) } else { Err(why) });
}

/// Prints the last line, and returns the status of all checks.
pub(crate) fn finish() -> Status {
    let (passed, failed) = (PASSED.load(Ordering::Relaxed), FAILED.load(Ordering::Relaxed));
    crate::say!("{passed} of {} checks passed", passed + failed);
    if failed == 0 { Status::Passed } else { Status::Failed }
}
