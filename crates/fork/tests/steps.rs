//! What another thread does at each step of a slice, of a part of a repair, and of a thaw: before and after each of
//! their system calls it writes, discards, moves, replaces, advises, forks, starts a thread, or a signal comes.
//! Whatever it is, the memory is then what the thread has made of it, and that of its children, too.
//!
//! The thread that does the work is traced and stops at each of its calls. Who is held by then does the deed
//! afterwards; where nobody is held, as for gathering, it is done in the middle of the slice.
//!
//! Fails on: work that holds nobody; a slice that does not know what was replaced or advised meanwhile.

mod common;

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use common::deeds::{Deed, Scene, Who};
use common::kernels::before_6_11;
use common::notified::has_more;
use common::traced::{is_in, needs_ptrace, next_stop, ptrace};
use common::ways::Way;
use common::{in_child, play, skip, wait};

/// The system call that marks the end of the work, which makes no such call.
const MARK: libc::c_long = libc::SYS_getppid;

/// The exit status of a process that has nothing left to do.
const NOTHING_LEFT: i32 = 77;

/// Signals that have been handled.
static HANDLED: AtomicU32 = AtomicU32::new(0);
/// Where the handler writes.
static ADDRESS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_signal: i32) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the scenario's memory, and aligned.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(ADDRESS.load(Ordering::Relaxed)).write_volatile(7) };
}

/// A word of a page that nobody else writes.
const ASIDE: usize = 64;

/// Does its deed when it is told to.
fn obey(scene: Scene, mut orders: PipeReader, mut answers: PipeWriter) {
    // SAFETY: asks for a number.
    let own = unsafe { libc::gettid() };
    block_signals();
    answers.write_all(&own.to_ne_bytes()).expect("the tracer reads");
    while matches!(orders.read(&mut [0]), Ok(1)) {
        scene.act();
        answers.write_all(&[1]).expect("the tracer reads");
    }
}

/// Plays the process: what comes before, the work that is watched, and the rest.
fn work(scene: Scene, pipes: Inner) -> ! {
    let Inner { orders, answers, mut verdict } = pipes;
    let aside = scene.memory.at(scene.places()[1].start + ASIDE).cast::<u64>();
    ADDRESS.store(aside.addr(), Ordering::Relaxed);
    // SAFETY: the handler writes to two places.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as libc::sighandler_t) };
    std::thread::spawn(move || obey(scene, orders, answers));
    if !scene.way.prepare(&scene.memory) {
        // Refused so often that it was given up, or nothing can be gathered any more. SAFETY: ends the process.
        unsafe { libc::_exit(NOTHING_LEFT) };
    }
    // SAFETY: stops this process until its tracer goes on.
    unsafe { libc::raise(libc::SIGSTOP) };
    scene.way.work();
    // SAFETY: asks for a number. The tracer leaves here.
    unsafe { libc::syscall(MARK) };
    scene.way.finish();
    let mut told = [0];
    assert_eq!(verdict.read(&mut told).expect("the tracer tells"), 1);
    let has_acted = told == [1];
    // SAFETY: the scenario's memory.
    let is_handled = scene.deed != Deed::Signal || !has_acted || unsafe { aside.read_volatile() } == 7;
    let signals = u32::from(scene.deed == Deed::Signal && has_acted);
    assert_eq!((HANDLED.load(Ordering::Relaxed), is_handled), (signals, true));
    assert!(scene.is_right(has_acted, Who::Parent), "in the process itself");
    assert_eq!(in_child(|| i32::from(!scene.is_right(has_acted, Who::Child))), 0, "in its child");
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) };
}

/// The victim's ends of its pipes.
struct Inner {
    /// That a deed is to be done.
    orders: PipeReader,
    /// The number of the thread that does it, and that it is done.
    answers: PipeWriter,
    /// Whether it was.
    verdict: PipeReader,
}

fn block_signals() {
    // SAFETY: a set is numbers.
    let mut all = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: `all` outlives the call.
    unsafe { libc::sigaddset(&raw mut all, libc::SIGUSR1) };
    // SAFETY: as above; nobody wants the old mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) };
}

/// Whether a thread is held, or sleeps until another one wakes it: on a futex, or stopped by a tracer, which holds
/// threads that do not answer.
fn waits_for_another(process: i32, thread: i32) -> bool {
    let file =
        |name: &str| std::fs::read_to_string(format!("/proc/{process}/task/{thread}/{name}")).unwrap_or_default();
    match file("stat").rsplit(") ").next().and_then(|rest| rest.chars().next()) {
        Some('S') => file("syscall").split(' ').next() == Some(&libc::SYS_futex.to_string()),
        Some(state) => state == 't',
        None => false,
    }
}

/// Waits until a new process has come to the work, and stops. Up to there it stops at signals only, such as that by
/// which threads are held.
fn wait_until_ready(child: i32) {
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) }, child);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == NOTHING_LEFT {
            skip("there is nothing left to do: no huge pages, or no processor for the other thread");
        }
        assert!(libc::WIFSTOPPED(status), "it ends by itself: {status:#x}");
        if libc::WSTOPSIG(status) == libc::SIGSTOP {
            return;
        }
        assert!(ptrace(libc::PTRACE_CONT, child, libc::WSTOPSIG(status).cast_unsigned() as usize));
    }
}

/// What became of watched work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watched {
    /// The deed was begun at the step.
    Acted,
    /// It had fewer steps.
    Over,
}

/// Watches the work of a new process, and has the deed done at this stop.
fn watch(way: Way, deed: Deed, step: usize) -> Watched {
    let pipe = || std::io::pipe().expect("a pipe");
    let ((orders, mut order), (mut answered, answers), (verdict, mut judge)) = (pipe(), pipe(), pipe());
    // SAFETY: one thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        drop((order, answered, judge));
        assert!(ptrace(libc::PTRACE_TRACEME, 0, 0));
        work(Scene::new(way, deed), Inner { orders, answers, verdict });
    }
    drop((orders, answers, verdict));
    wait_until_ready(child);
    assert!(ptrace(libc::PTRACE_SETOPTIONS, child, (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL) as usize));
    let mut thread = [0; 4];
    answered.read_exact(&mut thread).expect("the other thread has told its number");
    let thread = i32::from_ne_bytes(thread);
    let mut end = Watched::Over;
    let mut signal = 0_i32;
    for stop in 0.. {
        assert!(ptrace(libc::PTRACE_SYSCALL, child, signal.cast_unsigned() as usize));
        signal = next_stop(child).unwrap_or(0);
        if signal == 0 && is_in(child, MARK) {
            break;
        }
        if stop != step {
            continue;
        }
        end = Watched::Acted;
        if deed == Deed::Signal {
            // SAFETY: a child that was not waited for.
            assert_eq!(unsafe { libc::kill(child, libc::SIGUSR1) }, 0);
            continue;
        }
        order.write_all(&[1]).expect("the other thread reads");
        // It is held, or it waits for a thread that is: then it goes on after the work.
        while !has_more(&answered) && !waits_for_another(child, thread) {
            std::thread::yield_now();
        }
    }
    assert!(ptrace(libc::PTRACE_DETACH, child, 0));
    if end == Watched::Acted && deed != Deed::Signal {
        answered.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{way:?} {deed:?} at {step}: {error}"));
    }
    judge.write_all(&[u8::from(end == Watched::Acted)]).expect("the victim reads");
    assert_eq!(wait(child), 0, "{way:?} {deed:?} at {step}");
    end
}

/// The work has more steps than these, if there is time for it.
const FEW_STEPS: usize = 30;
/// How often work is begun that has no time.
const MOST_TRIALS: usize = 20;

/// Has deeds done at the steps of the work, until there are no more steps.
fn at_steps(way: Way, thorough: Thorough) {
    needs_ptrace();
    way.needs();
    let mut last = 0;
    let stride = match (thorough, way) {
        (Thorough::Each(_), Way::Freeze | Way::Gather) => 1,
        (Thorough::Some, Way::Freeze | Way::Gather) => STRIDE,
        // To prepare these takes as long as all of those. A round number of calls would meet the same ones each time.
        (Thorough::Each(_), _) => 5,
        (Thorough::Some, _) => LONG_STRIDE,
    };
    let (mut step, mut trials) = (0, 0);
    loop {
        let deeds = match thorough {
            Thorough::Each(deeds) => deeds.to_vec(),
            Thorough::Some => vec![Deed::ALL[step % Deed::ALL.len()]],
        };
        let ends: Vec<Watched> = deeds.into_iter().map(|deed| watch(way, deed, step)).collect();
        if !ends.contains(&Watched::Over) {
            (last, step) = (step, step + stride);
        } else if last > FEW_STEPS {
            break;
        } else {
            // What came before may have used up the time that the work would have.
            trials += 1;
            if trials > MOST_TRIALS && matches!(way, Way::Mend | Way::Tend | Way::Repair) {
                skip("the machine is too busy for any work to have time");
            }
            assert!(trials <= MOST_TRIALS, "{way:?}: there are more calls than {last}");
        }
    }
    println!("{way:?}: the last of the steps is {last}");
}

/// How much of what may happen does.
#[derive(Clone, Copy, Debug)]
enum Thorough {
    /// Each of these deeds at each step.
    Each(&'static [Deed]),
    /// One deed after the other, at some steps.
    Some,
}

/// One more than there are deeds, or some times as many, so that they take turns.
const STRIDE: usize = Deed::ALL.len() + 1;
const LONG_STRIDE: usize = 4 * Deed::ALL.len() + 1;

#[test]
fn what_is_done_at_a_step_of_a_freeze_is_done() {
    play("what_is_done_at_a_step_of_a_freeze_is_done", || at_steps(Way::Freeze, Thorough::Some));
}

#[test]
fn what_is_done_at_a_step_of_gathering_is_done() {
    play("what_is_done_at_a_step_of_gathering_is_done", || at_steps(Way::Gather, Thorough::Some));
}

/// Fails on: a list of mappings, old by the time of the call, that is believed.
#[test]
fn what_is_done_at_a_step_of_gathering_by_a_list_is_done() {
    play("what_is_done_at_a_step_of_gathering_by_a_list_is_done", || {
        before_6_11();
        at_steps(Way::Gather, Thorough::Some);
    });
}

#[test]
fn what_is_done_at_a_step_of_mending_is_done() {
    play("what_is_done_at_a_step_of_mending_is_done", || at_steps(Way::Mend, Thorough::Some));
}

#[test]
fn what_is_done_at_a_step_of_making_huge_pages_is_done() {
    play("what_is_done_at_a_step_of_making_huge_pages_is_done", || at_steps(Way::Tend, Thorough::Some));
}

#[test]
fn what_is_done_at_a_step_of_a_part_of_a_repair_is_done() {
    play("what_is_done_at_a_step_of_a_part_of_a_repair_is_done", || at_steps(Way::Repair, Thorough::Some));
}

#[test]
fn what_is_done_at_a_step_of_a_thaw_is_done() {
    play("what_is_done_at_a_step_of_a_thaw_is_done", || at_steps(Way::Thaw, Thorough::Some));
}

/// What changes what is in memory or mapped, and the rest: in two tests each, so that none takes much longer than five
/// minutes on a busy machine.
const CHANGES: &[Deed] = &[Deed::Write, Deed::Discard, Deed::Move, Deed::Replace];
const OTHERS: &[Deed] = &[Deed::Keep, Deed::Fork, Deed::StartThread, Deed::Signal];

#[test]
#[ignore = "it takes 35 times as long as the sample: each deed at each step"]
fn whatever_is_changed_at_any_step_of_a_freeze_is_changed() {
    play("whatever_is_changed_at_any_step_of_a_freeze_is_changed", || at_steps(Way::Freeze, Thorough::Each(CHANGES)));
}

#[test]
#[ignore = "it takes 35 times as long as the sample: each deed at each step"]
fn whatever_else_is_done_at_any_step_of_a_freeze_is_done() {
    play("whatever_else_is_done_at_any_step_of_a_freeze_is_done", || at_steps(Way::Freeze, Thorough::Each(OTHERS)));
}

#[test]
#[ignore = "it takes 35 times as long as the sample: each deed at each step"]
fn whatever_is_changed_at_any_step_of_gathering_is_changed() {
    play("whatever_is_changed_at_any_step_of_gathering_is_changed", || at_steps(Way::Gather, Thorough::Each(CHANGES)));
}

#[test]
#[ignore = "it takes 35 times as long as the sample: each deed at each step"]
fn whatever_else_is_done_at_any_step_of_gathering_is_done() {
    play("whatever_else_is_done_at_any_step_of_gathering_is_done", || at_steps(Way::Gather, Thorough::Each(OTHERS)));
}

#[test]
#[ignore = "each deed at every fifth step"]
fn whatever_is_done_at_any_step_of_mending_is_done() {
    play("whatever_is_done_at_any_step_of_mending_is_done", || at_steps(Way::Mend, Thorough::Each(&Deed::ALL)));
}

#[test]
#[ignore = "each deed at every fifth step"]
fn whatever_is_done_at_any_step_of_making_huge_pages_is_done() {
    play("whatever_is_done_at_any_step_of_making_huge_pages_is_done", || {
        at_steps(Way::Tend, Thorough::Each(&Deed::ALL));
    });
}

#[test]
#[ignore = "each deed at every fifth step"]
fn whatever_is_done_at_any_step_of_a_part_of_a_repair_is_done() {
    play("whatever_is_done_at_any_step_of_a_part_of_a_repair_is_done", || {
        at_steps(Way::Repair, Thorough::Each(&Deed::ALL));
    });
}

#[test]
#[ignore = "each deed at every fifth step"]
fn whatever_is_done_at_any_step_of_a_thaw_is_done() {
    play("whatever_is_done_at_any_step_of_a_thaw_is_done", || at_steps(Way::Thaw, Thorough::Each(&Deed::ALL)));
}
