//! How long slices hold a process up, beside a freeze in one go. Ignored: it measures, and asserts nothing about time.
//!
//! `cargo test --release -p palimpsest-fork --test slices_times -- --ignored --nocapture`

mod common;

use std::time::{Duration, Instant};

use common::{Memory, freeze, in_child, play};
use palimpsest_fork::{Measure, Options, Pause, Stage};

const MIB: usize = 1 << 20;

fn forks() -> Duration {
    let one = || {
        let started = Instant::now();
        // SAFETY: the scenario has one thread, and the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        common::wait(child);
        started.elapsed()
    };
    (0..20).map(|_| one()).min().expect("some")
}

fn at(mib: usize, pause: Pause) {
    let memory = Memory::apart(mib * MIB);
    memory.fill(0..memory.len, 1);
    let plain = forks();
    let started = Instant::now();
    let mut report = freeze(&Options::new().measure(Measure::Nothing).pause(pause));
    let (mut stops, mut done) = (vec![started.elapsed()], report.progress.is_none());
    while !done {
        let started = Instant::now();
        // SAFETY: 1. the scenario keeps the contract of freezing.
        done = unsafe { palimpsest_fork::freeze_slice() }.expect("a slice").stage != Stage::UnderWay;
        stops.push(started.elapsed());
    }
    report.update();
    let total: Duration = stops.iter().sum();
    let first = stops.remove(0);
    stops.sort_unstable();
    let quantile =
        |part: usize| stops.get((stops.len() * part / 100).min(stops.len().max(1) - 1)).copied().unwrap_or_default();
    println!(
        "TIMES {mib} MiB {pause:?}: first {first:.1?}, {} slices, median {:.2?}, p99 {:.2?}, longest {:.2?}, total {total:.0?}, \
         fork {plain:.0?} before, {:.0?} after, {} extents",
        stops.len(),
        quantile(50),
        quantile(99),
        stops.last().copied().unwrap_or_default(),
        forks(),
        palimpsest_fork::status().extents,
    );
    assert_eq!(in_child(|| i32::from(!memory.holds(0..memory.len, 1))), 0);
}

#[test]
#[ignore = "it measures"]
fn slices_take_their_time_64_mib() {
    play("slices_take_their_time_64_mib", || at(64, Pause::Within(Duration::from_millis(2))));
    play("slices_take_their_time_64_mib", || at(64, Pause::Within(Duration::from_millis(2))));
}

#[test]
#[ignore = "it measures"]
fn at_once_64_mib() {
    play("at_once_64_mib", || at(64, Pause::AtOnce));
}

#[test]
#[ignore = "it measures"]
fn slices_take_their_time_512_mib() {
    play("slices_take_their_time_512_mib", || at(512, Pause::Within(Duration::from_millis(2))));
}

#[test]
#[ignore = "it measures"]
fn at_once_512_mib() {
    play("at_once_512_mib", || at(512, Pause::AtOnce));
}
