//! One picture of four charts, for the README and the book: what stays flat while others climb. An SVG that needs
//! nothing else.

use palimpsest_bench::harness::record::Report;

use super::curves::{self, HEIGHT, WIDTH};
use super::push;
use super::text::escaped;
use crate::bench::format;

/// A chart: the shared title of the curves, which of them, and what it shows.
const CHARTS: [(&str, &[&str], &str); 4] = [
    ("fork", &["frozen", "plain", "thp"], "Fork a process"),
    ("pack.call", &["packed", "page_each", "bucket_128k"], "Call just-in-time compiled programs in turn"),
    ("keys.toggle, t1", &["batched", "one_by_one"], "Switch branches that a thread runs through"),
    ("paging.fork", &["cow", "full"], "Fork page tables"),
];

/// Room for the line above a chart.
const CAPTION: f64 = 26.0;

/// Returns the picture, without charts for which `report` has too little.
pub(crate) fn render(report: &Report) -> String {
    let mut families = curves::families(&report.results);
    let mut charts = String::new();
    let mut place = 0_u32;
    for (title, names, caption) in CHARTS {
        let Some(family) = families.iter_mut().find(|family| family.title == title) else { continue };
        family.keep(names);
        let (x, y) = (f64::from(place % 2) * WIDTH, f64::from(place / 2) * (HEIGHT + CAPTION));
        push(
            &mut charts,
            format_args!(
                "<text class=\"caption\" x=\"{}\" y=\"{}\">{}: {}</text>\n\
                 <svg x=\"{x}\" y=\"{}\" width=\"{WIDTH}\" height=\"{HEIGHT}\">\n{}</svg>\n",
                x + 12.0,
                y + 18.0,
                escaped(caption),
                escaped(&family.measure()),
                y + CAPTION,
                curves::chart(family)
            ),
        );
        place += 1;
    }
    let (width, height) = (2.0 * WIDTH, f64::from(place.div_ceil(2)) * (HEIGHT + CAPTION) + CAPTION);
    let style = include_str!("chart.css");
    let machine = escaped(&format::machine(&report.machine));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\">\n<style>\n{style}\
         svg {{ font: 13px system-ui, sans-serif; background: var(--paper); }}\n\
         .caption {{ font-weight: 600; }}\n</style>\n{charts}\
         <text class=\"tick end\" x=\"{}\" y=\"{}\">{machine}</text>\n</svg>\n",
        width - 12.0,
        height - 9.0
    )
}
