//! Slices between forks: put what makes the next fork long into huge pages, or freeze it again. See
//! [`engine`](crate::engine).

use std::time::Duration;

use palimpsest_sys::pages::pagemap::{Pagemap, ScanWay};
use palimpsest_sys::threads::hold::World;
use palimpsest_sys::threads::own::Blocked;

use crate::clock::{CpuMoment, WallMoment};
use crate::engine::Ledger;
use crate::engine::budget::Stopped;
use crate::engine::errands::Sender;
use crate::engine::mending::Mender;
use crate::engine::own::{ask_c_library, exclude};
use crate::engine::places::Places;
use crate::engine::progress::Waited;
use crate::engine::registry::{self, Shared};
use crate::engine::tender::{Pass, Played, Tender};
use crate::engine::tending::Tended;
use crate::error::FreezeError;
use crate::guard;
use crate::hazards::{self, FileSize, Watcher, Work};
use crate::options::{self, OtherThreads};
use crate::planning;

/// Returns what a child that still maps the memory, and has lived for so many nanoseconds, is taken to cost: it is left
/// in peace for four times as long. That is a quarter of its life, ten seconds at most: to look at the memory all the
/// time would use up the time for work on it.
fn cost_of_child(life: u64) -> Duration {
    Duration::from_nanos(life / 16).clamp(Duration::from_millis(10), Duration::from_millis(2500))
}

/// What a deputy takes for a piece, in CPU nanoseconds.
const ERRAND: u64 = 500_000;

/// Takes a slice.
///
/// # Safety
///
/// 1. The contract of [`freeze`](crate::freeze).
///
/// # Errors
///
/// [`FreezeError`]; nothing was done, and nothing will be until the next fork.
pub(crate) unsafe fn tend(shared: &'static Shared) -> Result<(), FreezeError> {
    // SAFETY: 1. is this function's own.
    let outcome = unsafe { slice(shared, PaidBy::Time) };
    match outcome {
        // So a due repair need not take a slice at the next fork.
        Ok(()) => shared.progress.gathered_in_wait(),
        // Another thread is at work on the same memory for a moment.
        Err(FreezeError::Busy) => {}
        Err(_) => give_up(shared),
    }
    outcome
}

/// Takes no slices until the next fork, nor goes on with a repair in slices.
fn give_up(shared: &'static Shared) {
    if let Some(mut locked) = shared.lock() {
        locked.ledger().breaks_off();
    }
    shared.tending.give_up();
}

/// What pays for a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PaidBy {
    /// A share of the time between forks.
    Time,
    /// The debt that would pay for a repair.
    Debt,
}

/// Takes a slice in place of a repair that is due, as long as slices find something to do; returns `None` once they do
/// not, and while a repair is being made: each fork makes a part of it, whatever slices do meanwhile.
///
/// # Safety
///
/// As [`tend`].
pub(crate) unsafe fn instead_of_repair(shared: &'static Shared) -> Option<Result<(), FreezeError>> {
    let mut locked = shared.lock()?;
    let (pause, errands) = (locked.options().pause, locked.options().errands);
    // Where the map is full, only rounds write to it.
    let is_full = shared.statistics.frozen_bytes() > 0 && !shared.has_room();
    if is_full || locked.ledger().is_repairing() {
        return None;
    }
    drop(locked);
    let waited = shared.progress.take_waited();
    if shared.desk.is_busy() {
        return Some(Ok(()));
    }
    if !shared.tending.make_way(pause) {
        return None;
    }
    if leaves_to_waits(waited, errands, shared.statistics.frozen_bytes()) {
        return Some(Ok(()));
    }
    // SAFETY: 1. is this function's own.
    let outcome = unsafe { slice(shared, PaidBy::Debt) };
    if matches!(&outcome, Err(error) if !matches!(error, FreezeError::Busy)) {
        give_up(shared);
    }
    Some(outcome)
}

/// Whether a due repair is left to slices at waits: deputies do the work there, and a slice would lengthen this fork.
/// But a program that is never idle leaves no time for them.
fn leaves_to_waits(waited: Waited, errands: options::Errands, frozen_bytes: usize) -> bool {
    waited == Waited::Gathered && errands == options::Errands::Deputy && frozen_bytes == 0
}

/// # Safety
///
/// As [`tend`].
unsafe fn slice(shared: &'static Shared, paid_by: PaidBy) -> Result<(), FreezeError> {
    if shared.desk.is_busy() {
        return Ok(());
    }
    let (started, cpu) = (WallMoment::now(), CpuMoment::now());
    let options = shared.lock().ok_or(FreezeError::Busy)?.options();
    // If nothing is frozen, there are only huge pages, for which nobody need be held.
    let holds = shared.statistics.frozen_bytes() > 0;
    let checked = hazards::check_again(&options, if holds { Work::Freeze } else { Work::Gather })?;
    shared.progress.checked(checked.taken, options.pause);
    // The flags of mappings are not read again.
    if checked.watcher == Watcher::Open {
        give_up(shared);
        return Ok(());
    }
    let looked = WallMoment::now();
    let pagemap = Pagemap::open_briefly()?;
    let places = Places::open()?;
    ask_c_library();
    let world = match options.other_threads {
        OtherThreads::Stop if holds => Some(World::prepare()?),
        _ => None,
    };
    let mut locked = shared.lock().ok_or(FreezeError::Busy)?;
    if holds != (shared.statistics.frozen_bytes() > 0) {
        // Another thread has frozen or thawed meanwhile.
        return Err(FreezeError::Busy);
    }
    let (is_shared, beside);
    let sends = !holds && paid_by == PaidBy::Time && options.errands == options::Errands::Deputy;
    let played = if holds {
        let mut tables = locked.tables()?;
        let _turn = registry::turn_for_slice().ok_or(FreezeError::Busy)?;
        let blocked = Blocked::all();
        let stopped = world.as_ref().map(World::stop_others).transpose()?;
        hazards::check_held_in_slice(&options, stopped.as_ref())?;
        exclude(&mut tables, world.as_ref(), stopped.as_ref())?;
        is_shared = stopped.as_ref().is_some_and(|stopped| stopped.is_anyone_held());
        beside = 0;
        // While nobody else runs, as in slices that freeze.
        let _file_size = FileSize::raise();
        let (tables, options, places) = (&mut tables, &options, &places);
        let pagemap = &pagemap;
        let tender = Tender { tables, shared, options, pagemap, places, started: looked };
        // SAFETY: 1. no other thread runs: all are held, or there were none and none can start; the rest is the
        // contract (1).
        unsafe { tender.play(&blocked) }
    } else {
        is_shared = false;
        let mut tables = locked.tables()?;
        let _blocked = Blocked::all();
        let (tables, options, pagemap, places) = (&mut tables, &options, &pagemap, &places);
        let errands = if sends { Sender::deputies(shared) } else { Sender::own() };
        beside = errands.spent();
        let mender = Mender { tables, shared, options, pagemap, places, errands, begun: started, started: cpu };
        let played = mender.play().map_err(Stopped::from);
        played.map(|(tended, worked)| Played { tended, worked, ..Played::NOTHING })
    };
    let taken = cpu.elapsed();
    let Played { tended, worked, refrozen, pass, is_for_round } = played.unwrap_or(Played::NOTHING);
    locked.ledger().worked_between_forks(taken, beside);
    let paid = if paid_by == PaidBy::Debt { taken } else { 0 };
    let is_repair = locked.ledger().repaired_in_slice(taken, refrozen, paid);
    if !is_repair && worked > 0 && (paid_by == PaidBy::Debt || sends) {
        // Else a repair would do at a fork what deputies have done before it.
        let deputies = if sends { ERRAND.saturating_mul(worked as u64) } else { 0 };
        locked.ledger().tended(taken.saturating_add(deputies));
    }
    if is_for_round {
        locked.ledger().leaves_to_round();
    }
    let is_over = matches!(pass, Pass::Over(_));
    let is_left = is_over && is_anything_left(locked.ledger());
    // It must not wait until there is nothing to do for slices.
    let owed = if is_left { u64::MAX } else { locked.ledger().debt() };
    match pass {
        Pass::Over(frozen) if is_repair => {
            locked.ledger().passed(frozen);
            shared.statistics.count_repair();
        }
        Pass::UnderWay if tended == Tended::Done => locked.ledger().breaks_off(),
        Pass::UnderWay | Pass::Over(_) => {}
    }
    let has_lost = is_repair && is_over && options.pays != options::Pays::Anyway && locked.ledger().has_lost();
    drop(locked);
    if has_lost && let Err(errno) = guard::thaw_all() {
        tracing::debug!(%errno, "frozen memory that does not pay is not thawed");
    }
    match pagemap.way() {
        ScanWay::Ioctl => shared.tending.took((taken, owed), worked, tended),
        ScanWay::Entries => shared.tending.took_perhaps((taken, owed), worked, tended),
    }
    if matches!(tended, Tended::Later { .. }) {
        shared.progress.put_off(cost_of_child(shared.tending.since_fork(WallMoment::now().nanos())));
    } else if is_shared {
        shared.progress.put_off(Duration::from_nanos(started.elapsed()));
    }
    tracing::trace!(worked, micros = taken / 1000, ?tended, "put hot memory into huge pages, or froze it again");
    Ok(())
}

/// Whether there is anything that slices which repair do not come by, and that may make forks dear.
fn is_anything_left(ledger: &Ledger) -> bool {
    ledger.is_for_round() || planning::anonymous().is_some_and(|anonymous| ledger.has_grown(anonymous))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Errands::{Deputy, Own};

    /// Fails on: a look each few milliseconds at the memory of a child that lives for hours.
    #[test]
    fn children_are_left_in_peace_for_a_part_of_their_lives() {
        let millis = |life: u64| cost_of_child(life * 1_000_000).as_millis();
        assert_eq!([0, 160, 1600, 3_600_000].map(millis), [10, 10, 100, 2500]);
    }

    /// Fails on: a slice at a fork, which lengthens it, in place of one at the waits before and after it.
    #[test]
    fn no_fork_of_who_has_slices_at_waits_does_what_deputies_do() {
        assert!(leaves_to_waits(Waited::Gathered, Deputy, 0));
        for (waited, errands, frozen) in [
            (Waited::Not, Deputy, 0),
            (Waited::Asked, Deputy, 0),
            (Waited::Gathered, Own, 0),
            (Waited::Gathered, Deputy, 1),
        ] {
            assert!(!leaves_to_waits(waited, errands, frozen), "{waited:?}, {errands:?}, {frozen}");
        }
    }
}
