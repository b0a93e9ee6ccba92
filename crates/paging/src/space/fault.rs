//! Page faults.

use super::exclusive::{Exclusive, is_copied_on_write};
use super::kernel_pages::is_kernel;
use super::{AddressSpace, Locked, entry_range};
use crate::access::{Access, AccessKind};
use crate::address::{Level, PageSize, VirtAddr};
use crate::attributes::{Rights, Stores};
use crate::entry::change_leaf;
use crate::error::FaultError;
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf};
use crate::machine::{FlushDepth, FlushRanges, FlushRequest, Machine, Node, Page};
use crate::reserve::Reserve;

/// The outcome of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The access can be repeated.
    Resolved(Resolution),
    /// Nothing is mapped there. The caller decides what to do.
    NotMapped,
    /// The access is not allowed: by the page's rights, because user mode accessed a page of the kernel, or because the
    /// kernel was about to run code of user mode. The caller decides what to do.
    Denied,
}

/// How a fault was resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resolution {
    /// Shared tables that were copied.
    pub unshared: u32,
    /// The page was copied.
    pub copied: bool,
    /// The page had become this space's own, and is written in place from now on.
    pub reused: bool,
    /// From now on the node has its own page, or uses the first node's if there was no memory
    /// ([`AddressSpace::replicate_on_use`]).
    pub replicated: bool,
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Resolves a fault at `address`, on a CPU of `node`: copies what is shared and must be written, fetches the node's
    /// page if it has waited for that, and sets the marks that this format's CPUs do not set. Flushes what is necessary
    /// before it returns.
    ///
    /// # Errors
    ///
    /// [`FaultError`]. The space translates as before; a shared table may have been copied.
    pub fn fault(&self, address: VirtAddr, access: Access, node: Node) -> Result<Fault, FaultError> {
        if !F::is_valid(address) {
            return Ok(Fault::NotMapped);
        }
        let locked = self.lock();
        let Some(mapping) = locked.find(address) else { return Ok(Fault::NotMapped) };
        if !access.is_allowed_by(&mapping.leaf.attributes) {
            return Ok(Fault::Denied);
        }
        let mut flush = locked.flush();
        let replicated = locked.fetch_replica(&mapping, node);
        let resolution = if access.kind == AccessKind::Write {
            Resolution { replicated, ..locked.make_own(address, node, &mut flush)? }
        } else {
            locked.mark_accessed(address);
            Resolution { replicated, ..Resolution::default() }
        };
        flush.note_made();
        flush.settle();
        // This CPU's TLB may still hold a translation without the right. If the fault does not remove it, a flush must,
        // or the access faults for ever. Other CPUs do the same when they fault. A page that was not used yet, or was
        // just copied, is in no TLB.
        if !F::FAULT_EVICTS && mapping.leaf.accessed && !resolution.copied {
            // It may also remember that a table above refuses stores (AArch64), or is missing (RISC-V without Svvptc).
            let depth = FlushDepth::Tables;
            let what = [entry_range(Level::LAST, address)];
            self.machine.flush_here(FlushRequest { space: self.id, what: FlushRanges::Some(&what), depth });
        }
        Ok(Fault::Resolved(resolution))
    }
}

impl<'s, F: Format, M: Machine> Locked<'s, F, M> {
    /// Makes the page at `address` this space's own, so that stores pass if the rights allow them.
    pub(crate) fn make_own(
        &self,
        address: VirtAddr,
        node: Node,
        flush: &mut Flush<'s, F, M>,
    ) -> Result<Resolution, FaultError> {
        let mut resolution = Resolution::default();
        // One table for each shared one on the way.
        let mut reserve = Reserve::new(self.machine, self.shared_above(address), self.home())?;
        let mut table = self.exclusive_root();
        while let Entry::Table { frame, .. } = table.get(table.level.index(address)) {
            resolution.unshared += u32::from(self.meta(frame).shares() > 1);
            table = descend(&table, address, &mut reserve, flush);
        }
        let index = table.level.index(address);
        let (Entry::Leaf(leaf), Some(size)) = (table.get(index), table.level.page_size()) else {
            unreachable!("the page was found under the same lock");
        };
        let writable = leaf.attributes.rights.contains(Rights::WRITE);
        // An entry that is not writable does not show whether others refer to its page.
        let must_copy = is_copied_on_write(&leaf) && (leaf.stores == Stores::Fault || !writable);
        if must_copy && self.machine.is_exclusive(Page { frame: leaf.frame, size }) {
            resolution.reused = true;
        } else if must_copy {
            let copied = if is_kernel(&leaf.attributes) {
                table.copy_kernel_page(index, address, leaf, node, flush)
            } else {
                table.copy_page(index, address, size, node, flush)
            };
            if !copied {
                // There is no large page: a part of it will do, unless the split would unmap what the kernel runs on.
                if size == PageSize::Small || F::BREAK_BEFORE_MAKE && is_kernel(&leaf.attributes) {
                    return Err(FaultError::NoPage { address });
                }
                drop(reserve);
                self.split_down(address, flush)?;
                return self.make_own(address, node, flush).map(|rest| Resolution { copied: true, ..rest });
            }
            resolution.copied = true;
        }
        if writable {
            table.change_leaf(index, |leaf| Leaf { stores: Stores::Pass, accessed: true, dirty: true, ..leaf });
        }
        flush.settle();
        Ok(resolution)
    }

    /// Returns how many tables on the way to `address` are shared, including those below a shared one.
    pub(crate) fn shared_above(&self, address: VirtAddr) -> usize {
        let (mut table, mut level, mut shared) = (self.root(), F::TOP, 0);
        while let Entry::Table { frame, .. } = self.entry(table, level, level.index(address)) {
            let Some(below) = level.below() else { break };
            shared += usize::from(shared > 0 || self.meta(frame).shares() > 1);
            (table, level) = (frame, below);
        }
        shared
    }

    /// Splits the large page that contains `address` until the page there is one of 4 KiB.
    fn split_down(&self, address: VirtAddr, flush: &mut Flush<'s, F, M>) -> Result<(), FaultError> {
        let mut reserve = Reserve::new(self.machine, 2 * F::TOP.number() as usize, self.home())?;
        let mut table = self.exclusive_root();
        while table.level > Level::LAST {
            let index = table.level.index(address);
            if let Entry::Leaf(_) = table.get(index) {
                table.split(index, entry_range(table.level, address), &mut reserve, flush);
            }
            table = descend(&table, address, &mut reserve, flush);
        }
        Ok(())
    }

    /// Marks the page at `address` as used, also in a shared table, as CPUs do that set the mark themselves.
    fn mark_accessed(&self, address: VirtAddr) {
        let (mut table, mut level) = (self.root(), F::TOP);
        while let Entry::Table { frame, .. } = self.entry(table, level, level.index(address)) {
            let Some(below) = level.below() else { return };
            (table, level) = (frame, below);
        }
        let entry = &self.table(table).0[level.index(address)];
        change_leaf::<F>(entry, level, |leaf| Leaf { accessed: true, ..leaf });
        let replicas = core::iter::successors(self.meta(table).replica(), |&frame| self.meta(frame).replica());
        for replica in replicas {
            let entry = &self.table(replica).0[level.index(address)];
            change_leaf::<F>(entry, level, |leaf| Leaf { accessed: true, ..leaf });
        }
    }
}

/// Returns the table below, for one address.
fn descend<'a, 's, F: Format, M: Machine>(
    table: &Exclusive<'a, 's, F, M>,
    address: VirtAddr,
    reserve: &mut Reserve<'_, M>,
    flush: &mut Flush<'s, F, M>,
) -> Exclusive<'a, 's, F, M> {
    match table.enter(table.level.index(address), entry_range(table.level, address), reserve, flush) {
        Some(below) => below,
        None => unreachable!("a table was found there under the same lock"),
    }
}

impl<'s, F: Format, M: Machine> Exclusive<'_, 's, F, M> {
    /// Replaces a page that others refer to by a copy. Returns false if there is no memory for it.
    fn copy_page(
        &self,
        index: usize,
        address: VirtAddr,
        size: PageSize,
        node: Node,
        flush: &mut Flush<'s, F, M>,
    ) -> bool {
        // The entry is emptied and flushed before the page is copied. Otherwise a CPU of this space could read the old
        // page after another CPU has written to the new one; or, while the flush of a fork is still under way, make a
        // store to the old page that the copy would lack.
        let Some(leaf) = self.hide(index) else { return false };
        flush.note(entry_range(self.level, address));
        flush.settle();
        let old = Page { frame: leaf.frame, size };
        let copy = self.space.machine.copy(old, node);
        let shown = Leaf { frame: copy.unwrap_or(leaf.frame), ..leaf };
        self.show(index, F::leaf(self.level, shown));
        flush.note_made();
        if copy.is_some() {
            self.space.machine.release(old);
        }
        copy.is_some()
    }

    /// Does the same as [`copy_page`](Self::copy_page) for a page of the kernel, `leaf`, which translates all the time:
    /// the kernel may run on it.
    fn copy_kernel_page(
        &self,
        index: usize,
        address: VirtAddr,
        leaf: Leaf,
        node: Node,
        flush: &mut Flush<'s, F, M>,
    ) -> bool {
        let Some(size) = self.level.page_size() else { return false };
        // The entry lets no store pass, and after this flush no CPU remembers one that did: the copy lacks no store.
        let range = entry_range(self.level, address);
        flush.note_leaf(range.clone());
        flush.settle();
        let old = Page { frame: leaf.frame, size };
        let Some(frame) = self.space.machine.copy(old, node) else { return false };
        // At once, as for replicas: the bytes are the same. The copy is written after the flush, when no CPU reads the
        // old page any more.
        self.change_leaf(index, |leaf| Leaf { frame, ..leaf });
        flush.note_leaf(range);
        flush.settle();
        self.space.machine.release(old);
        true
    }
}
