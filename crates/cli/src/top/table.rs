//! Processes as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use palimpsest_bench::harness::record::Unit;

use super::process::{Kind, Look, Mapping, Remark, Sums};
use crate::bench::format;

/// Returns a line for each process, with what it says below; and, once for all, what stands in the way.
pub(super) fn of(looks: &[Look]) -> String {
    if looks.is_empty() {
        return "no process here is served by `palimpsest run`, or frozen, as far as you may see; name one to hear why\n"
            .to_owned();
    }
    let mut text = format!(
        "{:>7} {:<15} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9}  WORTH\n",
        "PID", "NAME", "FROZEN", "DIRTY", "HUGE", "FORKS", "REPAIRS", "DEBT", "SAVED"
    );
    let mut reasons: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for look in looks {
        line(&mut text, look);
        if let Some(untold) = &look.untold {
            reasons.entry(untold.to_string()).or_default().push(look.process);
        }
    }
    for (reason, processes) in reasons {
        let processes: Vec<String> = processes.iter().map(ToString::to_string).collect();
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{}: {reason}", processes.join(", "));
    }
    text
}

fn line(text: &mut String, look: &Look) {
    // Whoever named the process must not talk to the terminal.
    let name: String = look.name.escape_debug().to_string().chars().take(15).collect();
    let shown = |of: fn(Sums) -> usize| look.memory.map_or_else(|| "-".to_owned(), |memory| bytes(of(memory)));
    let [frozen, dirty, huge] =
        [shown(|memory| memory.frozen), shown(|memory| memory.dirty), shown(|memory| memory.huge)];
    let _ = write!(text, "{:>7} {name:<15} {frozen:>9} {dirty:>9} {huge:>9} ", look.process);
    let Some(figures) = &look.figures else {
        let _ = writeln!(text, "{:>7} {:>7} {:>9} {:>9}", "-", "-", "-", "-");
        return mappings(text, look);
    };
    let saved = match figures.saved.checked_sub(figures.lost) {
        Some(saved) => time(saved),
        None => format!("-{}", time(figures.lost.saturating_sub(figures.saved))),
    };
    let _ = write!(
        text,
        "{:>7} {:>7} {:>9} {saved:>9}  {}",
        figures.forks,
        figures.repairs,
        time(figures.debt),
        figures.worth()
    );
    if !figures.repairing.is_zero() {
        let _ = write!(text, "; {} for repairs", time(figures.repairing));
    }
    if !figures.beside.is_zero() {
        let _ = write!(text, "; {} of that by deputies", time(figures.beside));
    }
    if !figures.longest.is_zero() {
        let _ = write!(text, "; at most {} at a time", time(figures.longest));
    }
    let huge = look.memory.map_or(0, |memory| memory.huge);
    let split = usize::try_from(figures.gathered_bytes).unwrap_or(usize::MAX).saturating_sub(huge);
    if split > 0 {
        let _ = write!(text, "; {} of what was gathered is split, or gone", bytes(split));
    }
    for remark in &look.remarks {
        let _ = write!(
            text,
            "; {}",
            match remark {
                Remark::UnderWay => "more is to come, in slices",
                Remark::OfParent => "figures of the process that it was forked from",
                Remark::Torn => "it stands still in the middle of a change",
                Remark::Thawed => "thawed again, since it did not pay",
            }
        );
    }
    text.push('\n');
    mappings(text, look);
}

fn mappings(text: &mut String, look: &Look) {
    for mapping in &look.mappings {
        let &Mapping { kind, start, end, present, dirty, huge } = mapping;
        let (what, part) = match kind {
            Kind::Frozen => ("dirty", dirty),
            Kind::Gathered => ("huge", huge),
        };
        let (length, part, present) = (bytes(end.saturating_sub(start)), bytes(part), bytes(present));
        let _ = writeln!(text, "{:7} {start:012x}-{end:012x} {length:>9} {part:>9} {what}, {present} present", "");
    }
}

fn bytes(bytes: usize) -> String {
    format::value(bytes as f64, Unit::Bytes)
}

fn time(time: Duration) -> String {
    format::value(time.as_nanos() as f64, Unit::Nanoseconds)
}

#[cfg(test)]
mod tests {
    use palimpsest_fork::figures::Figures;
    use rustix::process::Pid;

    use super::*;
    use crate::top::process::Untold;

    fn look(name: &str, untold: Option<Untold>) -> Look {
        let pid = Pid::from_raw(4711).expect("not zero");
        Look { name: name.to_owned(), untold, ..Look::untold(pid, Untold::Ended) }
    }

    fn numpy() -> Look {
        let mut look = look("python3", None);
        let mut figures = Figures::default();
        (figures.forks, figures.repairs) = (37, 2);
        (figures.once, figures.per_fork) = (Duration::from_micros(1_380_000), Duration::from_micros(350));
        (figures.saved, figures.lost) = (Duration::from_millis(12), Duration::from_millis(15));
        figures.debt = Duration::from_micros(1200);
        (look.memory, look.figures) = (Some(Sums { frozen: 512 << 20, dirty: 12 << 10, huge: 0 }), Some(figures));
        look
    }

    /// The book shows it.
    #[test]
    fn the_example_of_the_book_is_what_is_printed() {
        let process = |process, name: &str, untold| Look { process, ..look(name, untold) };
        let redis = |number, forks: u64, remarks| {
            let mut figures = Figures::default();
            (figures.forks, figures.repairs, figures.debt) = (forks, forks / 20, Duration::from_micros(622));
            figures.longest = Duration::from_micros(2030);
            (figures.once, figures.per_fork) = (Duration::from_millis(193), Duration::from_micros(10_480));
            figures.saved = figures.per_fork.saturating_mul(u32::try_from(forks).expect("few")) * 9 / 10;
            figures.repairing = Duration::from_millis(5).saturating_mul(u32::try_from(forks / 20).expect("few"));
            (figures.gathered_bytes, figures.beside) = (642 << 20, Duration::from_millis(162));
            let memory = Some(Sums { frozen: 0, dirty: 0, huge: 640 << 20 });
            Look { memory, figures: Some(figures), remarks, ..process(number, "redis-server", None) }
        };
        let none = Some(Sums { frozen: 0, dirty: 0, huge: 0 });
        let bash = Look { memory: none, ..process(4690, "bash", Some(Untold::Nothing)) };
        let refused = Untold::Refused { reason: crate::top::refusal::why(Some(33), 1000, None) };
        let mut python = Look { process: 4712, ..numpy() };
        if let Some(figures) = &mut python.figures {
            (figures.once, figures.per_fork) = (Duration::from_millis(380), Duration::from_micros(8700));
            figures.saved = Duration::from_millis(322);
        }
        let looks = [
            bash,
            python,
            redis(4713, 40, Vec::new()),
            redis(4802, 0, vec![Remark::OfParent]),
            process(4900, "php-fpm", Some(refused)),
        ];
        assert_eq!(of(&looks), include_str!("example.txt"), "{}", of(&looks));
    }

    #[test]
    fn a_process_has_a_line_with_what_it_brings() {
        let text = of(&[numpy()]);
        let words: Vec<&str> = text.lines().nth(1).expect("a line").split_ascii_whitespace().collect();
        let figures = words[..16].join(" ");
        assert_eq!(figures, "4711 python3 512 MiB 12288 B 0 B 37 2 1.20 ms -3.00 ms 1380 ms", "{text}");
        assert!(text.contains("1380 ms once, 0.35 ms a fork saved: pays after 3943 forks"), "{text}");
    }

    #[test]
    fn mappings_and_remarks_are_told_below_and_behind() {
        let mut look = numpy();
        let frozen = Mapping { kind: Kind::Frozen, start: 0x1000, end: 0x20_1000, present: 4096, dirty: 0, huge: 0 };
        let gathered = Mapping { kind: Kind::Gathered, end: 0x80_1000, present: 6 << 20, huge: 4 << 20, ..frozen };
        look.mappings = vec![frozen, gathered];
        look.remarks = vec![Remark::OfParent, Remark::Torn, Remark::Thawed];
        let text = of(&[look]);
        assert!(text.contains("000000001000-000000201000  2.00 MiB       0 B dirty, 4096 B present"), "{text}");
        assert!(text.contains("000000001000-000000801000  8.00 MiB  4.00 MiB huge, 6.00 MiB present"), "{text}");
        assert!(text.contains("forked from; it stands still in the middle of a change; thawed"), "{text}");
    }

    /// Fails on: gathered memory of which the table says nothing.
    #[test]
    fn gathered_memory_is_told_with_what_is_split_and_what_deputies_took() {
        let mut look = look("redis-server", None);
        let mut figures = Figures::default();
        (figures.once, figures.per_fork) = (Duration::from_millis(21), Duration::from_micros(1048));
        (figures.gathered_bytes, figures.beside) = (64 << 20, Duration::from_millis(14));
        (look.memory, look.figures) = (Some(Sums { frozen: 0, dirty: 0, huge: 60 << 20 }), Some(figures));
        look.remarks = vec![Remark::UnderWay];
        let text = of(std::slice::from_ref(&look));
        let line = text.lines().nth(1).expect("a line");
        assert!(line.contains("       0 B       0 B  60.0 MiB "), "{text}");
        let expected = "  21 ms once, 1.05 ms a fork saved: pays after 21 forks; 14.0 ms of that by deputies; \
                        4.00 MiB of what was gathered is split, or gone; more is to come, in slices";
        assert!(line.ends_with(expected), "{text}");
        look.memory = Some(Sums { frozen: 0, dirty: 0, huge: 64 << 20 });
        assert!(!of(&[look]).contains("split"));
    }

    #[test]
    fn what_stands_in_the_way_is_told_once_and_names_do_not_talk_to_the_terminal() {
        let hostile = "\u{1b}[2J\u{202e}\nroot\t";
        let text = of(&[look(hostile, Some(Untold::Nothing)), look("b", Some(Untold::Nothing))]);
        assert_eq!(text.matches("nothing is frozen or gathered by now").count(), 1, "{text}");
        assert!(text.lines().last().is_some_and(|line| line.starts_with("4711, 4711: ")), "{text}");
        assert!(text.chars().all(|sign| sign == '\n' || (' '..='~').contains(&sign)), "{text}");
        assert!(of(&[]).contains("name one to hear why"));
    }
}
