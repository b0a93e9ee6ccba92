//! Programs that are adapted to types of which only debug information tells.
//!
//! `golden` holds what rustc 1.95 has made of `host.rs`, and clang 14 of the sources in C. Where there are a rustc and
//! a clang, they compile the sources again, and everything that holds for the old ones holds for the new ones, too.
//!
//! Mutants that are caught: debug information of another build, by its id or its checksum; a link that leads elsewhere;
//! bit fields of DWARF 2 counted from the wrong end; an array of one dimension for two; a variant without its number; a
//! path that is longer than the type's.
#![cfg(feature = "dwarf")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/damage.rs"]
mod damage;
mod files;
mod hostile;
mod split;

use std::path::Path;
use std::process::Command;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use palimpsest_bpf::dwarf::{Asked, DebugInfo, DwarfError};
use palimpsest_bpf::elf::{AdaptError, Btf, Object, ObjectError};
use palimpsest_bpf::host::HostedProgram;
use palimpsest_bpf::interp::Interpreter;
use palimpsest_bpf::verify::{ContextAccess, Contract};

use common::packs;

const HOST: &[u8] = include_bytes!("golden/host.so");
const SESSION: &[u8] = include_bytes!("golden/session.o");
/// A host in C++, and a program that asks where members of its classes are.
const CLASSES: &[u8] = include_bytes!("golden/classes.so");
const PLACES: &[u8] = include_bytes!("golden/classes.o");
const FIELDS: &[u8] = include_bytes!("golden/fields.o");
/// The host in C, with its types as debug information of DWARF 2 and 5, and as BTF.
const IN_C: [&[u8]; 2] = [include_bytes!("golden/fields2.so"), include_bytes!("golden/fields5.so")];
const AS_BTF: &[u8] = include_bytes!("golden/host_btf.o");

/// Returns what the compiler makes of a source in this folder; `None`, with a word, where it cannot.
fn compiled(compiler: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dwarf");
    if !folder.is_dir() {
        eprintln!("skipped: nothing is compiled: {} is not here", folder.display());
        return None;
    }
    let out = tempfile::NamedTempFile::new().expect("a file");
    let mut command = Command::new(compiler);
    command.args(arguments).arg("-o").arg(out.path()).current_dir(&folder).env_remove("RUSTFLAGS");
    match command.output() {
        Ok(output) if output.status.success() => Some(std::fs::read(out.path()).expect("written")),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("skipped: {compiler}: {}", said.lines().next().unwrap_or("no reason given"));
            None
        }
        Err(error) => {
            eprintln!("skipped: no {compiler} ({error})");
            None
        }
    }
}

/// Libraries made of `host.rs`: the golden one, and one compiled now.
fn hosts() -> Vec<Vec<u8>> {
    let flags = "--edition 2024 -g -C opt-level=2 -C panic=abort --crate-type cdylib -C link-arg=-nostdlib host.rs";
    let flags: Vec<&str> = flags.split(' ').collect();
    [HOST.to_vec()].into_iter().chain(compiled("rustc", &flags)).collect()
}

/// The bytes of the static `name`.
fn value_of(library: &[u8], name: &str) -> Vec<u8> {
    let file = object::File::parse(library).expect("an ELF file");
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name)).expect("exported");
    let section = file.section_by_index(symbol.section_index().expect("defined")).expect("there");
    let start = (symbol.address() - section.address()) as usize;
    section.data().expect("whole")[start..][..symbol.size() as usize].to_vec()
}

/// What the program returns for these bytes, interpreted and compiled.
fn run(object: &Object, name: &str, context: &[u8]) -> u64 {
    let host = object.host().expect("no maps").build();
    let program = object.program(name).expect("there");
    let contract = Contract::new().context(context.len() as u32, ContextAccess::Read);
    let linked = host.verify(contract, program.code().expect("right"));
    let linked = linked.unwrap_or_else(|error| panic!("{name}: {}", program.explain(error)));
    let result = linked.interpret(&Interpreter::default(), &mut context.to_vec()).expect("it ends");
    if let Some(packs) = packs() {
        let compiled = HostedProgram::load(&packs, &linked).expect("room").run_read_only(context).expect("it ends");
        assert_eq!(result, compiled, "{name}");
    }
    result
}

fn session() -> Asked {
    Asked::new("model::Session").called("Session")
}

#[test]
fn programs_read_members_where_rust_has_put_them() {
    for library in hosts() {
        let context = value_of(&library, "SESSION");
        let mut asked: Vec<Asked> = Object::asks(SESSION).expect("an object").into_iter().map(Asked::from).collect();
        assert_eq!(asked, ["Phase", "Session", "State__tag", "Wide"].map(Asked::from));
        asked[1] = session();
        let types = DebugInfo::parse(&library).expect("with -g").types(asked).expect("right");
        // It is made of the type that it belongs to.
        assert_eq!(types.missing(), ["State__tag"]);
        let btf = types.btf().expect("types");
        let object = Object::parse_for(SESSION, Some(&btf)).expect("it is adapted");
        assert_eq!(run(&object, "session", &context), 42 + 300 + 5000 + 10_000 + 7_700_000 + 400_000_000);
        assert_eq!(run(&object, "more", &context) as i64, i64::from(b'x') - 300_000 - 7_000_000);
        assert_eq!(run(&object, "differences", &context), context.len() as u64);
        assert_eq!(run(&object, "values", &context), 0x7f_ffff_ffff - 3);
    }
}

#[test]
fn types_of_one_name_are_told_apart_by_their_paths() {
    let debug = DebugInfo::parse(HOST).expect("with -g");
    let adapted = |asked: &[&str]| {
        let types = debug.types(asked.iter().copied()).expect("right");
        let btf = types.btf().expect("types");
        Object::parse_for(SESSION, Some(&btf)).map(|_| types.missing().len())
    };
    let Err(ObjectError::Adapt { source: AdaptError::Ambiguous { name, .. }, .. }) = adapted(&["Session"]) else {
        panic!("they differ in `id`")
    };
    assert_eq!(name, "Session");
    assert_eq!(adapted(&["model::Session"]), Ok(0));
    assert_eq!(adapted(&["host::model::Session"]), Ok(0));
    assert_eq!(adapted(&["elsewhere::model::Session"]), Ok(1));
    assert_eq!(adapted(&["host::host::model::Session"]), Ok(1));
    // With nothing before the first separator, the path is whole.
    assert_eq!(adapted(&["::host::model::Session"]), Ok(0));
    assert_eq!(adapted(&["::model::Session"]), Ok(1));
    assert_eq!(adapted(&["a::::host::model::Session"]), Ok(1));
    // Parameters of types are part of the name.
    assert_eq!(adapted(&["option::Option<&host::model::Session>"]), Ok(0));
}

#[test]
fn types_in_c_are_as_clang_says_in_btf() {
    let byte_code = "-O2 -g -target bpf -mcpu=v3 -c fields.c";
    let byte_code: Vec<&str> = byte_code.split(' ').collect();
    let told: Vec<Vec<u8>> =
        [AS_BTF.to_vec()].into_iter().chain(compiled("clang", &[byte_code.clone(), vec!["-DHOST"]].concat())).collect();
    let programs: Vec<Vec<u8>> = [FIELDS.to_vec()].into_iter().chain(compiled("clang", &byte_code)).collect();
    let native = |flags: &'static str| {
        let arguments: Vec<&str> = flags.split(' ').chain("-DHOST -shared -nostdlib fields.c".split(' ')).collect();
        ["clang", "gcc"].into_iter().filter_map(move |compiler| compiled(compiler, &arguments))
    };
    let versions = ["-gdwarf-2", "-gdwarf-4", "-gdwarf-5", "-gdwarf-4 -fdebug-types-section", "-gdwarf-5 -gz"];
    let hosts: Vec<Vec<u8>> = IN_C.map(Vec::from).into_iter().chain(versions.into_iter().flat_map(native)).collect();
    for program in &programs {
        let asked = Object::asks(program).expect("an object");
        let expected = Object::parse(&told[0]).expect("an object");
        let expected = Object::parse_for(program, expected.btf()).expect("it is adapted");
        assert_ne!(expected.programs()[0].bytes(), Object::parse(program).expect("an object").programs()[0].bytes());
        for host in &hosts {
            let types = DebugInfo::parse(host).expect("with -g").types(asked.clone()).expect("right");
            assert_eq!(types.missing(), [""; 0]);
            let object = Object::parse_for(program, Some(&types.btf().expect("types"))).expect("it is adapted");
            let differ = |(place, (own, other)): (usize, (&[u8], &[u8]))| {
                assert_eq!(own, other, "slot {place}: {}", object.programs()[0].line(place).expect("with -g"));
            };
            let (own, other) = (object.programs()[0].bytes(), expected.programs()[0].bytes());
            own.chunks(8).zip(other.chunks(8)).enumerate().for_each(differ);
        }
    }
}

#[test]
fn classes_have_bases_and_are_in_units_of_their_own() {
    let source = "-shared -fPIC -nostdlib -fno-rtti classes.cpp";
    let built = |flags: &str| {
        let arguments: Vec<&str> = flags.split(' ').chain(source.split(' ')).collect();
        compiled("clang++", &arguments)
    };
    let now = ["-gdwarf-4 -fdebug-types-section", "-gdwarf-5 -fdebug-types-section", "-gdwarf-5"];
    for library in [CLASSES.to_vec()].into_iter().chain(now.into_iter().filter_map(built)) {
        let debug = DebugInfo::parse(&library).expect("with -g");
        let types = debug.types(Object::asks(PLACES).expect("an object")).expect("right");
        assert_eq!(types.missing(), [""; 0]);
        let object = Object::parse_for(PLACES, Some(&types.btf().expect("types"))).expect("it is adapted");
        // Behind the table of virtual functions; in the base class's padding, or behind it; statics are nowhere.
        assert_eq!(run(&object, "places", &[0; 8]), 12 + 32 * 100 + 16 * 10_000 + 16 * 1_000_000);
    }
}

#[test]
fn what_is_not_asked_for_is_not_read() {
    let debug = DebugInfo::parse(HOST).expect("with -g");
    let nothing = debug.types([""; 0]).expect("right");
    assert_eq!(nothing.btf(), Btf::parse(nothing.section()));
    let limits = debug.types(["Limits"]).expect("right");
    let all = debug.types(["model::Session"]).expect("right");
    assert!(nothing.section().len() < limits.section().len() && limits.section().len() * 3 < all.section().len());
    let error = DebugInfo::parse(SESSION).map(drop).expect_err("an object");
    assert!(matches!(error, DwarfError::Foreign { .. }) && error.to_string().contains("linked"), "{error}");
}
