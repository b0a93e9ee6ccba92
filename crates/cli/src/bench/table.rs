//! The results as text in aligned columns.

use std::fmt::Write;

use palimpsest_bench::harness::Group;
use palimpsest_bench::harness::record::{Entry, Report};

use super::format;

const HEADINGS: [&str; COLUMNS] = ["", "median", "min", "max", "ratio", "note"];
const COLUMNS: usize = 6;

/// Which columns hold numbers and are aligned to the right.
const RIGHT: [bool; COLUMNS] = [false, true, true, true, false, false];

/// Returns the whole text.
pub(crate) fn render(report: &Report, groups: &[Group]) -> String {
    let sections: Vec<(&str, Vec<[String; COLUMNS]>)> = format::grouped(report, groups)
        .into_iter()
        .map(|(title, entries)| (title, entries.into_iter().map(row).collect()))
        .collect();
    let mut widths = HEADINGS.map(width);
    for row in sections.iter().flat_map(|(_, rows)| rows) {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    let mut text = String::new();
    let mut line = |line: &str| {
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&format::machine(&report.machine));
    line(&format::backing(&report.machine));
    line("ratio: how many times better than the rival named beside it; above 1 we are better");
    for (title, rows) in &sections {
        line("");
        let mut headings = HEADINGS.map(str::to_owned);
        headings[0] = (*title).to_owned();
        // A title may be wider than the ids below it; then it has the line to itself.
        if width(title) > widths[0] {
            line(title);
            headings[0].clear();
        }
        line(&aligned(&headings, &widths));
        for row in rows {
            line(&aligned(row, &widths));
        }
    }
    let skipped = format::skipped(&report.skipped);
    if !skipped.is_empty() {
        line("");
        line("not measured:");
        for (ids, reason) in skipped {
            line(&format!("  {}: {reason}", ids.join(", ")));
        }
    }
    line("");
    line(&format!("{} figures in {:.0} s", report.results.len(), report.seconds));
    text
}

fn row(entry: &Entry) -> [String; COLUMNS] {
    let shown = |value| format::value(value, entry.unit);
    [
        entry.id.clone(),
        shown(entry.median),
        shown(entry.min),
        shown(entry.max),
        format::ratio(entry).unwrap_or_default(),
        format::remark(entry),
    ]
}

fn aligned(cells: &[String; COLUMNS], widths: &[usize; COLUMNS]) -> String {
    let mut text = String::new();
    for ((cell, &room), right) in cells.iter().zip(widths).zip(RIGHT) {
        let written = if right { write!(text, "{cell:>room$}  ") } else { write!(text, "{cell:<room$}  ") };
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
    text
}

/// Returns the width in a terminal: characters, as none of ours is wide.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use palimpsest_bench::suites;

    use super::*;

    #[test]
    fn every_id_has_a_line_and_the_columns_are_aligned() {
        let report = format::tests::report();
        let groups: Vec<Group> = suites::all().iter().flat_map(|suite| suite.groups()).collect();
        let text = render(&report, &groups);
        for entry in &report.results {
            assert!(text.contains(&entry.id), "{} is missing", entry.id);
        }
        let units: Vec<Vec<usize>> = text
            .lines()
            .filter(|line| line.starts_with("pack.call"))
            .map(|line| format!("{line}  ").match_indices(" ns  ").map(|(column, _)| column).collect())
            .collect();
        assert_eq!(units.len(), 18);
        assert!(units.iter().all(|columns| columns.len() == 3 && *columns == units[0]), "{text}");
        assert!(text.contains("small-memfd"));
        assert!(text.contains("pack.load.jit_allocator, pack.load.cranelift_jit: not built"));
        assert!(text.lines().all(|line| line == line.trim_end()));
    }
}
