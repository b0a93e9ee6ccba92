//! Reports as Python reads them.

use std::time::Duration;

use palimpsest_fork::{FreezeError as Refused, Progress, Report, Stage, Verdict};
use palimpsest_sys::Causes;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::FreezeError;

/// Returns the error with its causes.
pub(crate) fn refused(error: &Refused) -> PyErr {
    FreezeError::new_err(Causes(error).to_string())
}

/// Returns the fields of `palimpsest.Report`.
pub(crate) fn report<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let verdict = match report.verdict {
        Verdict::Unmeasured => "unmeasured",
        Verdict::Quicker => "quicker",
        Verdict::NoBenefit { .. } => "no-benefit",
        Verdict::Thawed => "thawed",
        _ => "unknown",
    };
    let told = PyDict::new(py);
    told.set_item("frozen", report.frozen_bytes())?;
    told.set_item("skipped", report.skipped_bytes())?;
    told.set_item("taken", seconds(report.taken))?;
    told.set_item("fork_before", report.fork_before.map(seconds))?;
    told.set_item("fork_after", report.fork_after.map(seconds))?;
    told.set_item("pays_after", report.worth.and_then(|worth| worth.pays_after()))?;
    told.set_item("verdict", verdict)?;
    told.set_item("stopped", report.stopped.as_deref())?;
    told.set_item("text", report.to_string())?;
    Ok(told)
}

/// Returns the fields of `palimpsest.Status`.
pub(crate) fn status(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let status = palimpsest_fork::status();
    let told = PyDict::new(py);
    told.set_item("frozen", status.frozen_bytes)?;
    told.set_item("extents", status.extents)?;
    told.set_item("forks", status.forks)?;
    told.set_item("repairs", status.repairs)?;
    told.set_item("hot_pieces", status.hot_pieces)?;
    told.set_item("debt", seconds(Duration::from_nanos(status.debt)))?;
    told.set_item("clean", seconds(Duration::from_nanos(status.clean)))?;
    told.set_item("price", seconds(Duration::from_nanos(status.price)))?;
    Ok(told)
}

/// Returns the fields of `palimpsest.Progress`.
pub(crate) fn progress(py: Python<'_>, progress: Progress) -> PyResult<Bound<'_, PyDict>> {
    let stage = match progress.stage {
        Stage::None => "none",
        Stage::UnderWay => "under-way",
        Stage::Done => "done",
        Stage::Ended => "ended",
        _ => "unknown",
    };
    let told = PyDict::new(py);
    told.set_item("stage", stage)?;
    told.set_item("planned", progress.planned_bytes)?;
    told.set_item("frozen", progress.frozen_bytes)?;
    told.set_item("gathered", progress.gathered_bytes)?;
    told.set_item("slices", progress.slices)?;
    told.set_item("longest", seconds(progress.longest))?;
    told.set_item("taken", seconds(progress.taken))?;
    told.set_item("looked", seconds(progress.looked))?;
    Ok(told)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
