//! `fork(2)` as the program calls it.

use libc::pid_t;

use crate::next::Next;
use crate::started::Started;
use crate::{confined, core_filter, earlier, errno, freezing, started};

type Fork = unsafe extern "C" fn() -> pid_t;

// SAFETY: `pid_t fork(void)`.
static FORK: Next<Fork> = unsafe { Next::new(c"fork") };

/// Looks up the real function.
pub(crate) fn resolve() {
    FORK.resolve();
}

/// `fork(2)`: freezes first if the moment has come, and repairs what the program has changed in frozen memory since.
///
/// # Safety
///
/// 1. As for the C library's `fork`: afterwards the child of a process with threads makes only async-signal-safe calls.
// In a section with what a child of a small program executes later, so that it costs the child one page fault.
#[unsafe(link_section = "palimpsest_start")]
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> pid_t {
    match prepare() {
        // The last call here: the child goes on in the program, and has no page fault for code of this object.
        Prepared::Plain => plain(),
        Prepared::Held => {
            let child = plain();
            if child == 0 {
                confined::born();
            }
            child
        }
        // SAFETY: 1. is (1).
        Prepared::Frozen(started) => unsafe { frozen(started) },
    }
}

/// What is left to do at a fork.
enum Prepared {
    /// To fork.
    Plain,
    /// To fork, and to tell the child that the main thread, which may be at work, is not there.
    Held,
    /// To fork with frozen memory.
    Frozen(&'static Started),
}

/// Does what comes before a fork. Leaves `errno` as it was. Apart from the fork itself, whose frame could not be given
/// up before the last call otherwise.
#[inline(never)]
#[unsafe(link_section = "palimpsest_start")]
fn prepare() -> Prepared {
    let Some(started) = started::get() else { return Prepared::Plain };
    core_filter::take_back();
    earlier::before_fork();
    let before = errno::Kept::now();
    let is_frozen = freezing::at_fork(started);
    before.set_again();
    match is_frozen {
        true => Prepared::Frozen(started),
        false if confined::is_at_rest() => Prepared::Plain,
        false => Prepared::Held,
    }
}

/// # Safety
///
/// 1. As for the C library's `fork`.
#[inline(never)]
#[unsafe(link_section = "palimpsest_start")]
unsafe fn frozen(started: &'static Started) -> pid_t {
    let before = errno::Kept::now();
    // Not by its name: it is inlined here, beside the definition, and GNU ld wraps no reference to what stands in the
    // same file.
    // SAFETY: 1. is (1); 2. by loading this object the user answers for the freeze, see `freezing`; 3. it does.
    let forked = unsafe { palimpsest_fork::fork_by(plain) };
    match forked {
        Ok(palimpsest_fork::Forked::Child) => {
            core_filter::born();
            confined::born();
            before.set_again();
            0
        }
        Ok(palimpsest_fork::Forked::Parent(child)) => {
            freezing::after_slice(started);
            before.set_again();
            child.as_raw_nonzero().get()
        }
        Err(error) => {
            errno::set(error.0.raw_os_error());
            -1
        }
    }
}

/// Forks as if this object were not there. Code of other crates in this object calls it by the name `fork`, see
/// `build.rs`.
#[unsafe(link_section = "palimpsest_start")]
pub(crate) extern "C" fn plain() -> pid_t {
    if FORK.get().is_none() {
        // A constructor of another library forks before ours has run. It may: `fork` is not called from inside `malloc`
        // or the dynamic linker, so that `dlsym` is safe here, unlike in the memory functions.
        FORK.resolve();
    }
    match FORK.get() {
        // SAFETY: the caller of our `fork` has agreed to its contract, which is the same.
        Some(real) => unsafe { real() },
        None => {
            errno::set(libc::ENOSYS);
            -1
        }
    }
}
