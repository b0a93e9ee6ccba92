//! The calling thread's CPU, and the number of CPUs.

/// Returns the CPU that the calling thread was on a moment ago.
pub fn current_cpu() -> u32 {
    u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(0)
}

/// Returns the number of CPUs that the machine is configured with, including those that are switched off.
pub fn possible_cpus() -> u32 {
    // SAFETY: the call takes no pointer.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(count).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_one_of_the_cpus() {
        assert!(possible_cpus() >= 1);
        // Numbers may have gaps, but seldom do.
        assert!(current_cpu() < possible_cpus().max(4096));
    }
}
