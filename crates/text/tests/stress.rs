//! Many threads at once: programs that know who they are catch every stale or overwritten one.

mod common;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Numbers, call, identity};
use palimpsest_text::{Packs, Program, ReclaimPolicy};

/// How long a stress test runs.
const DURATION: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 6 });

/// A program that others reach by address only.
struct Published {
    id: u64,
    program: Program,
}

/// Eight threads call programs by raw addresses out of shared slots while two others replace, free and reclaim them.
#[test]
fn raw_addresses_are_safe_while_pinned() {
    const SLOTS: usize = 64;
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let slots: Vec<AtomicPtr<Published>> = (0..SLOTS).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
    let next_id = AtomicU64::new(1);
    let (calls, reclaimed, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    // What was published is freed after the threads have ended: this test is about the code, not about `Published`.
    let graveyard = std::sync::Mutex::new(Vec::new());
    let started = Instant::now();
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let (packs, slots, stop, calls) = (&packs, &slots, &stop, &calls);
            scope.spawn(move || {
                let participant = packs.participant();
                let mut numbers = Numbers::new(reader + 1);
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    let pinned = participant.pin();
                    for _ in 0..16 {
                        let slot = &slots[numbers.below(SLOTS)];
                        // Acquire, partner: the AcqRel swap of the writers.
                        let address = slot.load(Ordering::Acquire);
                        // SAFETY: null, or leaked until the end of the test.
                        let Some(published) = (unsafe { address.as_ref() }) else { continue };
                        // The program may be dropped by now; the pin is what keeps its code.
                        // SAFETY: 1. an identity program; 2. this thread has been pinned since before it read the slot.
                        let function = unsafe {
                            std::mem::transmute::<usize, extern "C" fn() -> u64>(published.id as usize >> 16)
                        };
                        assert_eq!(function(), published.id & 0xFFFF);
                        done += 1;
                    }
                    drop(pinned);
                }
                calls.fetch_add(done, Ordering::Relaxed);
            });
        }
        for writer in 0..2 {
            let (packs, slots, stop, next_id, graveyard, reclaimed) =
                (&packs, &slots, &stop, &next_id, &graveyard, &reclaimed);
            scope.spawn(move || {
                let mut numbers = Numbers::new(writer + 100);
                let mut kept = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let id = next_id.fetch_add(1, Ordering::Relaxed) & 0xFFFF;
                    let program = packs.load(&identity(id, 20 + numbers.below(2000)), 16).unwrap();
                    let id = (program.address().get() as u64) << 16 | id;
                    let fresh = Box::into_raw(Box::new(Published { id, program }));
                    // AcqRel, partner: the readers' Acquire load.
                    let old = slots[numbers.below(SLOTS)].swap(fresh, Ordering::AcqRel);
                    if !old.is_null() {
                        // The code is retired now; the struct stays for readers that still look at it.
                        // SAFETY: swapped out by this thread alone; readers only read `id`.
                        drop(unsafe { ptr::read(&raw const (*old).program) });
                        kept.push(old as usize);
                    }
                    if kept.len() % 64 == 63 {
                        let done = packs.reclaim().unwrap();
                        reclaimed.fetch_add(done.programs as u64, Ordering::Relaxed);
                    }
                }
                graveyard.lock().unwrap().extend(kept);
            });
        }
        while started.elapsed() < DURATION {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    for slot in &slots {
        let last = slot.load(Ordering::Acquire);
        if !last.is_null() {
            // SAFETY: leaked by a writer, in no graveyard, and the threads are gone.
            drop(unsafe { Box::from_raw(last) });
        }
    }
    for address in graveyard.into_inner().unwrap() {
        // SAFETY: leaked by a writer; its program was moved out, so only the memory is freed.
        drop(unsafe { Box::from_raw(address as *mut std::mem::ManuallyDrop<Published>) });
    }
    packs.reclaim().unwrap();
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes, stats.retired_bytes), (0, 0, 0), "something is leaked: {stats:?}");
    assert!(calls.into_inner() > 1000 && reclaimed.into_inner() > 1000);
}

/// Loading, calling, looking up and dropping from eight threads under the automatic policy, with all kinds of sizes.
#[test]
fn owned_programs_keep_their_identity() {
    let packs = Packs::new().unwrap();
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for worker in 0..8_u64 {
            let (packs, stop) = (&packs, &stop);
            scope.spawn(move || {
                let mut numbers = Numbers::new(worker + 7);
                let mut live: Vec<(u64, Program)> = Vec::new();
                let mut id = worker << 40;
                while !stop.load(Ordering::Relaxed) {
                    id += 1;
                    let len = match numbers.below(100) {
                        0 => 20 + numbers.below(60_000),
                        1..=9 => 20 + numbers.below(5000),
                        _ => 20 + numbers.below(700),
                    };
                    live.push((id, packs.load(&identity(id, len), 16).unwrap()));
                    let (id, program) = &live[numbers.below(live.len())];
                    assert_eq!(call(program), *id);
                    let found = packs.lookup(program.address().get() + program.len() - 1).unwrap();
                    assert_eq!(found.address(), program.address());
                    drop(found);
                    if live.len() > 200 {
                        let victim = numbers.below(live.len());
                        let (id, program) = live.swap_remove(victim);
                        assert_eq!(call(&program), id);
                    }
                }
                live.iter().for_each(|(id, program)| assert_eq!(call(program), *id));
            });
        }
        while started.elapsed() < DURATION {
            common::assert_never_writable_and_executable();
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
    });
    packs.reclaim().unwrap();
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes, stats.retired_bytes), (0, 0, 0), "something is leaked: {stats:?}");
    assert_eq!(stats.loads, stats.frees);
    assert_eq!(stats.packs, 1, "all but one of the empty packs are given back");
}

/// A million loads of random sizes into a steady population.
#[test]
fn fragmentation_stays_low() {
    const LIVE: usize = 20_000;
    const LOADS: usize = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };
    let packs = Packs::new().unwrap();
    let mut numbers = Numbers::new(42);
    let code = identity(1, 8000);
    let size = |numbers: &mut Numbers| match numbers.below(10) {
        0 => 16 + numbers.below(7900),
        1..=3 => 16 + numbers.below(2000),
        _ => 16 + numbers.below(600),
    };
    let mut live: Vec<Program> = Vec::with_capacity(LIVE);
    let load = |numbers: &mut Numbers| packs.load(&code[..size(numbers) & !3], 4).unwrap();
    for _ in 0..LIVE {
        live.push(load(&mut numbers));
    }
    let mut worst = 0.0_f64;
    for round in 0..LOADS {
        let victim = numbers.below(LIVE);
        live[victim] = load(&mut numbers);
        if round > LOADS / 2 && round.is_multiple_of(LOADS / 100) {
            let stats = packs.stats();
            worst = worst.max(stats.reserved_bytes as f64 / stats.used_bytes as f64);
        }
    }
    assert!(worst <= 1.25, "reserved / used reached {worst:.3}");
    drop(live);
    packs.reclaim().unwrap();
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes, stats.packs), (0, 0, 1), "something is leaked: {stats:?}");
    eprintln!("reserved / used at its worst: {worst:.3}");
}
