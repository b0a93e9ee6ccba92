//! What the guest proves.

mod counts;
mod hooks;
mod kernel;
mod locality;
mod operations;
mod patching;
mod processes;
mod programs;
mod replicas;
mod stress;

/// Runs all checks on the first CPU, with the others at hand.
pub(crate) fn run() {
    kernel::run();
    replicas::run();
    patching::run();
    programs::run();
    hooks::run();
    processes::run();
    counts::run();
    operations::run();
    stress::run();
}
