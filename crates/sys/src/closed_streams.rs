//! Which standard streams were closed when this process was started, for programs that it executes.
//!
//! Rust's runtime opens `/dev/null` in their place before `main`, lest a file get their numbers. A program that is
//! executed then finds them open, and loses its output without an error.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each. `Relaxed`: written before there are threads.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Notes them. For the time before Rust's runtime starts.
#[inline]
pub(crate) fn note() {
    // The preload object has this, too: there it would be three calls more in each program, for nobody.
    if !is_in_program() {
        return;
    }
    // SAFETY: asks for the flags of a descriptor.
    let is_closed = |number: &c_int| unsafe { libc::fcntl(*number, libc::F_GETFD) } == -1;
    let closed = (0..3).filter(is_closed).fold(0, |closed, number| closed | 1 << number);
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Whether this code was linked into the program, and not into an object that is loaded into one. Makes no system call.
#[inline]
fn is_in_program() -> bool {
    unsafe extern "C" {
        /// The beginning of the file that this code was linked into: linkers define it.
        static __ehdr_start: libc::Elf64_Ehdr;
    }
    let own = &raw const __ehdr_start;
    // SAFETY: a constant of the file, which is mapped as a whole.
    let headers = own.addr() + unsafe { own.read() }.e_phoff as usize;
    // SAFETY: reads the vector that the kernel gave to the process at its start.
    headers == unsafe { libc::getauxval(libc::AT_PHDR) } as usize
}

/// Returns those that were closed.
pub(crate) fn closed() -> impl Iterator<Item = c_int> + Send + Sync + Clone + 'static {
    let closed = CLOSED.load(Ordering::Relaxed);
    (0..3).filter(move |number| closed & 1 << number != 0)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_a_program() {
        assert!(is_in_program());
    }
}
