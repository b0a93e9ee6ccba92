//! AArch64.

pub(crate) mod entry;
