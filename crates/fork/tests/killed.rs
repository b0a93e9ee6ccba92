//! Kills a process at each step of a slice that freezes, gathers, or sends a deputy: before and after each of its
//! system calls. Those who are left have the memory that they had: the parent, whose frozen memory the process shows,
//! and a child that the process forked between slices. No deputy is left.
//!
//! Fails on: freezing memory with mappings that others share; a slice without its work; a deputy that waits for
//! somebody who is gone.

mod common;

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::time::Duration;

use common::gathering::{by_deputies, in_slices, needs_huge_pages, plan};
use common::traced::{is_in, needs_ptrace, next_stop, ptrace};
use common::{Memory, freeze, page, play, slice, wait};
use palimpsest_fork::{Measure, Options, OtherThreads, Pause, Stage, progress};

const MIB: usize = 1 << 20;

/// What slices do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// They freeze, for so long at a time.
    Freeze(Duration),
    /// They gather.
    Gather,
    /// They send a deputy to gather.
    Send,
}

impl Work {
    fn options(self) -> Options {
        match self {
            Self::Freeze(budget) => Options::new().measure(Measure::Nothing).pause(Pause::Within(budget)).least(page()),
            Self::Gather => in_slices(),
            Self::Send => by_deputies(),
        }
    }

    /// The calls that do the work.
    const fn calls(self) -> &'static [libc::c_long] {
        match self {
            Self::Freeze(_) => &[libc::SYS_memfd_create],
            Self::Gather => &[libc::SYS_madvise],
            Self::Send => &[libc::SYS_clone],
        }
    }
}

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

/// Kills a child that is about to take a slice at its `step`th stop. A whole slice must have done its work.
fn kill_at(child: i32, step: usize, work: Work) -> End {
    assert_eq!(next_stop(child), Some(libc::SIGSTOP), "it is ready");
    assert!(ptrace(libc::PTRACE_SETOPTIONS, child, (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL) as usize));
    let (mut signal, mut end, mut has_worked) = (0_i32, End::Killed, false);
    for _ in 0..=step {
        assert!(ptrace(libc::PTRACE_SYSCALL, child, signal.cast_unsigned() as usize));
        signal = next_stop(child).unwrap_or(0);
        if signal == 0 && is_in(child, MARK) {
            assert!(has_worked, "a slice that should {work:?} has not");
            end = End::Over;
            break;
        }
        has_worked |= signal == 0 && work.calls().iter().any(|call| is_in(child, *call));
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
    work: Work,
    beside: Beside,
}

impl Victim<'_> {
    fn play(&self, mut go_on: PipeReader, teller: PipeWriter, mut answer: PipeWriter) -> ! {
        let memory = self.memory;
        let more = match self.work {
            Work::Freeze(_) => Memory::apart(2 * MIB),
            Work::Gather => Memory::unadvised(8 * MIB),
            // Two errands: the second slice looks at what the first one was for, which stays as it is, and sends the
            // second.
            Work::Send => Memory::unadvised(32 * MIB),
        };
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
        let options = self.work.options().other_threads(threads);
        match self.work {
            Work::Freeze(_) => freeze(&options),
            Work::Gather | Work::Send => plan(&options),
        };
        slice();
        if self.work == Work::Send {
            // Were it dismissed before it is done, the thread itself would ask for the rest.
            while !deputies_have_ended() {
                std::thread::yield_now();
            }
        }
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
        let from = if self.work == Work::Send { more.len / 2 } else { 0 };
        more.fill(from..more.len, 4);
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

/// Whether no child of this process is at work.
fn deputies_have_ended() -> bool {
    let told = std::fs::read_to_string("/proc/thread-self/children").expect("told");
    told.split_whitespace().all(|child| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('Z'))
    })
}

/// Kills one process after the other, each `stride` steps later in its slice, until there are no more steps.
fn kill_at_each_step(work: Work, beside: Beside, stride: usize) {
    // So that a deputy whose parent is gone becomes a child of this process. SAFETY: takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
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
            Victim { memory: &memory, work, beside }.play(go_on, teller, answer);
        }
        drop((go_on, answer));
        let end = kill_at(child, step, work);
        // The victim's child looks at its memory only now.
        drop(teller);
        let mut told = [0];
        assert_eq!((answered.read(&mut told).expect("readable"), &told), (1, b"y"), "step {step}");
        assert!(memory.holds(0..memory.len, 1), "step {step}");
        // Whoever is left ends: the child, and a deputy with its sender.
        // SAFETY: takes numbers, and writes nothing.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) } > 0 {}
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
        kill_at_each_step(Work::Freeze(Duration::ZERO), Beside::Nobody, 1);
    });
}

#[test]
fn at_steps_of_a_slice_with_a_budget() {
    play("at_steps_of_a_slice_with_a_budget", || {
        needs_ptrace();
        // A round number of calls would meet the same ones each time.
        kill_at_each_step(Work::Freeze(Duration::from_micros(100)), Beside::Nobody, 3);
    });
}

#[test]
fn at_steps_of_a_slice_that_holds_a_thread() {
    play("at_steps_of_a_slice_that_holds_a_thread", || {
        needs_ptrace();
        kill_at_each_step(Work::Freeze(Duration::ZERO), Beside::AThread, 3);
    });
}

#[test]
fn at_each_step_of_a_slice_that_gathers() {
    play("at_each_step_of_a_slice_that_gathers", || {
        needs_ptrace();
        needs_huge_pages();
        kill_at_each_step(Work::Gather, Beside::Nobody, 1);
    });
}

#[test]
fn at_steps_of_a_slice_that_sends_a_deputy() {
    play("at_steps_of_a_slice_that_sends_a_deputy", || {
        needs_ptrace();
        needs_huge_pages();
        kill_at_each_step(Work::Send, Beside::AThread, 3);
    });
}
