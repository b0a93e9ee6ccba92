//! One chart per group: a bar for each entry, with the spread of its runs.
//!
//! If the largest value is far above the smallest, bars from zero would show only the largest; then the axis is
//! logarithmic, and a dot marks the median, because a bar on such an axis has no meaningful length.

use palimpsest_bench::harness::record::{Entry, Unit};

use super::push;
use super::scale::Scale;
use super::text::escaped;
use crate::bench::format;

const LABELS: f64 = 210.0;
const AXIS_END: f64 = 740.0;
const WIDTH: f64 = 860.0;
const ROW: f64 = 26.0;
const TOP: f64 = 6.0;

/// From this ratio of largest to smallest median on, the axis is logarithmic.
const FAR_APART: f64 = 30.0;

/// Returns the SVG element; nothing for a group of a single entry.
pub(super) fn figure(entries: &[&Entry]) -> String {
    let Some(first) = entries.first().filter(|_| entries.len() > 1) else {
        return String::new();
    };
    let largest = entries.iter().map(|entry| entry.max).fold(0.0, f64::max);
    let medians = || entries.iter().map(|entry| entry.median);
    let (low, high) = (medians().fold(f64::INFINITY, f64::min), medians().fold(0.0, f64::max));
    let smallest = entries.iter().map(|entry| entry.min).fold(f64::INFINITY, f64::min);
    let logarithmic = smallest > 0.0 && high / low > FAR_APART;
    let scale = if logarithmic {
        Scale::logarithmic(smallest, largest, LABELS, AXIS_END)
    } else {
        Scale::linear(largest, LABELS, AXIS_END)
    };
    let bottom = TOP + ROW * entries.len() as f64;
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">\n", bottom + 38.0, escaped(&first.id));
    axis(&mut svg, scale, bottom, first.unit, logarithmic);
    let shared = shared_beginning(entries);
    for (number, entry) in entries.iter().enumerate() {
        let middle = TOP + ROW * (number as f64 + 0.5);
        let class = if entry.is_ours() { "ours" } else { "rival" };
        let label = entry.id.get(shared..).filter(|rest| !rest.is_empty()).unwrap_or(&entry.id);
        push(
            &mut svg,
            format_args!(
                "<g class=\"{class}\"><title>{}</title><text class=\"label\" x=\"{}\" y=\"{}\">{}</text>",
                escaped(&entry.id),
                LABELS - 8.0,
                middle + 4.0,
                escaped(label)
            ),
        );
        mark(&mut svg, entry, scale, middle, logarithmic.into());
        push(&mut svg, format_args!("</g>\n"));
    }
    svg.push_str("</svg>\n");
    svg
}

/// How to draw a median.
enum Mark {
    Bar,
    Dot,
}

impl From<bool> for Mark {
    fn from(logarithmic: bool) -> Self {
        if logarithmic { Self::Dot } else { Self::Bar }
    }
}

fn mark(svg: &mut String, entry: &Entry, scale: Scale, middle: f64, mark: Mark) {
    let (median, min, max) = (scale.place(entry.median), scale.place(entry.min), scale.place(entry.max));
    match mark {
        Mark::Bar => push(
            svg,
            format_args!(
                "<rect class=\"fill\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\" rx=\"2\"/>",
                middle - 8.0,
                median - LABELS
            ),
        ),
        Mark::Dot => push(svg, format_args!("<circle class=\"fill\" cx=\"{median:.1}\" cy=\"{middle:.1}\" r=\"5\"/>")),
    }
    push(
        svg,
        format_args!(
            "<path class=\"spread\" d=\"M{min:.1} {middle:.1}H{max:.1}\
             M{min:.1} {0:.1}V{1:.1}M{max:.1} {0:.1}V{1:.1}\"/>\
             <text class=\"value\" x=\"{2:.1}\" y=\"{3:.1}\">{4}</text>",
            middle - 4.0,
            middle + 4.0,
            max.max(median) + 8.0,
            middle + 4.0,
            format::value(entry.median, entry.unit),
        ),
    );
}

fn axis(svg: &mut String, scale: Scale, bottom: f64, unit: Unit, logarithmic: bool) {
    for tick in scale.ticks() {
        let x = scale.place(tick);
        push(
            svg,
            format_args!(
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{}\">{}</text>\n",
                bottom + 15.0,
                format::tick(tick)
            ),
        );
    }
    let kind = if logarithmic { ", logarithmic" } else { "" };
    push(
        svg,
        format_args!(
            "<text class=\"tick\" x=\"{}\" y=\"{}\">{}{kind}</text>\n",
            f64::midpoint(LABELS, AXIS_END),
            bottom + 32.0,
            unit.symbol()
        ),
    );
}

/// Returns the length of the dotted beginning that all ids share.
fn shared_beginning(entries: &[&Entry]) -> usize {
    let Some(first) = entries.first() else {
        return 0;
    };
    first
        .id
        .match_indices('.')
        .map(|(dot, _)| dot + 1)
        .take_while(|&len| entries.iter().all(|entry| entry.id.get(..len) == first.id.get(..len)))
        .last()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use palimpsest_bench::harness::sampler::Summary;

    use super::*;

    fn entry(id: &str, value: f64) -> Entry {
        Entry::new(id, Unit::Milliseconds, Summary::of(&[value]).expect("one sample"))
    }

    #[test]
    fn values_far_apart_get_dots_and_near_ones_bars() {
        let (small, large, huge) = (entry("a.b.c", 1.0), entry("a.b.d", 10.0), entry("a.b.e", 1000.0));
        let near = figure(&[&small, &large]);
        assert!(near.contains("<rect") && !near.contains("logarithmic"));
        let far = figure(&[&small, &huge]);
        assert!(far.contains("<circle") && far.contains("logarithmic"));
    }

    #[test]
    fn labels_leave_out_what_all_ids_share() {
        let (one, two) = (entry("pack.load.packed", 1.0), entry("pack.load.copy", 2.0));
        let svg = figure(&[&one, &two]);
        assert!(svg.contains(">packed</text>") && svg.contains(">copy</text>"));
        let (one, two) = (entry("pack.test_tag", 1.0), entry("pack.test_tag.page_each", 2.0));
        assert!(figure(&[&one, &two]).contains(">test_tag</text>"));
    }
}
