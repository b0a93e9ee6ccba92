//! The questions to a worker, one line each, and its answers.

use std::fmt;
use std::str::FromStr;

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// A fork, or arming: µs.
    Fork,
    /// A fork after this many pages were written while a child lives: µs.
    Dirty(usize),
    /// First writes to consecutive pages: ns per page.
    WriteSequential,
    /// First writes to pages in random order: ns per page.
    WriteRandom,
    /// First reads of consecutive pages: ns per page.
    Read,
    /// `VmRSS` of a child: bytes.
    Rss,
    /// `VmPTE` of a child: bytes.
    Pte,
    /// Restoring this many known pages: µs.
    ResetKnown(usize),
    /// Restoring this many pages that must be searched for: µs.
    ResetScan(usize),
    /// A fork whose child writes this many pages and ends: µs.
    ForkPerRun(usize),
    /// A turn of a child that writes this many pages and stops, without restoring anything: µs.
    Turn(usize),
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fork => f.write_str("fork"),
            Self::Dirty(pages) => write!(f, "dirty {pages}"),
            Self::WriteSequential => f.write_str("write_seq"),
            Self::WriteRandom => f.write_str("write_random"),
            Self::Read => f.write_str("read"),
            Self::Rss => f.write_str("rss"),
            Self::Pte => f.write_str("pte"),
            Self::ResetKnown(pages) => write!(f, "reset_known {pages}"),
            Self::ResetScan(pages) => write!(f, "reset_scan {pages}"),
            Self::ForkPerRun(pages) => write!(f, "fork_per_run {pages}"),
            Self::Turn(pages) => write!(f, "turn {pages}"),
        }
    }
}

/// A line that is not a question.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no question for a worker")]
pub(super) struct NoQuestion(String);

impl FromStr for Question {
    type Err = NoQuestion;

    fn from_str(line: &str) -> Result<Self, NoQuestion> {
        let unknown = || NoQuestion(line.to_owned());
        let (what, pages) = line.split_once(' ').map_or((line, None), |(what, pages)| (what, Some(pages)));
        let pages = pages.map(str::parse::<usize>).transpose().map_err(|_| unknown())?;
        Ok(match (what, pages) {
            ("fork", None) => Self::Fork,
            ("dirty", Some(pages)) => Self::Dirty(pages),
            ("write_seq", None) => Self::WriteSequential,
            ("write_random", None) => Self::WriteRandom,
            ("read", None) => Self::Read,
            ("rss", None) => Self::Rss,
            ("pte", None) => Self::Pte,
            ("reset_known", Some(pages)) => Self::ResetKnown(pages),
            ("reset_scan", Some(pages)) => Self::ResetScan(pages),
            ("fork_per_run", Some(pages)) => Self::ForkPerRun(pages),
            ("turn", Some(pages)) => Self::Turn(pages),
            _ => return Err(unknown()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_the_pipe() {
        let all = [
            Question::Fork,
            Question::Dirty(256),
            Question::WriteSequential,
            Question::WriteRandom,
            Question::Read,
            Question::Rss,
            Question::Pte,
            Question::ResetKnown(1),
            Question::ResetScan(4096),
            Question::ForkPerRun(16),
            Question::Turn(16),
        ];
        for question in all {
            assert_eq!(question.to_string().parse::<Question>().ok(), Some(question));
        }
        assert!("dirty".parse::<Question>().is_err());
        assert!("fork 1".parse::<Question>().is_err());
    }
}
