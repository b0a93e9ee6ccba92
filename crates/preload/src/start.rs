//! Runs before the program's `main`: looks up the real functions and reads the settings, once.

use std::ffi::{c_char, c_int};
use std::panic;

use palimpsest_sys::in_secure_execution;
use palimpsest_sys::proc::status::Status;

use crate::channel::Noted;
use crate::settings::{Heirs, Moment, ReportTo, Settings};
use crate::started::{self, End, Started};
use crate::{
    confine, environment, execute, fork, handed_over, local_text, memory, moment, names, protection, waiting, waits,
};

/// The dynamic linker calls this with the program's arguments and environment, as glibc does for all of `.init_array`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = start;

#[cfg_attr(test, expect(dead_code, reason = "a test must not start the object in its own process"))]
extern "C" fn start(_count: c_int, arguments: *const *const c_char, environment: *mut *mut c_char) {
    // A program with more rights than its caller must not obey the caller's environment.
    if in_secure_execution() {
        return;
    }
    // A panic here would end the program.
    let _ = panic::catch_unwind(|| {
        // The message of a panic would go to standard error, past every care for the program's descriptors.
        panic::set_hook(Box::new(|_| {}));
        fork::resolve();
        memory::resolve();
        protection::resolve();
        confine::resolve();
        execute::resolve();
        waiting::resolve();
        waits::note_stack();
        begin(arguments, environment);
    });
}

fn begin(arguments: *const *const c_char, environment: *mut *mut c_char) {
    // SAFETY: 1. glibc passes the array that it got from the kernel, which is writable; 2. as below, before `main`.
    unsafe { handed_over::give_up(environment) };
    let standard_error = Noted::now(libc::STDERR_FILENO);
    local_text::begin(standard_error);
    let complain = |text: &str| {
        let line = format!("palimpsest: {text}; the program runs unfrozen\n");
        // Without standard error, nothing can be reported.
        let _ = standard_error.map(|descriptor| descriptor.write(line.as_bytes()));
    };
    let mut settings = match Settings::read(&|name| std::env::var_os(name)) {
        Ok(settings) => settings,
        Err(error) => return complain(&error.to_string()),
    };
    if settings.heirs == Heirs::Left {
        // SAFETY: 1. glibc passes the array that it got from the kernel, which is writable; 2. this is before `main`,
        // and a library that starts threads in its constructor and lets them read the environment would race with
        // `setenv` anyway.
        unsafe { environment::leave_preload(environment) };
    }
    // SAFETY: 1. glibc passes the program's arguments as the kernel laid them out.
    let left_out = unsafe { names::left_out(&settings.only, arguments) };
    let end = End::of_this_process();
    if left_out.is_some() {
        settings.moment = Moment::Never;
    }
    if settings.moment == Moment::Never && (left_out.is_none() || end == End::Silent) {
        return;
    }
    // From here on it is known whose memory this is.
    let _ = palimpsest_fork::guard::is_borrowed();
    palimpsest_fork::guard::prepare();
    if let Err(error) = moment::prepare(settings.moment) {
        return complain(&format!("the signal of PALIMPSEST_FREEZE cannot be caught: {error}"));
    }
    let report = match &settings.report {
        ReportTo::Descriptor(number) => {
            let noted = Noted::now(*number);
            if noted.is_none() {
                return complain(&format!("PALIMPSEST_REPORT=fd:{number}: no such descriptor is open"));
            }
            noted
        }
        ReportTo::StandardError => standard_error,
        ReportTo::Nowhere | ReportTo::File(_) => None,
    };
    let filters = Status::of_this_thread().ok().and_then(|status| status.seccomp_filters);
    started::set(Started { settings, standard_error, report, filters, end, left_out });
}
