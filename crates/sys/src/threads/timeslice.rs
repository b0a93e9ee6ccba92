//! How soon the scheduler lets a thread run: whoever asks for a short time slice gets it soon.
//!
//! On a busy machine a thread that is made, or wakes, waits until whoever runs has used up a time slice: several
//! milliseconds. Since Linux 6.12 a thread may ask for a shorter one. It then interrupts who has a longer one, and gets
//! no larger share for that. Children inherit it.
//!
//! # What is lost
//!
//! The kernel takes a thread's nice value and its time slice in one call. So if another thread or program gives it a
//! nice value between the two calls of a moment, that is lost. If it gives it a policy of real time meanwhile, the
//! thread has the short time slice once it is back under `SCHED_OTHER`.
//!
//! Sources: `sched_setattr(2)`; `__setparam_fair` in `kernel/sched/syscalls.c`; `PREEMPT_SHORT` in
//! `kernel/sched/features.h`.

use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arch::system_call;
use crate::seccomp::{Part, found_deadly};

/// The shortest time slice that a thread may ask for, in nanoseconds.
const SHORTEST: u64 = 100_000;

/// How often to give a time slice back if the nice value is another one by then.
const MOST_TRIES: u32 = 3;

/// Whether it was refused once: whoever refuses may tell an administrator each time. Relaxed: publishes nothing.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

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
        if IS_REFUSED.load(Ordering::Relaxed) || found_deadly().first_of(&[Part::Promptness]).is_some() {
            return None;
        }
        let own = attributes();
        if own.is_some_and(|own| own.sched_policy != libc::SCHED_OTHER as u32) {
            return None;
        }
        match own.filter(|own| own.sched_runtime > 0 && ask_for(*own, SHORTEST)) {
            Some(own) => Some(Self { before: own.sched_runtime }),
            None => {
                IS_REFUSED.store(true, Ordering::Relaxed);
                None
            }
        }
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

/// Gives the calling thread this time slice, in nanoseconds, unless it has a policy without any by now. If it is the
/// default, the thread has the default again, whatever that becomes. Makes bare system calls only.
pub(super) fn give_back(nanos: u64) {
    const DEFAULT: u64 = 0;
    let fair = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(|policy| policy as u32);
    for asked in [DEFAULT, nanos] {
        for _ in 0..MOST_TRIES {
            let Some(own) = attributes().filter(|own| fair.contains(&own.sched_policy)) else { return };
            // Refused if somebody has given it a higher nice value meanwhile.
            if own.sched_runtime == nanos || ask_for(own, asked) {
                break;
            }
        }
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

    /// Runs `test` in a thread that may have a short time slice, with the attributes that it has.
    fn in_a_thread(test: impl FnOnce(libc::sched_attr) + Send + 'static) {
        let thread = || match attributes().filter(|_| Short::begin().is_some()) {
            Some(own) => test(own),
            None => println!("skipped: needs Linux 6.12, SCHED_OTHER, and leave to ask for a time slice"),
        };
        std::thread::spawn(thread).join().expect("no panic");
    }

    /// Returns the time slice, nice value and policy.
    fn told(own: libc::sched_attr) -> (u64, i32, u32) {
        (own.sched_runtime, own.sched_nice, own.sched_policy)
    }

    /// Fails on: a time slice that stays short, or that the thread has not asked for; a nice value that is lost with
    /// it.
    #[test]
    fn a_time_slice_is_short_until_it_is_given_back() {
        in_a_thread(|own| {
            let nice = 19.min(own.sched_nice + 1);
            // SAFETY: takes numbers; concerns this thread only.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }, 0);
            for before in [own.sched_runtime, 3_000_000] {
                give_back(before);
                let short = Short::begin().expect("as before");
                assert_eq!((short.before(), timeslice_of(0)), (before, Some(SHORTEST)));
                let child = std::thread::spawn(|| timeslice_of(0)).join().expect("no panic");
                assert_eq!(child, Some(SHORTEST), "children inherit it");
                drop(short);
                assert_eq!(attributes().map(told), Some((before, nice, own.sched_policy)));
            }
        });
    }

    /// Fails on: a thread that is to let all others go first, and interrupts them; a policy set meanwhile that is lost
    /// when the time slice is given back, or keeps it short.
    #[test]
    fn other_policies_are_left_alone() {
        in_a_thread(|own| {
            let short = Short::begin().expect("as before");
            let none = libc::sched_param { sched_priority: 0 };
            // As another thread would. SAFETY: the kernel reads a local.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const none) }, 0);
            assert_eq!(timeslice_of(0), Some(SHORTEST));
            drop(short);
            let expected = Some((own.sched_runtime, own.sched_nice, libc::SCHED_BATCH as u32));
            assert_eq!(attributes().map(told), expected);
            assert!(Short::begin().is_none());
            assert_eq!(attributes().map(told), expected);
        });
    }
}
