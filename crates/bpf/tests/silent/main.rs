//! Runs of programs use no allocator: every helper, on every kind of map, by threads that run their first program, and
//! in a signal handler that has interrupted the allocator.
//!
//! Mutants that are caught: a value that is copied to the heap, an eviction that copies its key, a callback in a box, a
//! program that a tail call was the last to keep, a destructor of thread-local data.
#![cfg(target_env = "gnu")]

mod allocator;
mod cases;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/cpu.rs"]
mod cpu;
mod printed;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use palimpsest_bpf::host::{Host, HostedProgram, Slot};
use palimpsest_bpf::insn::{Callee, Instruction};
use palimpsest_bpf::verify::{ContextAccess, Contract, Fault, Unproven};
use palimpsest_bpf::{Code, Packs, asm, hook};

use allocator::{forbidden, interrupted};
use cases::{Case, LEN, all};
use common::packs;
use cpu::stay_on_one_cpu;

fn contract() -> Contract {
    Contract::new().context(LEN as u32, ContextAccess::Read).unproven(Unproven::Probe).fuel(100_000)
}

fn code(text: &str) -> Code {
    let bytes = asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn load(packs: &Packs, host: &Arc<Host>, text: &str) -> Arc<HostedProgram> {
    let linked = host.verify(contract(), code(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Arc::new(HostedProgram::load(packs, &linked).expect("room"))
}

/// A case that can be run.
struct Loaded {
    case: Case,
    host: Arc<Host>,
    program: Arc<HostedProgram>,
    packs: Packs,
}

/// What came of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Outcome {
    /// What the program returned; `None` if it was ended.
    result: Option<u64>,
    /// How often the allocator was used.
    caught: u32,
}

impl Loaded {
    fn new(packs: &Packs, case: Case) -> Self {
        let host = cases::builder().build();
        let program = load(packs, &host, &case.text);
        Self { case, host, program, packs: packs.clone() }
    }

    fn prepare(&self) {
        let programs = self.host.map("programs").and_then(|map| map.programs()).expect("there");
        // The map alone keeps it.
        programs.set(0, Some(load(&self.packs, &self.host, "call 70001\nr0 = 5\nexit"))).expect("a place");
        (self.case.prepare)(&self.host);
    }

    fn run(&self) -> Outcome {
        let (result, caught) = forbidden(|| self.program.run_read_only(&cases::CONTEXT).ok());
        Outcome { result, caught }
    }

    fn check(&self, outcome: Outcome) {
        let Case { name, text, expected, .. } = &self.case;
        let expected = expected.map(|value| value as u64);
        assert_eq!(outcome, Outcome { result: expected, caught: 0 }, "{name}:\n{text}");
    }
}

fn loaded() -> Vec<Loaded> {
    let load = |packs| all().into_iter().map(|case| Loaded::new(&packs, case)).collect();
    packs().map(load).unwrap_or_default()
}

#[test]
fn every_helper_is_among_the_cases() {
    let host = cases::builder().build();
    let exists = |id: i32| {
        let refused = host.verify(contract(), code(&format!("call {id}\nr0 = 0\nexit"))).map(drop);
        !refused.is_err_and(|error| matches!(error.fault, Fault::Helper { .. }))
    };
    let existing: BTreeSet<i32> = (0..400).filter(|id| exists(*id)).collect();
    assert!(existing.len() >= 50, "{existing:?}");
    let called = |case: Case| {
        let called = |instruction: &Instruction| match instruction {
            Instruction::Call(Callee::Helper(id)) => Some(*id),
            _ => None,
        };
        code(&case.text).instructions().iter().filter_map(called).collect::<Vec<_>>()
    };
    let tried: BTreeSet<i32> = all().into_iter().flat_map(called).collect();
    assert_eq!(existing.difference(&tried).collect::<Vec<_>>(), [&0; 0]);
}

/// Lets one test at a time run the cases, which remove programs for one another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_threads_first_run_uses_no_allocator() {
    let _alone = alone();
    stay_on_one_cpu();
    printed::subscribe();
    for loaded in loaded() {
        loaded.prepare();
        let first = std::thread::scope(|scope| scope.spawn(|| loaded.run()).join());
        loaded.check(first.expect("it does not panic"));
        // Once more, for what only the second run does.
        loaded.prepare();
        loaded.check(loaded.run());
    }
}

/// What the handler runs.
static CASES: OnceLock<Vec<Loaded>> = OnceLock::new();
/// Which of them.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// What came of it: the result, the calls of the allocator, and how often the handler was called.
static RESULT: AtomicU64 = AtomicU64::new(0);
static CAUGHT: AtomicU32 = AtomicU32::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn handle(_signal: libc::c_int) {
    let Some(loaded) = CASES.get().and_then(|cases| cases.get(NEXT.load(Ordering::Relaxed))) else { return };
    let outcome = loaded.run();
    // A program of the cases returns no such number.
    RESULT.store(outcome.result.unwrap_or(u64::MAX / 3), Ordering::Relaxed);
    CAUGHT.store(outcome.caught, Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

#[test]
#[expect(unsafe_code, reason = "a handler is installed")]
fn a_handler_that_has_interrupted_the_allocator_runs_everything() {
    let _alone = alone();
    stay_on_one_cpu();
    printed::subscribe();
    // SAFETY: all-zero is a valid action, without flags and masks.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    // SAFETY: a valid action, whose handler is a function of that type; null asks for nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) }, 0);
    let cases = CASES.get_or_init(loaded);
    for (index, loaded) in cases.iter().enumerate() {
        NEXT.store(index, Ordering::Relaxed);
        loaded.prepare();
        // Each on a thread that has run nothing yet.
        std::thread::scope(|scope| scope.spawn(interrupted).join()).expect("it does not panic");
        assert_eq!(CALLS.load(Ordering::Relaxed), index as u32 + 1, "the handler was called");
        let result = Some(RESULT.load(Ordering::Relaxed)).filter(|result| *result != u64::MAX / 3);
        loaded.check(Outcome { result, caught: CAUGHT.load(Ordering::Relaxed) });
    }
}

hook! {
    /// With one program.
    fn silent(context: &[u8; LEN]) = "test.silent";
}

#[test]
fn hooks_and_slots_use_no_allocator() {
    let Some(packs) = packs() else { return };
    let program = load(&packs, &cases::builder().build(), "r0 = *(u8 *)(r1 + 2)\nexit");
    let attached = silent::HOOK.attach(0, Arc::clone(&program)).expect("it fits");
    let slot = Slot::new(program);
    let run = || {
        let verdict = silent(&cases::CONTEXT);
        verdict + slot.get().run_read_only(&cases::CONTEXT).expect("a context")
    };
    let both = std::thread::scope(|scope| scope.spawn(|| forbidden(run)).join());
    assert_eq!(both.expect("it does not panic"), (2 * u64::from(cases::CONTEXT[2]), 0));
    attached.detach().expect("the key is ours");
    assert_eq!(silent::HOOK.reclaim(), 0);
}
