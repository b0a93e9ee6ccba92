//! The programs that the suites place and call: generated, compiled, and checked against a model in Rust.

mod compile;
mod model;

pub(crate) use compile::{Compiled, compile_all};
