//! Page tables for kernels, hypervisors and VMMs. Forks share tables until one side changes them, and each NUMA node
//! can have its own copies.
//!
//! An [`AddressSpace`] is a tree of tables in one of six [formats](mod@format). It needs a [`Machine`]: memory for
//! tables, reference counts of pages, and flushes. An example is a VMM with one virtual CPU, which it stops while
//! tables change:
//!
//! ```
//! use palimpsest_paging::{format::X86_64, *};
//! use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::{Acquire, Relaxed, Release}};
//!
//! /// 4 KiB of guest memory, used as a table or as a page.
//! struct Slot { words: Table, meta: TableMeta, uses: AtomicU32 }
//! struct Vmm(Vec<Slot>);
//!
//! impl Vmm {
//!     fn slot(&self, frame: Frame) -> &Slot { &self.0[(frame.address() / PAGE) as usize] }
//!     fn take(&self) -> Option<Frame> {
//!         let index = self.0.iter().position(|slot| slot.uses.compare_exchange(0, 1, Acquire, Relaxed).is_ok())?;
//!         self.0[index].words.0.iter().for_each(|word| word.store(0, Relaxed));
//!         Frame::new(index as u64 * PAGE)
//!     }
//! }
//!
//! // SAFETY: 1, 2, 4, 5. `take` hands a slot out once until its count is 0; slots never move; meta data are reset. 3.
//! // The virtual CPU is stopped, and starts without a TLB. 6. Counts fall with Release, and are read with Acquire.
//! unsafe impl Machine for &Vmm {
//!     type Pending = ();
//!     fn allocate_table(&self, _: Node) -> Option<Frame> {
//!         self.take().inspect(|&table| self.slot(table).meta.reset())
//!     }
//!     fn free_tables(&self) -> usize { self.0.iter().filter(|slot| slot.uses.load(Relaxed) == 0).count() }
//!     unsafe fn free_table(&self, table: Frame) { self.slot(table).uses.store(0, Release) }
//!     unsafe fn table(&self, table: Frame) -> &Table { &self.slot(table).words }
//!     unsafe fn meta(&self, table: Frame) -> &TableMeta { &self.slot(table).meta }
//!     fn retain(&self, page: Page) { self.slot(page.frame).uses.fetch_add(1, Relaxed); }
//!     fn release(&self, page: Page) { self.slot(page.frame).uses.fetch_sub(1, Release); }
//!     fn is_exclusive(&self, page: Page) -> bool { self.slot(page.frame).uses.load(Acquire) == 1 }
//!     fn copy(&self, page: Page, _: Node) -> Option<Frame> {
//!         let copy = self.take()?;
//!         let words = self.slot(page.frame).words.0.iter().zip(&self.slot(copy).words.0);
//!         words.for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
//!         Some(copy)
//!     }
//!     fn dispatch(&self, _: FlushRequest<'_>) {}
//!     fn wait(&self, _: ()) {}
//! #   // No device writes to guest memory by itself, and all pages are small.
//! #   fn pin(&self, _: Page) {}
//! #   fn unpin(&self, _: Page) {}
//! #   fn is_pinned(&self, _: Page) -> bool { false }
//! #   fn split(&self, _: Page) {}
//! #   fn merge(&self, _: Page) -> bool { false }
//! }
//!
//! type Guest<'v> = AddressSpace<X86_64, &'v Vmm>;
//! /// A guest's access: what faults is resolved, and then made again.
//! fn word<'v>(guest: &Guest<'v>, at: VirtAddr, access: Access) -> Result<&'v AtomicU64, FaultError> {
//!     guest.fault(at, access, Node(0))?;
//!     let page = guest.query(at).expect("the guest's memory is mapped");
//!     Ok(&guest.machine().slot(page.leaf.frame).words.0[0])
//! }
//!
//! let slot = |_| Slot { words: Table::new(), meta: TableMeta::new(), uses: AtomicU32::new(0) };
//! let vmm = Vmm((0..64).map(slot).collect());
//! let guest = AddressSpace::new(&vmm, SpaceId(1), &[Node(0)], SpaceOptions::default())?;
//! let (start, memory) = (VirtAddr(0x40_0000), vmm.take().expect("memory is left"));
//! let attributes = Attributes::user(Rights::READ | Rights::WRITE);
//! // SAFETY: 1. `take` has given its only reference. 2. It is the guest's memory, which this program reads as atomics.
//! unsafe { guest.map(start..VirtAddr(start.0 + PAGE), memory, attributes, PageSizes::UpTo(PageSize::Small)) }?;
//! word(&guest, start, Access::USER_WRITE)?.store(1, Relaxed);
//!
//! let (clone, flush) = guest.fork(SpaceId(2))?;
//! flush.finish();
//! // Both refer to the same table, and to the same page. The first store copies both.
//! word(&clone, start, Access::USER_WRITE)?.store(2, Relaxed);
//! assert_eq!(word(&guest, start, Access::USER_READ)?.load(Relaxed), 1);
//! assert_eq!(word(&clone, start, Access::USER_READ)?.load(Relaxed), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The model
//!
//! CPUs run a *space*: a root for each of its nodes, and the tables below. A *table* has a count of the entries and
//! roots that refer to it, kept in its [`TableMeta`]. A *page* has a count too, kept by the machine.
//! [`AddressSpace::fork`] makes a second space that refers to the same last tables ([`ShareTables`]), so that its cost
//! depends on the tables above those, and not on pages. The hardware lets no store through a shared table pass, because
//! of the entry that leads to it ([`ShareMode::TableProtect`](format::ShareMode)) or of each of its pages
//! ([`LeafProtect`](format::ShareMode)). The fault goes to [`AddressSpace::fault`], which copies what is shared and
//! must be written.
//!
//! All operations take `&self` and the space's own lock; several CPUs may use one space, or spaces that share tables,
//! at the same time. An operation reserves the tables that it may need before it changes anything: after an error the
//! tables translate as before.
//!
//! # Who may write a table
//!
//! Only this crate and the page walkers write tables; this crate only through `Exclusive`, obtained for a root or below
//! another `Exclusive`, where a shared table is copied first. So no operation can forget the copy. Two changes of a
//! shared table are right for all its sharers: marking pages as used, and removing the hardware's right to write.
//!
//! Nobody else may change an entry of a space while the space lives.
//!
//! # Flushes
//!
//! An operation that removes a translation returns a [`Flush`], which is [dispatched](Flush::dispatch) and
//! [waited](Flushing::wait) for. Pages and tables that CPUs might still reach are given back after that wait, never
//! before. Dropping the [`Flush`] does both; none is forgotten. The machine is told the addresses ([`FlushRequest`]),
//! and whether tables on the way to them have changed ([`FlushDepth`]).
//!
//! # Replicas
//!
//! A space of several nodes has a root for each, and [`AddressSpace::replicate`] gives each node its own tables and
//! pages for a range, of text for example. All other tables are shared by the roots. With the software machine of the
//! feature `sim`, whose CPU n is on node n:
//!
//! ```
//! use palimpsest_paging::sim::{Computer, Config, MapSimulated};
//! use palimpsest_paging::{format::AArch64, *};
//!
//! let computer = Computer::new::<AArch64>(Config::default().nodes(2).cpus(2));
//! let space = AddressSpace::<AArch64, _>::new(&computer, SpaceId(1), &[Node(0), Node(1)], SpaceOptions::default())?;
//! let text = VirtAddr(0x40_0000)..VirtAddr(0x40_4000);
//! let memory = computer.allocate(Node(0), 4 * PAGE, PageSize::Small).expect("memory is left");
//! let attributes = Attributes::user(Rights::READ | Rights::EXECUTE);
//! space.map_simulated(text.clone(), memory, attributes, PageSizes::UpTo(PageSize::Small))?;
//!
//! let (done, flush) = space.replicate(text.clone())?;
//! flush.finish();
//! // A page each, and the three tables between them and the root.
//! assert_eq!(done, Replicated { tables: 3, pages: 4, single: 0 });
//! for node in [Node(0), Node(1)] {
//!     let page = space.query_on(text.start, node).expect("it is mapped");
//!     assert_eq!(computer.node_of(page.leaf.frame), node);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//!
//! - No stage 2 of AArch64, no EPT or nested tables of AMD, no 16 and 64 KiB granules, no LPA2, no Sv57, no protection
//!   keys and no contiguous hints.
//! - No AArch64 with TCR_EL1.HPDn set, which makes the CPU ignore the bits that protect shared tables.
//! - It runs no CPU instructions: loading a root, flushing, sending interrupts and address-space tags are the
//!   machine's.
//! - It has no policy: the caller decides what to map at a fault ([`Fault::NotMapped`]), swap, merge or replicate.
//!
//! # Features
//!
//! - `sim`: the software machine, for tests of this crate and of its users. Needs `std`; without it the crate is
//!   `no_std`, without `alloc`.
#![cfg_attr(not(any(test, loom, feature = "sim")), no_std)]

mod access;
mod address;
mod attributes;
mod deferred;
mod entry;
mod error;
mod flush;
pub mod format;
mod id;
mod lock;
mod machine;
mod meta;
mod primitive;
mod reserve;
#[cfg(all(not(loom), any(test, feature = "sim")))]
pub mod sim;
mod space;

pub use access::{Access, AccessKind};
pub use address::{ENTRIES, Frame, LAST_PAGE, Level, PAGE, PageSize, VirtAddr};
pub use attributes::{Attributes, MemoryType, Privilege, Rights, Scope, Sharing, Stores};
pub use error::{ChangeError, FaultError, ForkError, MapError, NoTables, PinError, RangeError};
pub use flush::{Flush, Flushing};
pub use id::SpaceId;
pub use machine::{Charge, FlushDepth, FlushRanges, FlushRequest, Machine, Node, Page, Table};
pub use meta::TableMeta;
pub use space::{
    Accounting, AddressSpace, ChildReplicas, Cursor, CursorMapError, CursorMut, Fault, ForkOptions, Inconsistency,
    MAX_NODES, Mapping, Mark, PageSizes, Replicated, Resolution, SeekError, ShareTables, SpaceOptions,
};
