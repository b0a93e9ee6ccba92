//! Reports as Python reads them.

use std::time::Duration;

use palimpsest_fork::{FreezeError as Refused, Report, Verdict};
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
    let seconds = |time: Duration| time.as_secs_f64();
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
    Ok(told)
}
