//! The assembly of a branch and a static call, for both architectures: that of the plugin's functions is compared with
//! `golden/<architecture>.s`. `PALIMPSEST_BLESS=1` rewrites those files; then review the changes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The functions that are compared.
const FUNCTIONS: [&str; 3] = ["plugin_unlikely", "plugin_likely", "plugin_call"];

/// This library, built for a target.
pub(crate) struct Library {
    target: &'static str,
    folder: PathBuf,
}

impl Library {
    /// Builds it; returns `None` if the target's standard library or cargo is not installed.
    pub(crate) fn build(target: &'static str) -> Option<Self> {
        let sysroot = read(Command::new("rustc").args(["--print", "target-libdir", "--target", target]));
        if !Path::new(sysroot.trim()).exists() {
            return None;
        }
        let folder = std::env::current_exe().unwrap().parent()?.parent()?.parent()?.join("golden");
        // The library alone: for an example, cargo would build what only tests need, too. It is built as quickly as may
        // be: of inlined code, the optimisation of its user counts.
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--lib", "--no-default-features", "--features", "std", "--target", target]);
        cargo
            .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "--target-dir"])
            .arg(&folder);
        let built = cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").output().ok()?;
        assert!(built.status.success(), "no library for {target}: {}", String::from_utf8_lossy(&built.stderr));
        Some(Self { target, folder })
    }

    /// Returns a command that compiles `source`, optimised, with the library.
    pub(crate) fn rustc(&self, source: &str) -> Command {
        let of_target = self.folder.join(self.target).join("debug");
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition=2024", "-Copt-level=3", "-Ccodegen-units=1", "--target", self.target, "--extern"]);
        rustc.arg(format!("palimpsest_text={}", of_target.join("libpalimpsest_text.rlib").display()));
        for dependencies in [&of_target, &self.folder.join("debug")] {
            rustc.arg("-L").arg(format!("dependency={}", dependencies.join("deps").display()));
        }
        rustc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source));
        rustc
    }
}

/// Returns what a command prints; nothing if it is not installed.
pub(crate) fn read(command: &mut Command) -> String {
    command.output().map(|output| String::from_utf8(output.stdout).unwrap()).unwrap_or_default()
}

/// Returns the assembly of the plugin, optimised, for `target`; `None` as in [`Library::build`].
fn assembly(target: &'static str) -> Option<String> {
    let library = Library::build(target)?;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plugin.s");
    let mut rustc = library.rustc("tests/keys/plugin/lib.rs");
    rustc.args(["--crate-name=key_plugin", "--crate-type=cdylib", "--emit=asm"]);
    let compiled = rustc.arg("-o").arg(&file).output().ok()?;
    let told = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "the plugin does not compile for {target}: {told}");
    Some(std::fs::read_to_string(file).unwrap())
}

/// Returns the instructions and labels of `function`, without directives for the assembler and debuggers, without the
/// site's entry, and without the varying parts of names.
fn body(assembly: &str, function: &str) -> String {
    let start = format!("{function}:");
    let lines = assembly.lines().map(str::trim_end).skip_while(|line| *line != start);
    let mut body = String::new();
    let mut in_entry = false;
    for line in lines.take_while(|line| !line.starts_with(".Lfunc_end")) {
        in_entry |= line.starts_with(".Lpalimpsest_sites");
        let directive = line.trim_start();
        let is_noise =
            directive.is_empty() || [".cfi", "#", "//", ".Ltmp"].iter().any(|start| directive.starts_with(start));
        if !in_entry && !is_noise {
            writeln!(body, "{}", without_numbers(line)).unwrap();
        }
        in_entry &= !directive.starts_with(".section\t.text");
    }
    assert!(!body.is_empty(), "there is no {function}");
    body
}

/// Returns `line` without the number of the function in labels (`.LBB7_3`), without those of labels in assembly
/// (`.Ltmp12`), and without hashes (`17h0123456789abcdefE`).
fn without_numbers(line: &str) -> String {
    const HASH: usize = 16;
    let line = match line.split_once(".Ltmp") {
        Some((before, after)) => {
            format!("{before}.Ltmp{}", after.trim_start_matches(|digit: char| digit.is_ascii_digit()))
        }
        None => line.to_owned(),
    };
    let mut parts = line.split(".LBB");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        clean.push_str(".LBB_");
        clean.push_str(part.split_once('_').map_or(part, |(_, label)| label));
    }
    match clean.find("17h").filter(|at| clean.as_bytes().get(at + 3 + HASH) == Some(&b'E')) {
        Some(at) => format!("{}{}", &clean[..at], &clean[at + 3 + HASH..]),
        None => clean,
    }
}

fn compare(architecture: &str, target: &'static str) {
    if cfg!(palimpsest_atomic_keys) {
        return;
    }
    let Some(assembly) = assembly(target) else {
        eprintln!("skipped: no standard library for {target}, or no cargo");
        return;
    };
    let bodies: Vec<String> = FUNCTIONS.iter().map(|function| body(&assembly, function)).collect();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/keys/golden/{architecture}.s"));
    let found = bodies.join("\n");
    if std::env::var_os("PALIMPSEST_BLESS").is_some() {
        std::fs::write(&golden, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&golden).unwrap(), "PALIMPSEST_BLESS=1 accepts it");
}

#[test]
fn x86_64() {
    compare("x86_64", "x86_64-unknown-linux-gnu");
}

#[test]
fn aarch64() {
    compare("aarch64", "aarch64-unknown-linux-gnu");
}
