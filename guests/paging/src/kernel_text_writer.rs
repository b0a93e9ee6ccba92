//! The poke core's machine in a kernel: sites in its own text are written in every node's copy, and cores are
//! synchronised by calls.
//!
//! The text itself is mapped writable nowhere. A store goes through the physical map to every copy of the site that
//! some node's CPUs run. The address space is asked each time (`AddressSpace::query_copies`), so replicas may be made
//! and dropped between batches. A site may lie across two pages, whose copies are independent of each other. The poke
//! core determines the order: all copies have a part before any core is synchronised, so that each copy follows the
//! protocol.

use core::sync::atomic::{AtomicU64, Ordering};

use palimpsest_text::poke::{Machine, Part, Site, Table, arch as isa};

use crate::arch::patch::code_was_written;
use crate::sites::SITES;
use crate::{flush, kernel_space, memory};
use palimpsest_paging::{PAGE, VirtAddr};

/// The table that traps search.
static WORDS: [AtomicU64; Table::words_for(SITES)] = [const { AtomicU64::new(0) }; Table::words_for(SITES)];

/// Traps of sites that CPUs have run into.
pub(crate) static TRAPS_HIT: AtomicU64 = AtomicU64::new(0);

/// Returns the table of the sites that trap.
pub(crate) fn table() -> Table<'static> {
    Table::new(&WORDS)
}

/// A byte of code that is mapped nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unmapped(pub(crate) usize);

/// Writes the kernel's text. There is one at a time.
#[derive(Debug)]
pub(crate) struct KernelTextWriter {
    /// Which copies are written.
    pub(crate) copies: Copies,
}

/// Copies of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copies {
    /// Every node's.
    All,
    /// Only the first, as in a wrong kernel, to show that tests notice.
    First,
}

impl KernelTextWriter {
    /// Returns the addresses, in the physical map, of the byte at `address` in all copies.
    fn places(&self, address: usize) -> impl Iterator<Item = *mut u8> {
        let count = match self.copies {
            Copies::All => usize::MAX,
            Copies::First => 1,
        };
        kernel_space::copies(VirtAddr(address as u64)).take(count).map(memory::alias)
    }

    /// Stores the sites' new bytes once more, after a batch. Processors do not need this.
    ///
    /// QEMU 7.2 reads code, and only afterwards arranges to be told of stores to it, so that a store in between leaves
    /// a translation of the old code for ever. After the batch's last synchronisation no CPU is between these steps,
    /// and a store, even of the same bytes, drops the translation. A CPU that was just running it has left it when all
    /// CPUs have been called once more.
    pub(crate) fn settle(&self, sites: &[Site]) -> Result<(), Unmapped> {
        flush::forget_before_code();
        // A CPU that runs a site meanwhile finds the bytes that are there already.
        let mut parts = sites.iter().filter_map(|site| site.part(Part::Whole));
        parts.try_for_each(|(address, bytes)| self.write_anywhere(address, bytes))?;
        flush::settle_all();
        Ok(())
    }

    /// Stores bytes in all copies.
    pub(crate) fn write_anywhere(&self, address: usize, bytes: &[u8]) -> Result<(), Unmapped> {
        // The bytes may lie in two pages, whose copies may lie anywhere.
        let first = bytes.len().min(PAGE as usize - address % PAGE as usize);
        let (here, behind) = bytes.split_at(first);
        let mut parts = [(address, here), (address + first, behind)].into_iter().filter(|(_, bytes)| !bytes.is_empty());
        parts.try_for_each(|(address, bytes)| match self.write_in_page(address, bytes) {
            0 => Err(Unmapped(address)),
            _ => Ok(()),
        })
    }

    /// Stores bytes of one page in all copies. Returns how many copies there are.
    fn write_in_page(&self, address: usize, bytes: &[u8]) -> usize {
        // A CPU that runs the instruction meanwhile must find the old or the new one; a copy stores byte by byte.
        let is_one_store = isa::fits_single_store(address, bytes.len());
        let store = |place: *mut u8| {
            if is_one_store {
                // SAFETY: 1. the physical map is writable, and what fits one store lies in one page.
                unsafe { isa::store_whole(place, bytes) };
            } else {
                // SAFETY: the physical map is writable, and the bytes lie in one page.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
            }
            code_was_written(place, bytes.len());
        };
        self.places(address).map(store).count()
    }
}

impl Machine for KernelTextWriter {
    type Error = Unmapped;

    const TRAP: &'static [u8] = isa::TRAP;

    fn write(&self, sites: &[Site], part: Part) -> Result<(), Unmapped> {
        for site in sites {
            let Some((address, bytes)) = site.part(part) else { continue };
            if part == Part::Stored {
                let store = |place| {
                    // SAFETY: 1. the physical map is writable, and what fits one store lies in one page.
                    unsafe { isa::store_whole(place, bytes) };
                    code_was_written(place, bytes.len());
                };
                if self.places(address).map(store).count() == 0 {
                    return Err(Unmapped(address));
                }
                continue;
            }
            self.write_anywhere(address, bytes)?;
        }
        Ok(())
    }

    fn sync_cores(&self) -> Result<(), Unmapped> {
        flush::synchronize_all();
        Ok(())
    }

    fn publish(&self, sites: &[Site]) {
        let entries = sites.iter().filter_map(|site| Some((site.address, site.action?)));
        table().publish(entries);
        // SeqCst, partner: the loads of `Table::stamp`. A trap is stored after this.
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    fn withdraw(&self) {
        table().withdraw();
    }
}
