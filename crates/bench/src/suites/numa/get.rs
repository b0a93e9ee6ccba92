//! Reading replicated data: `numa.replicated.get`; and finding out where the thread runs: `numa.current_node`.

use std::hint::black_box;
use std::time::Duration;

use palimpsest_numa::{Locating, ReplicateOptions, Replicated, current_node, locating};

use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, expect, failed};

const ID: &str = "numa.replicated.get";

/// Values of the table.
const LEN: u32 = 4096;

/// Reads of one sample.
const READS: u32 = 100_000;

pub(super) fn group() -> Group {
    let own = |name: &str| Contestant::new(format!("{ID}.{name}"), Unit::Nanoseconds);
    let slice = own("slice").note("a load from a slice, without a look for the node or an update");
    let contestants = [own("local").against([slice.id.as_str()]), slice];
    Group::new(ID, "one value of replicated data, from the copy of the thread's node", contestants)
}

pub(super) fn measure(context: &mut Context<'_>, group: &Group) -> Result<(), BenchError> {
    context.begin(ID);
    let values: Vec<u32> = (0..LEN).collect();
    let data = Replicated::<[u32]>::new(&values, ReplicateOptions::new()).map_err(failed(ID, "local"))?;
    let mut samples = Samples::default();
    let rounds = context.effort.rounds(20, 200, Duration::from_secs(4));
    interleave(&mut ["local", "slice"], rounds, |name| {
        let mut sum = 0_u64;
        let stopwatch = Stopwatch::start();
        for read in 0..READS {
            let at = black_box(read % LEN) as usize;
            let value = match *name {
                "local" => data.get()[at],
                _ => values[at],
            };
            sum += u64::from(value);
        }
        let taken = stopwatch.elapsed();
        expect(ID, name, (0..READS).map(|read| u64::from(read % LEN)).sum(), sum)?;
        samples.add(&format!("{ID}.{name}"), taken.as_secs_f64() * 1e9 / f64::from(READS));
        Ok::<(), BenchError>(())
    })?;
    context.record(group, samples);
    Ok(())
}

const NODE: &str = "numa.current_node";

pub(super) fn node_group() -> Group {
    let own = |name: &str| Contestant::new(format!("{NODE}.{name}"), Unit::Nanoseconds);
    let asked = own("asked").note("the kernel's `getcpu`, by its shared page");
    let way = match locating() {
        Locating::RestartableSequence => "a load from the thread's restartable sequence",
        Locating::Getcpu => "`getcpu` as well: this C library or kernel keeps no node for each thread",
    };
    let contestants = [own("current").against([asked.id.as_str()]).note(way), asked];
    Group::new(NODE, "the node that the calling thread runs on", contestants)
}

pub(super) fn measure_node(context: &mut Context<'_>, group: &Group) -> Result<(), BenchError> {
    context.begin(NODE);
    let mut samples = Samples::default();
    let rounds = context.effort.rounds(20, 200, Duration::from_secs(4));
    interleave(&mut ["current", "asked"], rounds, |name| {
        let stopwatch = Stopwatch::start();
        for _ in 0..READS {
            let _ = match *name {
                "current" => black_box(current_node().0 as usize),
                _ => black_box(rustix::thread::sched_getcpu()),
            };
        }
        let taken = stopwatch.elapsed();
        samples.add(&format!("{NODE}.{name}"), taken.as_secs_f64() * 1e9 / f64::from(READS));
        Ok::<(), BenchError>(())
    })?;
    context.record(group, samples);
    Ok(())
}
