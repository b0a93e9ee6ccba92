//! The protocol's user-space machine.

use std::cell::{Cell, RefCell};

use palimpsest_sys::arch::flush_instruction_cache;
use palimpsest_sys::{Piece, TextPlan, Unstored, Within};

use super::arch;
use super::domain::{State, Tables};
use super::error::PokeError;
use super::protocol::Machine;
use super::site::{Action, Part, Site};
use super::trapped::TRAPPED;
use crate::pack::{Opened, Program, WriteError};

/// What contains a site.
#[derive(Clone, Copy)]
pub(super) enum Target<'p> {
    Program(&'p Program),
    Text,
}

impl Target<'_> {
    /// Returns whether forked children have the same memory, and not a copy.
    pub(super) fn is_shared(&self) -> bool {
        match self {
            Self::Program(program) => program.is_shared(),
            Self::Text => false,
        }
    }

    /// Returns a piece to store in what contains the site.
    fn piece<'b>(&self, address: usize, bytes: &'b [u8]) -> Piece<'b> {
        let within = match self {
            Self::Program(program) => Within::Program(program.address().get()),
            Self::Text => Within::Text,
        };
        Piece { address, bytes, within }
    }

    /// Returns where to store, if a view exists for that.
    fn alias(&self, address: usize) -> Option<*mut u8> {
        match self {
            Self::Program(program) => program.alias(address - program.address().get()),
            Self::Text => None,
        }
    }

    /// Makes instruction fetch see what has been stored.
    fn flush(&self, address: usize, len: usize) {
        match self {
            Self::Program(program) => program.flush(address - program.address().get(), len),
            Self::Text => flush_instruction_cache(address..address + len),
        }
    }

    /// Makes the aliases of the programs among `targets` writable, once per program.
    pub(super) fn open<'p>(targets: &[Target<'p>]) -> Result<Vec<Opened<'p>>, WriteError> {
        let mut before = None;
        let programs = targets.iter().filter_map(|target| match target {
            Target::Program(program) => Some(*program),
            Target::Text => None,
        });
        programs
            .filter(|&program| !before.replace(program).is_some_and(|before| std::ptr::eq(before, program)))
            .map(Program::open)
            .collect()
    }
}

/// A batch that is being applied.
pub(super) struct UserMachine<'a> {
    /// The tables, for a batch that goes by traps.
    tables: Option<&'a Tables>,
    state: RefCell<&'a mut State>,
    /// The target of each site of the batch.
    targets: &'a [Target<'a>],
    pub(super) writes: Cell<u64>,
    pub(super) syncs: Cell<u64>,
}

impl<'a> UserMachine<'a> {
    /// Creates a machine for sites with these targets.
    ///
    /// # Safety
    ///
    /// 1. Every site that the machine is used with has the target at its index, lies in it, and holds what the protocol
    ///    says.
    /// 2. All threads that run a site work with what the protocol does to it.
    /// 3. [`Target::open`] is in effect as long as the machine lives.
    pub(super) unsafe fn new(tables: Option<&'a Tables>, state: &'a mut State, targets: &'a [Target<'a>]) -> Self {
        Self { tables, state: RefCell::new(state), targets, writes: Cell::new(0), syncs: Cell::new(0) }
    }

    /// Plans writes of whole sites, for those without a view.
    pub(super) fn plan(&self, sites: &[Site]) -> Result<TextPlan, PokeError> {
        let pieces = sites.iter().zip(self.targets).filter(|(_, target)| !target.is_shared());
        let pieces = pieces.map(|(site, target)| target.piece(site.address, site.new.as_slice()));
        // SAFETY: 1. sites lie in mapped code, whose old bytes have been read, and nobody holds references into code,
        // nor between sites of text in one page (`Batch::add_text`, 4).
        Ok(unsafe { self.state.borrow_mut().text.plan(pieces) }?)
    }

    /// Writes all sites as a whole, those without a view by the plan. Nobody runs them meanwhile. Uses no heap.
    pub(super) fn write_plan(&self, sites: &[Site], text: &mut TextPlan) -> Result<(), Unstored> {
        for (site, target) in sites.iter().zip(self.targets) {
            if let Some(alias) = target.alias(site.address) {
                // SAFETY: the site lies in the program (1), whose views are writable as long as the machine lives (3).
                unsafe { store_bytes(alias, site.new.as_slice()) };
                self.writes.set(self.writes.get() + 1);
            }
        }
        // SAFETY: 1. as for `plan`; 2. nobody runs the sites.
        let stored = unsafe { text.store() };
        // Also behind a failure: what was stored before is to be seen, whether it stays or is taken back.
        for (site, target) in sites.iter().zip(self.targets) {
            target.flush(site.address, site.size());
        }
        self.writes.set(self.writes.get() + stored?);
        Ok(())
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
            if let Some(alias) = target.alias(address) {
                match part {
                    // SAFETY: the part lies in the program (1), whose views are writable as long as the machine lives
                    // (3).
                    Part::Stored => unsafe { arch::store_whole(alias, bytes) },
                    // SAFETY: as above.
                    _ => unsafe { store_bytes(alias, bytes) },
                }
                self.writes.set(self.writes.get() + 1);
            }
        }
        let private = parts().filter(|(target, _)| !target.is_shared());
        let private = private.map(|(target, (address, bytes))| target.piece(address, bytes));
        // SAFETY: 1. as for `plan`; 2. the protocol's claim (2).
        let stored = unsafe { self.state.borrow_mut().text.write(private) };
        // As in `write_plan`.
        for (target, (address, bytes)) in parts() {
            target.flush(address, bytes.len());
        }
        self.writes.set(self.writes.get() + stored?);
        Ok(())
    }

    fn sync_cores(&self) -> Result<(), PokeError> {
        self.state.borrow().sync_cores()?;
        self.syncs.set(self.syncs.get() + 1);
        Ok(())
    }

    fn publish(&self, sites: &[Site]) {
        let Some(tables) = self.tables else { return };
        sites.iter().for_each(|site| TRAPPED.add(site.address));
        for (table, shared) in [(tables.private(), false), (tables.shared_writer(), true)] {
            table.publish(self.entries(sites, shared));
        }
    }

    fn withdraw(&self) {
        let Some(tables) = self.tables else { return };
        tables.private().withdraw();
        tables.shared_writer().withdraw();
    }
}

/// Stores byte by byte; the protocol must work with the states between.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pack::{Backing, Packs};
    use crate::poke::domain::Domain;
    use crate::poke::site::Code;

    const LEN: usize = 64;

    /// Returns a change of the first four bytes of `program`, which are `from`, to `to`.
    fn site(program: &Program, from: u8, to: u8) -> Site {
        let code = |byte: u8| Code::new(&[byte; 4]).unwrap();
        Site { address: program.address().get(), old: code(from), new: code(to), action: None }
    }

    /// Fails on: a write that also stores what was between two programs when it was planned.
    #[test]
    fn a_program_that_comes_between_two_sites_stays() {
        let packs = Packs::builder().backing(Backing::ProcMem).open().unwrap();
        let first = packs.load(&[1; LEN], LEN).unwrap();
        let mut between = packs.stage(LEN, LEN).unwrap();
        let last = packs.load(&[1; LEN], LEN).unwrap();
        let start = first.address().get();
        assert_eq!([between.address().get(), last.address().get()], [start + LEN, start + 2 * LEN]);
        let sites = [site(&first, 1, 2), site(&last, 1, 2)];
        let targets = [Target::Program(&first), Target::Program(&last)];
        let mut state = Domain::own().unwrap().lock();
        // SAFETY: 1. each site lies in its program; 2. nobody runs them; 3. they have no alias.
        let machine = unsafe { UserMachine::new(None, &mut state, &targets) };
        let mut plan = machine.plan(&sites).unwrap();
        between.image().fill(3);
        let between = between.finalize().unwrap();
        machine.write_plan(&sites, &mut plan).unwrap();
        let bytes = |program: &Program| {
            // SAFETY: the program's bytes, which nobody changes meanwhile.
            unsafe { std::slice::from_raw_parts(program.entry(), LEN) }.to_vec()
        };
        assert_eq!(bytes(&between), [3; LEN]);
        for program in [&first, &last] {
            assert_eq!(bytes(program), [[2; 4].as_slice(), &[1; LEN - 4]].concat());
        }
    }
}
