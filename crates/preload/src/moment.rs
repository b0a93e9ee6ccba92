//! Whether the moment to freeze has come. Asked at every fork until it has.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{read, retry_on_intr};

use crate::settings::Moment;

/// Forks of this process and, before it was forked itself, of its ancestors: a program that first forks into the
/// background goes on counting. `Relaxed`: a counter, with which nothing is published.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Whether the signal has come. `Relaxed`: nothing is published with it, and a fork that just misses it is no error.
static HAS_COME: AtomicBool = AtomicBool::new(false);

/// Makes the signal known, if the moment is one.
///
/// # Errors
///
/// The kernel refuses a handler for it.
pub(crate) fn prepare(moment: Moment) -> io::Result<()> {
    let Moment::Signal(signal) = moment else { return Ok(()) };
    // SAFETY: all zeros is a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = note as extern "C" fn(c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is initialised, and its handler only sets a flag, which is sound at any point of the program.
    match unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn note(_signal: c_int) {
    HAS_COME.store(true, Ordering::Relaxed);
}

/// Shells and other wrappers have less. Below it, the mappings of frozen memory cost a fork about what they save: some
/// µs.
const LEAST_WORTHWHILE: u64 = 2 << 20;

/// Counts a fork, which is about to happen, and tells whether it is time to freeze. Allocates nothing.
pub(crate) fn has_come_at_fork(moment: Moment) -> bool {
    let number = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    match moment {
        Moment::Never => false,
        // Without /proc the engine says why it can do nothing.
        Moment::Worthwhile => populated().is_none_or(|bytes| bytes >= LEAST_WORTHWHILE),
        Moment::Fork(wanted) => number >= wanted,
        Moment::Signal(_) => HAS_COME.load(Ordering::Relaxed),
        Moment::Size(wanted) => populated().is_some_and(|bytes| bytes >= wanted),
    }
}

/// Bytes of private memory that is in use and not a file's unchanged content: resident less shared pages of
/// `/proc/self/statm` (`task_statm` in `fs/proc/task_mmu.c`), which costs the same for every size. Swapped pages do not
/// count.
fn populated() -> Option<u64> {
    let file = open("/proc/self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Seven numbers of at most 20 digits.
    let mut buffer = [0; 160];
    let length = retry_on_intr(|| read(&file, &mut buffer)).ok()?;
    let text = std::str::from_utf8(buffer.get(..length)?).ok()?;
    private_bytes(text, rustix::param::page_size() as u64)
}

fn private_bytes(statm: &str, page: u64) -> Option<u64> {
    let mut numbers = statm.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let (_size, resident, shared) = (next()?, next()?, next()?);
    resident.saturating_sub(shared).checked_mul(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_is_resident_less_shared() {
        assert_eq!(private_bytes("1000 500 200 1 0 300 0\n", 4096), Some(300 * 4096));
        assert_eq!(private_bytes("1000 500", 4096), None);
        assert_eq!(private_bytes("", 4096), None);
    }

    #[test]
    fn memory_that_is_written_is_seen() {
        let before = populated().expect("/proc is mounted");
        let much = vec![1_u8; 64 << 20];
        let after = populated().expect("/proc is mounted");
        assert!(after >= before + (48 << 20), "{before} {after} {}", much.len());
    }

    // One test for all that counts forks: the counter is one for the process.
    #[test]
    fn forks_are_counted_and_the_signal_is_awaited() {
        assert!(!has_come_at_fork(Moment::Never));
        let number = FORKS.load(Ordering::Relaxed);
        assert!(!has_come_at_fork(Moment::Fork(number + 2)));
        assert!(has_come_at_fork(Moment::Fork(number + 2)));
        assert!(has_come_at_fork(Moment::Fork(1)), "a moment that was missed has come");
        assert!(has_come_at_fork(Moment::Size(1)));
        assert!(!has_come_at_fork(Moment::Size(1 << 60)));
        let moment = Moment::Signal(libc::SIGWINCH);
        prepare(moment).expect("the signal can be caught");
        assert!(!has_come_at_fork(moment));
        // SAFETY: the signal has a handler that sets a flag.
        unsafe { libc::raise(libc::SIGWINCH) };
        assert!(has_come_at_fork(moment));
    }
}
