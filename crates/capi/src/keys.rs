//! Static keys: branches compiled into the code of a C program, too (`PALIMPSEST_KEY` and `palimpsest_branch_unlikely`
//! in the header).

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use palimpsest_text::key::{Key, KeyRef, Keys, SetError, State, SwitchError};

use crate::poke::code_of;
use crate::result::palimpsest_result::{
    self, PALIMPSEST_BUSY, PALIMPSEST_INVALID, PALIMPSEST_NOT_FOUND, PALIMPSEST_PARTLY, PALIMPSEST_SYSTEM,
};
use crate::result::{Failure, answer, optional, wanted};

/// A static key. The header makes them; its fields are private.
#[repr(C, align(64))]
#[expect(missing_debug_implementations, reason = "nobody has a value")]
pub struct palimpsest_key {
    _fields: [u64; 8],
}

const _: () = assert!(size_of::<palimpsest_key>() == size_of::<Key>());

fn switch_failure(error: &SwitchError) -> Failure {
    let code = match error {
        SwitchError::NotEnabled { .. } | SwitchError::EnabledTooOften { .. } => PALIMPSEST_INVALID,
        SwitchError::Reentered { .. } => PALIMPSEST_BUSY,
        SwitchError::Poke { source, .. } if code_of(source) == PALIMPSEST_PARTLY => PALIMPSEST_PARTLY,
        _ => PALIMPSEST_SYSTEM,
    };
    Failure::of(code, error)
}

fn state(is_on: c_int) -> State {
    if is_on == 0 { State::Off } else { State::On }
}

/// Finds the key at `key` among all keys: a wrong pointer is an error.
fn found(key: *const palimpsest_key) -> Result<KeyRef, Failure> {
    let is_it = |found: &KeyRef| ptr::addr_eq(&raw const **found, key);
    let nothing = || Failure::new(PALIMPSEST_NOT_FOUND, format_args!("no key of a loaded object is at {key:p}"));
    Keys::iter().find(is_it).ok_or_else(nothing)
}

/// Turns a key's switch: on unless `is_on` is 0. When it returns, every pass through a branch that begins later sees
/// the new state.
///
/// For all functions that switch keys: after `PALIMPSEST_PARTLY` the message says what is missing. If some branches
/// could not be written, the key counts as it was, and the same call again puts them right. If only cores could not be
/// synchronised, the key is switched, and some core may see the old state for a while: do not repeat the call.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_key_set(key: *const palimpsest_key, is_on: c_int) -> palimpsest_result {
    answer(|| found(key)?.set(state(is_on)).map(drop).map_err(|error| switch_failure(&error)))
}

/// Keeps a key on, whatever its switch says, until `palimpsest_key_disable`. Calls are counted, also one that returns
/// `PALIMPSEST_PARTLY` because cores could not be synchronised.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_key_enable(key: *const palimpsest_key) -> palimpsest_result {
    answer(|| found(key)?.enable().map(drop).map_err(|error| switch_failure(&error)))
}

/// Takes back one `palimpsest_key_enable`.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_key_disable(key: *const palimpsest_key) -> palimpsest_result {
    answer(|| found(key)?.disable().map(drop).map_err(|error| switch_failure(&error)))
}

/// Tells whether a key is on: 1 or 0.
///
/// # Safety
///
/// 1. `is_on` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_key_is_on(key: *const palimpsest_key, is_on: *mut c_int) -> palimpsest_result {
    answer(|| {
        let is_on = wanted(is_on)?;
        let state = found(key)?.is_on();
        // SAFETY: contract 1, and not null.
        unsafe { is_on.write(c_int::from(state)) };
        Ok(())
    })
}

/// Turns the switches of all keys whose names match `pattern` (`*` and `?` as in a shell) in one batch, and tells how
/// many changed. `count` may be null.
///
/// # Safety
///
/// 1. `pattern` is null or a string with a zero at its end.
/// 2. `count` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_keys_set(
    pattern: *const c_char,
    is_on: c_int,
    count: *mut usize,
) -> palimpsest_result {
    answer(|| {
        if pattern.is_null() {
            return Err(Failure::invalid("the pattern is null"));
        }
        let count = optional(count)?;
        // SAFETY: contract 1.
        let pattern = unsafe { CStr::from_ptr(pattern) };
        let pattern = pattern.to_str().map_err(|error| Failure::invalid(format_args!("the pattern: {error}")))?;
        let done = Keys::set(pattern, state(is_on)).map_err(|error| match &error {
            SetError::Switch(switch) => switch_failure(switch),
            SetError::NoKey { .. } => Failure::of(PALIMPSEST_NOT_FOUND, &error),
            SetError::Pattern(_) => Failure::of(PALIMPSEST_INVALID, &error),
        })?;
        if !count.is_null() {
            // SAFETY: contract 2, and aligned.
            unsafe { count.write(done.keys) };
        }
        Ok(())
    })
}
