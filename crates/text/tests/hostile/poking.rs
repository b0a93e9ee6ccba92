//! Changes running code while cores are synchronised by signals, which threads can refuse.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palimpsest_sys::SyncPath;
use palimpsest_text::poke::{Batch, Mode, ModeChoice, PokeError};
use palimpsest_text::{Packs, Program};

use crate::child::{World, play};
use crate::exercise::{assert_tells, chain, exercise, run};
use crate::fork::in_fork;
use crate::seccomp::Answer;
use crate::{arch, seccomp};

/// Makes other threads end, also when an assertion fails in this one.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A program that returns 1 by its NOP and 2 by its jump.
struct Toggled {
    packs: Packs,
    program: Program,
    nop: Vec<u8>,
    jump: Vec<u8>,
}

impl Toggled {
    /// Creates it in a process without membarrier.
    fn new() -> Self {
        seccomp::forbid(libc::SYS_membarrier, Answer::Errno(libc::EPERM));
        let packs = Packs::new().expect("signals work");
        assert_eq!(packs.sync_path(), SyncPath::Signals);
        let (one, two) = (arch::return_number(1), arch::return_number(2));
        let (nop, jump) = arch::nop_and_jump(u8::try_from(one.len()).expect("a few instructions"));
        let program = packs.load(&[&nop[..], &one, &two].concat(), 64).expect("there is room");
        Self { packs, program, nop, jump }
    }

    /// Makes the program return `number`.
    fn switch_to(&self, number: u16, choice: ModeChoice) -> Result<(), PokeError> {
        let (old, new) = if number == 2 { (&self.nop, &self.jump) } else { (&self.jump, &self.nop) };
        let mut batch = Batch::new();
        // SAFETY: 1. one instruction each; 2. the program returns 1 or 2.
        unsafe { batch.add(&self.program, 0, old, new) }.expect("it can be changed");
        batch.apply_in(choice).map(drop)
    }

    /// Returns byte `index` of the code, as it is now.
    fn byte(&self, index: usize) -> u8 {
        // SAFETY: in the program, which is longer.
        let at = unsafe { self.program.entry().add(index) };
        // SAFETY: readable code; volatile, since it changes meanwhile.
        unsafe { at.read_volatile() }
    }
}

#[test]
fn running_code_is_changed_without_membarrier() {
    play("poking::running_code_is_changed_without_membarrier", World::Same, || {
        let toggled = Toggled::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(matches!(run(&toggled.program), 1 | 2));
                }
            });
            for round in 0..100 {
                let number = 2 - round % 2;
                toggled.switch_to(number, ModeChoice::Automatic).expect("signals work");
                assert_eq!(run(&toggled.program), number);
            }
        });
    });
}

/// Makes the program return 2 while another thread takes part in no broadcast from the moment that `refuse` chooses.
/// Repeats that until the error is the expected one: the thread may be too late.
fn fail_to_switch(
    toggled: &Toggled,
    choice: ModeChoice,
    refuse: impl Fn() -> bool + Sync,
    wanted: impl Fn(&PokeError) -> bool,
) -> PokeError {
    for round in 0..10_000 {
        let (ready, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let outcome = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                ready.store(true, Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) && !refuse() {
                    std::hint::spin_loop();
                }
                block_all_signals();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            while !ready.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            let outcome = toggled.switch_to(2, choice);
            stop.store(true, Ordering::Relaxed);
            // A scope does not wait until the kernel has ended a thread, and this one blocks all signals.
            other.join().expect("it ends");
            outcome
        });
        match outcome {
            Err(error) if wanted(&error) => {
                println!("in time in round {round}");
                return error;
            }
            // Nothing has changed.
            Err(PokeError::Sync(_)) => {}
            Ok(()) | Err(PokeError::Unsynced(_)) => toggled.switch_to(1, choice).expect("every thread answers"),
            Err(error) => panic!("{}", chain(&error)),
        }
    }
    panic!("the other thread was always too late");
}

/// Does something while the stack below the caller's frame is written to.
#[inline(never)]
fn above_other_frames(act: impl FnOnce()) {
    let filled = [0x5a_u8; 64 << 10];
    std::hint::black_box(&filled);
    act();
    std::hint::black_box(&filled);
}

/// Sleeps, and returns whether a handler has run meanwhile. Then the sleeper continues at once, on one CPU before the
/// sender of the signal.
fn is_interrupted() -> bool {
    // SAFETY: no descriptors, and a time.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 1) < 0 }
}

fn block_all_signals() {
    // SAFETY: all-zero is a valid set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid set.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: a valid set; the old mask is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut()) };
}

#[test]
fn a_batch_that_failed_half_way_works_by_traps_and_is_the_last() {
    if palimpsest_sys::arch::COHERENCE == palimpsest_sys::arch::Coherence::NeedsFlushAndSync {
        return eprintln!("skipped: this instruction set changes code without traps");
    }
    play("poking::a_batch_that_failed_half_way_works_by_traps_and_is_the_last", World::Same, || {
        let toggled = Toggled::new();
        // The thread refuses once it has seen the trap, for which the first signal comes.
        let half_way = |error: &PokeError| matches!(error, PokeError::Stuck(Some(_)));
        let error = fail_to_switch(&toggled, ModeChoice::Only(Mode::Trap), is_interrupted, half_way);
        assert_tells(&chain(&error), &["half-way", "blocks"]);
        assert_ne!(toggled.byte(0), toggled.jump[0], "the first byte is written last");
        assert_eq!(run(&toggled.program), 2, "the trap does what the jump would");
        let error = toggled.switch_to(2, ModeChoice::Automatic).expect_err("there is a trap");
        assert!(matches!(error, PokeError::Stuck(None)), "{error:?}");
        // A child knows the trap, wherever the frames of this batch were, and ends it for itself.
        let status = in_fork(|| {
            assert_eq!(run(&toggled.program), 2);
            above_other_frames(|| {
                let batch = std::thread::spawn(|| Batch::new().apply().expect("nothing of it is the child's"));
                batch.join().expect("it succeeds");
            });
        });
        assert_eq!(status, 0, "the child's batch");
        // Loading still works.
        exercise(&toggled.packs);
    });
}

#[test]
fn a_change_that_some_core_may_not_know_is_told() {
    play("poking::a_change_that_some_core_may_not_know_is_told", World::Same, || {
        let toggled = Toggled::new();
        let unsynced = |error: &PokeError| matches!(error, PokeError::Unsynced(_));
        let error = fail_to_switch(&toggled, ModeChoice::Automatic, || true, unsynced);
        assert_tells(&chain(&error), &["is changed", "blocks"]);
        // The code is new, and can be changed again when every thread answers.
        assert_eq!(run(&toggled.program), 2);
        toggled.switch_to(1, ModeChoice::Automatic).expect("every thread answers");
        assert_eq!(run(&toggled.program), 1);
    });
}
