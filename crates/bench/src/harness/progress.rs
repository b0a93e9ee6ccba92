//! How a suite reports what it is doing. The command line shows it, tests ignore it.

use super::contestant::Group;
use super::record::{Entry, Skipped};

/// Receives the progress of a run.
pub trait Progress {
    /// The run begins; this many groups will be measured.
    fn start(&self, groups: usize);
    /// This is being measured: an id, a shared beginning of ids, or a preparation.
    fn begin(&self, what: &str);
    /// A group is done.
    fn done(&self, group: &Group, entries: &[Entry], skipped: &[Skipped]);
    /// The run is over.
    fn end(&self);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _groups: usize) {}
    fn begin(&self, _what: &str) {}
    fn done(&self, _group: &Group, _entries: &[Entry], _skipped: &[Skipped]) {}
    fn end(&self) {}
}
