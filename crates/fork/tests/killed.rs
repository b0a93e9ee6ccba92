//! Kills a process at each step of a slice that freezes, gathers, mends, makes huge pages, or sends a deputy, of a part
//! of a repair, and of a thaw: before and after each of their system calls. Those who are left have the memory that
//! they had: the parent, whose frozen memory the process shows, and a child that the process forked before. No deputy
//! is left.
//!
//! Fails on: freezing memory with mappings that others share; a slice without its work; a deputy that waits for
//! somebody who is gone.

mod common;

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::time::Duration;

use common::gathering::{by_deputies, in_slices, needs_huge_pages, plan};
use common::traced::{is_in, needs_ptrace, next_stop, ptrace};
use common::ways::Way;
use common::{Memory, freeze, page, play, skip, slice, wait};
use palimpsest_fork::{Measure, Options, OtherThreads, Pause, Stage, progress};

const MIB: usize = 1 << 20;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Slices freeze, for so long at a time.
    Freeze(Duration),
    /// They gather.
    Gather,
    /// They send a deputy to gather.
    Send,
    /// What is prepared first, so that its second part is watched.
    Prepared(Way),
}

impl Work {
    fn options(self) -> Options {
        match self {
            Self::Freeze(budget) => Options::new().measure(Measure::Nothing).pause(Pause::Within(budget)).least(page()),
            Self::Gather => in_slices(),
            Self::Send => by_deputies(),
            Self::Prepared(way) => way.options(),
        }
    }

    /// Whether a busy machine may leave it without time, or without a huge page.
    const fn may_be_idle(self) -> bool {
        matches!(self, Self::Send | Self::Prepared(_))
    }

    /// The calls that do the work.
    const fn calls(self) -> &'static [libc::c_long] {
        match self {
            Self::Freeze(_) | Self::Prepared(Way::Freeze | Way::Repair) => &[libc::SYS_memfd_create],
            Self::Gather | Self::Prepared(Way::Gather | Way::Mend | Way::Tend) => &[libc::SYS_madvise],
            Self::Send => &[libc::SYS_clone],
            Self::Prepared(Way::Thaw) => &[libc::SYS_mremap],
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
    /// The work had fewer steps.
    Over,
    /// It was over and had done nothing: a busy machine had no time for it, or no huge page.
    Idle,
}

/// The system call that marks a slice's end; a slice makes no such call.
const MARK: libc::c_long = libc::SYS_getppid;

/// The exit status of a process that has nothing to do.
const NOTHING_TO_DO: i32 = 77;

/// Kills a child that is about to begin its work at its `step`th stop. All of the work must have been done at its end.
fn kill_at(child: i32, step: usize, work: Work) -> End {
    wait_until_ready(child);
    assert!(ptrace(libc::PTRACE_SETOPTIONS, child, (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL) as usize));
    let (mut signal, mut end, mut has_worked) = (0_i32, End::Killed, false);
    for _ in 0..=step {
        assert!(ptrace(libc::PTRACE_SYSCALL, child, signal.cast_unsigned() as usize));
        signal = next_stop(child).unwrap_or(0);
        if signal == 0 && is_in(child, MARK) {
            assert!(has_worked || work.may_be_idle(), "{work:?} has not done its work");
            end = if has_worked { End::Over } else { End::Idle };
            break;
        }
        has_worked |= signal == 0 && work.calls().iter().any(|call| is_in(child, *call));
    }
    // SAFETY: a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_eq!(wait(child), 1000 + libc::SIGKILL);
    end
}

/// Waits until a new process stops. Up to there it stops at signals only, by which threads are held.
fn wait_until_ready(child: i32) {
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) }, child);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == NOTHING_TO_DO {
            skip("there is nothing to do: no huge pages, or the machine is too busy");
        }
        assert!(libc::WIFSTOPPED(status), "it ends by itself: {status:#x}");
        if libc::WSTOPSIG(status) == libc::SIGSTOP {
            return;
        }
        assert!(ptrace(libc::PTRACE_CONT, child, libc::WSTOPSIG(status).cast_unsigned() as usize));
    }
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
        if let Work::Prepared(way) = self.work {
            self.play_prepared(way, go_on, teller, answer);
        }
        let memory = self.memory;
        let more = match self.work {
            Work::Freeze(_) => Memory::apart(2 * MIB),
            Work::Gather | Work::Prepared(_) => Memory::unadvised(8 * MIB),
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
            Work::Gather | Work::Send | Work::Prepared(_) => plan(&options),
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
        marks_the_end()
    }

    /// The same for what is prepared. The child is forked before: where it shows memory, no huge page is made.
    fn play_prepared(&self, way: Way, mut go_on: PipeReader, teller: PipeWriter, mut answer: PipeWriter) -> ! {
        let memory = self.memory;
        memory.fill(0..MIB, 2);
        if self.beside == Beside::AThread {
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
        }
        // SAFETY: the child reads memory, writes to a pipe and ends.
        if unsafe { libc::fork() } == 0 {
            drop(teller);
            let _ = go_on.read(&mut [0]);
            let is_right = memory.holds(0..MIB, 2) && memory.holds(MIB..memory.len, 1);
            let _ = answer.write_all(if is_right { b"y" } else { b"n" });
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let more = way.memory();
        if !way.prepare(&more) {
            // SAFETY: ends the process.
            unsafe { libc::_exit(NOTHING_TO_DO) };
        }
        memory.fill(MIB..2 * MIB, 4);
        // SAFETY: stops this process until its tracer goes on.
        unsafe { libc::raise(libc::SIGSTOP) };
        way.work();
        marks_the_end()
    }
}

fn marks_the_end() -> ! {
    loop {
        // SAFETY: asks for a number, again and again.
        unsafe { libc::syscall(MARK) };
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

/// Kills one process after the other, each `stride` steps later in its work, until there are no more steps.
fn kill_at_each_step(work: Work, beside: Beside, stride: usize) {
    // So that a deputy whose parent is gone becomes a child of this process. SAFETY: takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
    let memory = Memory::apart(4 * MIB);
    memory.fill(0..memory.len, 1);
    freeze(&Options::new().measure(Measure::Nothing));
    assert!(memory.is_frozen() && progress().stage == Stage::None);
    let (mut step, mut idle) = (0, 0);
    loop {
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
        match end {
            End::Killed => step += stride,
            End::Over => break,
            End::Idle if idle == MOST_IDLE => skip("the machine has no time for it"),
            End::Idle => idle += 1,
        }
    }
    println!("{work:?}: killed at steps up to {step}");
    assert!(step > 30, "there are more calls");
}

/// How often such work may do nothing.
const MOST_IDLE: u32 = 20;

/// A stride for work that is prepared first, which takes time. A round number of calls would meet the same ones each
/// time.
const LONG: usize = 31;
const SHORT: usize = 5;

/// The same for work that is prepared first, at some steps.
fn kill_at_steps_of(way: Way, beside: Beside, stride: usize) {
    needs_ptrace();
    way.needs();
    kill_at_each_step(Work::Prepared(way), beside, stride);
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

#[test]
fn at_steps_of_a_slice_that_mends() {
    play("at_steps_of_a_slice_that_mends", || kill_at_steps_of(Way::Mend, Beside::Nobody, LONG));
}

#[test]
fn at_steps_of_a_slice_that_makes_huge_pages() {
    play("at_steps_of_a_slice_that_makes_huge_pages", || kill_at_steps_of(Way::Tend, Beside::AThread, LONG));
}

#[test]
fn at_steps_of_a_part_of_a_repair() {
    play("at_steps_of_a_part_of_a_repair", || kill_at_steps_of(Way::Repair, Beside::AThread, LONG));
}

#[test]
fn at_steps_of_a_thaw() {
    play("at_steps_of_a_thaw", || kill_at_steps_of(Way::Thaw, Beside::AThread, LONG));
}

#[test]
#[ignore = "it takes six times as long as the sample"]
fn at_every_fifth_step_of_what_is_prepared() {
    play("at_every_fifth_step_of_what_is_prepared", || {
        for way in [Way::Mend, Way::Tend, Way::Repair, Way::Thaw] {
            kill_at_steps_of(way, Beside::AThread, SHORT);
        }
    });
}
