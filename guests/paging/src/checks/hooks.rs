//! Programs that are asked before system calls, attached and detached while processes on all CPUs make them.

use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use palimpsest_bpf::host::Host;
use palimpsest_bpf::map::{Kind, Map};

use super::processes::areas;
use super::programs::{contract, count_in, load, map, number, verified};
use crate::bpf::Program;
use crate::bpf::hook::{self, AttachError, Attached, WORDS};
use crate::counts::{COUNTS, now};
use crate::cpu::{self, CPUS};
use crate::process::user::{self, ENOUGH, NOBODY, REFUSED};
use crate::process::{run_all, spawn, take_exits};
use crate::{check, key, memory, packs, say};

/// How often programs are attached and detached.
const TURNS: usize = 16;
/// Calls that must be made in each state before the next one.
const CALLS: u64 = 20;

/// The maps of the programs here.
struct Seen {
    host: Arc<Host>,
    /// Calls, by CPU.
    calls: Arc<Map>,
    /// Refusals of each process.
    refused: Arc<Map>,
}

impl Seen {
    fn new() -> Self {
        let [calls, refused] = [map("calls", Kind::PerCpuArray, 4, 8, 2), map("refused", Kind::Hash, 8, 8, 64)];
        let host = Host::builder().map(Arc::clone(&calls)).map(Arc::clone(&refused)).build();
        Self { host, calls, refused }
    }

    fn load(&self, text: &str) -> Arc<Program> {
        Arc::new(load(verified(&self.host, contract(WORDS), text)))
    }

    /// Creates a program that counts each call, by CPU, and lets it pass.
    fn counter(&self) -> Arc<Program> {
        self.load(&format!("r6 = 1\n{}out: r0 = 0\nexit", count_in(0)))
    }

    /// Creates a program that refuses calls which ask for [`NOBODY`], and counts the refusals by process.
    fn refuser(&self) -> Arc<Program> {
        self.load(&format!(
            "r7 = *(u64 *)(r1 + 8)\nr2 = {NOBODY} ll\nif r7 != r2 goto pass\nr7 = *(u64 *)(r1 + 32)\n\
             *(u64 *)(r10 - 8) = r7\nr1 = map[idx:1] ll\nr2 = r10\nr2 += -8\ncall 1\nif r0 != 0 goto known\n\
             *(u64 *)(r10 - 16) = 0\nr1 = map[idx:1] ll\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 1\ncall 2\n\
             r1 = map[idx:1] ll\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto pass\n\
             known: r1 = 1\nlock *(u64 *)(r0 + 0) += r1\nr0 = {REFUSED}\nexit\npass: r0 = 0\nexit"
        ))
    }

    /// Creates a program that ends processes which ask for [`NOBODY`].
    fn ender(&self) -> Arc<Program> {
        self.load(&format!(
            "r0 = 0\nr7 = *(u64 *)(r1 + 8)\nr2 = {NOBODY} ll\nif r7 != r2 goto out\nr0 = {ENOUGH}\nout: exit"
        ))
    }

    fn all_calls(&self) -> u64 {
        (0..CPUS).map(|cpu| number(&self.calls, 1, cpu)).sum()
    }
}

/// Attaches a program that is one for system calls.
fn attach(priority: i32, program: Arc<Program>) -> Attached {
    hook::attach(priority, program).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Returns the number of system calls so far.
fn system_calls() -> u64 {
    // Relaxed: a statistic.
    COUNTS.system_calls.load(Ordering::Relaxed)
}

/// Waits until `count` has grown.
fn wait_for(count: impl Fn() -> u64) {
    let until = count() + CALLS;
    while count() < until {
        cpu::relax();
    }
}

/// Returns whether every node's copy of every site is in the state `on`.
fn sites_are(on: bool) -> bool {
    key::sites().iter().all(|site| {
        let bytes = site.bytes(on);
        bytes.into_iter().zip(site.address as u64..).all(|(byte, address)| {
            // SAFETY: bytes of the image's text, in every copy. Volatile: they change.
            let is = |copy| unsafe { memory::alias(copy).read_volatile() } == byte;
            crate::kernel_space::copies(palimpsest_paging::VirtAddr(address)).all(is)
        })
    })
}

pub(super) fn run() {
    let seen = Seen::new();
    let others = CPUS as u64 - 1;
    check::holds("hook.sites", !key::sites().is_empty() && sites_are(false), format_args!("{:x?}", key::sites()));
    let long = Arc::new(load(verified(&seen.host, contract(WORDS + 1), "r0 = 0\nexit")));
    check::equal("hook.long", hook::attach(0, long), Err(AttachError::Context { words: WORDS + 1 }));
    let (counter, refuser) = (seen.counter(), seen.refuser());
    let calls_of_cpus = |change: &mut dyn FnMut()| {
        let before = now();
        change();
        before.since().sync_calls / others
    };
    let mut attached = None;
    let first = calls_of_cpus(&mut || attached = Some(attach(0, Arc::clone(&counter))));
    check::holds("hook.on", sites_are(true), format_args!("{:x?}", key::sites()));
    let mut second = None;
    let more = calls_of_cpus(&mut || second = Some(attach(1, Arc::clone(&refuser))));
    let one = calls_of_cpus(&mut || second.take().into_iter().for_each(hook::detach));
    let last = calls_of_cpus(&mut || attached.take().into_iter().for_each(hook::detach));
    check::holds("hook.off", sites_are(false), format_args!("{:x?}", key::sites()));
    check::equal("hook.ipis", [first, more, one, last], [2, 2, 1, 1]);
    for (name, count) in
        ["attach-first", "attach-more", "detach-one", "detach-last"].into_iter().zip([first, more, one, last])
    {
        say!("bpf.hook.{name}.ipis-per-cpu {count}");
    }
    under_load(&seen, counter, refuser);
    drop(seen);
    packs::reclaim();
    check::equal("hook.leaks", packs::taken(), 0);
}

/// Processes on the other CPUs make system calls all the time.
fn under_load(seen: &Seen, counter: Arc<Program>, refuser: Arc<Program>) {
    let frames = memory::in_use();
    let processes: [u64; CPUS - 1] = core::array::from_fn(|cpu| spawn(user::asker, 0, &areas(1), cpu + 1));
    wait_for(system_calls);
    check::equal("hook.absent", hook::counts(), (0, 0));
    let refusals = || processes.iter().map(|process| number(&seen.refused, *process, 0)).sum::<u64>();
    // Wrong counts after a program was detached, and after the last one was.
    let mut wrong = [0; 2];
    for turn in 0..TURNS {
        // The program attached so far is detached only after its copy, in another place, was attached.
        let again = if turn % 2 == 0 { Arc::clone(&refuser) } else { seen.refuser() };
        let counting = attach(0, Arc::clone(&counter));
        let refusing = attach(1, again);
        wait_for(refusals);
        hook::detach(refusing);
        let (refused, counted) = (refusals(), seen.all_calls());
        wait_for(|| seen.all_calls());
        wrong[0] += u64::from(refusals() != refused || seen.all_calls() < counted + CALLS);
        hook::detach(counting);
        let (counted, (_, asked)) = (seen.all_calls(), hook::counts());
        wait_for(system_calls);
        wrong[1] += u64::from(seen.all_calls() != counted || hook::counts().1 != asked);
    }
    check::equal("hook.turns", wrong, [0; 2]);
    let ender = attach(0, seen.ender());
    run_all();
    hook::detach(ender);
    let mut exits = take_exits();
    exits.sort_by_key(|exit| exit.process);
    let codes: alloc::vec::Vec<(u64, u64)> = exits.iter().map(|exit| (exit.process, exit.code)).collect();
    let should: alloc::vec::Vec<(u64, u64)> =
        processes.iter().map(|process| (*process, number(&seen.refused, *process, 0))).collect();
    // Each process was told as many refusals as the program has counted for it.
    check::equal("hook.refused", codes, should);
    check::holds("hook.refused.all", refusals() >= CALLS * TURNS as u64, format_args!("{} refusals", refusals()));
    let per_cpu: [u64; CPUS] = core::array::from_fn(|cpu| number(&seen.calls, 1, cpu));
    say!("# calls that programs saw, by CPU: {per_cpu:?}; refused {}; asked {}", refusals(), hook::counts().1);
    // The first CPU has made none while programs counted.
    check::equal("hook.cpus", per_cpu[0], 0);
    check::equal("hook.ended", hook::counts().0, 0);
    check::equal("hook.frames", memory::in_use(), frames);
}
