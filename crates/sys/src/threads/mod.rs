//! Other threads of this process: lists them, makes them drop what they fetched, and holds them still.

pub(crate) mod broadcast;
pub mod child;
pub(crate) mod core_sync;
mod cpu;
pub mod deputy;
mod futex;
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

/// Takes a lock for tests that call or hold every thread of this program: in a broadcast, a held thread does not
/// answer.
#[cfg(test)]
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
