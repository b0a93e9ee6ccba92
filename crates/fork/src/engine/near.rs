//! Where the tables lie. The first elements of each are [near](Near): among this library's variables, whose pages and
//! page table a fork copies in any case. What does not fit there is [far](Far) away, in one mapping.
//!
//! A process whose tables have always been near never touches that mapping, and a fork copies nothing of it but its
//! bounds. One page that was written there costs 3 µs, and six in twice 2 MiB cost 5: the pages, their page tables, and
//! what the kernel keeps for each mapping with such pages (docs/records/2026-11-28-near).

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use palimpsest_sys::MapError;
use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::vec::{MappedVec, leak_zeroed};
use palimpsest_sys::proc::sysctl;
use palimpsest_sys::threads::deputy::DeputyStack;

use super::agenda::{Item, MOST_ITEMS};
use super::contents::{Contents, PieceContents};
use super::frozen_map::FarSpans;
use super::hot::{HotPiece, MOST_HOT};
use super::origins::FarOrigins;
use super::piece::PIECE;
use super::records::Held;

/// Most mappings that the tables have room for, however high the sysctl is: the tables are only address space.
const MOST_MAPPINGS: usize = 1 << 21;

/// The first elements of tables, what is used most first.
#[repr(C)]
pub(super) struct Near {
    extents: [MaybeUninit<Held>; 48],
    contents: [MaybeUninit<PieceContents>; 32],
    hot: [MaybeUninit<HotPiece>; 32],
    items: [MaybeUninit<Item>; 16],
}

impl Near {
    pub(super) const fn new() -> Self {
        Self {
            extents: [const { MaybeUninit::uninit() }; _],
            contents: [const { MaybeUninit::uninit() }; _],
            hot: [const { MaybeUninit::uninit() }; _],
            items: [const { MaybeUninit::uninit() }; _],
        }
    }
}

/// What is far away besides the tables. Zeroed memory is valid.
#[repr(C)]
pub(super) struct Far {
    pub(super) map: FarSpans,
    pub(super) origins: FarOrigins,
    /// Last, since it is seldom used.
    pub(super) stack: DeputyStack,
}

/// Tables that have just begun.
pub(super) struct Begun {
    pub(super) hot: MappedVec<HotPiece>,
    pub(super) items: MappedVec<Item>,
    pub(super) contents: MappedVec<PieceContents>,
    pub(super) extents: MappedVec<Held>,
}

/// The mapping.
pub(super) struct Room {
    /// The bytes that the caller has asked for.
    pub(super) head: NonNull<u8>,
    pub(super) far: &'static Far,
    items: NonNull<[u8]>,
    contents: NonNull<[u8]>,
    hot: NonNull<[u8]>,
    extents: NonNull<[u8]>,
}

/// Returns how many mappings the process can have.
fn most_mappings() -> usize {
    let limit = sysctl::max_map_count().unwrap_or(65_530);
    // On top of these come mappings of the kernel, and those that stay when a limit is lowered.
    usize::try_from(limit).unwrap_or(MOST_MAPPINGS).min(MOST_MAPPINGS) + 1024
}

impl Room {
    /// Maps it, with `head` bytes for the caller. It is never given back.
    pub(super) fn map(head: usize) -> Result<Self, MapError> {
        let page = rustix::param::page_size();
        let whole = [
            head,
            size_of::<Far>(),
            MOST_ITEMS * size_of::<Item>(),
            Contents::bytes(),
            MOST_HOT * size_of::<HotPiece>(),
            most_mappings() * size_of::<Held>(),
        ]
        .map(|bytes| bytes.next_multiple_of(page));
        let len: usize = whole.iter().sum();
        // One mapping for all: each costs every fork.
        let room = leak_zeroed(len + PIECE)?;
        // What a usual process uses of it then needs one page table, the only one that a child gets a copy of.
        let ahead = room.as_ptr().addr().next_multiple_of(PIECE) - room.as_ptr().addr();
        // What is left before and behind as well, or the kernel would cut it into three mappings.
        let all = Span::new(room.as_ptr().expose_provenance(), room.as_ptr().addr() + len + PIECE);
        // A huge page would be copied as a whole. A kernel that refuses makes none. SAFETY: 1. changes no contents.
        if unsafe { calls::advise(all, libc::MADV_NOHUGEPAGE) }.is_ok() {
            // The kernel makes no mapping of this and a neighbour without that advice, so that the pages on both sides,
            // each a mapping to copy as well, are not needed to keep them apart.
            for guard in [Span::new(all.start - page, all.start), Span::new(all.end, all.end + page)] {
                // SAFETY: a page without rights that came with the room, whose only user is this function. A refusal
                // leaves it.
                let _ = unsafe { calls::unmap(guard) };
            }
        }
        let mut at = ahead;
        let [head, far, items, contents, hot, extents] = whole.map(|bytes| {
            // SAFETY: together they are no longer than the room from `ahead` on.
            let place = unsafe { room.add(at) };
            at += bytes;
            NonNull::slice_from_raw_parts(place, bytes)
        });
        // SAFETY: fresh memory of the right size, aligned to a page and never given back; all of it is atomics and
        // memory for a stack, for which zero is valid.
        let far = unsafe { far.cast::<Far>().as_ref() };
        Ok(Self { head: head.cast(), far, items, contents, hot, extents })
    }

    /// Returns the tables, empty, which begin in `near`.
    ///
    /// # Safety
    ///
    /// 1. `near` is writable, lives as long as the tables, and belongs only to them, at the latest when they are first
    ///    used.
    pub(super) unsafe fn begin(self, near: *mut Near) -> Begun {
        let Self { hot, items, contents, extents, .. } = self;
        // SAFETY: inside what it points to (1), as all below.
        let near_hot = unsafe { &raw mut (*near).hot };
        // SAFETY: as above.
        let near_items = unsafe { &raw mut (*near).items };
        // SAFETY: as above.
        let near_contents = unsafe { &raw mut (*near).contents };
        // SAFETY: as above.
        let near_extents = unsafe { &raw mut (*near).extents };
        Begun {
            // SAFETY: 1. whole pages of the mapping that are in no other table; as all below. 2. is (1), as all below.
            hot: unsafe { begin(hot, near_hot) },
            // SAFETY: as above.
            items: unsafe { begin(items, near_items) },
            // SAFETY: as above.
            contents: unsafe { begin(contents, near_contents) },
            // SAFETY: as above.
            extents: unsafe { begin(extents, near_extents) },
        }
    }
}

/// Returns a table in `far` that begins in `near`.
///
/// # Safety
///
/// 1. `far` is whole pages of writable memory, which belongs only to the table and is never given back.
/// 2. `near` is writable, lives as long as the table, and belongs only to it.
unsafe fn begin<T: Copy, const NEAR: usize>(far: NonNull<[u8]>, near: *mut [MaybeUninit<T>; NEAR]) -> MappedVec<T> {
    // SAFETY: 1. is (1).
    let table = unsafe { MappedVec::within(far.cast(), far.len()) };
    match NonNull::new(near) {
        // SAFETY: 1. is (2).
        Some(near) => unsafe { table.beginning_in(NonNull::slice_from_raw_parts(near.cast(), NEAR)) },
        None => table,
    }
}
