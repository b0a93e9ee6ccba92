//! Other threads of this process: who they are, making them drop what they fetched, and holding them still.

pub(crate) mod broadcast;
pub mod child;
pub(crate) mod core_sync;
mod cpu;
pub mod hold;
pub(crate) mod list;
pub mod own;
pub mod quiet;
pub mod rseq;
mod signal;
pub(crate) mod sync_error;
pub(crate) mod task;
pub(crate) mod tracer;

pub use cpu::{current_cpu, possible_cpus};

/// Held by tests that call or hold every thread of this program: to a broadcast a thread that is held is one that does
/// not answer.
#[cfg(test)]
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
