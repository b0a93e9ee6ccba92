//! Freezing in slices: the plan, one slice after the other, and how far it has come.
//!
//! A slice is a short round: it holds the process still, copies and shows parts of pieces until its time is up, and
//! lets everybody go on. [`engine`](crate::engine) says what keeps each slice right by itself.

use std::time::Duration;

use palimpsest_sys::Causes;
use palimpsest_sys::pages::pagemap::Pagemap;
use palimpsest_sys::threads::hold::World;
use palimpsest_sys::threads::own::Blocked;

use crate::clock::{CpuMoment, WallMoment};
use crate::engine::agenda::{Gathered, Gathering, LITTLE, Step, Where};
use crate::engine::budget::Stopped;
use crate::engine::errands::{Sender, take_answer};
use crate::engine::gather::Gatherer;
use crate::engine::own::{ask_c_library, exclude, is_home, note_home};
use crate::engine::piece::PIECE;
use crate::engine::places::Places;
use crate::engine::progress::{Progress, Stage, Waited};
use crate::engine::registry::{self, Locked, Shared};
use crate::engine::slice::{Left, Slice};
use crate::error::FreezeError;
use crate::hazards::{self, FileSize, Watcher, Work};
use crate::options::{self, OtherThreads};
use crate::own_stack::{NoStack, on_own_stack};
use crate::planning::{WATCHED, finish, is_long_look, plain, plan_rest};
use crate::report::{FrozenRange, Report};
use crate::rounds::lost_names;
use crate::tending::tend;
use crate::worth::{Basis, Worth};

/// What a child that still maps memory is first taken to cost: it is left in peace for four times as long, which is a
/// hundred times as long as a look at one piece takes. That doubles after every `UNTIL_DOUBLED` failures, up to a
/// limit. What is lost after the child's end is then a small part of its life.
const CHILD: Duration = Duration::from_micros(2500);
const UNTIL_DOUBLED: u32 = 64;
const MOST_DOUBLINGS: u32 = 10;

/// How long to leave a deputy to its errand before another look.
const ERRAND: Duration = Duration::from_millis(1);

/// Why what could not be gathered stays as it is beside other threads.
const KEPT_PLAIN: &str = "what could not be gathered is not frozen, since there are other threads, which must not be \
                          held still: allow that (`OtherThreads::Stop`, `--threads stop`)";

/// What slices do in this step.
const fn work(step: Step) -> Work {
    match step {
        Step::Gather(_) => Work::Gather,
        Step::Freeze => Work::Freeze,
    }
}

/// Takes one slice of a freeze under way ([`Pause::Within`](crate::Pause::Within)), and returns how far it has come.
/// Call it when the program has nothing else to do. Does nothing if nothing is left.
///
/// # Safety
///
/// 1. The contract of [`freeze`](crate::freeze) holds.
///
/// # Errors
///
/// [`FreezeError`]: nothing was done; a later call may succeed. After many refusals in a row the freeze ends.
pub unsafe fn freeze_slice() -> Result<Progress, FreezeError> {
    // SAFETY: 1. is this function's own. 2. the closure does nothing.
    unsafe { freeze_while(&mut || false) }
}

/// Takes at least one slice, and goes on while `is_idle` returns true after a slice: cheaper than as many calls of
/// [`freeze_slice`], and it divides frozen memory less. Where other threads must be held, it takes one slice, so that
/// they can go on.
///
/// # Safety
///
/// 1. The contract of [`freeze`](crate::freeze) holds.
/// 2. `is_idle` makes no system calls that wait, does not use the heap and changes no mappings: it runs while all
///    signals are blocked.
///
/// # Errors
///
/// As [`freeze_slice`].
pub unsafe fn freeze_while(is_idle: &mut dyn FnMut() -> bool) -> Result<Progress, FreezeError> {
    let Some(shared) = registry::shared().filter(|shared| is_wanted(shared)) else {
        return Ok(progress());
    };
    shared.progress.asked_in_wait();
    let slice = || {
        if !shared.progress.is_under_way() {
            // SAFETY: 1. is this function's own.
            return unsafe { tend(shared) };
        }
        // SAFETY: 1. and 2. are this function's own.
        unsafe { next(shared, Occasion::Wait, is_idle) }
    };
    match on_own_stack(slice) {
        Ok(taken) => taken,
        Err(none) => Err(without_stack(shared, none)),
    }
    .map(|()| progress())
}

/// Counts a slice that had no stack, and returns why.
pub(crate) fn without_stack(shared: &'static Shared, none: NoStack) -> FreezeError {
    // Whoever uses it is at work on the same memory for a moment.
    if none == NoStack::NoMemory {
        let _blocked = Blocked::all();
        if shared.progress.is_under_way() {
            refused(shared, &FreezeError::NoStack);
        } else {
            shared.tending.give_up();
        }
    }
    none.into()
}

/// Takes the slice that comes before a fork.
///
/// # Safety
///
/// 1. The contract of [`freeze`](crate::freeze) holds.
///
/// # Errors
///
/// As [`freeze_slice`].
pub(crate) unsafe fn before_fork(shared: &'static Shared) -> Result<(), FreezeError> {
    let waited = shared.progress.take_waited();
    let mut locked = shared.lock().ok_or(FreezeError::Busy)?;
    let gathers = matches!(locked.agenda().step(), Step::Gather(_));
    let is_slow = locked.agenda().end_interval();
    drop(locked);
    if shared.desk.is_busy() {
        return Ok(());
    }
    let occasion = match waited {
        _ if is_slow => Occasion::ForkAgain,
        // A program that waits between forks has slices there: a slice must not lengthen this fork.
        Waited::Gathered if gathers => return Ok(()),
        Waited::Gathered | Waited::Asked => Occasion::Fork,
        Waited::Not => Occasion::ForkAgain,
    };
    // SAFETY: 1. is this function's own. 2. it does nothing.
    unsafe { next(shared, occasion, &mut || false) }
}

/// When a slice is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Occasion {
    /// Before a fork.
    Fork,
    /// Before a fork, and there was no wait since the last one, or too little was gathered at waits.
    ForkAgain,
    /// The program has nothing else to do.
    Wait,
}

/// # Safety
///
/// 1. and 2. As [`freeze_while`].
unsafe fn next(
    shared: &'static Shared,
    occasion: Occasion,
    is_idle: &mut dyn FnMut() -> bool,
) -> Result<(), FreezeError> {
    // SAFETY: 1. and 2. are this function's own.
    let outcome = unsafe { slice(shared, occasion, is_idle) };
    if let Err(error) = &outcome
        && !matches!(error, FreezeError::Busy | FreezeError::BorrowedMemory { .. })
    {
        refused(shared, error);
    }
    outcome
}

/// Counts a refusal. After many in a row the freeze ends.
fn refused(shared: &'static Shared, error: &FreezeError) {
    if let Some(mut locked) = shared.lock()
        && locked.agenda().refused()
    {
        finish(&mut locked, Stage::Ended, Some(error.to_string()));
    }
}

/// # Safety
///
/// 1. and 2. As [`freeze_while`].
unsafe fn slice(
    shared: &'static Shared,
    occasion: Occasion,
    is_idle: &mut dyn FnMut() -> bool,
) -> Result<(), FreezeError> {
    if shared.desk.is_busy() {
        return Ok(());
    }
    let (begun, cpu) = (WallMoment::now(), CpuMoment::now());
    let (options, checked_for) = {
        let mut locked = shared.lock().ok_or(FreezeError::Busy)?;
        (locked.options(), work(locked.agenda().step()))
    };
    let checked = hazards::check_again(&options, checked_for)?;
    shared.progress.checked(checked.taken, options.pause);
    let started = WallMoment::now();
    let pagemap = Pagemap::open_briefly()?;
    let places = Places::open()?;
    ask_c_library();
    note_home();
    let mut locked = shared.lock().ok_or(FreezeError::Busy)?;
    if !shared.progress.is_under_way() || work(locked.agenda().step()) != checked_for {
        // Another thread has taken the last slice meanwhile, or the last that gathers.
        return Ok(());
    }
    if checked.watcher == Watcher::Open {
        finish(&mut locked, Stage::Ended, Some(WATCHED.to_owned()));
        return Ok(());
    }
    if let Step::Gather(gathering) = locked.agenda().step() {
        if occasion == Occasion::ForkAgain && hazards::may_freeze(&options).is_ok() {
            // Huge pages would be made while somebody waits for the fork. And such a program writes little between
            // forks: its memory is better frozen.
            return freeze_the_rest(&mut locked, gathering, None);
        }
        let before = locked.agenda().gathered();
        let (mut tables, agenda) = locked.tables_and_agenda()?;
        let errands = match (occasion, options.errands) {
            (Occasion::Wait, options::Errands::Deputy) => Sender::deputies(shared),
            // A deputy would copy what the child is about to show.
            _ => Sender::own(),
        };
        let gatherer = Gatherer {
            errands,
            tables: &mut tables,
            shared,
            agenda,
            pagemap: &pagemap,
            places: &places,
            started,
            looked: started.nanos().saturating_sub(begun.nanos()),
            is_idle,
        };
        let gathered = gatherer.play(gathering, &Blocked::all());
        drop(tables);
        if occasion == Occasion::Wait && locked.agenda().gathered() > before {
            shared.progress.gathered_in_wait();
        }
        match gathered {
            Ok(gathered) => settle_gathering(&mut locked, occasion, gathering, gathered),
            // For want of a descriptor, say: a refusal as if it had come before, and the next slice goes on.
            Err(Stopped::Mapped(error)) => return Err(error.into()),
            Err(Stopped::Room(error)) => return Err(error.into()),
            // If the rest cannot be frozen either, the freeze ends, and says why.
            Err(stopped) => {
                let _ = freeze_the_rest(&mut locked, gathering, Some(stopped));
            }
        }
        return Ok(());
    }
    if locked.agenda().is_headroom_old() {
        let left = hazards::headroom().mappings;
        locked.agenda().limit_mappings(left);
    }
    let world = match options.other_threads {
        OtherThreads::Stop => Some(World::prepare()?),
        OtherThreads::Refuse => None,
    };
    let is_shared;
    let played = {
        let (mut tables, agenda) = locked.tables_and_agenda()?;
        let _turn = registry::turn_for_slice().ok_or(FreezeError::Busy)?;
        let blocked = Blocked::all();
        let stopped = world.as_ref().map(World::stop_others).transpose()?;
        hazards::check_held_in_slice(&options, stopped.as_ref())?;
        exclude(&mut tables, world.as_ref(), stopped.as_ref())?;
        // While nobody else runs: a thread that forks or looks at the limit finds its own.
        let _file_size = FileSize::raise();
        // Counting all threads could wait for those that are ending, while everybody is held.
        is_shared = stopped.as_ref().is_some_and(|stopped| stopped.is_anyone_held());
        let mut may_go_on = || !is_shared && is_idle();
        let slice = Slice {
            tables: &mut tables,
            shared,
            agenda,
            pagemap: &pagemap,
            places: &places,
            started,
            looked: started.nanos().saturating_sub(begun.nanos()),
            is_idle: &mut may_go_on,
        };
        // SAFETY: 1. no other thread runs: all are held, or there were none and none can start; the rest is the
        // contract (1).
        unsafe { slice.play(&blocked) }
    };
    let worked = locked.agenda().worked(cpu.elapsed());
    let frozen = locked.agenda().frozen();
    if is_shared {
        put_off_slices(Duration::from_nanos(begun.elapsed()));
    }
    match played {
        Ok(Left::More) => {}
        Ok(Left::Nothing) => finish(&mut locked, Stage::Done, None),
        Err(stopped) => finish(&mut locked, Stage::Ended, Some(stopped.to_string())),
    }
    tracing::trace!(frozen, worked, "froze a slice of this process");
    Ok(())
}

/// Goes on after a slice that gathered: with more slices, with what is left, or not at all if that does not pay.
fn settle_gathering(locked: &mut Locked, occasion: Occasion, gathering: Gathering, gathered: Gathered) {
    let shared = locked.shared;
    match gathered {
        Gathered::More => return,
        Gathered::Waits { in_vain } if occasion == Occasion::Wait || !gathering.is_stuck() => {
            // Ever more rarely: the child may live as long as this process.
            return shared.progress.put_off(CHILD * (1 << (in_vain / UNTIL_DOUBLED).min(MOST_DOUBLINGS)));
        }
        // Since the last fork a child still maps everything found, and this fork will not change that.
        Gathered::Waits { .. } | Gathered::Done => {}
    }
    if gathering.place == Where::Everywhere
        && let Some(left) = plain(locked)
    {
        if left <= (left + locked.ledger().huge() * PIECE) / LITTLE {
            locked.agenda().freeze_the_rest();
            return finish(locked, Stage::Done, None);
        }
        // A fork of many pages should not also list them if the program may wait some day.
        let agenda = locked.agenda();
        if occasion == Occasion::Fork && is_long_look(left, agenda.budget()) && agenda.put_off_look() {
            return;
        }
    }
    // If it fails, the freeze ends, and says why.
    let _ = freeze_the_rest(locked, gathering, None);
}

/// Ends the gathering, which was stopped or is done, and plans to freeze what is left, where that pays.
fn freeze_the_rest(locked: &mut Locked, gathering: Gathering, stopped: Option<Stopped>) -> Result<(), FreezeError> {
    let (options, agenda) = (locked.options(), locked.agenda());
    let kept = hazards::may_freeze(&options).err().map(|error| match error {
        FreezeError::Threads { .. } => KEPT_PLAIN.to_owned(),
        other => format!("what could not be gathered is not frozen: {}", Causes(&other)),
    });
    let rest = match gathering.place {
        Where::Planned => Ok(agenda.planned.saturating_sub(agenda.gathered())),
        // Listing it would be in vain.
        Where::Everywhere if kept.is_some() => Ok(plain(locked).unwrap_or(0)),
        Where::Everywhere => plan_rest(locked),
    };
    let agenda = locked.agenda();
    agenda.freeze_the_rest();
    // Little memory beside huge pages costs neither forks nor repairs anything worth mentioning: it stays as it is.
    let is_much = rest.as_ref().is_ok_and(|rest| *rest > (rest + agenda.gathered()) / LITTLE);
    match &rest {
        Ok(rest) if is_much && locked.ledger().pays(*rest, options.pays) => {
            if let Some(kept) = kept {
                let reason = stopped.map_or(kept, |stopped| stopped.to_string());
                finish(locked, Stage::Ended, Some(reason));
            }
        }
        Ok(_) => finish(locked, Stage::Done, None),
        Err(error) => finish(locked, Stage::Ended, Some(error.to_string())),
    }
    rest.map(drop)
}

/// Whether a slice has something to do: for a freeze under way, or for memory that makes the next fork long.
fn is_wanted(shared: &Shared) -> bool {
    shared.progress.is_under_way() || shared.tending.is_wanted()
}

/// Returns how soon a thread that is about to wait should take a slice; `None` if this process itself has no freeze
/// under way. After seconds, up to an hour, if looking at all open descriptors before a slice takes longer than a pause
/// may. A child goes on when it forks, not when it waits: most live too short a time. Takes no lock. Makes no system
/// call, unless a [deputy](crate::Errands::Deputy) was sent whose answer was not taken yet.
pub fn next_slice() -> Option<Duration> {
    let shared = registry::shared().filter(|_| is_home())?;
    shared.progress.asked_in_wait();
    // Whether a slice is due or not: it counts as a process until it has been waited for.
    if shared.desk.is_busy() {
        return Some(ERRAND);
    }
    if !is_wanted(shared) {
        // Nobody asks for the answer any more; and a free desk is quickly looked at.
        let _ = take_answer(shared);
        return None;
    }
    let until = shared.progress.rests_until();
    Some(if until == 0 {
        Duration::ZERO
    } else {
        Duration::from_nanos(until.saturating_sub(WallMoment::now().nanos()))
    })
}

/// Reports that the last slice, of length `taken`, kept somebody waiting: puts off the next slice at a wait, so that
/// slices take at most a fifth of the time.
pub fn put_off_slices(taken: Duration) {
    if let Some(shared) = registry::shared() {
        shared.progress.put_off(taken);
    }
}

/// Waits for a [deputy](crate::Errands::Deputy) that is at work, for some milliseconds at most. Call it before this
/// process executes another program, which would have a child that it does not know, and before it installs a
/// seccomp filter. Async-signal-safe.
pub fn dismiss_deputy() {
    if let Some(shared) = registry::shared() {
        let _ = shared.desk.dismiss();
    }
}

/// Waits for a [deputy](crate::Errands::Deputy), too, if this process was refused a child or a thread (EAGAIN): the
/// deputy counts for `RLIMIT_NPROC` and `pids.max`. Returns whether there was one, so that another try is worth it.
/// Async-signal-safe.
pub fn make_room() -> bool {
    registry::shared().is_some_and(|shared| shared.desk.dismiss())
}

/// Returns how far a freeze in slices has come; [`Stage::None`] if there was none. Takes no lock.
pub fn progress() -> Progress {
    registry::shared().map_or_else(Progress::default, |shared| shared.progress.read())
}

impl Report {
    /// Updates how far the freeze has come, if it is one in slices. Changes nothing while another thread works on it.
    pub fn update(&mut self) {
        if self.progress.is_none() {
            return;
        }
        let Some(mut locked) = registry::shared().and_then(Shared::lock) else { return };
        self.progress = Some(locked.shared.progress.read());
        let agenda = locked.agenda();
        if let Some(rest) = agenda.told() {
            (self.extent, self.skipped) = (rest.extent, rest.skipped);
            (self.worth, self.left_worth) = (rest.worth, rest.left_worth);
            self.notes.extend(rest.notes);
        }
        let items = agenda.items().iter().filter(|item| item.frozen > 0);
        self.frozen = items
            .map(|item| FrozenRange { range: item.span.range(), bytes: item.frozen, lost_name: item.is_named })
            .collect();
        self.stopped = agenda.reason().map(str::to_owned);
        self.extents = locked.shared.statistics.extents();
        let saved = locked.ledger().saved();
        let per_fork = Duration::from_nanos(locked.agenda().brought(saved));
        let spent = locked.agenda().spent();
        drop(locked);
        let progress = self.progress.unwrap_or_default();
        self.taken = progress.taken;
        if progress.stage != Stage::UnderWay {
            // From here on it is known what that took. Savings are processor time, so this is, too.
            let once = Duration::from_nanos(spent);
            let has_any = !self.frozen.is_empty() || progress.gathered_bytes > 0;
            (self.worth, self.basis) = (has_any.then_some(Worth { once, per_fork }), Basis::Taken);
        }
        let lost = lost_names(self).filter(|note| !self.notes.contains(note));
        self.notes.extend(lost);
    }
}
