//! What the guest proves.

mod breakpoints;
mod counts;
mod fetches;
mod hidden;
mod hooks;
mod kernel;
mod locality;
mod operations;
mod patching;
mod processes;
mod programs;
mod replicas;
mod stress;

/// Runs all checks, on the first CPU; the others take part.
pub(crate) fn run() {
    kernel::run();
    replicas::run();
    patching::run();
    breakpoints::run();
    programs::run();
    hooks::run();
    processes::run();
    hidden::run();
    counts::run();
    operations::run();
    fetches::run();
    stress::run();
}
