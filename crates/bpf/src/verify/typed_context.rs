//! Contexts that are made of a type.

use super::{ContextAccess, Contract};
use crate::map::Plain;

impl Contract {
    /// Makes the contract of a program whose context is a `T`, and without helpers. [`layout!`](crate::layout!) tells
    /// programs where the members of `T` are; a loaded program is run with such contexts once it is
    /// [`Typed`](crate::Typed).
    pub fn of<T: Plain>(access: ContextAccess) -> Self {
        const { assert!(size_of::<T>() <= u32::MAX as usize, "contexts have less than 4 GiB") };
        Self::new().context(size_of::<T>() as u32, access)
    }
}
