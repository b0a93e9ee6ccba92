//! Cost against a number or a size: figures of time whose ids have the form `KIND.COUNT.WHO` or `KIND.COUNT.WHO.ORDER`,
//! of those kinds whose axes [`Per::of`] can name.

use std::collections::BTreeMap;

use palimpsest_bench::harness::record::{Entry, Unit};

use super::push;
use super::scale::Scale;
use super::text::escaped;
use crate::bench::format;

pub(super) const WIDTH: f64 = 520.0;
pub(super) const HEIGHT: f64 = 340.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 408.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 286.0;

/// Distance that keeps two labels at the right end apart.
const LABEL_ROW: f64 = 15.0;

/// Curves that belong on one chart.
pub(super) struct Family<'a> {
    pub(super) title: String,
    unit: &'static str,
    per: Per,
    curves: Vec<Curve<'a>>,
}

/// What the axes mean.
struct Per {
    /// What is done once for each value on the vertical axis.
    deed: &'static str,
    /// What is counted on the horizontal axis.
    counted: &'static str,
}

impl Per {
    /// Returns the axes of figures of this kind; none for kinds whose number may count anything.
    fn of(kind: &str) -> Option<Self> {
        let (deed, counted) = match kind {
            "bpf.load" => ("load", "instructions"),
            "bpf.roundrobin" | "pack.call" => ("call", "programs taking turns"),
            "bpf.verify" => ("program", "instructions"),
            "fork" => ("fork", "MiB of heap"),
            // The curves are the kinds of a request's wait, and the fork.
            "fork.mix" => ("fork or request", "percent of writes"),
            // The curves are the stops, and what filling the heap takes before.
            "fork.pause" => ("heap", "MiB of heap"),
            "keys.toggle" => ("switching of all sites", "sites"),
            "paging.fork" => ("fork", "MiB in pages of 4 KiB"),
            "reset" => ("going back", "pages written"),
            "wasmtime.call" => ("call", "modules taking turns"),
            "wasmtime.instantiate" => ("instance", "modules"),
            "wasmtime.load" => ("load", "modules"),
            _ => return None,
        };
        Some(Self { deed, counted })
    }
}

struct Curve<'a> {
    name: &'a str,
    points: BTreeMap<u32, &'a Entry>,
}

impl Family<'_> {
    /// Leaves out all curves except those with these names.
    pub(super) fn keep(&mut self, names: &[&str]) {
        self.curves.retain(|curve| names.contains(&curve.name));
    }

    /// Returns what the vertical axis shows.
    pub(super) fn measure(&self) -> String {
        format!("{} per {}", self.unit, self.per.deed)
    }
}

/// Returns the parts of an id that varies with a count: what it measures, the count, who, and in which order.
fn parse(id: &str) -> Option<(&str, u32, &str, &str)> {
    let mut start = 0;
    for part in id.split('.') {
        let end = start + part.len();
        if let Some(count) = count(part).filter(|_| start > 0) {
            let mut rest = id.get(end + 1..)?.splitn(2, '.');
            return Some((id.get(..start - 1)?, count, rest.next()?, rest.next().unwrap_or("")));
        }
        start = end + 1;
    }
    None
}

/// Reads a number of things, or a size in MiB.
fn count(part: &str) -> Option<u32> {
    match part.split_at_checked(part.len().checked_sub(1)?)? {
        (number, "m") => number.parse().ok(),
        (number, "g") => number.parse::<u32>().ok()?.checked_mul(1024),
        _ => part.parse().ok(),
    }
}

fn is_time(unit: Unit) -> bool {
    matches!(unit, Unit::Nanoseconds | Unit::Microseconds | Unit::Milliseconds)
}

/// Returns all charts that have curves of at least two points.
pub(super) fn families(results: &[Entry]) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for entry in results {
        let Some((kind, count, who, order)) = parse(&entry.id).filter(|_| is_time(entry.unit)) else {
            continue;
        };
        let Some(per) = Per::of(kind) else { continue };
        let title = if order.is_empty() { kind.to_owned() } else { format!("{kind}, {order}") };
        let place = families.iter().position(|family| family.title == title).unwrap_or_else(|| {
            families.push(Family { title, unit: entry.unit.symbol(), per, curves: Vec::new() });
            families.len() - 1
        });
        let curves = &mut families[place].curves;
        let place = curves.iter().position(|curve| curve.name == who).unwrap_or_else(|| {
            curves.push(Curve { name: who, points: BTreeMap::new() });
            curves.len() - 1
        });
        curves[place].points.insert(count, entry);
    }
    for family in &mut families {
        // One point is not a curve, and a logarithmic axis has no place for zero.
        family.curves.retain(|curve| {
            curve.points.len() > 1 && curve.points.iter().all(|(&count, entry)| count > 0 && entry.min > 0.0)
        });
    }
    families.retain(|family| !family.curves.is_empty());
    families
}

/// Returns the figure element of one chart.
pub(super) fn figure(family: &Family<'_>) -> String {
    let title = escaped(&family.title);
    format!(
        "<figure><figcaption>{title}, {}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n{}</svg></figure>\n",
        family.measure(),
        chart(family)
    )
}

/// Returns axes and curves, in a box of [`WIDTH`] and [`HEIGHT`].
pub(super) fn chart(family: &Family<'_>) -> String {
    let entries = || family.curves.iter().flat_map(|curve| curve.points.values());
    let counts = || family.curves.iter().flat_map(|curve| curve.points.keys().copied());
    let (Some(fewest), Some(most)) = (counts().min(), counts().max()) else {
        return String::new();
    };
    let smallest = entries().map(|entry| entry.min).fold(f64::INFINITY, f64::min);
    let largest = entries().map(|entry| entry.max).fold(0.0, f64::max);
    let x = Scale::logarithmic(f64::from(fewest), f64::from(most), LEFT, RIGHT);
    let y = Scale::logarithmic(smallest, largest, BOTTOM, TOP);
    let mut svg = String::new();
    for tick in y.ticks() {
        let at = y.place(tick);
        push(
            &mut svg,
            format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>\
                 <text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{}</text>\n",
                LEFT - 7.0,
                at + 4.0,
                format::tick(tick)
            ),
        );
    }
    let mut marked: Vec<u32> = counts().collect();
    marked.sort_unstable();
    marked.dedup();
    for count in marked {
        let at = x.place(f64::from(count));
        push(
            &mut svg,
            format_args!(
                "<path class=\"grid\" d=\"M{at:.1} {TOP}V{BOTTOM}\"/>\
                 <text class=\"tick\" x=\"{at:.1}\" y=\"{}\">{count}</text>\n",
                BOTTOM + 17.0
            ),
        );
    }
    push(
        &mut svg,
        format_args!(
            "<text class=\"tick\" x=\"{}\" y=\"{}\">{} (both axes logarithmic)</text>\n",
            f64::midpoint(LEFT, RIGHT),
            BOTTOM + 38.0,
            family.per.counted
        ),
    );
    let labels = label_places(family, y);
    for (number, (curve, label)) in family.curves.iter().zip(labels).enumerate() {
        draw(&mut svg, curve, number, [x, y], label);
    }
    svg
}

fn draw(svg: &mut String, curve: &Curve<'_>, number: usize, [x, y]: [Scale; 2], label: f64) {
    let at = |count: &u32| x.place(f64::from(*count));
    let line: String = curve
        .points
        .iter()
        .enumerate()
        .map(|(place, (count, entry))| {
            let command = if place == 0 { 'M' } else { 'L' };
            format!("{command}{:.1} {:.1}", at(count), y.place(entry.median))
        })
        .collect();
    let above = curve.points.iter().map(|(count, entry)| format!("{:.1} {:.1}", at(count), y.place(entry.max)));
    let below = curve.points.iter().rev().map(|(count, entry)| format!("{:.1} {:.1}", at(count), y.place(entry.min)));
    let band: Vec<String> = above.chain(below).collect();
    push(
        svg,
        format_args!(
            "<g class=\"curve c{}\"><path class=\"band\" d=\"M{}Z\"/><path class=\"line\" d=\"{line}\"/>",
            number % 4,
            band.join("L")
        ),
    );
    for (count, entry) in &curve.points {
        push(
            svg,
            format_args!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}: {}</title></circle>",
                at(count),
                y.place(entry.median),
                escaped(&entry.id),
                format::value(entry.median, entry.unit)
            ),
        );
    }
    push(
        svg,
        format_args!(
            "<text class=\"name\" x=\"{}\" y=\"{:.1}\">{}</text></g>\n",
            RIGHT + 4.0,
            label + 4.0,
            escaped(curve.name)
        ),
    );
}

/// Returns where the names at the right end go: beside the last point, moved down where they would overlap.
fn label_places(family: &Family<'_>, y: Scale) -> Vec<f64> {
    let wanted: Vec<f64> = family
        .curves
        .iter()
        .map(|curve| curve.points.last_key_value().map_or(BOTTOM, |(_, entry)| y.place(entry.median)))
        .collect();
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&left, &right| wanted[left].total_cmp(&wanted[right]));
    let mut places = wanted.clone();
    let mut free_from = f64::NEG_INFINITY;
    for index in order {
        places[index] = wanted[index].max(free_from);
        free_from = places[index] + LABEL_ROW;
    }
    places
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use palimpsest_bench::harness::sampler::Summary;
    use palimpsest_bench::suites;

    use super::*;

    #[test]
    fn ids_with_a_count_become_curves() {
        assert_eq!(parse("pack.call.160.packed"), Some(("pack.call", 160, "packed", "")));
        assert_eq!(parse("pack.call.160.packed.random"), Some(("pack.call", 160, "packed", "random")));
        assert_eq!(parse("keys.toggle.56.batched.t1"), Some(("keys.toggle", 56, "batched", "t1")));
        assert_eq!(parse("fork.4g.frozen"), Some(("fork", 4096, "frozen", "")));
        assert_eq!(parse("paging.fork.64g.cow"), Some(("paging.fork", 65_536, "cow", "")));
        assert_eq!(parse("reset.16.known"), Some(("reset", 16, "known", "")));
        for id in ["pack.load.packed", "pack.threads.1", "fork.dirty1.frozen", "64m.frozen", "", "m"] {
            assert_eq!(parse(id), None, "{id}");
        }
    }

    #[test]
    fn a_report_gives_one_chart_per_order() {
        let report = format::tests::report();
        let families = families(&report.results);
        let titles: Vec<&str> = families.iter().map(|family| family.title.as_str()).collect();
        assert_eq!(titles, ["pack.call", "pack.call, random"]);
        assert!(families.iter().all(|family| family.curves.len() == 3));
        let svg = figure(&families[0]);
        assert!(!svg.contains("NaN"));
        for name in ["packed", "page_each", "bucket_128k"] {
            assert!(svg.contains(&format!(">{name}</text>")));
        }
    }

    /// Returns a figure of one value.
    fn entry(id: &str, unit: Unit) -> Entry {
        Entry::new(id, unit, Summary::of(&[1.0]).expect("one sample"))
    }

    #[test]
    fn the_axes_are_those_of_the_kind_and_unknown_kinds_have_no_chart() {
        let ids = ["bpf.load.20.jit", "bpf.load.100.jit", "no.such.20.kind", "no.such.100.kind"];
        let entries = ids.map(|id| entry(id, Unit::Microseconds));
        let families = families(&entries);
        assert_eq!(families.iter().map(|family| family.title.as_str()).collect::<Vec<_>>(), ["bpf.load"]);
        let svg = figure(&families[0]);
        assert!(svg.contains("µs per load") && svg.contains(">instructions (both axes logarithmic)"));
        assert!(!svg.contains("programs taking turns"));
    }

    #[test]
    fn every_curve_that_the_suites_measure_has_axes() {
        let groups = suites::all().into_iter().flat_map(|suite| suite.groups());
        let mut curves: BTreeMap<(String, String), BTreeSet<u32>> = BTreeMap::new();
        for contestant in groups.flat_map(|group| group.contestants).filter(|contestant| is_time(contestant.unit)) {
            let Some((kind, count, who, order)) = parse(&contestant.id) else { continue };
            curves.entry((kind.to_owned(), format!("{who}.{order}"))).or_default().insert(count);
        }
        let unnamed: BTreeSet<&str> = curves
            .iter()
            .filter(|((kind, _), counts)| counts.len() > 1 && Per::of(kind).is_none())
            .map(|((kind, _), _)| kind.as_str())
            .collect();
        assert!(unnamed.is_empty(), "{unnamed:?}");
    }

    #[test]
    fn names_do_not_overlap() {
        let report = format::tests::report();
        let family = &families(&report.results)[0];
        let mut places = label_places(family, Scale::logarithmic(1.0, 1e9, BOTTOM, TOP));
        places.sort_by(f64::total_cmp);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_ROW - 1e-9));
    }
}
