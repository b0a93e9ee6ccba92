//! `bpf.bytes_per_program` and `bpf.mappings_per_program`: what a loaded program of 100 instructions costs beside time.
//!
//! Each engine is measured in a process of its own, as in [`super::super::pack`].

use std::io;

use serde::{Deserialize, Serialize};

use super::engine::Who;
use super::load::sources;
use super::source::Source;
use crate::harness::record::Unit;
use crate::harness::{BenchError, Context, Group, Samples, failed};
use crate::resident::Resident;
use palimpsest_sys::Causes;

/// Name of the helper that calls [`probe_memory`] with the argument that follows.
pub(in crate::suites) const MEMORY_PROBE: &str = "bpf-memory";

const BYTES: &str = "bpf.bytes_per_program";
const MAPPINGS: &str = "bpf.mappings_per_program";

/// Instructions of a program.
const LEN: usize = 100;
/// Programs of one probe: as many as three mappings each leave room for under the usual `vm.max_map_count`.
const PROGRAMS: u64 = 20_000;

const ALL: [Who; 5] = [Who::Jit, Who::VerifyJit, Who::Rbpf, Who::RbpfInterp, Who::SolanaSbpf];

/// What loading some programs added to a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Probe {
    /// Resident bytes per program, shared pages counted once, with all that the program's value holds.
    bytes: f64,
    /// Mappings per program.
    mappings: f64,
}

pub(super) fn groups() -> [Group; 2] {
    let group = |id: &str, what: &str, unit: Unit| {
        let contestants = ALL.map(|who| who.contestant(&ALL, unit, |who| format!("{id}.{}", who.name())));
        Group::new(id, format!("{what} of a program of {LEN} instructions, {PROGRAMS} loaded"), contestants)
    };
    [group(BYTES, "resident memory", Unit::Bytes), group(MAPPINGS, "mappings", Unit::Mappings)]
}

/// Loads programs by the engine with this name into this process, counts what that added, and prints that. The process
/// must be fresh.
///
/// # Errors
///
/// Unknown or missing engines, failed loads, unreadable accounting.
pub(in crate::suites) fn probe_memory(contestant: &str) -> Result<(), BenchError> {
    let refused = |reason: String| BenchError::Helper { contestant: contestant.to_owned(), reason };
    let who = Who::named(contestant).ok_or_else(|| refused("there is no such engine".to_owned()))?;
    let probe = load(who)?;
    serde_json::to_writer(io::stdout().lock(), &probe).map_err(|error| refused(error.to_string()))
}

fn load(who: Who) -> Result<Probe, BenchError> {
    let refused = |what| failed(BYTES, what);
    let sources: Vec<Source> = sources(LEN, PROGRAMS).map_err(refused("the assembler"))?;
    let mut engine = who.open().map_err(refused(who.name()))?;
    // What is there once for all programs, such as tables that grow, is had with the first.
    engine.load(&sources[..1]).map_err(refused(who.name()))?;
    let before = Resident::now()?;
    engine.load(&sources[1..]).map_err(refused(who.name()))?;
    let after = Resident::now()?;
    let each = |after: usize, before: usize| (after as f64 - before as f64) / (PROGRAMS - 1) as f64;
    let probe = Probe { bytes: each(after.bytes, before.bytes), mappings: each(after.mappings, before.mappings) };
    engine.clear().map_err(refused(who.name()))?;
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
    let runs = context.effort.pick(1, 3);
    let mut samples = Samples::default();
    for who in ALL {
        let ids = [BYTES, MAPPINGS].map(|id| format!("{id}.{}", who.name()));
        let probes: Result<Vec<Probe>, BenchError> = (0..runs).map(|_| start_probe(context, who)).collect();
        match probes {
            Ok(probes) => {
                samples.extend(&ids[0], probes.iter().map(|probe| probe.bytes));
                samples.extend(&ids[1], probes.iter().map(|probe| probe.mappings));
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

fn start_probe(context: &Context<'_>, who: Who) -> Result<Probe, BenchError> {
    let failed = |reason: String| BenchError::Helper { contestant: who.name().to_owned(), reason };
    who.open().map(drop).map_err(|error| failed(error.to_string()))?;
    let mut helper = context.helper(MEMORY_PROBE).map_err(failed)?;
    let output = helper.arg(who.name()).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(format!("{}: {said}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}
