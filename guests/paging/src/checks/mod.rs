//! What the guest proves.

mod base;
mod breakpoints;
mod counts;
mod fetches;
mod hidden;
mod hooks;
mod kernel;
mod locality;
mod modules;
mod nested;
mod operations;
mod patching;
mod processes;
mod programs;
mod replicas;
mod stress;

use crate::asked::{self, Asked};

/// Runs all checks, or those of the kernel's own image, on the first CPU; the others take part.
pub(crate) fn run() {
    base::run();
    kernel::run();
    replicas::run();
    patching::run();
    breakpoints::run();
    hidden::run();
    if asked::word(Asked::Brief) != 0 {
        return;
    }
    programs::run();
    nested::run();
    hooks::run();
    modules::run();
    processes::run();
    counts::run();
    operations::run();
    fetches::run();
    stress::run();
}
