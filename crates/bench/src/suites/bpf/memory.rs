//! `bpf.bytes_per_program` and `bpf.mappings_per_program`: what a loaded program of 100 instructions costs besides
//! time.
//!
//! Each engine is measured in a process of its own, as [`Figures`] says.

use super::engine::Who;
use super::load::sources;
use super::source::Source;
use crate::footprint::{Figures, Footprint, Loader};
use crate::harness::record::Unit;
use crate::harness::{BenchError, Context, Group, failed};
use crate::resident::Resident;

/// Name of the helper that calls [`probe_memory`] with the argument that follows.
pub(in crate::suites) const MEMORY_PROBE: &str = "bpf-memory";

const BYTES: &str = "bpf.bytes_per_program";
const MAPPINGS: &str = "bpf.mappings_per_program";

/// Instructions of a program.
const LEN: usize = 100;

const ALL: [Who; 7] = [
    Who::Jit,
    Who::VerifyJit,
    Who::Rbpf,
    Who::RbpfInterp,
    // A bare one has the same.
    Who::SolanaSbpf,
    Who::Ubpf,
    Who::AsyncEbpf,
];

impl Loader for Who {
    fn name(self) -> &'static str {
        self.name()
    }

    fn is_ours(self) -> bool {
        self.is_ours()
    }

    fn refusal(self) -> Option<String> {
        if self.lives_apart() {
            return self.check_built().err().map(|error| error.to_string());
        }
        self.open().err().map(|error| error.to_string())
    }
}

pub(super) fn groups() -> [Group; 2] {
    let group = |id: &str, what: &str, unit: Unit| {
        let contestants = ALL.map(|who| {
            let contestant = who.contestant(&ALL, unit, |who| format!("{id}.{}", who.name()));
            contestant.note(format!("{} loaded", who.counted_programs()))
        });
        Group::new(id, format!("{what} of a program of {LEN} instructions"), contestants)
    };
    [group(BYTES, "resident memory", Unit::Bytes), group(MAPPINGS, "mappings", Unit::Mappings)]
}

/// Loads programs with the engine of this name into this process, counts what that added, and prints it. The process
/// must be fresh.
///
/// # Errors
///
/// Unknown or missing engines, failed loads, unreadable accounting.
pub(in crate::suites) fn probe_memory(contestant: &str) -> Result<(), BenchError> {
    let refused = |reason: String| BenchError::Helper { contestant: contestant.to_owned(), reason };
    let who = Who::named(contestant).ok_or_else(|| refused("there is no such engine".to_owned()))?;
    load(who)?.print().map_err(|error| refused(error.to_string()))
}

fn load(who: Who) -> Result<Footprint, BenchError> {
    let refused = |what| failed(BYTES, what);
    let programs = who.counted_programs();
    let sources: Vec<Source> = sources(LEN, programs).map_err(refused("the assembler"))?;
    let sources = who.prepared(sources).map_err(refused(who.name()))?;
    let mut engine = who.open().map_err(refused(who.name()))?;
    // The first program brings what exists once for all, such as tables that grow.
    engine.load(&sources[..1]).map_err(refused(who.name()))?;
    let before = Resident::now()?;
    engine.load(&sources[1..]).map_err(refused(who.name()))?;
    let after = Resident::now()?;
    engine.clear().map_err(refused(who.name()))?;
    Ok(Footprint::between(&before, &after, programs as usize - 1))
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let runs = context.effort.pick(1, 3);
    let figures = Figures { helper: MEMORY_PROBE, ids: [BYTES, MAPPINGS], loaders: &ALL, runs };
    figures.run(context, groups(), &|_, _, _, _| {})
}
