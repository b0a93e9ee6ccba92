//! Asks for huge pages as the program maps memory, if memory is to be gathered: what is huge from the first touch need
//! not be put together later.
//!
//! Such a mapping is one of its own beside a smaller neighbour, with which it would have merged otherwise
//! (`VM_HUGEPAGE` is a flag of the whole mapping): a `mremap` over both is refused, from Linux 6.17 on only if their
//! length changes.
//!
//! Only for large private anonymous mappings that can be written, as allocators make them. What the program says of its
//! memory later (`madvise`) comes after this and counts; a process or a system that wants no huge pages
//! (`PR_SET_THP_DISABLE`, `never`) gets none from the kernel.
//!
//! Unless the user asks for it, only for a program that [uses](Mappings) what it maps so: where it touches large memory
//! here and there, huge pages take more memory than it needs. What it has mapped before that is known follows
//! (`earlier`).

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_sys::HUGE_PAGE as PIECE;

use crate::settings::Mapped;
use crate::{confined, earlier, errno, kernel, moment, started};

/// Kinds of mappings that are left as they are: stacks, which are used from one end; what has its pages already; and
/// what consists of huge pages anyway.
const LEFT: c_int = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_POPULATE | libc::MAP_LOCKED | libc::MAP_HUGETLB;

/// Whether huge pages are as long as a piece. A table of pages is a page full of entries of 8 bytes, and a huge page as
/// long as what a table maps: 2 MiB with pages of 4 KiB, 512 MiB with those of 64 KiB.
const fn are_pieces(page: usize) -> bool {
    page * (page / 8) == PIECE
}

/// Whether a new mapping should consist of huge pages, in a system with pages of this length.
fn suits(page: usize, length: usize, protection: c_int, flags: c_int) -> bool {
    if !are_pieces(page) {
        return false;
    }
    let is_anonymous = flags & (libc::MAP_ANONYMOUS | libc::MAP_TYPE) == libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
    let is_data = protection == libc::PROT_READ | libc::PROT_WRITE;
    length >= PIECE && is_anonymous && is_data && flags & LEFT == 0
}

/// The large mappings that a program has made so far, and whether it uses them: the peak of its resident memory grows
/// with them. Whoever gives memory back and maps it anew grows less, and counts as one who does not: that is safe.
/// So does for a while who runs on many CPUs: the peak lacks what is counted for each of them alone, up to
/// `max(32, 2 * CPUs)` pages (`compute_batch_value` in `lib/percpu_counter.c`, for memory since Linux 6.2). Other
/// memory that grows meanwhile, as of files that are mapped, counts as use; the book tells it.
///
/// `Relaxed` everywhere: hints. If two threads map at once, one mapping more or less is huge.
struct Mappings {
    /// The sum of their lengths; 0 before the first.
    bytes: AtomicUsize,
    /// The peak before the first of them, in bytes.
    peak: AtomicUsize,
}

/// A program shows how it uses so much, before any of it is huge: a fork copies its page tables in 0.15 ms.
const LEAST_SEEN: usize = 8 << 20;

static MAPPINGS: Mappings = Mappings::new();

impl Mappings {
    const fn new() -> Self {
        Self { bytes: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Notes a mapping that was just made, when resident memory was `peak` bytes at most. Returns whether it should be
    /// huge: at least three quarters of what was mapped before are used, and it is no longer than all of that.
    fn adds(&self, length: usize, peak: usize) -> bool {
        let before = self.bytes.fetch_add(length, Ordering::Relaxed);
        let used = peak.saturating_sub(self.peak.load(Ordering::Relaxed));
        // Whoever does not use half is observed anew: the next mappings may be of another kind.
        if before == 0 || before >= LEAST_SEEN && used < before / 2 {
            self.bytes.store(length, Ordering::Relaxed);
            self.peak.store(peak, Ordering::Relaxed);
            return false;
        }
        before >= LEAST_SEEN && used >= before / 4 * 3 && length <= before
    }
}

/// Called with each mapping that the program has just made.
pub(crate) fn mapped(address: usize, length: usize, protection: c_int, flags: c_int) {
    if !suits(rustix::param::page_size(), length, protection, flags) {
        return;
    }
    let Some(started) = started::get().filter(|started| started.settings.mapped != Mapped::AsItIs) else { return };
    let before = errno::get();
    let is_wanted = match started.settings.mapped {
        // A filter may end the program for a call that it does not make itself.
        _ if !confined::is_free(started) => false,
        Mapped::AsItIs => false,
        Mapped::Huge => true,
        Mapped::HugeIfDense => {
            let is_dense = moment::peak()
                .is_some_and(|kilobytes| MAPPINGS.adds(length, usize::try_from(kilobytes << 10).unwrap_or(usize::MAX)));
            if is_dense {
                earlier::advance();
            } else {
                earlier::note(address, length);
            }
            is_dense
        }
    };
    if is_wanted {
        // If it is refused, there are base pages. SAFETY: 1. of memory that nobody uses yet; changes no contents.
        unsafe { kernel::madvise(ptr::with_exposed_provenance_mut(address), length, libc::MADV_HUGEPAGE) };
    }
    errno::set(before);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays mappings, after each of which this many of 256 parts of it are touched. Returns how many bytes were huge,
    /// and how many at the first huge one were mapped before.
    fn played(mappings: &Mappings, lengths: &[usize], parts: usize, peak: &mut usize) -> (usize, usize) {
        let (mut huge, mut first, mut all) = (0, 0, 0);
        for &length in lengths {
            if mappings.adds(length, *peak) {
                huge += length;
                first = if first == 0 { all } else { first };
            }
            all += length;
            *peak += length / 256 * parts;
        }
        (huge, first)
    }

    /// Fails on: huge pages for a program that touches its memory here and there; none for one that fills it; a mapping
    /// that is larger than all that is known of the program.
    #[test]
    fn memory_of_a_program_that_uses_what_it_maps_is_huge_and_no_other() {
        // As jemalloc maps: each a fifth more than the last.
        let growing: Vec<usize> =
            std::iter::successors(Some(PIECE), |length| Some(length + length / 5)).take(24).collect();
        let same = [2 * PIECE; 40];
        for lengths in [&growing[..], &same] {
            let all: usize = lengths.iter().sum();
            for (parts, is_huge) in [(256, true), (224, true), (180, false), (100, false), (1, false)] {
                // Before all of them the program has other memory.
                let (huge, first) = played(&Mappings::new(), lengths, parts, &mut (700 << 20));
                assert_eq!(huge > 0, is_huge, "{parts} of 256, {all}");
                assert!(!is_huge || (LEAST_SEEN..=2 * LEAST_SEEN).contains(&first), "{first} of {all}");
                assert!(!is_huge || huge + first == all, "all from then on");
            }
        }
        let (mappings, mut peak) = (Mappings::new(), 0);
        played(&mappings, &same, 256, &mut peak);
        assert!(!mappings.adds(81 * 2 * PIECE, peak) && mappings.adds(2 * PIECE, peak + 81 * 2 * PIECE));
    }

    /// Fails on: a program that once mapped memory in vain, and then never has huge pages.
    #[test]
    fn who_begins_to_use_its_memory_is_seen() {
        let (mappings, mut peak, same) = (Mappings::new(), 5 << 20, [2 * PIECE; 40]);
        assert_eq!(played(&mappings, &same, 0, &mut peak).0, 0);
        assert!(played(&mappings, &same, 256, &mut peak).0 >= 30 * 2 * PIECE);
    }

    #[test]
    fn only_large_private_memory_that_is_written_suits() {
        const PAGE: usize = 4096;
        let (data, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        assert!(
            suits(PAGE, PIECE, data, own) && suits(PAGE, 64 * PIECE, data, own | libc::MAP_NORESERVE | libc::MAP_FIXED)
        );
        assert!(!suits(PAGE, PIECE - 1, data, own), "small");
        for protection in [libc::PROT_NONE, libc::PROT_READ, data | libc::PROT_EXEC] {
            assert!(!suits(PAGE, PIECE, protection, own), "{protection}");
        }
        for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, own | libc::MAP_STACK] {
            assert!(!suits(PAGE, PIECE, data, flags), "{flags:#x}");
        }
        assert!(
            !suits(PAGE, PIECE, data, own | libc::MAP_POPULATE) && !suits(PAGE, PIECE, data, own | libc::MAP_HUGETLB)
        );
    }

    /// Fails on: huge pages of 512 MiB for a program that maps 3 MiB, in a kernel with pages of 64 KiB.
    #[test]
    fn huge_pages_of_another_length_are_not_asked_for() {
        let (data, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        for (page, is_asked) in [(4 << 10, true), (16 << 10, false), (64 << 10, false)] {
            for length in [PIECE, 64 * PIECE, 512 * PIECE] {
                assert_eq!(suits(page, length, data, own), is_asked, "{page} {length}");
            }
        }
    }
}
