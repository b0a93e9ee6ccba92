//! Threads on all CPUs that store to the same pages right after a fork.

use palimpsest_paging::PAGE;

use super::{DATA, GAVE_UP, Number, RUNNING, SHARED, await_value, exit, expect, fork, give_way, wait};
use crate::arch::user::{call, load, store};
use crate::cpu::CPUS;

/// Pages that [`racers`] store to.
pub(crate) const RACE_PAGES: u64 = 32;
/// The number of rounds.
pub(crate) const RACE_ROUNDS: u64 = 16;
/// In the shared page: the round to run, and behind it, for each CPU, the round that it has finished.
const GO: u64 = SHARED;
const FINISHED: u64 = SHARED + 64;

/// After each of many forks, threads on all CPUs store to the same pages at the same time, each to a word of its own:
/// no store may be lost, and the child sees none. Argument: the address of [`racer`].
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn racers(racer: u64) -> ! {
    let mut cpu = 1;
    while cpu < CPUS as u64 {
        call(Number::Thread as u64, [racer, cpu, cpu]);
        cpu += 1;
    }
    let mut round = 1;
    while round <= RACE_ROUNDS {
        let child = fork(round % CPUS as u64);
        if child == 0 {
            await_value(FINISHED, round);
            check_race(round - 1, 90);
            exit(0);
        }
        store(GO, round);
        race(0, round);
        let mut cpu = 0;
        while cpu < CPUS as u64 {
            await_value(FINISHED + cpu * 8, round);
            cpu += 1;
        }
        check_race(round, 91);
        let code = wait(child);
        if code != 0 {
            store(GO, RUNNING);
            exit(code);
        }
        round += 1;
    }
    store(GO, RUNNING);
    exit(0);
}

/// See [`racers`]. Argument: its CPU.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn racer(cpu: u64) -> ! {
    let mut round = 1;
    loop {
        let go = load(GO);
        if go == RUNNING {
            exit(0);
        } else if go == round {
            race(cpu, round);
            round += 1;
        } else if give_way() > 0 {
            exit(GAVE_UP);
        }
    }
}

#[inline(always)]
fn race(cpu: u64, round: u64) {
    let mut page = 0;
    while page < RACE_PAGES {
        store(DATA + page * PAGE + cpu * 8, round);
        page += 1;
    }
    store(FINISHED + cpu * 8, round);
}

#[inline(always)]
fn check_race(round: u64, code: u64) {
    let mut page = 0;
    while page < RACE_PAGES {
        let mut cpu = 0;
        while cpu < CPUS as u64 {
            expect(DATA + page * PAGE + cpu * 8, round, code);
            cpu += 1;
        }
        page += 1;
    }
}
