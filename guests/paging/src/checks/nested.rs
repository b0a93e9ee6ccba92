//! Tail calls, and maps inside maps, in the kernel: on every CPU, and while another CPU exchanges what they lead to.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palimpsest_bpf::host::Host;
use palimpsest_bpf::map::{Definition, Kind, Map, NestError};

use super::programs::{contract, load, map, number, on_every_cpu, store_value, verified};
use crate::bpf::{Ended, Program, set_tail};
use crate::cpu::{self, CPUS};
use crate::sync::SpinLock;
use crate::{check, packs};

/// Times that something is exchanged while other CPUs use it.
const TURNS: u64 = 20;

/// What all CPUs run.
static SHARED: SpinLock<Option<Arc<Program>>> = SpinLock::new(None);

fn shared() -> Arc<Program> {
    SHARED.lock().clone().unwrap_or_else(|| panic!("a program is there"))
}

/// What runners have got that they could not have got, and how often they have run.
static WRONG: AtomicU64 = AtomicU64::new(0);
static RUNS: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
static STOP: AtomicBool = AtomicBool::new(false);

/// Lets the other CPUs run the shared program, which must return `first` or the number after it, while `exchange` does
/// what it does between runs of each. Returns how many results were others.
fn while_others_run(first: u64, mut exchange: impl FnMut(u64)) -> u64 {
    static FIRST: AtomicU64 = AtomicU64::new(0);
    fn runner(cpu: usize) {
        let (program, first) = (shared(), FIRST.load(Ordering::Relaxed));
        // Relaxed, here and below: a request, and counts.
        while !STOP.load(Ordering::Relaxed) {
            let is_right = program.run(&[0]).is_ok_and(|value| value == first || value == first + 1);
            WRONG.fetch_add(u64::from(!is_right), Ordering::Relaxed);
            RUNS[cpu].fetch_add(1, Ordering::Relaxed);
            cpu::relax();
        }
    }
    FIRST.store(first, Ordering::Relaxed);
    STOP.store(false, Ordering::Relaxed);
    let wrong = WRONG.load(Ordering::Relaxed);
    (1..CPUS).for_each(|cpu| cpu::give(cpu, runner));
    for turn in 0..TURNS {
        let before = RUNS.each_ref().map(|runs| runs.load(Ordering::Relaxed));
        exchange(turn);
        while (1..CPUS).any(|cpu| RUNS[cpu].load(Ordering::Relaxed) == before[cpu]) {
            cpu::relax();
        }
    }
    STOP.store(true, Ordering::Relaxed);
    cpu::wait_for_work();
    WRONG.load(Ordering::Relaxed) - wrong
}

pub(super) fn run() {
    packs::reclaim();
    let taken = packs::taken();
    tail_calls();
    maps_in_maps();
    *SHARED.lock() = None;
    packs::reclaim();
    check::equal("nested.leaks", packs::taken(), taken);
}

/// A program that counts its runs in the map 0, and calls the program in this place of the map 1. What it returns if it
/// cannot is the value.
fn caller(place: u32, value: u64) -> String {
    format!(
        "r6 = r1\nr7 = 0\n*(u32 *)(r10 - 4) = r7\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\n\
         if r0 == 0 goto out\nr1 = 1\nlock *(u64 *)(r0 + 0) += r1\nr1 = r6\nr2 = map[idx:1] ll\nr3 = {place}\n\
         call 12\nout: r0 = {value}\nexit"
    )
}

fn tail_calls() {
    let (runs, programs) = (map("runs", Kind::Array, 4, 8, 1), map("programs", Kind::Programs, 4, 4, 4));
    let host = Host::builder().map(Arc::clone(&runs)).map(Arc::clone(&programs)).build();
    let made = |words, text: &str| Arc::new(load(verified(&host, contract(words), text)));
    let first = made(1, &caller(0, 5));
    check::equal("tail.nothing-there", first.run(&[0]), Ok(5));
    set_tail(&programs, 0, Some(made(1, "r0 = *(u64 *)(r1 + 0)\nr0 += 40\nexit")));
    check::equal("tail.called", first.run(&[2]), Ok(42));
    check::equal("tail.outside", made(1, &caller(4, 6)).run(&[0]), Ok(6));
    // One that needs more context than there is is not called.
    set_tail(&programs, 1, Some(made(2, "r0 = *(u64 *)(r1 + 8)\nexit")));
    let second = made(1, &caller(1, 7));
    check::equal("tail.context", (second.run(&[0]), second.run(&[0, 9])), (Ok(7), Ok(9)));
    // One that calls itself is called as often as Linux would; it counts on every CPU by itself.
    let again = made(1, &caller(2, 8));
    set_tail(&programs, 2, Some(Arc::clone(&again)));
    let before = number(&runs, 0, 0);
    check::equal("tail.most", (again.run(&[0]), number(&runs, 0, 0) - before), (Ok(8), 34));
    *SHARED.lock() = Some(again);
    fn run_again(cpu: usize) {
        store_value(cpu, shared().run(&[0]).unwrap_or(0));
    }
    let before = number(&runs, 0, 0);
    check::equal("tail.every-cpu", on_every_cpu(run_again), [8; CPUS]);
    check::equal("tail.every-cpu.runs", number(&runs, 0, 0) - before, 34 * CPUS as u64);
    // What is left of the fuel goes along.
    let loops = "r6 = *(u64 *)(r1 + 0)\nagain: r6 += 1\nif r6 != 0 goto again\nr0 = 3\nexit";
    let endless = load(verified(&host, contract(1).fuel(1000), loops));
    set_tail(&programs, 3, Some(Arc::new(endless)));
    let third = made(1, &caller(3, 9));
    check::equal("tail.fuel", (third.run(&[u64::MAX - 900]), third.run(&[5])), (Ok(3), Err(Ended::Fuel)));
    *SHARED.lock() = Some(first);
    let results = [100, 101].map(|value| made(1, &format!("r0 = {value}\nexit")));
    set_tail(&programs, 0, Some(Arc::clone(&results[0])));
    let wrong = while_others_run(100, |turn| {
        // A new one each time: the old one goes, and its place is filled with traps.
        let value = 100 + turn % 2;
        set_tail(&programs, 0, Some(made(1, &format!("r0 = {value}\nexit"))));
        packs::reclaim();
    });
    check::equal("tail.exchanged", wrong, 0);
    // Programs in a map of their own host keep both.
    (0..4).for_each(|place| set_tail(&programs, place, None));
    *SHARED.lock() = None;
}

/// A map of maps, each an array of one number.
fn outer(name: &str, kind: Kind, key: u32) -> Arc<Map> {
    let inner = Some(Box::new(Definition::new("inner", Kind::Array, 4, 8, 1)));
    let definition = Definition { inner, ..Definition::new(name, kind, key, 4, 4) };
    Arc::new(Map::new(definition).unwrap_or_else(|error| panic!("{error}")))
}

/// An array of one number.
fn inner(value: u64) -> Arc<Map> {
    let map = map("inner", Kind::Array, 4, 8, 1);
    let done = map.update(&[0; 4], &value.to_le_bytes(), palimpsest_bpf::map::Update::Always);
    done.unwrap_or_else(|error| panic!("{error}"));
    map
}

fn put(outer: &Map, key: &[u8], map: Option<Arc<Map>>) -> Result<(), NestError> {
    outer.maps().unwrap_or_else(|| panic!("it has maps")).set(key, map)
}

/// Adds `by` to the first number of the map that the map `index` has under the key that was stored, and returns it.
fn adds(index: usize, key: &str, by: u64) -> String {
    format!(
        "{key}\nr1 = map[idx:{index}] ll\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto none\nr1 = r0\n\
         *(u32 *)(r10 - 12) = 0\nr2 = r10\nr2 += -12\ncall 1\nif r0 == 0 goto none\nr1 = {by}\n\
         lock *(u64 *)(r0 + 0) += r1\nr0 = *(u64 *)(r0 + 0)\nexit\nnone: r0 = -1\nexit"
    )
}

fn maps_in_maps() {
    const ONE: &str = "*(u32 *)(r10 - 8) = 1";
    const SEVEN: &str = "*(u64 *)(r10 - 8) = 7";
    let maps = [outer("array of maps", Kind::ArrayOfMaps, 4), outer("hash of maps", Kind::HashOfMaps, 8)];
    let host = maps.iter().cloned().fold(Host::builder(), |host, map| host.map(map)).build();
    let made = |text: &str| Arc::new(load(verified(&host, contract(1), text)));
    let [of_array, of_hash] = [adds(0, ONE, 1), adds(1, SEVEN, 1)].map(|text| made(&text));
    check::equal("nested.nothing-there", [of_array.run(&[0]), of_hash.run(&[0])], [Ok(u64::MAX); 2]);
    let both = inner(10);
    let put_in = [
        put(&maps[0], &1_u32.to_le_bytes(), Some(Arc::clone(&both))),
        put(&maps[1], &7_u64.to_le_bytes(), Some(Arc::clone(&both))),
    ];
    check::holds("nested.put", put_in.iter().all(Result::is_ok), format_args!("{put_in:?}"));
    check::equal("nested.found", [of_array.run(&[0]), of_hash.run(&[0])], [Ok(11), Ok(12)]);
    let other = put(&maps[0], &1_u32.to_le_bytes(), Some(map("other", Kind::Array, 4, 16, 1)));
    check::holds("nested.shape", matches!(other, Err(NestError::Shape { .. })), format_args!("{other:?}"));
    *SHARED.lock() = Some(of_array);
    fn run_it(cpu: usize) {
        store_value(cpu, u64::from((0..100).all(|_| shared().run(&[0]).is_ok_and(|value| value > 12))));
    }
    check::equal("nested.every-cpu", on_every_cpu(run_it), [1; CPUS]);
    check::equal("nested.every-cpu.sum", number(&both, 0, 0), 12 + 100 * CPUS as u64);
    // Maps are exchanged, and taken out, while CPUs add nothing to their numbers.
    *SHARED.lock() = Some(made(&adds(0, ONE, 0)));
    let exchanged = [inner(200), inner(201)];
    let set = |turn: u64| {
        let new = Some(Arc::clone(&exchanged[turn as usize % 2]));
        put(&maps[0], &1_u32.to_le_bytes(), new).unwrap_or_else(|error| panic!("{error}"));
    };
    set(0);
    check::equal("nested.exchanged", while_others_run(200, set), 0);
    let gone = put(&maps[0], &1_u32.to_le_bytes(), None);
    check::equal("nested.removed", (gone.is_ok(), shared().run(&[0])), (true, Ok(u64::MAX)));
}
