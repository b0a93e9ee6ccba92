//! CPUs: which spaces they run, calls between them, and work that tests give them.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use palimpsest_paging::{Node, SpaceId};

use crate::arch::{self, mmu};
use crate::call::Call;
use crate::memory::NODES;
use crate::process::UserSpace;
use crate::sync::SpinLock;
use crate::{flush, kernel_space};

/// CPUs of the machine; the first half is on node 0, the others on node 1, as QEMU's command line says (README.md).
pub(crate) const CPUS: usize = 4;

/// The ID that means no process's space.
const NO_SPACE: u64 = u64::MAX;

/// The space of the process whose tables each CPU may walk.
static RUNS: [AtomicU64; CPUS] = [const { AtomicU64::new(NO_SPACE) }; CPUS];
static UP: [AtomicBool; CPUS] = [const { AtomicBool::new(false) }; CPUS];

/// Work for a CPU, given its number.
pub(crate) type Work = fn(usize);
static WORK: [SpinLock<Option<Work>>; CPUS] = [const { SpinLock::new(None) }; CPUS];
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Returns the node that a CPU is on.
pub(crate) fn node_of(cpu: usize) -> Node {
    Node((cpu / (CPUS / NODES)) as u8)
}

/// Returns whether `cpu` has started.
pub(crate) fn is_up(cpu: usize) -> bool {
    // Acquire, partner: the Release in `set_up`. Forbids calling it before it can answer.
    UP[cpu].load(Ordering::Acquire)
}

/// Notes that this CPU can be called.
pub(crate) fn set_up(cpu: usize) {
    // Release, partner: the Acquire in `is_up`.
    UP[cpu].store(true, Ordering::Release);
}

/// Returns whether `cpu` may walk the tables of `space`.
pub(crate) fn runs(cpu: usize, space: SpaceId) -> bool {
    // Relaxed: ordered by the fences in `run_space` and `Machine::dispatch`.
    RUNS[cpu].load(Ordering::Relaxed) == space.0
}

/// Loads the tables of a process.
pub(crate) fn run_space(space: &UserSpace) {
    let here = arch::cpu::number();
    // Relaxed: ordered by the fence.
    RUNS[here].store(space.id().0, Ordering::Relaxed);
    // SeqCst, partner: the fence in `Machine::dispatch`. Forbids that this CPU walks old entries while the one that has
    // changed them does not see that it must call this one.
    fence(Ordering::SeqCst);
    mmu::load_user(space.root(node_of(here)));
}

/// Leaves the tables of a process.
pub(crate) fn leave_space() {
    let here = arch::cpu::number();
    mmu::leave_user(kernel_space::get().root(node_of(here)));
    // Release, partner: the load in `runs`. Forbids that the space seems left while this CPU still walks its tables.
    RUNS[here].store(NO_SPACE, Ordering::Release);
}

/// What one CPU at a time does, also if it waits for others meanwhile: for which nobody may hold a `SpinLock`.
pub(crate) struct Turns(AtomicBool);

impl Turns {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Runs `work` while no other CPU has its turn.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> T) -> T {
        // Acquire, partner: the Release below. Those who wait answer calls, because who has the turn may call them.
        while self.0.swap(true, Ordering::Acquire) {
            relax();
        }
        let result = work();
        // Release, partner: the Acquire above. Forbids that the next one finds what `work` changed as it was before.
        self.0.store(false, Ordering::Release);
        result
    }
}

/// Spends one turn of waiting for another CPU.
pub(crate) fn relax() {
    flush::serve();
    core::hint::spin_loop();
}

/// Answers another CPU's call.
pub(crate) fn take_call(call: Call) {
    match call {
        Call::Flush | Call::Synchronize => flush::serve(),
        Call::Wake => {}
    }
}

/// Gives work to a CPU; [`wait_for_work`] waits until all is done.
pub(crate) fn give(cpu: usize, work: Work) {
    // Relaxed: the lock orders it before the work.
    BUSY.fetch_add(1, Ordering::Relaxed);
    *WORK[cpu].lock() = Some(work);
    if cpu != arch::cpu::number() {
        arch::interrupts::send(cpu, Call::Wake);
    }
}

/// Waits until all work is done.
pub(crate) fn wait_for_work() {
    // Acquire, partner: the Release in `do_work`.
    while BUSY.load(Ordering::Acquire) > 0 {
        // The first CPU gives work, and is woken by whoever finishes some.
        arch::cpu::halt();
        flush::serve();
    }
}

/// Does the work given to this CPU. Returns false if there was none.
pub(crate) fn do_work() -> bool {
    let here = arch::cpu::number();
    let work = WORK[here].lock().take();
    let Some(work) = work else { return false };
    work(here);
    // Release, partner: the Acquire in `wait_for_work`. Forbids reading results before they are there.
    BUSY.fetch_sub(1, Ordering::Release);
    arch::interrupts::send(0, Call::Wake);
    true
}
