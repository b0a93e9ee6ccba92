//! Many threads at once: programs that return their identity reveal every stale or overwritten one.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Numbers, call, identity, reclaim_after_children};
use palimpsest_sys::arch::{self, Coherence};
use palimpsest_text::{Packs, Program, ReclaimPolicy};

/// How long a stress test runs.
const DURATION: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 6 });

/// Says stop when dropped, also by a panic, so that other threads of a scope end.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A program as its callers see it: the address in the upper 48 bits, the identity in the lower 16.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    fn new(program: &Program, id: u64) -> Self {
        Self((program.address().get() as u64) << 16 | id)
    }

    /// Calls the program at the address and checks its identity.
    ///
    /// # Safety
    ///
    /// 1. The thread was pinned before it read the word from where it is published.
    unsafe fn call(self) {
        let address = std::ptr::with_exposed_provenance::<()>((self.0 >> 16) as usize);
        // SAFETY: an identity program, whose code the pin keeps (1).
        let function = unsafe { std::mem::transmute::<*const (), extern "C" fn() -> u64>(address) };
        assert_eq!(function(), self.0 & 0xFFFF);
    }
}

/// Eight threads call programs by raw addresses from shared slots, while two others replace, free and reclaim them.
#[test]
fn raw_addresses_are_safe_while_pinned() {
    const SLOTS: usize = 64;
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let published: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
    let owned: Vec<Mutex<Option<Program>>> = (0..SLOTS).map(|_| Mutex::new(None)).collect();
    let (calls, reclaimed, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let (packs, published, stop, calls) = (&packs, &published, &stop, &calls);
            scope.spawn(move || {
                let _stop = StopOnDrop(stop);
                let participant = packs.participant();
                let mut numbers = Numbers::new(reader + 1);
                while !stop.load(Ordering::Relaxed) {
                    let mut done = 0;
                    let _pinned = participant.pin();
                    for _ in 0..16 {
                        // Acquire, partner: the writers' Release store.
                        let word = Word(published[numbers.below(SLOTS)].load(Ordering::Acquire));
                        if word.0 != 0 {
                            // SAFETY: 1. pinned above.
                            unsafe { word.call() };
                            done += 1;
                        }
                    }
                    calls.fetch_add(done, Ordering::Relaxed);
                }
            });
        }
        for writer in 0..2 {
            let (packs, published, owned, stop, reclaimed) = (&packs, &published, &owned, &stop, &reclaimed);
            scope.spawn(move || {
                let _stop = StopOnDrop(stop);
                let mut numbers = Numbers::new(writer + 100);
                for id in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let id = id & 0xFFFF;
                    let slot = numbers.below(SLOTS);
                    let program = packs.load(&identity(id, 20 + numbers.below(2000)), 16).unwrap();
                    let mut owner = owned[slot].lock().unwrap();
                    // Release, partner: the readers' Acquire load.
                    published[slot].store(Word::new(&program, id).0, Ordering::Release);
                    // The old program is retired only now, when nobody finds it any more.
                    drop(owner.replace(program));
                    drop(owner);
                    if id.is_multiple_of(16) {
                        let done = packs.reclaim().unwrap();
                        reclaimed.fetch_add(done.programs as u64, Ordering::Relaxed);
                    }
                }
            });
        }
        // On a slow machine it continues until something was called and something reclaimed; a panic of a thread ends
        // it.
        let is_enough = || reclaimed.load(Ordering::Relaxed) > 0 && calls.load(Ordering::Relaxed) > 0;
        while (started.elapsed() < DURATION || !is_enough()) && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(owned);
    reclaim_after_children(&packs);
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes, stats.retired_bytes), (0, 0, 0), "something is leaked: {stats:?}");
    let (calls, reclaimed) = (calls.into_inner(), reclaimed.into_inner());
    assert!(calls > 0 && reclaimed > 0, "{calls} calls, {reclaimed} programs reclaimed");
}

/// Eight threads load, call, look up and drop programs of all sizes under the automatic policy.
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
    reclaim_after_children(&packs);
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes, stats.retired_bytes), (0, 0, 0), "something is leaked: {stats:?}");
    assert_eq!(stats.loads, stats.frees);
    assert_eq!(stats.packs, 1, "all but one of the empty packs are given back");
}

/// A million loads of random sizes into a steady population.
#[test]
fn fragmentation_stays_low() {
    const LIVE: usize = 20_000;
    // Fewer where each load takes a core synchronisation: the allocator is the same.
    const LOADS: usize = match (arch::COHERENCE, cfg!(debug_assertions)) {
        (Coherence::NeedsFlushAndSync, _) => 40_000,
        (Coherence::Coherent, true) => 200_000,
        (Coherence::Coherent, false) => 1_000_000,
    };
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
    reclaim_after_children(&packs);
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes, stats.packs), (0, 0, 1), "something is leaked: {stats:?}");
    eprintln!("reserved / used at its worst: {worst:.3}");
}

/// Threads that look up addresses all the time do not prevent reclaiming.
#[test]
fn lookups_do_not_starve_reclaim() {
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let kept = packs.load(&identity(1, 64), 16).unwrap();
    let stop = AtomicBool::new(false);
    let mut reclaimed = 0;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(packs.lookup(kept.address().get()).is_some());
                }
            });
        }
        for id in 0..200 {
            drop(packs.load(&identity(id, 64), 16).unwrap());
            reclaimed += packs.reclaim().unwrap().programs;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reclaimed > 0, "nothing was reclaimed in 200 rounds");
}

/// There is room as long as most of what was dropped can be reclaimed, however many threads ask at once.
#[test]
fn a_small_region_is_enough_for_a_small_population() {
    const ROUNDS: u64 = match arch::COHERENCE {
        Coherence::NeedsFlushAndSync => 100,
        Coherence::Coherent => 3000,
    };
    let packs = Packs::builder().region_len(32 << 20).open().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let packs = &packs;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let id = worker << 32 | round;
                    let len = if round.is_multiple_of(50) { 2 << 20 } else { 100_000 };
                    assert_eq!(call(&packs.load(&identity(id, len), 16).unwrap()), id);
                }
            });
        }
    });
}
