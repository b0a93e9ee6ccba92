//! SIGTRAP with a handler that does nothing: what serving a trap costs.

use std::io;
use std::mem;
use std::ptr;

use super::sites::Trapping;
use crate::PlaceError;

/// Gives `measure` a function that runs through all traps with an empty handler in place, and restores the old action.
///
/// Nobody else may have traps meanwhile, and no batch may begin.
pub(crate) fn with_empty_trap_handler<R>(
    trapping: &Trapping,
    measure: impl FnOnce(&dyn Fn() -> u64) -> R,
) -> Result<R, PlaceError> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut empty: libc::sigaction = unsafe { mem::zeroed() };
    empty.sa_sigaction = nothing as extern "C" fn(_, _, _) as usize;
    // As Palimpsest's own.
    empty.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
    let before = set(libc::SIGTRAP, &empty)?;
    let result = measure(&|| trapping.run());
    set(libc::SIGTRAP, &before)?;
    Ok(result)
}

extern "C" fn nothing(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}

/// Sets a signal's action, whose handler is async-signal-safe. Returns the old one.
pub(super) fn set(signal: i32, action: &libc::sigaction) -> Result<libc::sigaction, PlaceError> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut before: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: both are valid `sigaction`s, and handlers given to this function are async-signal-safe.
    let answer = unsafe { libc::sigaction(signal, ptr::from_ref(action), &mut before) };
    if answer == 0 { Ok(before) } else { Err(PlaceError::Signal { signal, source: io::Error::last_os_error() }) }
}
