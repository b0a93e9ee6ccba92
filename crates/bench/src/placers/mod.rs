//! The contestants: ways to get a program's bytes to where they can run.

mod bucket_128k;
#[cfg(feature = "peers")]
mod cranelift_jit;
mod floor;
#[cfg(feature = "peers")]
mod jit_allocator;
mod packed;
#[cfg(feature = "peers")]
mod packed_cranelift;
mod page_each;

use std::str::FromStr;

pub(crate) use packed::{EachInstruction, HugePages, Packed};
use palimpsest_text::WriteView;

use crate::PlaceError;
use crate::harness::Contestant;
use crate::harness::record::Unit;
use crate::machine::CodeArea;

/// Places programs and frees them.
///
/// # Contract
///
/// `load` returns the address of an executable copy of the bytes it was given, and that copy stays until the returned
/// value is given to `free` or the placer is dropped. `machine::Population` relies on it.
pub(crate) trait Placer {
    /// Makes a copy of `code` that can be called.
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError>;

    /// Loads all of `codes` and appends them to `loaded`; contestants with a cheaper way to load many override this.
    fn load_all(&mut self, codes: &[&[u8]], loaded: &mut Vec<Loaded>) -> Result<(), PlaceError> {
        for code in codes {
            loaded.push(self.load(code)?);
        }
        Ok(())
    }

    /// Ends a program. Nobody may be inside.
    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError>;

    /// Finishes what `free` left for later.
    fn settle(&mut self) -> Result<(), PlaceError> {
        Ok(())
    }

    /// Returns how much of the code huge pages map, for contestants that aim at that.
    fn huge_mapped(&self) -> Option<HugePages> {
        None
    }
}

/// A program that can be called, whoever placed it.
pub(crate) enum Loaded {
    /// In a pack.
    Packed(palimpsest_text::Program),
    /// In a pack, through a `PackModule`.
    #[cfg(feature = "peers")]
    Function {
        /// The module's name for it.
        id: cranelift_module::FuncId,
        /// First byte of the program.
        entry: *const u8,
    },
    /// In a mapping of its own.
    Area(CodeArea),
    /// In a block of `jit-allocator`.
    #[cfg(feature = "peers")]
    Allocated(crate::machine::Allocated),
    /// In the memory of a `JITModule`, which frees all its functions together.
    #[cfg(feature = "peers")]
    Defined(*const u8),
    /// Copied to where it cannot run.
    Copied(*const u8),
}

impl Loaded {
    /// First byte of the program.
    pub(crate) fn entry(&self) -> *const u8 {
        match self {
            Self::Packed(program) => program.entry(),
            Self::Area(area) => area.entry(),
            #[cfg(feature = "peers")]
            Self::Allocated(allocated) => allocated.entry(),
            #[cfg(feature = "peers")]
            Self::Defined(entry) => *entry,
            #[cfg(feature = "peers")]
            Self::Function { entry, .. } => *entry,
            Self::Copied(copy) => *copy,
        }
    }
}

/// All contestants. The name is the last part of an entry's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Palimpsest's packs, program by program.
    Packed,
    /// Palimpsest's packs, many programs in one finalisation.
    PackedBatch,
    /// Palimpsest's packs through its module for Cranelift.
    PackedCranelift,
    /// Palimpsest's packs with a write view that is open only during copies.
    PackedDuringCopies,
    /// Palimpsest's packs without a write view: the kernel writes.
    PackedNoView,
    /// A page of its own for each program.
    PageEach,
    /// A 128 KiB mapping for each program.
    Bucket128k,
    /// The crate `jit-allocator`.
    JitAllocator,
    /// The crate `cranelift-jit`, finalised after each program.
    CraneliftJit,
    /// The crate `cranelift-jit`, finalised once after all programs.
    CraneliftJitBatch,
    /// A plain copy: nobody can be faster.
    Copy,
}

impl Who {
    /// All of them.
    pub(crate) const ALL: [Self; 11] = [
        Self::Packed,
        Self::PackedBatch,
        Self::PackedCranelift,
        Self::PackedDuringCopies,
        Self::PackedNoView,
        Self::PageEach,
        Self::Bucket128k,
        Self::JitAllocator,
        Self::CraneliftJit,
        Self::CraneliftJitBatch,
        Self::Copy,
    ];

    /// Name in ids.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::PackedBatch => "packed_batch",
            Self::PackedCranelift => "packed_cranelift",
            Self::PackedDuringCopies => "packed_during_copies",
            Self::PackedNoView => "packed_no_view",
            Self::PageEach => "page_each",
            Self::Bucket128k => "bucket_128k",
            Self::JitAllocator => "jit_allocator",
            Self::CraneliftJit => "cranelift_jit",
            Self::CraneliftJitBatch => "cranelift_jit_batch",
            Self::Copy => "copy",
        }
    }

    /// Whether the figure is Palimpsest's.
    pub(crate) fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Packed | Self::PackedBatch | Self::PackedCranelift | Self::PackedDuringCopies | Self::PackedNoView
        )
    }

    /// Returns the rival that is used in the same way as one of ours.
    fn counterpart(self) -> Option<Self> {
        match self {
            Self::PackedBatch => Some(Self::CraneliftJitBatch),
            Self::PackedCranelift => Some(Self::CraneliftJit),
            _ => None,
        }
    }

    /// Returns the contestant with the figure `id(self)`, among `all`: ours are compared with their counterpart, if
    /// they have one, then with the others in the order of `all`, but not with the plain copy, which nobody can beat.
    pub(crate) fn contestant(self, all: &[Self], unit: Unit, id: impl Fn(Self) -> String) -> Contestant {
        let contestant = Contestant::new(id(self), unit);
        if !self.is_ours() {
            return contestant;
        }
        let mut rivals: Vec<Self> = all.iter().copied().filter(|who| !who.is_ours() && *who != Self::Copy).collect();
        rivals.sort_by_key(|rival| Some(*rival) != self.counterpart());
        contestant.in_packs().against(rivals.into_iter().map(id))
    }

    /// Whether this build contains the contestant.
    pub(crate) fn is_built(self) -> bool {
        let with_peers = [Self::PackedCranelift, Self::JitAllocator, Self::CraneliftJit, Self::CraneliftJitBatch];
        cfg!(feature = "peers") || !with_peers.contains(&self)
    }

    /// A placer without programs.
    pub(crate) fn open(self) -> Result<Box<dyn Placer>, PlaceError> {
        Ok(match self {
            Self::Packed => Box::new(Packed::open()?),
            Self::PackedBatch => Box::new(packed::Batch::open()?),
            Self::PackedDuringCopies => Box::new(Packed::open_with(WriteView::DuringCopies)?),
            Self::PackedNoView => Box::new(Packed::open_with(WriteView::None)?),
            Self::PageEach => Box::new(page_each::PageEach),
            Self::Bucket128k => Box::new(bucket_128k::Bucket128k),
            Self::Copy => Box::new(floor::Floor::new()),
            #[cfg(feature = "peers")]
            Self::PackedCranelift => Box::new(packed_cranelift::PackedCranelift::open()?),
            #[cfg(feature = "peers")]
            Self::JitAllocator => Box::new(jit_allocator::JitAllocatorPeer::new()),
            #[cfg(feature = "peers")]
            Self::CraneliftJit => Box::new(cranelift_jit::CraneliftJit::open()?),
            #[cfg(feature = "peers")]
            Self::CraneliftJitBatch => Box::new(cranelift_jit::Batch::open()?),
            #[cfg(not(feature = "peers"))]
            Self::PackedCranelift | Self::JitAllocator | Self::CraneliftJit | Self::CraneliftJitBatch => {
                return Err(PlaceError::NotBuilt { peer: self.name() });
            }
        })
    }
}

/// No contestant has this name.
#[derive(Debug, thiserror::Error)]
#[error("no contestant is called `{0}`")]
pub(crate) struct UnknownWho(String);

impl FromStr for Who {
    type Err = UnknownWho;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|contestant| contestant.name() == name).ok_or_else(|| UnknownWho(name.to_owned()))
    }
}

/// A value of another placer was given to `free`.
fn foreign(peer: &'static str) -> PlaceError {
    PlaceError::Peer { peer, len: 0, reason: "the program was placed by another contestant".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Population;
    use crate::programs::compile_all;

    #[test]
    fn every_contestant_runs_every_program_as_the_model_says() {
        let programs = compile_all(150).expect("this host has a compiler");
        for who in Who::ALL {
            if who == Who::Copy || !who.is_built() {
                continue;
            }
            let name = who.name();
            let placer = who.open().unwrap_or_else(|error| panic!("{name}: {error}"));
            let population = Population::place(placer, &programs).unwrap_or_else(|error| panic!("{name}: {error}"));
            for argument in [0, 1, 0xdead_beef, u64::MAX] {
                let expected: Vec<u64> = programs.iter().map(|program| program.evaluate(argument)).collect();
                let found: Vec<u64> = population.in_sequence().call_each(argument).collect();
                assert_eq!(found, expected, "{name} with {argument:#x}");
            }
            population.free().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn names_are_read_back() {
        for who in Who::ALL {
            assert_eq!(who.name().parse::<Who>().ok(), Some(who));
        }
        assert!("nobody".parse::<Who>().is_err());
    }
}
