//! Owners of locks: threads, by the kernel's numbers, of a process, by its generation.
//!
//! A child of `fork` inherits locks of threads that it does not have. A thread of its own may have the number of one of
//! these: after `unshare(CLONE_NEWPID)` numbers begin again, and they come again by themselves. So an owner is a
//! thread's number below the last bits of its process's generation.

use core::cell::Cell;

use palimpsest_sys::threads::own::{is_gone as is_gone_thread, own_thread};

use super::Holder;
use crate::process::here;

/// Bits of a thread's number (Linux: `PID_MAX_LIMIT`).
const THREAD: u32 = 22;

std::thread_local! {
    /// The thread's number, and above it the generation in which it was asked for; 0 before.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

const fn owner(generation: u32, thread: i32) -> u32 {
    generation << THREAD | thread.cast_unsigned() & ((1 << THREAD) - 1)
}

/// Returns this thread's number, which is not 0.
pub(super) fn number(_cpu: impl FnOnce() -> u32) -> u32 {
    let generation = here().generation();
    NUMBER.with(|number| {
        // The thread that has forked has another number in the child.
        if (number.get() >> 32) as u32 != generation {
            number.set(u64::from(generation) << 32 | u64::from(own_thread().cast_unsigned()));
        }
        owner(generation, number.get() as u32 as i32)
    })
}

/// Whether this process is a forked child that has inherited the lock. In the first process, threads give their locks
/// back.
pub(super) fn is_gone(held: u32) -> bool {
    let here = here();
    if owner(here.generation(), 0) != held & !((1 << THREAD) - 1) {
        return true;
    }
    // The generation's last bits come again, too.
    !here.is_same_process() && is_gone_thread((held & ((1 << THREAD) - 1)).cast_signed())
}

/// What the owner with this number does.
pub(super) fn holder(owner: u32) -> Holder {
    if owner == number(|| 0) {
        return Holder::Interrupted;
    }
    if is_gone(owner) { Holder::Gone } else { Holder::Runs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::tests::beside;

    #[test]
    fn a_thread_with_the_number_of_a_gone_one_is_another() {
        let mine = number(|| 0);
        assert_eq!((holder(mine), is_gone(mine)), (Holder::Interrupted, false));
        // A thread that waits in the parent.
        let check = || {
            let here = number(|| 0);
            // As if the child's thread had got its number.
            let again = mine & !((1 << THREAD) - 1) | here & ((1 << THREAD) - 1);
            holder(here) == Holder::Interrupted && holder(mine) == Holder::Gone && holder(again) == Holder::Gone
        };
        beside(|| Ok::<_, ()>(()), check);
    }
}
