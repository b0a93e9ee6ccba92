//! Why a run ended without a report, or with half of one.

use std::error::Error;
use std::io;

use super::record::Report;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// No suite has this name.
    #[error("no suite is called `{name}`; there are: {known}")]
    UnknownSuite {
        /// The name that was given.
        name: String,
        /// The names that exist, separated by commas.
        known: String,
    },
    /// The filter leaves nothing to measure.
    #[error("no figure's id contains `{filter}`; `palimpsest bench --list` shows them")]
    NothingMatches {
        /// The filter that was given.
        filter: String,
    },
    /// A result was wrong: the figures would be worthless.
    #[error("{contestant} got {found:#x} instead of {expected:#x} while measuring {id}")]
    WrongResult {
        /// Group of figures.
        id: String,
        /// Whose result.
        contestant: String,
        /// What it should be.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// A contestant could not do what is measured.
    #[error("{contestant} failed while measuring {id}")]
    Contestant {
        /// Group of figures.
        id: String,
        /// Who failed.
        contestant: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The kernel's accounting of this process could not be read.
    #[error("cannot read {path}")]
    Accounting {
        /// File under `/proc`.
        path: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The run ended early, after it had measured something.
    #[error("the run ended early, with {} figures", report.results.len())]
    Cut {
        /// What was measured until then.
        report: Box<Report>,
        /// Why it ended.
        #[source]
        source: Box<BenchError>,
    },
    /// A process that measures did not answer.
    #[error("the process that measures {contestant} failed: {reason}")]
    Helper {
        /// Whose figure.
        contestant: String,
        /// What it said.
        reason: String,
    },
}

/// Turns an error of one contestant into one of the run.
pub(crate) fn failed<E: Into<Box<dyn Error + Send + Sync>>>(
    id: &str,
    contestant: &str,
) -> impl FnOnce(E) -> BenchError + use<E> {
    let (id, contestant) = (id.to_owned(), contestant.to_owned());
    move |source| BenchError::Contestant { id, contestant, source: source.into() }
}

/// Fails unless a result is what it must be.
pub(crate) fn expect(id: &str, contestant: &str, expected: u64, found: u64) -> Result<(), BenchError> {
    if found == expected {
        return Ok(());
    }
    Err(BenchError::WrongResult { id: id.to_owned(), contestant: contestant.to_owned(), expected, found })
}
