//! CPython and Ruby: all forms of fork that the language has, while parent and children change their heaps.

use std::path::{Path, PathBuf};

use crate::support::{self, Mode};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Runs a script in both modes; its facts must be equal, and its first child must have few page tables.
fn compare(program: &Path, script_name: &str) {
    let run = |mode| {
        let folder = tempfile::tempdir().expect("a folder");
        let output = support::output(support::command(program, mode, &folder, None).arg(script(script_name)));
        (output, support::report(&folder))
    };
    let (plain, _) = run(Mode::Plain);
    let (frozen, report) = run(Mode::Frozen("refuse"));
    assert_eq!(support::facts(&plain), support::facts(&frozen), "{report}");
    let (plain, frozen) = (support::figures(&plain, "pte"), support::figures(&frozen, "pte"));
    println!("page tables of the children, kB: plain {plain:?}, frozen {frozen:?}");
    support::assert_few_tables(plain[0], frozen[0], &report);
}

#[test]
fn python_forks() {
    // Debian's, which is linked dynamically; others may not be.
    let python = support::need!("python3", "/usr/bin/python3", "python3");
    compare(&python, "python.py");
}

#[test]
fn ruby_forks() {
    let ruby = support::need!("ruby", "/usr/bin/ruby", "ruby");
    compare(&ruby, "heap.rb");
}

/// Returns why memory cannot be gathered here, if it cannot.
fn ungathered() -> Option<String> {
    let system = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let release = system("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 11) {
        return Some(format!("Linux {} does not tell of one mapping (6.11)", release.trim()));
    }
    let enabled = system("/sys/kernel/mm/transparent_hugepage/enabled");
    (!enabled.contains("[madvise]")).then(|| format!("huge pages are {:?} here, not by advice", enabled.trim()))
}

/// Fails on: gathering at forks in a row, or freezing at waits; not freezing with `--huge=off`; a program that forks
/// once, and is never looked at; a report that does not tell what is left, what was gathered and when that pays.
#[test]
fn who_waits_is_gathered_and_who_does_not_is_frozen() {
    let python = support::need!("python3", "/usr/bin/python3", "python3");
    if let Some(reason) = ungathered() {
        return println!("skipped: {reason}");
    }
    // A pause of 500 ms is long enough for a look at the process on any machine.
    for (waits, huge, pause, expected) in [
        ("waits", "auto", "500ms", "huge"),
        ("hurries", "auto", "2ms", "frozen"),
        ("once", "auto", "500ms", "huge"),
        ("waits", "gather", "500ms", "huge"),
        ("hurries", "gather", "2ms", "frozen"),
        ("waits", "off", "500ms", "frozen"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = support::command(&python, Mode::Frozen("refuse"), &folder, None);
        command.env_remove("PALIMPSEST_PAYS_AFTER").env("PALIMPSEST_PAUSE", pause).env("PALIMPSEST_HUGE", huge);
        let output = support::output(command.arg(script("forks.py")).arg(waits));
        let report = support::report(&folder);
        if expected == "huge" && output.trim().ends_with(" scarce") {
            println!("skipped: {waits} with {huge}: the kernel did not find huge pages for 60 of 64 MiB");
            continue;
        }
        assert_eq!(output.split_whitespace().next(), Some(expected), "{waits}: {output}{report}");
        assert!(report.contains("\nleft ") && !report.contains("extents of 0 kB"), "{waits}: {report}");
        assert_eq!(report.contains("\nhuge "), expected == "huge", "{waits}: {report}");
        assert!(report.contains(" ms once, about ") && report.contains("pays after about "), "{waits}: {report}");
        let verb = if report.contains("\nfrozen ") { "froze" } else { "gathered memory of" };
        assert!(report.starts_with(&format!("palimpsest: {verb} process ")), "{waits}: {report}");
    }
}
