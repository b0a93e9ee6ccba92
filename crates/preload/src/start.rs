//! Runs before the program's `main`: looks up the real functions and reads the settings, once.
//!
//! Every program that is executed below `palimpsest run` pays for this, also one that lives for a millisecond and never
//! forks. So it uses neither the heap nor, where nothing is set, the standard library: each 64 KiB of code and each
//! page of data that is touched costs a page fault. `tests/suite/calls.rs` counts them.

use std::ffi::{c_char, c_int};
use std::panic;

use palimpsest_sys::in_secure_execution;

use crate::channel::{self, Noted};
use crate::settings::{Heirs, Mapped, Moment, ReportTo, Settings};
use crate::started::{self, End, Origin, Started};
use crate::{
    attach, confine, ended, environment, execute, filters, fork, glibc, handed_over, local_text, memory, moment, names,
    protection, waiting, waits,
};

/// The dynamic linker calls this with the program's arguments and environment, as glibc does for all of `.init_array`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = start;

// In a section with all else of its kind, see `palimpsest_sys::broken_pipe`.
#[cfg_attr(test, expect(dead_code, reason = "a test must not start the object in its own process"))]
#[unsafe(link_section = "palimpsest_start")]
extern "C" fn start(count: c_int, arguments: *const *const c_char, environment: *mut *mut c_char) {
    // A program with more rights than its caller must not obey the caller's environment.
    if in_secure_execution() {
        return;
    }
    // A panic here would end the program. Its message goes to standard error, which is what the program was given: it
    // has not run yet.
    let _ = panic::catch_unwind(|| {
        fork::resolve();
        memory::resolve();
        protection::resolve();
        attach::resolve();
        confine::resolve();
        execute::resolve();
        waiting::resolve();
        waits::note_main_thread();
        // Elsewhere calls are handed on, and nothing is read: musl passes no arguments.
        if glibc::inside().is_none() || !are_arrays(count, arguments, environment) {
            return;
        }
        // SAFETY: 1. glibc passes the arrays that it got from the kernel; 2. this is before `main`, and a library that
        // starts threads in its constructor and lets them read the environment would race with `setenv` anyway; 3. the
        // dynamic linker calls this once.
        unsafe { begin(arguments, environment) };
    });
}

/// Whether these are a program's arguments and environment, as the kernel lays them out: one array behind the other.
/// What is loaded beside musl may have names of glibc's.
#[unsafe(link_section = "palimpsest_start")]
fn are_arrays(count: c_int, arguments: *const *const c_char, environment: *mut *mut c_char) -> bool {
    let behind = |count: usize| arguments.addr().wrapping_add(size_of::<usize>().wrapping_mul(count.wrapping_add(1)));
    !arguments.is_null() && usize::try_from(count).is_ok_and(|count| environment.addr() == behind(count))
}

/// Reads the settings, and does what they say.
///
/// # Safety
///
/// 1. `arguments` and `environment` must be null or null-terminated arrays of C strings, those of the latter writable.
/// 2. No other thread may use the environment.
/// 3. Nobody has called it before.
#[unsafe(link_section = "palimpsest_start")]
unsafe fn begin(arguments: *const *const c_char, environment: *mut *mut c_char) {
    // SAFETY: 1. is (2).
    let variables = unsafe { environment::Noted::now() };
    // SAFETY: 1. is (2); what is changed here is `LD_PRELOAD`, for which nobody asks afterwards. Nothing read is kept.
    let value = |name: &str| unsafe { variables.value(name) };
    // SAFETY: 1. is (1); 2. is (2).
    unsafe { handed_over::give_up(value(environment::PRELOAD), environment) };
    let standard_error = Noted::now(libc::STDERR_FILENO);
    local_text::begin(standard_error, &value);
    let complain = |text: &str| {
        let line = format!("palimpsest: {text}; the program runs unfrozen\n");
        // Without standard error, nothing can be reported.
        let _ = standard_error.map(|descriptor| descriptor.write(line.as_bytes()));
    };
    let mut settings = match Settings::read(&value) {
        Ok(settings) => settings,
        Err(error) => return complain(&error.to_string()),
    };
    if settings.heirs == Heirs::Left {
        // SAFETY: 1. is (1); 2. is (2).
        unsafe { environment::leave_preload(environment) };
    }
    // SAFETY: 1. is (1).
    let left_out = unsafe { names::left_out(&settings.only, arguments) };
    let end = End::of_this_process(&value);
    if left_out.is_some() {
        settings.moment = Moment::Never;
        settings.mapped = Mapped::AsItIs;
    }
    if settings.moment == Moment::Never && (left_out.is_none() || end == End::Silent) {
        return;
    }
    if end != End::Silent {
        ended::await_it();
    }
    // From here on it is known whose memory this is.
    let _ = palimpsest_fork::guard::is_borrowed();
    palimpsest_fork::guard::prepare();
    if let Err(error) = moment::prepare(settings.moment) {
        return complain(&format!("the signal of PALIMPSEST_FREEZE cannot be caught: {error}"));
    }
    let report = channel::noted(&settings.report, standard_error);
    if let (ReportTo::Descriptor(_), None) = (&settings.report, report) {
        let is_heir = Origin::of_this_process(&value) == Origin::Heir;
        if let Some(number) = channel::never_open(&settings.report, report).filter(|_| !is_heir) {
            return complain(&format!("PALIMPSEST_REPORT=fd:{number}: no such descriptor is open"));
        }
        settings.report = ReportTo::Nowhere;
    }
    let started = Started { settings, standard_error, report, filters: filters::at_the_start(&value), end, left_out };
    // SAFETY: 1. is (3).
    unsafe { started::set(started) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_before_the_environment() {
        let mut array = [std::ptr::null_mut::<c_char>(); 4];
        let start = array.as_mut_ptr();
        let at = |count, number: usize| are_arrays(count, start.cast_const().cast(), start.wrapping_add(number));
        assert!(at(1, 2) && at(0, 1));
        assert!(!at(1, 1) && !at(1, 0) && !at(-1, 0) && !at(c_int::MAX, 2));
        assert!(!are_arrays(0, std::ptr::null(), std::ptr::without_provenance_mut(8)));
    }
}
