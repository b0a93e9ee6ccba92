//! The results for other programs: Markdown tables, and comma-separated values (RFC 4180).

use palimpsest_bench::harness::Group;
use palimpsest_bench::harness::record::{Entry, Report};

use super::format;

/// Returns a table for each group.
pub(crate) fn markdown(report: &Report, groups: &[Group]) -> String {
    let mut lines = vec![cell(&format::machine(&report.machine)), String::new(), format::backing(&report.machine)];
    for (title, entries) in format::grouped(report, groups) {
        lines.push(String::new());
        if !title.is_empty() {
            lines.extend([format!("## {title}"), String::new()]);
        }
        lines.push("| id | median | min–max | ratio | note |".to_owned());
        lines.push("|---|---|---|---|---|".to_owned());
        lines.extend(entries.into_iter().map(|entry| {
            let [median, min, max] = [entry.median, entry.min, entry.max].map(|value| format::value(value, entry.unit));
            let ratio = format::ratio(entry).unwrap_or_default();
            format!("| `{}` | {median} | {min}–{max} | {ratio} | {} |", entry.id, cell(&format::remark(entry)))
        }));
    }
    let skipped = format::skipped(&report.skipped);
    if !skipped.is_empty() {
        lines.extend([String::new(), "Not measured:".to_owned(), String::new()]);
        lines.extend(skipped.into_iter().map(|(ids, reason)| format!("- {}: {}", ids.join(", "), cell(reason))));
    }
    lines.join("\n") + "\n"
}

/// A bar would end the cell, and a line break the table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Returns a line for each figure, below one with the names of the columns. Values are in the unit of the record.
pub(crate) fn csv(report: &Report) -> String {
    let mut text = String::from("id,unit,median,min,max,runs,baseline,ratio,note\r\n");
    for entry in &report.results {
        text.push_str(&fields(entry).map(|field| quoted(&field)).join(","));
        text.push_str("\r\n");
    }
    text
}

fn fields(entry: &Entry) -> [String; 9] {
    [
        entry.id.clone(),
        entry.unit.symbol().to_owned(),
        entry.median.to_string(),
        entry.min.to_string(),
        entry.max.to_string(),
        entry.runs.to_string(),
        entry.baseline.clone().unwrap_or_default(),
        entry.ratio.map(|ratio| ratio.to_string()).unwrap_or_default(),
        entry.note.clone().unwrap_or_default(),
    ]
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_bench::suites;

    use super::*;

    #[test]
    fn markdown_has_a_row_for_each_figure_and_the_reasons() {
        let mut report = format::tests::report();
        report.results[0].note = Some("a | b".into());
        let groups: Vec<Group> = suites::all().iter().flat_map(|suite| suite.groups()).collect();
        let text = markdown(&report, &groups);
        for entry in &report.results {
            assert!(text.contains(&format!("| `{}` |", entry.id)), "{} is missing", entry.id);
        }
        assert!(text.contains("a \\| b"));
        assert!(text.contains("- pack.load.jit_allocator, pack.load.cranelift_jit: not built"));
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        assert!(rows.into_iter().all(|row| row.replace("\\|", "").matches('|').count() == 6));
    }

    #[test]
    fn values_with_commas_and_quotes_are_quoted() {
        let mut report = format::tests::report();
        report.results[0].note = Some("a, \"b\"".into());
        let text = csv(&report);
        assert_eq!(text.lines().count(), report.results.len() + 1);
        assert!(text.contains(",\"a, \"\"b\"\"\"\r\n"), "{text}");
    }
}
