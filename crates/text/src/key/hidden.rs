//! What the macros expand to. Not for direct use: nothing here is covered by the promises of versions.

pub use super::section::FLAG_CALL as CALL;

use super::call::StaticCall;
use super::key::Key;

/// The type beside each key, which knows the first state.
#[derive(Debug)]
pub struct Starts<const ON: bool>;

impl<const IS_ON: bool> Starts<IS_ON> {
    /// Whether the key is on when the program starts.
    pub const ON: bool = IS_ON;
}

/// The type beside each static call, which knows the entry.
pub trait Entry {
    /// The function pointer's type.
    type Function;
    /// The function pointer.
    fn entry() -> Self::Function;
}

/// A key.
///
/// # Safety
///
/// 1. It becomes the value of a static in the section `palimpsest_keys`.
pub const unsafe fn key(name: &'static str, is_on: bool) -> Key {
    Key::new(name, is_on)
}

/// A static call that first leads to `first`.
///
/// # Safety
///
/// 1. `F` is the type of function pointers.
/// 2. `first` is a function of that type.
pub const unsafe fn call<F: Copy>(first: *const ()) -> StaticCall<F> {
    StaticCall::new(first)
}
