//! Numbers that nobody can predict.

use core::cell::Cell;
use core::hash::{BuildHasher, Hasher};
use core::sync::atomic::{AtomicU64, Ordering};
use std::hash::{DefaultHasher, RandomState};

use crate::process::generation;

/// What a thread's numbers come from. A signal handler may draw one in the middle of anything here.
struct Source {
    /// In which generation of processes the keys were drawn; 0 before.
    generation: Cell<u32>,
    /// Secret.
    keys: Cell<[u64; 2]>,
    /// How many numbers were drawn.
    count: AtomicU64,
}

std::thread_local! {
    // Not what `RandomState` has for the thread: a child of `fork` would draw its parent's next numbers.
    static SOURCE: Source =
        const { Source { generation: Cell::new(0), keys: Cell::new([0; 2]), count: AtomicU64::new(0) } };
}

/// Returns a number that nobody can predict: of the system's random numbers, asked for once by each thread in each
/// process.
pub(crate) fn number() -> u64 {
    SOURCE.with(|source| {
        let here = generation();
        if source.generation.get() != here {
            source.keys.set(keys());
            source.generation.set(here);
        }
        // Relaxed: one operation, so that a handler that comes between two of this thread has another number.
        let count = source.count.fetch_add(1, Ordering::Relaxed);
        // SipHash, of which the keys are part of the text, since its own are 0 here.
        let mut hasher = DefaultHasher::new();
        source.keys.get().into_iter().chain([count]).for_each(|word| hasher.write_u64(word));
        hasher.finish()
    })
}

#[cold]
fn keys() -> [u64; 2] {
    palimpsest_sys::random_words().unwrap_or_else(|| {
        // No kernel that grants none is known. Children differ at least by their process ids.
        let number = || RandomState::new().hash_one(std::process::id());
        [number(), number()]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "a process is forked")]
    fn a_child_draws_other_numbers_than_its_parent_and_its_siblings() {
        use std::io::{Read, Write};

        let draw = || [number(), number()];
        let first = draw();
        let mut seen = std::vec::Vec::from(first);
        for _ in 0..2 {
            let (mut read, mut write) = std::io::pipe().expect("a pipe");
            // SAFETY: the child draws numbers, writes them, and leaves.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "a child");
            if child == 0 {
                let drawn = draw().map(u64::to_ne_bytes);
                let is_written = write.write_all(drawn.as_flattened()).is_ok();
                // SAFETY: nothing of the parent's is run any more.
                unsafe { libc::_exit(i32::from(!is_written)) };
            }
            drop(write);
            let mut bytes = [0; 16];
            read.read_exact(&mut bytes).expect("its numbers");
            let mut status = 0;
            // SAFETY: `status` is there to be written.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            seen.extend(bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes"))));
        }
        seen.extend(draw());
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((count, seen.len()), (8, 8), "{seen:x?}");
    }
}
