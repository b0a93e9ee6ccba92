//! A deputy is killed, stopped, or stands still before each of its system calls while the program goes on; or the
//! program is killed, executes another one, or has no place for a child. Whatever happens, memory holds what the
//! program has made of it, what can be gathered is gathered, and no deputy is left behind.
//!
//! A filter holds the deputy: the scenario is asked about each of its calls. It is also asked when somebody looks
//! whether the deputy lives, or waits until it is gone. While the deputy has yet to give up its rights, the sender
//! stands at its first look, so that its patience never ends.
//!
//! Fails on: a deputy that works for a parent that is gone, or outlives it; one that nobody kills once it is stopped;
//! an errand that is lost with its deputy; a fork that is refused for the place that a deputy has, or that one is just
//! given.

#[path = "../common/mod.rs"]
mod common;
mod scheduling;

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::deeds::{Deed, Scene, Who};
use common::gathering::{children, needs_huge_pages, plan, to_the_end};
use common::notified::{self, Asked, Call, Listener, has_more};
use common::ways::Way;
use common::{in_child, play, skip, slice, wait};
use palimpsest_fork::{Errands, dismiss_deputy};

/// The calls of a deputy at which it is held: it asks to end with its sender, names itself, looks whether its parent is
/// there, gives up its rights by two calls, lets its sender go first, asks for huge pages, and ends.
const CALLS: [libc::c_long; 8] = [
    libc::SYS_prctl,
    libc::SYS_prctl,
    libc::SYS_getppid,
    libc::SYS_prctl,
    libc::SYS_prctl,
    libc::SYS_sched_yield,
    libc::SYS_madvise,
    libc::SYS_exit_group,
];

/// How somebody looks whether a deputy lives.
const LOOK: Call = Call { number: libc::SYS_wait4, third: Some(libc::WNOHANG | libc::WUNTRACED | libc::__WCLONE) };

/// How somebody waits until a deputy is gone. The standard library sleeps by another call.
const SLEEP: Call = Call { number: libc::SYS_nanosleep, third: None };

/// Not all advice: a thread that ends gives some, and nobody would answer it.
fn asked() -> Vec<Call> {
    let deputys = CALLS.map(|number| {
        let third = (number == libc::SYS_madvise).then_some(libc::MADV_COLLAPSE);
        Call { number, third }
    });
    deputys.into_iter().chain([LOOK, SLEEP]).collect()
}

/// The first step at which it has given up its rights: until then its sender waits.
const CONFINED: usize = 5;

/// What happens while a deputy is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// The program does something.
    Deed(Deed),
    DeputyKilled,
    DeputyStopped,
}

/// The program's ends of its pipes.
struct Inner {
    /// What to do next; also what an executed program reads.
    orders: PipeReader,
    /// That a deputy is about to be sent, and what has been done.
    answers: PipeWriter,
}

impl Inner {
    fn tell(&mut self) {
        self.answers.write_all(&[1]).expect("the scenario reads");
    }

    /// Sends a deputy, and waits until the scenario has held it and done something to it.
    fn send(&mut self) {
        self.tell();
        slice();
        self.obey();
    }

    fn obey(&mut self) {
        assert_eq!(self.orders.read(&mut [0]).expect("the scenario tells"), 1);
    }
}

/// A program, and its deputy.
struct Watched {
    program: i32,
    listener: Listener,
    order: PipeWriter,
    answered: PipeReader,
    deputy: Option<i32>,
    /// The calls that the deputy was about to make.
    seen: Vec<libc::c_long>,
    /// The step at which it is held, and how.
    step: usize,
    held: Option<Asked>,
    /// The sender, at its first look.
    looking: Option<Asked>,
    /// Whether looks are no longer held.
    is_let_go: bool,
    /// Who has waited until the deputy is gone while that was held.
    waited: Option<i32>,
}

impl Drop for Watched {
    /// Ends the program if it is alive, since the scenario has failed.
    fn drop(&mut self) {
        // SAFETY: asks about a child, and writes nothing.
        if unsafe { libc::waitpid(self.program, std::ptr::null_mut(), libc::WNOHANG) } == 0 {
            self.signal(self.program, libc::SIGKILL);
            wait(self.program);
        }
    }
}

impl Watched {
    /// Starts a program, and holds its first deputy at this step.
    fn hold(step: usize, program: impl FnOnce(Inner) + Send) -> Self {
        let pipe = || std::io::pipe().expect("a pipe");
        let ((orders, order), (answered, answers)) = (pipe(), pipe());
        let ends = [order.as_raw_fd(), answered.as_raw_fd()];
        let (program, listener) = notified::start(&asked(), || {
            for end in ends {
                // Else neither pipe would ever end. SAFETY: the scenario's ends, which this process does not use.
                unsafe { libc::close(end) };
            }
            program(Inner { orders, answers });
        });
        let (deputy, held, looking, waited) = (None, None, None, None);
        let (seen, is_let_go) = (Vec::new(), false);
        let mut watched =
            Self { program, listener, order, answered, deputy, seen, step, held, looking, is_let_go, waited };
        while watched.held.is_none() {
            watched.turn();
            if let Some(status) = watched.ended() {
                assert_eq!(status, 0, "it ends before its deputy is at step {step}");
                skip("the program has said why");
            }
        }
        watched
    }

    /// Lets who has asked go on, except for the deputy at its step.
    fn turn(&mut self) {
        let Some(asked) = self.listener.next() else { return };
        if asked.call == SLEEP.number && self.held.is_some() {
            self.waited = Some(asked.who);
        }
        if asked.call == LOOK.number && !self.is_let_go && self.looking.is_none() {
            self.looking = Some(asked);
            return;
        }
        if self.is_deputy(asked.who) {
            self.seen.push(asked.call);
            if self.seen.len() > CONFINED {
                self.let_look();
            }
            if self.seen.len() == self.step + 1 {
                self.held = Some(asked);
                return;
            }
        }
        self.listener.let_go(asked);
    }

    /// Holds no look from now on.
    fn let_look(&mut self) {
        self.is_let_go = true;
        if let Some(looking) = self.looking.take() {
            self.listener.let_go(looking);
        }
    }

    /// Who asks after the program has told that it sends one, and is another process, is the deputy.
    fn is_deputy(&mut self, who: i32) -> bool {
        let is_thread = Path::new(&format!("/proc/{}/task/{who}", self.program)).exists();
        if self.deputy.is_none() && !is_thread && self.has_answered() {
            self.deputy = Some(who);
        }
        self.deputy == Some(who)
    }

    fn has_answered(&mut self) -> bool {
        has_more(&self.answered) && matches!(self.answered.read(&mut [0]), Ok(1))
    }

    fn order(&mut self) {
        self.order.write_all(&[1]).expect("the program reads");
    }

    fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        while !is_so(self) {
            self.turn();
        }
    }

    /// Lets the deputy go on.
    fn let_go(&mut self) {
        let held = self.held.take().expect("it is held");
        self.listener.let_go(held);
        self.let_look();
    }

    fn signal(&self, to: i32, signal: i32) {
        // SAFETY: a process of this scenario that was not waited for.
        assert_eq!(unsafe { libc::kill(to, signal) }, 0);
    }

    fn deputy(&self) -> i32 {
        self.deputy.expect("it has asked")
    }

    /// Returns the status of the program once it has ended.
    fn ended(&self) -> Option<i32> {
        ended(self.program)
    }

    /// Whether the program has ended, and was not waited for.
    fn program_is_over(&self) -> bool {
        state(self.program) == 'Z'
    }

    /// Lets the program go on to its end.
    fn end(&mut self, what: &str) {
        let mut status = None;
        self.until(|watched| {
            status = watched.ended();
            status.is_some()
        });
        assert_eq!(status, Some(0), "{what} at {}", self.step);
    }
}

/// Returns the status of a child that has ended.
fn ended(child: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let told = unsafe { libc::waitpid(child, &raw mut status, libc::__WALL | libc::WNOHANG) };
    let exited = || if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) };
    (told == child).then(exited)
}

/// Returns the letter of a process's state; `X` if it is gone.
fn state(process: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('X')
}

/// What a process is that loses its parent: this one's child.
fn adopt() {
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
}

fn exit() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

/// Gathers by deputies, and lives through the event.
fn live_through(event: Event, step: usize, mut inner: Inner) -> ! {
    let deed = if let Event::Deed(deed) = event { deed } else { Deed::Signal };
    let scene = Scene::new(Way::Gather, deed);
    plan(&Way::Gather.options().errands(Errands::Deputy));
    inner.send();
    if matches!(event, Event::Deed(_)) {
        scene.act();
    }
    inner.tell();
    // Who is stopped is found by whoever waits for it, and by whoever only looks.
    let asks_first = event == Event::DeputyStopped && step.is_multiple_of(2);
    to_the_end(|turn| {
        if turn > 0 || !asks_first {
            dismiss_deputy();
        }
    });
    assert!(scene.is_right(true, Who::Parent), "in the process itself");
    assert_eq!(in_child(|| i32::from(!scene.is_right(true, Who::Child))), 0, "in its child");
    let is_whole = !matches!(event, Event::Deed(_));
    assert!(!is_whole || scene.memory.huge() == scene.memory.len, "the errand of a deputy that has failed is done");
    assert_eq!(children(), 0);
    exit()
}

fn at_each_step(events: &[Event]) {
    needs_huge_pages();
    for event in events.iter().copied() {
        let first = if matches!(event, Event::Deed(_)) { CONFINED } else { 0 };
        for step in first..CALLS.len() {
            let mut watched = Watched::hold(step, |inner| live_through(event, step, inner));
            let deputy = watched.deputy();
            match event {
                Event::DeputyKilled => watched.signal(deputy, libc::SIGKILL),
                Event::DeputyStopped => {
                    watched.signal(deputy, libc::SIGSTOP);
                    watched.until(|_| matches!(state(deputy), 'T' | 'Z' | 'X'));
                }
                Event::Deed(_) => {}
            }
            if !matches!(event, Event::Deed(_)) {
                watched.let_look();
            }
            watched.order();
            if matches!(event, Event::Deed(_)) {
                watched.until(|watched| watched.has_answered() || watched.program_is_over());
                watched.let_go();
            }
            watched.end(&format!("{event:?}"));
            let expected = if matches!(event, Event::Deed(_)) { CALLS.len() } else { step + 1 };
            assert_eq!(watched.seen, CALLS[..expected], "{event:?} at {step}");
        }
    }
}

#[test]
fn whatever_is_done_while_a_deputy_stands_at_a_step_is_done() {
    play("whatever_is_done_while_a_deputy_stands_at_a_step_is_done", || {
        // A signal does nothing to a deputy.
        let deeds = Deed::ALL.into_iter().filter(|deed| *deed != Deed::Signal);
        at_each_step(&deeds.map(Event::Deed).collect::<Vec<_>>());
    });
}

#[test]
fn what_a_deputy_leaves_that_is_killed_or_stopped_at_a_step_is_gathered() {
    play("what_a_deputy_leaves_that_is_killed_or_stopped_at_a_step_is_gathered", || {
        at_each_step(&[Event::DeputyKilled, Event::DeputyStopped]);
    });
}

#[test]
fn a_deputy_does_nothing_for_a_parent_that_was_killed() {
    play("a_deputy_does_nothing_for_a_parent_that_was_killed", || {
        needs_huge_pages();
        adopt();
        for step in 0..CALLS.len() {
            let mut watched = Watched::hold(step, |mut inner| {
                Scene::new(Way::Gather, Deed::Signal);
                plan(&Way::Gather.options().errands(Errands::Deputy));
                inner.send();
            });
            let deputy = watched.deputy();
            watched.signal(watched.program, libc::SIGKILL);
            assert_eq!(wait(watched.program), 1000 + libc::SIGKILL);
            watched.let_go();
            let mut status = None;
            watched.until(|_| {
                status = ended(deputy);
                status.is_some()
            });
            // Before it has asked to end with its sender, it finds that its parent is another. That does not kill it
            // first: it stands at a look.
            let expected = if step == 0 { 0 } else { 1000 + libc::SIGKILL };
            assert_eq!(status, Some(expected), "at {step}");
            let does_work = watched.seen.iter().skip(step + 1).any(|call| *call == libc::SYS_madvise);
            assert!(!does_work, "at {step}: {:?}", watched.seen);
        }
    });
}

/// A limit of processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    /// `RLIMIT_NPROC`.
    User,
    /// `pids.max`.
    Group,
}

/// The user of this number and a process id has no other process.
const NOBODY: libc::uid_t = 1 << 30;

/// Leaves room for this many processes and threads.
fn limit(limit: Limit, group: Option<&PathBuf>, places: u8) {
    if let Some(group) = group {
        enter(group).expect("as the scenario has tried");
        return std::fs::write(group.join("pids.max"), places.to_string()).expect("as the scenario has tried");
    }
    assert_eq!(limit, Limit::User);
    let user = NOBODY + std::process::id();
    // SAFETY: takes numbers; one thread.
    if unsafe { libc::setresuid(user, user, user) } != 0 {
        skip("there are few users in this namespace");
    }
    // So that it may open its files of /proc. SAFETY: takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) }, 0);
    let places = libc::rlimit { rlim_cur: places.into(), rlim_max: places.into() };
    // SAFETY: `places` outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const places) }, 0);
}

/// Moves this process to a group.
fn enter(group: &Path) -> std::io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}

/// Makes a group of processes that can be limited, where groups are as systems mount them.
fn new_group() -> Option<PathBuf> {
    let name = format!("palimpsest-{}", std::process::id());
    ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].into_iter().find_map(|folder| {
        let group = PathBuf::from(folder).join(&name);
        std::fs::create_dir(&group).ok()?;
        let is_limited = std::fs::write(group.join("pids.max"), "9").is_ok();
        // Where groups are delegated, processes may not be moved.
        if is_limited && in_child(|| i32::from(enter(&group).is_err())) == 0 {
            return Some(group);
        }
        let _ = std::fs::remove_dir(&group);
        None
    })
}

/// Who forks while a deputy has the last place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Forks {
    /// Its sender.
    Sender,
    /// Another thread, while the sender waits until the deputy has given up its rights.
    Another,
}

/// Is refused a fork, and makes the next one.
fn is_refused_and_forks(inner: &mut Inner) {
    // SAFETY: a child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        exit();
    }
    let refused = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((child, refused), (-1, Some(libc::EAGAIN)), "there is no place");
    inner.tell();
    assert_eq!(in_child(|| 0), 0);
}

/// Forks while its deputy has the last place.
fn fork_at_the_limit(kind: Limit, group: Option<&PathBuf>, who: Forks, mut inner: Inner) -> ! {
    limit(kind, group, if who == Forks::Sender { 2 } else { 3 });
    let scene = Scene::new(Way::Gather, Deed::Signal);
    plan(&Way::Gather.options().errands(Errands::Deputy));
    match who {
        Forks::Sender => {
            inner.send();
            is_refused_and_forks(&mut inner);
        }
        Forks::Another => {
            let (tell, told) = std::sync::mpsc::channel::<Inner>();
            let another = std::thread::spawn(move || {
                let mut inner = told.recv().expect("the sender tells");
                inner.obey();
                let forks = std::panic::AssertUnwindSafe(|| is_refused_and_forks(&mut inner));
                if std::panic::catch_unwind(forks).is_err() {
                    // The sender may stand at its look. SAFETY: ends the process.
                    unsafe { libc::_exit(101) };
                }
            });
            inner.tell();
            tell.send(inner).expect("the thread waits");
            slice();
            another.join().expect("it forks");
        }
    }
    assert_eq!(in_child(|| i32::from(children() > 0 || !scene.is_right(true, Who::Child))), 0);
    assert_eq!(children(), 0, "the deputy has made room");
    exit()
}

fn forks_at(kind: Limit, group: Option<&PathBuf>) {
    needs_huge_pages();
    for (who, step) in [(Forks::Sender, CONFINED), (Forks::Another, 0), (Forks::Another, CONFINED - 1)] {
        let mut watched = Watched::hold(step, |inner| fork_at_the_limit(kind, group, who, inner));
        let program = watched.program;
        watched.until(|watched| who == Forks::Sender || watched.looking.is_some());
        watched.order();
        watched.until(|watched| watched.waited.is_some() || watched.program_is_over());
        let waited = watched.waited;
        watched.let_go();
        watched.end(&format!("{kind:?} {who:?}"));
        assert_eq!(waited.map(|thread| thread == program), Some(who == Forks::Sender), "who waits for the deputy");
    }
}

#[test]
fn a_fork_for_which_a_user_has_no_place_waits_for_the_deputy_and_is_tried_again() {
    play("a_fork_for_which_a_user_has_no_place_waits_for_the_deputy_and_is_tried_again", || {
        if !rustix::process::geteuid().is_root() {
            skip("only root can become a user who has no other process");
        }
        forks_at(Limit::User, None);
    });
}

#[test]
fn a_fork_for_which_a_group_has_no_place_waits_for_the_deputy_and_is_tried_again() {
    play("a_fork_for_which_a_group_has_no_place_waits_for_the_deputy_and_is_tried_again", || {
        let Some(group) = new_group() else { skip("no group of processes with pids.max can be made") };
        let played = std::panic::catch_unwind(|| forks_at(Limit::Group, Some(&group)));
        let removed = std::fs::remove_dir(&group);
        played.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        removed.expect("nobody is in it");
    });
}

/// Whether the thread that executes a program waits for the deputy first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Dismissed,
    Nothing,
}

/// Sends a deputy by another thread, and executes `cat`.
fn execute(before: Before, mut inner: Inner) -> ! {
    let scene = Scene::new(Way::Gather, Deed::Signal);
    let (tell, told) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        // Tries calls in a child, for this thread.
        plan(&Way::Gather.options().errands(Errands::Deputy));
        let _ = tell.send(());
        let _ = goes_on.recv();
        slice();
        let _ = tell.send(());
        loop {
            std::thread::park();
        }
    });
    told.recv().expect("the thread has planned");
    inner.tell();
    go_on.send(()).expect("the thread waits");
    inner.obey();
    assert!(scene.is_right(true, Who::Parent));
    if before == Before::Dismissed {
        told.recv().expect("the thread has sent one");
        dismiss_deputy();
    }
    let Inner { orders, answers } = inner;
    let refused = Command::new("cat").stdin(orders).stdout(answers).exec();
    panic!("cat is not executed: {refused}");
}

/// The promise for a thread that executes a program without waiting for another thread's deputy: one defunct child, and
/// nothing else. And for one that waits: none.
#[test]
fn a_program_that_is_executed_beside_a_deputy_has_a_defunct_child_at_most() {
    play("a_program_that_is_executed_beside_a_deputy_has_a_defunct_child_at_most", || {
        needs_huge_pages();
        if Command::new("cat").arg("/dev/null").status().is_err() {
            skip("needs cat");
        }
        adopt();
        let steps = (0..CALLS.len()).map(|step| (step, Before::Nothing));
        for (step, before) in steps.chain([(CONFINED, Before::Dismissed)]) {
            let mut watched = Watched::hold(step, |inner| execute(before, inner));
            let (program, deputy) = (watched.program, watched.deputy());
            watched.order();
            let told = |name: &str| std::fs::read_to_string(format!("/proc/{program}/{name}")).unwrap_or_default();
            let has_begun = |watched: &Watched| told("comm") == "cat\n" || watched.program_is_over();
            if before == Before::Dismissed {
                watched.until(|watched| watched.waited == Some(program) || has_begun(watched));
                assert!(!has_begun(&watched), "it does not wait for the deputy");
                watched.let_go();
            }
            watched.until(|watched| has_begun(watched));
            if watched.held.is_some() {
                watched.let_go();
            }
            watched.until(|_| matches!(state(deputy), 'Z' | 'X'));
            let known = told(&format!("task/{program}/children"));
            let expected = if before == Before::Dismissed { String::new() } else { format!("{deputy} ") };
            assert_eq!(known, expected, "{before:?} at {step}");
            // The new program runs as ever, and ends by itself.
            watched.order();
            let mut has_echoed = false;
            watched.until(|watched| {
                has_echoed = watched.has_answered();
                has_echoed || watched.program_is_over()
            });
            assert!(has_echoed, "{before:?} at {step}");
            let (_, closed) = std::io::pipe().expect("a pipe");
            watched.order = closed;
            watched.end(&format!("{before:?}"));
            assert!(before == Before::Dismissed || ended(deputy).is_some(), "nobody else has waited for it");
        }
    });
}
