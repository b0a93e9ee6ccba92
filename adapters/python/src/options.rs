//! Settings as Python passes them.

use std::time::Duration;

use palimpsest_fork::{Answer, Errands, ExtentLen, Measure, Options, OtherThreads, Pages, Pause, Pays};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What the user may answer for, by name.
const ANSWERS: [(&str, Answer); 4] = [
    ("raw-allocator", Answer::RawAllocator),
    ("io-uring", Answer::IoUring),
    ("locked-memory", Answer::LockedMemory),
    ("linux-aio", Answer::LinuxAio),
];

/// # Errors
///
/// `TypeError` for an unknown setting, `ValueError` for a value that a setting does not take.
pub(crate) fn read(settings: &Bound<'_, PyDict>) -> PyResult<Options> {
    let mut options = Options::new();
    for (name, value) in settings {
        let name: String = name.extract()?;
        options = match name.as_str() {
            "least" => options.least(value.extract()?),
            "threads" => options.other_threads(match value.extract::<String>()?.as_str() {
                "refuse" => OtherThreads::Refuse,
                "stop" => OtherThreads::Stop,
                other => return Err(unknown(&name, other, "refuse, stop")),
            }),
            "pages" => options.pages(match value.extract::<String>()?.as_str() {
                "base" => Pages::Base,
                "huge" => Pages::Collapse,
                "gather" => Pages::Gather,
                other => return Err(unknown(&name, other, "base, huge, gather")),
            }),
            "errands" => options.errands(match value.extract::<String>()?.as_str() {
                "own" => Errands::Own,
                "deputy" => Errands::Deputy,
                other => return Err(unknown(&name, other, "own, deputy")),
            }),
            "pause" => match value.extract::<Option<f64>>()? {
                None => options.pause(Pause::AtOnce),
                Some(seconds) => options.pause(Pause::Within(time(&name, seconds)?)),
            },
            "extent" => match value.extract::<Option<usize>>()? {
                None => options.extent(ExtentLen::Auto),
                Some(bytes) => options.extent(ExtentLen::Bytes(bytes)),
            },
            "pays_within" => match value.extract::<Option<u32>>()? {
                None => options.pays(Pays::Anyway),
                Some(forks) => options.pays(Pays::Within(forks)),
            },
            "measure" => options.measure(if value.extract()? { Measure::Forks } else { Measure::Nothing }),
            "answers" => value.extract::<Vec<String>>()?.iter().try_fold(options, |options, name| {
                let found = ANSWERS.iter().find(|(known, _)| known == name);
                let names = || ANSWERS.map(|(known, _)| known).join(", ") + ", discards";
                let (_, answer) = found.ok_or_else(|| unknown("answers", name, &names()))?;
                Ok::<_, PyErr>(options.answer_for(*answer))
            })?,
            _ => return Err(PyTypeError::new_err(format!("there is no setting {name:?}"))),
        };
    }
    Ok(options)
}

/// Reads a number of seconds.
///
/// # Errors
///
/// `ValueError` unless it is more than none.
pub(crate) fn time(name: &str, seconds: f64) -> PyResult<Duration> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| PyValueError::new_err(format!("{name} is {seconds}: it is a number of seconds above 0")))
}

fn unknown(name: &str, value: &str, known: &str) -> PyErr {
    PyValueError::new_err(format!("{name} is {value:?}: known are {known}"))
}
