//! The address space of the kernel itself: its image with the rights that each part needs, the physical map, packs of
//! programs, and what modules have beside their code.
//!
//! Text and read-only data are mapped by 4 KiB pages, so that nodes can have their own copies. Data is mapped by large
//! pages, and the physical map by 1 GiB pages: on x86-64 a process's space is a fork of this one, a fork shares only
//! tables of 4 KiB pages, stores through a shared table fault, and a store to a stack must not fault. On AArch64 the
//! entry's data are mapped by small pages, as user mode's root has them ([`mmu::ENTRY_DATA`]).

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use palimpsest_paging::format::{Entry, Format};
use palimpsest_paging::{
    Attributes, Frame, Level, Machine, MemoryType, PAGE, PageSize, PageSizes, Rights, SpaceId, SpaceOptions, VirtAddr,
};

use crate::arch::layout;
use crate::arch::mmu::{self, KernelFormat, KernelSpace};
use crate::image;
use crate::memory::{Memory, NODES, nodes};
use crate::modules;
use crate::sync::SpinLock;

/// The kernel's ID as an address space.
pub(crate) const ID: SpaceId = SpaceId(0);

unsafe extern "C" {
    static image_start: [u8; 0];
    static rodata_start: [u8; 0];
    static user_start: [u8; 0];
    static user_end: [u8; 0];
    static data_start: [u8; 0];
    static image_end: [u8; 0];
}

/// Parts of the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ImageRights {
    /// Text.
    Execute,
    /// Read-only data.
    Read,
    /// Both of these.
    Constant,
    /// Data.
    Write,
}

/// Returns where a part of the image is linked.
pub(crate) fn image_range(part: ImageRights) -> Range<VirtAddr> {
    let [start, rodata, end, data, last] = [
        (&raw const image_start) as u64,
        (&raw const rodata_start) as u64,
        (&raw const user_end) as u64,
        (&raw const data_start) as u64,
        (&raw const image_end) as u64,
    ]
    .map(VirtAddr);
    match part {
        ImageRights::Execute => start..rodata,
        ImageRights::Read => rodata..end,
        ImageRights::Constant => start..end,
        ImageRights::Write => data..last,
    }
}

/// Returns where the code of user programs is linked.
pub(crate) fn user_image() -> Range<VirtAddr> {
    VirtAddr((&raw const user_start) as u64)..VirtAddr((&raw const user_end) as u64)
}

/// Whether an address is in the half that the kernel has.
pub(crate) fn is_half_of(address: VirtAddr) -> bool {
    address.0 >> 63 == 1
}

/// Returns where a part of the image was loaded.
pub(crate) fn image_frames(part: ImageRights) -> Range<u64> {
    let range = image_range(part);
    range.start.0 - image::offset()..range.end.0 - image::offset()
}

static SPACE: SpinLock<Option<&'static KernelSpace>> = SpinLock::new(None);
static MADE: AtomicBool = AtomicBool::new(false);

/// Returns the kernel's space.
/// # Panics
///
/// Before [`make`].
pub(crate) fn get() -> &'static KernelSpace {
    SPACE.lock().unwrap_or_else(|| panic!("the kernel's space is made first"))
}

/// Builds the space.
pub(crate) fn make() {
    // Relaxed: the first CPU alone runs.
    assert!(!MADE.swap(true, Ordering::Relaxed), "there is one kernel");
    let space = KernelSpace::new(Memory, ID, &nodes(), SpaceOptions::default());
    let space = space.unwrap_or_else(|error| panic!("{error}"));
    let map = |range: Range<VirtAddr>, physical: u64, rights: Rights, memory: MemoryType, size: PageSize| {
        let attributes = Attributes { memory, ..Attributes::kernel(rights) };
        // SAFETY: 1. frames of the image, the physical map and devices are not counted. 2. They are the kernel's, as it
        // is linked.
        let mapped = unsafe { space.map(range, Frame::containing(physical), attributes, PageSizes::UpTo(size)) };
        mapped.unwrap_or_else(|error| panic!("{error}"));
    };
    let write = Rights::READ | Rights::WRITE;
    let [data, entry] = [image_range(ImageRights::Write), crate::entry::large_data()];
    for (range, rights, size) in [
        (image_range(ImageRights::Execute), Rights::READ | Rights::EXECUTE, PageSize::Small),
        (image_range(ImageRights::Read), Rights::READ, PageSize::Small),
        (data.start..entry.start, write, PageSize::Large),
        (entry.clone(), write, mmu::ENTRY_DATA),
        (entry.end..data.end, write, PageSize::Large),
    ] {
        if !range.is_empty() {
            map(range.clone(), range.start.0 - image::offset(), rights, mmu::ORDINARY, size);
        }
    }
    for (gigabytes, memory) in [(layout::RAM_GIGABYTES, mmu::ORDINARY), (layout::DEVICE_GIGABYTES, mmu::DEVICE)] {
        let bytes = gigabytes.start << 30..gigabytes.end << 30;
        let range = VirtAddr(layout::PHYSICAL_MAP + bytes.start)..VirtAddr(layout::PHYSICAL_MAP + bytes.end);
        map(range, bytes.start, write, memory, PageSize::Giant);
    }
    // By large pages, which each node has its own copy of once they are replicated.
    let packs = crate::packs::frames().address();
    assert!(image_frames(ImageRights::Write).end <= packs, "the image ends before the packs begin");
    let beside = [
        (crate::packs::range(), Rights::READ | Rights::EXECUTE),
        (modules::range(modules::Kind::Constants), Rights::READ),
        (modules::range(modules::Kind::Data), write),
    ];
    for (range, rights) in beside {
        let physical = packs + (range.start.0 - crate::packs::range().start.0);
        map(range, physical, rights, mmu::ORDINARY, PageSize::Large);
    }
    *SPACE.lock() = Some(alloc::boxed::Box::leak(alloc::boxed::Box::new(space)));
}

/// How often text, read-only data and packs exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copies {
    /// Once, on the first node.
    One,
    /// Once for each node.
    EachNode,
}

/// Makes or drops the replicas of text, read-only data and packs: the kernel's, and so those of processes that are made
/// from now on.
pub(crate) fn set_copies(copies: Copies) {
    let beside = crate::packs::range().start..modules::range(modules::Kind::Constants).end;
    for range in [image_range(ImageRights::Constant), beside] {
        let flush = match copies {
            Copies::One => get().drop_replicas(range),
            Copies::EachNode => get().replicate(range).map(|(_, flush)| flush),
        };
        flush.unwrap_or_else(|error| panic!("{error}")).finish();
    }
    crate::entry::set_copies(copies);
}

/// Returns the physical address to which the tables below `root` translate a kernel address, walked as the hardware
/// does.
pub(crate) fn walk(root: Frame, address: VirtAddr) -> Option<u64> {
    walk_by(root, address, |_| ())
}

/// Does what [`walk`] does, and shows `visit` each table on the way.
pub(crate) fn walk_by(root: Frame, address: VirtAddr, visit: impl FnMut(Frame)) -> Option<u64> {
    let (level, bits) = last_entry(root, address, visit)?;
    match KernelFormat::decode(level, bits) {
        Entry::Leaf(leaf) => Some(leaf.frame.address() + (address.0 & (level.entry_bytes() - 1))),
        Entry::Empty | Entry::Table { .. } => None,
    }
}

/// Returns the entry that translates a kernel address below `root`, with its level.
pub(crate) fn last_entry(root: Frame, address: VirtAddr, mut visit: impl FnMut(Frame)) -> Option<(Level, u64)> {
    let (mut table, mut level) = (root, KernelFormat::TOP);
    loop {
        visit(table);
        // SAFETY: the tables of the kernel's space live for ever; other roots are of spaces that run.
        let entries = unsafe { Memory.table(table) };
        // Acquire, partner: the Release with which the entry was published.
        let bits = entries.0[level.index(address)].load(Ordering::Acquire);
        match KernelFormat::decode(level, bits) {
            Entry::Empty => return None,
            Entry::Leaf(_) => return Some((level, bits)),
            Entry::Table { frame, .. } => (table, level) = (frame, level.below()?),
        }
    }
}

/// Returns the physical addresses to which the nodes' tables translate a kernel address, each once.
pub(crate) fn copies(address: VirtAddr) -> impl Iterator<Item = u64> {
    let mut copies = [None; NODES];
    get().query_copies(address, |node, mapping| {
        copies[usize::from(node.0)] = Some(mapping.leaf.frame.address() + (address.0 - mapping.address.0));
    });
    copies.into_iter().flatten()
}

/// Returns the number of pages of a part of the image.
pub(crate) fn pages(part: ImageRights) -> usize {
    let range = image_range(part);
    ((range.end.0 - range.start.0) / PAGE) as usize
}
