//! How long slices hold a process up, compared with a freeze in one go, in CPU time: wall-clock time includes what
//! other processes do. Ignored: it measures, and asserts nothing about time.
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

/// CPU time of this thread.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).expect("below 10^9"))
}

/// Says when there is time.
#[derive(Clone, Copy, Debug)]
enum Caller {
    /// It has something else to do after each slice.
    Busy,
    /// It has nothing else to do.
    Idle,
}

fn at(mib: usize, pause: Pause, caller: Caller) {
    let memory = Memory::apart(mib * MIB);
    memory.fill(0..memory.len, 1);
    let plain = forks();
    let started = now();
    let mut report = freeze(&Options::new().measure(Measure::Nothing).pause(pause));
    let look = now() - started;
    let (mut stops, mut done) = (Vec::with_capacity(1 << 14), report.progress.is_none());
    while !done {
        let mut started = now();
        let mut is_idle = || {
            stops.push(now() - started);
            started = now();
            matches!(caller, Caller::Idle)
        };
        // SAFETY: 1. the scenario keeps the contract of freezing. 2. there is room for what is pushed.
        done = unsafe { palimpsest_fork::freeze_while(&mut is_idle) }.expect("a slice").stage != Stage::UnderWay;
        // The end of the last one.
        let end = now() - started;
        match (caller, stops.last_mut()) {
            (Caller::Busy, Some(last)) if !done => *last += end,
            _ => stops.push(end),
        }
    }
    report.update();
    let total: Duration = stops.iter().sum::<Duration>() + look;
    stops.sort_unstable();
    let last = stops.len().max(1) - 1;
    let quantile = |part: usize| stops.get((stops.len() * part / 100).min(last)).copied().unwrap_or_default();
    println!(
        "TIMES {mib} MiB {pause:?} {caller:?}: {look:.1?} first, {} slices, median {:.2?}, p99 {:.2?}, longest {:.2?}, \
         total {total:.0?}, fork {plain:.0?} before, {:.0?} after, {} extents",
        stops.len(),
        quantile(50),
        quantile(99),
        quantile(100),
        forks(),
        palimpsest_fork::status().extents,
    );
    assert_eq!(in_child(|| i32::from(!memory.holds(0..memory.len, 1))), 0);
}

const TWO: Pause = Pause::Within(Duration::from_millis(2));

macro_rules! cases {
    ($($name:ident: $mib:literal $pause:expr, $caller:ident;)*) => {$(
        #[test]
        #[ignore = "it measures"]
        fn $name() {
            play(stringify!($name), || at($mib, $pause, Caller::$caller));
        }
    )*};
}

cases! {
    a_64_mib_at_once: 64 Pause::AtOnce, Busy;
    b_64_mib_in_slices: 64 TWO, Busy;
    c_64_mib_in_slices_while_idle: 64 TWO, Idle;
    d_512_mib_at_once: 512 Pause::AtOnce, Busy;
    e_512_mib_in_slices: 512 TWO, Busy;
    f_512_mib_in_slices_while_idle: 512 TWO, Idle;
}
