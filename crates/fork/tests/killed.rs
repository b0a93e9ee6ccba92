//! Kills a process at each step of a slice: before and after each of its system calls. Those who are left have the
//! memory that they had: the parent, whose frozen memory the process shows, and a child that the process forked between
//! slices.
//!
//! Fails on: freezing memory with mappings that others share.

mod common;

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::time::Duration;

use common::traced::{is_in, needs_ptrace, next_stop, ptrace};
use common::{Memory, freeze, page, play, wait};
use palimpsest_fork::{Measure, Options, OtherThreads, Pause, Stage, progress};

const MIB: usize = 1 << 20;

/// What is beside a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beside {
    Nobody,
    /// Another thread, which is held.
    AThread,
}

/// What became of a process that was to be killed at some step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Killed,
    /// The slice had fewer steps.
    Over,
}

/// The system call that marks a slice's end; a slice makes no such call.
const MARK: libc::c_long = libc::SYS_getppid;

/// Kills a child that is about to take a slice at its `step`th stop.
fn kill_at(child: i32, step: usize) -> End {
    assert_eq!(next_stop(child), Some(libc::SIGSTOP), "it is ready");
    assert!(ptrace(libc::PTRACE_SETOPTIONS, child, (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL) as usize));
    let (mut signal, mut end) = (0_i32, End::Killed);
    for _ in 0..=step {
        assert!(ptrace(libc::PTRACE_SYSCALL, child, signal.cast_unsigned() as usize));
        signal = next_stop(child).unwrap_or(0);
        if signal == 0 && is_in(child, MARK) {
            end = End::Over;
            break;
        }
    }
    // SAFETY: a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_eq!(wait(child), 1000 + libc::SIGKILL);
    end
}

/// A process that shows frozen memory of its parent, writes to some of it, has more of its own, and takes slices: one,
/// then a fork, and then the one that is watched.
struct Victim<'a> {
    /// The parent's, frozen.
    memory: &'a Memory,
    budget: Duration,
    beside: Beside,
}

impl Victim<'_> {
    fn play(&self, mut go_on: PipeReader, teller: PipeWriter, mut answer: PipeWriter) -> ! {
        let (memory, more) = (self.memory, Memory::apart(2 * MIB));
        memory.fill(0..MIB, 2);
        more.fill(0..more.len, 3);
        let threads = match self.beside {
            Beside::Nobody => OtherThreads::Refuse,
            Beside::AThread => {
                std::thread::spawn(|| {
                    loop {
                        std::thread::park();
                    }
                });
                OtherThreads::Stop
            }
        };
        let options = Options::new().measure(Measure::Nothing).pause(Pause::Within(self.budget)).least(page());
        freeze(&options.other_threads(threads));
        slice();
        // SAFETY: the child reads memory, writes to a pipe and ends.
        if unsafe { libc::fork() } == 0 {
            drop(teller);
            let _ = go_on.read(&mut [0]);
            let is_right = memory.holds(0..MIB, 2) && memory.holds(MIB..memory.len, 1) && more.holds(0..more.len, 3);
            let _ = answer.write_all(if is_right { b"y" } else { b"n" });
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        // This process may write to what a child shows.
        more.fill(0..more.len, 4);
        memory.fill(MIB..2 * MIB, 4);
        // SAFETY: stops this process until its tracer goes on.
        unsafe { libc::raise(libc::SIGSTOP) };
        slice();
        loop {
            // SAFETY: asks for a number, again and again.
            unsafe { libc::syscall(MARK) };
        }
    }
}

fn slice() {
    // SAFETY: the scenario keeps the contract of freezing.
    let progress = unsafe { palimpsest_fork::freeze_slice() }.expect("a slice is taken");
    assert_ne!(progress.stage, Stage::None);
}

/// Kills one process after the other, each `stride` steps later in its slice, until there are no more steps.
fn kill_at_each_step(budget: Duration, beside: Beside, stride: usize) {
    let memory = Memory::apart(4 * MIB);
    memory.fill(0..memory.len, 1);
    freeze(&Options::new().measure(Measure::Nothing));
    assert!(memory.is_frozen() && progress().stage == Stage::None);
    let mut steps = 0;
    for step in (0..).step_by(stride) {
        let (go_on, teller) = std::io::pipe().expect("a pipe");
        let (mut answered, answer) = std::io::pipe().expect("a pipe");
        // SAFETY: one thread.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            if !ptrace(libc::PTRACE_TRACEME, 0, 0) {
                // SAFETY: ends the child.
                unsafe { libc::_exit(77) };
            }
            drop(answered);
            Victim { memory: &memory, budget, beside }.play(go_on, teller, answer);
        }
        drop((go_on, answer));
        let end = kill_at(child, step);
        // The victim's child looks at its memory only now.
        drop(teller);
        let mut told = [0];
        assert_eq!((answered.read(&mut told).expect("readable"), &told), (1, b"y"), "step {step}");
        assert!(memory.holds(0..memory.len, 1), "step {step}");
        steps = step;
        if end == End::Over {
            break;
        }
    }
    println!("killed at steps up to {steps}");
    assert!(steps > 30, "a slice makes more calls");
}

#[test]
fn at_each_step_of_a_slice_of_no_time() {
    play("at_each_step_of_a_slice_of_no_time", || {
        needs_ptrace();
        kill_at_each_step(Duration::ZERO, Beside::Nobody, 1);
    });
}

#[test]
fn at_steps_of_a_slice_with_a_budget() {
    play("at_steps_of_a_slice_with_a_budget", || {
        needs_ptrace();
        // A round number of calls would meet the same ones each time.
        kill_at_each_step(Duration::from_micros(100), Beside::Nobody, 3);
    });
}

#[test]
fn at_steps_of_a_slice_that_holds_a_thread() {
    play("at_steps_of_a_slice_that_holds_a_thread", || {
        needs_ptrace();
        kill_at_each_step(Duration::ZERO, Beside::AThread, 3);
    });
}
