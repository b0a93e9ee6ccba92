//! The random operations find each mistake that a machine, or this crate, could make.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use common::mutant::{Mistake, Mutant};
use palimpsest_paging::format::{AArch64, Sv39, X86_64};
use palimpsest_paging::sim::trial::{Case, Source, Trial};
use palimpsest_paging::sim::{Computer, Delivery, Hardware};
use palimpsest_paging::{Accounting, Level, ShareTables, SpaceOptions};

/// The addresses of the broken spaces.
static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Returns the operation at which a mistake is found.
fn found_at<F: Hardware>(mistake: Mistake, seed: u64) -> Option<usize> {
    const OPERATIONS: usize = 4000;
    let options = SpaceOptions::new().share(ShareTables::UpTo(Level::new(2))).accounting(Accounting::Exact);
    let case = Case::default().options(options).nodes(2).delivery(Delivery::Late).seed(seed).compare_every(16);
    let computer: &Computer = Box::leak(Box::new(Computer::new::<F>(case.config())));
    let machine = Mutant { computer, mistake: Some(mistake), watch: None };
    // Broken spaces are not ended: that would find the mistake again.
    let trial = Box::leak(Box::new(Trial::<F, _>::new(computer, machine, case, Source::Seed)));
    // LeakSanitizer considers what a static refers to as used.
    KEPT.lock().unwrap().push((&raw const *trial).addr());
    for _ in 0..OPERATIONS {
        if catch_unwind(AssertUnwindSafe(|| trial.operate())).is_err() {
            return Some(trial.done());
        }
    }
    None
}

#[test]
fn every_mistake_is_found() {
    // A panic is expected here, and need not be printed.
    std::panic::set_hook(Box::new(|_| ()));
    let mistakes = [
        Mistake::NoFlush,
        Mistake::LastRange,
        Mistake::NoWait,
        Mistake::AlwaysExclusive,
        Mistake::NoRetain,
        Mistake::NoRelease,
        Mistake::NoPins,
        Mistake::EmptyCopy,
        Mistake::LeavesOnly,
    ];
    let found: Vec<_> = mistakes
        .into_iter()
        .map(|mistake| {
            (mistake, [found_at::<X86_64>(mistake, 1), found_at::<AArch64>(mistake, 2), found_at::<Sv39>(mistake, 3)])
        })
        .collect();
    let _ = std::panic::take_hook();
    for (mistake, at) in found {
        println!("{mistake:?}: found by operation {at:?} (x86-64, AArch64, Sv39)");
        assert!(at.iter().all(Option::is_some), "{mistake:?} is not found: {at:?}");
    }
}
