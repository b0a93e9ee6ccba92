//! The processor time of ended children.

use std::time::Duration;

/// Returns the processor time, of user and of kernel, that this process's children had used when it waited for their
/// end, with all their threads, and their own children for which they had waited.
pub(crate) fn processor_time_of_ended_children() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes a structure of this type.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    debug_assert_eq!(failed, 0, "always told");
    // SAFETY: integers, zero or written.
    let usage = unsafe { usage.assume_init() };
    let duration = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.cast_unsigned()) + Duration::from_micros(time.tv_usec.cast_unsigned())
    };
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Other tests have children too, so only more can be seen.
    #[test]
    fn what_a_child_has_used_is_told_once_it_has_ended() {
        let before = processor_time_of_ended_children();
        while processor_time_of_ended_children() <= before {
            let mut child = Command::new("sh").args(["-c", ":"]).spawn().expect("there is a shell");
            child.wait().expect("a child");
        }
    }
}
