//! What the macros expand to. Not for direct use; may change in any version.

pub use super::section::FLAG_CALL as CALL;

use super::call::StaticCall;
use super::key::Key;

/// The type beside each key, which knows its first state.
#[derive(Debug)]
pub struct Starts<const ON: bool>;

impl<const IS_ON: bool> Starts<IS_ON> {
    /// Whether the key is on when the program starts.
    pub const ON: bool = IS_ON;
}

/// The type beside each static call, which knows its entry.
pub trait Entry {
    /// The function pointer's type.
    type Function;
    /// Returns the function pointer.
    fn entry() -> Self::Function;
}

/// Creates a key.
///
/// # Safety
///
/// 1. The key becomes the value of a static in the section `palimpsest_keys`.
pub const unsafe fn key(name: &'static str, is_on: bool) -> Key {
    Key::new(name, is_on)
}

/// Creates a static call that first leads to `first`.
///
/// # Safety
///
/// 1. `F` is the type of function pointers.
/// 2. `first` is a function of that type.
pub const unsafe fn call<F: Copy>(first: *const ()) -> StaticCall<F> {
    StaticCall::new(first)
}
