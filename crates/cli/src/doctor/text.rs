//! The report for people.

use std::fmt::Write as _;

use palimpsest_sys::capabilities::{Finding, Grade, Machine, Standing, Status, Verdict};

use super::Report;
use super::paint::{Paint, Tone};

/// The features first, then what was tried, then all in one sentence.
pub(super) fn render(report: &Report, paint: Paint) -> String {
    let mut text = headline(&report.machine);
    text.push('\n');
    for standing in &report.features {
        feature(&mut text, standing, paint);
    }
    text.push_str("\nWhat was tried\n");
    for each in &report.findings {
        finding(&mut text, each, paint);
    }
    let backing = report.choice.backing.as_deref().unwrap_or("none works");
    let core_sync = report.choice.core_sync.unwrap_or("none works");
    // Writing to a string cannot fail, here and below.
    let _ = write!(text, "\nPalimpsest will use\n  backing    {backing}\n  core sync  {core_sync}\n\n");
    text + &verdict(report, paint)
}

fn headline(machine: &Machine) -> String {
    let Machine { kernel, architecture, page_size, huge_page_size, numa_nodes } = machine;
    let huge =
        huge_page_size.map_or_else(|| "no huge pages".to_owned(), |bytes| format!("{} huge pages", binary(bytes)));
    let nodes = numa_nodes.len();
    let plural = if nodes == 1 { "" } else { "s" };
    format!("Linux {kernel}, {architecture}, {} pages, {huge}, {nodes} NUMA node{plural}\n", binary(*page_size))
}

fn binary(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// A line, and those below it, each with its label.
fn lines(text: &mut String, word: String, subject: &str, seen: &str, below: &[(&str, Option<&String>)]) {
    let _ = writeln!(text, "  {word}{subject:<16}{seen}");
    for (label, line) in below {
        if let Some(line) = line {
            let _ = writeln!(text, "{:28}{label:<4}  {line}", "");
        }
    }
}

fn feature(text: &mut String, Standing { feature, verdict }: &Standing, paint: Paint) {
    let (tone, word, seen, fix) = match verdict {
        Verdict::Works { how } => (Tone::Good, "works", how, None),
        Verdict::Slower { why, fix } => (Tone::Middling, "slower", why, Some(fix)),
        Verdict::Fails { why, fix } => (Tone::Bad, "FAILS", why, Some(fix)),
    };
    lines(text, paint.tone(tone, &format!("{word:<10}")), &feature.to_string(), seen, &[("fix", fix)]);
}

fn finding(text: &mut String, Finding { subject, measured, status }: &Finding, paint: Paint) {
    let (tone, word, seen, uses, fix) = match status {
        Status::Best => (Tone::Good, "best", measured, None, None),
        Status::Unneeded { why } => (Tone::Quiet, "unneeded", why, None, None),
        Status::Fallback { uses, why, fix } => (Tone::Middling, "fallback", why, Some(uses), Some(fix)),
        Status::Missing { why, fix } => (Tone::Bad, "MISSING", why, None, Some(fix)),
    };
    let word = paint.tone(tone, &format!("{word:<10}"));
    lines(text, word, &subject.to_string(), seen, &[("uses", uses), ("fix", fix)]);
}

fn verdict(report: &Report, paint: Paint) -> String {
    let counted = report.counted().count();
    let named = |grade: Grade| {
        let such = report.counted().filter(move |standing| standing.verdict.grade() == grade);
        such.map(|standing| standing.feature.to_string()).collect::<Vec<_>>().join(", ")
    };
    match report.grade {
        Grade::Best => paint.tone(Tone::Good, "Everything works at its best.") + "\n",
        Grade::Slower => format!("All {counted} work, some slower: {}.\n", named(Grade::Slower)),
        Grade::Fails => {
            format!("{}: {}.\n", paint.tone(Tone::Bad, "Does not work here"), named(Grade::Fails))
        }
    }
}
