//! Shows on standard error what is being measured: one changing line on a terminal, a line for each group elsewhere.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use palimpsest_bench::harness::Group;
use palimpsest_bench::harness::progress::Progress;
use palimpsest_bench::harness::record::{Entry, Skipped};

/// See the module.
pub(crate) struct Lines {
    started: Instant,
    manner: Manner,
    groups: Cell<usize>,
    done: Cell<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// One line, written over again and again.
    Changing,
    /// A line for each group.
    Following,
}

impl Lines {
    /// Chooses by what standard error is.
    pub(crate) fn new() -> Self {
        let manner = if io::stderr().is_terminal() { Manner::Changing } else { Manner::Following };
        Self { started: Instant::now(), manner, groups: Cell::new(0), done: Cell::new(0) }
    }

    /// If nobody reads standard error, nobody misses it.
    fn show(&self, text: &str) {
        let (done, groups, seconds) = (self.done.get(), self.groups.get(), self.started.elapsed().as_secs());
        let line = format!("{done}/{groups}  {seconds:>3} s  {text}");
        let mut error = io::stderr().lock();
        let _unread = match self.manner {
            // `\x1b[K` clears what an earlier, longer line has left.
            Manner::Changing => write!(error, "\r{line}\x1b[K"),
            Manner::Following => writeln!(error, "{line}"),
        };
        let _unread = error.flush();
    }
}

impl Progress for Lines {
    fn start(&self, groups: usize) {
        self.groups.set(groups);
    }

    fn begin(&self, what: &str) {
        if self.manner == Manner::Changing {
            self.show(what);
        }
    }

    fn done(&self, group: &Group, entries: &[Entry], skipped: &[Skipped]) {
        self.done.set(self.done.get() + 1);
        match (entries, skipped) {
            ([], [skip, ..]) => self.show(&format!("{} is left out: {}", group.id, skip.reason)),
            _ => self.show(&format!("{}: {} figures", group.id, entries.len())),
        }
    }

    fn end(&self) {
        if self.manner == Manner::Changing {
            let _unread = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
