//! What can be copied to other nodes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Data that can be copied byte by byte and means the same everywhere: numbers, arrays and slices of them, and
/// structures of them that derive the four traits of the crate `zerocopy`. No pointers, no padding.
pub trait Plain: FromBytes + IntoBytes + Immutable + KnownLayout {}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + ?Sized> Plain for T {}
