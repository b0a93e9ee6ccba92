//! Where threads of tests run.

use palimpsest_sys::numa::policy::{affinity, set_affinity};

/// Keeps the calling thread, and those that it starts from now on, on one CPU: what a program leaves in its CPU's value
/// is there at its next run.
pub(crate) fn stay_on_one_cpu() {
    let allowed = affinity().expect("at most 1024 CPUs");
    set_affinity(&allowed[..1]).expect("it is allowed");
}
