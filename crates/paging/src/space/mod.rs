//! Address spaces.
//!
//! # Who may write a table
//!
//! A table is reached by references: entries of tables above it, or a root.
//! [`TableMeta::shares`](crate::TableMeta::shares) counts them. While it is above one, the table is *shared*, and
//! nobody writes to it but for two changes that are right for every sharer: marks that the CPU could set too, and
//! taking away the hardware's right to write.
//!
//! Code of this crate writes entries through [`Exclusive`] alone, and gets one only for a root, or for a table below
//! another [`Exclusive`] by [`Exclusive::enter`], which copies a shared table first (*unshares* it). So nothing can
//! forget to.
//!
//! # Unsharing, and why no CPU sees a mixture
//!
//! Spaces A and B refer to T. A stores to a page of T and faults, since its entry for T lets no store pass (or T's
//! leaves do not).
//!
//! | | A, under its lock | B, under its own |
//! |---|---|---|
//! | a | sees two references | |
//! | b | takes the hardware's right to write from T's leaves; builds T' from them; each page has one more reference | reads T, writes nothing |
//! | c | one store: its entry points to T' | |
//! | d | flush of A's CPUs, waited for | may do a to d itself: it sees two references as well |
//! | e | drops its reference to T | |
//! | f | | sees one reference: T is its own; its entry lets stores pass again |
//!
//! - A page of T never loses its protection while two entries refer to it: its reference count says two from b on, and
//!   leaves of T stay protected, so that in f B's stores fault page by page and find the count.
//! - B does not write to T while A's CPUs may walk it: A's reference is dropped behind the flush (e after d). The last
//!   sharer sees what A has done to T (Release in `drop_share`, Acquire in `shares`).
//! - If B comes to a between b and e, T is copied twice and the last of d to e frees it. That costs memory and is
//!   right.
//! - The entry is never empty in between, and A's CPUs translate to the same pages by T and by T'.
//!
//! References go up only under the lock of a space that has one, so that "one reference, and it is mine" stays true
//! under my lock.

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
use crate::machine::{Charge, Machine, Node, Table};
use crate::meta::TableMeta;
use exclusive::Exclusive;
pub(crate) use slots::{check_range, entry_range, slots, whole_entries};

/// Nodes that a space can have roots for.
pub const MAX_NODES: usize = 8;

/// Which tables a fork shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareTables {
    /// None: all are copied, as fork does without this crate.
    None,
    /// Tables of pages.
    Last,
    /// Tables of this level, and so all below them.
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

/// Who is charged for what is mapped by shared tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accounting {
    /// Every space for every page that it has mapped, as soon as it has.
    Exact,
    /// The space that made the table; another from when it gets a table of its own.
    Deferred,
}

/// How a space behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceOptions {
    pub(crate) share: ShareTables,
    pub(crate) accounting: Accounting,
}

impl SpaceOptions {
    /// Shares tables of the last level, and accounts for pages later.
    pub const fn new() -> Self {
        Self { share: ShareTables::Last, accounting: Accounting::Deferred }
    }

    /// What forks share.
    #[must_use]
    pub const fn share(mut self, share: ShareTables) -> Self {
        self.share = share;
        self
    }

    /// Who is charged.
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
/// Operations take `&self` and the space's own lock; several CPUs may use it at once. It must be on no CPU when it is
/// dropped.
pub struct AddressSpace<F: Format, M: Machine> {
    machine: M,
    id: SpaceId,
    options: SpaceOptions,
    owed: Owed,
    inner: SpinLock<Inner>,
    format: PhantomData<F>,
}

/// What the lock protects.
pub(crate) struct Inner {
    /// The root, and those of other nodes where the space has replicas.
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
    /// An empty space with a root for each of `nodes`. Tables that are not replicated are on the first.
    ///
    /// # Errors
    ///
    /// No memory for the roots.
    ///
    /// # Panics
    ///
    /// Without a node, with more than [`MAX_NODES`], or with one twice.
    pub fn new(machine: M, id: SpaceId, nodes: &[Node], options: SpaceOptions) -> Result<Self, NoTables> {
        assert!(!nodes.is_empty() && nodes.len() <= MAX_NODES, "a space has 1 to {MAX_NODES} nodes");
        let mut roots = ArrayVec::<_, MAX_NODES>::new();
        for &node in nodes {
            assert!(roots.iter().all(|(of, _)| *of != node), "a space has each node once");
            let Some(root) = machine.allocate_table(node) else {
                for (_, root) in roots {
                    // SAFETY: 1. allocated above, and nobody has seen it.
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

    /// The space's name to the machine.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// The first of its nodes: where what is not replicated lies.
    pub fn home(&self) -> Node {
        self.lock().home()
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The root for CPUs of `node`, to be loaded into CR3, TTBRn or satp: that node's own, or that of the nearest
    /// ([`Machine::distance`]) of the space's nodes.
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
        // No CPU runs the space, so that nothing is left to flush but what may linger under its tag.
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
    /// An obligation to which operations add.
    pub(crate) fn flush(&self) -> Flush<'s, F, M> {
        Flush::new(self.machine, self.id, self.home(), self.owed)
    }

    /// To be called before the empty entries of `range` are made. Some architectures want every CPU to have forgotten
    /// an old entry before a new one is made in its place (Arm ARM, "Using break-before-make when updating translation
    /// table entries"). There this flushes, if a flush of this space is still to be waited for: it may be that of
    /// entries that were here.
    pub(crate) fn before_make(&self, range: Range<VirtAddr>, flush: &mut Flush<'s, F, M>) {
        if F::BREAK_BEFORE_MAKE && self.owed.any_beside(flush) {
            flush.note(range);
            flush.settle();
        }
    }

    /// The entries of a table that the space refers to.
    pub(crate) fn table(&self, frame: Frame) -> &'s Table {
        // SAFETY: 1. the space refers to it and holds its lock; references are dropped behind flushes, under the lock
        // or by whoever ends the space.
        unsafe { self.machine.table(frame) }
    }

    /// The meta data of a table that the space refers to.
    pub(crate) fn meta(&self, frame: Frame) -> &'s TableMeta {
        // SAFETY: 1. as for `table`.
        unsafe { self.machine.meta(frame) }
    }

    /// Entry `index` of a table of `level`.
    pub(crate) fn entry(&self, table: Frame, level: Level, index: usize) -> Entry {
        F::decode(level, entry::load(&self.table(table).0[index]))
    }

    /// The first root.
    pub(crate) fn root(&self) -> Frame {
        self.inner.roots[0].1
    }

    /// Which of the roots CPUs of `node` use.
    pub(crate) fn root_index(&self, node: Node) -> usize {
        let roots = &self.inner.roots;
        let own = roots.iter().position(|(of, _)| *of == node);
        let nearest = || (0..roots.len()).min_by_key(|&index| self.machine.distance(node, roots[index].0));
        own.or_else(nearest).unwrap_or(0)
    }

    /// The node of the first root: where tables are allocated.
    pub(crate) fn home(&self) -> Node {
        self.inner.roots[0].0
    }

    /// The first root, to be written.
    pub(crate) fn exclusive_root(&self) -> Exclusive<'_, 's, F, M> {
        Exclusive::root(self)
    }
}

fn roots_got(nodes: &[Node], failed: Node) -> usize {
    nodes.iter().take_while(|&&node| node != failed).count()
}
