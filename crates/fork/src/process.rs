//! Freezes the whole process.

use std::time::Duration;

use palimpsest_sys::threads::child::shortest_fork;

use crate::clock::{CpuMoment, nanos, share};
use crate::engine::own::stay_loaded;
use crate::engine::registry;
use crate::engine::round::{Mode, Reach};
use crate::error::FreezeError;
use crate::guard;
use crate::hazards;
use crate::options::{Measure, Options, Pause, Pays};
use crate::planning;
use crate::report::Report;
use crate::rounds::{let_core_dumps_have_files, lost_names, played, told};

/// Forks that are timed; the shortest counts.
const TRIALS: usize = 5;

/// Replaces this process's private memory by private mappings of sealed files with the same bytes, so that a fork need
/// not copy its page tables. A second freeze freezes what is new, and repairs what was written to since.
///
/// Takes 0.4 to 1 ms for each MiB, and one piece of 2 MiB of extra memory. Children inherit frozen memory and may
/// freeze for themselves.
///
/// With [`Pause::Within`](crate::Pause::Within) it only plans: memory counts as frozen from now on, and
/// [`fork()`](crate::fork()) and [`freeze_slice`](crate::freeze_slice) freeze it bit by bit.
///
/// If it ends early for lack of descriptors or mappings, [`Report::stopped`] says so: what was frozen until then is
/// right, and the rest is unchanged.
///
/// # Safety
///
/// 1. From now on nobody discards frozen memory (`MADV_DONTNEED`, `MADV_FREE`), resizes or moves it (`mremap`), or has
///    it wiped or guarded by `madvise`, except through [`guard`](crate::guard), or in ways that do not count on zeros
///    afterwards: the bytes of the freeze would come back. Whoever maps over frozen memory, or changes its rights or
///    its protection key, by system calls of its own, tells the guards ([`replaced`](crate::guard::replaced),
///    [`protected`](crate::guard::protected), [`keyed`](crate::guard::keyed)): guards and repairs map memory as they
///    were told. With other threads that call guards, it does so in a [turn](crate::guard::in_turn).
/// 2. Neither the kernel nor a device holds on to pages of this process's private memory: no direct or asynchronous I/O
///    is under way, and no buffer is registered (the call looks for io_uring, not for RDMA, AF_XDP and VFIO).
/// 3. No process shares this one's address space (`vfork`, `CLONE_VM` without `CLONE_THREAD`), and nobody writes to its
///    memory from outside (a debugger, `process_vm_writev`) during the call.
/// 4. The first three also hold for [`fork`](crate::fork) from now on, which repairs frozen memory now and then.
///
/// # Errors
///
/// See [`FreezeError`]; the process is unchanged, but for a freeze in slices, which may have ended.
pub unsafe fn freeze(options: &Options) -> Result<Report, FreezeError> {
    stay_loaded(options)?;
    match options.pause {
        // SAFETY: 1. to 4. are this function's.
        Pause::AtOnce => unsafe { freeze_at_once(options) },
        Pause::Within(budget) => planning::begin(options, budget),
    }
}

/// # Safety
///
/// As [`freeze`].
unsafe fn freeze_at_once(options: &Options) -> Result<Report, FreezeError> {
    hazards::check(options)?;
    let (before, unmeasured) = measure(options);
    let mut locked = registry::known()?.lock().ok_or(FreezeError::Busy)?;
    let started = CpuMoment::now();
    locked.drop_plan();
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
    locked.remember(*options);
    drop(locked);
    report.done();
    report.notes.extend(lost_names(&report));
    report.notes.extend(let_core_dumps_have_files());
    report.notes.extend(hazards::left_out(options));
    report.fork_before = before;
    report.fork_after = measure(options).0;
    report.notes.extend(unmeasured);
    if let (Some(before), Some(after)) = (report.fork_before, report.fork_after) {
        // If the lock is taken, the first fork tells.
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

/// Tells what [`freeze`] would do. Changes nothing.
///
/// # Errors
///
/// As [`freeze`].
pub fn survey(options: &Options) -> Result<Report, FreezeError> {
    stay_loaded(options)?;
    hazards::check(options)?;
    let (before, unmeasured) = measure(options);
    let mut locked = registry::known()?.lock().ok_or(FreezeError::Busy)?;
    let mut report = played(&mut locked, options, Mode::Survey, |tables, _, done| told(tables, Mode::Survey, done))?;
    report.fork_before = before;
    report.notes.extend(unmeasured);
    Ok(report)
}

/// Returns how long a fork takes, or a note why that is not known.
fn measure(options: &Options) -> (Option<Duration>, Option<String>) {
    match options.measure {
        Measure::Forks => match shortest_fork(TRIALS) {
            Ok(shortest) => (Some(shortest), None),
            Err(reason) => (None, Some(format!("forks were not timed: {reason}"))),
        },
        Measure::Nothing => (None, None),
    }
}
