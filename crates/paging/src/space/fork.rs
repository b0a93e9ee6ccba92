//! Forking: makes a second space with the same pages; tables and pages are copied only when one of the two changes
//! them.

use arrayvec::ArrayVec;

use super::exclusive::{Exclusive, is_copied_on_write, protected, shared_stores};
use super::kernel_pages::is_kernel_data;
use super::{AddressSpace, Locked, MAX_NODES, account};
use crate::address::{ENTRIES, Frame, Level, PageSize, VirtAddr};
use crate::attributes::Stores;
use crate::entry::{load, publish};
use crate::error::ForkError;
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf};
use crate::id::SpaceId;
use crate::machine::{Machine, Node, Page};
use crate::reserve::Reserve;

/// How a child differs from its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForkOptions<'n> {
    nodes: Option<&'n [Node]>,
    replicas: ChildReplicas,
}

impl<'n> ForkOptions<'n> {
    /// Creates a child on its parent's nodes, without replicas.
    pub const fn new() -> Self {
        Self { nodes: None, replicas: ChildReplicas::Dropped }
    }

    /// Sets the child's nodes, as for [`AddressSpace::new`]: its tables, and the pages that are copied at once, come
    /// from the first.
    #[must_use]
    pub const fn nodes(mut self, nodes: &'n [Node]) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Sets whether the child has replicas.
    #[must_use]
    pub const fn replicas(mut self, replicas: ChildReplicas) -> Self {
        self.replicas = replicas;
        self
    }
}

/// The replicas of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChildReplicas {
    /// None: all of its nodes use the pages of the parent's first.
    #[default]
    Dropped,
    /// The parent's: each of the child's nodes refers to the page of the same node of the parent, and has copies of the
    /// tables on the way. A node that the parent does not have uses the parent's first.
    Inherited,
}

impl<F: Format, M: Machine + Clone> AddressSpace<F, M> {
    /// Returns a new space, independent of this one, that translates as this one does now.
    ///
    /// Shares the tables that [`SpaceOptions::share`](super::SpaceOptions::share) names, so that the cost depends on
    /// the tables above them and not on the pages. Copies at once the tables with pinned pages, with data of the kernel
    /// (which must not fault) or with replicas, and also private pages that are pinned or the kernel's data: a device,
    /// or the kernel, keeps writing to the parent's, also during the copy. Until the flush is waited for, CPUs that run
    /// the parent may still store to pages that the child sees; it should replicate none before.
    ///
    /// # Errors
    ///
    /// [`ForkError`]; this space translates as before, though some first stores may fault once.
    pub fn fork(&self, child: SpaceId) -> Result<(Self, Flush<'_, F, M>), ForkError> {
        self.fork_with(child, ForkOptions::default())
    }

    /// Does the same as [`fork`](Self::fork), with options for the child's nodes and replicas.
    ///
    /// # Errors
    ///
    /// [`ForkError`], as for [`fork`](Self::fork).
    ///
    /// # Panics
    ///
    /// For nodes with which [`AddressSpace::new`] panics.
    pub fn fork_with(&self, child: SpaceId, options: ForkOptions<'_>) -> Result<(Self, Flush<'_, F, M>), ForkError> {
        let locked = self.lock();
        let own: ArrayVec<_, MAX_NODES> = locked.inner.roots.iter().map(|(node, _)| *node).collect();
        let child = Self::new(self.machine.clone(), child, options.nodes.unwrap_or(&own), self.options)?;
        let mut flush = locked.flush();
        {
            let locked_child = child.lock();
            let sources = match options.replicas {
                ChildReplicas::Dropped => ArrayVec::new(),
                ChildReplicas::Inherited => locked.sources(&locked_child),
            };
            let need = locked.tables_to_copy(locked.root(), F::TOP);
            let mut reserve = Reserve::new(locked.machine, need.all, locked_child.home())?;
            let mut rings = ArrayVec::<_, MAX_NODES>::new();
            if !sources.is_empty() {
                for (node, _) in &locked_child.inner.roots[1..] {
                    rings.push(Reserve::new(locked.machine, need.ringed, *node)?);
                }
            }
            // The addresses below are not sign-extended yet, and CPUs may remember each entry that loses a right.
            flush.note_everything_always();
            let (from, to) = (locked.exclusive_root(), locked_child.exclusive_root());
            // No TLB contains anything of the child.
            let mut unused = locked_child.flush();
            let mut job =
                Job { sources, reserve: &mut reserve, rings: &mut rings, flush: &mut flush, child_flush: &mut unused };
            copy(&from, &to, VirtAddr(0), &mut job)?;
        }
        Ok((child, flush))
    }
}

struct Job<'j, 's, 'c, 'm, F: Format, M: Machine> {
    /// For each root of the child, the parent's root from which its pages come; empty if the child has no replicas.
    sources: ArrayVec<usize, MAX_NODES>,
    reserve: &'j mut Reserve<'m, M>,
    /// Tables for the child's other nodes.
    rings: &'j mut ArrayVec<Reserve<'m, M>, MAX_NODES>,
    flush: &'j mut Flush<'s, F, M>,
    child_flush: &'j mut Flush<'c, F, M>,
}

/// The tables that a child needs of its own, below the root.
struct Need {
    all: usize,
    /// How many of them have copies on other nodes.
    ringed: usize,
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    fn tables_to_copy(&self, table: Frame, level: Level) -> Need {
        let mut need = Need { all: 0, ringed: 0 };
        let Some(below) = level.below() else { return need };
        for index in 0..ENTRIES {
            if let Entry::Table { frame, .. } = self.entry(table, level, index)
                && self.must_copy(frame, below)
            {
                let rest = self.tables_to_copy(frame, below);
                need.all += 1 + rest.all;
                need.ringed += usize::from(self.meta(frame).replica().is_some()) + rest.ringed;
            }
        }
        need
    }

    /// Returns whether a table cannot be shared.
    fn must_copy(&self, table: Frame, level: Level) -> bool {
        let meta = self.meta(table);
        level.number() > self.options.share.highest()
            || meta.pinned() > 0
            || meta.replica().is_some()
            || meta.must_not_fault()
    }

    /// Returns, for each root of a child, the root of the same node here, or the first.
    fn sources(&self, child: &Self) -> ArrayVec<usize, MAX_NODES> {
        let here = |node: Node| self.inner.roots.iter().position(|(of, _)| *of == node).unwrap_or(0);
        child.inner.roots.iter().map(|(node, _)| here(*node)).collect()
    }
}

/// Copies or shares the contents of a table. `base` is the first address that it translates, not sign-extended.
fn copy<'s, 'c, F: Format, M: Machine>(
    from: &Exclusive<'_, 's, F, M>,
    to: &Exclusive<'_, 'c, F, M>,
    base: VirtAddr,
    job: &mut Job<'_, 's, 'c, '_, F, M>,
) -> Result<(), ForkError> {
    let (space, level) = (from.space, from.level);
    to.meta.set_kernel_as(from.meta);
    for index in 0..ENTRIES {
        let start = VirtAddr(base.0 + index as u64 * level.entry_bytes());
        match from.get(index) {
            Entry::Empty => {}
            Entry::Table { frame, .. } => {
                let Some(below) = level.below() else { continue };
                if !space.must_copy(frame, below) {
                    space.share_table(frame, below);
                    let bits = F::table(frame, shared_stores::<F>());
                    from.show(index, bits);
                    to.fill(index, bits);
                    space.charge_tree(frame, below, to.space.id);
                    continue;
                }
                let range = start..VirtAddr(start.0 + level.entry_bytes());
                let from = from.enter(index, range.clone(), job.reserve, job.flush);
                let created = to.enter_or_create(index, range, job.reserve, job.child_flush);
                if let (Some(from), Some(below)) = (from, created) {
                    if from.meta.replica().is_some() {
                        to.ring(index, &below, job.rings);
                    }
                    copy(&from, &below, start, job)?;
                }
            }
            Entry::Leaf(leaf) => {
                let Some(size) = level.page_size() else { continue };
                let page = Page { frame: leaf.frame, size };
                let must_copy = || is_kernel_data(&leaf.attributes) || space.machine.is_pinned(page);
                if is_copied_on_write(&leaf) && must_copy() {
                    let copy = space.machine.copy(page, to.space.home());
                    let frame = copy.ok_or(ForkError::NoPage { address: canonical::<F>(start) })?;
                    let marked = space.marked_by_all(from.frame, level, index, leaf);
                    to.fill(index, F::leaf(level, Leaf { frame, stores: Stores::Pass, ..marked }));
                } else {
                    let leaf = protected(from.change_leaf(index, protected).unwrap_or(leaf));
                    inherit(from, to, index, leaf, size, &job.sources);
                }
                to.space.charge_pages(account::pages_of(level));
            }
        }
    }
    Ok(())
}

/// Returns the address with its sign extended, or with the bits of the upper half, as the format requires.
fn canonical<F: Format>(address: VirtAddr) -> VirtAddr {
    if F::is_valid(address) { address } else { VirtAddr(address.0 | !(F::TOP.table_bytes() - 1)) }
}

/// Makes all nodes of the child refer to the pages that `sources` names, or to the first's, `leaf`, if it is empty.
/// `leaf` has the marks of all nodes.
fn inherit<F: Format, M: Machine>(
    from: &Exclusive<'_, '_, F, M>,
    to: &Exclusive<'_, '_, F, M>,
    index: usize,
    leaf: Leaf,
    size: PageSize,
    sources: &[usize],
) {
    let level = from.level;
    // `None` if the parent's node has not used the page yet.
    let of = |source: usize| {
        let table = from.space.ring_of(from.frame).nth(source).unwrap_or(from.frame);
        match F::decode(level, load(&from.space.table(table).0[index])) {
            Entry::Leaf(leaf) => Some(protected(leaf)),
            Entry::Empty | Entry::Table { .. } => None,
        }
    };
    let retain = |frame: Frame| from.space.machine.retain(Page { frame, size });
    let first = sources.first().and_then(|&source| of(source)).unwrap_or(leaf);
    // Marks of all the parent's nodes: any of them may have written a single page.
    let first = first.marked_as(&leaf);
    retain(first.frame);
    to.fill(index, F::leaf(level, first));
    for (table, &source) in to.replicas().zip(sources.iter().skip(1)) {
        match of(source) {
            None => publish(&table.0[index], 0),
            Some(own) if own.frame != first.frame => {
                retain(own.frame);
                publish(&table.0[index], F::leaf(level, own));
            }
            Some(_) => {}
        }
    }
}
