//! Watches what a CPU fetches: the CPU single-steps the kernel, and a model of caches is told each instruction.
//!
//! A program asks for this around a system call ([`begin`], [`end`]). From the next trap out of user mode on, the
//! kernel is stepped ([`resume`]) until it goes back to user mode ([`pause`]). `arch` names the instructions that run
//! before stepping is on and after it is off; the model is told these in the order of their addresses. The kernel runs
//! with interrupts off, and watched operations wait for no other CPU, so the counts are the same each time.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use palimpsest_paging::{Frame, VirtAddr};

use crate::arch::{self, mmu, step};
use crate::caches::{Fetches, Model};
use crate::cpu;
use crate::sync::SpinLock;

/// How often an operation is watched; the first time begins with empty caches.
pub(crate) const ROUNDS: usize = 4;

/// The watched operations. User programs pass their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Operation {
    /// A system call that does next to nothing.
    Call,
    /// A fork.
    Fork,
    /// Maps and unmaps a page.
    Map,
    /// The same, and locks the page meanwhile.
    MapLocked,
    /// Withdraws a right from a page, or gives it back.
    Protect,
    /// Opens and closes a device.
    Open,
    /// Signals a process, up to its handler.
    Signal,
}

impl Operation {
    /// All of them, by number.
    pub(crate) const ALL: [Self; 7] =
        [Self::Call, Self::Fork, Self::Map, Self::MapLocked, Self::Protect, Self::Open, Self::Signal];
}

/// Stands for no CPU.
const NOBODY: usize = usize::MAX;
/// The watched CPU.
static WATCHED: AtomicUsize = AtomicUsize::new(NOBODY);
/// Whether it is being stepped.
static STEPPED: AtomicBool = AtomicBool::new(false);
static MODEL: SpinLock<Model> = SpinLock::new(Model::new());
static FETCHES: SpinLock<[[Option<Fetches>; ROUNDS]; Operation::ALL.len()]> =
    SpinLock::new([[None; ROUNDS]; Operation::ALL.len()]);

/// Watches this CPU, from its next system call on. The first round begins with empty caches.
pub(crate) fn begin(round: usize) {
    let here = arch::cpu::number();
    let mut model = MODEL.lock();
    if round == 0 {
        model.empty(cpu::node_of(here));
    }
    model.take();
    // Relaxed, here and below: only the CPU whose number this is looks for it.
    WATCHED.store(here, Ordering::Relaxed);
}

/// Stops watching, and stores what was fetched.
pub(crate) fn end(operation: usize, round: usize) {
    WATCHED.store(NOBODY, Ordering::Relaxed);
    let fetches = MODEL.lock().take();
    let mut noted = FETCHES.lock();
    match noted.get_mut(operation).and_then(|rounds| rounds.get_mut(round)) {
        Some(place) => *place = Some(fetches),
        None => panic!("operation {operation}, round {round}"),
    }
}

/// Returns what was stored since the last call.
pub(crate) fn take() -> [[Option<Fetches>; ROUNDS]; Operation::ALL.len()] {
    core::mem::take(&mut *FETCHES.lock())
}

/// Resumes stepping. The kernel has come back from user mode by a system call other than [`begin`] or [`end`].
pub(crate) fn resume() {
    // Relaxed, here and in `pause`: the watched CPU has written it itself.
    let here = arch::cpu::number();
    if WATCHED.load(Ordering::Relaxed) == here {
        let (user, kernel) = step::from_user_mode();
        show(mmu::user_root(here), user);
        show(mmu::loaded_kernel_root(), kernel);
        STEPPED.store(true, Ordering::Relaxed);
        step::on();
    }
}

/// Pauses stepping. The kernel is about to go to user mode; nothing may lie between this call and the way there.
pub(crate) fn pause() {
    let here = arch::cpu::number();
    if WATCHED.load(Ordering::Relaxed) == here && STEPPED.load(Ordering::Relaxed) {
        step::off();
        STEPPED.store(false, Ordering::Relaxed);
        let (kernel, user) = step::to_user_mode();
        show(mmu::loaded_kernel_root(), kernel);
        show(mmu::user_root(here), user);
    }
}

/// Tells the model of code that is not stepped, and runs with the tables of `root`.
fn show(root: Frame, code: impl Iterator<Item = VirtAddr>) {
    let mut model = MODEL.lock();
    code.for_each(|address| model.step(root, address));
}

/// Tells the model of the instruction at `address`, which the stepped CPU is about to run.
pub(crate) fn step(address: u64) {
    MODEL.lock().step(mmu::loaded_kernel_root(), VirtAddr(address));
}
