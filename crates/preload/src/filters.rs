//! How many seccomp filters there are, read without the heap.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{read, retry_on_intr};

/// What precedes the number (`task_seccomp` in `fs/proc/array.c`, since Linux 5.9).
const BEFORE: &[u8] = b"\nSeccomp_filters:\t";

/// Returns how many confine the calling thread; `None` if the kernel does not tell, or without `/proc`.
pub(crate) fn of_this_thread() -> Option<u64> {
    let file = open("/proc/thread-self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (mut search, mut part) = (Search::default(), [0; 1024]);
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
    count: u64,
}

impl Search {
    /// Looks at another part. Returns the number once the sign after it is seen.
    fn goes_on(&mut self, part: &[u8]) -> Option<u64> {
        for &byte in part {
            match BEFORE.get(self.seen) {
                Some(&wanted) if wanted == byte => self.seen += 1,
                // A line's end is only at the start of what is looked for.
                Some(_) => self.seen = usize::from(byte == b'\n'),
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

    use super::*;

    #[test]
    fn the_number_is_found_wherever_the_text_is_cut() {
        let text = b"Name:\tx\nSeccomp:\t2\n\nSeccomp_filters:\t17\nSpeculation:\t3\n";
        for cut in 0..text.len() {
            let (mut search, (first, second)) = (Search::default(), text.split_at(cut));
            let found = search.goes_on(first).or_else(|| search.goes_on(second));
            assert_eq!(found, Some(17), "{cut}");
        }
        for other in ["", "Seccomp_filters:\t1\n", "\nSeccomp_filters:\t1", "\nSeccomp:\t2\n"] {
            assert_eq!(Search::default().goes_on(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn it_is_what_the_whole_file_says() {
        let whole = Status::of_this_thread().expect("/proc is mounted");
        assert_eq!(of_this_thread(), whole.seccomp_filters);
    }
}
