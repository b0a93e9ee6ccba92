//! Memory that was mapped before it was known whether the program uses what it maps, and so is in base pages: as the
//! program maps more in huge pages, a few pieces of it at a time are put into huge pages where they are. Otherwise the
//! first fork would copy an entry for each of its base pages; later ones find it gathered.
//!
//! Only pieces that are populated, asked of the kernel (`mincore`): so neither a table that is used later, nor memory
//! that the program has given back or mapped anew, takes more memory than before. Only before the next fork: children
//! share the pages, which would be there twice.
//!
//! Called inside `malloc` and signal handlers: nobody waits for the lock, and nothing is allocated. Who comes while
//! another thread is here does nothing.

use std::ffi::CStr;
use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_sys::HUGE_PAGE as PIECE;
use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::memory::calls::in_memory;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::seccomp::FreezeCall;

use crate::cancelling::uncancelled;
use crate::{errno, freezing, kernel};

/// Pieces that are noted at most: twice as many as Redis has before it is seen to use its memory. A piece takes half a
/// millisecond.
const MOST: usize = 32;

/// Pieces that are looked at when the program maps more, and of these the most that are made huge: about as long as the
/// page faults of what it maps then.
const LOOKED_AT: usize = 6;
const MADE: usize = 2;

/// Pages of a piece, if these have 4 KiB. Others have huge pages of another size, and no pieces.
const PAGES: usize = PIECE / 4096;

/// Pieces in the order of their noting, and the mapping noted last with its neighbours.
#[derive(Debug)]
struct Queue {
    pieces: [usize; MOST],
    first: usize,
    count: usize,
    run: Range<usize>,
}

impl Queue {
    const fn new() -> Self {
        Self { pieces: [0; MOST], first: 0, count: 0, run: 0..0 }
    }

    /// Notes the whole pieces of a mapping, and those that lie partly in its neighbour: the kernel makes one mapping of
    /// both.
    fn note(&mut self, new: Range<usize>) {
        let known = self.run.clone();
        self.run = match () {
            () if new.end == known.start => new.start..known.end,
            () if new.start == known.end => known.start..new.end,
            () => new,
        };
        let whole = self.run.start.next_multiple_of(PIECE)..self.run.end & !(PIECE - 1);
        for piece in whole.step_by(PIECE) {
            if piece < known.start || known.end < piece + PIECE {
                self.put(piece);
            }
        }
    }

    /// Adds a piece, if there is room.
    fn put(&mut self, piece: usize) {
        if let Some(place) = self.pieces.get_mut((self.first + self.count) % MOST).filter(|_| self.count < MOST) {
            *place = piece;
            self.count += 1;
        }
    }

    fn take(&mut self) -> Option<usize> {
        let piece = *self.pieces.get(self.first).filter(|_| self.count > 0)?;
        (self.first, self.count) = ((self.first + 1) % MOST, self.count - 1);
        Some(piece)
    }

    /// Looks at some pieces, and makes those huge that are populated. What is not is looked at again later.
    fn advance(&mut self, is_populated: impl Fn(usize) -> bool, mut make: impl FnMut(usize)) {
        let mut made = 0;
        for _ in 0..LOOKED_AT.min(self.count) {
            let Some(piece) = self.take() else { return };
            if made < MADE && is_populated(piece) {
                made += 1;
                make(piece);
            } else {
                self.put(piece);
            }
        }
    }
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue::new());

/// Whether the queue holds pieces from after the last fork. `Relaxed`: the queue has its lock; who reads too early does
/// nothing, or makes huge what a child shares for a moment.
static HOLDS: AtomicBool = AtomicBool::new(false);

/// Whether to make pieces huge here: once a freeze has begun, its engine does. Not if a filter kills for the question
/// what is populated.
fn is_open() -> bool {
    !freezing::is_decided() && !freezing::is_put_off() && !FreezeCall::Mincore.is_deadly()
}

/// Notes a mapping in base pages.
pub(crate) fn note(address: usize, length: usize) {
    let Ok(mut queue) = QUEUE.try_lock() else { return };
    if !HOLDS.swap(is_open(), Ordering::Relaxed) {
        *queue = Queue::new();
    }
    queue.note(address..address.saturating_add(length));
}

/// Makes some pieces huge. Only for a program that maps more memory, and may have it in huge pages.
pub(crate) fn advance() {
    if !HOLDS.load(Ordering::Relaxed) || !is_open() {
        return;
    }
    let Ok(mut queue) = QUEUE.try_lock() else { return };
    let before = errno::get();
    if queue.count > 0 && uncancelled(is_allowed) {
        // If it is refused, there are base pages. SAFETY: 1. changes no contents, wherever it is.
        queue.advance(is_populated, |piece| unsafe {
            kernel::madvise(ptr::without_provenance_mut(piece), PIECE, libc::MADV_COLLAPSE);
        });
    }
    errno::set(before);
}

/// Called before each fork. Writes nothing unless there is something: a child shares the page.
pub(crate) fn before_fork() {
    if HOLDS.load(Ordering::Relaxed) {
        HOLDS.store(false, Ordering::Relaxed);
    }
}

/// Whether 15 of 16 pages at least are in memory: a huge page takes all.
fn is_populated(piece: usize) -> bool {
    in_memory(Span::new(piece, piece + PIECE)).is_some_and(|pages| pages >= PAGES / 16 * 15)
}

/// Whether the administrator allows huge pages of a piece: the kernel's `MADV_COLLAPSE` ignores `never`.
fn is_allowed() -> bool {
    // Since Linux 6.8 each length has a setting of its own.
    is_allowed_by([
        c"/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled",
        c"/sys/kernel/mm/transparent_hugepage/enabled",
    ])
}

/// Whether the first of these settings that is there and does not leave it to the next allows them.
fn is_allowed_by(settings: [&CStr; 2]) -> bool {
    let mut text = [0; 64];
    for setting in settings {
        let Ok(said) = BriefFile::read_short(setting, &mut text) else { continue };
        let says = |choice: &[u8]| said.windows(choice.len()).any(|word| word == choice);
        if !says(b"[inherit]") {
            return !said.is_empty() && !says(b"[never]");
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use palimpsest_sys::memory::calls::{Commit, advise, map};
    use palimpsest_sys::pages::maps::Permissions;

    use super::*;

    const AT: usize = 100 * PIECE;

    /// Notes mappings, of which each is a start and an end.
    fn noted(mappings: &[(usize, usize)]) -> Vec<usize> {
        let mut queue = Queue::new();
        mappings.iter().for_each(|&(start, end)| queue.note(start..end));
        std::iter::from_fn(|| queue.take()).collect()
    }

    /// Fails on: a piece that lies partly outside, or in two mappings that are not neighbours; one that is noted twice;
    /// one across two neighbours that is left out.
    #[test]
    fn whole_pieces_of_neighbours_are_noted_once() {
        let half = PIECE / 2;
        for (mappings, expected) in [
            (&[(AT, AT + 2 * PIECE)][..], &[AT, AT + PIECE][..]),
            (&[(AT + half, AT + 2 * PIECE + half)], &[AT + PIECE]),
            // As jemalloc maps: each below the last.
            (&[(AT + half, AT + 2 * PIECE), (AT - half, AT + half)], &[AT + PIECE, AT]),
            (&[(AT - PIECE, AT + half), (AT + half, AT + 2 * PIECE)], &[AT - PIECE, AT, AT + PIECE]),
            (&[(AT + half, AT + 2 * PIECE), (AT - PIECE, AT + half - 4096)], &[AT + PIECE, AT - PIECE]),
            (&[(AT, AT + half)], &[]),
        ] {
            assert_eq!(noted(mappings), expected, "{mappings:x?}");
        }
        assert_eq!(noted(&[(AT, AT + 100 * PIECE)]).len(), MOST);
    }

    /// Fails on: a piece that is lost because it is not populated yet; more at a time than are wanted; one made twice.
    #[test]
    fn a_piece_is_made_huge_once_it_is_populated() {
        let mut queue = Queue::new();
        queue.note(AT..AT + 10 * PIECE);
        let mut all = Vec::new();
        for populated in [0, 1, 5, 5, 10, 10, 10, 10, 10] {
            let before = all.len();
            queue.advance(|piece| piece < AT + populated * PIECE, |piece| all.push(piece));
            assert!(all.len() <= before + MADE && all.iter().all(|&piece| piece < AT + populated * PIECE));
        }
        all.sort_unstable();
        assert_eq!(all, (AT..AT + 10 * PIECE).step_by(PIECE).collect::<Vec<_>>());
        assert_eq!(queue.count, 0);
    }

    /// Fails on: what is said of huge pages of a piece, and overlooked; a kernel before 6.8.
    #[test]
    fn what_is_said_of_pieces_comes_before_what_is_said_of_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["piece", "all"].map(|name| {
            let path = folder.path().join(name);
            (CString::new(path.as_os_str().as_bytes()).expect("no zero"), path)
        });
        let [(piece, at_piece), (all, at_all)] = &paths;
        let is_allowed = || is_allowed_by([piece, all]);
        assert!(!is_allowed(), "no huge pages at all");
        for (for_all, by_all) in [("always madvise [never]\n", false), ("always [madvise] never\n", true)] {
            fs::write(at_all, for_all).expect("written");
            for (own, expected) in [
                (None, by_all),
                (Some("always [inherit] madvise never\n"), by_all),
                (Some("always inherit madvise [never]\n"), false),
                (Some("always inherit [madvise] never\n"), true),
                (Some("[always] inherit madvise never\n"), true),
                (Some(""), false),
            ] {
                match own {
                    Some(own) => fs::write(at_piece, own).expect("written"),
                    None => assert!(!at_piece.exists()),
                }
                assert_eq!(is_allowed(), expected, "{own:?} {for_all}");
            }
            fs::remove_file(at_piece).expect("written before");
        }
    }

    /// Fails on: memory that is not there, or half of it, and is taken for populated.
    #[test]
    fn the_kernel_tells_which_pieces_are_populated() {
        let made = map(PIECE, Permissions::READ_WRITE, Commit::Counted).expect("memory");
        // A huge page would hide what is touched. SAFETY: 1. this test's own mapping, which stays.
        unsafe { advise(made, libc::MADV_NOHUGEPAGE) }.expect("advised");
        let start = ptr::with_exposed_provenance_mut::<u8>(made.start);
        for (pages, expected) in [(0, false), (PAGES / 2, false), (PAGES / 16 * 15, true), (PAGES, true)] {
            for page in 0..pages {
                // SAFETY: within the mapping, which has zeros.
                unsafe { start.wrapping_add(page * 4096).write_volatile(1) };
            }
            assert_eq!(is_populated(made.start), expected, "{pages}");
        }
        assert!(!is_populated(PIECE), "nothing is mapped there");
    }
}
