//! The programs that the suites place and call: generated, compiled, and checked against a model in Rust; and those of
//! the kernel's stress tool.

mod compile;
mod model;
mod printer;

pub(crate) use compile::{Compiled, compile_all};
pub(crate) use printer::{Printer, compile_printers};
