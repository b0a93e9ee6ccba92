//! Short names for tests of one thing each, and machines that make mistakes on purpose.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

pub(crate) mod mutant;
pub(crate) mod scene;
