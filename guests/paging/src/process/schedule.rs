//! The scheduler: each CPU takes turns with the threads it was given.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_paging::VirtAddr;

use super::syscall::{self, Done, Next};
use super::{Area, Handles, Process, Thread, Trap, memory, user};
use crate::arch::user::Context;
use crate::arch::{self, mmu};
use crate::call::Call;
use crate::cpu::{self, CPUS};
use crate::fetches;
use crate::sync::SpinLock;

/// Faults without effect, in a row and at one address, after which a thread is given up. The first removes a stale
/// translation from this CPU. For each further one, another CPU must have forked, and a third CPU must have resolved
/// first what the fork protected.
const PATIENCE: u32 = 16;

static READY: [SpinLock<VecDeque<Thread>>; CPUS] = [const { SpinLock::new(VecDeque::new()) }; CPUS];
/// Threads that have not ended.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static EXITS: SpinLock<Vec<Exit>> = SpinLock::new(Vec::new());

/// How a thread has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exit {
    /// Its process.
    pub(crate) process: u64,
    /// The code that it gave, or [`user::FAULTED_NOT_MAPPED`] and the like.
    pub(crate) code: u64,
    /// Where it faulted, if it did.
    pub(crate) address: VirtAddr,
}

/// Starts a process whose first thread runs `program` on `cpu`. Returns its number.
pub(crate) fn spawn(program: user::Program, argument: u64, areas: &[Area], cpu: usize) -> u64 {
    let space = memory::new_space(areas, cpu::node_of(cpu)).unwrap_or_else(|error| panic!("{error}"));
    let id = space.id().0;
    start_thread(
        Arc::new(Process::new(space, Handles::default())),
        user::entry(program),
        argument,
        user::STACKS[0],
        cpu,
    );
    id
}

/// Starts a thread of a process, on a stack that ends at `stack_end`.
pub(super) fn start_thread(process: Arc<Process>, entry: VirtAddr, argument: u64, stack_end: VirtAddr, cpu: usize) {
    ready(Thread { process, context: Context::new(entry, argument, stack_end) }, cpu);
}

/// Queues a new thread on `cpu`.
pub(super) fn ready(thread: Thread, cpu: usize) {
    // Relaxed: the queue's lock orders it.
    LIVE.fetch_add(1, Ordering::Relaxed);
    READY[cpu].lock().push_back(thread);
    if cpu != arch::cpu::number() {
        arch::interrupts::send(cpu, Call::Wake);
    }
}

/// Runs this CPU's threads until none is ready. Returns false if there was none.
pub(crate) fn run_ready() -> bool {
    let here = arch::cpu::number();
    let mut any = false;
    loop {
        let thread = READY[here].lock().pop_front();
        let Some(thread) = thread else { return any };
        any = true;
        if let Some(thread) = run(thread) {
            READY[here].lock().push_back(thread);
        }
        cpu::relax();
    }
}

/// Runs threads until all have ended, on all CPUs.
pub(crate) fn run_all() {
    // Acquire, partner: the Release in `run`. Forbids counting frames before the last space has given back its own.
    while LIVE.load(Ordering::Acquire) > 0 {
        if !run_ready() {
            // A CPU that ends a thread wakes the first CPU; only that one waits.
            arch::cpu::halt();
            cpu::relax();
        }
    }
}

/// Runs a thread until it yields (then returns it) or ends.
fn run(mut thread: Thread) -> Option<Thread> {
    cpu::run_space(&thread.process.space);
    let mut in_vain = (VirtAddr(0), 0);
    let exit = loop {
        mmu::follow();
        fetches::pause();
        let trap = thread.context.run();
        if !syscall::is_about_watching(&trap) {
            fetches::resume();
        }
        match trap {
            Trap::Call { number, arguments } => match syscall::handle(&mut thread, number, arguments) {
                Next::Continue => {}
                Next::Yield => {
                    cpu::leave_space();
                    return Some(thread);
                }
                Next::Exit(code) => break (code, VirtAddr(0)),
            },
            Trap::Fault { address, access, found } => {
                let before = if in_vain.0 == address { in_vain.1 } else { 0 };
                match syscall::fault(&thread, address, access, found) {
                    Ok(Done::Something) => in_vain = (address, 0),
                    Ok(Done::Nothing) if before == PATIENCE => break (user::FAULTED_FOREVER, address),
                    Ok(Done::Nothing) => in_vain = (address, before + 1),
                    Err(code) => break (code, address),
                }
            }
            Trap::Interrupt(call) => cpu::take_call(call),
            Trap::Other { code, instruction } => panic!("user mode traps with {code:#x} at {instruction}"),
        }
    };
    cpu::leave_space();
    let (code, address) = exit;
    EXITS.lock().push(Exit { process: thread.process.id, code, address });
    // The last thread's process gives back its memory here.
    drop(thread);
    // Release, partner: the Acquire in `run_all`.
    LIVE.fetch_sub(1, Ordering::Release);
    arch::interrupts::send(0, Call::Wake);
    None
}

/// Returns how the threads of a process have ended so far.
pub(crate) fn exits_of(process: u64) -> Vec<Exit> {
    EXITS.lock().iter().filter(|exit| exit.process == process).copied().collect()
}

/// Returns how many threads have ended with another code than 0 since [`take_exits`].
pub(super) fn failures() -> u64 {
    EXITS.lock().iter().filter(|exit| exit.code != 0).count() as u64
}

/// Makes a thread of `process` that is ready on this CPU continue at `handler`. Returns false if there is none.
pub(super) fn signal(process: u64, handler: VirtAddr) -> bool {
    let mut ready = READY[arch::cpu::number()].lock();
    let thread = ready.iter_mut().find(|thread| thread.process.id == process);
    thread.map(|thread| thread.context.divert(handler)).is_some()
}

/// Takes the exits of all threads since the last call.
pub(crate) fn take_exits() -> Vec<Exit> {
    core::mem::take(&mut *EXITS.lock())
}
