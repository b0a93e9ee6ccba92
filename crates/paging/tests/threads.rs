//! CPUs as threads: some run one space and store to it, others fork it, change their child, and end it.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::scene::*;
use palimpsest_paging::format::{AArch64, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Delivery, Hardware};
use palimpsest_paging::*;

const PAGES: u64 = 16;

fn forks() -> u64 {
    std::env::var("PALIMPSEST_PAGING_FORKS").ok().map_or(60, |text| text.parse().unwrap())
}

/// Stores from one CPU of the parent, ever larger numbers to each of its pages.
fn work<F: Hardware>(parent: &AddressSpace<F, &Computer>, cpu: usize, stop: &AtomicBool) {
    run_on(parent, cpu);
    let mut number = 0;
    // Relaxed: only tells the end.
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        for n in (cpu as u64..PAGES).step_by(2) {
            store(parent, cpu, page(n), number);
            assert_eq!(load(parent, cpu, page(n)), number, "nobody else stores there");
        }
        if number % 8 == 0 {
            parent.protect(pages(0..4), RW).unwrap().finish();
            parent.take_marks(pages(0..PAGES), Mark::Dirty, |_| ()).unwrap().finish();
        }
        thread::yield_now();
    }
}

/// Makes children of the parent, and of each other.
fn fork_often<F: Hardware>(parent: &AddressSpace<F, &Computer>, cpu: usize, next: &AtomicU64) {
    let new = || next.fetch_add(1, Ordering::Relaxed);
    for round in 0..forks() {
        let child = fork(parent, new());
        run_on(&child, cpu);
        let seen: Vec<_> = (0..PAGES).map(|n| load(&child, cpu, page(n))).collect();
        for n in (0..PAGES).step_by(3) {
            store(&child, cpu, page(n), 1 << 40 | round);
        }
        let grandchild = fork(&child, new());
        child.unmap(pages(4..8)).unwrap().finish();
        store(&child, cpu, page(0), 1 << 41);
        run_on(&grandchild, cpu);
        for (n, &seen) in (0..PAGES).zip(&seen) {
            let expected = if n % 3 == 0 { 1 << 40 | round } else { seen };
            assert_eq!(load(&grandchild, cpu, page(n)), expected, "what the parent stores later is its own");
        }
        assert_eq!((child.verify(), grandchild.verify()), (Ok(()), Ok(())));
        if round % 2 == 0 {
            drop(child);
            store(&grandchild, cpu, page(1), 3);
        }
        parent.machine().switch(cpu, None);
    }
}

fn stress<F: Hardware>(share: ShareTables, delivery: Delivery) {
    let computer = Computer::new::<F>(Config::default().cpus(4).delivery(delivery));
    let parent = space::<F, _>(&computer, share, 1);
    fill(&parent, 0..PAGES, RW, PageSize::Small);
    let (stop, next) = (AtomicBool::new(false), AtomicU64::new(2));
    thread::scope(|scope| {
        let workers = [0, 1].map(|cpu| {
            scope.spawn({
                let (parent, stop) = (&parent, &stop);
                move || work(parent, cpu, stop)
            })
        });
        let forkers = [2, 3].map(|cpu| {
            scope.spawn({
                let (parent, next) = (&parent, &next);
                move || fork_often(parent, cpu, next)
            })
        });
        let done: Vec<_> = forkers.into_iter().map(|forker| forker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        done.into_iter().chain(workers.into_iter().map(|worker| worker.join())).for_each(|result| result.unwrap());
    });
    finish(&computer, vec![parent]);
}

#[test]
fn cpus_fault_and_fork_at_once() {
    for delivery in [Delivery::AtOnce, Delivery::Late, Delivery::Random] {
        for share in [ShareTables::None, ShareTables::Last, ShareTables::UpTo(Level::new(2))] {
            stress::<X86_64>(share, delivery);
            stress::<AArch64>(share, delivery);
            stress::<Sv39>(share, delivery);
        }
    }
}
