//! Programs full of sites: running them, and batches that change them.

use palimpsest_text::poke::{Applied, Batch, Mode, ModeChoice, PokeError, arch as poke_arch};
use palimpsest_text::{Packs, Program, ReplicatedPacks, ReplicatedProgram};

use crate::{PlaceError, arch};

/// What every program of this file is.
type Function = extern "C" fn() -> u64;

/// Sites of one program. Ten of these take some tens of kilobytes, as the sites of a large program are spread over its
/// text.
const PER_PROGRAM: usize = 1000;

/// Alignment of programs in bytes: a cache line.
const ALIGN: usize = 64;

/// Which way a batch changes sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// From NOPs to jumps.
    On,
    /// Back.
    Off,
}

impl Switch {
    fn change(self) -> (&'static [u8], &'static [u8]) {
        match self {
            Self::On => (&arch::OFF, &arch::ON),
            Self::Off => (&arch::ON, &arch::OFF),
        }
    }
}

/// Sites in packs, all of them off at first.
///
/// # Invariants
///
/// `arch::program` made each program, for the number of sites beside it.
pub(crate) struct Sites {
    programs: Vec<(Program, usize)>,
}

impl Sites {
    /// Places programs with `count` sites together.
    pub(crate) fn place(packs: &Packs, count: usize) -> Result<Self, PlaceError> {
        let sizes = (0..count).step_by(PER_PROGRAM).map(|first| PER_PROGRAM.min(count - first));
        let load = |sites| Ok((packs.load(&arch::program(sites), ALIGN)?, sites));
        Ok(Self { programs: sizes.map(load).collect::<Result<_, PlaceError>>()? })
    }

    /// Changes sites with traps, if the ISA needs them: no thread of the suites blocks SIGTRAP for long. Keys in
    /// program text change by one byte.
    pub(crate) fn apply(batch: &Batch<'_>) -> Result<Applied, PokeError> {
        batch.apply_in(if poke_arch::TRAPS { ModeChoice::Only(Mode::Trap) } else { ModeChoice::Automatic })
    }

    /// Returns how many sites there are.
    pub(crate) fn count(&self) -> usize {
        self.programs.iter().map(|(_, sites)| sites).sum()
    }

    /// Runs through all sites. Returns how many are off. May meet any version of any site. Allocates nothing.
    pub(crate) fn run(&self) -> u64 {
        self.programs.iter().map(|(program, _)| run(program)).sum()
    }

    /// Returns a batch that switches the sites with these numbers.
    pub(crate) fn batch(
        &self,
        switch: Switch,
        numbers: impl IntoIterator<Item = usize>,
    ) -> Result<Batch<'_>, PlaceError> {
        let (old, new) = switch.change();
        let mut batch = Batch::new();
        for number in numbers {
            let (program, _) = &self.programs[number / PER_PROGRAM];
            let offset = arch::site_offset(number % PER_PROGRAM);
            // SAFETY: 1. `arch::program` has one instruction of this length at this offset, and no jump into it; `OFF`
            // and `ON` are single instructions; 2. both go on in the program, which counts or does not.
            unsafe { batch.add(program, offset, old, new) }?;
        }
        Ok(batch)
    }
}

/// Like [`Sites`], in one program with a copy on each node.
///
/// # Invariants
///
/// `arch::program` made the program, for the number of sites beside it.
pub(crate) struct ReplicatedSites {
    program: ReplicatedProgram,
    sites: usize,
}

impl ReplicatedSites {
    /// Places a program with this many sites.
    pub(crate) fn place(packs: &ReplicatedPacks, sites: usize) -> Result<Self, PlaceError> {
        Ok(Self { program: packs.load(&arch::program(sites), ALIGN)?, sites })
    }

    /// Runs through all sites of all copies. Returns how many are off.
    pub(crate) fn run(&self) -> u64 {
        self.program.replicas().map(run).sum()
    }

    /// Returns a batch that switches all sites of all copies.
    pub(crate) fn batch(&self, switch: Switch) -> Result<Batch<'_>, PlaceError> {
        let mut batch = Batch::new();
        for number in 0..self.sites {
            let (copies, offset) = (self.program.replicas(), arch::site_offset(number));
            // SAFETY: 1. `arch::program` has one instruction of this length at this offset, and no jump into it; `OFF`
            // and `ON` are single instructions; 2. both go on in the program, which counts or does not.
            unsafe { batch.add_to_all(copies, offset, |_| switch.change()) }?;
        }
        Ok(batch)
    }
}

/// Programs with a trap at each site, which a handler that does nothing passes.
///
/// # Invariants
///
/// Each program was made by `arch::trapping`.
pub(crate) struct Trapping {
    programs: Vec<Program>,
}

impl Trapping {
    /// Places programs with the same sites as [`Sites`]; `None` if this ISA changes sites without traps.
    pub(crate) fn place(packs: &Packs, count: usize) -> Result<Option<Self>, PlaceError> {
        let mut programs = Vec::new();
        for first in (0..count).step_by(PER_PROGRAM) {
            let Some(code) = arch::trapping(PER_PROGRAM.min(count - first)) else {
                return Ok(None);
            };
            programs.push(packs.load(&code, ALIGN)?);
        }
        Ok(Some(Self { programs }))
    }

    /// Runs through all traps. Returns their number. SIGTRAP's handler must let each thread go on behind its trap: only
    /// [`with_empty_trap_handler`](super::with_empty_trap_handler) calls this. Allocates nothing.
    pub(super) fn run(&self) -> u64 {
        self.programs.iter().map(run).sum()
    }
}

/// Runs a program of this file.
fn run(program: &Program) -> u64 {
    // SAFETY: programs of this file are loaded from `arch` only, whose code is a function of this type in every version
    // of its sites; `program` outlives the call.
    let function = unsafe { program.function::<Function>() };
    function()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_sites_count_as_are_off() {
        let packs = Packs::new().expect("packs open");
        for count in [1, 56, 2500] {
            let sites = Sites::place(&packs, count).expect("programs are placed");
            assert_eq!((sites.count(), sites.run()), (count, count as u64));
            let on = sites.batch(Switch::On, (0..count).step_by(3)).expect("sites");
            Sites::apply(&on).expect("sites are changed");
            assert_eq!(sites.run(), (count - on.len()) as u64);
            let off = sites.batch(Switch::Off, (0..count).step_by(3)).expect("sites");
            Sites::apply(&off).expect("sites are changed");
            assert_eq!(sites.run(), count as u64);
        }
    }
}
