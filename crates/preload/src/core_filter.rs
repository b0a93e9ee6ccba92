//! The process's `coredump_filter` (`core(5)`), which a freeze changes: the program alone keeps the change.
//!
//! Frozen memory is a private mapping of a file, which core dumps leave out unless bit 2 is set; so a freeze sets it.
//! But `execve` hands the filter on (`mmf_init_flags` in `include/linux/mm_types.h`, from `mm_init` in
//! `kernel/fork.c`), and the executed program has frozen nothing. So the filter is put back right before a program is
//! executed, and set again when this one goes on: after a spawn at once, after an `execve` that failed or that a child
//! of `vfork` has made at the next call that this object sees.
//!
//! A filter that the program has set by itself meanwhile is left alone, and so is everything where `/proc` is out of
//! reach.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use palimpsest_fork::guard;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{read, retry_on_intr, write};

use crate::{confined, errno};

const PATH: &str = "/proc/self/coredump_filter";

/// The filter before the freeze in the upper half, the one after it in the lower; equal halves: nothing has changed.
///
/// `Relaxed`, here and below: each word is all there is to know, and a thread that misses a change made by another at
/// this moment acts as if it had come a little earlier.
static CHANGE: AtomicU64 = AtomicU64::new(0);

/// Whether the filter is the one of before the freeze now, for a program that is about to be executed.
static IS_LENT: AtomicBool = AtomicBool::new(false);

/// Threads that are inside a spawn.
static SPAWNS: AtomicU32 = AtomicU32::new(0);

/// Remembers what `freeze` does to the filter.
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

/// Puts the filter back for a program that is about to be executed. Async-signal-safe, also in a child of `vfork`.
pub(crate) fn lend() {
    // To ask `/proc` could end a process that has confined itself by a filter.
    let Some((before, after)) = change().filter(|_| !confined::is_seen()) else { return };
    let errno = errno::get();
    if current() == Some(after) && set(before) {
        IS_LENT.store(true, Ordering::Relaxed);
    }
    errno::set(errno);
}

/// Sets the filter again if it was lent and this program has gone on. Costs a load otherwise.
#[inline]
pub(crate) fn take_back() {
    if IS_LENT.load(Ordering::Relaxed) {
        take_back_now();
    }
}

#[cold]
fn take_back_now() {
    // A child of `vfork` would set it in its parent's memory for the program that it is about to execute.
    if SPAWNS.load(Ordering::Relaxed) != 0 || guard::is_borrowed() || confined::is_seen() {
        return;
    }
    let Some((before, after)) = change().filter(|_| IS_LENT.swap(false, Ordering::Relaxed)) else { return };
    let errno = errno::get();
    if current() == Some(before) {
        // A process that can no longer open `/proc` dumps core without frozen memory, and cannot be told.
        set(after);
    }
    errno::set(errno);
}

/// Runs `spawn`, which executes a program in a process of its own, with the filter lent to it.
pub(crate) fn around<T>(spawn: impl FnOnce() -> T) -> T {
    /// Also when a cancelled thread is unwound.
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

/// The filters before and after the freeze, if it has changed it.
fn change() -> Option<(u32, u32)> {
    let both = CHANGE.load(Ordering::Relaxed);
    // The halves, each of 32 bits.
    let (before, after) = ((both >> 32) as u32, both as u32);
    (before != after).then_some((before, after))
}

/// The present filter; the kernel writes eight hexadecimal digits (`proc_coredump_filter_read` in `fs/proc/base.c`).
fn current() -> Option<u32> {
    let file = open(PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 32];
    let length = retry_on_intr(|| read(&file, &mut text)).ok()?;
    u32::from_str_radix(std::str::from_utf8(text.get(..length)?).ok()?.trim_ascii(), 16).ok()
}

/// Sets the filter; whether that worked.
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
