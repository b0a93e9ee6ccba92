//! Wakes a program that [sleeps](crate::dormant).

use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::serving::serve;
use crate::{deferred, dormant, errno, filters, moment, started};

/// Whether no filter confined this process or an ancestor when that was looked for. `Relaxed`: a hint, which is
/// forgotten at worst.
static IS_FREE: AtomicBool = AtomicBool::new(false);

/// Whether a fork may gain by the object, in a process that sleeps. Async-signal-safe; leaves `errno` undefined.
pub(crate) fn pays() -> bool {
    if !IS_FREE.load(Ordering::Relaxed) {
        match filters::of_this_thread() {
            Some(0) => IS_FREE.store(true, Ordering::Relaxed),
            // A filter might end the program for other questions than this one.
            Some(_) => return moment::has_enough(),
            // Without `/proc` the engine says why it can do nothing.
            None => return true,
        }
    }
    moment::may_pay()
}

/// Wakes the process. Returns whether it is served from here on. Not in a child of `vfork`, which would read settings
/// into its parent's memory, nor on a stack for handlers, which may be too short. Async-signal-safe, takes no lock, and
/// leaves `errno` alone.
#[cold]
pub(crate) fn wake() -> bool {
    if dormant::is_on_stack_for_signals() || !dormant::is_own() {
        return false;
    }
    let Some(kept) = dormant::begin_to_wake() else { return false };
    let before = errno::get();
    deferred::apply();
    let value = |name: &str| kept.value(name);
    // SAFETY: 1. there are none. 2. Only the thread that has changed the state comes here, and a process that sleeps
    // has not started.
    let _ = panic::catch_unwind(|| unsafe { serve(&value, kept.standard_error, None) });
    errno::set(before);
    dormant::end_waking();
    started::get().is_some()
}

/// Wakes the process before it confines itself, or lets it sleep for good. Returns false in a child of `vfork`, whose
/// parent is not concerned.
pub(crate) fn before_filter() -> bool {
    if !dormant::is() || wake() {
        return true;
    }
    if !dormant::is_own() {
        return false;
    }
    dormant::stay();
    true
}
