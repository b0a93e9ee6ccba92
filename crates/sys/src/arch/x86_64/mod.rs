//! x86-64.

pub(super) mod icache;
pub(super) mod instructions;
