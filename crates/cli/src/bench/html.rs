//! The results as one HTML page that needs nothing else: style, charts as inline SVG, no scripts, no links.
//!
//! `bars` and `curves` draw, `scale` maps values to places, `text` escapes; `picture` draws curves only.

mod bars;
mod curves;
mod picture;
mod scale;
mod text;

use std::fmt::Write;

use palimpsest_bench::harness::Group;
use palimpsest_bench::harness::record::{Entry, Report};

use super::format;
use text::escaped;

pub(crate) use picture::render as picture;

const STYLE: &str = concat!(include_str!("html/chart.css"), include_str!("html/page.css"));

/// Returns the whole page.
pub(crate) fn render(title: &str, report: &Report, groups: &[Group]) -> String {
    let machine = escaped(&format::machine(&report.machine));
    let backing = escaped(&format::backing(&report.machine));
    let curves: String = curves::families(&report.results).iter().map(curves::figure).collect();
    let curves = if curves.is_empty() {
        curves
    } else {
        format!("<h2>Cost against number</h2>\n<div class=\"pair\">{curves}</div>\n")
    };
    let sections: String = format::grouped(report, groups).iter().map(section).collect();
    let skipped = skipped(report);
    let seconds = report.seconds;
    let count = report.results.len();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{title}</h1>\n<p>{machine}</p>\n<p>{backing}</p>\n\
         <p>{count} figures in {seconds:.0} s. A mark is the median, its line reaches from the smallest to the \
         largest run. \
         <b class=\"ours\">Palimpsest</b> against <b class=\"rival\">what people do today</b>, measured in turns in \
         one run.</p>\n\
         </header>\n{curves}{sections}{skipped}</body>\n</html>\n"
    )
}

fn section((title, entries): &(&str, Vec<&Entry>)) -> String {
    let rows: String = entries.iter().map(|entry| row(entry)).collect();
    let chart = bars::figure(entries);
    format!(
        "<section>\n<h2>{}</h2>\n{chart}<div class=\"wide\"><table>\n\
         <thead><tr><th>id</th><th>median</th><th>min</th><th>max</th><th>runs</th><th>ratio</th>\
         <th>note</th></tr></thead>\n\
         <tbody>\n{rows}</tbody></table></div>\n</section>\n",
        escaped(title)
    )
}

fn row(entry: &Entry) -> String {
    let mut cells = format!("<tr><td>{}</td>", escaped(&entry.id));
    for value in [entry.median, entry.min, entry.max] {
        push(&mut cells, format_args!("<td class=\"n\">{}</td>", format::value(value, entry.unit)));
    }
    push(
        &mut cells,
        format_args!(
            "<td class=\"n\">{}</td><td>{}</td><td>{}</td></tr>\n",
            entry.runs,
            escaped(&format::ratio(entry).unwrap_or_default()),
            escaped(&format::remark(entry)),
        ),
    );
    cells
}

fn skipped(report: &Report) -> String {
    if report.skipped.is_empty() {
        return String::new();
    }
    let items: String = format::skipped(&report.skipped)
        .into_iter()
        .map(|(ids, reason)| format!("<li>{}: {}</li>\n", escaped(&ids.join(", ")), escaped(reason)))
        .collect();
    format!("<section>\n<h2>Not measured</h2>\n<ul>\n{items}</ul>\n</section>\n")
}

/// Appends to a string, which cannot fail.
fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let written = text.write_fmt(arguments);
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use palimpsest_bench::suites;

    use super::*;

    #[test]
    fn the_page_holds_every_id_escapes_text_and_refers_to_nothing_outside() {
        let report = format::tests::report();
        let groups: Vec<Group> = suites::all().iter().flat_map(|suite| suite.groups()).collect();
        let page = render("palimpsest bench", &report, &groups);
        for entry in &report.results {
            assert!(page.contains(&format!("<td>{}</td>", entry.id)), "{} is missing", entry.id);
        }
        assert!(page.contains("A &lt;fast&gt; CPU"));
        assert!(page.contains("a &lt; b &amp; &quot;c&quot;"));
        assert!(!page.contains("<fast>"));
        for outside in ["<script", "http:", "https:", "<link", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }

    #[test]
    fn an_empty_report_is_a_page_too() {
        let mut report = format::tests::report();
        report.results.clear();
        report.skipped.clear();
        let page = render("palimpsest bench", &report, &[]);
        assert!(page.ends_with("</html>\n"));
        assert!(!page.contains("NaN"));
    }
}
