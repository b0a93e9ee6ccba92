//! The process's `coredump_filter` (`core(5)`), which a freeze changes: only the program itself keeps the change.
//!
//! Frozen memory is a private mapping of a file, which core dumps leave out unless bit 2 is set; so a freeze sets it.
//! But `execve` passes the filter on (`mmf_init_flags` in `include/linux/mm_types.h`, from `mm_init` in
//! `kernel/fork.c`), and the executed program has frozen nothing. So the old filter is restored right before a program
//! is executed, and the new one set again when this program goes on: at once after a spawn; after an `execve` that
//! failed, or that a child of `vfork` made, at the next call that this object sees.
//!
//! A filter that the program has set by itself meanwhile is left alone, and so is everything if `/proc` is out of
//! reach.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use palimpsest_fork::guard;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{read, retry_on_intr, write};

use crate::cancelling::uncancelled;
use crate::{confined, errno};

const PATH: &str = "/proc/self/coredump_filter";

/// The filter before the freeze in the upper half, the one after it in the lower. Equal halves: nothing has changed.
///
/// `Relaxed`, here and below: each word says all there is to say, and a thread that misses another's change acts as if
/// it had come a little earlier.
static CHANGE: AtomicU64 = AtomicU64::new(0);

/// Whether the old filter is in force now, for a program about to be executed.
static IS_LENT: AtomicBool = AtomicBool::new(false);

/// Threads that are inside a spawn.
static SPAWNS: AtomicU32 = AtomicU32::new(0);

/// Notes what `freeze` does to the filter.
pub(crate) fn watch<T>(freeze: impl FnOnce() -> T) -> T {
    let before = current();
    let outcome = freeze();
    if let (Some(before), Some(after)) = (before, current())
        && before != after
    {
        CHANGE.store(u64::from(before) << 32 | u64::from(after), Ordering::Relaxed);
    }
    outcome
}

/// Restores the old filter for a program about to be executed. Async-signal-safe, also in a child of `vfork`.
pub(crate) fn lend() {
    // Reading `/proc` could end a process that has confined itself by a filter.
    let Some((before, after)) = change().filter(|_| !confined::is_seen()) else { return };
    let errno = errno::get();
    uncancelled(|| {
        if current() == Some(after) && set(before) {
            IS_LENT.store(true, Ordering::Relaxed);
        }
    });
    errno::set(errno);
}

/// Sets the new filter again if it was lent and this program went on. Otherwise costs a load.
#[inline]
pub(crate) fn take_back() {
    if IS_LENT.load(Ordering::Relaxed) {
        take_back_now();
    }
}

#[cold]
fn take_back_now() {
    // A child of `vfork` would set it, in its parent's memory, for the program that it is about to execute.
    if SPAWNS.load(Ordering::Relaxed) != 0 || confined::is_seen() || guard::is_borrowed() {
        return;
    }
    let Some((before, after)) = change().filter(|_| IS_LENT.swap(false, Ordering::Relaxed)) else { return };
    let errno = errno::get();
    uncancelled(|| {
        if current() == Some(before) {
            // A process that can no longer open `/proc` dumps core without frozen memory, and cannot be told.
            set(after);
        }
    });
    errno::set(errno);
}

/// Runs `spawn`, which executes a program in a process of its own, with the filter lent to it.
pub(crate) fn around<T>(spawn: impl FnOnce() -> T) -> T {
    /// Also runs when a cancelled thread is unwound.
    struct UnderWay;
    impl Drop for UnderWay {
        fn drop(&mut self) {
            SPAWNS.fetch_sub(1, Ordering::Relaxed);
            take_back();
        }
    }
    SPAWNS.fetch_add(1, Ordering::Relaxed);
    let _under_way = UnderWay;
    lend();
    spawn()
}

/// Notes that this is a new child: it does not have the spawns of its parent's other threads.
pub(crate) fn born() {
    // Written only if it differs: the child would copy the page for it.
    if SPAWNS.load(Ordering::Relaxed) != 0 {
        SPAWNS.store(0, Ordering::Relaxed);
    }
}

/// Returns the filters before and after the freeze, if it changed.
fn change() -> Option<(u32, u32)> {
    let both = CHANGE.load(Ordering::Relaxed);
    // Upper and lower half.
    let (before, after) = ((both >> 32) as u32, both as u32);
    (before != after).then_some((before, after))
}

/// Returns the present filter; the kernel writes eight hexadecimal digits (`proc_coredump_filter_read` in
/// `fs/proc/base.c`).
fn current() -> Option<u32> {
    let file = open(PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 32];
    let length = retry_on_intr(|| read(&file, &mut text)).ok()?;
    u32::from_str_radix(std::str::from_utf8(text.get(..length)?).ok()?.trim_ascii(), 16).ok()
}

/// Sets the filter. Returns whether that worked.
fn set(filter: u32) -> bool {
    let Ok(file) = open(PATH, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    // `0x` and eight digits: nothing here may allocate.
    let mut text = *b"0x00000000";
    for (place, digit) in text.iter_mut().skip(2).enumerate() {
        *digit = b"0123456789abcdef"[(filter >> (28 - 4 * place) & 0xf) as usize];
    }
    retry_on_intr(|| write(&file, &text)) == Ok(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test for all cases, since the process has one filter.
    #[test]
    fn the_filter_is_lent_and_taken_back() {
        let first = current().expect("/proc is mounted");
        let other = first ^ 1 << 2;
        assert_eq!(watch(|| 5), 5);
        lend();
        assert_eq!((current(), change()), (Some(first), None), "nothing has changed");

        assert!(watch(|| set(other)));
        assert_eq!(change(), Some((first, other)));
        lend();
        assert_eq!(current(), Some(first));
        take_back();
        assert_eq!(current(), Some(other));
        errno::set(7);
        around(|| {
            assert_eq!(current(), Some(first));
            take_back();
            assert_eq!(current(), Some(first), "another thread's spawn is under way");
            around(|| assert_eq!(current(), Some(first)));
        });
        assert_eq!((current(), errno::get()), (Some(other), 7));
        std::panic::catch_unwind(|| around(|| panic!("the thread is cancelled"))).expect_err("it is unwound");
        assert_eq!((current(), SPAWNS.load(Ordering::Relaxed)), (Some(other), 0));

        let own = first ^ 1 << 3;
        assert!(set(own));
        lend();
        assert_eq!(current(), Some(own), "the program has chosen");
        take_back();
        assert_eq!(current(), Some(own));
        assert!(set(first));
    }
}
