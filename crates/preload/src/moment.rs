//! Decides whether the moment to freeze has come. Asked at every fork until it has.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palimpsest_fork::guard;
use palimpsest_sys::seccomp::FreezeCall;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{read, retry_on_intr};

use crate::settings::Moment;
use crate::{confined, started};

/// Forks of this process and, before it was forked, of its ancestors: a program that first forks into the background
/// goes on counting. Only if their number is asked for ([`Moment::Fork`]), or if the page on which a process counts its
/// own is lacking: a write here copies a page that the last child shares. `Relaxed`: a counter, which publishes
/// nothing.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The most private memory in bytes seen at a fork. `Relaxed`: a figure.
static MOST: AtomicU64 = AtomicU64::new(0);

/// The peak of resident memory, with files', in kB, when private memory was last looked at; 0 if it says nothing of
/// this program. `Relaxed`: a figure.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// One fork in this many looks at private memory in any case: it may grow while the program gives back as much of other
/// memory.
const LOOKS_AFTER: u64 = 16;

/// Whether the signal has come. `Relaxed`: it publishes nothing, and a fork that just misses it is not an error.
static HAS_COME: AtomicBool = AtomicBool::new(false);

/// Installs a handler for the signal, if the moment is one.
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

/// What a program may have without being looked at, for [`LOOKS_AFTER`] forks: about what `palimpsest run` leaves it as
/// peak. To copy its page tables takes a quarter of a millisecond.
const UNSEEN: u64 = 16 << 20;

/// Counts a fork that is about to happen. Returns whether it is time to freeze. Allocates nothing.
pub(crate) fn has_come_at_fork(moment: Moment) -> bool {
    has_come(moment, count(moment))
}

/// Counts a fork, and returns the number, from 1.
fn count(moment: Moment) -> u64 {
    let own = if matches!(moment, Moment::Fork(_)) { None } else { guard::count_fork() };
    own.map_or_else(|| FORKS.fetch_add(1, Ordering::Relaxed) + 1, u64::from)
}

/// Returns how many were counted.
fn counted() -> u64 {
    FORKS.load(Ordering::Relaxed).max(guard::counted_forks().into())
}

/// Whether it would be time at a fork now. Allocates nothing.
pub(crate) fn would_come(moment: Moment) -> bool {
    has_come(moment, counted() + 1)
}

fn has_come(moment: Moment, number: u64) -> bool {
    match moment {
        Moment::Never => false,
        // Without /proc the engine says why it can do nothing.
        Moment::Worthwhile => may_have_grown(number) && seen(UNSEEN).is_none_or(|bytes| bytes >= LEAST_WORTHWHILE),
        Moment::Fork(wanted) => number >= wanted,
        Moment::Signal(_) => HAS_COME.load(Ordering::Relaxed),
        // Less cannot be it.
        Moment::Size(wanted) => {
            may_have_grown(number) && seen(wanted.saturating_sub(1)).is_some_and(|bytes| bytes >= wanted)
        }
    }
}

/// Whether private memory may have grown since the last look, before fork `number`. A program that forks again and
/// again and never has much then needs one call instead of three.
fn may_have_grown(number: u64) -> bool {
    has_grown(peak_unless_confined(), LOOKED_AT.load(Ordering::Relaxed)) || number.is_multiple_of(LOOKS_AFTER)
}

/// Returns the peak of resident memory in kB, at least 1; `None` if the kernel does not tell, or a filter forbids the
/// question. Async-signal-safe.
pub(crate) fn peak() -> Option<u64> {
    if FreezeCall::Usage.is_deadly() {
        return None;
    }
    // SAFETY: all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the kernel writes to a local.
    let is_told = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } == 0;
    is_told.then_some(usage.ru_maxrss.unsigned_abs().max(1))
}

/// Returns the peak, unless a filter may end the program for the question.
fn peak_unless_confined() -> Option<u64> {
    if started::get().is_none_or(confined::is_free) { peak() } else { None }
}

/// Whether the peak differs from what was noted, or is not known.
fn has_grown(peak: Option<u64>, noted: u64) -> bool {
    peak.is_none_or(|peak| peak != noted)
}

/// Returns what to note of the peak, which differs from every peak if each fork is to look.
///
/// `execve` keeps the peak of the program before (`exec_mmap` in `fs/exec.c`): behind that of a large launcher, this
/// program grows unseen. So a peak counts only if at least half of it is resident, or if so much, in bytes, may stay
/// unseen for some forks.
fn noted(peak: Option<u64>, resident: Option<u64>, unseen: u64) -> u64 {
    match (peak, resident) {
        (Some(peak), Some(resident)) if resident >> 10 >= peak / 2 || peak <= unseen >> 10 => peak,
        _ => 0,
    }
}

/// Returns the private bytes in use, and notes the most that was seen and the peak it was seen at. So much in bytes may
/// stay unseen for some forks.
fn seen(unseen: u64) -> Option<u64> {
    // Before the look: what grows after it is seen by the next fork.
    let peak = peak_unless_confined();
    let populated = populated();
    let noted = noted(peak, populated.as_ref().map(|populated| populated.resident), unseen);
    // Neither is written without need: after a fork the first write to a page copies it.
    if noted != LOOKED_AT.load(Ordering::Relaxed) {
        LOOKED_AT.store(noted, Ordering::Relaxed);
    }
    let bytes = populated?.private;
    if bytes > MOST.load(Ordering::Relaxed) {
        MOST.fetch_max(bytes, Ordering::Relaxed);
    }
    Some(bytes)
}

/// Bytes in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Populated {
    resident: u64,
    /// Those that are not a file's unchanged content.
    private: u64,
}

/// Reads `/proc/thread-self/statm` (`task_statm` in `fs/proc/task_mmu.c`), which costs the same for every size: private
/// are resident minus shared pages. Swapped pages do not count.
fn populated() -> Option<Populated> {
    let file = openat(CWD, "/proc/thread-self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Seven numbers of at most 20 digits.
    let mut buffer = [0; 160];
    let length = retry_on_intr(|| read(&file, &mut buffer));
    // Past the C library, in whose `close` a cancelled thread ends. SAFETY: just opened, and used no more.
    unsafe { rustix::io::close(file.into_raw_fd()) };
    let length = length.ok()?;
    let text = std::str::from_utf8(buffer.get(..length)?).ok()?;
    bytes_in(text, rustix::param::page_size() as u64)
}

fn bytes_in(statm: &str, page: u64) -> Option<Populated> {
    let mut numbers = statm.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let (_size, resident, shared) = (next()?, next()?, next()?);
    let private = resident.saturating_sub(shared).checked_mul(page)?;
    Some(Populated { resident: resident.checked_mul(page)?, private })
}

/// Returns why the moment has not come so far.
pub(crate) fn missed(moment: Moment) -> String {
    why(moment, counted(), MOST.load(Ordering::Relaxed))
}

fn why(moment: Moment, forks: u64, most: u64) -> String {
    let small = |wanted: u64| {
        format!(
            "at none of its {forks} forks it had {} kB of private memory, but {} kB at most; \
             PALIMPSEST_FREEZE=fork freezes at the first all the same",
            wanted >> 10,
            most >> 10
        )
    };
    match moment {
        _ if forks == 0 => "it has never called fork (vfork and posix_spawn copy no page tables)".to_owned(),
        Moment::Never => "PALIMPSEST_FREEZE is off".to_owned(),
        Moment::Worthwhile => small(LEAST_WORTHWHILE),
        Moment::Size(wanted) => small(wanted),
        Moment::Fork(wanted) => format!("it has forked {forks} times, and PALIMPSEST_FREEZE asks for fork {wanted}"),
        Moment::Signal(_) => format!("the signal of PALIMPSEST_FREEZE came before none of its {forks} forks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_is_resident_less_shared() {
        let expected = Populated { resident: 500 * 4096, private: 300 * 4096 };
        assert_eq!(bytes_in("1000 500 200 1 0 300 0\n", 4096), Some(expected));
        assert_eq!(bytes_in("1000 500", 4096), None);
        assert_eq!(bytes_in("", 4096), None);
    }

    #[test]
    fn memory_that_is_written_is_seen() {
        let before = populated().expect("/proc is mounted");
        let much = vec![1_u8; 64 << 20];
        let after = populated().expect("/proc is mounted");
        for (before, after) in [(before.private, after.private), (before.resident, after.resident)] {
            assert!(after >= before + (48 << 20), "{before} {after} {}", much.len());
        }
    }

    /// Fails on: a program that grows and is never looked at again; three calls at each fork of a program that does not
    /// grow; a large launcher's peak, behind which nobody sees the program grow.
    #[test]
    fn private_memory_is_looked_at_when_more_is_resident_than_ever() {
        let mut noted_last = 0;
        for (peak, resident, expected) in [
            (Some(900), Some(900), true),
            (Some(900), Some(900), false),
            (Some(904), Some(452), true),
            (Some(904), Some(452), false),
            // The program has given most of it back, and may take it anew.
            (Some(908), Some(100), true),
            (Some(908), Some(100), true),
            (Some(908), Some(500), true),
            (Some(908), Some(500), false),
            // Not told.
            (None, Some(500), true),
            (None, Some(500), true),
            (Some(908), None, true),
            (Some(908), None, true),
        ] {
            let looks = has_grown(peak, noted_last);
            assert_eq!(looks, expected, "{peak:?} {resident:?} {noted_last}");
            if looks {
                noted_last = noted(peak, resident.map(|kilobytes: u64| kilobytes << 10), 0);
            }
        }
        let behind_a_launcher = |unseen| noted(Some(908), Some(100 << 10), unseen);
        assert_eq!((behind_a_launcher(908 << 10), behind_a_launcher((908 << 10) - 1)), (908, 0));
        assert!(peak().is_some_and(|peak| has_grown(Some(peak), 0)), "no peak is taken for one that was not noted");
        // Whatever the tests beside this one have looked at.
        assert!((1..=LOOKS_AFTER).any(may_have_grown), "at the latest after some forks");
    }

    #[test]
    fn a_moment_that_was_missed_is_told_with_its_figures() {
        assert!(why(Moment::Fork(1), 0, 0).starts_with("it has never called fork"));
        let small = why(Moment::Worthwhile, 3, 664 << 10);
        assert!(
            small.starts_with("at none of its 3 forks it had 2048 kB of private memory, but 664 kB at most; "),
            "{small}"
        );
        assert!(why(Moment::Size(1 << 30), 1, 0).contains("1048576 kB"));
        assert_eq!(why(Moment::Fork(5), 3, 0), "it has forked 3 times, and PALIMPSEST_FREEZE asks for fork 5");
        assert!(why(Moment::Signal(1), 3, 0).ends_with("before none of its 3 forks"));
    }

    // One test for everything that counts forks, since the process has one counter: another that counted beside it
    // could take each fork that looks in any case.
    #[test]
    fn forks_are_counted_and_the_signal_is_awaited() {
        assert!(!has_come_at_fork(Moment::Never));
        let number = FORKS.load(Ordering::Relaxed);
        assert!(!has_come_at_fork(Moment::Fork(number + 2)));
        assert!(has_come_at_fork(Moment::Fork(number + 2)));
        assert!(has_come_at_fork(Moment::Fork(1)), "a moment that was missed has come");
        assert!((0..LOOKS_AFTER).any(|_| has_come_at_fork(Moment::Size(1))), "at the latest after some forks");
        MOST.store(0, Ordering::Relaxed);
        assert!((0..LOOKS_AFTER).all(|_| !has_come_at_fork(Moment::Size(1 << 60))));
        assert!(MOST.load(Ordering::Relaxed) > 0, "one of them has looked");
        let moment = Moment::Signal(libc::SIGUSR1);
        prepare(moment).expect("the signal can be caught");
        assert!(!has_come_at_fork(moment));
        // SAFETY: the signal has a handler that sets a flag.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert!(has_come_at_fork(moment));
    }
}
