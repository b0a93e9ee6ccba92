//! A batch held open: a signal stops the thread that applies it while all its sites are traps.
//!
//! The signal comes at a random moment. Running through the sites shows whether it was the right one: if each of them
//! trapped, the batch is somewhere between its first and its last round, and stays there until the thread goes on. If
//! not, the thread goes on at once, and the next attempt begins.
//!
//! While the thread is stopped, it may hold locks (the allocator's, or that of batches). So nobody may allocate or
//! apply batches until it goes on.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palimpsest_text::poke::{Batch, traps_hit};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::thread::futex;

use super::sites::{Sites, Switch};
use super::trap_action::set;
use crate::PlaceError;

/// Ignored by default, so that a late one does nothing.
const SIGNAL: i32 = libc::SIGURG;

/// Attempts before giving up. About one in ten succeeds.
const ATTEMPTS: usize = 5000;

/// 1 while the thread must stay in the handler.
static HOLD: AtomicU32 = AtomicU32::new(0);

/// Tests that cause traps take turns with those that count them.
#[cfg(test)]
pub(crate) static COUNTING_TRAPS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Whether it is there.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Toggles all of `sites` in a thread of its own, stops that in the middle, and then calls `work`.
///
/// `work` may run through the sites, and must neither allocate nor apply batches: see the module's documentation. One
/// call at a time.
pub(crate) fn while_held<R>(sites: &Sites, seed: u64, work: impl FnOnce() -> R) -> Result<R, PlaceError> {
    let on = sites.batch(Switch::On, 0..sites.count())?;
    let off = sites.batch(Switch::Off, 0..sites.count())?;
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = stop as extern "C" fn(i32) as usize;
    action.sa_flags = libc::SA_RESTART;
    let before = set(SIGNAL, &action)?;
    let toggler = Toggler { thread: AtomicU64::new(0), done: AtomicBool::new(false), ended: AtomicBool::new(false) };
    let result = thread::scope(|scope| {
        let toggling = scope.spawn(|| toggler.toggle(&on, &off));
        let worked = toggler.hold(sites, seed, work);
        // Relaxed, here and in `toggle`: it publishes nothing.
        toggler.done.store(true, Ordering::Relaxed);
        let toggled = toggling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        toggled.and(worked)
    });
    set(SIGNAL, &before)?;
    result
}

/// The thread that toggles, as the other sees it.
struct Toggler {
    /// Its `pthread_t`; 0 before it runs.
    thread: AtomicU64,
    /// Set by the other thread: no more is wanted.
    done: AtomicBool,
    /// Set by this thread: it toggles no more.
    ended: AtomicBool,
}

impl Toggler {
    /// Toggles until it is done; then all sites are off, unless an error is returned.
    fn toggle(&self, on: &Batch<'_>, off: &Batch<'_>) -> Result<(), PlaceError> {
        // SAFETY: has no conditions.
        let own = unsafe { libc::pthread_self() };
        // Relaxed: only the value matters; the handler was installed before this thread was made.
        self.thread.store(own, Ordering::Relaxed);
        let toggle_once = || {
            Sites::apply(on)?;
            Sites::apply(off)?;
            Ok(())
        };
        let mut result = Ok(());
        while result.is_ok() && !self.done.load(Ordering::Relaxed) {
            result = toggle_once();
        }
        // Relaxed: only ends a wait.
        self.ended.store(true, Ordering::Relaxed);
        // The other thread may be about to send a signal, for which this one has to exist.
        while !self.done.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        result
    }

    fn hold<R>(&self, sites: &Sites, seed: u64, work: impl FnOnce() -> R) -> Result<R, PlaceError> {
        let mut random = SmallRng::seed_from_u64(seed);
        let count = sites.count();
        let thread = self.wait_for_thread();
        for _ in 0..ATTEMPTS {
            wait(Duration::from_nanos(random.random_range(0..100_000)));
            HOLD.store(1, Ordering::SeqCst);
            // SAFETY: the thread lives until `done` is set, which happens after this function has returned.
            let answer = unsafe { libc::pthread_kill(thread, SIGNAL) };
            if answer != 0 {
                let source = std::io::Error::from_raw_os_error(answer);
                return Err(PlaceError::Signal { signal: SIGNAL, source });
            }
            // SeqCst, here, in `Stopped` and in `stop`: each of the two threads sees the other's stores in order.
            while !STOPPED.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let stopped = Stopped;
            let hits = traps_hit();
            sites.run();
            if traps_hit() - hits == count as u64 {
                return Ok(work());
            }
            drop(stopped);
            // Relaxed: see `toggle`.
            if self.ended.load(Ordering::Relaxed) {
                break;
            }
        }
        Err(PlaceError::NotHeld { sites: count, attempts: ATTEMPTS })
    }

    fn wait_for_thread(&self) -> libc::pthread_t {
        loop {
            // Relaxed: see `toggle`.
            match self.thread.load(Ordering::Relaxed) {
                0 => thread::yield_now(),
                thread => return thread,
            }
        }
    }
}

/// The thread is stopped for as long as this exists.
struct Stopped;

impl Drop for Stopped {
    fn drop(&mut self) {
        HOLD.store(0, Ordering::SeqCst);
        while STOPPED.load(Ordering::SeqCst) {
            // It may be about to wait, in which case the next turn wakes it.
            let _woken = futex::wake(&HOLD, futex::Flags::PRIVATE, 1);
            thread::yield_now();
        }
    }
}

/// Keeps the toggling thread here as long as it is to be held. Async-signal-safe: atomics, and a system call that
/// leaves `errno` alone.
extern "C" fn stop(_signal: i32) {
    STOPPED.store(true, Ordering::SeqCst);
    while HOLD.load(Ordering::SeqCst) == 1 {
        // Any answer leads to another look.
        let _answer = futex::wait(&HOLD, futex::Flags::PRIVATE, 1, None);
    }
    STOPPED.store(false, Ordering::SeqCst);
}

/// Spins: a sleep would take far longer.
fn wait(duration: Duration) {
    let started = Instant::now();
    while started.elapsed() < duration {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_text::Packs;

    use super::*;

    #[test]
    fn all_sites_of_a_held_batch_are_traps_and_all_are_off_afterwards() {
        if !palimpsest_text::poke::arch::TRAPS {
            return;
        }
        let _alone = COUNTING_TRAPS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let packs = Packs::new().expect("packs open");
        for count in [1, 56, 3000] {
            let sites = Sites::place(&packs, count).expect("programs are placed");
            let held = while_held(&sites, 1, || {
                let before = traps_hit();
                sites.run();
                sites.run();
                traps_hit() - before
            });
            assert_eq!(held.expect("a batch is held"), 2 * count as u64);
            assert_eq!(sites.run(), count as u64);
        }
    }
}
