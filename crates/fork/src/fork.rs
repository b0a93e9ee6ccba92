//! Forks, and keeps an account of what forks cost.

use palimpsest_sys::seccomp::FreezeCall;
use palimpsest_sys::threads::own::{Blocked, Uncancelled, context_switches};
use palimpsest_sys::{in_children, last_errno};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::clock::{CpuMoment, WallMoment, nanos, share};
use crate::engine::registry::{self, Shared};
use crate::engine::round::{Mode, Portion, Reach};
use crate::engine::trials::Trial;
use crate::engine::unbooked::Unbooked;
use crate::engine::{Repair, Repaired};
use crate::error::{ForkError, FreezeError};
use crate::guard::{self, Told};
use crate::hazards::{self, borrowed};
use crate::options::Pays;
use crate::own_stack::{NoStack, on_own_stack};
use crate::planning;
use crate::rounds::played;
use crate::slices;
use crate::tending::instead_of_repair;

/// Which side of a fork one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forked {
    /// The parent, with the child's process id.
    Parent(Pid),
    /// The child.
    Child,
}

/// Calls the C library's `fork(2)`, with its handlers (`pthread_atfork`). In a process that has frozen, accounts for
/// what forks take, and repairs frozen memory when that pays; but no longer once a filter has
/// [confined](crate::guard::confined) the program.
///
/// # Safety
///
/// 1. As for `fork`: in the child of a process with several threads, nothing may be called that is not
///    async-signal-safe.
/// 2. The contract of [`freeze`](crate::freeze) holds, if this process or one that it was forked from has frozen.
///
/// # Errors
///
/// [`ForkError`] with the kernel's answer.
// Inlined, like all that a child calls: in a child each 64 KiB of code costs a page fault of its own.
#[inline]
pub unsafe fn fork() -> Result<Forked, ForkError> {
    // SAFETY: 1. and 2. are (1) and (2); 3. is the C library's.
    unsafe { fork_by(libc::fork) }
}

/// The same by a function of the caller's: for an object that defines `fork` itself, and would be called by that name.
///
/// # Safety
///
/// 1. and 2. As for [`fork`].
/// 3. `real` forks as the C library's function does.
///
/// # Errors
///
/// [`ForkError`] with the kernel's answer.
#[inline]
pub unsafe fn fork_by(real: unsafe extern "C" fn() -> libc::pid_t) -> Result<Forked, ForkError> {
    let is_watched = |shared: &&Shared| {
        let is_frozen = shared.has_frozen() && !shared.statistics.is_over();
        is_frozen || shared.has_erased() || shared.progress.is_under_way()
    };
    // A filter may kill whoever asks for the time, the process id or a file.
    let is_confined = guard::is_confined();
    let shared = registry::shared().filter(|_| !is_confined).filter(is_watched);
    shared.inspect(|shared| shared.begin_account());
    let outcome = shared.and_then(|shared| Some((shared, Due::at_a_fork(shared)?))).map(|(shared, due)| {
        // SAFETY: 1. is (2).
        on_own_stack(|| unsafe { due.work(shared) }).unwrap_or_else(|none| Err(due.without_stack(shared, none)))
    });
    if let Some(Err(error)) = outcome {
        tracing::debug!(%error, "frozen memory is not repaired");
    }
    // Another thread may erase something until the fork.
    let told = registry::shared().filter(|shared| shared.has_frozen()).map_or(Told::ByMap, |_| Told::to_children());
    // If the process is idle, neither side writes to the account: each page that one of them writes to is copied.
    let idle = shared.filter(|shared| shared.is_idle());
    if !is_confined {
        in_children::before_fork();
    }
    let note_fork = || registry::shared().into_iter().for_each(|shared| shared.tending.note_fork());
    note_fork();
    let started = shared.map(|shared| Watch::start(shared.statistics.clean()));
    // SAFETY: (1) and (3).
    let forks = || unsafe { real() };
    let mut child = forks();
    // A deputy may have had the last place that `RLIMIT_NPROC` or `pids.max` allows.
    if child < 0 && last_errno() == Errno::AGAIN && !is_confined && slices::make_room() {
        child = forks();
    }
    if child == 0 {
        in_children::undo();
        registry::end_turns_in_child();
        if let Some(shared) = registry::shared() {
            shared.unlock_in_child();
            shared.tending.give_up();
        }
        // A child of an idle fork claims its memory only when it first asks whose it is: claiming it here may need a
        // page table besides the page, more than all else that such a fork writes. Until then a child of `vfork` that
        // asks first is taken for the owner, and its parent is refused.
        if !is_confined && idle.is_none() {
            // From here on the memory is known to be the child's own.
            let _ = borrowed::owner();
        }
        // Before Linux 4.14 a child could not tell later that the account is its parent's.
        let begins_now = |shared: &&Shared| idle.is_none() && shared.has_begun();
        if let Some(mut locked) = shared.filter(begins_now).and_then(Shared::lock) {
            locked.shared.statistics.born();
            locked.ledger().inherited();
        }
        // Asked here, so that a child with nothing to forget touches no more of this library's code.
        if registry::shared().is_some_and(Shared::has_erased) {
            // A thread that somebody has cancelled ends behind its fork, and not in the middle of this.
            let _kept = Uncancelled::begin();
            guard::forget_erased(told);
        }
        return Ok(Forked::Child);
    }
    // -1 is no process, and must not be taken for one.
    let Some(pid) = Pid::from_raw(child.max(0)) else { return Err(ForkError(last_errno())) };
    // And behind it: see `engine::sight`.
    note_fork();
    if !is_confined && let Some(shared) = registry::shared() {
        // A deputy that has ended counts as a process until it is waited for, and this program may never wait.
        let _ = shared.desk.is_busy();
    }
    if let (Some(shared), Some(started)) = (shared, started) {
        let taken = started.taken(shared.statistics.clean());
        if idle.is_some_and(|shared| shared.statistics.is_usual(taken)) {
            return Ok(Forked::Parent(pid));
        }
        if is_noted(shared, taken) {
            return Ok(Forked::Parent(pid));
        }
        shared.statistics.count_fork();
        // If two threads fork at once, one of the forks is not accounted for.
        if let Some(mut locked) = shared.lock() {
            if shared.progress.is_under_way() {
                if locked.agenda().frozen() == 0 {
                    locked.ledger().forked_plainly(taken);
                }
                return Ok(Forked::Parent(pid));
            }
            locked.ledger().forked(taken);
            let (excess, huge, pause) = (locked.ledger().excess(taken), locked.ledger().huge(), locked.options().pause);
            shared.tending.forked(excess, huge, pause, WallMoment::now().nanos());
            shared.progress.forked();
        }
    }
    Ok(Forked::Parent(pid))
}

/// What is to be done before a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    Forget,
    Slice,
    Repair,
}

impl Due {
    fn at_a_fork(shared: &Shared) -> Option<Self> {
        match () {
            () if shared.has_erased() && shared.trials.next_is_due() => Some(Self::Forget),
            () if shared.progress.is_under_way() => Some(Self::Slice),
            () if shared.statistics.is_due() && !shared.statistics.is_over() => Some(Self::Repair),
            () => None,
        }
    }

    /// Counts it as tried in vain, and returns why.
    fn without_stack(self, shared: &'static Shared, none: NoStack) -> FreezeError {
        match self {
            Self::Slice => return slices::without_stack(shared, none),
            _ if none == NoStack::Busy => {}
            Self::Forget => shared.trials.tried(Trial::InVain),
            Self::Repair => {
                let _blocked = Blocked::all();
                if let Some(mut locked) = shared.lock() {
                    locked.ledger().refused(0);
                }
            }
        }
        none.into()
    }

    /// # Safety
    ///
    /// 1. The contract of [`freeze`](crate::freeze).
    unsafe fn work(self, shared: &'static Shared) -> Result<(), FreezeError> {
        match self {
            // SAFETY: 1. is (1).
            Self::Forget => unsafe { forget(shared) },
            // SAFETY: 1. is (1).
            Self::Slice => unsafe { slices::before_fork(shared) },
            Self::Repair => {
                // SAFETY: 1. is (1).
                let slice = unsafe { instead_of_repair(shared) };
                // SAFETY: 1. is (1).
                slice.or_else(|| planning::plan_anew(shared)).unwrap_or_else(|| unsafe { repair(shared) }.map(drop))
            }
        }
    }
}

/// A fork of fewer nanoseconds is over before a thread has used up its slice (`base_slice_ns`, kernel/sched/fair.c).
const SHORT: u64 = 500_000;

/// Measures a fork.
struct Watch {
    wall: WallMoment,
    cpu: CpuMoment,
    /// Not asked for if forks are short.
    switches: Option<u64>,
}

impl Watch {
    /// Starts, if a clean fork takes `clean` nanoseconds; 0 if that is not known.
    fn start(clean: u64) -> Self {
        let is_long = clean == 0 || clean > SHORT;
        let switches = (is_long && !FreezeCall::Usage.is_deadly()).then(context_switches).flatten();
        Self { wall: WallMoment::now(), cpu: CpuMoment::now(), switches }
    }

    /// Returns the nanoseconds since the start.
    fn taken(self, clean: u64) -> u64 {
        let had_processor = || self.switches.is_some_and(|before| context_switches() == Some(before));
        taken(self.wall.elapsed(), clean, had_processor, || self.cpu.elapsed())
    }
}

/// Returns the nanoseconds of a fork by the wall clock, if it took hardly longer than a clean one or the thread had its
/// processor all the time, else those of CPU time.
///
/// CPU time is not asked for without need. To answer, the kernel accounts for the time since it last did
/// (`task_sched_runtime`, kernel/sched/core.c), and so finds at once, and not at the next tick, that the thread has
/// used up its slice. The child, if it is on the same processor, then runs for a slice before the fork returns: forks
/// of 3 ms took 2 to 3 ms longer (docs/records/2026-11-25-forks).
fn taken(wall: u64, clean: u64, had_processor: impl FnOnce() -> bool, cpu: impl FnOnce() -> u64) -> u64 {
    if wall <= clean + clean / 2 || had_processor() { wall } else { cpu() }
}

/// For less, nothing is done between forks.
const LITTLE: u64 = 100_000;

/// A process that has forked so often forks for its living. Of others, each fork is told at once.
const OFTEN: u64 = 64;

/// Notes a fork for later if nothing follows from it: it is one of many, came shortly after another, was hardly quicker
/// than clean ones are held to be, nothing is under way between forks, and no repair becomes due. Returns whether it
/// did.
fn is_noted(shared: &Shared, taken: u64) -> bool {
    let statistics = &shared.statistics;
    let Some(unbooked) = borrowed::unbooked() else { return false };
    let clean = statistics.clean();
    let excess = taken.saturating_sub(clean);
    let owed = statistics.debt().saturating_add(unbooked.owed()).saturating_add(excess);
    clean > 0
        && statistics.forks() >= OFTEN
        && taken >= clean - clean / 4
        && statistics.hot_pieces() == 0
        && !shared.progress.is_under_way()
        && shared.has_begun()
        && excess <= LITTLE
        && owed <= statistics.price()
        && shared.tending.has_just_forked(WallMoment::now().nanos())
        && unbooked.note(taken, excess)
}

/// Looks at what was written to frozen memory, and repairs it if the debt exceeds what the repair is expected to take.
/// [`fork`](crate::fork) calls it when it may pay.
///
/// # Safety
///
/// 1. The contract of [`freeze`](crate::freeze).
///
/// # Errors
///
/// [`FreezeError`]; everything is unchanged.
unsafe fn repair(shared: &'static Shared) -> Result<Repaired, FreezeError> {
    let started = CpuMoment::now();
    let options = shared.lock().ok_or(FreezeError::Busy)?.options();
    let checked = hazards::check(&options);
    let mut locked = shared.lock().ok_or(FreezeError::Busy)?;
    let most = locked.ledger().most();
    let outcome = checked.and_then(|()| {
        played(&mut locked, &options, Mode::FreezeWithin(most), |_, _, done| {
            let taken = started.elapsed();
            let worked = share(taken, done.taken.saturating_sub(done.looked), done.taken);
            let repair = Repair {
                quote: done.quote,
                looked: taken - worked,
                worked,
                froze: share(taken, done.froze, done.taken),
                fresh: nanos(done.expected.worth.per_fork),
                huge: done.repaired.huge + done.repaired.mended,
                frozen: done.frozen,
            };
            (done.repaired, repair, done.reach, done.portion)
        })
    });
    let taken = started.elapsed();
    match outcome {
        Err(_) | Ok((.., Reach::Stopped, _)) => locked.ledger().refused(taken),
        Ok((_, repair, ..)) if repair.quote > most => locked.ledger().declined(repair.quote, taken),
        Ok((_, repair, _, Portion::Part)) if locked.ledger().goes_on(&repair) => {
            locked.ledger().repaired_in_part(repair)
        }
        Ok((_, repair, _, portion)) => {
            match portion {
                Portion::Whole => locked.ledger().repaired(repair),
                Portion::Part => locked.ledger().gives_up(repair),
            }
            shared.statistics.count_repair();
        }
    }
    let has_lost = options.pays != Pays::Anyway && locked.ledger().has_lost();
    drop(locked);
    if has_lost && let Err(errno) = guard::thaw_all() {
        tracing::debug!(%errno, "frozen memory that does not pay is not thawed");
    }
    outcome.map(|(repaired, ..)| repaired)
}

/// Moves mappings off extents that hold something erased, whatever that costs. Repairs nothing else, since nobody asked
/// for it. What cannot be moved is tried again after some forks.
///
/// # Safety
///
/// 1. The contract of [`freeze`](crate::freeze).
unsafe fn forget(shared: &'static Shared) -> Result<(), FreezeError> {
    let tried = || {
        let options = shared.lock().ok_or(FreezeError::Busy)?.options();
        hazards::check(&options)?;
        let mut locked = shared.lock().ok_or(FreezeError::Busy)?;
        played(&mut locked, &options, Mode::Forget, |_, _, _| ())
    };
    let outcome = tried();
    shared.trials.tried(if shared.has_erased() { Trial::InVain } else { Trial::Done });
    outcome
}

/// What this process knows of its frozen memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Status {
    /// Bytes of address space that show frozen memory.
    pub frozen_bytes: usize,
    /// Sealed files that are mapped.
    pub extents: usize,
    /// Pieces of up to 2 MiB that are written to all the time, and left alone for now.
    pub hot_pieces: usize,
    /// Forks by [`fork`](crate::fork()); while nothing is frozen, only those that took unusually long or short. A child
    /// begins at 0.
    pub forks: u64,
    /// Repairs; a child begins at 0.
    pub repairs: u64,
    /// CPU nanoseconds that forks took beyond `clean` since the last freeze or repair.
    pub debt: u64,
    /// CPU nanoseconds of a fork when nothing was written since the last freeze or repair; 0 if there was none.
    pub clean: u64,
    /// The debt in nanoseconds at which a repair follows, or a look at what it would take.
    pub price: u64,
}

/// Returns what this process knows of its frozen memory; all zero if there is none.
pub fn status() -> Status {
    let Some(shared) = registry::shared().filter(|shared| shared.has_frozen()) else { return Status::default() };
    let statistics = &shared.statistics;
    // A new child has its parent's words until it first forks.
    let own = |value: u64| if shared.has_begun() { value } else { 0 };
    let unbooked = borrowed::unbooked();
    Status {
        frozen_bytes: statistics.frozen_bytes(),
        extents: statistics.extents(),
        hot_pieces: statistics.hot_pieces(),
        forks: own(statistics.forks()) + unbooked.map_or(0, |unbooked| unbooked.count() as u64),
        repairs: own(statistics.repairs()),
        debt: own(statistics.debt()) + unbooked.map_or(0, Unbooked::owed),
        clean: statistics.clean(),
        price: statistics.price(),
    }
}

/// Returns the bytes of address space that show frozen memory, as of the last freeze or repair.
pub fn frozen_bytes() -> usize {
    registry::shared().map_or(0, |shared| shared.statistics.frozen_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a child that keeps its parent's id, which may be a grandchild's later.
    #[test]
    fn a_child_has_no_lock_of_its_parents() {
        let shared = registry::known().expect("memory");
        let locked = shared.lock();
        // SAFETY: 1. the child makes atomic accesses and ends; 2. nothing was frozen.
        match unsafe { fork() }.expect("forked") {
            Forked::Child => {
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(shared.is_locked())) };
            }
            Forked::Parent(child) => {
                let (_, status) = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
                    .expect("a child of ours")
                    .expect("it has ended");
                assert_eq!(status.exit_status(), Some(0));
            }
        }
        drop(locked);
    }

    /// Fails on: CPU time that is asked for after each fork.
    #[test]
    fn cpu_time_is_asked_for_only_after_forks_that_others_may_have_made_long() {
        let unasked = || unreachable!("the child may run instead of this thread");
        let all_the_time = |wall, clean, had| taken(wall, clean, || had, unasked);
        assert_eq!((all_the_time(1400, 1000, false), all_the_time(300, 1000, false)), (1400, 300));
        assert_eq!((all_the_time(1600, 1000, true), all_the_time(5, 0, true)), (1600, 5));
        assert_eq!((taken(1600, 1000, || false, || 900), taken(5, 0, || false, || 4)), (900, 4));
    }

    #[test]
    fn a_process_that_never_froze_has_nothing() {
        assert_eq!((status(), frozen_bytes()), (Status::default(), 0));
    }
}
