//! What an address space needs of the machine it runs on: memory for tables, pages that are counted, and flushes.
//!
//! Everything is passed as `&self`: a kernel's machine knows the current CPU, a test's machine holds a whole computer.

use core::num::NonZeroU64;
use core::ops::Range;
use core::sync::atomic::AtomicU64;

use crate::address::{ENTRIES, Frame, PageSize, VirtAddr};
use crate::id::SpaceId;
use crate::meta::TableMeta;

/// The entries of a table. Atomic, since the hardware reads them at any time and sets marks in them.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Table(pub [AtomicU64; ENTRIES]);

impl Table {
    /// An empty one.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; ENTRIES])
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

/// A NUMA node, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Node(pub u8);

/// Memory that a leaf entry maps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Page {
    /// Its first frame.
    pub frame: Frame,
    /// Its length.
    pub size: PageSize,
}

/// What is to leave the TLBs of every CPU that runs a space.
#[derive(Clone, Copy, Debug)]
pub struct FlushRequest<'a> {
    /// Whose translations.
    pub space: SpaceId,
    /// Which addresses.
    pub what: FlushRanges<'a>,
    /// How much of each walk.
    pub depth: FlushDepth,
}

/// How much of a walk has changed.
///
/// | | x86-64 | AArch64 | RISC-V |
/// |---|---|---|---|
/// | `Leaves` | `invlpg` | `tlbi vale1is`, `vaale1is` | `sfence.vma` with an address |
/// | `Tables` | `invlpg`, which drops the caches of upper levels in any case (SDM volume 3, 5.10.4.1) | `tlbi vae1is`, `vaae1is` | `sfence.vma` without an address: one with an address orders leaves alone (privileged architecture, 12.2.1) |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FlushDepth {
    /// The entries of pages alone: caches of upper levels may stay.
    Leaves,
    /// Entries that lead to tables too.
    Tables,
}

/// Addresses of a [`FlushRequest`].
#[derive(Clone, Copy, Debug)]
pub enum FlushRanges<'a> {
    /// All translations of the space.
    All,
    /// Those of these addresses. Whole pages; ranges may overlap.
    Some(&'a [Range<VirtAddr>]),
}

/// What a space is charged with, or given back, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charge {
    /// 4 KiB pages that it has mapped.
    pub pages: i64,
    /// Tables.
    pub tables: i64,
}

/// The machine.
///
/// # Memory that nobody counts
///
/// Device registers, firmware and the like have no reference counts. The machine knows them by their frames: for such a
/// page [`retain`](Self::retain), [`release`](Self::release), [`pin`](Self::pin), [`unpin`](Self::unpin) and
/// [`split`](Self::split) do nothing, [`is_pinned`](Self::is_pinned) and [`is_exclusive`](Self::is_exclusive) are
/// false, [`merge`](Self::merge) is true and [`replica`](Self::replica) is none. Device registers are mapped as
/// [`Sharing::Shared`](crate::Sharing::Shared), so that stores reach them after a fork too; a
/// [`Private`](crate::Sharing::Private) page of such memory is copied by the first store, to memory that is counted.
///
/// # Safety
///
/// 1. [`allocate_table`](Self::allocate_table) returns memory that nobody else uses, all zero, until it is given to
///    [`free_table`](Self::free_table).
/// 2. [`table`](Self::table) and [`meta`](Self::meta) return, for an allocated table, always the same memory, which
///    nothing but this crate and the page walkers write.
/// 3. [`wait`](Self::wait) returns only when no CPU holds a translation, or part of one, that the request names and
///    that it made before the request.
/// 4. [`copy`](Self::copy) returns a page that nobody else uses, with the bytes of the other.
/// 5. [`replica`](Self::replica) returns a page with the bytes of the other, which changes only as the other does.
/// 6. Whatever a CPU has done with a page before it [releases](Self::release) a reference is done before
///    [`is_exclusive`](Self::is_exclusive) is true because of that release, and before the page's memory is handed out
///    again: the count falls with Release, and is read with Acquire. Else loads of a CPU that copies a page may pass
///    its release, and read what the last sharer, who finds the page its own, stores in place meanwhile.
pub unsafe trait Machine {
    /// A flush that has been sent out.
    type Pending;

    /// Memory for a table, on `node` if it can be had there. The meta data are as [`TableMeta::new`].
    ///
    /// Any operation may ask, with the space's lock held: also those that take pages away, for the list of what waits
    /// for the flush. There none is no error.
    fn allocate_table(&self, node: Node) -> Option<Frame>;

    /// About how many tables could be allocated at the moment. An operation that needs many more fails at once, before
    /// it takes any.
    fn free_tables(&self) -> usize;

    /// Takes the memory back.
    ///
    /// # Safety
    ///
    /// 1. It is an allocated table that no entry, no root and no CPU refers to.
    unsafe fn free_table(&self, table: Frame);

    /// The entries of an allocated table.
    ///
    /// # Safety
    ///
    /// 1. The table is allocated, and stays so while the result is used.
    unsafe fn table(&self, table: Frame) -> &Table;

    /// The meta data of an allocated table.
    ///
    /// # Safety
    ///
    /// 1. The table is allocated, and stays so while the result is used.
    unsafe fn meta(&self, table: Frame) -> &TableMeta;

    /// One more entry refers to `page`.
    fn retain(&self, page: Page);

    /// One entry less refers to `page`, and no CPU can reach it through that entry.
    fn release(&self, page: Page);

    /// Whether there is exactly one reference to `page`, so that it can be written in place: that of an entry, or the
    /// one that is handed over to [`map`](crate::AddressSpace::map).
    fn is_exclusive(&self, page: Page) -> bool;

    /// A page with the same bytes, on `node` if it can be had there, to which one entry will refer.
    fn copy(&self, page: Page, node: Node) -> Option<Frame>;

    /// A page for `node`, or for one near it, with the bytes of `page`, which no entry lets stores pass to, and to
    /// which one entry more will refer; none if `page` is to stay single there. It is [released](Self::release) as any
    /// other.
    ///
    /// A kernel that changes its own text keeps one replica for each node and page and returns the same one to every
    /// space, so that it knows what to write.
    fn replica(&self, page: Page, node: Node) -> Option<Frame> {
        self.copy(page, node)
    }

    /// How far memory of `to` is from CPUs of `from`, in any unit; the least for a node's own. A CPU whose node has no
    /// root of its own uses the nearest.
    fn distance(&self, from: Node, to: Node) -> u32 {
        u32::from(from != to)
    }

    /// A device is going to use `page`, and to write it in place.
    fn pin(&self, page: Page);

    /// Ends one [`pin`](Self::pin).
    fn unpin(&self, page: Page);

    /// Whether a device uses `page`.
    fn is_pinned(&self, page: Page) -> bool;

    /// The one reference to a large page becomes one to each of its 512 parts.
    fn split(&self, page: Page);

    /// The references to all 512 parts of a page become one to the whole. False if they cannot.
    fn merge(&self, page: Page) -> bool;

    /// Starts a flush.
    fn dispatch(&self, request: FlushRequest<'_>) -> Self::Pending;

    /// Waits until it has reached every CPU concerned.
    ///
    /// Called with a space's lock held in places: an interrupt that flushes must not take one, and CPUs that spin for
    /// one must take such interrupts.
    fn wait(&self, pending: Self::Pending);

    /// Flushes what this CPU alone remembers; it has faulted by a translation that allows less than the tables do.
    fn flush_here(&self, request: FlushRequest<'_>) {
        let pending = self.dispatch(request);
        self.wait(pending);
    }

    /// Called after entries became valid that were not, before the operation ends. On AArch64 `dsb ishst; isb`:
    /// without, this CPU and others may go on finding nothing there (Arm ARM D8.16, "Ordering and completion of
    /// translation table updates"). x86-64 needs nothing; RISC-V without Svvptc faults once, and
    /// [`fault`](crate::AddressSpace::fault) finds nothing to do.
    fn entries_made(&self) {}

    /// The first physical address that CPUs of this machine do not have (x86-64: 2 to the power of CPUID 80000008H EAX,
    /// bits 7 to 0; AArch64: ID_AA64MMFR0_EL1.PARange). Frames from there on are refused: their entries would fault for
    /// ever.
    fn physical_end(&self) -> u64 {
        u64::MAX
    }

    /// Charges a space with memory, or gives it back; see [`Accounting`](crate::Accounting).
    fn charge(&self, space: SpaceId, charge: Charge) {
        let _ = (space, charge);
    }

    /// A name for whoever calls, that no other has who may use a space at the same time: a thread, or a CPU where
    /// whoever uses a space is neither preempted nor interrupted by another user. With it a call that would wait for
    /// its own caller's cursor panics; without, it waits for ever.
    fn caller(&self) -> Option<NonZeroU64> {
        None
    }

    /// Called while spinning for a lock.
    fn relax(&self) {
        core::hint::spin_loop();
    }
}
