//! The binary interface is the one on record, `abi.txt`: prototypes, constants, and sizes and offsets, both Rust's and
//! those that a C compiler makes of the header.
//!
//! `PALIMPSEST_BLESS=1 cargo test -p palimpsest-capi --test abi` rewrites the record. It refuses to change or drop a
//! line unless the crate's version stands for another interface (the minor version, while the major one is 0): programs
//! compiled against the record go on working. Fields may be added at the end of structures that begin with their
//! `size`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use palimpsest_capi::allocations::{
    palimpsest_alloc, palimpsest_alloc_found, palimpsest_alloc_part, palimpsest_alloc_place, palimpsest_alloc_places,
    palimpsest_alloc_range, palimpsest_alloc_request, palimpsest_function,
};
use palimpsest_capi::arena::Stats as palimpsest_arena_stats;
use palimpsest_capi::data::{palimpsest_data, palimpsest_staged_data};
use palimpsest_capi::freeze::{palimpsest_freeze_options, palimpsest_freeze_report};
use palimpsest_capi::keys::palimpsest_key;
use palimpsest_capi::packs::{palimpsest_found, palimpsest_packs, palimpsest_packs_options, palimpsest_packs_stats};
use palimpsest_capi::poke::{palimpsest_applied, palimpsest_site};
use palimpsest_capi::programs::{palimpsest_fault, palimpsest_program, palimpsest_staged};
use palimpsest_capi::result::palimpsest_result;
use palimpsest_capi::snapshots::{
    palimpsest_not_taken, palimpsest_range, palimpsest_restored, palimpsest_snapshot, palimpsest_snapshot_extent,
    palimpsest_snapshot_options,
};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn size_of_field<S, T>(_field: impl Fn(&S) -> &T) -> usize {
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
                        size_of_field(|whole: &$name| &whole.$field),
                    ),
                ),)*
            )+
        ])
    };
}

/// Returns Rust's layouts.
fn in_rust() -> BTreeMap<String, String> {
    let mut found = layouts! {
        palimpsest_alloc { handle }
        palimpsest_alloc_found { size, part, state, code, read_only, read_write }
        palimpsest_alloc_part { len, align }
        palimpsest_alloc_place { address, len, working }
        palimpsest_alloc_places { size, code, read_only, read_write }
        palimpsest_alloc_range { start, len }
        palimpsest_alloc_request { size, code, read_only, read_write, in_place, reserved }
        palimpsest_applied { size, sites, syncs, mode, reserved }
        palimpsest_arena_stats { size, blocks, bytes, shared, frozen, anonymous, free, segments, refused }
        palimpsest_data { handle }
        palimpsest_fault { offset, landing }
        palimpsest_found { size, start, len, landing, name }
        palimpsest_freeze_options {
            size, least, answers, pays_within, stop_threads, collapse, no_measure, reserved
        }
        palimpsest_freeze_report {
            size, frozen, skipped, taken_ns, fork_before_ns, fork_after_ns, pays_after, verdict, is_stopped
        }
        palimpsest_function { name, offset, len }
        palimpsest_not_taken { size, start, len, reason }
        palimpsest_packs { handle }
        palimpsest_packs_options {
            size, region_len, near, reclaim_bytes, backing, write_view, fork, observers
        }
        palimpsest_packs_stats {
            size, backing, write_view, packs, programs, used_bytes, reserved_bytes, retired_bytes, largest_free_run,
            mappings, loads, frees, core_syncs, observer_errors, pinned_threads
        }
        palimpsest_program { handle }
        palimpsest_range { start, len }
        palimpsest_restored {
            size, pages, copied_pages, unmapped, remade, protected_bytes, closed, reopened, lost, is_swept, reserved
        }
        palimpsest_site { program, address, old_code, new_code, len }
        palimpsest_snapshot { handle }
        palimpsest_snapshot_extent { size, addresses, saved, not_taken }
        palimpsest_snapshot_options {
            size, ranges, range_count, except, except_count, resident, sweep, sweep_every, trust_layout, others_sleep,
            restore_descriptors, reserved
        }
        palimpsest_staged { handle }
        palimpsest_staged_data { handle }
    };
    found.insert("enum palimpsest_result".to_owned(), size_of::<palimpsest_result>().to_string());
    // Its fields are private.
    let (size, align) = (size_of::<palimpsest_key>(), align_of::<palimpsest_key>());
    found.insert("struct palimpsest_key".to_owned(), format!("{size} {align}"));
    found
}

/// Returns the header without comments and preprocessor lines.
fn header() -> String {
    let text = fs::read_to_string(Path::new(CRATE).join("include/palimpsest.h")).expect("there is a header");
    let is_code = |line: &&str| !line.trim_start().starts_with("//") && !line.starts_with('#');
    text.lines().filter(is_code).flat_map(|line| [line, "\n"]).collect()
}

/// Returns what the header declares, in its own words: prototypes, types of functions, and constants, by name.
fn declared(header: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for statement in header.split(';') {
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
    let text = fs::read_to_string(Path::new(CRATE).join("include/palimpsest.h")).expect("there is a header");
    for line in text.lines() {
        let mut words = line.trim().trim_end_matches(',').split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("#define"), Some(name), Some(value)) if name != "PALIMPSEST_H" => {
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

/// Returns names of structures and their fields, as in the header.
fn structures(header: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut is_inside = false;
    for line in header.lines() {
        if let Some(name) = line.strip_prefix("struct ").and_then(|line| line.strip_suffix(" {")) {
            found.push((name, Vec::new()));
            is_inside = true;
        } else if line.starts_with('}') {
            is_inside = false;
        } else if let (true, Some((_, fields)), Some(field)) = (is_inside, found.last_mut(), line.strip_suffix(';')) {
            let last = field.rsplit([' ', '*']).next().expect("a split has parts");
            fields.push(last.split('[').next().expect("as above"));
        }
    }
    found
}

/// Returns the C compiler's layouts of what the header declares; `None` without a compiler.
fn in_c(header: &str) -> Option<BTreeMap<String, String>> {
    let mut source = "#include <palimpsest.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    let add = |line: &str, source: &mut String| writeln!(source, "{line}").expect("a string can be written to");
    for (name, fields) in structures(header).into_iter().chain([("palimpsest_key", Vec::new())]) {
        let align = format!("(size_t)__alignof__(struct {name})");
        let line = format!("printf(\"struct {name}=%zu %zu\\n\", sizeof(struct {name}), {align});");
        add(&line, &mut source);
        for field in fields {
            let (place, size) =
                (format!("offsetof(struct {name}, {field})"), format!("sizeof(((struct {name} *)0)->{field})"));
            add(&format!("printf(\"field {name}.{field}=%zu %zu\\n\", {place}, {size});"), &mut source);
        }
    }
    add("printf(\"enum palimpsest_result=%zu\\n\", sizeof(enum palimpsest_result));\nreturn 0; }", &mut source);
    let folder = env::temp_dir().join(format!("palimpsest-capi-abi-{}", process::id()));
    fs::create_dir_all(&folder).expect("the temporary directory is writable");
    let (file, program) = (folder.join("abi.c"), folder.join("abi"));
    fs::write(&file, source).expect("as above");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu99", "-I"]).arg(Path::new(CRATE).join("include")).arg(&file).arg("-o").arg(&program);
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
    fs::remove_dir_all(&folder).expect("it is ours");
    let line = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    told.map(|told| told.lines().filter_map(line).collect())
}

/// Returns the part of the version that tells one interface from another.
fn interface() -> String {
    let mut parts = env!("CARGO_PKG_VERSION").split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if major == "0" { format!("0.{minor}") } else { major.to_owned() }
}

/// Returns what of the record is missing or different `now`.
fn broken(record: &str, now: &BTreeMap<String, String>) -> Vec<String> {
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

#[test]
fn the_interface_is_the_one_on_record() {
    let header = header();
    let (rust, declared) = (in_rust(), declared(&header));
    if let Some(c) = in_c(&header) {
        let names = |lines: &BTreeMap<String, String>| lines.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&rust), names(&c), "structures and fields of the Rust side, and of the header");
        assert_eq!(rust, c, "sizes, alignments and offsets");
    }
    assert!(declared.len() > 60, "{declared:?}");
    let now: BTreeMap<String, String> = rust.into_iter().chain(declared).collect();
    let made = now
        .iter()
        .fold(format!("interface {}\n", interface()), |made, (name, value)| made + &format!("{name}: {value}\n"));
    let path: PathBuf = Path::new(CRATE).join("abi.txt");
    let record = fs::read_to_string(&path).unwrap_or_default();
    if record.lines().next() == made.lines().next() {
        let broken = broken(&record, &now);
        assert!(broken.is_empty(), "programs that are compiled need these; raise the version: {broken:#?}");
    }
    if env::var_os("PALIMPSEST_BLESS").is_some() {
        fs::write(&path, &made).expect("the record can be written");
    }
    let record = fs::read_to_string(&path).expect("there is a record");
    assert!(record == made, "abi.txt lacks what is new: PALIMPSEST_BLESS=1 cargo test -p palimpsest-capi --test abi");
}

#[test]
fn what_is_gone_or_moved_breaks_the_interface_and_what_grows_does_not() {
    let lines = |text: &str| -> BTreeMap<String, String> {
        text.lines().filter_map(|line| line.split_once(": ")).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
    };
    let record = "interface 0.1\nfield a.size: 0 8\nfield a.b: 8 8\nfunction f: int f(void)\nstruct a: 16 8\n";
    let with = |from: &str, to: &str| broken(record, &lines(&record.replace(from, to))).len();
    assert_eq!(with("nothing", ""), 0);
    assert_eq!(with("struct a: 16 8", "field a.c: 16 8\nstruct a: 24 8"), 0);
    assert_eq!(with("a.b: 8 8", "a.b: 16 8"), 1);
    assert_eq!(with("field a.b: 8 8\n", ""), 1);
    assert_eq!(with("int f(void)", "int f(int)"), 1);
    assert_eq!(with("struct a: 16 8", "struct a: 8 8"), 1);
    // One that does not give its length must stay as it is.
    assert_eq!(with("field a.size: 0 8\nfield a.b: 8 8", "field a.b: 8 8"), 1);
    assert_eq!(with("struct a: 16 8", "struct a: 24 16"), 1);
}
