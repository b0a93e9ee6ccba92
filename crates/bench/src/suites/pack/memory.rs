//! `pack.bytes_per_program` and `pack.mappings_per_program`: what a loaded program costs besides time.
//!
//! Each contestant is measured in its own process, as [`Figures`] explains.

use super::group_of;
use crate::footprint::{Figures, Footprint, Loader};
use crate::harness::record::Unit;
use crate::harness::{BenchError, Context, Group, failed};
use crate::placers::{Loaded, UnknownWho, Who};
use crate::resident::Resident;
use palimpsest_sys::Causes;

/// The name of the helper that calls [`probe_memory`] with the argument that follows.
pub(in crate::suites) const MEMORY_PROBE: &str = "memory";

const BYTES: &str = "pack.bytes_per_program";
const MAPPINGS: &str = "pack.mappings_per_program";

/// Programs that one probe loads: as many as fit under the usual `vm.max_map_count` with two mappings each, so that the
/// last pack or block, which is not full, matters little.
const PROGRAMS: usize = 30_000;

/// Lengths cycle from here to the same distance above the mean of 500 bytes.
const SHORTEST: usize = 440;
const LENGTHS: usize = 121;

const ALL: [Who; 5] = [Who::Packed, Who::PageEach, Who::Bucket128k, Who::JitAllocator, Who::CraneliftJit];

impl Loader for Who {
    fn name(self) -> &'static str {
        self.name()
    }

    fn is_ours(self) -> bool {
        self.is_ours()
    }

    fn refusal(self) -> Option<String> {
        let missing = if self.is_built() { None } else { self.open().err() };
        missing.map(|error| Causes(&error).to_string())
    }
}

pub(super) fn groups() -> [Group; 2] {
    [
        group_of(BYTES, "resident memory of a 500-byte program, 30 000 loaded", Unit::Bytes, &ALL),
        group_of(MAPPINGS, "mappings of a 500-byte program, 30 000 loaded", Unit::Mappings, &ALL),
    ]
}

/// Loads programs by the contestant with this name into this process, counts what that added, and prints the counts.
/// The process must be fresh.
///
/// # Errors
///
/// Fails for unknown or missing contestants, failed loads, and unreadable accounting.
pub(in crate::suites) fn probe_memory(contestant: &str) -> Result<(), BenchError> {
    let refused = |reason: String| BenchError::Helper { contestant: contestant.to_owned(), reason };
    let who: Who = contestant.parse().map_err(|error: UnknownWho| refused(error.to_string()))?;
    load(who)?.print().map_err(|error| refused(error.to_string()))
}

fn load(who: Who) -> Result<Footprint, BenchError> {
    let bytes = vec![0x90_u8; SHORTEST + LENGTHS];
    let mut held: Vec<Option<Loaded>> = Vec::new();
    // Write to it, so that it is resident before the first count.
    held.resize_with(PROGRAMS, || None);
    let before = Resident::now()?;
    let mut placer = who.open().map_err(failed(BYTES, who.name()))?;
    for (number, slot) in held.iter_mut().enumerate() {
        let len = SHORTEST + number * 7 % LENGTHS;
        *slot = Some(placer.load(&bytes[..len]).map_err(failed(BYTES, who.name()))?);
    }
    let after = Resident::now()?;
    for loaded in held.into_iter().flatten() {
        placer.free(loaded).map_err(failed(BYTES, who.name()))?;
    }
    Ok(Footprint::between(&before, &after, PROGRAMS))
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let runs = context.effort.pick(2, 5);
    let figures = Figures { helper: MEMORY_PROBE, ids: [BYTES, MAPPINGS], loaders: &ALL, runs };
    figures.run(context, groups(), &|samples, who, [bytes, mappings], page_table_bytes| {
        samples.note(bytes, format!("page tables: {page_table_bytes:.0} bytes more"));
        if who == Who::PageEach {
            samples.note(mappings, "the kernel merges neighbours with equal rights");
        }
    })
}
