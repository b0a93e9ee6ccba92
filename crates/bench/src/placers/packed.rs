//! Palimpsest's packs, with default options: the backing is the best that works here, and retired programs are
//! reclaimed automatically.

use palimpsest_sys::CoreSync;
use palimpsest_sys::arch::flush_instruction_cache;
use palimpsest_text::{Packs, Program, Refused, WriteView};

use super::{Loaded, Placer, foreign};
use crate::PlaceError;
use palimpsest_sys::Causes;

/// Alignment of entries in bytes: what compilers ask for.
const ALIGN: usize = 16;

/// One program at a time. Clones share their packs.
#[derive(Clone)]
pub(crate) struct Packed {
    packs: Packs,
}

impl Packed {
    /// With packs of its own.
    pub(crate) fn open() -> Result<Self, PlaceError> {
        Ok(Self { packs: Packs::new()? })
    }

    /// Opens them with packs of their own, written in that way.
    pub(crate) fn open_with(view: WriteView) -> Result<Self, PlaceError> {
        Ok(Self { packs: Packs::builder().write_view(view).open()? })
    }

    /// The backing in use.
    pub(crate) fn backing(&self) -> String {
        self.packs.backing().to_string()
    }

    /// Returns the better backings that do not work here, each with the reason.
    pub(crate) fn refused(&self) -> Vec<String> {
        let told = |refused: &Refused| format!("{}: {}", refused.backing, Causes(&refused.error));
        self.packs.refused().iter().map(told).collect()
    }

    /// Reserved bytes per used byte.
    pub(crate) fn reserved_per_used(&self) -> f64 {
        let stats = self.packs.stats();
        stats.reserved_bytes as f64 / stats.used_bytes as f64
    }

    fn load_program(&self, code: &[u8]) -> Result<Program, PlaceError> {
        Ok(self.packs.load(code, ALIGN)?)
    }
}

impl Placer for Packed {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        self.load_program(code).map(Loaded::Packed)
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        match loaded {
            Loaded::Packed(program) => {
                drop(program);
                Ok(())
            }
            _ => Err(foreign("packed")),
        }
    }

    fn settle(&mut self) -> Result<(), PlaceError> {
        self.packs.reclaim()?;
        Ok(())
    }

    fn huge_mapped(&self) -> Option<HugePages> {
        let mapped = self.packs.huge_mapped().ok()?;
        Some(HugePages { mapped_bytes: mapped.bytes, reserved_bytes: mapped.reserved_bytes })
    }
}

/// How much of a contestant's code huge pages map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HugePages {
    /// Bytes that smaps reports as mapped by huge pages.
    pub(crate) mapped_bytes: usize,
    /// Bytes that hold or could hold code.
    pub(crate) reserved_bytes: usize,
}

/// Many programs in one finalisation.
pub(crate) struct Batch(Packed);

impl Batch {
    /// With packs of its own.
    pub(crate) fn open() -> Result<Self, PlaceError> {
        Packed::open().map(Self)
    }
}

impl Placer for Batch {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        self.0.load(code)
    }

    fn load_all(&mut self, codes: &[&[u8]], loaded: &mut Vec<Loaded>) -> Result<(), PlaceError> {
        let mut staged = Vec::with_capacity(codes.len());
        for code in codes {
            let mut place = self.0.packs.stage(code.len(), ALIGN)?;
            place.image().copy_from_slice(code);
            staged.push(place);
        }
        let programs = self.0.packs.finalize_all(staged)?;
        loaded.extend(programs.into_iter().map(Loaded::Packed));
        Ok(())
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        self.0.free(loaded)
    }

    fn settle(&mut self) -> Result<(), PlaceError> {
        self.0.settle()
    }
}

/// What an allocator must not do: something expensive for each instruction of a loaded program.
pub(crate) struct EachInstruction {
    packed: Packed,
    action: Action,
    instruction_bytes: usize,
}

enum Action {
    Flush,
    Synchronise(CoreSync),
}

impl EachInstruction {
    /// Flushes the instruction cache for each instruction of `instruction_bytes`.
    pub(crate) fn flushing(packed: Packed, instruction_bytes: usize) -> Self {
        Self { packed, action: Action::Flush, instruction_bytes }
    }

    /// Synchronises all cores for each instruction of `instruction_bytes`.
    pub(crate) fn synchronising(packed: Packed, instruction_bytes: usize) -> Result<Self, PlaceError> {
        Ok(Self { packed, action: Action::Synchronise(CoreSync::new()?), instruction_bytes })
    }
}

impl Placer for EachInstruction {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        let program = self.packed.load_program(code)?;
        let start = program.address().get();
        for offset in (0..code.len()).step_by(self.instruction_bytes) {
            match &self.action {
                Action::Flush => {
                    let end = (offset + self.instruction_bytes).min(code.len());
                    flush_instruction_cache(start + offset..start + end);
                }
                Action::Synchronise(cores) => cores.sync()?,
            }
        }
        Ok(Loaded::Packed(program))
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        self.packed.free(loaded)
    }

    fn settle(&mut self) -> Result<(), PlaceError> {
        self.packed.settle()
    }
}
