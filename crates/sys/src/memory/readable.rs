//! Whether memory can be read: asked of the kernel, without a fault, a file or the heap.

use std::ffi::c_char;

use rustix::io::Errno;

use crate::arch::system_call;

/// Pages of all machines are multiples of this, so that each such part can be read as a whole or not at all.
const PART: usize = 4096;

/// How many parts are remembered: those of an array, and of the strings that it leads to.
const KEPT: usize = 8;

/// What was found readable. Async-signal-safe, also in a child of `vfork`; a question about a new part is one system
/// call.
#[derive(Debug)]
pub struct Readable {
    /// Numbers of parts; `usize::MAX`, which no part has, for none.
    parts: [usize; KEPT],
    /// Which is replaced next.
    next: usize,
}

impl Default for Readable {
    fn default() -> Self {
        Self { parts: [usize::MAX; KEPT], next: 0 }
    }
}

impl Readable {
    /// Whether the byte at `address` can be read.
    #[inline]
    pub fn has(&mut self, address: usize) -> bool {
        self.parts.contains(&(address / PART)) || self.asks(address)
    }

    fn asks(&mut self, address: usize) -> bool {
        if !is_readable(address) {
            return false;
        }
        if let Some(place) = self.parts.get_mut(self.next) {
            *place = address / PART;
        }
        self.next = (self.next + 1) % KEPT;
        true
    }

    /// Whether a string can be read up to the zero behind it, which is among its first `most` bytes.
    ///
    /// # Safety
    ///
    /// 1. As far as it can be read, nobody may change it meanwhile.
    pub unsafe fn has_string(&mut self, string: *const c_char, most: usize) -> bool {
        let (mut at, mut rest) = (string, most);
        while rest > 0 && self.has(at.addr()) {
            let here = (PART - at.addr() % PART).min(rest);
            // SAFETY: the part can be read up to its end, and nobody changes the string (1).
            if unsafe { libc::strnlen(at, here) } < here {
                return true;
            }
            rest -= here;
            // It may lead to where nothing is.
            at = at.wrapping_add(here);
        }
        false
    }
}

/// Asks for a change of the signal mask that there is not: the kernel reads the set, and then refuses it (`sigprocmask`
/// in `kernel/signal.c`). No other call that reads memory and changes nothing is as short.
fn is_readable(address: usize) -> bool {
    const NO_CHANGE: usize = usize::MAX;
    let word = address & !(size_of::<u64>() - 1);
    // SAFETY: the kernel reads 8 bytes, or fails, and changes nothing.
    let answer = unsafe { system_call(libc::SYS_rt_sigprocmask, [NO_CHANGE, word, 0, size_of::<u64>()]) };
    answer == -(Errno::INVAL.raw_os_error() as isize)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::*;
    use crate::proc::status::Status;

    /// Maps two parts, of which only the first can be read, full of `x`.
    fn edge() -> *mut u8 {
        let (len, rights) = (2 * PART.max(rustix::param::page_size()), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping replaces nothing.
        let room = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE) }.expect("memory");
        let room = room.cast::<u8>();
        // SAFETY: mapped above.
        unsafe { room.write_bytes(b'x', len / 2) };
        // SAFETY: within the mapping.
        let end = unsafe { room.add(len / 2) };
        // SAFETY: nobody has a reference to it.
        unsafe { mprotect(end.cast(), len / 2, MprotectFlags::empty()) }.expect("its own");
        end
    }

    /// Fails on: an address that is said to be readable, and is not; a mask that a question changes.
    #[test]
    fn what_cannot_be_read_is_known_without_a_fault() {
        let mut readable = Readable::default();
        let end = edge().addr();
        for _ in 0..2 {
            assert!(readable.has((&raw const readable).addr()) && readable.has(end - 1));
            for address in [0, 8, 9, end, usize::MAX - 8, usize::MAX, 1 << 60] {
                assert!(!readable.has(address), "{address:#x}");
            }
        }
        // Of all signals.
        let set = u64::MAX;
        let mask = || Status::of_this_thread().expect("/proc is mounted").blocked.expect("shown").0;
        let before = mask();
        assert!(Readable::default().has((&raw const set).addr()));
        assert_eq!(mask(), before);
    }

    /// Fails on: a part that is looked at twice though it is remembered; one that is taken for another.
    #[test]
    fn the_last_parts_are_remembered() {
        let mut readable = Readable::default();
        let parts = vec![0_u8; PART * (KEPT + 2)];
        let first = parts.as_ptr().addr();
        for number in 0..=KEPT {
            assert!(readable.has(first + number * PART));
        }
        let known = |readable: &Readable, number: usize| readable.parts.contains(&(first / PART + number));
        assert!(!known(&readable, 0) && (1..=KEPT).all(|number| known(&readable, number)));
        assert_eq!(readable.next, 1);
        assert!(readable.has(first + PART) && readable.next == 1);
    }

    /// Fails on: a string that runs into nothing, or is too long; one that ends with the last byte.
    #[test]
    fn strings_are_read_up_to_their_ends() {
        let end = edge();
        // SAFETY: 1. nobody else knows of it.
        let has = |string: *mut u8, most| unsafe { Readable::default().has_string(string.cast(), most) };
        // SAFETY: within the mapping.
        let string = unsafe { end.sub(10) };
        assert!(!has(string, 100) && !has(string, 10) && !has(end, 100) && !has(ptr::null_mut(), 100));
        // SAFETY: as before.
        let last = unsafe { end.sub(1) };
        // SAFETY: it can be written.
        unsafe { last.write(0) };
        assert!(has(string, 100) && has(string, 10) && !has(string, 9) && !has(string, 0));
    }
}
