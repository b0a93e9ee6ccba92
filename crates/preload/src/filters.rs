//! How many seccomp filters there are, read without the heap.
//!
//! A program that another has executed below `palimpsest run` need not look: filters are inherited and never taken
//! away, so that `run` tells by a variable how many there were when it started. What has come since, from the program
//! or from a sandbox that has executed it, shows when it is to be frozen. To open a file of `/proc` costs as much as
//! nine page faults, since the kernel makes the process's folders for it.

use palimpsest_sys::brief_file::UnnotedFile;
use palimpsest_sys::seccomp::Calls;
use rustix::fs::OFlags;
use rustix::io::{read, retry_on_intr};

/// What precedes the number (`task_seccomp` in `fs/proc/array.c`, since Linux 5.9).
const BEFORE: &[u8] = b"\nSeccomp_filters:\t";

/// What older kernels say, too, of a thread without any.
const NONE: &[u8] = b"\nSeccomp:\t0\n";

/// `palimpsest run` sets it: to how many filters confine it, and so each program below; then [`TRIED`], if it knows
/// the calls of this object for which they end a program, and the names of these, each after a comma.
const VARIABLE: &str = "PALIMPSEST_FILTERS";

/// What follows the number.
const TRIED: &[u8] = b",tried";

/// The filters under which a program was started, or `palimpsest run` below which it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Filters {
    pub(crate) count: u64,
    pub(crate) trial: Trial,
}

/// Whether filters may end the program for a call of this object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trial {
    /// The program was started under none, as the kernel says.
    Unneeded,
    /// They do for these calls, as `palimpsest run` has tried; or there were none above it. A sandbox below it may have
    /// added some.
    Done(Calls),
    /// Nobody has tried it.
    Due,
}

/// Returns the filters that the program was started with, as the variable or the kernel says; `None` if neither does.
#[inline]
pub(crate) fn at_the_start<'a>(variable: &impl Fn(&str) -> Option<&'a [u8]>) -> Option<Filters> {
    variable(VARIABLE).and_then(told).or_else(|| {
        let count = of_this_thread()?;
        Some(Filters { count, trial: if count == 0 { Trial::Unneeded } else { Trial::Due } })
    })
}

/// Reads the variable.
fn told(text: &[u8]) -> Option<Filters> {
    let length = text.iter().position(|&byte| byte == b',').unwrap_or(text.len());
    let (digits, rest) = text.split_at(length);
    let count = number(digits)?;
    let trial = match rest {
        b"" if count > 0 => Trial::Due,
        b"" => Trial::Done(Calls::NONE),
        rest => match rest.strip_prefix(TRIED)? {
            b"" => Trial::Done(Calls::NONE),
            // Names that are not known here are another version's.
            names => Calls::from_names(names.strip_prefix(b",")?).map_or(Trial::Due, Trial::Done),
        },
    };
    Some(Filters { count, trial })
}

/// Reads a number of at most nine digits.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = (1..=9).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// Returns how many confine the calling thread; `None` if the kernel does not count those that there are, or without
/// `/proc`.
pub(crate) fn of_this_thread() -> Option<u64> {
    let file = UnnotedFile::open(c"/proc/thread-self/status", OFlags::RDONLY).ok()?;
    // Also on a stack for handlers.
    let (mut search, mut part) = (Search::default(), [0; 512]);
    loop {
        let length = retry_on_intr(|| read(&file, &mut part)).ok().filter(|&length| length > 0)?;
        if let Some(count) = search.goes_on(part.get(..length)?) {
            return Some(count);
        }
    }
}

/// Looks for the number in a text that comes in parts.
#[derive(Default)]
struct Search {
    /// How many bytes of [`BEFORE`] were seen.
    seen: usize,
    /// How many of [`NONE`] were seen.
    seen_of_none: usize,
    count: u64,
}

impl Search {
    /// Looks at another part. Returns the number once the sign after it is seen.
    fn goes_on(&mut self, part: &[u8]) -> Option<u64> {
        for &byte in part {
            // A line's end is only at the start of what is looked for, except for the last sign of all.
            let next = |seen, wanted| if wanted == byte { seen + 1 } else { usize::from(byte == b'\n') };
            if let Some(&wanted) = NONE.get(self.seen_of_none) {
                self.seen_of_none = next(self.seen_of_none, wanted);
            }
            match BEFORE.get(self.seen) {
                _ if self.seen_of_none == NONE.len() => return Some(0),
                Some(&wanted) => self.seen = next(self.seen, wanted),
                None if byte.is_ascii_digit() => {
                    self.count = self.count.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
                }
                None => return Some(self.count),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::proc::status::Status;
    use palimpsest_sys::seccomp::FreezeCall;

    use super::*;

    #[test]
    fn the_number_is_found_wherever_the_text_is_cut() {
        let text = b"Name:\tx\nSeccomp:\t2\n\nSeccomp_filters:\t17\nSpeculation:\t3\n";
        for cut in 0..text.len() {
            let (mut search, (first, second)) = (Search::default(), text.split_at(cut));
            let found = search.goes_on(first).or_else(|| search.goes_on(second));
            assert_eq!(found, Some(17), "{cut}");
        }
        for other in ["", "Seccomp_filters:\t1\n", "\nSeccomp_filters:\t1", "\nSeccomp:\t2\n", "\nSeccomp:\t0"] {
            assert_eq!(Search::default().goes_on(other.as_bytes()), None, "{other:?}");
        }
    }

    /// Fails on: a kernel before 5.9, which counts no filters and tells that there are none; a number behind that.
    #[test]
    fn none_are_none_wherever_the_text_is_cut() {
        for text in ["Name:\tx\nSeccomp:\t0\nSpeculation_Store_Bypass:\tx\n", "\n\nSeccomp:\t0\nSeccomp_filters:\t0\n"]
        {
            for cut in 0..text.len() {
                let (mut search, (first, second)) = (Search::default(), text.as_bytes().split_at(cut));
                let found = search.goes_on(first).or_else(|| search.goes_on(second));
                assert_eq!(found, Some(0), "{text:?} {cut}");
            }
        }
    }

    /// Fails on: a look at `/proc` in spite of the variable; a variable that is believed whatever it says; names of
    /// another version that are taken for none.
    #[test]
    fn the_variable_is_believed_if_it_is_a_number_and_known_names() {
        let at_the_start = |value: &'static str| at_the_start(&|name| (name == VARIABLE).then_some(value.as_bytes()));
        let none = Trial::Done(Calls::NONE);
        let named = Calls::NONE.with(FreezeCall::Mincore).with(FreezeCall::Confine);
        for (value, count, trial) in [
            ("0", 0, none),
            ("417", 417, Trial::Due),
            ("417,tried", 417, none),
            ("2,tried,prctl(PR_SET_SECCOMP),mincore", 2, Trial::Done(named)),
            ("2,tried,mincore,unheard", 2, Trial::Due),
            ("2,tried,", 2, Trial::Due),
        ] {
            assert_eq!(at_the_start(value), Some(Filters { count, trial }), "{value}");
        }
        for other in ["", "-1", "+1", "1 ", "x", "1234567890", "1,", "1,tried ", "1,mincore", ",tried"] {
            let found = at_the_start(other).expect("/proc is mounted");
            assert_eq!(Some(found.count), of_this_thread(), "{other:?}");
            assert!(!matches!(found.trial, Trial::Done(_)), "{other:?}");
        }
    }

    #[test]
    fn it_is_what_the_whole_file_says() {
        let whole = Status::of_this_thread().expect("/proc is mounted");
        assert_eq!(of_this_thread(), whole.filters());
    }
}
