//! The protocol's user-space machine.

use std::cell::{Cell, RefCell};

use palimpsest_sys::arch::flush_instruction_cache;

use super::arch;
use super::domain::{Domain, State};
use super::error::PokeError;
use super::protocol::Machine;
use super::site::{Action, Part, Site};
use crate::pack::Program;

/// What a site is part of.
#[derive(Clone, Copy)]
pub(super) enum Target<'p> {
    Program(&'p Program),
    Text,
}

impl Target<'_> {
    /// Whether forked children have the same memory, and not a copy.
    pub(super) fn is_shared(&self) -> bool {
        match self {
            Self::Program(program) => program.alias(0).is_some(),
            Self::Text => false,
        }
    }

    /// Where to store, if there is a view to store to.
    fn alias(&self, address: usize) -> Option<*mut u8> {
        match self {
            Self::Program(program) => program.alias(address - program.address().get()),
            Self::Text => None,
        }
    }
}

/// One batch on its way.
pub(super) struct UserMachine<'a> {
    domain: &'a Domain,
    state: RefCell<&'a mut State>,
    /// What each site of the batch is part of.
    targets: &'a [Target<'a>],
    pub(super) writes: Cell<u64>,
    pub(super) syncs: Cell<u64>,
}

impl<'a> UserMachine<'a> {
    /// # Safety
    ///
    /// 1. Every site that the machine is used with has the target at its index, lies in it, and holds what the protocol says.
    /// 2. Whoever runs a site can bear what the protocol does to it.
    pub(super) unsafe fn new(domain: &'a Domain, state: &'a mut State, targets: &'a [Target<'a>]) -> Self {
        Self { domain, state: RefCell::new(state), targets, writes: Cell::new(0), syncs: Cell::new(0) }
    }

    fn entries<'s>(&'s self, sites: &'s [Site], shared: bool) -> impl Iterator<Item = (usize, Action)> + 's {
        let both = sites.iter().zip(self.targets);
        let of_this_kind = both.filter(move |(_, target)| target.is_shared() == shared);
        of_this_kind.filter_map(|(site, _)| Some((site.address, site.action?)))
    }
}

impl Machine for UserMachine<'_> {
    type Error = PokeError;

    const TRAP: &'static [u8] = arch::TRAP;

    fn write(&self, sites: &[Site], part: Part) -> Result<(), PokeError> {
        let parts = || sites.iter().zip(self.targets).filter_map(|(site, target)| Some((target, site.part(part)?)));
        for (target, (address, bytes)) in parts() {
            let Some(alias) = target.alias(address) else { continue };
            match part {
                // SAFETY: the part lies in the program (1), whose view is writable for as long as the program lives.
                Part::Whole => unsafe { arch::store_whole(alias, bytes) },
                // SAFETY: as above.
                _ => unsafe { store_bytes(alias, bytes) },
            }
            self.writes.set(self.writes.get() + 1);
        }
        let private = parts().filter(|(target, _)| !target.is_shared()).map(|(_, piece)| piece);
        // SAFETY: 1. sites lie in mapped code, whose old bytes have been read, and nobody holds references into code; 2. the
        // protocol's claim (2).
        let writes = unsafe { self.state.borrow_mut().text.write(private) }?;
        self.writes.set(self.writes.get() + writes);
        for (_, (address, bytes)) in parts() {
            flush_instruction_cache(address..address + bytes.len());
        }
        Ok(())
    }

    fn sync_cores(&self) -> Result<(), PokeError> {
        self.state.borrow_mut().sync_cores()?;
        self.syncs.set(self.syncs.get() + 1);
        Ok(())
    }

    fn publish(&self, sites: &[Site]) {
        for (table, shared) in [(self.domain.private(), false), (self.domain.shared(), true)] {
            table.publish(self.entries(sites, shared));
        }
    }

    fn withdraw(&self) {
        self.domain.private().withdraw();
        self.domain.shared().withdraw();
    }
}

/// Stores byte by byte: what is between is for the protocol to bear.
///
/// # Safety
///
/// 1. `bytes.len()` bytes from `alias` on are writable.
pub(super) unsafe fn store_bytes(alias: *mut u8, bytes: &[u8]) {
    for (offset, &byte) in bytes.iter().enumerate() {
        // SAFETY: in bounds (1).
        let at = unsafe { alias.add(offset) };
        // Volatile: instruction fetch of other cores is a reader that the compiler does not know of.
        // SAFETY: writable (1).
        unsafe { at.write_volatile(byte) };
    }
}
