//! What another thread does at each step of a slice: before and after each of the slice's system calls it writes,
//! discards, moves, replaces, advises, forks, starts a thread, or a signal comes. Whatever it is, the memory is then
//! what the thread has made of it, and that of its children, too.
//!
//! The thread that takes the slice is traced and stops at each of its calls. Who is held by then does the deed
//! afterwards; where nobody is held, as for gathering, it is done in the middle of the slice.
//!
//! Fails on: a slice that holds nobody; one that does not know what was replaced or advised meanwhile.

mod common;

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use common::traced::{is_in, needs_ptrace, next_stop, ptrace};
use common::{Memory, guarded, in_child, page, play, skip, wait};
use palimpsest_fork::guard::{self, Outcome, Remap};
use palimpsest_fork::{Measure, Options, OtherThreads, Pages, Pause, Pays, Stage, progress};
use palimpsest_sys::memory::extent::is_mapped;
use palimpsest_sys::pages::pagemap::ScanWay;
use palimpsest_sys::proc::thp;

/// What slices do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// They freeze, and hold everybody meanwhile.
    Freeze,
    /// They put pages together where they are, and hold nobody.
    Gather,
}

impl Way {
    /// What a slice of no time takes.
    const fn part(self) -> usize {
        match self {
            Self::Freeze => 128 << 10,
            Self::Gather => 2 << 20,
        }
    }

    const fn len(self) -> usize {
        match self {
            Self::Freeze => 2 << 20,
            Self::Gather => 8 << 20,
        }
    }

    fn options(self) -> Options {
        let options = Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO));
        let options = options.other_threads(OtherThreads::Stop);
        match self {
            Self::Freeze => options.least(page()),
            Self::Gather => options.pages(Pages::Gather).pays(Pays::Within(1500)),
        }
    }

    /// Returns where deeds are done: in what the first slice has taken, in what the watched one takes, and behind it.
    fn places(self) -> [Range<usize>; 3] {
        [0, 1, 3].map(|part| {
            let start = part * self.part() + self.part() / 4;
            start..start + 8 * page()
        })
    }
}

/// What happens at a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    Write,
    Discard,
    Move,
    Replace,
    /// Advises that children get no copy.
    Keep,
    Fork,
    StartThread,
    /// A signal for the process; only the thread that takes the slice does not block it.
    Signal,
}

impl Deed {
    const ALL: [Self; 8] = [
        Self::Write,
        Self::Discard,
        Self::Move,
        Self::Replace,
        Self::Keep,
        Self::Fork,
        Self::StartThread,
        Self::Signal,
    ];
}

/// The system call that marks the end of a slice; a slice makes no such call.
const MARK: libc::c_long = libc::SYS_getppid;

/// Signals that have been handled.
static HANDLED: AtomicU32 = AtomicU32::new(0);
/// Where the handler writes.
static ADDRESS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_signal: i32) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the scenario's memory, and aligned.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(ADDRESS.load(Ordering::Relaxed)).write_volatile(7) };
}

/// A process with memory, of which slices are taken, and with another thread.
#[derive(Clone, Copy)]
struct Victim {
    way: Way,
    deed: Deed,
    memory: Memory,
    /// Where parts are moved.
    there: Memory,
}

// SAFETY: its memory is never unmapped, and only accessed by volatile reads and writes.
unsafe impl Send for Victim {}

/// A word of a page that nobody else writes.
const ASIDE: usize = 64;

impl Victim {
    fn new(way: Way, deed: Deed) -> Self {
        let memory = match way {
            Way::Freeze => Memory::apart(way.len()),
            Way::Gather => Memory::unadvised(way.len()),
        };
        memory.fill(0..memory.len, 1);
        Self { way, deed, memory, there: Memory::apart(2 << 20) }
    }

    /// Does its deed when it is told to.
    fn obey(self, mut orders: PipeReader, mut answers: PipeWriter) {
        // SAFETY: asks for a number.
        let own = unsafe { libc::gettid() };
        answers.write_all(&own.to_ne_bytes()).expect("the tracer reads");
        block_signals();
        while matches!(orders.read(&mut [0]), Ok(1)) {
            self.act();
            answers.write_all(&[1]).expect("the tracer reads");
        }
    }

    fn act(self) {
        let memory = self.memory;
        if self.deed == Deed::Fork {
            assert_eq!(in_child(|| i32::from(!memory.holds(0..memory.len, 1))), 0, "a child has what was there");
        }
        for (number, place) in self.way.places().into_iter().enumerate() {
            let (address, len) = (memory.at(place.start), place.len());
            match self.deed {
                Deed::Write => memory.fill(place, 2),
                Deed::Discard => guarded::madvise(&memory, place.start, len, libc::MADV_DONTNEED).expect("discarded"),
                Deed::Keep => guarded::madvise(&memory, place.start, len, libc::MADV_DONTFORK).expect("advised"),
                Deed::Move => {
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    let to = self.there.at(number * len).addr();
                    let remap = Remap { address: address.addr(), len, new_len: len, flags, new_address: to };
                    // SAFETY: the scenario's memory.
                    match unsafe { guard::mremap(remap) } {
                        Outcome::Done(done) => assert_eq!(done, Ok(to)),
                        Outcome::NotOurs => {
                            // SAFETY: the scenario's memory.
                            let at = unsafe { libc::syscall(libc::SYS_mremap, address, len, len, flags, to) };
                            assert_eq!(at, to as libc::c_long);
                            guard::replaced(to..to + len);
                        }
                    }
                }
                Deed::Replace => {
                    let kind = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                    let rights = libc::PROT_READ | libc::PROT_WRITE;
                    // SAFETY: the scenario's memory.
                    assert_eq!(unsafe { libc::mmap(address, len, rights, kind, -1, 0) }, address);
                    guard::replaced(address.addr()..address.addr() + len);
                }
                Deed::StartThread => {
                    let (tell, told) = std::sync::mpsc::channel();
                    // It lives on, so that it is held in the slices that follow.
                    std::thread::spawn(move || {
                        let whole = self;
                        whole.memory.fill(place, 2);
                        let _ = tell.send(());
                        loop {
                            std::thread::park();
                        }
                    });
                    told.recv().expect("it has written");
                }
                Deed::Fork | Deed::Signal => {}
            }
        }
    }

    /// Whether the memory is what the deed has made of it.
    fn is_right(self, has_acted: bool, who: Who) -> bool {
        let (memory, places) = (self.memory, self.way.places());
        let changed = |index: usize| places.iter().position(|place| place.contains(&(index * page())));
        (0..memory.len / page()).all(|index| {
            let page = index * page()..(index + 1) * page();
            match (changed(index).filter(|_| has_acted), self.deed) {
                (Some(_), Deed::Write | Deed::StartThread) => memory.holds(page, 2),
                (Some(_), Deed::Discard | Deed::Replace) => memory.is_zero(page),
                (Some(_), Deed::Keep) if who == Who::Child => !is_there(memory, page.start),
                (Some(number), Deed::Move) => {
                    let offset = number * places[number].len();
                    let start = self.there.at(offset).addr() - places[number].start;
                    let moved = Memory { start: std::ptr::with_exposed_provenance_mut(start), len: memory.len };
                    !is_there(memory, page.start) && moved.holds(page, 1)
                }
                _ => memory.holds(page, 1),
            }
        })
    }

    /// Plays the process: a slice, one that is watched, and the rest.
    fn play(self, pipes: Inner) -> ! {
        let Inner { orders, answers, mut verdict } = pipes;
        let aside = self.memory.at(self.way.places()[1].start + ASIDE).cast::<u64>();
        ADDRESS.store(aside.addr(), Ordering::Relaxed);
        // SAFETY: the handler writes to two places.
        unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as libc::sighandler_t) };
        std::thread::spawn(move || self.obey(orders, answers));
        let report = common::freeze(&self.way.options());
        if self.way == Way::Gather && report.way != ScanWay::Ioctl {
            // SAFETY: ends the process.
            unsafe { libc::_exit(CANNOT) };
        }
        slice();
        // SAFETY: stops this process until its tracer goes on.
        unsafe { libc::raise(libc::SIGSTOP) };
        slice();
        // SAFETY: asks for a number. The tracer leaves here.
        unsafe { libc::syscall(MARK) };
        while progress().stage == Stage::UnderWay {
            slice();
        }
        let mut told = [0];
        assert_eq!(verdict.read(&mut told).expect("the tracer tells"), 1);
        let has_acted = told == [1];
        // SAFETY: the scenario's memory.
        let is_handled = self.deed != Deed::Signal || !has_acted || unsafe { aside.read_volatile() } == 7;
        let signals = u32::from(self.deed == Deed::Signal && has_acted);
        assert_eq!((HANDLED.load(Ordering::Relaxed), is_handled), (signals, true));
        assert!(self.is_right(has_acted, Who::Parent), "in the process itself");
        assert_eq!(in_child(|| i32::from(!self.is_right(has_acted, Who::Child))), 0, "in its child");
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
}

/// Who looks at its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Parent,
    Child,
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

/// How a victim ends that cannot do what it should.
const CANNOT: i32 = 77;

fn slice() {
    // SAFETY: 1. memory calls go through the guards.
    unsafe { palimpsest_fork::freeze_slice() }.expect("a slice is taken");
}

fn block_signals() {
    // SAFETY: a set is numbers.
    let mut all = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: `all` outlives the call.
    unsafe { libc::sigaddset(&raw mut all, libc::SIGUSR1) };
    // SAFETY: as above; nobody wants the old mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) };
}

fn is_there(memory: Memory, offset: usize) -> bool {
    let address = memory.at(offset).addr();
    is_mapped(address..address + page())
}

/// Whether the pipe has something to read.
fn has_more(pipe: &PipeReader) -> bool {
    let mut asked = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one description, which outlives the call.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
}

/// Whether a thread sleeps until another one wakes it.
fn waits_for_another(process: i32, thread: i32) -> bool {
    let file =
        |name: &str| std::fs::read_to_string(format!("/proc/{process}/task/{thread}/{name}")).unwrap_or_default();
    let sleeps = file("stat").rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'));
    sleeps && file("syscall").split(' ').next() == Some(&libc::SYS_futex.to_string())
}

/// What became of a watched slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watched {
    /// The deed was begun at the step.
    Acted,
    /// The slice had fewer steps.
    Over,
    /// It cannot be watched here.
    Cannot,
}

/// Watches a slice of a new process, and has the deed done at this stop.
fn watch(way: Way, deed: Deed, step: usize) -> Watched {
    let pipe = || std::io::pipe().expect("a pipe");
    let ((orders, mut order), (mut answered, answers), (verdict, mut judge)) = (pipe(), pipe(), pipe());
    // SAFETY: one thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        drop((order, answered, judge));
        assert!(ptrace(libc::PTRACE_TRACEME, 0, 0));
        Victim::new(way, deed).play(Inner { orders, answers, verdict });
    }
    drop((orders, answers, verdict));
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) }, child);
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == CANNOT {
        return Watched::Cannot;
    }
    assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGSTOP, "{deed:?}: {status:#x}");
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
        // It is held, or it waits for a thread that is: then it goes on after the slice.
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

/// Has deeds done at the steps of slices, until there are no more steps.
fn at_steps(way: Way, thorough: Thorough) {
    needs_ptrace();
    let mut last = 0;
    let stride = if thorough == Thorough::Each { 1 } else { STRIDE };
    for step in (0..).step_by(stride) {
        let deeds = match thorough {
            Thorough::Each => Deed::ALL.to_vec(),
            Thorough::Some => vec![Deed::ALL[step % Deed::ALL.len()]],
        };
        let ends: Vec<Watched> = deeds.into_iter().map(|deed| watch(way, deed, step)).collect();
        if ends.contains(&Watched::Cannot) {
            skip("a kernel before 6.7: without PAGEMAP_SCAN nobody sees which pages are huge");
        }
        if ends.contains(&Watched::Over) {
            break;
        }
        last = step;
    }
    println!("the last of the steps is {last}");
    assert!(last > 30, "a slice makes more calls");
}

/// How much of what may happen does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thorough {
    /// Each deed at each step.
    Each,
    /// One deed after the other, at some steps.
    Some,
}

/// One more than there are deeds, so that they take turns.
const STRIDE: usize = Deed::ALL.len() + 1;

#[test]
fn what_is_done_at_a_step_of_a_freeze_is_done() {
    play("what_is_done_at_a_step_of_a_freeze_is_done", || at_steps(Way::Freeze, Thorough::Some));
}

#[test]
fn what_is_done_at_a_step_of_gathering_is_done() {
    play("what_is_done_at_a_step_of_gathering_is_done", || {
        if !thp::enabled().is_ok_and(|when| when == thp::Anonymous::Madvise) {
            skip("huge pages are forbidden, or come unasked (transparent_hugepage/enabled)");
        }
        at_steps(Way::Gather, Thorough::Some);
    });
}

#[test]
#[ignore = "it takes 70 times as long: each deed at each step"]
fn whatever_is_done_at_any_step_of_a_freeze_is_done() {
    play("whatever_is_done_at_any_step_of_a_freeze_is_done", || at_steps(Way::Freeze, Thorough::Each));
}

#[test]
#[ignore = "it takes 70 times as long: each deed at each step"]
fn whatever_is_done_at_any_step_of_gathering_is_done() {
    play("whatever_is_done_at_any_step_of_gathering_is_done", || {
        at_steps(Way::Gather, Thorough::Each);
    });
}
