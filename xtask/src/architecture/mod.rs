//! Checks the tree against ARCHITECTURE.md: where operating-system and architecture code is, how long lines and files
//! are, and which modules lead back to themselves.

mod circles;
mod exceptions;
mod sources;
mod under_test;

use std::fmt;

use crate::{
    process,
    step::{Done, StepError},
    workspace::Workspace,
};

use exceptions::Exception;
use sources::Source;

/// Most columns of a line, and most lines of a file.
const COLUMNS: usize = 120;
const LINES: usize = 600;

/// Crates that need not ask `sys` for memory and threads: itself, and `bench`, whose baselines are raw calls.
const FREE: [&str; 2] = ["bench", "sys"];
/// Calls that are `sys`'s, as `libc` and `rustix::mm` name them.
const RAW: [&str; 24] = [
    "clone",
    "clone3",
    "fork",
    "madvise",
    "memfd_create",
    "mincore",
    "mlock",
    "mlockall",
    "mmap",
    "mmap64",
    "mmap_anonymous",
    "mprotect",
    "mremap",
    "mremap_fixed",
    "msync",
    "munlock",
    "munlockall",
    "munmap",
    "pkey_mprotect",
    "ptrace",
    "syscall",
    "tgkill",
    "userfaultfd",
    "vfork",
];

/// A rule that a file can break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// Crates ask `sys` for memory and threads.
    RawCall,
    /// Architectures and operating systems are told apart only under `arch/`, and in `sys`.
    Condition,
    /// A line fits a reader's window.
    LongLine,
    /// A file has one purpose.
    LongFile,
    /// Modules of a crate do not lead back to themselves, except from a parent to its child and back.
    Circle,
}

impl Rule {
    fn advice(self) -> &'static str {
        match self {
            Self::RawCall => "operating-system code belongs to crates/sys",
            Self::Condition => "a condition on the architecture or the system belongs under arch/, or to crates/sys",
            Self::LongLine => "lines have at most 120 columns",
            Self::LongFile => "files of more than 600 lines need a reason, in xtask/src/architecture/exceptions.rs",
            Self::Circle => "modules must not use each other in a circle; move what both need below them",
        }
    }
}

/// A place where a rule is broken.
#[derive(PartialEq, Eq, Debug)]
struct Breach {
    rule: Rule,
    file: String,
    /// From 1; 0 for the file as a whole.
    line: usize,
    what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {} ({})", self.file, self.line, self.what, self.rule.advice())
    }
}

/// Runs the step, which fails if a breach is covered by no exception.
pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let sources = sources::all(workspace)?;
    let breaches = breaches(&sources);
    let (mut uncovered, mut covered) = (0, vec![0; exceptions::ALL.len()]);
    for breach in &breaches {
        let place = exceptions::ALL.iter().position(|exception| exception.covers(breach.rule, &breach.file));
        match place {
            Some(place) if covered[place] < exceptions::ALL[place].most => covered[place] += 1,
            _ => {
                println!("{breach}");
                uncovered += 1;
            }
        }
    }
    for (Exception { rule, path, most, .. }, used) in exceptions::ALL.iter().zip(&covered) {
        if used < most {
            println!("note: {path} has {used} of {rule:?}, and {most} are excepted; lower it in exceptions.rs");
        }
    }
    let excepted = breaches.len() - uncovered;
    if uncovered > 0 {
        return Err(StepError::Architecture { breaches: uncovered });
    }
    Ok(Done::PassedWith(format!("{} files; {excepted} places are excepted", sources.len())))
}

fn breaches(sources: &[Source]) -> Vec<Breach> {
    let mut breaches: Vec<Breach> = sources.iter().flat_map(of_source).collect();
    breaches.extend(circles::of_crates(sources).into_iter().map(|(file, what)| Breach {
        rule: Rule::Circle,
        file,
        line: 0,
        what,
    }));
    breaches
}

fn of_source(source: &Source) -> Vec<Breach> {
    let mut found = Vec::new();
    let mut breach = |rule, line, what: String| found.push(Breach { rule, file: source.path.clone(), line, what });
    let count = source.text.lines().count();
    if source.is_rust() && count > LINES {
        breach(Rule::LongFile, 0, format!("{count} lines"));
    }
    for (index, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        // Rows of tables, in Markdown or in comments, and addresses cannot be broken.
        let words = line.trim_start().trim_start_matches("//!").trim_start_matches("///").trim_start();
        let rigid = words.starts_with('|') || line.contains("https://");
        if columns > COLUMNS && !rigid {
            breach(Rule::LongLine, index + 1, format!("{columns} columns"));
        }
    }
    if !source.is_rust() {
        return found;
    }
    let asking = source.krate().is_some_and(|krate| !FREE.contains(&krate));
    let code: Vec<(usize, &str)> = source.code().collect();
    for (place, &(index, line)) in code.iter().enumerate() {
        if asking
            && source.is_product()
            && let Some(call) = raw_call(&with_its_list(&code[place..]))
        {
            breach(Rule::RawCall, index, format!("calls {call}"));
        }
        let bound = ["adapters/", "crates/", "examples/", "guests/"].iter().any(|root| source.path.starts_with(root));
        let seam = source.path.starts_with("crates/sys/") || source.path.contains("/arch/");
        // The line that chooses the folder.
        let picks = line.contains("path = \"arch/");
        if bound && !seam && !picks && is_condition(line) {
            breach(Rule::Condition, index, line.trim().to_owned());
        }
    }
    // Examples in documentation are code too; those for one architecture are marked `ignore-ARCHITECTURE`.
    for (index, line) in source.text.lines().enumerate() {
        let words = line.trim_start();
        if (words.starts_with("//!") || words.starts_with("///")) && words.contains("#[cfg") && is_condition(words) {
            breach(Rule::Condition, index + 1, words.to_owned());
        }
    }
    found
}

/// Returns whether a line tells architectures or operating systems apart.
fn is_condition(line: &str) -> bool {
    ["target_arch", "target_os"].iter().any(|name| line.contains(name))
}

/// Returns the first of `lines`, with those behind it that end a list which it begins.
fn with_its_list(lines: &[(usize, &str)]) -> String {
    let mut text = String::new();
    for (_, line) in lines {
        text.push_str(line);
        if !text.contains("::{") || text.contains('}') {
            break;
        }
    }
    text
}

/// Returns the raw call in a line of code: `libc::mmap`, `mm::mremap`, or what [`RAW`] names in a list of imports from
/// there.
fn raw_call(line: &str) -> Option<String> {
    for module in ["libc::", "mm::"] {
        for (at, _) in line.match_indices(module) {
            let before = line[..at].chars().next_back();
            if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
                continue;
            }
            let rest = &line[at + module.len()..];
            let listed = rest.strip_prefix('{').and_then(|list| list.split('}').next());
            let names =
                listed.map_or_else(|| vec![word(rest)], |list| list.split(',').map(|one| word(one.trim())).collect());
            if let Some(name) = names.into_iter().find(|name| RAW.contains(name)) {
                return Some(format!("{module}{name}"));
            }
        }
    }
    None
}

/// Returns the identifier that `text` starts with.
fn word(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<Rule> {
        breaches(&[Source::new(path, text)]).iter().map(|breach| breach.rule).collect()
    }

    #[test]
    fn the_tree_keeps_the_rules() {
        let done = step(&Workspace::find());
        assert!(done.is_ok(), "see the list above");
    }

    #[test]
    fn raw_calls_are_found_where_sys_is_to_be_asked() {
        let call = "fn f() { unsafe { libc::munmap(a, b) }; }";
        assert_eq!(rules("crates/fork/src/a.rs", call), [Rule::RawCall]);
        assert_eq!(rules("crates/text/src/a.rs", "use rustix::mm::{MapFlags, mremap};"), [Rule::RawCall]);
        assert_eq!(rules("crates/preload/src/a.rs", "    mm::madvise(a, b, c)"), [Rule::RawCall]);
        let list = "use rustix::mm::{\n    MapFlags,\n    mremap,\n};\n";
        assert_eq!(rules("crates/bpf/src/a.rs", list), [Rule::RawCall]);
        assert_eq!(rules("adapters/python/src/a.rs", call), [Rule::RawCall]);
        for fine in ["libc::munmap_notify(1)", "// libc::munmap", "rustix::mm::MapFlags::empty()", "xlibc::mmap()"] {
            assert!(rules("crates/fork/src/a.rs", fine).is_empty(), "{fine}");
        }
        for path in ["crates/sys/src/a.rs", "crates/fork/tests/a.rs", "crates/fork/src/a_tests.rs", "xtask/src/a.rs"] {
            assert!(rules(path, call).is_empty(), "{path}");
        }
        let in_tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{call}\n}}\n");
        assert!(rules("crates/fork/src/a.rs", &in_tests).is_empty());
        let behind = format!("#[cfg(test)]\nuse x;\n{call}");
        assert_eq!(rules("crates/fork/src/a.rs", &behind), [Rule::RawCall]);
    }

    #[test]
    fn conditions_stand_under_arch() {
        let condition = "#[cfg(target_arch = \"x86_64\")]";
        assert_eq!(rules("crates/text/src/key.rs", condition), [Rule::Condition]);
        assert_eq!(rules("crates/text/tests/a.rs", "if cfg!(target_os = \"linux\") {}"), [Rule::Condition]);
        assert!(rules("crates/text/src/arch/mod.rs", condition).is_empty());
        assert!(
            rules("crates/text/src/key.rs", "#[cfg_attr(target_arch = \"x86_64\", path = \"arch/x86_64.rs\")]")
                .is_empty()
        );
        assert_eq!(rules("crates/text/src/key.rs", "//! # #[cfg(target_arch = \"x86_64\")]"), [Rule::Condition]);
        assert!(rules("crates/text/src/key.rs", "//! As `target_arch` says.").is_empty());
    }

    #[test]
    fn lines_and_files_have_a_length() {
        let long = "x".repeat(121);
        assert_eq!(rules("docs/a.md", &long), [Rule::LongLine]);
        assert!(rules("docs/a.md", &format!("| {long} |")).is_empty());
        assert!(rules("crates/sys/src/a.rs", &format!("//! | {long} |")).is_empty());
        assert_eq!(rules("crates/sys/src/a.rs", &format!("/// {long} |")), [Rule::LongLine]);
        assert!(rules("docs/a.md", &"ä".repeat(120)).is_empty());
        assert_eq!(rules("crates/sys/src/a.rs", &"\n".repeat(601)), [Rule::LongFile]);
        assert!(rules("docs/a.md", &"\n".repeat(601)).is_empty());
        for path in ["crates/a/tests/b.c", "crates/a/include/b.h", "adapters/a/b.cpp", "Cargo.toml", "a.sh", "a.py"] {
            assert_eq!(rules(path, &long), [Rule::LongLine], "{path}");
            // The other rules are only for Rust.
            assert!(rules(path, &"#if target_arch; libc::mmap();\n".repeat(601)).is_empty(), "{path}");
        }
    }
}
