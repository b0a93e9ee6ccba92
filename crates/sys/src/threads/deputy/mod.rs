//! A process that asks for huge pages in its parent's memory, so that the parent need not wait for them.
//!
//! `MADV_COLLAPSE` first sleeps until every processor has emptied a list of its own (`lru_add_drain_all`), and then
//! copies 2 MiB for each huge page. The deputy makes that one call and ends. It borrows the parent's memory
//! (`CLONE_VM`), as a tracer does: making it copies no page table. It has its own stack, beside the
//! [`Desk`] through which it gets its errand, and borrows the parent's thread-local storage, so that it runs only
//! atomics and bare system calls. It is no thread of the program: nobody who counts or holds threads sees it. It has no
//! exit signal: a SIGCHLD handler and `waitpid(-1, …)` do not see it either.
//!
//! # What it may do
//!
//! It would keep the rights that the program gives up meanwhile, and the program can write to its code and its stack.
//! So it first closes its descriptors, in a table of its own, and installs a filter that allows its one call, to wake
//! its sender and let that go first, and its end (`confined`). [`Desk::send`] returns only then, or once it is killed.
//! It keeps its identity, its root and its working directory, but whoever takes it over can make no other call.
//!
//! # Who may access the desk
//!
//! | `state` | the errand belongs to |
//! |---|---|
//! | `FREE` | whoever makes it `TAKEN` |
//! | `TAKEN` | whoever has taken it: fills it in, or reads the answer. It blocks signals: no handler waits for it |
//! | `BUSY` | the deputy, from its beginning on |
//! | `ENDED` | nobody until it is `TAKEN`: the deputy has ended, and was waited for |
//!
//! While the desk is `TAKEN`, a deputy may have a place already. Who wants it gone waits for the next state.
//!
//! Any thread may ask for the deputy's end, without a lock. So a word that says `BUSY` names the deputy, too:
//!
//! ```text
//! thread A                              thread B
//! reads BUSY, deputy 1
//!                                       waits for 1: ENDED; takes the answer: FREE; sends 2: BUSY, deputy 2
//! waits for 1: no such child
//! exchanges "BUSY, 1" for ENDED: fails, since the word says 2
//! ```
//!
//! Else A would call deputy 2 ended, and a third would run on its stack. Only a child without exit signal is waited for
//! (`__WCLONE`), so that A takes no child of the program that has been given the id of 1 meanwhile. That a deputy gets
//! the id of the one before it is no danger either, short of A standing still between its wait and the exchange while
//! the kernel gives out all other ids.
//!
//! # What happens if one of them dies
//!
//! - The thread that has made the deputy dies: the kernel kills the deputy (`PR_SET_PDEATHSIG`).
//! - The deputy is killed: its errand is taken for failed.
//! - The parent executes another program: the deputy must be [waited for](Desk::dismiss) before, or the new program
//!   would have a child that it does not know. It has one if a thread executes it while another, in a wait, is just
//!   sending a deputy: that borrows the old memory only, and is killed with its sender or ends by itself, but a defunct
//!   process remains. Sending is not forbidden from there on, since a program that cannot be executed leaves everything
//!   as it was, and that is not seen.
//! - The parent forks: the desk in the child's memory belongs to the parent's process id, and counts as free.
//! - The deputy is stopped (`kill(-group, SIGSTOP)`): who finds it so kills it. SIGCONT may come for the parent only.
//!
//! # What the program can notice, for some milliseconds
//!
//! - **Descriptors**: it has none once it is at work. Else what the program closes, or leaves open when it ends, would
//!   stay open: a lock (`flock`), a port, the end of a pipe. It begins with the program's table (`CLONE_FILES`), of
//!   which none is copied.
//! - **Directories** are not shared. Whoever shares them cannot `setns` to a mount or user namespace, and gains no
//!   rights from a set-user-id program. The deputy keeps the working directory, and with it the mount, until it ends.
//! - **Rights**: a `setuid`, a Landlock rule or a seccomp filter installed meanwhile does not reach the deputy, which
//!   has no use for any right. After a `setuid` the program may not kill it: it ends by itself.
//! - **Memory** that the program leaves behind when it ends is there until the errand is over.
//! - **Sharing memory**: the kernel takes whoever shares memory for a program of several threads
//!   (`current_is_single_threaded`). It refuses `setns` to a time namespace (EUSERS), `unshare(CLONE_VM)` (EINVAL) and,
//!   under SELinux, a `setcon` to a context that is not bounded by the old one (EPERM).
//! - **Waiting**: only `waitpid(…, __WALL)` or `__WCLONE` see it; if the program takes its end, that is noted as
//!   the end of the errand. `RUSAGE_CHILDREN` contains its time.
//! - **Searches**: it is in `/proc`, and in `/proc/…/children`. Its name is its own, its command line the program's.
//! - **Limits**: it counts for `RLIMIT_NPROC` and `pids.max` until it has been waited for: at the next wait or fork. A
//!   program that computes after its last wait has a defunct child until then. If it cannot be made, the caller is told
//!   and does the work. What needs the last place meanwhile fails with EAGAIN: `palimpsest_fork::fork`, and in programs
//!   that the preload object serves `posix_spawn`, `system` and `popen`, are then tried again without it; threads,
//!   `vfork` and a bare `clone` are not. It is never made where children begin in another PID namespace, since it would
//!   be the first process of that.
//! - **Time**: the sender waits until it has given up its rights, for as long as it says: then the machine is too busy,
//!   and it is killed. Where the kernel refuses that it gives up its rights, no other is sent. On a busy machine it
//!   would wait for its turn first, 3 to 4 ms in every tenth case beside four busy loops on two processors. So the
//!   sender asks for a short time slice meanwhile (`timeslice`), and the deputy, once it has given up its rights, lets
//!   the sender go first: 0.1 and 0.7 ms. Afterwards the sender has the time slice that it had.
//! - **Signals**: it blocks all. `kill(-1, …)` and signals to the group reach it: SIGKILL ends it; SIGSTOP stops it,
//!   for which the parent may get a SIGCHLD.
//! - **Debuggers** do not follow it. If it runs into a breakpoint of theirs, it is killed, and its errand has failed.
//! - **Lack of memory**: asking for a huge page never calls the OOM killer. If that comes for other reasons, it kills
//!   all processes that share the memory, and finds the deputy as heavy as the program, with the same `oom_score_adj`.
//! - **`vfork` and `posix_spawn`** do not care: the deputy belongs to the parent, whose memory they borrow as well.

mod confined;
#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::child::{self, NoChild, Stack, answered, are_near};
use super::futex::{sleep, wake};
use super::own::{Blocked, own_process};
use super::timeslice::{self, Short};
use crate::arch::system_call;
use crate::last_errno;
use crate::memory::span::Span;
use crate::seccomp::{FreezeCall, Part, found_deadly};

/// More than twenty times what the deputy uses in an unoptimised build.
const STACK: usize = 16 << 10;

/// The lowest two bits of the word `state`; see the module. Its upper half is the process id of the desk's owner, and
/// the rest that of the deputy if it is `BUSY`. A free desk's word may be 0.
const FREE: u64 = 0;
const TAKEN: u64 = 1;
const BUSY: u64 = 2;
const ENDED: u64 = 3;

/// The deputy has given up its rights. No error of the kernel's.
const CONFINED: u32 = u32::MAX;

/// How long a thread sleeps before it looks whether a deputy lives, in nanoseconds.
const LOOK: i64 = 500_000;

/// How often the sender looks at most before it takes the machine for too busy: the program waits for it.
const MOST_LOOKS: u128 = 10;

/// How often a thread looks before it takes a deputy for one that the kernel keeps: for two seconds.
const PATIENCE: u32 = 4000;

/// Process ids have at most 22 bits.
const ID: u64 = (1 << 30) - 1;

/// The kernel's answer to a wait that a signal has ended; and that of a deputy that has not come to give one.
const INTERRUPTED: isize = -(libc::EINTR as isize);

/// The kernel's answer to a wait for a child that is none, or was waited for.
const NO_CHILD: isize = -(libc::ECHILD as isize);

/// The stack of deputies. Zeroed memory is a valid one. It must not be frozen, and not move.
pub struct DeputyStack(Stack<STACK>);

impl std::fmt::Debug for DeputyStack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeputyStack").finish_non_exhaustive()
    }
}

impl DeputyStack {
    /// Returns an unused stack.
    pub const fn new() -> Self {
        Self(Stack::new())
    }
}

/// The memory through which a process and its deputy communicate. It must not be frozen, and not move.
pub struct Desk {
    state: AtomicU64,
    /// The process that has sent the deputy.
    parent: AtomicI32,
    /// Whether the deputy is [`CONFINED`]; else 0, or why the kernel has refused that. Then none is sent any more.
    confined: AtomicU32,
    /// The errand, and the answer.
    start: AtomicUsize,
    len: AtomicUsize,
    asked: AtomicUsize,
    answer: AtomicIsize,
    /// The processor time that the deputy took, in nanoseconds.
    spent: AtomicU64,
    /// The sender's own time slice, in nanoseconds, while it has a short one; else 0.
    timeslice: AtomicU64,
    stack: &'static DeputyStack,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("state", &self.state).finish_non_exhaustive()
    }
}

/// An errand that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errand {
    /// The memory.
    pub span: Span,
    /// How many pieces of it the sender has asked for: others were whole.
    pub asked: usize,
    /// The kernel's answer.
    pub answer: Result<(), Errno>,
    /// The processor time that the deputy took; zero if somebody else has waited for it.
    pub spent: Duration,
}

impl Desk {
    /// Returns a free desk, whose deputies use `stack`, as those of no other desk do.
    pub const fn new(stack: &'static DeputyStack) -> Self {
        Self {
            state: AtomicU64::new(FREE),
            parent: AtomicI32::new(0),
            confined: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            answer: AtomicIsize::new(0),
            spent: AtomicU64::new(0),
            timeslice: AtomicU64::new(0),
            stack,
        }
    }

    /// Sends a deputy to ask for huge pages in `span`, of which `asked` are not whole. Contents, rights and mappings
    /// stay as they are, whatever becomes of the memory meanwhile: the kernel refuses what cannot be. Waits until it is
    /// at work, for `patience` or half a millisecond, if that is more, and never for much longer than 5 ms if nobody
    /// else wants the processor. Returns false if another errand is not over, or its answer not
    /// [taken](Self::answered). Does not use the heap.
    ///
    /// # Errors
    ///
    /// See [`NoChild`]. After [`NoChild::Late`] there may be an answer, and after [`NoChild::Rights`] one, of an errand
    /// that has failed.
    pub fn send(&'static self, span: Span, asked: usize, patience: Duration) -> Result<bool, NoChild> {
        // No handler may find the desk taken by the thread that it interrupts, and the deputy must not run one of the
        // program's; and none may give up rights here before the deputy has.
        let _blocked = Blocked::all();
        if let Some(errno) = self.refusal() {
            return Err(NoChild::Rights(errno));
        }
        if found_deadly().first_of(&[Part::Deputies]).is_some() {
            return Err(NoChild::Rights(Errno::PERM));
        }
        let found = self.state.load(Ordering::Relaxed);
        // Acquire, partner: the Release stores of `FREE`. Forbids filling in an errand of which another thread still
        // reads the answer.
        if own(found) != FREE
            || self.state.compare_exchange(found, owned(TAKEN), Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return Ok(false);
        }
        // So the deputy begins soon, and this thread, once it is woken, goes on soon.
        let short = are_near().then(Short::begin).flatten();
        // Relaxed: the deputy is made after the store.
        self.timeslice.store(short.as_ref().map_or(0, Short::before), Ordering::Relaxed);
        let made = self.make(span, asked).map(|deputy| (deputy, busy(deputy)));
        // Release, partner: the Acquire load in `look`. Forbids asking for a child that is not made yet.
        self.state.store(made.map_or(FREE, |(_, word)| word), Ordering::Release);
        let (deputy, word) = made?;
        self.wait_until_confined(deputy, word, patience).map(|()| true)
    }

    /// Returns why no deputy could give up its rights.
    fn refusal(&self) -> Option<Errno> {
        // Acquire, partner: the Release store in `serve`. Forbids that what the program does next, such as giving up
        // rights, comes before the deputy's last use of them.
        match self.confined.load(Ordering::Acquire) {
            0 | CONFINED => None,
            refused => Some(Errno::from_raw_os_error(refused.cast_signed())),
        }
    }

    /// Makes the deputy, and returns its process id. The caller has blocked signals.
    fn make(&'static self, span: Span, asked: usize) -> Result<i32, NoChild> {
        if !are_near() {
            return Err(NoChild::PidNamespace);
        }
        // Relaxed, all: the deputy is made after these stores.
        self.parent.store(own_process(), Ordering::Relaxed);
        self.start.store(span.start, Ordering::Relaxed);
        self.len.store(span.len(), Ordering::Relaxed);
        self.asked.store(asked, Ordering::Relaxed);
        self.answer.store(INTERRUPTED, Ordering::Relaxed);
        self.confined.store(0, Ordering::Relaxed);
        self.spent.store(0, Ordering::Relaxed);
        // It shares our memory, and at first our descriptors, so that none is copied; but not our directories: who
        // shares them cannot enter a namespace (`setns`), and gains no rights from a program. Debuggers do not follow
        // it.
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_UNTRACED;
        let arg = ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: the child runs `serve` on a stack that nobody else uses until it has ended; `serve` touches only the
        // desk, which lives for ever.
        let pid = unsafe { libc::clone(serve, self.stack.0.top(), flags, arg) };
        if pid < 0 {
            return Err(NoChild::Refused(last_errno()));
        }
        Ok(pid)
    }

    /// Notes that a filter kills who gives up its rights, from how the deputy ended: as if the kernel had refused.
    fn note_killing(&self, status: i32) {
        if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS {
            // Relaxed: nothing is published.
            let refused = Errno::PERM.raw_os_error().cast_unsigned();
            let _ = self.confined.compare_exchange(0, refused, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the deputy has given up its rights.
    fn is_confined(&self) -> Result<bool, NoChild> {
        match self.refusal() {
            Some(errno) => Err(NoChild::Rights(errno)),
            None => Ok(self.confined.load(Ordering::Relaxed) == CONFINED),
        }
    }

    /// Waits until the deputy that `word` names has given up its rights, or is dead. Kills it if it takes too long.
    fn wait_until_confined(&self, deputy: i32, word: u64, patience: Duration) -> Result<(), NoChild> {
        let started = Instant::now();
        for look in 0..looks(patience) {
            // Each may take longer than it should, where others want the processor.
            if look > 0 && started.elapsed() >= patience {
                break;
            }
            let limit = libc::timespec { tv_sec: 0, tv_nsec: LOOK };
            sleep(&self.confined, 0, &raw const limit);
            // Another thread may have waited for it, and have sent the next one.
            if self.is_confined()? || self.ask(word) != Some(BUSY) {
                return Ok(());
            }
        }
        // The question may have taken longer than the deputy.
        if self.is_confined()? {
            return Ok(());
        }
        if self.state.load(Ordering::Relaxed) == word {
            kill(deputy);
        }
        Err(NoChild::Late)
    }

    /// Whether a deputy of this process is still at work. Costs a load while the desk is free, else system calls.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.state.load(Ordering::Relaxed) != FREE && self.look() == BUSY
    }

    /// Returns the process id of the deputy of this process that is still at work.
    pub fn at_work(&self) -> Option<i32> {
        // Acquire, partner: as in `look`.
        let found = self.state.load(Ordering::Acquire);
        (found != FREE && own(found) == BUSY && self.ask(found) == Some(BUSY)).then(|| named(found))
    }

    /// Returns the errand that is over, once.
    pub fn answered(&self) -> Option<Errand> {
        if self.state.load(Ordering::Relaxed) == FREE || self.look() != ENDED {
            return None;
        }
        // As in `send`.
        let _blocked = Blocked::all();
        // Acquire, partner: the Release exchange in `look`. Forbids that two threads take it, or see an older answer.
        self.state.compare_exchange(owned(ENDED), owned(TAKEN), Ordering::Acquire, Ordering::Relaxed).ok()?;
        let (start, len) = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        let asked = self.asked.load(Ordering::Relaxed);
        let answer = answered(self.answer.load(Ordering::Relaxed)).map(drop);
        let spent = Duration::from_nanos(self.spent.load(Ordering::Relaxed));
        // Release, partner: the Acquire exchange in `send`.
        self.state.store(FREE, Ordering::Release);
        Some(Errand { span: Span::new(start, start + len), asked, answer, spent })
    }

    /// Waits for a deputy of this process that is still at work, or that another thread is just sending; kills one
    /// that was stopped. That takes a few milliseconds. It gives up after two seconds, since the kernel may keep a
    /// deputy for as long as some processor is never free: then a child is left behind. Returns whether one was at work
    /// or being sent, or had not been waited for. Makes atomic accesses and system calls only, and none of these while
    /// the desk is free.
    pub fn dismiss(&self) -> bool {
        let is_there = |state| matches!(state, BUSY | TAKEN);
        let found = self.state.load(Ordering::Relaxed);
        let was_there = found != FREE && is_there(own(found));
        let mut turns = if was_there { 0..PATIENCE } else { 0..0 };
        while turns.next().is_some() && is_there(self.look()) {
            let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK };
            // SAFETY: the kernel reads the time, which outlives the call.
            unsafe { system_call(libc::SYS_nanosleep, [(&raw const pause).addr(), 0]) };
        }
        was_there
    }

    /// Returns the state. If a deputy of this process is at work, asks whether it has ended.
    fn look(&self) -> u64 {
        loop {
            // Acquire, partner: the Release store in `send`. Forbids asking for a child that is not made yet.
            let found = self.state.load(Ordering::Acquire);
            if own(found) != BUSY {
                return own(found);
            }
            if let Some(state) = self.ask(found) {
                return state;
            }
        }
    }

    /// Asks whether the deputy that `found` names has ended. Returns the state; `None` if the word is another by now.
    fn ask(&self, found: u64) -> Option<u64> {
        let deputy = named(found);
        loop {
            let mut status = 0_i32;
            // SAFETY: all zeros is a valid value.
            let mut usage: libc::rusage = unsafe { MaybeUninit::zeroed().assume_init() };
            match wait(deputy, &mut status, &mut usage) {
                INTERRUPTED => {}
                waited if waited == deputy as isize && libc::WIFSTOPPED(status) => {
                    if self.state.load(Ordering::Relaxed) != found {
                        return None;
                    }
                    kill(deputy);
                }
                // If it is no child any more, somebody else has waited for it: another thread here, or one of the
                // program's that waits for children that it does not know. Release, partner: the Acquire exchange in
                // `answered`: what the deputy wrote happened before its end.
                waited if waited == deputy as isize || waited == NO_CHILD => {
                    if waited == deputy as isize {
                        self.note_killing(status);
                        // A figure: if another thread finds no such child before this, it is lost, or the next one's.
                        self.spent.store(spent(&usage), Ordering::Relaxed);
                    }
                    let ended = self.state.compare_exchange(found, owned(ENDED), Ordering::Release, Ordering::Relaxed);
                    return ended.is_ok().then_some(ENDED);
                }
                // Still at work; or a filter of the program's refuses the question.
                _ => return Some(BUSY),
            }
        }
    }
}

/// Returns how often to look within `patience`.
fn looks(patience: Duration) -> u128 {
    (patience.as_nanos() / u128::from(LOOK.unsigned_abs())).clamp(1, MOST_LOOKS)
}

/// Asks whether a child without exit signal has ended or was stopped, and what it has used. Returns the kernel's
/// answer.
fn wait(child: i32, status: &mut i32, usage: &mut libc::rusage) -> isize {
    let flags = libc::WNOHANG | libc::WUNTRACED | libc::__WCLONE;
    let [status, usage] = [ptr::from_mut(status).addr(), ptr::from_mut(usage).addr()];
    // SAFETY: both outlive the call, and the kernel writes no more than an int to one and a `rusage` to the other.
    unsafe { system_call(libc::SYS_wait4, [child as usize, status, flags as usize, usage]) }
}

/// Returns the processor time in nanoseconds.
fn spent(usage: &libc::rusage) -> u64 {
    let nanos = |time: libc::timeval| {
        time.tv_sec.unsigned_abs().saturating_mul(1_000_000_000).saturating_add(time.tv_usec.unsigned_abs() * 1000)
    };
    nanos(usage.ru_utime).saturating_add(nanos(usage.ru_stime))
}

/// Kills a child of ours that was not waited for.
fn kill(child: i32) {
    // SAFETY: takes numbers.
    unsafe { system_call(libc::SYS_kill, [child as usize, libc::SIGKILL as usize, 0, 0]) };
}

/// Returns a state of this process's.
fn owned(state: u64) -> u64 {
    u64::from(own_process().unsigned_abs()) << 32 | state
}

/// Returns the state of this process's in which `deputy` is at work.
fn busy(deputy: i32) -> u64 {
    owned(u64::from(deputy.unsigned_abs()) << 2 | BUSY)
}

/// Returns the process id of the deputy that a `BUSY` word names.
fn named(found: u64) -> i32 {
    (found >> 2 & ID) as i32
}

/// Returns a state as far as it is this process's: what a child has inherited is free.
fn own(found: u64) -> u64 {
    if found >> 32 == owned(FREE) >> 32 { found & 3 } else { FREE }
}

impl Default for DeputyStack {
    fn default() -> Self {
        Self::new()
    }
}

/// Is the deputy. Runs on the parent's thread-local storage, so without the C library and without panics.
extern "C" fn serve(desk: *mut c_void) -> c_int {
    // SAFETY: the parent passes its desk, which lives for ever.
    let desk = unsafe { &*desk.cast::<Desk>() };
    child::dump_no_core();
    // SAFETY: takes numbers.
    unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0]) };
    // Renames itself, so that a search for processes by name does not take it for the program. SAFETY: a C string that
    // lives for ever.
    unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, c"palimpsest-huge".as_ptr().addr(), 0, 0]) };
    // SAFETY: takes nothing.
    let parent = unsafe { system_call(libc::SYS_getppid, [0; 4]) };
    // Relaxed: stored before this process was made.
    let timeslice = desk.timeslice.load(Ordering::Relaxed);
    if timeslice > 0 {
        // Its work can wait for its turn.
        timeslice::give_back(timeslice);
    }
    let confined = confined::give_up_rights();
    // Release, partner: the Acquire load in `refusal`.
    desk.confined.store(confined.map_or_else(|errno| errno, |()| CONFINED), Ordering::Release);
    wake(&desk.confined);
    if !FreezeCall::Yield.is_deadly() {
        // The sender may have to go on where the deputy is. SAFETY: takes nothing.
        unsafe { system_call(libc::SYS_sched_yield, [0; 4]) };
    }
    // Relaxed, all: stored before this process was made; and its end, for which the parent waits, publishes the answer.
    if confined.is_ok() && parent == desk.parent.load(Ordering::Relaxed) as isize {
        let (start, len) = (desk.start.load(Ordering::Relaxed), desk.len.load(Ordering::Relaxed));
        // SAFETY: keeps contents and rights of whatever is mapped there.
        let answer = unsafe { system_call(libc::SYS_madvise, [start, len, libc::MADV_COLLAPSE as usize]) };
        desk.answer.store(answer, Ordering::Relaxed);
    }
    loop {
        // SAFETY: ends this process; nothing of it is used afterwards.
        unsafe { system_call(libc::SYS_exit_group, [0; 4]) };
        // A filter refuses that. SAFETY: as above.
        unsafe { system_call(libc::SYS_exit, [0; 4]) };
    }
}
