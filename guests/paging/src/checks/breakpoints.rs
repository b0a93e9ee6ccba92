//! Breakpoints in replicated text: every CPU hits the one in its own node's copy.

use palimpsest_paging::{PAGE, VirtAddr};
use palimpsest_text::poke::{Site, arch::TRAP};

use crate::arch::cpu as hardware;
use crate::arch::patch::STRIDE;
use crate::breakpoints::{Probe, Refused, hits, remove, set};
use crate::cpu::{self, CPUS};
use crate::kernel_text_writer::{Copies, KernelTextWriter};
use crate::sites::{SITES, Sites, site};
use crate::{check, counts, kernel_space, memory, packs};

use super::patching;

/// How often the breakpoint is set while other CPUs run.
const TURNS: usize = 10;

/// Returns how many copies of the text have these bytes at `address`, and how many there are.
pub(super) fn copies_with(address: usize, bytes: &[u8]) -> (usize, usize) {
    let has = |&at: &u64| {
        (0..bytes.len()).all(|index| {
            // SAFETY: a byte of the image, or of a copy. Volatile: code that is changed through other addresses.
            let is = unsafe { memory::alias(at + index as u64).read_volatile() };
            is == bytes[index]
        })
    };
    let copies = || kernel_space::copies(VirtAddr(address as u64));
    (copies().filter(has).count(), copies().count())
}

/// Runs the sites on every CPU. Returns their results, and how often each CPU has hit the breakpoint.
fn run_everywhere() -> ([usize; CPUS], [u64; CPUS]) {
    let before = hits();
    let results = patching::results();
    let after = hits();
    (results, core::array::from_fn(|cpu| after[cpu] - before[cpu]))
}

fn done<E: core::fmt::Debug>(result: Result<(), E>) {
    result.unwrap_or_else(|error| panic!("{error:?}"));
}

pub(super) fn run() {
    let all = KernelTextWriter { copies: Copies::All };
    // Unchanged, the site lets the increment behind it run.
    let site = site(7, Sites::Skip);
    check::equal("breakpoint.before", run_everywhere(), ([SITES; CPUS], [0; CPUS]));

    let before = counts::now();
    done(set(&all, &site));
    check::equal("breakpoint.calls", before.since().sync_calls, CPUS as u64 - 1);
    let (with, copies) = copies_with(site.address, TRAP);
    check::equal("breakpoint.every-copy", (with, copies), (memory::NODES, memory::NODES));
    check::equal("breakpoint.every-cpu", run_everywhere(), ([SITES; CPUS], [1; CPUS]));
    in_a_new_replica(&site);
    done(remove(&all, &site));
    let (with, copies) = copies_with(site.address, site.old.as_slice());
    check::equal("breakpoint.removed", (with, copies), (memory::NODES, memory::NODES));
    check::equal("breakpoint.gone", run_everywhere(), ([SITES; CPUS], [0; CPUS]));

    while_others_run(|| {
        done(set(&all, &site));
        wait_for_hits();
        done(remove(&all, &site));
    });
    a_missed_copy_is_seen(&site);
    check::equal("breakpoint.after", run_everywhere(), ([SITES; CPUS], [0; CPUS]));
    at_an_ordinary_instruction(&all);
}

/// A probe at an instruction with an effect: the increment behind a site, which each CPU runs somewhere else instead.
fn at_an_ordinary_instruction(all: &KernelTextWriter) {
    let taken = packs::taken();
    let address = site(7, Sites::Skip).end();
    let set = || Probe::set(all, address, None).unwrap_or_else(|refused| panic!("{refused:?}"));
    let probe = set();
    check::equal("probe.every-copy", copies_with(address, TRAP), (memory::NODES, memory::NODES));
    check::equal("probe.every-cpu", run_everywhere(), ([SITES; CPUS], [1; CPUS]));
    done(probe.remove(all));
    check::equal("probe.gone", run_everywhere(), ([SITES; CPUS], [0; CPUS]));
    while_others_run(|| {
        let probe = set();
        wait_for_hits();
        done(probe.remove(all));
    });
    // What would do something else elsewhere: a jump, and the function's return.
    for (name, skipped) in [("probe.jump", true), ("probe.return", false)] {
        let jump = site(7, Sites::Skip);
        let address = if skipped { jump.address } else { site(SITES - 1, Sites::Skip).address + STRIDE };
        if skipped {
            done(all.write_anywhere(address, jump.new.as_slice()));
        }
        let refused = Probe::set(all, address, None);
        if skipped {
            done(all.write_anywhere(address, jump.old.as_slice()));
        }
        check::holds(name, matches!(refused, Err(Refused::NotOrdinary { .. })), format_args!("{refused:?}"));
    }
    packs::reclaim();
    check::equal("probe.leaks", packs::taken(), taken);
    check::equal("probe.after", run_everywhere(), ([SITES; CPUS], [0; CPUS]));
}

/// A replica that is made while the breakpoint is set contains it.
fn in_a_new_replica(site: &Site) {
    let page = site.address as u64 / PAGE * PAGE;
    let range = VirtAddr(page)..VirtAddr((site.end() as u64).next_multiple_of(PAGE));
    let space = kernel_space::get();
    space.drop_replicas(range.clone()).unwrap_or_else(|error| panic!("{error}")).finish();
    check::equal("breakpoint.one-copy", run_everywhere(), ([SITES; CPUS], [1; CPUS]));
    let (_, flush) = space.replicate(range).unwrap_or_else(|error| panic!("{error}"));
    flush.finish();
    check::equal("breakpoint.new-replica", run_everywhere(), ([SITES; CPUS], [1; CPUS]));
}

/// Waits until all other CPUs have hit the breakpoint once more.
fn wait_for_hits() {
    let before = hits();
    let others = |cpu: &usize| *cpu != hardware::number();
    while (0..CPUS).filter(others).any(|cpu| hits()[cpu] == before[cpu]) {
        cpu::relax();
    }
}

/// Sets and removes one while the other CPUs run through it.
fn while_others_run(mut turn: impl FnMut()) {
    let wrong = patching::wrong_runs();
    patching::start_runners();
    (0..TURNS).for_each(|_| turn());
    patching::stop_runners();
    check::equal("breakpoint.runs", patching::wrong_runs() - wrong, 0);
}

/// A breakpoint in the first copy only is not hit by CPUs of other nodes: so the checks above can fail.
fn a_missed_copy_is_seen(site: &Site) {
    let first = KernelTextWriter { copies: Copies::First };
    done(set(&first, site));
    let should = core::array::from_fn(|cpu| u64::from(cpu::node_of(cpu).0 == 0));
    check::equal("breakpoint.missed-copy", run_everywhere(), ([SITES; CPUS], should));
    done(remove(&first, site));
}
