//! Other threads of this process: who they are, making them drop what they fetched, and holding them still.

pub(crate) mod broadcast;
pub mod child;
pub(crate) mod core_sync;
mod cpu;
pub mod hold;
pub(crate) mod list;
pub mod own;
mod signal;
pub(crate) mod task;
pub(crate) mod tracer;

pub use cpu::{current_cpu, possible_cpus};
