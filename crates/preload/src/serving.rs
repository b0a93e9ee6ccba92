//! Reads what the user asks for, and lets the object do it: at the start, or when a program wakes that sleeps.

use std::ffi::{c_char, c_int};
use std::ptr::NonNull;

use crate::channel::{self, Noted};
use crate::settings::{Heirs, Mapped, Moment, ReportTo, Settings};
use crate::started::{self, End, Origin, Started};
use crate::{dormant, ended, environment, filters, library, lookup, moment, names};

/// A program's arguments and environment.
pub(crate) struct Arrays {
    pub(crate) arguments: *const *const c_char,
    pub(crate) environment: *mut *mut c_char,
}

/// Reads the settings, and lets the object do what they say from here on.
///
/// # Safety
///
/// 1. `arrays` must be null or null-terminated arrays of C strings, those of the environment writable, and no other
///    thread may use the latter. Without them nobody is told apart by name, and the environment stays as it is.
/// 2. Nobody has called it before, or calls it at the same time.
#[unsafe(link_section = "palimpsest_start")]
pub(crate) unsafe fn serve<'a>(
    value: &impl Fn(&str) -> Option<&'a [u8]>,
    standard_error: Option<Noted>,
    arrays: Option<Arrays>,
) {
    let complain = |text: &str| {
        let line = format!("palimpsest: {text}; the program runs unfrozen\n");
        // Without standard error, nothing can be reported.
        let _ = standard_error.map(|descriptor| descriptor.write(line.as_bytes()));
    };
    let mut settings = match Settings::read(value) {
        Ok(settings) => settings,
        Err(error) => return complain(&error.to_string()),
    };
    let mut left_out = None;
    if let Some(Arrays { arguments, environment }) = arrays {
        if settings.heirs == Heirs::Left {
            // SAFETY: 1. and 2. are (1).
            unsafe { environment::leave_preload(environment) };
        }
        // SAFETY: 1. is (1).
        left_out = unsafe { names::left_out(&settings.only, arguments) };
    }
    let end = End::of_this_process(value);
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
    library::find();
    // From here on it is known whose memory this is.
    let _ = palimpsest_fork::guard::is_borrowed();
    palimpsest_fork::guard::prepare(|name| lookup::any(name).and_then(|found| NonNull::new(found.cast())));
    if let Err(error) = moment::prepare(settings.moment) {
        return complain(&format!("the signal of PALIMPSEST_FREEZE cannot be caught: {error}"));
    }
    let report = channel::noted(&settings.report, standard_error);
    if let (ReportTo::Descriptor(_), None) = (&settings.report, report) {
        let is_heir = Origin::of_this_process(value) == Origin::Heir;
        if let Some(number) = channel::never_open(&settings.report, report).filter(|_| !is_heir) {
            return complain(&format!("PALIMPSEST_REPORT=fd:{number}: no such descriptor is open"));
        }
        settings.report = ReportTo::Nowhere;
    }
    let started = Started { settings, standard_error, report, filters: filters::at_the_start(value), end, left_out };
    // SAFETY: 1. is (2).
    unsafe { started::set(started) };
}

/// Whether this object freezes or gathers the process, or tells what that would do, as far as its settings go: programs
/// that can do so by themselves ask, as the package for Python does. Returns 0 if it leaves the process alone.
/// Async-signal-safe.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn palimpsest_serves() -> c_int {
    c_int::from(dormant::is() || started::get().is_some_and(|started| started.settings.moment != Moment::Never))
}
