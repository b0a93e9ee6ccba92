//! Plans of freezes in slices: what there is to do, whether it pays, and how a freeze ends.

use std::time::Duration;

use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::pages::pagemap::Pagemap;

use crate::clock::{CpuMoment, WallMoment, nanos};
use crate::engine::agenda::{Step, Terms, Where};
use crate::engine::budget::Stopped;
use crate::engine::glance;
use crate::engine::own::note_home;
use crate::engine::piece::PIECE;
use crate::engine::places::Places;
use crate::engine::progress::{self, Stage};
use crate::engine::registry::{self, Locked, Shared};
use crate::engine::round::{Mode, Reach};
use crate::error::FreezeError;
use crate::hazards::{self, Checked, HugePages, Watcher, Work};
use crate::options::{Options, Pages, Pause, Pays};
use crate::report::Report;
use crate::rounds::{let_core_dumps_have_files, surveyed, told};

/// Why there are no slices while a userfaultfd is open.
pub(crate) const WATCHED: &str = "a userfaultfd is open, and what is registered with it cannot be told in a slice: \
                                  close it, or freeze in one go (`Pause::AtOnce`, `--pause none`)";

/// Why there are hardly any slices at waits.
const LONG_LOOK: &str = "slices are taken at forks, and hardly ever in between: to look at all open descriptors takes \
                         too long";

/// Most and least time in nanoseconds that listing all mappings takes for each MiB of base pages.
const LOOK: u64 = 40_000;
const LEAST_LOOK: u64 = 100_000;

/// What a glance takes at most, about.
const GLANCE: Duration = Duration::from_millis(2);

/// What slices do first, if the kernel lets them.
const fn first_work(options: &Options) -> Work {
    match (options.pages, options.pays) {
        (Pages::Gather, Pays::Within(_)) => Work::Gather,
        _ => Work::Freeze,
    }
}

/// Plans a freeze in slices. Leaves memory as it is.
pub(crate) fn begin(options: &Options, budget: Duration) -> Result<Report, FreezeError> {
    hazards::check_for(options, first_work(options))?;
    let look = || {
        let before = CpuMoment::now();
        Watcher::find().map(|watcher| Checked { watcher, taken: before.elapsed() })
    };
    let mut checked = look()?;
    if progress::is_long(checked.taken, options.pause) {
        // Slices would hardly be taken between forks: a busy machine alone is no reason.
        let first = checked.taken;
        checked = look()?;
        checked.taken = checked.taken.min(first);
    }
    begin_checked(options, budget, checked)
}

/// Plans in a process that may be frozen.
fn begin_checked(options: &Options, budget: Duration, checked: Checked) -> Result<Report, FreezeError> {
    let Checked { watcher, taken: walked } = checked;
    let headroom = hazards::headroom();
    let mut locked = registry::known()?.lock().ok_or(FreezeError::Busy)?;
    locked.drop_plan();
    let saved = locked.ledger().saved();
    locked.agenda().spared_before(saved);
    let shared = locked.shared;
    note_home();
    let way = Pagemap::open_briefly()?.way();
    let stopped = match headroom.huge {
        HugePages::Welcome => why_no_list(&mut locked, options, budget)?,
        // Nothing is gathered anyway.
        HugePages::Unwanted => None,
    };
    let wish = (if stopped.is_some() { Pages::Base } else { options.pages }, options.pays);
    if let Some(anonymous) = unseen(budget) {
        locked.ledger().begin_round(options.pays, headroom.huge, |_| Ok(())).map_err(FreezeError::from)?;
        let step = locked.ledger().first_step(wish, Where::Everywhere);
        if step != Step::Freeze && watcher == Watcher::None {
            let (pages, mappings) = (options.pages, headroom.mappings);
            locked.agenda().begin_unseen(anonymous, Terms { budget, extent: 0, pages, mappings, looked: 0, step });
            locked.remember(*options);
            shared.statistics.begin();
            shared.statistics.count_round();
            shared.progress.begin(anonymous, 0);
            shared.progress.checked_first(walked, options.pause);
            drop(locked);
            let notes = let_core_dumps_have_files().into_iter().chain(hazards::left_out(options)).collect();
            return Ok(Report { progress: Some(shared.progress.read()), notes, ..Report::unseen(way) });
        }
    }
    let mut refused = hazards::may_freeze(options).err();
    let glanced = unglanced(shared, options, budget).filter(|_| refused.is_none() && watcher == Watcher::None);
    // Other threads may change mappings while these are read.
    shared.left_alone.begin();
    let (started, wall) = (CpuMoment::now(), WallMoment::now());
    let planned = surveyed(&mut locked, options, glanced, |tables, agenda, done| {
        let looked = started.elapsed();
        let step = tables.ledger().first_step(wish, Where::Planned);
        if let Some(error) = refused.take_if(|_| step == Step::Freeze) {
            return Err(error);
        }
        let (extent, pages, mappings) = (done.extent, options.pages, headroom.mappings);
        let terms = Terms { budget, extent, pages, mappings, looked, step };
        let report = told(tables, Mode::Freeze, done);
        let planned = if done.reach == Reach::Known { tables.plan_slices(agenda, terms) } else { 0 };
        Ok((report, planned))
    });
    let (mut report, planned) = planned.flatten().inspect_err(|_| shared.left_alone.end())?;
    shared.statistics.begin();
    // Forks are accounted for even if nothing pays yet: the program may grow.
    shared.statistics.count_round();
    shared.progress.begin(planned, wall.elapsed());
    shared.progress.checked_first(walked, options.pause);
    shared.left_alone.narrow(locked.agenda().bounds());
    if planned == 0 {
        locked.ledger().refused(started.elapsed().max(LEAST_LOOK));
        locked.ledger().plans_for(anonymous().unwrap_or(0));
        shared.left_alone.end();
        shared.tending.begin(WallMoment::now().nanos());
        shared.progress.set(Stage::Done);
    }
    locked.remember(*options);
    if planned > 0 && watcher == Watcher::Open {
        finish(&mut locked, Stage::Ended, Some(WATCHED.to_owned()));
        report.stopped = Some(WATCHED.to_owned());
    }
    drop(locked);
    report.notes.extend(stopped.map(|stopped| format!("nothing is gathered: {stopped}")));
    if planned > 0 && shared.progress.is_for_forks() {
        report.notes.push(LONG_LOOK.to_owned());
    }
    if planned > 0 {
        report.notes.extend(let_core_dumps_have_files());
    }
    report.notes.extend(hazards::left_out(options));
    report.progress = Some(shared.progress.read());
    Ok(report)
}

/// Returns why slices of a freeze that wants to gather cannot list mappings, if they must and these are too many.
/// Refuses a process with other threads that must not be held, for which nothing else could be done.
fn why_no_list(locked: &mut Locked, options: &Options, budget: Duration) -> Result<Option<Stopped>, FreezeError> {
    if first_work(options) == Work::Freeze {
        return Ok(None);
    }
    match locked.tables()?.list(&Places::open()?, budget) {
        Err(Stopped::List { most }) => match hazards::may_freeze(options) {
            Err(FreezeError::Threads { count }) => Err(FreezeError::ManyMappings { count, most }),
            other => other.map(|_| Some(Stopped::List { most })),
        },
        // If it cannot be read at all, the look at all mappings, or the first slice, says so.
        Ok(()) | Err(_) => Ok(None),
    }
}

/// Plans anew in place of a repair that is due, if slices have repaired all they can: what makes forks dear then is
/// memory that has come since, which slices freeze or gather, too. Returns `None` otherwise.
pub(crate) fn plan_anew(shared: &'static Shared) -> Option<Result<(), FreezeError>> {
    let mut locked = shared.lock()?;
    let (options, is_for_round) = (locked.options(), locked.ledger().is_for_round());
    drop(locked);
    let Pause::Within(budget) = options.pause else { return None };
    let is_any_frozen = shared.statistics.frozen_bytes() > 0;
    let is_repaired_in_slices = || shared.has_room() && matches!(Places::open(), Ok(Places::Asked(_)));
    if is_any_frozen && (is_for_round || !is_repaired_in_slices()) {
        return None;
    }
    let started = CpuMoment::now();
    // Not all is looked at anew: whoever was frozen once is about to fork, and nobody is held yet.
    let checked = hazards::check_again(&options, first_work(&options));
    if is_any_frozen && matches!(&checked, Ok(Checked { watcher: Watcher::Open, .. })) {
        return None;
    }
    let planned = checked.and_then(|checked| begin_checked(&options, budget, checked));
    // A plan in vain has said so itself.
    if planned.is_err()
        && let Some(mut locked) = shared.lock()
    {
        // Another look must be worth twice as much.
        locked.ledger().refused(started.elapsed());
    }
    Some(planned.map(drop))
}

/// Returns the bytes of anonymous memory if listing their mappings takes longer than a slice.
fn unseen(budget: Duration) -> Option<usize> {
    anonymous().filter(|bytes| is_long_look(*bytes, budget))
}

/// Returns the bytes of anonymous memory if listing their mappings takes longer than a slice, and than a glance, which
/// is possible.
fn unglanced(shared: &Shared, options: &Options, budget: Duration) -> Option<usize> {
    let anonymous = anonymous()?;
    // A look at everything walks frozen memory, too.
    if !is_long_look(anonymous.saturating_add(shared.statistics.frozen_bytes()), budget.max(GLANCE)) {
        return None;
    }
    let is_possible = || matches!(Places::open(), Ok(Places::Asked(_))) && !shared.map.is_in_doubt();
    // A deputy has the lock of all mappings.
    let is_wise = || glance::is_harmless() && !shared.desk.is_busy() && hazards::may_move_pages(options);
    (is_possible() && is_wise()).then_some(anonymous)
}

/// Whether listing mappings with this many bytes in base pages takes longer than a slice.
pub(crate) fn is_long_look(bytes: usize, budget: Duration) -> bool {
    (bytes >> 20) as u64 * LOOK > nanos(budget)
}

/// Returns the bytes of anonymous memory.
pub(crate) fn anonymous() -> Option<usize> {
    // Seven numbers.
    let mut text = [0; 160];
    let text = BriefFile::read_short(c"/proc/thread-self/statm", &mut text).ok()?;
    let mut pages = str::from_utf8(text).ok()?.split(' ').skip(1).map_while(|number| number.parse::<usize>().ok());
    let (resident, of_files) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(of_files) * rustix::param::page_size())
}

/// Returns the bytes of anonymous memory that is not in huge pages of ours.
pub(crate) fn plain(locked: &mut Locked) -> Option<usize> {
    let huge = locked.ledger().huge() * PIECE;
    anonymous().map(|anonymous| anonymous.saturating_sub(huge))
}

/// Plans what was not gathered. Returns how many bytes that is.
pub(crate) fn plan_rest(locked: &mut Locked) -> Result<usize, FreezeError> {
    let (shared, options) = (locked.shared, locked.options());
    let Pause::Within(budget) = options.pause else { return Ok(0) };
    let agenda = locked.agenda();
    let (gathered, gathering, beside) = (agenda.gathered(), agenda.gathering(), agenda.beside());
    let headroom = hazards::headroom();
    shared.left_alone.begin();
    let (started, wall) = (CpuMoment::now(), WallMoment::now());
    let glanced = unglanced(shared, &options, budget).filter(|_| hazards::may_freeze(&options).is_ok());
    let (planned, report) = surveyed(locked, &options, glanced, |tables, agenda, done| {
        let (extent, pages, mappings) = (done.extent, options.pages, headroom.mappings);
        let terms = Terms { budget, extent, pages, mappings, looked: started.elapsed(), step: Step::Freeze };
        let planned = if done.reach == Reach::Known { tables.plan_slices(agenda, terms) } else { 0 };
        agenda.gathered_before(gathered, gathering, beside);
        (planned, told(tables, Mode::Freeze, done))
    })?;
    shared.left_alone.narrow(locked.agenda().bounds());
    shared.progress.planned(gathered + planned, wall.elapsed());
    locked.agenda().tells(report);
    Ok(planned)
}

/// Ends the freeze: forks are accounted for from now on.
pub(crate) fn finish(locked: &mut Locked, stage: Stage, reason: Option<String>) {
    let shared = locked.shared;
    let agenda = locked.agenda();
    let (bytes, looked, taken) = (agenda.frozen(), agenda.looked(), agenda.freezing());
    let (gathered, gathering, beside) = (agenda.gathered(), agenda.gathering(), agenda.beside());
    if let Some(reason) = reason {
        agenda.end(reason);
    }
    let frozen = locked.frozen();
    let ledger = locked.ledger();
    if bytes == 0 && gathered == 0 {
        // The next one must be worth twice as much.
        ledger.refused(looked.saturating_add(gathering).max(LEAST_LOOK));
    } else {
        ledger.gathered(gathered, gathering, beside);
        // Nothing was listed this time; the next time it may have to be.
        let (looked, taken) = (looked.max(LEAST_LOOK), looked.saturating_add(taken));
        // What forks take without writes is known if most of it was frozen before.
        if bytes > 0 && frozen.bytes / 2 >= bytes {
            ledger.froze_more(bytes, looked, taken, frozen);
        } else {
            ledger.froze(bytes, looked, taken, frozen);
        }
    }
    ledger.plans_for(anonymous().unwrap_or(0));
    shared.left_alone.end();
    shared.tending.begin(WallMoment::now().nanos());
    shared.progress.set(stage);
}
