//! Watching what a CPU fetches: it runs the kernel instruction by instruction, and each is shown to a model of caches.
//!
//! A program asks for it around a system call ([`begin`], [`end`]). From the next trap out of user mode on, the kernel
//! is stepped ([`resume`]) until it goes back there ([`pause`]). What traps and the way back run before stepping is on,
//! and after it is off, the architecture names, and the model gets it as it lies there. The kernel runs with interrupts
//! off, and operations that are watched wait for no other CPU: so the counts are the same each time.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use palimpsest_paging::{Frame, VirtAddr};

use crate::arch::{self, mmu, step};
use crate::caches::{Fetches, Model};
use crate::cpu;
use crate::sync::SpinLock;

/// How often an operation is watched, from empty caches on.
pub(crate) const ROUNDS: usize = 4;

/// What is watched. Programs of user mode say it by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Operation {
    /// A system call that does next to nothing.
    Call,
    /// A fork.
    Fork,
    /// A page is mapped and unmapped.
    Map,
    /// The same; meanwhile it is locked.
    MapLocked,
    /// A page loses a right, or gets it back.
    Protect,
    /// A device is opened and closed.
    Open,
    /// A process is sent a signal, until its handler runs.
    Signal,
}

impl Operation {
    /// All of them, by their numbers.
    pub(crate) const ALL: [Self; 7] =
        [Self::Call, Self::Fork, Self::Map, Self::MapLocked, Self::Protect, Self::Open, Self::Signal];
}

/// Stands for no CPU.
const NOBODY: usize = usize::MAX;
/// The CPU that is watched.
static WATCHED: AtomicUsize = AtomicUsize::new(NOBODY);
/// Whether it is stepped now.
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
    // Relaxed, here and below: this CPU alone looks for its own number.
    WATCHED.store(here, Ordering::Relaxed);
}

/// Ends that, and notes what was fetched.
pub(crate) fn end(operation: usize, round: usize) {
    WATCHED.store(NOBODY, Ordering::Relaxed);
    let fetches = MODEL.lock().take();
    let mut noted = FETCHES.lock();
    match noted.get_mut(operation).and_then(|rounds| rounds.get_mut(round)) {
        Some(place) => *place = Some(fetches),
        None => panic!("operation {operation}, round {round}"),
    }
}

/// What was noted since this was asked last.
pub(crate) fn take() -> [[Option<Fetches>; ROUNDS]; Operation::ALL.len()] {
    core::mem::take(&mut *FETCHES.lock())
}

/// The kernel has come back from user mode, by a system call that is not [`begin`] or [`end`].
pub(crate) fn resume() {
    // Relaxed, here and in `pause`: the CPU that is watched has written it itself.
    let here = arch::cpu::number();
    if WATCHED.load(Ordering::Relaxed) == here {
        let (user, kernel) = step::from_user_mode();
        show(mmu::user_root(here), user);
        show(mmu::loaded_kernel_root(), kernel);
        STEPPED.store(true, Ordering::Relaxed);
        step::on();
    }
}

/// The kernel is about to go to user mode: nothing may lie between this and the way there.
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

/// Shows code that was not stepped, and runs by the tables of `root`.
fn show(root: Frame, code: impl Iterator<Item = VirtAddr>) {
    let mut model = MODEL.lock();
    code.for_each(|address| model.step(root, address));
}

/// The CPU is about to run the instruction at `address`, and is stepped.
pub(crate) fn step(address: u64) {
    MODEL.lock().step(mmu::loaded_kernel_root(), VirtAddr(address));
}
