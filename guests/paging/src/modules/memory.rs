//! Room for the constants and the data of modules: a page of 2 MiB for each, behind the packs.

use core::ops::Range;

use palimpsest_module::Extent;
use palimpsest_paging::{Node, VirtAddr};
use palimpsest_text::ChunkMap;

use crate::memory::{alias, nodes, packs_of};
use crate::packs::{self, CHUNK, Full, PACK, PACKS};
use crate::sync::SpinLock;

/// Chunks of a page.
const CHUNKS: usize = PACK / CHUNK;

/// What room is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Constants, of which each node has its own copy.
    Constants,
    /// Data, which is on the first node.
    Data,
}

impl Kind {
    /// Returns how many bytes behind the start of the packs its page is.
    fn offset(self) -> u64 {
        let page = match self {
            Self::Constants => PACKS,
            Self::Data => PACKS + 1,
        };
        (page * PACK) as u64
    }
}

/// Which chunks are taken, of each kind.
static TAKEN: SpinLock<Option<[ChunkMap<[u64; CHUNKS / 64]>; 2]>> = SpinLock::new(None);

/// Returns the addresses of a kind.
pub(crate) fn range(kind: Kind) -> Range<VirtAddr> {
    let start = packs::range().start.0 + kind.offset();
    VirtAddr(start)..VirtAddr(start + PACK as u64)
}

/// Prepares the room. Once, before any module.
pub(crate) fn make() {
    let chunks = || ChunkMap::new([0; CHUNKS / 64], CHUNKS as u32);
    *TAKEN.lock() = Some([chunks(), chunks()]);
}

/// Returns how many chunks are taken.
pub(crate) fn taken() -> u32 {
    TAKEN.lock().iter().flatten().map(ChunkMap::used).sum()
}

/// Room of a module. Dropping it zeroes it and gives it back.
#[derive(Debug)]
pub(crate) struct Room {
    kind: Kind,
    first: u32,
    count: u32,
}

impl Room {
    /// Takes room, which is zeroed.
    pub(crate) fn take(kind: Kind, extent: Extent) -> Result<Self, Full> {
        let full = Full { bytes: extent.len };
        let count = u32::try_from(extent.len.div_ceil(CHUNK).max(1)).map_err(|_| full)?;
        let align = extent.align.div_ceil(CHUNK) as u32;
        let mut taken = TAKEN.lock();
        let chunks = taken.as_mut().unwrap_or_else(|| panic!("the room is made first"));
        let first = chunks[kind as usize].allocate(count, align).ok_or(full)?;
        Ok(Self { kind, first, count })
    }

    /// Returns how many bytes behind the start of the packs it begins.
    fn offset(&self) -> u64 {
        self.kind.offset() + u64::from(self.first) * CHUNK as u64
    }

    /// Returns where it begins.
    pub(crate) fn start(&self) -> VirtAddr {
        VirtAddr(packs::range().start.0 + self.offset())
    }

    fn bytes(&self) -> usize {
        self.count as usize * CHUNK
    }

    /// Returns where its copies begin, to be written.
    fn copies(&self) -> impl Iterator<Item = *mut u8> {
        let has_copy = move |node: &Node| self.kind == Kind::Constants || node.0 == 0;
        nodes().into_iter().filter(has_copy).map(|node| alias(packs_of(node) + self.offset()))
    }

    /// Stores what is there before the module runs, in every copy.
    pub(crate) fn store(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes(), "{self:?} is left");
        for copy in self.copies() {
            // SAFETY: the physical map is writable, and the room is the caller's, in one page of 2 MiB.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for copy in self.copies() {
            // SAFETY: as in `store`.
            unsafe { core::ptr::write_bytes(copy, 0, self.bytes()) };
        }
        if let Some(chunks) = TAKEN.lock().as_mut() {
            chunks[self.kind as usize].release(self.first, self.count);
        }
    }
}
