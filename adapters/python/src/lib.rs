#![doc = include_str!("../README.md")]
//!
//! # This crate
//!
//! The native part of the package: freezing, forking, and reports on both. What users see, and why each call is
//! allowed, is in `python/palimpsest/__init__.py`.

mod discards;
mod forking;
mod options;
mod served;
mod told;

use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

create_exception!(palimpsest, FreezeError, PyRuntimeError, "The process was not frozen, and is as it was.");

/// The functions that `palimpsest` is built on.
#[pymodule]
mod _native {
    use std::path::PathBuf;

    use super::{Bound, PyDict, PyModule, PyResult, Python, discards, forking, options, served, told};
    use palimpsest_sys::Causes;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::FreezeError;

    /// Freezes the process. `settings` are those of `palimpsest.freeze`.
    #[pyfunction]
    fn freeze<'py>(py: Python<'py>, settings: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        let options = options::read(settings)?;
        // SAFETY: 1. objects that discard memory were looked for by the caller (`palimpsest.freeze`), who refuses, or
        // whose user answers for them; the C library's and CPython's allocators count on no zeros. 2. I/O of CPython is
        // under way in system calls of threads that are refused, or stopped by signals, which ends those calls. 3. and
        // 4. `vfork` is used by `subprocess` alone, whose child has executed a program or ended before it returns.
        let report = unsafe { palimpsest_fork::freeze(&options) };
        told::report(py, &report.map_err(|error| told::refused(&error))?)
    }

    /// Refuses unknown settings.
    #[pyfunction]
    fn check(settings: &Bound<'_, PyDict>) -> PyResult<()> {
        options::read(settings).map(drop)
    }

    /// Tells what `freeze` would do.
    #[pyfunction]
    fn survey<'py>(py: Python<'py>, settings: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        let report = palimpsest_fork::survey(&options::read(settings)?);
        told::report(py, &report.map_err(|error| told::refused(&error))?)
    }

    /// Returns what is frozen, and the numbers of forks and repairs.
    #[pyfunction]
    fn status(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        told::status(py)
    }

    /// Takes one slice of a freeze under way, and returns how far it has come.
    #[pyfunction]
    fn freeze_slice(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        // SAFETY: 1. as for `freeze`, without which there are no slices.
        let progress = unsafe { palimpsest_fork::freeze_slice() };
        told::progress(py, progress.map_err(|error| told::refused(&error))?)
    }

    /// Returns how far a freeze in slices has come.
    #[pyfunction]
    fn progress(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        told::progress(py, palimpsest_fork::progress())
    }

    /// Returns in how many seconds a program that is about to wait should take a slice.
    #[pyfunction]
    fn next_slice() -> Option<f64> {
        palimpsest_fork::next_slice().map(|wait| wait.as_secs_f64())
    }

    /// Says that the last slice kept somebody waiting for so many seconds.
    #[pyfunction]
    fn put_off_slices(taken: f64) -> PyResult<()> {
        palimpsest_fork::put_off_slices(options::time("taken", taken)?);
        Ok(())
    }

    /// Waits for a deputy that is at work.
    #[pyfunction]
    fn dismiss_deputy() {
        palimpsest_fork::dismiss_deputy();
    }

    /// Turns all frozen memory into ordinary memory.
    #[pyfunction]
    fn thaw() -> PyResult<()> {
        palimpsest_fork::guard::thaw_all().map_err(|errno| {
            let why = std::io::Error::from_raw_os_error(errno.raw_os_error());
            let message = "some memory is still frozen, since there are other threads, or a freeze is under way";
            FreezeError::new_err(format!("{message}: {why}"))
        })
    }

    /// Forks as `os.fork` does, with the library's account of forks; returns 0 in the child.
    #[pyfunction]
    fn fork(py: Python<'_>) -> PyResult<i32> {
        forking::fork(py)
    }

    /// Returns the files of loaded objects that may give memory back by `madvise` and count on zeros afterwards.
    #[pyfunction]
    fn discarding_objects() -> PyResult<Vec<PathBuf>> {
        discards::loaded().map_err(|error| FreezeError::new_err(Causes(&error).to_string()))
    }

    /// Returns whether the object of `palimpsest run` is loaded, and freezes the process by itself.
    #[pyfunction]
    fn is_served() -> bool {
        served::is_served()
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
