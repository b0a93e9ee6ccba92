//! What an address space needs from the machine that it runs on: memory for tables, counted pages, and flushes.
//!
//! All methods take `&self`: a kernel's machine knows the current CPU, a test's machine contains a whole computer.

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
    /// Creates an empty table.
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

/// What must leave the TLBs of every CPU that runs a space.
#[derive(Clone, Copy, Debug)]
pub struct FlushRequest<'a> {
    /// The space.
    pub space: SpaceId,
    /// The addresses.
    pub what: FlushRanges<'a>,
    /// How much of each walk.
    pub depth: FlushDepth,
}

/// How much of a walk has changed.
///
/// | | x86-64 | AArch64 | RISC-V |
/// |---|---|---|---|
/// | `Leaves` | `invlpg` | `tlbi vale1is`, `vaale1is` | `sfence.vma` with an address |
/// | `Tables` | `invlpg`, which always drops the caches of upper levels (SDM volume 3, 5.10.4.1) | `tlbi vae1is`, `vaae1is` | `sfence.vma` without an address: one with an address orders only leaves (privileged architecture, 12.2.1) |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FlushDepth {
    /// Only entries of pages: caches of upper levels may stay.
    Leaves,
    /// Entries that lead to tables, too.
    Tables,
}

/// Addresses of a [`FlushRequest`].
#[derive(Clone, Copy, Debug)]
pub enum FlushRanges<'a> {
    /// All translations of the space.
    All,
    /// Translations of these addresses. Whole pages; ranges may overlap.
    Some(&'a [Range<VirtAddr>]),
}

/// Units that a space is charged with, or given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charge {
    /// 4 KiB pages that it has mapped.
    pub pages: i64,
    /// Tables.
    pub tables: i64,
}

/// The machine.
///
/// # Uncounted memory
///
/// Device registers, firmware and the like have no reference counts. The machine knows them by their frames: for such a
/// page [`retain`](Self::retain), [`release`](Self::release), [`pin`](Self::pin), [`unpin`](Self::unpin) and
/// [`split`](Self::split) do nothing, [`is_pinned`](Self::is_pinned) and [`is_exclusive`](Self::is_exclusive) are
/// false, [`merge`](Self::merge) is true and [`replica`](Self::replica) is none. Device registers are mapped as
/// [`Sharing::Shared`](crate::Sharing::Shared), so that stores reach them also after a fork; the first store to a
/// [`Private`](crate::Sharing::Private) page of such memory copies it, to counted memory.
///
/// # Safety
///
/// 1. [`allocate_table`](Self::allocate_table) returns memory that nobody else uses, all zero, until it is given to
///    [`free_table`](Self::free_table). Its [meta data](Self::meta) are as in [`TableMeta::new`], whatever an earlier
///    table in that memory has left there: call [`TableMeta::reset`]. Zeros are something else.
/// 2. [`table`](Self::table) and [`meta`](Self::meta) return, for an allocated table, always the same memory, which
///    nothing but this crate and the page walkers write.
/// 3. [`wait`](Self::wait) returns only when no CPU holds a translation, or a part of one, that the request names and
///    that the CPU made before the request.
/// 4. [`copy`](Self::copy) returns a page that nobody else uses, with the bytes of the other.
/// 5. [`replica`](Self::replica) returns a page with the bytes of the other, which changes only when the other does.
/// 6. All accesses of a CPU to a page before it [releases](Self::release) a reference happen before
///    [`is_exclusive`](Self::is_exclusive) becomes true because of that release, and before the page's memory is handed
///    out again: the count falls with Release, and is read with Acquire. Otherwise loads of a CPU that copies a page
///    may pass its release, and read what the last sharer, which finds the page its own, stores in place meanwhile.
pub unsafe trait Machine {
    /// A flush that was sent out.
    type Pending;

    /// Allocates memory for a table, on `node` if possible, and [resets](TableMeta::reset) its meta data. With debug
    /// assertions, this crate panics if they are not as in [`TableMeta::new`].
    ///
    /// Any operation may call this, with the space's lock held: even those that remove pages, for the list of what
    /// waits for the flush. Those tolerate `None`.
    fn allocate_table(&self, node: Node) -> Option<Frame>;

    /// Returns about how many tables could be allocated at the moment. An operation that needs many more fails at once,
    /// before it takes any.
    fn free_tables(&self) -> usize;

    /// Frees the memory of a table.
    ///
    /// # Safety
    ///
    /// 1. It is an allocated table that no entry, no root and no CPU refers to.
    unsafe fn free_table(&self, table: Frame);

    /// Returns the entries of an allocated table.
    ///
    /// # Safety
    ///
    /// 1. The table is allocated, and stays so while the result is used.
    unsafe fn table(&self, table: Frame) -> &Table;

    /// Returns the meta data of an allocated table.
    ///
    /// # Safety
    ///
    /// 1. The table is allocated, and stays so while the result is used.
    unsafe fn meta(&self, table: Frame) -> &TableMeta;

    /// Counts one more entry that refers to `page`.
    fn retain(&self, page: Page);

    /// Counts one entry less that refers to `page`, which no CPU can reach through that entry any more.
    fn release(&self, page: Page);

    /// Returns whether there is exactly one reference to `page`, so that it can be written in place: the reference of
    /// an entry, or the one handed over to [`map`](crate::AddressSpace::map).
    fn is_exclusive(&self, page: Page) -> bool;

    /// Returns a copy of a page, on `node` if possible, to which one entry will refer.
    fn copy(&self, page: Page, node: Node) -> Option<Frame>;

    /// Returns a page for `node`, or for a node near it, with the bytes of `page`. No entry lets stores to it pass, and
    /// one more entry will refer to it. `None` if `page` should stay single there. It is [released](Self::release) like
    /// any other.
    ///
    /// A kernel that changes its own text keeps one replica for each node and page and returns the same one to every
    /// space, so that it knows what to write.
    fn replica(&self, page: Page, node: Node) -> Option<Frame> {
        self.copy(page, node)
    }

    /// Returns how far memory of `to` is from CPUs of `from`, in any unit; smallest for a node's own. A CPU whose node
    /// has no root uses the nearest node's.
    fn distance(&self, from: Node, to: Node) -> u32 {
        u32::from(from != to)
    }

    /// Counts a device that is going to use `page`, and to write it in place.
    fn pin(&self, page: Page);

    /// Ends one [`pin`](Self::pin).
    fn unpin(&self, page: Page);

    /// Returns whether a device uses `page`.
    fn is_pinned(&self, page: Page) -> bool;

    /// Turns the one reference to a large page into one to each of its 512 parts.
    fn split(&self, page: Page);

    /// Turns the references to all 512 parts of a page into one to the whole. Returns false if that is impossible.
    fn merge(&self, page: Page) -> bool;

    /// Starts a flush.
    fn dispatch(&self, request: FlushRequest<'_>) -> Self::Pending;

    /// Waits until the flush has reached every CPU concerned.
    ///
    /// Sometimes called with a space's lock held: an interrupt that flushes must not take one, and CPUs that spin for
    /// one must take such interrupts.
    fn wait(&self, pending: Self::Pending);

    /// Flushes only on this CPU, which has faulted by a translation that allows less than the tables do.
    fn flush_here(&self, request: FlushRequest<'_>) {
        let pending = self.dispatch(request);
        self.wait(pending);
    }

    /// Called after entries became valid that were not, before the operation ends. On AArch64 `dsb ishst; isb`: without
    /// it, this CPU and others may still find nothing there (Arm ARM D8.16, "Ordering and completion of translation
    /// table updates"). x86-64 needs nothing; RISC-V without Svvptc faults once, and
    /// [`fault`](crate::AddressSpace::fault) finds nothing to do.
    fn entries_made(&self) {}

    /// Returns the first physical address beyond those of this machine's CPUs (x86-64: 2 to the power of CPUID
    /// 80000008H EAX, bits 7 to 0; AArch64: ID_AA64MMFR0_EL1.PARange). The crate refuses frames from there on: their
    /// entries would fault for ever.
    fn physical_end(&self) -> u64 {
        u64::MAX
    }

    /// Charges a space with memory, or gives it back; see [`Accounting`](crate::Accounting).
    fn charge(&self, space: SpaceId, charge: Charge) {
        let _ = (space, charge);
    }

    /// Returns a name of the caller that no other user of a space has at the same time: a thread, or a CPU if a user of
    /// a space is neither preempted nor interrupted by another. With it, a call that would wait for its own caller's
    /// cursor panics; without it, the call waits for ever.
    fn caller(&self) -> Option<NonZeroU64> {
        None
    }

    /// Called while spinning for a lock.
    fn relax(&self) {
        core::hint::spin_loop();
    }
}

/// Allocates a table of `machine`.
pub(crate) fn allocate<M: Machine>(machine: &M, node: Node) -> Option<Frame> {
    let table = machine.allocate_table(node)?;
    // SAFETY: 1. allocated just now.
    let is_reset = || unsafe { machine.meta(table) }.is_new();
    // Loom would explore these loads, of memory that nobody else knows.
    debug_assert!(cfg!(loom) || is_reset(), "the machine has not reset the meta data of the table at {table}");
    Some(table)
}
