//! Processes in user mode: forks with shared tables, faults, and other CPUs' TLBs.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use palimpsest_paging::{Charge, PAGE, Rights, Sharing, VirtAddr};

use crate::counts::{Counts, now};
use crate::cpu::CPUS;
use crate::memory;
use crate::process::{Area, Exit, run_all, spawn, take_exits, user};
use crate::{check, flush, say};

pub(super) const WRITE: Rights = Rights::READ.union(Rights::WRITE);

/// Returns the areas of every process here: private pages, a page that is shared with children, and a stack for each
/// CPU.
pub(super) fn areas(pages: u64) -> Vec<Area> {
    let area = |start, pages, sharing| Area { start: VirtAddr(start), pages, rights: WRITE, sharing };
    let mut areas = vec![area(user::DATA, pages, Sharing::Private), area(user::SHARED, 1, Sharing::Shared)];
    for end in user::STACKS {
        areas.push(area(end.0 - user::STACK_PAGES * PAGE, user::STACK_PAGES, Sharing::Private));
    }
    areas
}

/// Runs a program to its end. Returns the exits of all threads, sorted by process, and what was counted.
pub(super) fn run_program(program: user::Program, argument: u64, pages: u64, cpu: usize) -> (Vec<Exit>, Counts) {
    let before = now();
    spawn(program, argument, &areas(pages), cpu);
    run_all();
    let mut exits = take_exits();
    exits.sort_by_key(|exit| (exit.process, exit.code));
    (exits, before.since())
}

pub(super) fn codes(exits: &[Exit]) -> Vec<u64> {
    exits.iter().map(|exit| exit.code).collect()
}

/// Encodes the start of a program's second thread and its CPU, as an argument.
pub(super) fn thread(program: user::Program, cpu: usize) -> u64 {
    user::entry(program).0 | (cpu as u64) << 56
}

pub(super) fn run() {
    let frames = memory::in_use();
    families();
    shoot_down();
    rights();
    many_faults();
    snapshots();
    races();
    crowds();
    check::equal("process.leaks", memory::in_use(), frames);
    check::equal("process.charges", memory::balance(), Charge::default());
}

fn families() {
    let (exits, counts) = run_program(user::family, 0, 8, 0);
    check::equal("fork.same-cpu", codes(&exits), vec![0, 0]);
    // The parent copies the tables of its data and of the shared page, and a page; the child reuses the rest.
    check::equal("fork.same-cpu.tables", (counts.unshared, counts.broken, counts.reused), (2, 1, 1));
    say!("# a family on one CPU: {counts:?}");
    for child in 1..CPUS {
        let (exits, counts) = run_program(user::family, child as u64, 8, 0);
        let name = ["", "fork.cpu-0-to-1", "fork.cpu-0-to-2", "fork.cpu-0-to-3"][child];
        // Two spaces that copy a table at the same time copy it twice.
        let tables = 2..=4;
        check::holds(
            name,
            codes(&exits) == [0, 0] && tables.contains(&counts.unshared),
            format_args!("{exits:?} {counts:?}"),
        );
    }
}

fn shoot_down() {
    for reader in 1..CPUS {
        let (exits, counts) = run_program(user::stale_writer, thread(user::stale_reader, reader), 8, 0);
        let name = ["", "flush.store.cpu-1", "flush.store.cpu-2", "flush.store.cpu-3"][reader];
        check::holds(name, codes(&exits) == [0, 0, 0] && counts.flush_calls > 0, format_args!("{exits:?} {counts:?}"));
        let (exits, counts) = run_program(user::unmapper, thread(user::unmapped_reader, reader), 8, 0);
        let name = ["", "flush.unmap.cpu-1", "flush.unmap.cpu-2", "flush.unmap.cpu-3"][reader];
        let faulted = exits.iter().any(|exit| exit.code == user::FAULTED_NOT_MAPPED && exit.address.0 == user::DATA);
        check::holds(
            name,
            codes(&exits) == [0, user::FAULTED_NOT_MAPPED] && faulted,
            format_args!("{exits:?} {counts:?}"),
        );
    }
    for writer in 1..CPUS {
        let (exits, counts) = run_program(user::withdrawer, thread(user::writer, writer), 8, 0);
        let name = ["", "flush.protect.cpu-1", "flush.protect.cpu-2", "flush.protect.cpu-3"][writer];
        check::holds(name, codes(&exits) == [0, user::FAULTED_DENIED], format_args!("{exits:?} {counts:?}"));
    }
    // The same with a kernel that flushes its own TLB alone: the other CPU uses stale translations, which shows that
    // the checks above can fail. Relaxed: read by the CPUs that flush, which the queue's lock orders.
    flush::ONLY_HERE.store(true, Ordering::Relaxed);
    let (exits, _) = run_program(user::unmapper, thread(user::unmapped_reader, 1), 8, 0);
    flush::ONLY_HERE.store(false, Ordering::Relaxed);
    check::holds("flush.missed-call", codes(&exits) == [0, 40], format_args!("{exits:?}"));
}

fn rights() {
    for child in [0, 2] {
        let (exits, counts) = run_program(user::protector, child, 8, 0);
        let name = ["protect.same-cpu", "", "protect.cpu-0-to-2"][child as usize];
        let where_to = exits.iter().filter(|exit| exit.address.0 == user::DATA).count();
        // The child faults, and the parent passes its code on.
        let denied = user::FAULTED_DENIED;
        check::holds(name, codes(&exits) == [denied, denied] && where_to == 1, format_args!("{exits:?} {counts:?}"));
    }
}

fn many_faults() {
    const ROUNDS: u64 = 10;
    const PAGES: u64 = 1000;
    let (exits, counts) = run_program(user::breaker, ROUNDS << 32 | PAGES, PAGES, 1);
    check::equal("faults.values", codes(&exits), vec![0; ROUNDS as usize + 1]);
    check::holds("faults.count", counts.faults >= ROUNDS * PAGES, format_args!("{counts:?}"));
    check::holds("faults.copies", counts.broken >= ROUNDS * PAGES, format_args!("{counts:?}"));
    say!("# {ROUNDS} children that store to {PAGES} pages each: {counts:?}");
}

fn snapshots() {
    const FORKS: u64 = 40;
    let argument = thread(user::counter, CPUS - 1) | FORKS << 48;
    let (exits, counts) = run_program(user::snapshots, argument, 8, 0);
    check::equal("snapshots.consistent", codes(&exits), vec![0; FORKS as usize + 2]);
    say!("# {FORKS} forks while another CPU stores: {counts:?}");
}

/// All CPUs store to the pages of one process at the same time.
fn races() {
    let (exits, counts) = run_program(user::racers, user::entry(user::racer).0, user::RACE_PAGES, 0);
    check::equal("race.no-store-lost", codes(&exits), vec![0; CPUS + user::RACE_ROUNDS as usize]);
    say!("# {} forks and stores of {CPUS} CPUs to the same {} pages: {counts:?}", user::RACE_ROUNDS, user::RACE_PAGES);
}

/// A process on each CPU forks onto all CPUs.
fn crowds() {
    const ROUNDS: u64 = 12;
    const PAGES: u64 = 50;
    let before = now();
    for cpu in 0..CPUS {
        spawn(user::breaker, ROUNDS << 32 | PAGES, &areas(PAGES), cpu);
    }
    run_all();
    let exits = take_exits();
    check::equal("crowd.values", codes(&exits), vec![0; CPUS * (ROUNDS as usize + 1)]);
    say!("# {CPUS} families at once: {:?}", before.since());
}
