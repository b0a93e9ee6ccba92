//! Numbers and sentences that the table and the page share.

use palimpsest_bench::harness::Group;
use palimpsest_bench::harness::record::{Entry, Machine, Report, Skipped, Unit};

/// Returns a value in the unit of its kind that suits its size: `18.4 ms` rather than `18439046 ns`.
pub(crate) fn value(value: f64, unit: Unit) -> String {
    let number = |value: f64, symbol: &str| format!("{} {symbol}", significant(value));
    match unit {
        Unit::Nanoseconds => time(value),
        Unit::Microseconds => time(value * 1e3),
        Unit::Milliseconds => time(value * 1e6),
        Unit::Bytes => match value.abs() {
            size if size >= 1024.0 * 1024.0 * 1024.0 => number(value / (1024.0 * 1024.0 * 1024.0), "GiB"),
            size if size >= 1024.0 * 1024.0 => number(value / (1024.0 * 1024.0), "MiB"),
            size if size >= 16.0 * 1024.0 => number(value / 1024.0, "KiB"),
            _ => number(value, "B"),
        },
        Unit::PerSecond if value >= 1e6 => number(value / 1e6, "M/s"),
        Unit::PerSecond if value >= 1e4 => number(value / 1e3, "k/s"),
        Unit::PerSecond | Unit::Percent => number(value, unit.symbol()),
        // The id says what is counted.
        Unit::Count | Unit::Mappings if value.fract() == 0.0 => format!("{value:.0}"),
        Unit::Count | Unit::Mappings | Unit::ReservedPerUsed => significant(value),
    }
}

/// Returns nanoseconds in a unit that gives a readable number.
fn time(nanoseconds: f64) -> String {
    let (value, symbol) = match nanoseconds.abs() {
        size if size >= 1e9 => (nanoseconds / 1e9, "s"),
        size if size >= 1e6 => (nanoseconds / 1e6, "ms"),
        size if size >= 1e3 => (nanoseconds / 1e3, "µs"),
        _ => (nanoseconds, "ns"),
    };
    format!("{} {symbol}", significant(value))
}

/// Returns a mark of an axis: a round number without needless zeros.
pub(crate) fn tick(value: f64) -> String {
    if value >= 1e6 {
        format!("{} M", value / 1e6)
    } else {
        // Marks are small multiples of powers of ten; the rounding removes what the multiplication left behind.
        format!("{}", (value * 1e6).round() / 1e6)
    }
}

fn significant(value: f64) -> String {
    let size = value.abs();
    if size >= 100.0 || size == 0.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else if size >= 0.1 {
        format!("{value:.3}")
    } else if size >= 0.01 {
        format!("{value:.4}")
    } else {
        format!("{value:.5}")
    }
}

/// Returns `4.9 × page_each`, with the part of the rival's id that differs from the entry's own.
pub(crate) fn ratio(entry: &Entry) -> Option<String> {
    let (ratio, baseline) = (entry.ratio?, entry.baseline.as_deref()?);
    Some(against(ratio, baseline, &entry.id))
}

/// Returns what stands beside a figure: the ratios to further rivals, then the note.
pub(crate) fn remark(entry: &Entry) -> String {
    let mut parts: Vec<String> =
        entry.versus.iter().map(|versus| against(versus.ratio, &versus.baseline, &entry.id)).collect();
    parts.extend(entry.note.clone());
    parts.join("; ")
}

fn against(ratio: f64, rival: &str, own: &str) -> String {
    let ratio = match ratio {
        100.0.. => format!("{ratio:.0}"),
        10.0.. => format!("{ratio:.1}"),
        _ => format!("{ratio:.2}"),
    };
    format!("{ratio} × {}", difference(rival, own))
}

/// Returns what names `rival` beside `own`: its id without the shared beginning and without a shared order.
fn difference<'a>(rival: &'a str, own: &str) -> &'a str {
    if let Some(rest) = rival.strip_prefix(own).and_then(|rest| rest.strip_prefix('.')) {
        return rest;
    }
    let shared: usize = rival
        .split_inclusive('.')
        .zip(own.split_inclusive('.'))
        .take_while(|(rival, own)| rival == own)
        .map(|(part, _)| part.len())
        .sum();
    let rest = rival.get(shared..).unwrap_or(rival);
    let name = rest.trim_end_matches(".random");
    if name.is_empty() { rival } else { name }
}

/// Returns one line about the machine.
pub(crate) fn machine(machine: &Machine) -> String {
    let setting = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    format!(
        "{}, {} CPUs, {}, Linux {}, {:.1} GiB, page {} KiB, THP {} (shmem {}), palimpsest {}",
        machine.cpu,
        machine.cores,
        machine.architecture,
        machine.kernel,
        machine.memory_bytes as f64 / (1_u64 << 30) as f64,
        machine.page_bytes / 1024,
        setting(&machine.thp_enabled),
        setting(&machine.thp_shmem_enabled),
        machine.palimpsest,
    )
}

/// Returns one line about where the packs live.
pub(crate) fn backing(machine: &Machine) -> String {
    let chosen = machine.backing.as_deref().unwrap_or("none");
    if machine.refused.is_empty() {
        format!("packs: {chosen}")
    } else {
        format!("packs: {chosen} (not available: {})", machine.refused.join("; "))
    }
}

/// Returns the entries of each group that has any, in the order of the groups. Entries without a group come last, under
/// no title.
pub(crate) fn grouped<'a>(report: &'a Report, groups: &'a [Group]) -> Vec<(&'a str, Vec<&'a Entry>)> {
    let mut sections: Vec<(&str, Vec<&Entry>)> = groups
        .iter()
        .map(|group| {
            let entries = report.results.iter().filter(|entry| group.has(&entry.id));
            (group.title.as_str(), entries.collect())
        })
        .collect();
    let rest = report.results.iter().filter(|entry| !groups.iter().any(|group| group.has(&entry.id)));
    sections.push(("", rest.collect()));
    sections.retain(|(_, entries)| !entries.is_empty());
    sections
}

/// Returns what was skipped, with ids that share a reason together.
pub(crate) fn skipped(skipped: &[Skipped]) -> Vec<(Vec<&str>, &str)> {
    let mut reasons: Vec<(Vec<&str>, &str)> = Vec::new();
    for skip in skipped {
        match reasons.iter_mut().find(|(_, reason)| *reason == skip.reason) {
            Some((ids, _)) => ids.push(&skip.id),
            None => reasons.push((vec![&skip.id], &skip.reason)),
        }
    }
    reasons
}

#[cfg(test)]
pub(crate) mod tests {
    use palimpsest_bench::harness::record::{FORMAT_VERSION, Versus};
    use palimpsest_bench::harness::sampler::Summary;

    use super::*;

    /// Returns a report with every kind of content, including text that HTML must escape.
    pub(crate) fn report() -> Report {
        let mut results = Vec::new();
        for (count, scale) in [(160, 1.0), (1000, 2.0), (5000, 4.0)] {
            for suffix in ["", ".random"] {
                let entry = |who: &str, value: f64| {
                    let samples = [value * 0.9, value, value * 1.2];
                    Entry::new(
                        format!("pack.call.{count}.{who}{suffix}"),
                        Unit::Nanoseconds,
                        Summary::of(&samples).expect("three samples"),
                    )
                };
                let (page, bucket) = (entry("page_each", 20.0 * scale), entry("bucket_128k", 35.0 * scale));
                let mut ours = entry("packed", 10.0 * scale).with_note("a < b & \"c\"");
                ours.compare(&[&page, &bucket]);
                results.extend([ours, page, bucket]);
            }
        }
        let rate = Summary::of(&[2_000_000.0]).expect("one sample");
        for id in ["pack.threads.1", "pack.threads.1.page_each", "pack.threads.2", "pack.threads.2.page_each"] {
            results.push(Entry::new(id, Unit::PerSecond, rate));
        }
        Report {
            version: FORMAT_VERSION,
            machine: Machine {
                cpu: "A <fast> CPU".into(),
                cores: 2,
                architecture: "x86_64".into(),
                kernel: "6.18".into(),
                memory_bytes: 24 << 30,
                page_bytes: 4096,
                huge_page_bytes: None,
                thp_enabled: Some("madvise".into()),
                thp_shmem_enabled: None,
                palimpsest: "0.1.0".into(),
                backing: Some("small-memfd".into()),
                refused: vec!["collapsed-memfd: denied".into()],
            },
            seconds: 12.0,
            results,
            skipped: ["pack.load.jit_allocator", "pack.load.cranelift_jit"]
                .map(|id| Skipped { id: id.into(), reason: "not built".into() })
                .into(),
        }
    }

    #[test]
    fn values_have_three_digits_and_a_unit_for_people() {
        for (shown, of, unit) in [
            ("18.4 ms", 18_439_046.0, Unit::Nanoseconds),
            ("12.3 µs", 12_345.6, Unit::Nanoseconds),
            ("39.3 ns", 39.26, Unit::Nanoseconds),
            ("0.0526 ns", 0.05257, Unit::Nanoseconds),
            ("350 ns", 0.35, Unit::Microseconds),
            ("68.5 ms", 68_500.0, Unit::Microseconds),
            ("1.25 s", 1254.0, Unit::Milliseconds),
            ("0 ns", 0.0, Unit::Milliseconds),
            ("652 B", 652.0, Unit::Bytes),
            ("4107 B", 4107.0, Unit::Bytes),
            ("44.0 KiB", 45_056.0, Unit::Bytes),
            ("2.35 M/s", 2_345_678.0, Unit::PerSecond),
            ("2438 /s", 2438.0, Unit::PerSecond),
            ("50.0 %", 50.0, Unit::Percent),
            ("3", 3.0, Unit::Count),
            ("0.125", 0.125, Unit::Count),
            ("0.00060", 0.0006, Unit::Mappings),
        ] {
            assert_eq!(value(of, unit), shown);
        }
    }

    #[test]
    fn marks_have_no_needless_zeros() {
        assert_eq!(tick(200.0), "200");
        assert_eq!(tick(0.1 + 0.2), "0.3");
        assert_eq!(tick(2e6), "2 M");
    }

    #[test]
    fn ratios_name_the_rival_only() {
        let mut entry =
            Entry::new("pack.call.20000.packed.random", Unit::Nanoseconds, Summary::of(&[10.0]).expect("one sample"));
        entry.baseline = Some("pack.call.20000.page_each.random".into());
        entry.ratio = Some(4.9);
        entry.versus.push(Versus { baseline: "pack.call.20000.bucket_128k.random".into(), ratio: 8.0 });
        entry.note = Some("note".into());
        assert_eq!(ratio(&entry).as_deref(), Some("4.90 × page_each"));
        assert_eq!(remark(&entry), "8.00 × bucket_128k; note");
        assert_eq!(difference("pack.threads.2.page_each", "pack.threads.2"), "page_each");
    }

    #[test]
    fn equal_reasons_are_told_once() {
        let report = report();
        let reasons = skipped(&report.skipped);
        assert_eq!(reasons.len(), 1);
        assert_eq!(reasons[0].0.len(), 2);
    }
}
