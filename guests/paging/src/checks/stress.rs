//! Families of processes on all CPUs that do things at random: a few rounds always, and as many more as the command
//! line asks for.

use alloc::vec::Vec;

use palimpsest_paging::{Charge, Sharing, VirtAddr};

use super::processes::{WRITE, areas};
use crate::asked::{self, Asked};
use crate::counts::now;
use crate::cpu::CPUS;
use crate::memory;
use crate::process::user::{self, wanderer};
use crate::process::{Area, run_all, spawn, take_exits};
use crate::{check, kernel_space, say};

/// Rounds of every run.
const ROUNDS: u64 = 10;
/// Turns of the first process of each family, and the number of generations after it.
const TURNS: u64 = 100;
const GENERATIONS: u64 = 3;
/// Rounds between two lines of output.
const LINE: u64 = 100;

/// Returns the areas that [`wanderer`](wanderer::wanderer) expects: its pages, two to a table, and its model of them.
fn wanderers_areas() -> Vec<Area> {
    let mut areas = areas(0);
    let area = |start, pages| Area { start: VirtAddr(start), pages, rights: WRITE, sharing: Sharing::Private };
    areas.push(area(user::MODEL, wanderer::PAGES));
    for group in 0..wanderer::PAGES / wanderer::GROUP {
        areas.push(area(wanderer::address(group * wanderer::GROUP), wanderer::GROUP));
    }
    areas
}

pub(super) fn run() {
    let (frames, more) = (memory::in_use(), asked::word(Asked::Stress));
    let areas = wanderers_areas();
    let before = now();
    let (mut processes, mut wrong) = (0, Vec::new());
    for round in 0..ROUNDS + more {
        for cpu in 0..CPUS {
            let seed = round * CPUS as u64 + cpu as u64 + 1;
            spawn(wanderer::wanderer, GENERATIONS << 56 | TURNS << 32 | seed, &areas, cpu);
        }
        run_all();
        let exits = take_exits();
        processes += exits.len();
        wrong.extend(exits.into_iter().filter(|exit| exit.code != 0));
        if !wrong.is_empty() {
            break;
        }
        if round % LINE == LINE - 1 {
            say!("# {} of {} rounds, {processes} processes", round + 1, ROUNDS + more);
        }
    }
    check::equal("stress.values", wrong, Vec::new());
    say!("# {processes} processes of {} families: {:?}", (ROUNDS + more) * CPUS as u64, before.since());
    check::equal("stress.leaks", memory::in_use(), frames);
    check::equal("stress.charges", memory::balance(), Charge::default());
    let verified = kernel_space::get().verify();
    check::holds("stress.verify", verified.is_ok(), format_args!("{verified:?}"));
}
