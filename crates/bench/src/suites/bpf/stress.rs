//! `bpf.stress160`: the kernel's stress tool for its own packs, with a modelled TLB.
//!
//! The tool loads eight small programs twenty times over, runs five of them again and again beside a compile job, and
//! reads the counters of iTLB misses. Virtual machines have no such counters; so the programs are compiled and placed
//! as usual, and a model gets their addresses, between those of a compile job on random pages. The same addresses give
//! the same figures on every machine. `counted` reads the counters where there are some.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::harness::record::Unit;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};
use crate::placers::Who;
use crate::programs::{Printer, compile_printers};

pub(super) const ID: &str = "bpf.stress160";

/// Programs of the tool, and how often each is loaded.
pub(super) const KINDS: usize = 8;
pub(super) const INSTANCES: usize = 20;
/// Programs of each instance that run.
pub(super) const HOT: usize = 5;

/// Calls that count, after as many that do not.
const CALLS: usize = 100_000;

/// Pages of the compile job's text; how many of them it uses most of the time, and how many it fetches from between two
/// calls.
const JOB: u64 = 512;
const JOB_HOT: u64 = 16;
const JOB_FETCHES: usize = 4;

/// Entries of the modelled TLB, fully associative, least recently used first out: the L1 instruction TLB of Neoverse N1
/// (its Technical Reference Manual, section on the memory management unit).
const ENTRIES: usize = 48;

/// Who has the programs, and what a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    name: &'static str,
    who: Who,
    page: u64,
}

const ALL: [Kind; 4] = [
    Kind { name: "packed", who: Who::Packed, page: 4096 },
    Kind { name: "packed_2m", who: Who::Packed, page: 2 << 20 },
    Kind { name: "page_each", who: Who::PageEach, page: 4096 },
    Kind { name: "bucket_128k", who: Who::Bucket128k, page: 4096 },
];

impl Kind {
    fn id(self) -> String {
        format!("{ID}.{}", self.name)
    }

    fn contestant(self) -> Contestant {
        let contestant = Contestant::new(self.id(), Unit::Count);
        let rival = Self { name: "page_each", ..self }.id();
        match self.name {
            "packed" => contestant.in_packs().against([rival]),
            "packed_2m" => contestant.against([rival]).note("the same where the kernel maps packs by pages of 2 MiB"),
            _ => contestant,
        }
    }
}

pub(super) fn group() -> Group {
    let title = format!(
        "modelled iTLB misses of 1000 calls, {} programs of which {} are hot, beside a compile job; {ENTRIES} entries, \
         fully associative, least recently used",
        KINDS * INSTANCES,
        HOT * INSTANCES
    );
    Group::new(ID, title, ALL.map(Kind::contestant))
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let printers = compile_printers(KINDS).map_err(failed(ID, "the compiler"))?;
    let mut samples = Samples::default();
    for kind in ALL {
        let hot = place(kind.who, &printers).map_err(failed(ID, kind.name))?;
        samples.add(&kind.id(), misses(&hot, kind.page));
        let job = format!("{JOB_FETCHES} of the job's {JOB} pages between two calls, three of four among {JOB_HOT}");
        samples.note(&kind.id(), format!("pages of {} KiB; {job}", kind.page >> 10));
    }
    context.record(&group, samples);
    Ok(())
}

/// Returns the numbers of the hot programs, in the order in which they run.
pub(super) fn hot() -> impl Iterator<Item = usize> {
    (0..KINDS * INSTANCES).filter(|number| number % KINDS < HOT)
}

/// Returns the addresses of the hot programs, in the order in which they run: of each instance in turn.
fn place(who: Who, printers: &[Printer]) -> Result<Vec<u64>, crate::PlaceError> {
    let mut placer = who.open()?;
    let mut held = Vec::new();
    for _ in 0..INSTANCES {
        for printer in printers {
            held.push(placer.load(printer.code())?);
        }
    }
    let addresses = hot().map(|number| held[number].entry().addr() as u64).collect();
    for loaded in held {
        placer.free(loaded)?;
    }
    Ok(addresses)
}

/// Returns the misses of a thousand calls.
fn misses(hot: &[u64], page: u64) -> f64 {
    let mut rng = SmallRng::seed_from_u64(160);
    let mut tlb = Tlb::default();
    let mut misses = 0;
    for call in 0..2 * CALLS {
        let program = hot[call % hot.len()];
        let missed = tlb.misses(program / page);
        misses += u64::from(missed && call >= CALLS);
        for _ in 0..JOB_FETCHES {
            let pages = if rng.random_range(0..4) < 3 { JOB_HOT } else { JOB };
            // No program is there.
            tlb.misses(u64::MAX - rng.random_range(0..pages));
        }
    }
    misses as f64 * 1000.0 / CALLS as f64
}

/// Pages, the last used first.
#[derive(Default)]
struct Tlb(VecDeque<u64>);

impl Tlb {
    /// Returns whether `page` was missing; it is there now.
    fn misses(&mut self, page: u64) -> bool {
        let place = self.0.iter().position(|there| *there == page);
        if let Some(place) = place {
            self.0.remove(place);
        }
        self.0.push_front(page);
        self.0.truncate(ENTRIES);
        place.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_that_was_used_longest_ago_leaves() {
        let mut tlb = Tlb::default();
        let all = ENTRIES as u64;
        assert!((0..all).all(|page| tlb.misses(page)));
        assert!(!tlb.misses(0));
        // In place of 1.
        assert!(tlb.misses(all));
        assert!(!tlb.misses(0) && !tlb.misses(2) && tlb.misses(1));
    }

    #[test]
    fn programs_of_one_page_miss_less_than_those_of_many() {
        let packed: Vec<u64> = (0..100).map(|number| number * 128).collect();
        let apart: Vec<u64> = (0..100).map(|number| number * 4096).collect();
        let few = misses(&packed, 4096);
        assert!(few < misses(&apart, 4096) / 2.0, "{few}");
        assert_eq!(misses(&apart, 4096), misses(&apart, 4096));
    }
}
