//! How soon the scheduler lets a thread run: whoever asks for a short time slice gets it soon.
//!
//! On a busy machine a thread that is made, or wakes, waits until whoever runs has used up a time slice: several
//! milliseconds. Since Linux 6.12 a thread may ask for a shorter one. It then interrupts who has a longer one, and gets
//! no larger share for that. Children inherit it.
//!
//! Sources: `sched_setattr(2)`; `__setparam_fair` in `kernel/sched/syscalls.c`; `PREEMPT_SHORT` in
//! `kernel/sched/features.h`.

use std::mem::{MaybeUninit, size_of};

use crate::arch::system_call;
use crate::seccomp::{Part, found_deadly};

/// The shortest time slice that a thread may ask for, in nanoseconds.
const SHORTEST: u64 = 100_000;

/// A short time slice of the calling thread, until this is dropped.
#[derive(Debug)]
pub(super) struct Short {
    /// The time slice before, in nanoseconds.
    before: u64,
}

impl Short {
    /// Asks for the shortest time slice. Returns `None` where that is not to be had, and nothing has changed: before
    /// Linux 6.12, under a filter, or if the thread's policy has no time slices, or lets all others go first.
    pub(super) fn begin() -> Option<Self> {
        if found_deadly().first_of(&[Part::Promptness]).is_some() {
            return None;
        }
        let own = attributes()?;
        let before = own.sched_runtime;
        (own.sched_policy == libc::SCHED_OTHER as u32 && before > 0 && ask_for(own, SHORTEST))
            .then_some(Self { before })
    }

    /// Returns the time slice before, in nanoseconds.
    pub(super) fn before(&self) -> u64 {
        self.before
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        give_back(self.before);
    }
}

/// Gives the calling thread this time slice, in nanoseconds, unless it has a policy without any by now. Makes bare
/// system calls only.
pub(super) fn give_back(nanos: u64) {
    let fair = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(|policy| policy as u32);
    if let Some(own) = attributes().filter(|own| fair.contains(&own.sched_policy)) {
        ask_for(own, nanos);
    }
}

/// Asks for a time slice of so many nanoseconds for the calling thread, which has these attributes. Returns whether it
/// has got it.
fn ask_for(mut own: libc::sched_attr, nanos: u64) -> bool {
    /// Leaves the policy alone, which another thread may set meanwhile (`SCHED_FLAG_KEEP_POLICY` in
    /// `include/uapi/linux/sched.h`).
    const KEEP_POLICY: u64 = 0x08;
    own.sched_runtime = nanos;
    own.sched_flags |= KEEP_POLICY;
    // SAFETY: the kernel reads the attributes, which outlive the call.
    let answer = unsafe { system_call(libc::SYS_sched_setattr, [0, (&raw const own).addr(), 0]) };
    answer == 0
}

/// Returns the calling thread's attributes. Before Linux 6.12 its time slice is 0.
fn attributes() -> Option<libc::sched_attr> {
    let mut own = MaybeUninit::<libc::sched_attr>::zeroed();
    let (place, size) = (own.as_mut_ptr().expose_provenance(), size_of::<libc::sched_attr>());
    // SAFETY: the kernel writes no more than `size` bytes, to a local.
    let answer = unsafe { system_call(libc::SYS_sched_getattr, [0, place, size, 0]) };
    // SAFETY: numbers only, so that zeros are valid, and whatever the kernel has written.
    (answer == 0).then(|| unsafe { own.assume_init() })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the time slice of a process, if the kernel tells.
    pub(in super::super) fn timeslice_of(process: i32) -> Option<u64> {
        let mut found = MaybeUninit::<libc::sched_attr>::zeroed();
        let (place, size) = (found.as_mut_ptr(), size_of::<libc::sched_attr>());
        // SAFETY: the kernel writes no more than `size` bytes, to a local.
        let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, process, place, size, 0) };
        // SAFETY: numbers only.
        (answer == 0).then(|| unsafe { found.assume_init() }.sched_runtime).filter(|slice| *slice > 0)
    }

    /// Fails on: a time slice that stays short; a nice value or another attribute that is lost with it.
    #[test]
    fn a_time_slice_is_short_until_it_is_given_back() {
        let thread = || {
            let Some(before) = timeslice_of(0) else {
                return println!("skipped: needs Linux 6.12, which tells time slices");
            };
            // SAFETY: takes numbers; concerns this thread only.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) }, 0);
            let short = Short::begin().expect("nothing refuses it");
            assert_eq!((short.before(), timeslice_of(0)), (before, Some(SHORTEST)));
            let child = std::thread::spawn(|| timeslice_of(0)).join().expect("no panic");
            assert_eq!(child, Some(SHORTEST), "children inherit it");
            drop(short);
            let after = attributes().expect("told");
            assert_eq!((after.sched_runtime, after.sched_nice, after.sched_policy), (before, 5, 0));
        };
        std::thread::spawn(thread).join().expect("no panic");
    }

    /// Fails on: a thread that is to let all others go first, and interrupts them; a policy set meanwhile that is lost
    /// when the time slice is given back, or keeps it short.
    #[test]
    fn other_policies_are_left_alone() {
        let thread = || {
            let (before, short) = (timeslice_of(0), Short::begin());
            let policy = libc::SCHED_BATCH as u32;
            // As another thread would.
            let own = attributes().expect("told");
            let own = libc::sched_attr { sched_policy: policy, ..own };
            // SAFETY: the kernel reads a local.
            assert_eq!(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const own, 0) }, 0);
            drop(short);
            let now = || attributes().map(|own| (own.sched_policy, Some(own.sched_runtime).filter(|slice| *slice > 0)));
            assert_eq!(now(), Some((policy, before)));
            assert!(Short::begin().is_none());
            assert_eq!(now(), Some((policy, before)));
        };
        std::thread::spawn(thread).join().expect("no panic");
    }
}
