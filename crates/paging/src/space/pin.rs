//! Pages that devices use.

use super::exclusive::Exclusive;
use super::{AddressSpace, Locked, entry_range};
use crate::address::{Level, VirtAddr};
use crate::error::{FaultError, PinError};
use crate::format::{Entry, Format};
use crate::machine::{Machine, Node, Page};

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Pins the page at `address`: a device may read and write it, and sees what this space sees, also after forks.
    /// First makes the page this space's own, even if it cannot be written: otherwise a copy after a fork could leave
    /// the device with the other space's page.
    ///
    /// A page that is pinned several times must be unpinned as often. Meanwhile it can be neither unmapped nor moved.
    /// Uncounted memory, such as a device's, never moves: it has no pins, and there is nothing to unpin.
    ///
    /// # Errors
    ///
    /// [`PinError`].
    pub fn pin(&self, address: VirtAddr, node: Node) -> Result<Page, PinError> {
        let locked = self.lock();
        let found = if F::is_valid(address) { locked.find(address) } else { None };
        found.ok_or(PinError::NotMapped { address })?;
        let mut flush = locked.flush();
        let table = locked.unshare_above(address, &mut flush)?;
        // The device writes to only one page, and every node must see it.
        let index = table.level.index(address);
        if let Entry::Leaf(leaf) = table.get(index) {
            table.drop_pages(index, &leaf, entry_range(table.level, address), &mut flush);
        }
        locked.make_own(address, node, &mut flush)?;
        flush.note_made();
        flush.settle();
        let page = locked.find(address).ok_or(PinError::NotMapped { address })?.page();
        locked.machine.pin(page);
        if locked.machine.is_pinned(page) {
            locked.count_pin(address, 1);
        }
        Ok(page)
    }

    /// Ends one [`pin`](Self::pin).
    ///
    /// # Errors
    ///
    /// [`PinError::NotMapped`], [`PinError::NotPinned`].
    pub fn unpin(&self, address: VirtAddr) -> Result<(), PinError> {
        let locked = self.lock();
        let found = if F::is_valid(address) { locked.find(address) } else { None };
        let page = found.ok_or(PinError::NotMapped { address })?.page();
        if !locked.machine.is_pinned(page) || locked.meta(locked.table_of(address)).pinned() == 0 {
            return Err(PinError::NotPinned { address });
        }
        locked.machine.unpin(page);
        locked.count_pin(address, -1);
        Ok(())
    }
}

impl<'s, F: Format, M: Machine> Locked<'s, F, M> {
    /// Changes the count of pins in every table on the way to `address`: a fork shares no table with pins.
    fn count_pin(&self, address: VirtAddr, change: i32) {
        let (mut table, mut level) = (self.root(), F::TOP);
        loop {
            self.meta(table).add_pinned(change);
            match (self.entry(table, level, level.index(address)), level.below()) {
                (Entry::Table { frame, .. }, Some(below)) => (table, level) = (frame, below),
                _ => return,
            }
        }
    }

    /// Copies the shared tables on the way to `address`, and returns the table that has the page.
    fn unshare_above<'a>(
        &'a self,
        address: VirtAddr,
        flush: &mut crate::flush::Flush<'s, F, M>,
    ) -> Result<Exclusive<'a, 's, F, M>, FaultError> {
        let mut reserve = crate::reserve::Reserve::new(self.machine, self.shared_above(address), self.home())?;
        let mut table = self.exclusive_root();
        while table.level > Level::LAST {
            let range = entry_range(table.level, address);
            match table.enter(table.level.index(address), range, &mut reserve, flush) {
                Some(below) => table = below,
                None => break,
            }
        }
        Ok(table)
    }
}
