//! Freezing the whole process.

use std::time::Duration;

use palimpsest_sys::threads::child::shortest_fork;
use palimpsest_sys::threads::hold::World;
use palimpsest_sys::threads::own::Blocked;

use crate::clock::{Moment, nanos, share};
use crate::engine::Tables;
use crate::engine::agenda::Agenda;
use crate::engine::guards::open_pages;
use crate::engine::own::{exclude, find_rseq, note_home};
use crate::engine::registry::{self, Locked};
use crate::engine::round::{Done, Mode, Reach, Round};
use crate::error::FreezeError;
use crate::guard;
use crate::hazards;
use crate::options::{ExtentLen, Measure, Options, OtherThreads, Pause, Pays};
use crate::report::{FrozenRange, Report, SkippedRange, Verdict};
use crate::slices;
use crate::worth::Worth;

/// Forks that are timed, of which the shortest counts.
const TRIALS: usize = 5;

/// Replaces the private memory of this process by private mappings of sealed files with the same bytes, so that a fork
/// need not copy its page tables. A second freeze freezes what is new, and makes cheap again what was written to since.
///
/// Takes 0.4 to 1 ms for each MiB, and as much extra memory as one piece of 2 MiB. Children inherit frozen memory
/// and may freeze for themselves.
///
/// With [`Pause::Within`](crate::Pause::Within) it only plans, and memory counts as frozen from now on, although it is
/// frozen bit by bit: by [`fork()`](crate::fork()) and [`freeze_slice`](crate::freeze_slice).
///
/// If it ends early, for lack of descriptors or mappings, [`Report::stopped`] says so: what is frozen until then is
/// right, and the rest as it was.
///
/// # Safety
///
/// 1. From now on nobody discards frozen memory (`MADV_DONTNEED`, `MADV_FREE`), nor resizes or moves it (`mremap`), nor
///    has it wiped or guarded by `madvise`, but through [`guard`](crate::guard), or in ways that do not count on zeros
///    afterwards: the bytes of the freeze would come back. Whoever maps over frozen memory, changes its rights or its
///    protection key by system calls of its own tells the guards ([`replaced`](crate::guard::replaced),
///    [`protected`](crate::guard::protected), [`keyed`](crate::guard::keyed)): they and repairs map memory with what
///    they were told.
/// 2. Nothing in the kernel or a device holds on to pages of this process's private memory: no direct or asynchronous
///    I/O is under way, no buffer is registered (io_uring is looked for; RDMA, AF_XDP and VFIO are not).
/// 3. No process shares this one's address space (`vfork`, `CLONE_VM` without `CLONE_THREAD`), and nobody writes to its
///    memory from outside (a debugger, `process_vm_writev`) during the call.
/// 4. The first three hold as well for [`fork`](crate::fork) from now on, which repairs frozen memory now and then.
///
/// # Errors
///
/// See [`FreezeError`]; the process is as it was.
pub unsafe fn freeze(options: &Options) -> Result<Report, FreezeError> {
    match options.pause {
        // SAFETY: 1. to 4. are this function's.
        Pause::AtOnce => unsafe { freeze_at_once(options) },
        Pause::Within(budget) => slices::begin(options, budget),
    }
}

/// # Safety
///
/// As [`freeze`].
unsafe fn freeze_at_once(options: &Options) -> Result<Report, FreezeError> {
    hazards::check(options)?;
    let (before, unmeasured) = measure(options);
    let mut locked = registry::known()?.lock().ok_or(FreezeError::Busy)?;
    let started = Moment::now();
    slices::drop_plan(&mut locked);
    let mut report = played(&mut locked, options, Mode::Freeze, |tables, _, done| {
        let taken = started.elapsed();
        let report = told(tables, Mode::Freeze, done);
        if done.reach == Reach::Known {
            let looked = share(taken, done.looked, done.taken);
            tables.ledger().froze(report.frozen_bytes(), looked, taken, done.frozen);
        }
        report
    })?;
    locked.shared.statistics.begin();
    locked.remember(options.extent(ExtentLen::Bytes(report.extent)));
    drop(locked);
    report.notes.extend(lost_names(&report));
    report.notes.extend(let_core_dumps_have_files());
    report.fork_before = before;
    report.fork_after = measure(options).0;
    report.notes.extend(unmeasured);
    if let (Some(before), Some(after)) = (report.fork_before, report.fork_after) {
        // Without the lock the first fork tells.
        if let Some(mut locked) = registry::known()?.lock() {
            locked.ledger().measured(
                report.worth.map_or(0, |worth| nanos(worth.per_fork)),
                nanos(before),
                nanos(after),
            );
        }
        report.judge(before, after);
        if options.pays != Pays::Anyway && after >= before && report.frozen_bytes() > 0 {
            report.thawed(guard::thaw_all());
        }
    }
    tracing::debug!(frozen = report.frozen_bytes(), skipped = report.skipped_bytes(), "froze this process");
    Ok(report)
}

/// Tells what [`freeze`] would do, and changes nothing.
///
/// # Errors
///
/// As [`freeze`].
pub fn survey(options: &Options) -> Result<Report, FreezeError> {
    hazards::check(options)?;
    let (before, unmeasured) = measure(options);
    let mut locked = registry::known()?.lock().ok_or(FreezeError::Busy)?;
    let mut report = played(&mut locked, options, Mode::Survey, |tables, _, done| told(tables, Mode::Survey, done))?;
    report.fork_before = before;
    report.notes.extend(unmeasured);
    Ok(report)
}

/// Makes everything ready, plays a round, and hands the tables on, from which it can be told.
pub(crate) fn played<T>(
    locked: &mut Locked,
    options: &Options,
    mode: Mode,
    tell: impl FnOnce(&mut Tables<'_>, &mut Agenda, &Done) -> T,
) -> Result<T, FreezeError> {
    let (pagemap, guards) = open_pages()?;
    let headroom = hazards::headroom();
    find_rseq();
    if mode != Mode::Survey {
        note_home();
    }
    let world = match (mode, options.other_threads) {
        (Mode::Freeze | Mode::FreezeWithin(_) | Mode::Forget, OtherThreads::Stop) => Some(World::prepare()?),
        _ => None,
    };
    let shared = locked.shared;
    shared.tending.set_mappings(headroom.mappings);
    let (mut tables, agenda) = locked.tables_and_agenda()?;
    let done = {
        let blocked = Blocked::all();
        let stopped = world.as_ref().map(World::stop_others).transpose()?;
        exclude(&mut tables, world.as_ref(), stopped.as_ref())?;
        let round = Round { tables: &mut tables, shared, options, pagemap: &pagemap, guards: &guards, headroom };
        // SAFETY: 1. no other thread runs: all are held, or there were none and none can start (contract); the rest is
        // the caller's contract for a freeze. A survey changes nothing.
        unsafe { round.play(mode, &blocked) }?
    };
    Ok(tell(&mut tables, agenda, &done))
}

/// The report of a round.
pub(crate) fn told(tables: &Tables<'_>, mode: Mode, done: &Done) -> Report {
    let eligible = tables.eligible().iter().map(|one| FrozenRange {
        range: one.span.range(),
        bytes: if mode == Mode::Survey { one.populated.min(one.span.len()) } else { one.frozen },
        lost_name: one.is_named,
    });
    let skipped = tables.skipped().iter().map(|one| SkippedRange {
        range: one.span.range(),
        bytes: one.populated,
        reason: one.reason,
    });
    let expected = done.expected;
    Report {
        frozen: eligible.filter(|range| range.bytes > 0).collect(),
        skipped: skipped.collect(),
        extent: done.extent,
        extents: done.figures.extents,
        collapsed: done.figures.collapsed,
        fork_before: None,
        fork_after: None,
        verdict: Verdict::Unmeasured,
        worth: (expected.worth != Worth::default()).then_some(expected.worth),
        left_worth: (expected.left != Worth::default()).then_some(expected.left),
        peak_extra: done.figures.peak_extra,
        taken: done.taken,
        way: done.way,
        stopped: done.stopped.as_ref().map(ToString::to_string),
        notes: Vec::new(),
        progress: None,
    }
}

/// How long a fork takes, or a note why that is not known.
fn measure(options: &Options) -> (Option<Duration>, Option<String>) {
    match options.measure {
        Measure::Forks => match shortest_fork(TRIALS) {
            Ok(shortest) => (Some(shortest), None),
            Err(reason) => (None, Some(format!("forks were not timed: {reason}"))),
        },
        Measure::Nothing => (None, None),
    }
}

/// Tells of names that are gone.
pub(crate) fn lost_names(report: &Report) -> Option<String> {
    let count = report.frozen.iter().filter(|range| range.lost_name).count();
    (count > 0).then(|| format!("{count} ranges had names (PR_SET_VMA_ANON_NAME), which frozen memory cannot have"))
}

/// Sets bit 2 of coredump_filter (`core(5)`), so that core dumps include frozen memory; returns a note if that changed
/// it. Leaves it alone where anonymous private memory is not dumped either (bit 0).
pub(crate) fn let_core_dumps_have_files() -> Option<String> {
    const PATH: &str = "/proc/self/coredump_filter";
    const PRIVATE_ANONYMOUS: u64 = 1;
    const PRIVATE_FILES: u64 = 1 << 2;
    let text = std::fs::read_to_string(PATH).ok()?;
    let filter = u64::from_str_radix(text.trim(), 16).ok()?;
    if filter & PRIVATE_FILES != 0 || filter & PRIVATE_ANONYMOUS == 0 {
        return None;
    }
    Some(match std::fs::write(PATH, format!("{:#x}", filter | PRIVATE_FILES)) {
        Ok(()) => "core dumps will hold private mappings of files (coredump_filter bit 2), since frozen memory is such"
            .to_owned(),
        Err(error) => {
            format!("core dumps will lack frozen memory: {PATH} cannot be written ({error}); set bit 2 of it")
        }
    })
}
