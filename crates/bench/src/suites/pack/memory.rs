//! `pack.bytes_per_program` and `pack.mappings_per_program`: what a loaded program costs beside time.
//!
//! Each contestant is measured in a process of its own, started for that purpose: in a process with a past, memory that
//! an earlier contestant left in the heap would be used again and would look free.

use std::process::Command;

use serde::{Deserialize, Serialize};

use super::{failed, group_of};
use crate::placers::{Contestant, Loaded};
use crate::record::Unit;
use crate::resident::Resident;
use crate::suite::{Group, Measured};
use crate::{BenchError, Context};
use palimpsest_sys::Causes;

const BYTES: &str = "pack.bytes_per_program";
const MAPPINGS: &str = "pack.mappings_per_program";

/// Programs loaded by one probe: as many as two mappings each leave room for under the usual `vm.max_map_count`, so
/// that the last pack or block, which is not full, weighs little.
const PROGRAMS: usize = 30_000;

/// Lengths go round from here to the same distance above the mean of 500 bytes.
const SHORTEST: usize = 440;
const LENGTHS: usize = 121;

const CONTESTANTS: [Contestant; 5] = [
    Contestant::Packed,
    Contestant::PageEach,
    Contestant::Bucket128k,
    Contestant::JitAllocator,
    Contestant::CraneliftJit,
];

/// What loading some programs added to a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryProbe {
    /// Resident bytes per program, shared pages counted once, the contestant's own tables included, the caller's
    /// handles not.
    pub bytes_per_program: f64,
    /// Mappings per program.
    pub mappings_per_program: f64,
    /// Bytes of page tables per program; not part of `bytes_per_program`.
    pub page_table_bytes_per_program: f64,
}

pub(super) fn groups() -> [Group; 2] {
    [
        group_of(BYTES, "resident memory of a 500-byte program, 30 000 loaded", &CONTESTANTS),
        group_of(MAPPINGS, "mappings of a 500-byte program, 30 000 loaded", &CONTESTANTS),
    ]
}

/// Loads programs by the contestant with this name into this process and counts what that added. The process must be
/// fresh.
///
/// # Errors
///
/// Unknown or missing contestants, failed loads, unreadable accounting.
pub fn probe_memory(contestant: &str) -> Result<MemoryProbe, BenchError> {
    let who: Contestant = contestant.parse().map_err(|error: crate::placers::UnknownContestant| BenchError::Probe {
        contestant: contestant.to_owned(),
        reason: error.to_string(),
    })?;
    let bytes = vec![0x90_u8; SHORTEST + LENGTHS];
    let mut held: Vec<Option<Loaded>> = Vec::new();
    // Written, hence present, before the first count.
    held.resize_with(PROGRAMS, || None);
    let before = Resident::now()?;
    let mut placer = who.open().map_err(failed(BYTES, who))?;
    for (number, slot) in held.iter_mut().enumerate() {
        let len = SHORTEST + number * 7 % LENGTHS;
        *slot = Some(placer.load(&bytes[..len]).map_err(failed(BYTES, who))?);
    }
    let after = Resident::now()?;
    let per_program = |after: usize, before: usize| (after as f64 - before as f64) / PROGRAMS as f64;
    let probe = MemoryProbe {
        bytes_per_program: per_program(after.bytes, before.bytes),
        mappings_per_program: per_program(after.mappings, before.mappings),
        page_table_bytes_per_program: per_program(after.page_table_bytes, before.page_table_bytes),
    };
    for loaded in held.into_iter().flatten() {
        placer.free(loaded).map_err(failed(BYTES, who))?;
    }
    Ok(probe)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let [bytes, mappings] = groups();
    let (wants_bytes, wants_mappings) = (context.wants(&bytes), context.wants(&mappings));
    if !wants_bytes && !wants_mappings {
        return Ok(());
    }
    let Some(probe) = context.memory_probe else {
        context.skip("pack.*_per_program.*", "nobody told how to start a process for the measurement");
        return Ok(());
    };
    context.begin(BYTES);
    let runs = context.effort.pick(2, 5);
    let (mut by_bytes, mut by_mappings) = (Vec::new(), Vec::new());
    for who in CONTESTANTS {
        if !who.is_built() {
            if let Err(error) = who.open() {
                skip(context, who, &Causes(&error).to_string());
            }
            continue;
        }
        let probes: Result<Vec<MemoryProbe>, BenchError> = (0..runs).map(|_| start_probe(probe, who)).collect();
        let probes = match probes {
            Ok(probes) => probes,
            Err(error) if who.is_ours() => return Err(error),
            // A rival may meet a limit of this machine, such as the number of mappings.
            Err(error) => {
                skip(context, who, &Causes(&error).to_string());
                continue;
            }
        };
        let tables = probes.iter().map(|probe| probe.page_table_bytes_per_program).sum::<f64>() / runs as f64;
        let measured = |id: &str, value: fn(&MemoryProbe) -> f64, note: Option<String>| Measured {
            id: format!("{id}.{}", who.name()),
            contestant: Some(who),
            samples: probes.iter().map(value).collect(),
            note,
        };
        by_bytes.push(measured(
            BYTES,
            |probe| probe.bytes_per_program,
            Some(format!("page tables: {tables:.0} bytes more")),
        ));
        by_mappings.push(measured(
            MAPPINGS,
            |probe| probe.mappings_per_program,
            matches!(who, Contestant::PageEach).then(|| "the kernel merges neighbours with equal rights".to_owned()),
        ));
    }
    if wants_bytes {
        context.record_group(Unit::Bytes, by_bytes);
        context.done();
    }
    if wants_mappings {
        context.record_group(Unit::Mappings, by_mappings);
        context.done();
    }
    Ok(())
}

/// Leaves the contestant out of those of the two groups that are wanted.
fn skip(context: &mut Context<'_>, who: Contestant, reason: &str) {
    for (id, group) in [BYTES, MAPPINGS].into_iter().zip(groups()) {
        if context.wants(&group) {
            context.skip(format!("{id}.{}", who.name()), reason);
        }
    }
}

fn start_probe(command: &[std::path::PathBuf], who: Contestant) -> Result<MemoryProbe, BenchError> {
    let failed = |reason: String| BenchError::Probe { contestant: who.name().to_owned(), reason };
    let (program, arguments) = command.split_first().ok_or_else(|| failed("the command is empty".to_owned()))?;
    let output =
        Command::new(program).args(arguments).arg(who.name()).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(format!("{}: {said}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}
