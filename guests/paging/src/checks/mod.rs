//! What the guest proves.

mod counts;
mod kernel;
mod locality;
mod operations;
mod patching;
mod processes;
mod replicas;
mod stress;

/// Runs all checks on the first CPU, with the others at hand.
pub(crate) fn run() {
    kernel::run();
    replicas::run();
    patching::run();
    processes::run();
    counts::run();
    operations::run();
    stress::run();
}
