//! Programs of the kind that people write, as clang makes them for each version of the instruction set: all are
//! accepted, and mean the same interpreted, compiled, and compiled with guards, whichever version they were made for.
//!
//! The sources lie in `c`. `golden` has what Debian's clang 14 made of them for v1 to v3, and its clang 19 for v4,
//! without debug information: `golden/make` makes them again. If there is a clang for eBPF, it compiles the sources
//! for v1 and v3, or for v4 if it knows that, and what holds for the old ones holds for the new ones, too.
//! `PALIMPSEST_CORPUS_VERSIONS="v1 v4"` takes only the golden ones of these versions.

#[path = "../common/mod.rs"]
mod common;

use std::path::Path;
use std::process::Command;

use palimpsest_bpf::Packs;
use palimpsest_bpf::elf::Object;
use palimpsest_bpf::host::{HostedProgram, Linked};
use palimpsest_bpf::interp::Interpreter;
use palimpsest_bpf::verify::{ContextAccess, Contract, Trust};

use common::packs;

/// Instruction sets, as clang's `-mcpu` calls them.
const VERSIONS: [&str; 4] = ["v1", "v2", "v3", "v4"];

/// A source, and what was made of it for each of [`VERSIONS`].
type Source = (&'static str, [&'static [u8]; 4]);

macro_rules! sources {
    ($($name:literal)*) => {
        [$(($name, [
            include_bytes!(concat!("golden/", $name, ".v1.o")),
            include_bytes!(concat!("golden/", $name, ".v2.o")),
            include_bytes!(concat!("golden/", $name, ".v3.o")),
            include_bytes!(concat!("golden/", $name, ".v4.o")),
        ])),*]
    };
}

const SOURCES: [Source; 12] = sources!(
    "addresses" "callbacks" "copies" "histograms" "indices" "limits" "packets" "rings" "routes" "stacks" "strings"
    "structs"
);

/// Bytes of the context: `struct ctx` of `c/corpus.h`.
const LEN: usize = 128;
/// Contexts that each program gets, one after the other, with the same maps.
const CONTEXTS: u64 = 12;

/// Compiles a source now. Says why if that is not possible.
fn compiled(name: &str, version: &str) -> Option<Vec<u8>> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/c");
    if !sources.is_dir() {
        eprintln!("skipped: {name}.c is not compiled: {} is not here", sources.display());
        return None;
    }
    let flags = ["-O2", "-g", "-target", "bpf", "-fdebug-compilation-dir=.", "-c", "-o", "-"];
    let mut command = Command::new("clang");
    command.args(flags).arg(format!("-mcpu={version}")).arg(format!("{name}.c")).current_dir(&sources);
    let said = match command.output() {
        Err(error) => format!("no clang ({error})"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // Of a version that it does not know it only says so.
            if output.status.success() && !said.contains("not a recognized processor") {
                return Some(output.stdout);
            }
            said.lines().next().unwrap_or("no reason given").to_owned()
        }
    };
    eprintln!("skipped: {name}.c is not compiled for {version}: {said}");
    None
}

/// A context: numbers near the limits of programs, and bytes that some of them read as text or as headers.
fn context(number: u64) -> [u8; LEN] {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let numbers = [0_i32, 1, 2, 5, 7, 8, 15, 16, 20, 31, 40, 55, 56, 63, 64, 100, -1, -20, i32::MIN, i32::MAX];
    let mut one = || if number % 4 == 3 { next() as i32 } else { numbers[next() as usize % numbers.len()] };
    let words = [20 + number as i32 * 10, one(), one(), one()];
    let texts: [&[u8]; 4] = [b"GET /a%20b?c ", b"-12345 7", b"34+52*1+", b"delete\0\0get\0"];
    let mut bytes = [0; LEN];
    for (place, byte) in bytes[16..].iter_mut().enumerate() {
        *byte = match number % 4 {
            0 => texts[(number / 4) as usize % 4].get(place).copied().unwrap_or(0),
            1 => next() as u8 % 8,
            2 => next() as u8,
            _ => b' ' + next() as u8 % 64,
        };
    }
    if number % 3 == 2 {
        // IPv4 with TCP, behind a tag or not.
        let tag: &[u8] = if number.is_multiple_of(2) { &[0x81, 0, 0, 5] } else { &[] };
        let header = [&[0; 12], tag, &[8, 0, 0x46, 0, 0, 60, 0, 0, 0, 0, 64, 6]].concat();
        bytes[16..16 + header.len()].copy_from_slice(&header);
    }
    for (place, word) in bytes.chunks_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Each is proven soon.
fn contract() -> Contract {
    Contract::new().context(LEN as u32, ContextAccess::Read).budget(50_000)
}

/// Returns what the verifier says of the programs that it refuses.
fn refused(what: &str, object: &Object) -> Vec<String> {
    let host = object.host().expect("good measures").cpu(|| 0).build();
    let refused = |program: &palimpsest_bpf::elf::Program| {
        let code = program.code().map_err(|error| error.to_string());
        let linked =
            code.and_then(|code| host.verify(contract(), code).map_err(|error| program.explain(error).to_string()));
        linked.err().map(|error| format!("{what}: {}: {error}", program.name()))
    };
    object.programs().iter().filter_map(refused).collect()
}

/// How programs are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Interpreted,
    Compiled(Trust),
}

/// Runs all programs of an object. Returns their names, with what they have returned.
fn results(what: &str, object: &Object, way: Way, packs: Option<&Packs>) -> Vec<(String, Vec<u64>)> {
    let trust = if let Way::Compiled(trust) = way { trust } else { Trust::Full };
    let contract = contract().trust(trust);
    let host = object.host().expect("good measures").cpu(|| 0).build();
    let run = |program: &palimpsest_bpf::elf::Program| {
        let name = program.name();
        let code = program.code().unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        let linked = host.verify(contract.clone(), code);
        let linked = linked.unwrap_or_else(|error| panic!("{what}: {name}: {}", program.explain(error)));
        let loaded = packs.filter(|_| way != Way::Interpreted).map(|packs| load(packs, &linked));
        let returned = (0..CONTEXTS).map(|number| {
            let mut context = context(number);
            let result = match &loaded {
                Some(program) => program.run_read_only(&context).map_err(|error| error.to_string()),
                None => linked.interpret(&Interpreter::default(), &mut context).map_err(|error| error.to_string()),
            };
            result.unwrap_or_else(|error| panic!("{what}: {name}: {error}"))
        });
        (name.to_owned(), returned.collect())
    };
    object.programs().iter().map(run).collect()
}

fn load(packs: &Packs, linked: &Linked) -> HostedProgram {
    HostedProgram::load(packs, linked).expect("room")
}

/// Checks the objects of one source.
fn check(name: &str) {
    let (_, golden) = SOURCES.iter().find(|(source, _)| *source == name).expect("it is listed");
    // Without a choice: all, and what clang makes now.
    let chosen = std::env::var("PALIMPSEST_CORPUS_VERSIONS").ok();
    let is_chosen = |version: &str| chosen.as_deref().is_none_or(|chosen| chosen.split(' ').any(|one| one == version));
    let golden = VERSIONS.iter().zip(golden).filter(|(version, _)| is_chosen(version));
    let mut objects: Vec<(String, Vec<u8>)> =
        golden.map(|(version, bytes)| (format!("{name}.{version}.o"), bytes.to_vec())).collect();
    if chosen.is_none() {
        let newest = compiled(name, "v4").map(|bytes| ("v4", bytes));
        let newest = newest.or_else(|| Some(("v3", compiled(name, "v3")?)));
        let now = [compiled(name, "v1").map(|bytes| ("v1", bytes)), newest];
        objects.extend(now.into_iter().flatten().map(|(version, bytes)| (format!("{name}.c for {version}"), bytes)));
    }
    let parsed = |what: &str, bytes: &[u8]| Object::parse(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    let objects: Vec<_> = objects.into_iter().map(|(what, bytes)| (parsed(&what, &bytes), what)).collect();
    let refused: Vec<String> = objects.iter().flat_map(|(object, what)| refused(what, object)).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    let packs = packs();
    let mut first: Option<Vec<(String, Vec<u64>)>> = None;
    for (object, what) in &objects {
        for way in [Way::Interpreted, Way::Compiled(Trust::Full), Way::Compiled(Trust::None)] {
            let returned = results(what, object, way, packs.as_ref());
            let first = first.get_or_insert_with(|| returned.clone());
            assert_eq!(*first, returned, "{what}: {way:?}");
        }
    }
    let first = first.expect("there are objects");
    // What returns the same each time does not say much.
    let same = first.iter().filter(|(_, returned)| returned.windows(2).all(|two| two[0] == two[1]));
    let same: Vec<&str> = same.map(|(name, _)| name.as_str()).collect();
    println!("{name}: {} programs; always the same: {same:?}", first.len());
    assert!(same.len() * 3 <= first.len(), "{first:x?}");
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*
    };
}

tests!(addresses callbacks copies histograms indices limits packets rings routes stacks strings structs);
