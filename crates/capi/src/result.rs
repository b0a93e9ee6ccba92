//! What functions return: a code, and a message for each thread.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CString, c_char, c_int};
use std::fmt;
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

/// Runs the body of a function of the C API, keeps its message for this thread, and stops panics.
///
/// The locks of the crates below guard state that a panic left half changed, and are not poisoned; single calls change
/// what the handle tables hold.
pub(crate) fn answer(work: impl FnOnce() -> Result<(), Failure>) -> palimpsest_result {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return PALIMPSEST_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Failure::new(PALIMPSEST_PANIC, format_args!("palimpsest panicked: {text}"))
        }
    };
    // A message has a zero byte only from a name that the caller gave.
    let text = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no message any more.
    let _ = MESSAGE.try_with(|message| message.replace(text));
    failure.code
}

/// Tells what went wrong in this thread's last failed call, in words, with values and the way out; an empty string
/// before the first. Valid until this thread's next call that fails. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of this interface: major, minor and patch, one byte each, from bit 16 down. Programs compiled
/// against the same major version (and, while that is 0, the same minor one) work with this library.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_version() -> u32 {
    const PARTS: [&str; 3] =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    PARTS.iter().fold(0, |version, part| version << 8 | part.parse::<u32>().unwrap_or(0))
}

/// Refuses a null pointer for a result before anything is done.
pub(crate) fn wanted<T>(out: *mut T) -> Result<*mut T, Failure> {
    if out.is_null() { Err(Failure::invalid("the pointer for the result is null")) } else { Ok(out) }
}

/// Sets `errno`, for functions that answer like the C library's.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the C library's errno of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: always valid for this thread.
    unsafe { errno.write(value) };
}
