//! The tour as lines of text: a headline when a part begins, and a line with a bar for each figure when it ends.

use std::cell::Cell;
use std::io::{self, Write};

use palimpsest_bench::harness::progress::Progress;
use palimpsest_bench::harness::record::{Entry, Machine, Report, Skipped, Unit};
use palimpsest_bench::harness::{Group, Suite, host};
use palimpsest_bench::suites::Part;
use palimpsest_sys::CoreSync;

use crate::bench::format;

/// Names of the figures here; records use their ids.
const LABELS: [(&str, &str); 19] = [
    ("fork.512m.plain", "plain"),
    ("fork.512m.frozen", "frozen"),
    ("fork.512m.empty", "an empty process"),
    ("python.fork.140m.plain", "plain"),
    ("python.fork.140m.frozen", "frozen"),
    ("reset.16.fork_per_run", "a fork for each run"),
    ("reset.16.scan", "search and put back"),
    ("reset.16.known", "put known pages back"),
    ("keys.toggle.56.one_by_one.t1", "one by one"),
    ("keys.toggle.56.batched.t1", "in one batch"),
    ("pack.load.page_each", "a page each"),
    ("pack.load.packed", "in packs"),
    ("pack.call.5000.page_each", "a page each"),
    ("pack.call.5000.packed", "in packs"),
    ("bpf.hook.absent", "no hook"),
    ("bpf.hook.empty", "an empty hook"),
    ("bpf.hook.one_program", "a program"),
    ("paging.fork.1g.full", "copied"),
    ("paging.fork.1g.cow", "shared"),
];

/// Columns of the longest bar.
const WIDTH: usize = 24;

/// See the module.
pub(super) struct Lines {
    /// Standard output belongs to a record.
    silent: bool,
    /// Each part's headline, with the ids of its groups.
    parts: Vec<(&'static str, Vec<String>)>,
    /// Parts whose headline is printed.
    begun: Cell<usize>,
}

impl Lines {
    pub(super) fn new(silent: bool, parts: &[Part]) -> Self {
        let ids = |part: &Part| part.groups().into_iter().map(|group| group.id).collect();
        let parts = parts.iter().map(|part| (part.headline(), ids(part))).collect();
        Self { silent, parts, begun: Cell::new(0) }
    }

    /// If nobody reads, nobody misses it; a record that cannot be written is an error of its own.
    fn print(&self, text: &str) {
        if !self.silent {
            let mut out = io::stdout().lock();
            let _unread = writeln!(out, "{text}").and_then(|()| out.flush());
        }
    }

    /// Prints what is about to be shown.
    pub(super) fn open(&self, parts: usize) {
        self.print(&format!("palimpsest tour: {parts} things, live; about half a minute"));
    }

    /// Prints what this machine allows.
    pub(super) fn describe(&self, machine: &Machine) {
        let mark = |works| if works { '✓' } else { '✗' };
        let huge =
            machine.backing.as_deref().is_some_and(|backing| backing.contains("huge") || backing.contains("collapsed"));
        let barrier = CoreSync::new().is_ok_and(|sync| sync.refused().is_none());
        self.print(&format!(
            "Linux {} · {} CPUs · huge pages for code {} · membarrier {}",
            machine.kernel,
            machine.cores,
            mark(huge),
            mark(barrier)
        ));
    }

    /// Prints what the figures are worth, and where to go on.
    pub(super) fn close(&self, report: &Report) {
        self.print("");
        if let Some(load) = host::load_average().filter(|load| *load > report.machine.cores as f64) {
            let cores = report.machine.cores;
            self.print(&format!("Load average {load:.0} on {cores} CPUs: figures are rough."));
        }
        self.print(
            "Where it does not help: programs that fork with little memory or write to all of it between two forks,\n\
             code that is loaded once and never called in turn, a single switch that no other thread runs through.",
        );
        self.print(
            "Try it: palimpsest run -- YOUR PROGRAM        \
             Next: palimpsest tour --html t.html · palimpsest doctor · palimpsest bench --list · the book in docs/src",
        );
    }

    fn part_of(&self, group: &str) -> Option<usize> {
        self.parts.iter().position(|(_, ids)| ids.iter().any(|id| id == group))
    }

    /// Prints the headline of the part that `group` belongs to, once.
    fn headline(&self, group: &str) {
        let place = self.part_of(group);
        if let Some(place) = place.filter(|place| *place >= self.begun.get()) {
            self.begun.set(place + 1);
            self.print(&format!("\n{}  {}", place + 1, self.parts[place].0));
        }
    }
}

impl Progress for Lines {
    fn start(&self, _groups: usize) {}

    fn begin(&self, what: &str) {
        self.headline(what);
    }

    fn done(&self, group: &Group, entries: &[Entry], skipped: &[Skipped]) {
        self.headline(&group.id);
        // A part with one group has said what it is about.
        if self.part_of(&group.id).is_some_and(|place| self.parts[place].1.len() > 1) {
            self.print(&format!("     {}", group.title));
        }
        figures(entries, skipped).iter().for_each(|line| self.print(line));
    }

    fn end(&self) {}
}

/// Returns the lines of one group.
fn figures(entries: &[Entry], skipped: &[Skipped]) -> Vec<String> {
    let mut lines = Vec::new();
    let largest = entries.iter().map(|entry| entry.median).fold(0.0, f64::max);
    for entry in entries {
        let value = format::value(entry.median, entry.unit);
        let filled = if largest > 0.0 { entry.median / largest } else { 0.0 };
        let remarks: Vec<String> = ratio(entry).into_iter().chain(entry.note.clone()).collect();
        let line =
            format!("       {:<21}{value:>9}   {:<WIDTH$}  {}", label(&entry.id), bar(filled), remarks.join(" · "));
        lines.push(line.trim_end().to_owned());
    }
    for skip in skipped {
        let name = if skip.id.ends_with('*') { "" } else { label(&skip.id) };
        let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
        lines.push(format!("     left out: {name}{}", skip.reason));
    }
    lines
}

/// Returns how many times better it is than the baseline.
fn ratio(entry: &Entry) -> Option<String> {
    let ratio = entry.ratio?;
    debug_assert_ne!(entry.unit, Unit::Count, "the tour shows times");
    Some(if ratio >= 10.0 { format!("{ratio:.0} ×") } else { format!("{ratio:.1} ×") })
}

fn label(id: &str) -> &str {
    LABELS.iter().find(|(known, _)| *known == id).map_or(id, |(_, label)| label)
}

/// Returns a bar of that share of the whole width, in eighths of a column; never empty.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = ((share * WIDTH as f64 * 8.0).round() as usize).max(1);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use palimpsest_bench::harness::sampler::Summary;
    use palimpsest_bench::suites;

    use super::*;

    #[test]
    fn every_figure_has_a_name_and_every_name_a_figure() {
        let groups: Vec<Group> = suites::tour().iter().flat_map(Suite::groups).collect();
        let ids: Vec<&str> = groups.iter().flat_map(Group::ids).collect();
        for id in &ids {
            assert_ne!(label(id), *id, "it has no name");
        }
        for (id, _) in LABELS {
            assert!(ids.contains(&id), "{id} is no figure");
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        assert_eq!(bar(1.0), "█".repeat(WIDTH));
        assert_eq!(bar(0.5), "█".repeat(WIDTH / 2));
        assert_eq!(bar(0.0001), "▏");
        assert_eq!(bar(1.5 / WIDTH as f64), "█▌");
    }

    #[test]
    fn a_group_shows_values_bars_ratios_and_reasons() {
        let entry =
            |id: &str, value: f64| Entry::new(id, Unit::Microseconds, Summary::of(&[value]).expect("one sample"));
        let plain = entry("fork.512m.plain", 7100.0);
        let mut frozen = entry("fork.512m.frozen", 90.0).with_note("froze in 0.30 s");
        frozen.compare(&[&plain]);
        let skipped = Skipped { id: "fork.512m.empty".into(), reason: "no room".into() };
        let lines = figures(&[plain, frozen], &[skipped]);
        assert!(lines[0].starts_with("       plain                  7.10 ms   ████████████████████████"), "{lines:?}");
        assert!(lines[1].contains("90.0 µs   ▎"), "{lines:?}");
        assert!(lines[1].ends_with("79 × · froze in 0.30 s"), "{lines:?}");
        assert_eq!(lines[2], "     left out: an empty process: no room");
    }
}
