//! Threads run through sites that other threads toggle.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use palimpsest_text::poke::{Batch, Mode, ModeChoice, traps_hit};
use palimpsest_text::{Packs, Program};

use crate::Version::{self, Old};
use crate::blob::Blob;
use crate::common::Numbers;
use crate::isa::generate;
use crate::{Generated, StopOnDrop, common};

const SITES: usize = 1000;
const RUNNERS: u64 = 8;
/// The minimum number of batches: on a slow machine the test continues until they are done.
const BATCHES: u64 = 5;
const DURATION: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 6 });

/// Runs through `pass` on eight threads while two others call `toggle` with pseudo-random numbers.
pub(crate) fn torture(pass: impl Fn() + Sync, toggle: impl Fn(&mut Numbers) + Sync) {
    torture_until(|| true, pass, toggle);
}

/// Does the same as [`torture`], and continues until the caller has enough, however long that takes on a slow machine.
pub(crate) fn torture_until(
    has_enough: impl Fn() -> bool,
    pass: impl Fn() + Sync,
    toggle: impl Fn(&mut Numbers) + Sync,
) {
    let (stop, passes, batches) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let hit = traps_hit();
    std::thread::scope(|scope| {
        for _ in 0..RUNNERS {
            scope.spawn(|| {
                let _stop = StopOnDrop(&stop);
                while !stop.load(Ordering::Relaxed) {
                    pass();
                    passes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for toggler in 0..2 {
            let (stop, toggle, batches) = (&stop, &toggle, &batches);
            scope.spawn(move || {
                let _stop = StopOnDrop(stop);
                let mut numbers = Numbers::new(toggler + 11);
                while !stop.load(Ordering::Relaxed) {
                    toggle(&mut numbers);
                    batches.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let started = Instant::now();
        let is_enough = || {
            let are_many = passes.load(Ordering::Relaxed) > 0 && batches.load(Ordering::Relaxed) >= BATCHES;
            started.elapsed() >= DURATION && are_many && has_enough()
        };
        while !is_enough() && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            common::assert_never_writable_and_executable();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (passes, batches) = (passes.into_inner(), batches.into_inner());
    eprintln!("{passes} passes, {batches} batches, {} traps", traps_hit() - hit);
    assert!(passes > 0 && batches >= BATCHES, "{passes} passes, {batches} batches: somebody panicked");
}

/// The versions of the sites now, and a way to choose some to toggle.
pub(crate) struct Toggled(Mutex<Vec<Version>>);

impl Toggled {
    pub(crate) fn new() -> Self {
        Self::of(SITES)
    }

    pub(crate) fn of(sites: usize) -> Self {
        Self(Mutex::new(vec![Old; sites]))
    }

    /// Returns the versions.
    pub(crate) fn now(&self) -> Vec<Version> {
        self.0.lock().unwrap().clone()
    }

    /// Toggles a random choice of sites, which `add` puts into a batch.
    pub(crate) fn toggle<'p>(&self, numbers: &mut Numbers, add: impl Fn(&mut Batch<'p>, usize, Version)) {
        self.toggle_in(ANY_WAY, numbers, add);
    }

    /// Does what [`toggle`](Self::toggle) does, in one way.
    pub(crate) fn toggle_in<'p>(
        &self,
        choice: ModeChoice,
        numbers: &mut Numbers,
        add: impl Fn(&mut Batch<'p>, usize, Version),
    ) {
        let mut versions = self.0.lock().unwrap();
        let mut batch = Batch::new();
        let dense = numbers.below(20) + 1;
        for (index, version) in versions.iter_mut().enumerate() {
            if numbers.below(20) < dense {
                *version = version.other();
                add(&mut batch, index, *version);
            }
        }
        batch.apply_in(choice).unwrap();
    }
}

/// By traps if there are any: threads of these tests do not block SIGTRAP for long.
pub(crate) const ANY_WAY: ModeChoice =
    if palimpsest_text::poke::arch::TRAPS { ModeChoice::Only(Mode::Trap) } else { ModeChoice::Automatic };

#[test]
fn programs_are_all_old_or_all_new_while_threads_are_held() {
    let (packs, code) = (Packs::new().unwrap(), generate(SITES));
    let program = packs.load(&code.code, 64).unwrap();
    let toggled = Toggled::new();
    torture(
        || drop(code.run_program(&program)),
        |numbers| {
            toggled.toggle_in(ModeChoice::Automatic, numbers, |batch, index, version| {
                code.add(batch, &program, index, version);
            });
        },
    );
    assert_eq!(code.run_program(&program), toggled.now());
}

#[test]
fn text_is_all_old_or_all_new_while_threads_are_held() {
    let blob = Blob::new(generate(SITES));
    let toggled = Toggled::new();
    torture(
        || drop(blob.run()),
        |numbers| {
            toggled.toggle_in(ModeChoice::Automatic, numbers, |batch, index, version| blob.add(batch, index, version));
        },
    );
    assert_eq!(blob.run(), toggled.now());
}

#[test]
fn programs_are_all_old_or_all_new() {
    let (packs, code) = (Packs::new().unwrap(), generate(SITES));
    let program = packs.load(&code.code, 64).unwrap();
    let toggled = Toggled::new();
    torture(
        || drop(code.run_program(&program)),
        |numbers| toggled.toggle(numbers, |batch, index, version| code.add(batch, &program, index, version)),
    );
    assert_eq!(code.run_program(&program), toggled.now());
}

#[test]
fn text_is_all_old_or_all_new() {
    let blob = Blob::new(generate(SITES));
    let toggled = Toggled::new();
    torture(
        || drop(blob.run()),
        |numbers| toggled.toggle(numbers, |batch, index, version| blob.add(batch, index, version)),
    );
    assert_eq!(blob.run(), toggled.now());
}

/// Each thread loads programs of its own, and runs, toggles and frees them, beside one that all run.
#[test]
fn programs_are_freed_meanwhile() {
    let (packs, code, small) = (Packs::new().unwrap(), generate(SITES), generate(30));
    let program = packs.load(&code.code, 64).unwrap();
    let toggled = Toggled::new();
    torture(
        || drop(code.run_program(&program)),
        |numbers| {
            let own: Vec<Program> = (0..3).map(|_| packs.load(&small.code, 16).unwrap()).collect();
            for program in &own {
                toggle_all(&small, program);
            }
            toggled.toggle(numbers, |batch, index, version| code.add(batch, &program, index, version));
            drop(own);
            packs.reclaim().unwrap();
        },
    );
    common::reclaim_after_children(&packs);
    assert_eq!(packs.stats().programs, 1);
}

fn toggle_all(code: &Generated, program: &Program) {
    let mut batch = Batch::new();
    (0..code.sites.len()).for_each(|index| code.add(&mut batch, program, index, Version::New));
    batch.apply().unwrap();
    assert!(code.run_program(program).iter().all(|seen| *seen == Version::New));
}
