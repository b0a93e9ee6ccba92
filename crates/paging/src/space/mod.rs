//! Address spaces.
//!
//! # Who may write a table
//!
//! A table is reached by references: entries of tables above it, or a root.
//! [`TableMeta::shares`](crate::TableMeta::shares) counts them. While it is above one, the table is *shared*. Then only
//! two changes are allowed, which are right for every sharer: setting marks that the CPU could set too, and removing
//! the hardware's right to write.
//!
//! Code of this crate writes entries only through [`Exclusive`], and gets one only for a root, or for a table below
//! another [`Exclusive`] by [`Exclusive::enter`], which first copies a shared table (*unshares* it). So no operation
//! can forget that.
//!
//! # Unsharing, and why no CPU sees a mixture
//!
//! Spaces A and B refer to T. A stores to a page of T and faults, since its entry for T, or T's leaves, let no store
//! pass.
//!
//! | | A, under its lock | B, under its own |
//! |---|---|---|
//! | a | sees two references | |
//! | b | takes the hardware's right to write from T's leaves; builds T' from them; each page has one more reference | reads T, writes nothing |
//! | c | one store: its entry points to T' | |
//! | d | flush of A's CPUs, waited for | may do a to d itself: it sees two references too |
//! | e | drops its reference to T | |
//! | f | | sees one reference: T is its own; its entry lets stores pass again |
//!
//! - A page of T never loses its protection while two entries refer to it: its reference count says two from b on, and
//!   leaves of T stay protected, so that in f B's stores fault page by page and find the count.
//! - B does not write to T while A's CPUs may walk it: A's reference is dropped after the flush (d before e). The last
//!   sharer sees what A has done to T (Release in `drop_share`, Acquire in `shares`).
//! - If B does a between A's b and e, T is copied twice, and the last e frees it. That costs memory, but is right.
//! - The entry is never empty in between, and A's CPUs reach the same pages through T and T'.
//!
//! The number of references grows only under the lock of a space that has one, so that "one reference, and it is mine"
//! stays true under my lock.

mod accessed;
mod account;
mod cursor;
mod cursor_mut;
mod exclusive;
mod fault;
mod fork;
mod kernel_pages;
mod map;
mod mapping;
mod need;
mod node_query;
mod pin;
mod placement;
mod protect;
mod query;
mod remap;
mod replica;
mod replica_pages;
mod slots;
mod split;
mod unmap;
mod verify;

pub use accessed::Mark;
pub use cursor::{Cursor, SeekError};
pub use cursor_mut::{CursorMapError, CursorMut};
pub use fault::{Fault, Resolution};
pub use fork::{ChildReplicas, ForkOptions};
pub use map::PageSizes;
pub use mapping::Mapping;
pub use replica::Replicated;
pub use verify::Inconsistency;

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;

use arrayvec::ArrayVec;

use crate::address::{Frame, Level, VirtAddr};
use crate::entry;
use crate::error::NoTables;
use crate::flush::{Flush, Owed};
use crate::format::{Entry, Format};
use crate::id::SpaceId;
use crate::lock::{Guard, SpinLock};
use crate::machine::{Charge, Machine, Node, Table, allocate};
use crate::meta::TableMeta;
use exclusive::Exclusive;
pub(crate) use slots::{check_range, entry_range, slots, whole_entries};

/// Maximum number of nodes with a root in one space.
pub const MAX_NODES: usize = 8;

/// Which tables a fork shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareTables {
    /// None: a fork copies all, as without this crate.
    None,
    /// Tables of pages.
    Last,
    /// Tables of this level, and so all below.
    UpTo(Level),
}

impl ShareTables {
    #[inline]
    fn highest(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Last => 1,
            Self::UpTo(level) => level.number(),
        }
    }
}

/// Who is charged for pages mapped by shared tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accounting {
    /// Every space for every page that it maps, at once.
    Exact,
    /// The space that made the table; another space when it gets its own table.
    Deferred,
}

/// How a space behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceOptions {
    pub(crate) share: ShareTables,
    pub(crate) accounting: Accounting,
}

impl SpaceOptions {
    /// Returns the defaults: share tables of the last level, and charge for pages later.
    pub const fn new() -> Self {
        Self { share: ShareTables::Last, accounting: Accounting::Deferred }
    }

    /// Sets what forks share.
    #[must_use]
    pub const fn share(mut self, share: ShareTables) -> Self {
        self.share = share;
        self
    }

    /// Sets who is charged.
    #[must_use]
    pub const fn accounting(mut self, accounting: Accounting) -> Self {
        self.accounting = accounting;
        self
    }
}

impl Default for SpaceOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// An address space: a tree of tables, parts of which other spaces may share.
///
/// Operations take `&self` and the space's own lock; several CPUs may use it at once. No CPU may run it when it is
/// dropped.
pub struct AddressSpace<F: Format, M: Machine> {
    machine: M,
    id: SpaceId,
    options: SpaceOptions,
    owed: Owed,
    inner: SpinLock<Inner>,
    format: PhantomData<F>,
}

/// The data under the lock.
pub(crate) struct Inner {
    /// The root, and those of other nodes if the space has replicas.
    roots: ArrayVec<(Node, Frame), MAX_NODES>,
}

/// A space whose lock is held.
pub(crate) struct Locked<'s, F: Format, M: Machine> {
    pub(crate) machine: &'s M,
    pub(crate) id: SpaceId,
    pub(crate) options: SpaceOptions,
    owed: &'s Owed,
    pub(crate) inner: Guard<'s, Inner>,
    format: PhantomData<F>,
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Creates an empty space with a root for each of `nodes`. Tables that are not replicated lie on the first.
    ///
    /// # Errors
    ///
    /// There is no memory for the roots.
    ///
    /// # Panics
    ///
    /// Without a node, with more than [`MAX_NODES`], or with one twice.
    pub fn new(machine: M, id: SpaceId, nodes: &[Node], options: SpaceOptions) -> Result<Self, NoTables> {
        assert!(!nodes.is_empty() && nodes.len() <= MAX_NODES, "a space has 1 to {MAX_NODES} nodes");
        let mut roots = ArrayVec::<_, MAX_NODES>::new();
        for &node in nodes {
            assert!(roots.iter().all(|(of, _)| *of != node), "a space has each node once");
            let Some(root) = allocate(&machine, node) else {
                for (_, root) in roots {
                    // SAFETY: 1. allocated above, and never used.
                    unsafe { machine.free_table(root) };
                }
                return Err(NoTables { needed: nodes.len(), got: roots_got(nodes, node) });
            };
            roots.push((node, root));
        }
        let (owed, inner) = (Owed::default(), SpinLock::new(Inner { roots }));
        let space = Self { machine, id, options, owed, inner, format: PhantomData };
        let locked = space.lock();
        for pair in locked.inner.roots.windows(2) {
            locked.meta(pair[0].1).set_replica(Some(pair[1].1));
        }
        locked.own(locked.root(), F::TOP);
        locked.machine.charge(id, Charge { pages: 0, tables: nodes.len() as i64 - 1 });
        drop(locked);
        Ok(space)
    }

    /// Returns the space's identity.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// Returns the first of its nodes, where everything lies that is not replicated.
    pub fn home(&self) -> Node {
        self.lock().home()
    }

    /// Returns the machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Returns the root for CPUs of `node`, to be loaded into CR3, TTBRn or satp: the node's own, or that of the
    /// nearest ([`Machine::distance`]) among the space's nodes.
    pub fn root(&self, node: Node) -> Frame {
        let locked = self.lock();
        locked.inner.roots[locked.root_index(node)].1
    }

    pub(crate) fn lock(&self) -> Locked<'_, F, M> {
        Locked {
            machine: &self.machine,
            id: self.id,
            options: self.options,
            owed: &self.owed,
            inner: self.inner.lock(self.machine.caller(), || self.machine.relax()),
            format: PhantomData,
        }
    }
}

impl<F: Format, M: Machine> fmt::Debug for AddressSpace<F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, options, .. } = self;
        f.debug_struct("AddressSpace")
            .field("format", &F::NAME)
            .field("id", id)
            .field("options", options)
            .finish_non_exhaustive()
    }
}

impl<F: Format, M: Machine> Drop for AddressSpace<F, M> {
    fn drop(&mut self) {
        // No CPU runs the space, so that only what may linger under its tag is left to flush.
        let mut locked = self.lock();
        let mut flush = locked.flush();
        flush.note_everything_always();
        locked.drop_all_replicas(&mut flush);
        locked.disown_tree(locked.root(), F::TOP);
        flush.defer_table(locked.root(), F::TOP);
        drop(locked);
        flush.settle();
    }
}

impl<'s, F: Format, M: Machine> Locked<'s, F, M> {
    /// Returns an obligation to which operations add.
    pub(crate) fn flush(&self) -> Flush<'s, F, M> {
        Flush::new(self.machine, self.id, self.home(), self.owed)
    }

    /// Must be called before the empty entries of `range` are filled. On some architectures every CPU must have
    /// forgotten an old entry before a new one replaces it (Arm ARM, "Using break-before-make when updating translation
    /// table entries"). There this flushes, if a flush of this space is still outstanding: it may be for entries that
    /// were here.
    pub(crate) fn before_make(&self, range: Range<VirtAddr>, flush: &mut Flush<'s, F, M>) {
        if F::BREAK_BEFORE_MAKE && self.owed.any_beside(flush) {
            flush.note(range);
            flush.settle();
        }
    }

    /// Returns the entries of a table that the space refers to.
    pub(crate) fn table(&self, frame: Frame) -> &'s Table {
        // SAFETY: 1. the space refers to it and holds its lock; references are dropped after flushes, under the lock or
        // when the space ends.
        unsafe { self.machine.table(frame) }
    }

    /// Returns the meta data of a table that the space refers to.
    pub(crate) fn meta(&self, frame: Frame) -> &'s TableMeta {
        // SAFETY: 1. as for `table`.
        unsafe { self.machine.meta(frame) }
    }

    /// Returns entry `index` of a table of `level`.
    pub(crate) fn entry(&self, table: Frame, level: Level, index: usize) -> Entry {
        F::decode(level, entry::load(&self.table(table).0[index]))
    }

    /// Returns the first root.
    pub(crate) fn root(&self) -> Frame {
        self.inner.roots[0].1
    }

    /// Returns the index of the root that CPUs of `node` use.
    pub(crate) fn root_index(&self, node: Node) -> usize {
        let roots = &self.inner.roots;
        let own = roots.iter().position(|(of, _)| *of == node);
        let nearest = || (0..roots.len()).min_by_key(|&index| self.machine.distance(node, roots[index].0));
        own.or_else(nearest).unwrap_or(0)
    }

    /// Returns the node of the first root: where tables are allocated.
    pub(crate) fn home(&self) -> Node {
        self.inner.roots[0].0
    }

    /// Returns the first root, for writing.
    pub(crate) fn exclusive_root(&self) -> Exclusive<'_, 's, F, M> {
        Exclusive::root(self)
    }
}

fn roots_got(nodes: &[Node], failed: Node) -> usize {
    nodes.iter().take_while(|&&node| node != failed).count()
}
