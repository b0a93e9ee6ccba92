//! `pack.bytes_per_program` and `pack.mappings_per_program`: what a loaded program costs beside time.
//!
//! Each contestant is measured in a process of its own, started for that purpose: in a process with a past, memory that
//! an earlier contestant left in the heap would be used again and would look free.

use std::io;

use serde::{Deserialize, Serialize};

use super::group_of;
use crate::harness::record::Unit;
use crate::harness::{BenchError, Context, Group, Samples, failed};
use crate::placers::{Loaded, UnknownWho, Who};
use crate::resident::Resident;
use palimpsest_sys::Causes;

/// Name of the helper that calls [`probe_memory`] with the argument that follows.
pub(in crate::suites) const MEMORY_PROBE: &str = "memory";

const BYTES: &str = "pack.bytes_per_program";
const MAPPINGS: &str = "pack.mappings_per_program";

/// Programs loaded by one probe: as many as two mappings each leave room for under the usual `vm.max_map_count`, so
/// that the last pack or block, which is not full, weighs little.
const PROGRAMS: usize = 30_000;

/// Lengths go round from here to the same distance above the mean of 500 bytes.
const SHORTEST: usize = 440;
const LENGTHS: usize = 121;

const ALL: [Who; 5] = [Who::Packed, Who::PageEach, Who::Bucket128k, Who::JitAllocator, Who::CraneliftJit];

/// What loading some programs added to a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct MemoryProbe {
    /// Resident bytes per program, shared pages counted once, the contestant's own tables included, the caller's
    /// handles not.
    bytes_per_program: f64,
    /// Mappings per program.
    mappings_per_program: f64,
    /// Bytes of page tables per program; not part of `bytes_per_program`.
    page_table_bytes_per_program: f64,
}

pub(super) fn groups() -> [Group; 2] {
    [
        group_of(BYTES, "resident memory of a 500-byte program, 30 000 loaded", Unit::Bytes, &ALL),
        group_of(MAPPINGS, "mappings of a 500-byte program, 30 000 loaded", Unit::Mappings, &ALL),
    ]
}

/// Loads programs by the contestant with this name into this process, counts what that added, and prints that. The
/// process must be fresh.
///
/// # Errors
///
/// Unknown or missing contestants, failed loads, unreadable accounting.
pub(in crate::suites) fn probe_memory(contestant: &str) -> Result<(), BenchError> {
    let refused = |reason: String| BenchError::Helper { contestant: contestant.to_owned(), reason };
    let who: Who = contestant.parse().map_err(|error: UnknownWho| refused(error.to_string()))?;
    let probe = load(who)?;
    serde_json::to_writer(io::stdout().lock(), &probe).map_err(|error| refused(error.to_string()))
}

fn load(who: Who) -> Result<MemoryProbe, BenchError> {
    let bytes = vec![0x90_u8; SHORTEST + LENGTHS];
    let mut held: Vec<Option<Loaded>> = Vec::new();
    // Written, hence present, before the first count.
    held.resize_with(PROGRAMS, || None);
    let before = Resident::now()?;
    let mut placer = who.open().map_err(failed(BYTES, who.name()))?;
    for (number, slot) in held.iter_mut().enumerate() {
        let len = SHORTEST + number * 7 % LENGTHS;
        *slot = Some(placer.load(&bytes[..len]).map_err(failed(BYTES, who.name()))?);
    }
    let after = Resident::now()?;
    let per_program = |after: usize, before: usize| (after as f64 - before as f64) / PROGRAMS as f64;
    let probe = MemoryProbe {
        bytes_per_program: per_program(after.bytes, before.bytes),
        mappings_per_program: per_program(after.mappings, before.mappings),
        page_table_bytes_per_program: per_program(after.page_table_bytes, before.page_table_bytes),
    };
    for loaded in held.into_iter().flatten() {
        placer.free(loaded).map_err(failed(BYTES, who.name()))?;
    }
    Ok(probe)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let wanted = context.wanted(groups());
    let Some(first) = wanted.first() else {
        return Ok(());
    };
    if let Err(reason) = context.helper(MEMORY_PROBE) {
        wanted.iter().for_each(|group| context.skip(group, &reason));
        return Ok(());
    }
    context.begin(&first.id);
    let runs = context.effort.pick(2, 5);
    let mut samples = Samples::default();
    for who in ALL {
        let ids = [BYTES, MAPPINGS].map(|id| format!("{id}.{}", who.name()));
        let probes: Result<Vec<MemoryProbe>, BenchError> = (0..runs).map(|_| start_probe(context, who)).collect();
        match probes {
            Ok(probes) => {
                let [bytes, mappings] = &ids;
                samples.extend(bytes, probes.iter().map(|probe| probe.bytes_per_program));
                samples.extend(mappings, probes.iter().map(|probe| probe.mappings_per_program));
                let tables = probes.iter().map(|probe| probe.page_table_bytes_per_program).sum::<f64>();
                samples.note(bytes, format!("page tables: {:.0} bytes more", tables / f64::from(runs)));
                if who == Who::PageEach {
                    samples.note(mappings, "the kernel merges neighbours with equal rights");
                }
            }
            Err(error) if who.is_ours() => return Err(error),
            // A rival may not be in this build, or meet a limit of this machine, such as the number of mappings.
            Err(error) => ids.iter().for_each(|id| samples.refuse(id, Causes(&error).to_string())),
        }
    }
    for group in wanted {
        let own = samples.take(&group);
        context.record(&group, own);
    }
    Ok(())
}

fn start_probe(context: &Context<'_>, who: Who) -> Result<MemoryProbe, BenchError> {
    let failed = |reason: String| BenchError::Helper { contestant: who.name().to_owned(), reason };
    if !who.is_built() {
        let missing = who.open().map(drop).map_err(|error| failed(Causes(&error).to_string()));
        missing?;
    }
    let mut helper = context.helper(MEMORY_PROBE).map_err(failed)?;
    let output = helper.arg(who.name()).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(format!("{}: {said}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}
