//! Reads what C passes by pointers.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};
use std::slice;

use crate::result::Failure;

/// Returns the text that `name` points to; empty for null. What is no UTF-8 in it is replaced: names are for observers,
/// and those that a C++ program makes of its symbols may be any bytes.
///
/// # Safety
///
/// 1. `name` is null or a string with a zero at its end.
pub(crate) unsafe fn text<'a>(name: *const c_char) -> Cow<'a, str> {
    if name.is_null() {
        return Cow::Borrowed("");
    }
    // SAFETY: contract 1.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy()
}

/// Returns the `len` bytes at `bytes`.
///
/// # Safety
///
/// 1. `bytes` is null, or valid for reading `len` bytes as long as `'a`.
pub(crate) unsafe fn bytes<'a>(bytes: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if bytes.is_null() {
        return Err(Failure::invalid("the pointer to bytes is null"));
    }
    if isize::try_from(len).is_err() {
        return Err(Failure::invalid(format_args!("{len} bytes are more than there can be")));
    }
    // SAFETY: contract 1; not null, and not too long.
    Ok(unsafe { slice::from_raw_parts(bytes.cast(), len) })
}

/// Returns the `count` values at `first`; none if `count` is 0, whatever `first` is.
///
/// # Safety
///
/// 1. `first` is null, or valid for reading `count` values as long as `'a`.
pub(crate) unsafe fn elements<'a, T>(first: *const T, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Failure::invalid(format_args!("{first:p} is no pointer to {count} elements")));
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Failure::invalid(format_args!("{count} elements are more than there can be")));
    }
    // SAFETY: contract 1; aligned, not null, and not too many.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}
