//! What functions return: a code, and a message for each thread.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use palimpsest_sys::Causes;

/// What became of a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(non_camel_case_types, reason = "the names that C sees")]
pub enum palimpsest_result {
    /// Done.
    PALIMPSEST_OK = 0,
    /// An argument is null, or has a value that the function does not accept.
    PALIMPSEST_INVALID = 1,
    /// The handle names nothing: it was released, or was never handed out.
    PALIMPSEST_STALE = 2,
    /// There is no room left: memory, addresses, descriptors or mappings.
    PALIMPSEST_NO_ROOM = 3,
    /// It would not be safe here, or the program asked to refuse it.
    PALIMPSEST_REFUSED = 4,
    /// The kernel refused.
    PALIMPSEST_SYSTEM = 5,
    /// Another thread is using it.
    PALIMPSEST_BUSY = 6,
    /// Nothing is there.
    PALIMPSEST_NOT_FOUND = 7,
    /// The bytes to be changed are not those that the caller named.
    PALIMPSEST_CHANGED = 8,
    /// What the handle names belongs to the process from which this one was forked.
    PALIMPSEST_FORKED = 9,
    /// A defect of Palimpsest: it panicked. What the call was doing may be half done.
    PALIMPSEST_PANIC = 10,
    /// Code is changed, but not all of it, or some core may still run the old code for a while.
    PALIMPSEST_PARTLY = 11,
}

use palimpsest_result::{PALIMPSEST_INVALID, PALIMPSEST_OK, PALIMPSEST_PANIC};

/// Why a call failed, on its way to C.
#[derive(Debug)]
pub(crate) struct Failure {
    code: palimpsest_result,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: palimpsest_result, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self::new(PALIMPSEST_INVALID, message)
    }

    pub(crate) fn code(&self) -> palimpsest_result {
        self.code
    }

    /// The error with its causes.
    pub(crate) fn of(code: palimpsest_result, error: &(dyn Error + 'static)) -> Self {
        Self::new(code, Causes(error))
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Calls `work`, and stops a panic.
///
/// The locks of the crates below guard state that a panic left half changed, and are not poisoned; single calls change
/// what the handle tables hold.
fn caught<R>(work: impl FnOnce() -> R) -> Result<R, Failure> {
    let guarded = || {
        #[cfg(feature = "fuzzing")]
        crate::fuzzing::panics::when_armed();
        work()
    };
    catch_unwind(AssertUnwindSafe(guarded)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let failure = Failure::new(PALIMPSEST_PANIC, format_args!("palimpsest panicked: {text}"));
        // What a panic carries may panic when it is dropped, outside of the guard.
        mem::forget(panic);
        failure
    })
}

/// Keeps the message of `failure` for this thread, and returns its code.
fn told(failure: Failure) -> palimpsest_result {
    // A message has a zero byte only from a name that the caller gave.
    let text = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no message any more. A signal handler keeps none if it interrupted this very line.
    let _ = MESSAGE.try_with(|message| {
        let mut message = message.try_borrow_mut().ok()?;
        Some(mem::replace(&mut *message, text))
    });
    failure.code
}

/// Runs the body of a function that returns a code: keeps its message for this thread, and stops panics.
pub(crate) fn answer(work: impl FnOnce() -> Result<(), Failure>) -> palimpsest_result {
    match caught(work).and_then(|done| done) {
        Ok(()) => PALIMPSEST_OK,
        Err(failure) => told(failure),
    }
}

/// Runs the body of a function that answers like the C library's. After a panic it keeps a message, and returns `then`
/// with `errno` `ENOTRECOVERABLE`.
pub(crate) fn like_libc<R>(then: R, work: impl FnOnce() -> R) -> R {
    caught(work).unwrap_or_else(|failure| {
        told(failure);
        set_errno(libc::ENOTRECOVERABLE);
        then
    })
}

/// Runs the body of a function for signal handlers: stops panics, and leaves no message.
pub(crate) fn at_once(work: impl FnOnce() -> palimpsest_result) -> palimpsest_result {
    caught(work).unwrap_or_else(|failure| failure.code)
}

/// Tells what went wrong in this thread's last failed call, in words, with values and the way out; an empty string
/// before the first. Valid until this thread's next call that fails. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_error_message() -> *const c_char {
    // Cannot panic: a handler that interrupts `told` finds the message taken.
    let found = MESSAGE.try_with(|message| Some(message.try_borrow().ok()?.as_ptr()));
    found.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Returns the version of this interface: major, minor and patch, one byte each, from bit 16 down, as
/// `PALIMPSEST_VERSION` was when the program was compiled. Programs compiled against the same major version (and, while
/// that is 0, the same minor one) work with this library.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_version() -> u32 {
    // Cannot panic: a constant.
    const {
        part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
            | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
            | part(env!("CARGO_PKG_VERSION_PATCH"))
    }
}

/// Reads a part of a version, of one byte.
const fn part(text: &str) -> u32 {
    match u8::from_str_radix(text, 10) {
        Ok(number) => number as u32,
        Err(_) => panic!("a part of the version is no number below 256"),
    }
}

/// Refuses a pointer for a result that is null or misaligned, before anything is done.
pub(crate) fn wanted<T>(out: *mut T) -> Result<*mut T, Failure> {
    if out.is_null() { Err(Failure::invalid("the pointer for the result is null")) } else { optional(out) }
}

/// As [`wanted`], of a pointer that may be null.
pub(crate) fn optional<T>(out: *mut T) -> Result<*mut T, Failure> {
    if out.is_aligned() {
        return Ok(out);
    }
    let align = align_of::<T>();
    Err(Failure::invalid(format_args!("the pointer for the result, {out:p}, is no multiple of {align}")))
}

/// Sets `errno`, for functions that answer like the C library's.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the C library's errno of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: always valid for this thread.
    unsafe { errno.write(value) };
}
