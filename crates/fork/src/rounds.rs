//! What every freeze shares: playing a round, and reporting what came of it.

use std::ffi::CStr;

use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::pages::pagemap::Pagemap;
use palimpsest_sys::threads::hold::World;
use palimpsest_sys::threads::own::Blocked;

use crate::engine::Tables;
use crate::engine::agenda::Agenda;
use crate::engine::own::{ask_c_library, exclude, note_home};
use crate::engine::registry::{self, Locked};
use crate::engine::round::{Done, Look, Mode, Reach, Round};
use crate::error::FreezeError;
use crate::hazards;
use crate::options::{Options, OtherThreads};
use crate::report::{FrozenRange, Report, SkippedRange, Verdict};
use crate::worth::{Basis, Worth};

/// What a report says of a plan that was made from samples.
const SAMPLED: &str = "planned from samples of memory: figures are estimates until all is frozen, and of what is left \
                       only stacks, private pages of files and large mappings are told";

/// Prepares and plays a round. Returns what it did, and the tables that tell the rest.
pub(crate) fn played<T>(
    locked: &mut Locked,
    options: &Options,
    mode: Mode,
    tell: impl FnOnce(&mut Tables<'_>, &mut Agenda, &Done) -> T,
) -> Result<T, FreezeError> {
    let pagemap = Pagemap::open_briefly()?;
    let headroom = hazards::headroom();
    ask_c_library();
    if !mode.only_looks() {
        note_home();
    }
    let world = match (mode, options.other_threads) {
        (Mode::Survey, _) | (_, OtherThreads::Refuse) => None,
        (_, OtherThreads::Stop) => Some(World::prepare()?),
    };
    let shared = locked.shared;
    shared.tending.set_mappings(headroom.mappings);
    let (mut tables, agenda) = locked.tables_and_agenda()?;
    let done = {
        let _turn = match mode {
            // Changes nothing.
            Mode::Survey => None,
            Mode::Glance { .. } => Some(registry::turn_for_slice().ok_or(FreezeError::Busy)?),
            _ => Some(registry::turn_to_freeze().ok_or(FreezeError::Busy)?),
        };
        let blocked = Blocked::all();
        let stopped = world.as_ref().map(World::stop_others).transpose()?;
        match mode {
            Mode::Glance { .. } => hazards::check_held_in_slice(options, stopped.as_ref())?,
            _ => hazards::check_held(options, stopped.as_ref())?,
        }
        exclude(&mut tables, world.as_ref(), stopped.as_ref())?;
        let round = Round { tables: &mut tables, shared, options, pagemap: &pagemap, headroom };
        // SAFETY: 1. no other thread runs: all are held, or there were none and none can start (contract); the rest is
        // the caller's contract for a freeze. A survey only looks.
        unsafe { round.play(mode, &blocked) }?
    };
    Ok(tell(&mut tables, agenda, &done))
}

/// Looks at all mappings: at samples, if there are `anonymous` bytes of which a look at everything would take long, and
/// if samples tell enough; else at everything, holding nobody. Changes nothing.
///
/// The contract of a freeze holds if `anonymous` is given.
pub(crate) fn surveyed<T>(
    locked: &mut Locked,
    options: &Options,
    anonymous: Option<usize>,
    mut tell: impl FnMut(&mut Tables<'_>, &mut Agenda, &Done) -> T,
) -> Result<T, FreezeError> {
    if let Some(anonymous) = anonymous {
        let glanced = played(locked, options, Mode::Glance { anonymous }, |tables, agenda, done| {
            (done.reach != Reach::Unclear).then(|| tell(tables, agenda, done))
        });
        match glanced {
            Ok(Some(told)) => return Ok(told),
            Ok(None) => {}
            // What kept it from holding the others, say, need not keep a look from being made.
            Err(error) => tracing::debug!(%error, "no samples are looked at"),
        }
    }
    played(locked, options, Mode::Survey, tell)
}

/// Makes the report of a round.
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
        basis: Basis::Expected,
        left_worth: (expected.left != Worth::default()).then_some(expected.left),
        peak_extra: done.figures.peak_extra,
        taken: done.taken,
        way: done.way,
        stopped: done.stopped.as_ref().map(ToString::to_string),
        notes: if done.look == Look::Samples { vec![SAMPLED.to_owned()] } else { Vec::new() },
        progress: None,
    }
}

/// Returns a note on names that are gone.
pub(crate) fn lost_names(report: &Report) -> Option<String> {
    let count = report.frozen.iter().filter(|range| range.lost_name).count();
    (count > 0).then(|| format!("{count} ranges had names (PR_SET_VMA_ANON_NAME), which frozen memory cannot have"))
}

/// Sets bit 2 of coredump_filter (`core(5)`), so that core dumps include frozen memory; returns a note if that changed
/// it. Leaves it alone where anonymous private memory is not dumped either (bit 0).
pub(crate) fn let_core_dumps_have_files() -> Option<String> {
    const PATH: &CStr = c"/proc/self/coredump_filter";
    const PRIVATE_ANONYMOUS: u64 = 1;
    const PRIVATE_FILES: u64 = 1 << 2;
    let mut text = [0; 32];
    let text = BriefFile::read_short(PATH, &mut text).ok()?;
    let filter = u64::from_str_radix(str::from_utf8(text).ok()?.trim(), 16).ok()?;
    if filter & PRIVATE_FILES != 0 || filter & PRIVATE_ANONYMOUS == 0 {
        return None;
    }
    let path = PATH.to_str().ok()?;
    Some(match std::fs::write(path, format!("{:#x}", filter | PRIVATE_FILES)) {
        Ok(()) => "core dumps will hold private mappings of files (coredump_filter bit 2), since frozen memory is such"
            .to_owned(),
        Err(error) => {
            format!("core dumps will lack frozen memory: {path} cannot be written ({error}); set bit 2 of it")
        }
    })
}
