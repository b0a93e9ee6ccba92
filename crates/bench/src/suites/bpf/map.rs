//! `bpf.map`: operations on maps, by programs, by the host, and by the crates that come closest.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::map::{Definition, Kind, Map, Update, Wake};
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, Packs, asm};

use super::engine::Refusal;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Group, Samples, expect, failed};

/// Keys that a program goes through in a run.
const KEYS: u64 = 64;

/// Runs of one sample.
const RUNS: u64 = 2000;

/// Bytes of a ring buffer: room for the records of a sample, whose headers have 8 bytes.
const RING: u32 = 4 << 20;
/// Bytes of a record.
const RECORD: usize = 16;

/// Time for all rounds of a figure.
const BUDGET: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Array,
    Hash,
    Lru,
    PerCpu,
    RingBuffer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Update,
    LookUp,
}

/// Makes [`RUNS`] times [`KEYS`] operations. Returns the sum of what the last run found.
type Runner = Box<dyn FnMut() -> Result<u64, Refusal>>;

impl What {
    const ALL: [Self; 5] = [Self::Array, Self::Hash, Self::Lru, Self::PerCpu, Self::RingBuffer];

    fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Hash => "hash",
            Self::Lru => "lru",
            Self::PerCpu => "percpu",
            Self::RingBuffer => "ringbuf",
        }
    }

    /// Returns who does the same, and how.
    fn peer(self) -> (&'static str, &'static str) {
        match self {
            Self::Array => {
                ("atomics", "relaxed loads and stores of a slice of AtomicU64, which nobody can be faster than")
            }
            Self::Hash => ("dashmap", "DashMap<u32, u64>"),
            Self::Lru => ("lru", "Mutex<LruCache<u32, u64>>"),
            Self::PerCpu => ("thread_local", "a thread_local! slice of Cell<u64>"),
            Self::RingBuffer => ("crossbeam_queue", "ArrayQueue<[u64; 2]>"),
        }
    }

    fn map(self) -> Result<Arc<Map>, Refusal> {
        let kind = match self {
            Self::Array => Kind::Array,
            Self::Hash => Kind::Hash,
            Self::Lru => Kind::LruHash,
            Self::PerCpu => Kind::PerCpuArray,
            Self::RingBuffer => {
                return Ok(Arc::new(Map::new(Definition::new("ring", Kind::RingBuffer, 0, 0, RING))?));
            }
        };
        let map = Map::new(Definition::new("map", kind, 4, 8, 4 * KEYS as u32))?;
        for key in 0..KEYS {
            map.update(&(key as u32).to_ne_bytes(), &key.to_ne_bytes(), Update::Always)?;
        }
        Ok(Arc::new(map))
    }
}

impl Operation {
    const ALL: [Self; 2] = [Self::Update, Self::LookUp];

    fn name(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::LookUp => "lookup",
        }
    }

    /// Returns what the last run finds.
    fn expected(self) -> u64 {
        match self {
            Self::Update => 0,
            Self::LookUp => KEYS * (KEYS - 1) / 2,
        }
    }
}

/// Returns the beginning of the ids, and the figures.
fn group(what: What, operation: Operation) -> Group {
    let id = format!("bpf.map.{}.{}", what.name(), operation.name());
    let (peer, note) = what.peer();
    let rival = format!("{id}.{peer}");
    let ours = |who: &str| Contestant::new(format!("{id}.{who}"), Unit::Nanoseconds).against([rival.clone()]);
    let mut contestants = Vec::new();
    if (what, operation) != (What::RingBuffer, Operation::LookUp) {
        let round = "a round of a compiled loop, with the key's store and the loop's own instructions";
        contestants.push(ours("program").in_packs().note(round));
    }
    contestants.push(ours("host").note("Map::read, Map::update; Ring::output, Consumer::drain"));
    contestants.push(Contestant::new(rival.clone(), Unit::Nanoseconds).note(note));
    let title = match (what, operation) {
        (What::RingBuffer, Operation::Update) => format!("a record of {RECORD} bytes put in"),
        (What::RingBuffer, Operation::LookUp) => format!("a record of {RECORD} bytes taken out"),
        (_, Operation::Update) => format!("a value of {KEYS} set"),
        (_, Operation::LookUp) => format!("a value of {KEYS} found and read"),
    };
    Group::new(id, title, contestants)
}

pub(super) fn groups() -> Vec<Group> {
    What::ALL.into_iter().flat_map(|what| Operation::ALL.map(|operation| group(what, operation))).collect()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for what in What::ALL {
        for operation in Operation::ALL {
            let group = group(what, operation);
            if context.wants(&group) {
                context.begin(&group.id);
                let samples = measure(context, &group, what, operation)?;
                context.record(&group, samples);
            }
        }
    }
    Ok(())
}

fn measure(context: &Context<'_>, group: &Group, what: What, operation: Operation) -> Result<Samples, BenchError> {
    let mut samples = Samples::default();
    let mut runners: Vec<(String, Runner)> = Vec::new();
    for id in group.ids().map(str::to_owned) {
        let runner = match id.rsplit('.').next() {
            Some("program") => program(what, operation),
            Some("host") => by_host(what, operation),
            _ => by_peer(what, operation),
        };
        match runner {
            Ok(runner) => runners.push((id, runner)),
            Err(refusal) if refusal.is::<crate::PlaceError>() => samples.refuse(&id, refusal.to_string()),
            Err(refusal) => return Err(failed(&group.id, &id)(refusal)),
        }
    }
    let is_ring = what == What::RingBuffer;
    let expected = if is_ring { 0 } else { operation.expected() };
    for (id, runner) in &mut runners {
        let found = runner().map_err(failed(&group.id, id))?;
        expect(&group.id, id, expected, if is_ring { 0 } else { found })?;
    }
    interleave(&mut runners, context.effort.rounds(15, 60, BUDGET), |(id, runner)| {
        let taken = runner().map_err(failed(&group.id, id));
        // A ring reports what its half of the work took.
        taken.map(|_| samples.add(id, LAST.get()))
    })?;
    Ok(samples)
}

std::thread_local! {
    /// Nanoseconds of an operation in the runner that ran last.
    static LAST: Cell<f64> = const { Cell::new(0.0) };
    /// What each thread has of its own.
    static OWN: [Cell<u64>; KEYS as usize] = const { [const { Cell::new(0) }; KEYS as usize] };
}

/// Times `work`, which makes all operations of a sample.
fn timed<T>(work: impl FnOnce() -> T) -> T {
    let started = Stopwatch::start();
    let result = work();
    LAST.set(started.elapsed().as_secs_f64() * 1e9 / (RUNS * KEYS) as f64);
    result
}

/// Returns a runner for a closure that makes one operation.
fn each(mut operation: impl FnMut(u64) -> Result<u64, Refusal> + 'static) -> Runner {
    Box::new(move || {
        timed(|| {
            let mut sum = 0;
            for _ in 0..RUNS {
                sum = 0;
                for key in 0..KEYS {
                    sum += operation(black_box(key))?;
                }
            }
            Ok(sum)
        })
    })
}

/// A loop over all keys: look-ups, updates, or records.
fn text(what: What, operation: Operation) -> &'static str {
    match (what, operation) {
        (What::RingBuffer, _) => {
            "       r6 = 0
                    *(u64 *)(r10 - 16) = 7
             again: *(u64 *)(r10 - 8) = r6
                    r1 = map[idx:0] ll
                    r2 = r10
                    r2 += -16
                    r3 = 16
                    r4 = 1
                    call 130
                    if r0 != 0 goto out
                    r6 += 1
                    if r6 != 64 goto again
                    r0 = 0
             out:   exit"
        }
        (_, Operation::LookUp) => {
            "       r6 = 0
                    r7 = 0
             again: *(u32 *)(r10 - 4) = r6
                    r1 = map[idx:0] ll
                    r2 = r10
                    r2 += -4
                    call 1
                    if r0 == 0 goto out
                    r1 = *(u64 *)(r0 + 0)
                    r7 += r1
                    r6 += 1
                    if r6 != 64 goto again
             out:   r0 = r7
                    exit"
        }
        (_, Operation::Update) => {
            "       r6 = 0
             again: *(u32 *)(r10 - 4) = r6
                    *(u64 *)(r10 - 16) = r6
                    r1 = map[idx:0] ll
                    r2 = r10
                    r2 += -4
                    r3 = r10
                    r3 += -16
                    r4 = 0
                    call 2
                    if r0 != 0 goto out
                    r6 += 1
                    if r6 != 64 goto again
                    r0 = 0
             out:   exit"
        }
    }
}

fn loaded(map: &Arc<Map>, text: &str) -> Result<HostedProgram, Refusal> {
    let host = Host::builder().map(Arc::clone(map)).build();
    let linked = host.verify(Contract::new().context(8, ContextAccess::Read), Code::new(&asm::assemble(text)?)?)?;
    Ok(HostedProgram::load(&Packs::new()?, &linked)?)
}

fn program(what: What, operation: Operation) -> Result<Runner, Refusal> {
    let map = what.map()?;
    let program = loaded(&map, text(what, operation))?;
    Ok(Box::new(move || {
        let found = timed(|| -> Result<u64, Refusal> {
            let mut last = 0;
            for _ in 0..RUNS {
                last = program.run_read_only(black_box(&[0; 8]))?;
            }
            Ok(last)
        })?;
        drain(&map, found)
    }))
}

/// Empties a ring, which must contain all records; leaves other maps alone.
fn drain(map: &Map, found: u64) -> Result<u64, Refusal> {
    let Some(ring) = map.ring() else { return Ok(found) };
    let mut consumer = ring.take_consumer().ok_or("the ring has another consumer")?;
    let count = consumer.drain(|record| {
        black_box(record);
    });
    if count as u64 != RUNS * KEYS {
        return Err(format!("the ring had {count} records, and should have {}", RUNS * KEYS).into());
    }
    Ok(found)
}

fn by_host(what: What, operation: Operation) -> Result<Runner, Refusal> {
    let map = what.map()?;
    Ok(match (what, operation) {
        (What::RingBuffer, operation) => Box::new(move || {
            let ring = map.ring().ok_or("it is a ring")?;
            let fill = || (0..RUNS * KEYS).all(|_| ring.output(black_box(&[7; RECORD]), Wake::Never));
            let filled = match operation {
                Operation::Update => timed(fill),
                Operation::LookUp => fill(),
            };
            if !filled {
                return Err("the ring is full".into());
            }
            match operation {
                Operation::Update => drain(&map, 0),
                Operation::LookUp => timed(|| drain(&map, 0)),
            }
        }),
        (_, Operation::LookUp) => each(move |key| {
            let mut value = [0; 8];
            map.read(&(key as u32).to_ne_bytes(), 0, &mut value)?;
            Ok(u64::from_ne_bytes(value))
        }),
        (_, Operation::Update) => each(move |key| {
            map.update(&(key as u32).to_ne_bytes(), &key.to_ne_bytes(), Update::Always)?;
            Ok(0)
        }),
    })
}

fn by_peer(what: What, operation: Operation) -> Result<Runner, Refusal> {
    Ok(match (what, operation) {
        (What::Array, operation) => {
            let values: Vec<AtomicU64> = (0..KEYS).map(AtomicU64::new).collect();
            // Relaxed: the value publishes nothing.
            each(move |key| match operation {
                Operation::LookUp => Ok(values[key as usize].load(Ordering::Relaxed)),
                Operation::Update => {
                    values[key as usize].store(key, Ordering::Relaxed);
                    Ok(0)
                }
            })
        }
        (What::PerCpu, operation) => {
            OWN.with(|own| own.iter().zip(0..).for_each(|(cell, key)| cell.set(key)));
            each(move |key| match operation {
                Operation::LookUp => Ok(OWN.with(|own| own[key as usize].get())),
                Operation::Update => {
                    OWN.with(|own| own[key as usize].set(key));
                    Ok(0)
                }
            })
        }
        #[cfg(feature = "peers")]
        (What::Hash | What::Lru | What::RingBuffer, operation) => peers::runner(what, operation),
        #[cfg(not(feature = "peers"))]
        (What::Hash | What::Lru | What::RingBuffer, _) => {
            return Err(crate::PlaceError::NotBuilt { peer: what.peer().0 }.into());
        }
    })
}

#[cfg(feature = "peers")]
mod peers {
    //! Crates.

    use std::num::NonZeroUsize;
    use std::sync::{Mutex, PoisonError};

    use super::{KEYS, Operation, RUNS, Runner, What, each, timed};
    use crossbeam_queue::ArrayQueue;
    use dashmap::DashMap;
    use lru::LruCache;

    pub(super) fn runner(what: What, operation: Operation) -> Runner {
        match what {
            What::Lru => {
                let mut cache = LruCache::new(NonZeroUsize::MIN.saturating_add(4 * KEYS as usize - 1));
                for key in 0..KEYS {
                    cache.put(key as u32, key);
                }
                let cache = Mutex::new(cache);
                each(move |key| {
                    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                    match operation {
                        Operation::LookUp => cache.get(&(key as u32)).copied().ok_or_else(|| "a key is missing".into()),
                        Operation::Update => {
                            cache.put(key as u32, key);
                            Ok(0)
                        }
                    }
                })
            }
            What::RingBuffer => {
                let queue = ArrayQueue::new((RUNS * KEYS) as usize);
                Box::new(move || {
                    let fill = || (0..RUNS * KEYS).all(|number| queue.push(std::hint::black_box([number, 7])).is_ok());
                    let empty = || std::iter::from_fn(|| queue.pop()).map(std::hint::black_box).count() as u64;
                    let (filled, emptied) = match operation {
                        Operation::Update => (timed(fill), empty()),
                        Operation::LookUp => (fill(), timed(empty)),
                    };
                    if !filled || emptied != RUNS * KEYS {
                        return Err("the queue lost records".into());
                    }
                    Ok(0)
                })
            }
            _ => {
                let map: DashMap<u32, u64> = (0..KEYS).map(|key| (key as u32, key)).collect();
                each(move |key| match operation {
                    Operation::LookUp => {
                        map.get(&(key as u32)).map(|value| *value).ok_or_else(|| "a key is missing".into())
                    }
                    Operation::Update => {
                        map.insert(key as u32, key);
                        Ok(0)
                    }
                })
            }
        }
    }
}

/// Samples the figure `id`: calls of a program with one look-up.
pub(super) fn one_lookup(id: &str, rounds: Rounds) -> Result<Samples, Refusal> {
    /// Calls of a sample.
    const CALLS: u64 = 100_000;
    let text = "*(u32 *)(r10 - 4) = 0
                r1 = map[idx:0] ll
                r2 = r10
                r2 += -4
                call 1
                if r0 == 0 goto out
                r1 = *(u64 *)(r0 + 0)
                r1 += 1
                *(u64 *)(r0 + 0) = r1
           out: r0 = 0
                exit";
    let map = Arc::new(Map::new(Definition::new("one", Kind::Array, 4, 8, 1))?);
    let program = loaded(&map, text)?;
    let mut samples = Samples::default();
    let mut calls = 0;
    interleave(&mut [()], rounds, |()| {
        let started = Stopwatch::start();
        for _ in 0..CALLS {
            program.run_read_only(black_box(&[0; 8]))?;
        }
        samples.add(id, started.elapsed().as_secs_f64() * 1e9 / CALLS as f64);
        calls += CALLS;
        Ok::<(), Refusal>(())
    })?;
    let mut count = [0; 8];
    map.read(&[0; 4], 0, &mut count)?;
    if u64::from_ne_bytes(count) != calls {
        return Err(format!("{calls} calls have counted {}", u64::from_ne_bytes(count)).into());
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_finds_and_sets_the_same() -> Result<(), Refusal> {
        for what in What::ALL {
            for operation in Operation::ALL {
                let is_ring = what == What::RingBuffer;
                let expected = if is_ring { 0 } else { operation.expected() };
                assert_eq!(by_host(what, operation)?()?, expected, "{what:?} {operation:?}");
                if !is_ring || operation == Operation::Update {
                    assert_eq!(program(what, operation)?()?, expected, "{what:?} {operation:?}");
                }
            }
        }
        Ok(())
    }
}
