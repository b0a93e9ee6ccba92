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
