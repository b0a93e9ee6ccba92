//! Changing the kernel's own code while other CPUs run it, in every node's copy.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use palimpsest_paging::{Node, PAGE, VirtAddr};
use palimpsest_text::poke::Site;

use crate::arch::cpu as hardware;
use crate::arch::patch::{ACROSS, ROUNDS, apply};
use crate::cpu::{self, CPUS};
use crate::kernel_space;
use crate::kernel_text_writer::{Copies, KernelTextWriter, TRAPS_HIT};
use crate::sites::{SITES, Sites, run as run_sites, site};
use crate::{check, counts, memory, say};

/// Batches of all sites, there and back. Even, so that the sites end as they were.
const TURNS: usize = 20;

static STOP: AtomicBool = AtomicBool::new(false);
/// Twice the number of finished batches, plus one while one is under way.
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// What runs must find between batches.
static EXPECTED: AtomicUsize = AtomicUsize::new(SITES);
static RUNS: AtomicU64 = AtomicU64::new(0);
/// Runs that began and ended between the same two batches with a result that contradicts the sites.
static WRONG: AtomicU64 = AtomicU64::new(0);

fn runner(_: usize) {
    hardware::with_interrupts(|| {
        // Relaxed: a request to stop.
        while !STOP.load(Ordering::Relaxed) {
            // SeqCst, partner: `changing`. Forbids that a run overlaps a batch and is taken for one between batches.
            let epoch = EPOCH.load(Ordering::SeqCst);
            let expected = EXPECTED.load(Ordering::SeqCst);
            let passed = run_sites();
            let undisturbed = epoch.is_multiple_of(2) && EPOCH.load(Ordering::SeqCst) == epoch;
            if passed > SITES || undisturbed && passed != expected {
                // Relaxed: statistics.
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
            RUNS.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Lets the other CPUs run through the sites, which at first let the increments run.
pub(super) fn start_runners() {
    STOP.store(false, Ordering::Relaxed);
    (1..CPUS).for_each(|cpu| cpu::give(cpu, runner));
}

pub(super) fn stop_runners() {
    STOP.store(true, Ordering::Relaxed);
    cpu::wait_for_work();
}

/// Returns all sites, sorted by address.
fn all(to: Sites) -> Vec<Site> {
    (0..SITES).map(|index| site(index, to)).collect()
}

fn expected(to: Sites) -> usize {
    match to {
        Sites::Pass => SITES,
        Sites::Skip => 0,
    }
}

/// Returns the first site that is not what it was changed to in some node's copy, with the physical address of the byte
/// that differs.
fn first_difference(sites: &[Site]) -> Option<(usize, u64)> {
    sites.iter().enumerate().find_map(|(index, site)| {
        let bytes = site.new.as_slice().iter().zip(site.address..);
        bytes
            .flat_map(|(&byte, address)| kernel_space::copies(VirtAddr(address as u64)).map(move |at| (byte, at)))
            .find_map(|(byte, at)| {
                // SAFETY: a byte of the image, or of a copy. Volatile: code that is changed through other addresses.
                let is = unsafe { memory::alias(at).read_volatile() };
                (is != byte).then_some((index, at))
            })
    })
}

/// Runs `change` as a batch that the runners can detect.
fn changing(to: Sites, change: impl FnOnce()) {
    // SeqCst, partner: `runner`.
    EPOCH.fetch_add(1, Ordering::SeqCst);
    change();
    EXPECTED.store(expected(to), Ordering::SeqCst);
    EPOCH.fetch_add(1, Ordering::SeqCst);
}

fn poke(writer: &KernelTextWriter, sites: &[Site]) {
    if let Err(failed) = apply(writer, sites) {
        panic!("{failed:?}");
    }
    if let Err(unmapped) = writer.settle(sites) {
        panic!("{unmapped:?}");
    }
}

fn wait_for_runs(more: u64) {
    let until = RUNS.load(Ordering::Relaxed) + more;
    while RUNS.load(Ordering::Relaxed) < until {
        cpu::relax();
    }
}

/// Gives the pages of the sites other replicas, so that the replicas of neighbours are not neighbours: the frame that
/// was given back last is handed out first. Returns how many sites lie across two pages, if the parts of each are apart
/// on the second node.
fn scatter() -> Option<usize> {
    let (first, last) = (site(0, Sites::Skip).address as u64, site(SITES - 1, Sites::Skip).end() as u64);
    let range = VirtAddr(first / PAGE * PAGE)..VirtAddr(last.next_multiple_of(PAGE));
    let space = kernel_space::get();
    space.drop_replicas(range.clone()).unwrap_or_else(|error| panic!("{error}")).finish();
    let (_, flush) = space.replicate(range).unwrap_or_else(|error| panic!("{error}"));
    flush.finish();
    // The second pages of the sites that lie across two.
    let second = |site: Site| Some((site.end() as u64 - 1) / PAGE * PAGE).filter(|&page| page > site.address as u64);
    let across: Vec<u64> = all(Sites::Skip).into_iter().filter_map(second).collect();
    let place = |address: u64| kernel_space::copies(VirtAddr(address)).last();
    let apart = across.iter().all(|&page| place(page) != place(page - 1).map(|before| before + 1));
    apart.then_some(across.len())
}

pub(super) fn run() {
    let writer = KernelTextWriter { copies: Copies::All };
    let others = CPUS as u64 - 1;
    check::equal("poke.before", run_sites(), SITES);
    check::equal("poke.scattered", scatter(), Some(ACROSS));
    start_runners();
    wait_for_runs(10);

    let before = counts::now();
    changing(Sites::Skip, || (0..SITES).for_each(|index| poke(&writer, &[site(index, Sites::Skip)])));
    let one_by_one = before.since().sync_calls;
    check::equal("poke.one-by-one", (run_sites(), one_by_one), (0, SITES as u64 * ROUNDS * others));
    check::equal("poke.one-by-one.every-copy", first_difference(&all(Sites::Skip)), None);

    let before = counts::now();
    changing(Sites::Pass, || poke(&writer, &all(Sites::Pass)));
    let batched = before.since().sync_calls;
    check::equal("poke.batched", (run_sites(), batched), (SITES, ROUNDS * others));
    check::equal("poke.batched.every-copy", first_difference(&all(Sites::Pass)), None);
    say!("poke.{SITES}.one-by-one.ipis-per-cpu {}", one_by_one / others);
    say!("poke.{SITES}.batched.ipis-per-cpu {}", batched / others);

    for turn in 0..TURNS {
        let to = if turn % 2 == 0 { Sites::Skip } else { Sites::Pass };
        changing(to, || poke(&writer, &all(to)));
        if turn % 10 == 0 {
            wait_for_runs(3);
        }
    }
    stop_runners();
    let (runs, wrong) = (RUNS.load(Ordering::Relaxed), WRONG.load(Ordering::Relaxed));
    say!("# {runs} runs through the sites meanwhile, {} traps hit", TRAPS_HIT.load(Ordering::Relaxed));
    check::equal("poke.runs", wrong, 0);
    check::equal("poke.every-cpu", results(), [SITES; CPUS]);
    a_missed_copy_is_seen();
}

static RESULTS: [AtomicUsize; CPUS] = [const { AtomicUsize::new(0) }; CPUS];

/// Returns how many runs have contradicted the sites.
pub(super) fn wrong_runs() -> u64 {
    // Relaxed: a statistic.
    WRONG.load(Ordering::Relaxed)
}

/// Returns what each CPU gets from running the sites.
pub(super) fn results() -> [usize; CPUS] {
    fn note(cpu: usize) {
        // Relaxed: `wait_for_work` orders it.
        RESULTS[cpu].store(run_sites(), Ordering::Relaxed);
    }
    (1..CPUS).for_each(|cpu| cpu::give(cpu, note));
    note(hardware::number());
    cpu::wait_for_work();
    core::array::from_fn(|cpu| RESULTS[cpu].load(Ordering::Relaxed))
}

/// A writer that forgets the other nodes' copies leaves the old code to their CPUs: so the checks above can fail.
fn a_missed_copy_is_seen() {
    let last = [site(SITES - 1, Sites::Skip)];
    poke(&KernelTextWriter { copies: Copies::First }, &last);
    let seen = results();
    let should = core::array::from_fn(|cpu| if cpu::node_of(cpu).0 == 0 { SITES - 1 } else { SITES });
    check::equal("poke.missed-copy", seen, should);
    let different = first_difference(&last).map(|(_, at)| memory::node_of(at));
    check::equal("poke.missed-copy.which", different, Some(Node(1)));
    poke(&KernelTextWriter { copies: Copies::All }, &[site(SITES - 1, Sites::Pass)]);
    check::equal("poke.repaired", results(), [SITES; CPUS]);
}
