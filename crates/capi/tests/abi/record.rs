//! The record of a binary interface: what a header declares, sizes and offsets in Rust and in C, and what breaks it.
//! The tests `abi` of palimpsest-capi and palimpsest-paging-capi share it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The functions for C of a crate.
pub(crate) struct Interface {
    /// The crate's.
    pub(crate) folder: &'static str,
    /// The crate's.
    pub(crate) version: &'static str,
    /// The crate.
    pub(crate) package: &'static str,
    /// The file in the folder `include`.
    pub(crate) header: &'static str,
    /// The enum that functions return.
    pub(crate) result: &'static str,
    /// Structures that another header declares.
    pub(crate) beside: &'static [&'static str],
}

pub(crate) fn size_of_field<S, T>(_field: impl Fn(&S) -> &T) -> usize {
    size_of::<T>()
}

/// A line for each structure and field, by name.
macro_rules! layouts {
    ($($name:ident { $($field:ident),* })+) => {
        BTreeMap::from([
            $(
                (
                    concat!("struct ", stringify!($name)).to_owned(),
                    format!("{} {}", size_of::<$name>(), align_of::<$name>()),
                ),
                $((
                    concat!("field ", stringify!($name), ".", stringify!($field)).to_owned(),
                    format!(
                        "{} {}",
                        std::mem::offset_of!($name, $field),
                        $crate::record::size_of_field(|whole: &$name| &whole.$field),
                    ),
                ),)*
            )+
        ])
    };
}

pub(crate) use layouts;

/// Returns the header `text` without comments and preprocessor lines.
fn code_of(text: &str) -> String {
    let is_code = |line: &&str| !line.trim_start().starts_with("//") && !line.starts_with('#');
    text.lines().filter(is_code).flat_map(|line| [line, "\n"]).collect()
}

/// Returns what a header declares, in its own words: prototypes, types of functions, and constants, by name.
fn declared(text: &str, header: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (structure, fields) in structures(header) {
        for (name, words) in fields.into_iter().filter(|(_, words)| words.contains('(')) {
            found.insert(format!("callback {structure}.{name}"), words.to_owned());
        }
    }
    for statement in without_structures(header).split(';') {
        let words = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        // What is behind the last brace: the first prototype follows `extern "C" {`.
        let words = words.rsplit(['{', '}']).next().unwrap_or_default().trim();
        if !words.contains('(') {
            continue;
        }
        let is_word = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
        let named = |(at, _): (usize, &str)| {
            let name = words[at..].split(|byte| !is_word(byte)).next()?;
            words[at + name.len()..].starts_with(['(', ')']).then_some(name)
        };
        let name = words.match_indices("palimpsest_").find_map(named).expect("what takes arguments has a name");
        found.insert(format!("function {name}"), words.to_owned());
    }
    for line in text.lines() {
        let mut words = line.trim().trim_end_matches(',').split_whitespace();
        match (words.next(), words.next(), words.next()) {
            // Each version has its own, and programs ask for it.
            (Some("#define"), Some(name), _) if name.contains("_VERSION") => {}
            (Some("#define"), Some(name), Some(value)) => {
                found.insert(format!("constant {name}"), value.to_owned());
            }
            (Some(name), Some("="), Some(value)) if name.starts_with("PALIMPSEST_") => {
                found.insert(format!("constant {name}"), value.to_owned());
            }
            _ => {}
        }
    }
    found
}

/// Returns the lines outside of structures.
fn without_structures(header: &str) -> String {
    let mut is_inside = false;
    let is_outside = |line: &&str| {
        let was_inside = is_inside;
        is_inside = line.starts_with("struct ") && line.ends_with(" {") || (is_inside && !line.starts_with('}'));
        !is_inside && !was_inside
    };
    header.lines().filter(is_outside).flat_map(|line| [line, "\n"]).collect()
}

/// Returns names of structures, and names and words of their fields, as in the header.
fn structures(header: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let mut found: Vec<(&str, Vec<(&str, &str)>)> = Vec::new();
    let mut is_inside = false;
    for line in header.lines() {
        if let Some(name) = line.strip_prefix("struct ").and_then(|line| line.strip_suffix(" {")) {
            found.push((name, Vec::new()));
            is_inside = true;
        } else if line.starts_with('}') {
            is_inside = false;
        } else if let (true, Some((_, fields)), Some(field)) = (is_inside, found.last_mut(), line.strip_suffix(';')) {
            let callback = field.split_once("(*").and_then(|(_, rest)| rest.split_once(')'));
            let last = field.rsplit([' ', '*']).next().expect("a split has parts");
            let plain = last.split('[').next().expect("as above");
            fields.push((callback.map_or(plain, |(name, _)| name), field.trim()));
        }
    }
    found
}

impl Interface {
    /// Checks that the interface is the one on record, `abi.txt`, and that the header's layouts are `rust`'s.
    /// `PALIMPSEST_BLESS` writes the record anew, unless that would break programs.
    pub(crate) fn check(&self, rust: BTreeMap<String, String>) {
        let folder = Path::new(self.folder);
        let text = fs::read_to_string(folder.join("include").join(self.header)).expect("there is a header");
        let header = code_of(&text);
        let declared = declared(&text, &header);
        if let Some(c) = self.in_c(&header) {
            let other: Vec<_> = rust.keys().chain(c.keys()).filter(|name| rust.get(*name) != c.get(*name)).collect();
            let told = |name: &&String| format!("{name}: {:?} in Rust, {:?} in C", rust.get(*name), c.get(*name));
            assert!(other.is_empty(), "{:#?}", other.iter().map(told).collect::<Vec<_>>());
        }
        // Each kind of line was found.
        for kind in ["function ", "constant "] {
            let count = declared.keys().filter(|name| name.starts_with(kind)).count();
            assert!(count > 10, "{count} times {kind}: {declared:?}");
        }
        let now: BTreeMap<String, String> = rust.into_iter().chain(declared).collect();
        let first = format!("interface {}\n", self.number());
        let made = now.iter().fold(first, |made, (name, value)| made + &format!("{name}: {value}\n"));
        let path: PathBuf = folder.join("abi.txt");
        let record = fs::read_to_string(&path).unwrap_or_default();
        if record.lines().next() == made.lines().next() {
            let broken = broken(&record, &now);
            assert!(broken.is_empty(), "programs that are compiled need these; raise the version: {broken:#?}");
        }
        if env::var_os("PALIMPSEST_BLESS").is_some() {
            fs::write(&path, &made).expect("the record can be written");
        }
        let record = fs::read_to_string(&path).expect("there is a record");
        let package = self.package;
        assert!(record == made, "abi.txt lacks what is new: PALIMPSEST_BLESS=1 cargo test -p {package} --test abi");
    }

    /// Returns the C compiler's layouts of what the header declares; `None` without a compiler.
    fn in_c(&self, header: &str) -> Option<BTreeMap<String, String>> {
        let (file_name, result) = (self.header, self.result);
        let mut source = format!("#include <{file_name}>\n#include <stdio.h>\nint main(void) {{\n");
        let add = |line: &str, source: &mut String| writeln!(source, "{line}").expect("a string can be written to");
        let beside = self.beside.iter().map(|name| (*name, Vec::new()));
        for (name, fields) in structures(header).into_iter().chain(beside) {
            let align = format!("(size_t)__alignof__(struct {name})");
            let line = format!("printf(\"struct {name}=%zu %zu\\n\", sizeof(struct {name}), {align});");
            add(&line, &mut source);
            for (field, _) in fields {
                let (place, size) =
                    (format!("offsetof(struct {name}, {field})"), format!("sizeof(((struct {name} *)0)->{field})"));
                add(&format!("printf(\"field {name}.{field}=%zu %zu\\n\", {place}, {size});"), &mut source);
            }
        }
        add(&format!("printf(\"enum {result}=%zu\\n\", sizeof(enum {result}));\nreturn 0; }}"), &mut source);
        let folder = tempfile::tempdir().expect("the temporary directory is writable");
        let [file, program] = ["abi.c", "abi"].map(|name| folder.path().join(name));
        fs::write(&file, source).expect("as above");
        let mut compiler = Command::new("cc");
        let include = Path::new(self.folder).join("include");
        compiler.args(["-std=gnu99", "-I"]).arg(include).arg(&file).arg("-o").arg(&program);
        let told = match compiler.output() {
            Err(error) => {
                println!("skipped: no C compiler `cc`: {error}");
                None
            }
            Ok(compiled) => {
                assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
                let ran = Command::new(&program).output().expect("the program can be started");
                Some(String::from_utf8(ran.stdout).expect("numbers"))
            }
        };
        let line = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        told.map(|told| told.lines().filter_map(line).collect())
    }

    /// Returns the part of the version that tells one interface from another.
    fn number(&self) -> String {
        let mut parts = self.version.split('.');
        let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if major == "0" { format!("0.{minor}") } else { major.to_owned() }
    }
}

/// Returns what of the record is missing or different `now`.
pub(crate) fn broken(record: &str, now: &BTreeMap<String, String>) -> Vec<String> {
    let lines = record.lines().skip(1).filter_map(|line| line.split_once(": "));
    lines
        .filter(|(name, was)| {
            let is_as_it_was = now.get(*name).is_some_and(|is| is == was);
            !is_as_it_was && !may_grow(name, was, now)
        })
        .map(|(name, was)| format!("{name} was {was}, is {:?}", now.get(name)))
        .collect()
}

/// A structure that gives its length may be longer now.
fn may_grow(name: &str, was: &str, now: &BTreeMap<String, String>) -> bool {
    let Some(structure) = name.strip_prefix("struct ") else { return false };
    let numbers = |text: &str| -> Vec<usize> { text.split(' ').filter_map(|number| number.parse().ok()).collect() };
    let (was, is) = (numbers(was), now.get(name).map(|is| numbers(is)).unwrap_or_default());
    let says = now.get(&format!("field {structure}.size")).is_some_and(|place| place.starts_with("0 "));
    says && is.len() == 2 && was.len() == 2 && is[0] > was[0] && is[1] == was[1]
}
