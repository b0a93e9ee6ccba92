//! Object files that clang makes of C: parsed, verified, interpreted and compiled.
//!
//! The sources lie in `c`, and what Debian's clang 14 made of them in `golden`. If there is a clang for eBPF, it
//! compiles them again, and everything that holds for the old ones holds for the new ones, too.

mod attributes;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/damage.rs"]
mod damage;
mod globals;
mod gnu;
mod kfuncs;
mod layout;
mod locks;
mod small;
mod timers;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palimpsest_bpf::elf::{Btf, Initial, Object, ObjectError};
use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::insn::Register;
use palimpsest_bpf::interp::Interpreter;
use palimpsest_bpf::map::{ArrayHandle, HashHandle, Kind, ValueAccess};
use palimpsest_bpf::verify::{Argument, ContextAccess, Contract, Fault, Signature, Unproven};

use common::packs;
use damage::Random;

/// What clang 14 has made of each source; inside the test program, which also runs where the repository is not.
const GOLDEN: [(&str, &[u8]); 17] = [
    ("adapt", include_bytes!("golden/adapt.o")),
    ("attributes", include_bytes!("golden/attributes.o")),
    ("calls", include_bytes!("golden/calls.o")),
    ("commands", include_bytes!("golden/commands.o")),
    ("count", include_bytes!("golden/count.o")),
    ("dynptr", include_bytes!("golden/dynptr.o")),
    ("global", include_bytes!("golden/global.o")),
    ("kfunc", include_bytes!("golden/kfunc.o")),
    ("kinds", include_bytes!("golden/kinds.o")),
    ("legacy", include_bytes!("golden/legacy.o")),
    ("lock", include_bytes!("golden/lock.o")),
    ("nested", include_bytes!("golden/nested.o")),
    ("older", include_bytes!("golden/older.o")),
    ("session", include_bytes!("golden/session.o")),
    ("small", include_bytes!("golden/small.o")),
    ("target", include_bytes!("golden/target.o")),
    ("timer", include_bytes!("golden/timer.o")),
];

/// Returns the objects of this source: the golden one, and one compiled now.
fn objects(name: &str) -> Vec<Vec<u8>> {
    let (_, golden) = GOLDEN.iter().find(|(source, _)| *source == name).expect("it is listed");
    let mut objects = vec![golden.to_vec()];
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/c");
    if !sources.is_dir() {
        eprintln!("skipped: {name}.c is not compiled: {} is not here", sources.display());
        return objects;
    }
    let flags = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-fdebug-compilation-dir=.", "-c", "-o", "-"];
    let source = format!("{name}.c");
    match Command::new("clang").args(flags).arg(&source).current_dir(&sources).output() {
        Ok(output) if output.status.success() => objects.push(output.stdout),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("skipped: {name}.c is not compiled: {}", said.lines().next().unwrap_or("no reason given"));
        }
        Err(error) => eprintln!("skipped: {name}.c is not compiled: no clang ({error})"),
    }
    objects
}

const LEN: usize = 16;

fn contract() -> Contract {
    Contract::new().context(LEN as u32, ContextAccess::Read)
}

/// A packet: kind 2, no flags, a length, source 7, stamp 99.
fn packet(length: u16) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[0] = 2;
    bytes[2..4].copy_from_slice(&length.to_le_bytes());
    bytes[4] = 7;
    bytes[8] = 99;
    bytes
}

/// How to run a program.
#[derive(Clone, Copy, Debug)]
enum Way {
    Interpreted,
    Compiled,
}

const WAYS: [Way; 2] = [Way::Interpreted, Way::Compiled];

/// Runs the program of a host. Returns what it returns, as the C type `int`.
fn run(way: Way, object: &Object, host: &Arc<Host>, name: &str, context: &mut [u8; LEN]) -> u64 {
    let program = object.program(name).unwrap_or_else(|| panic!("no program `{name}`"));
    let linked = host.verify(contract(), program.code().expect("its structure is right"));
    let linked = linked.unwrap_or_else(|error| panic!("{name}: {}", program.explain(error)));
    match way {
        Way::Interpreted => linked.interpret(&Interpreter::default(), context).expect("it ends"),
        Way::Compiled => match packs() {
            None => linked.interpret(&Interpreter::default(), context).expect("it ends"),
            Some(packs) => {
                let program = HostedProgram::load(&packs, &linked).expect("room");
                program.run_read_only(context).expect("a context")
            }
        },
    }
}

#[test]
fn programs_count_in_maps_and_variables() {
    for bytes in objects("count") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            assert_eq!(run(way, &object, &host, "count", &mut packet(100)), 0, "{way:?}");
            assert_eq!(run(way, &object, &host, "count", &mut packet(1501)), 1, "{way:?}");
            let map = |name: &str| Arc::clone(host.map(name).unwrap_or_else(|| panic!("no map `{name}`")));
            let counts = HashHandle::<u32, [u64; 2]>::new(map("counts")).expect("its types");
            assert_eq!(counts.get(&7), Some([2, 1601]));
            let total = ArrayHandle::<u64>::new(map(".data")).expect("one variable");
            assert_eq!(total.get(0), Some(1000 + 1601));
            let mut bss = vec![0; map(".bss").definition().value_len as usize];
            map(".bss").read(&[0; 4], 0, &mut bss).expect("it is there");
            assert!(bss.contains(&2) && bss.contains(&7), "{bss:?}");
            let events = map("events");
            let mut consumer = events.ring().and_then(|ring| ring.take_consumer()).expect("a ring buffer");
            let mut records = Vec::new();
            consumer.drain(|record| records.push(record.to_vec()));
            let words: Vec<u8> = [99_u64, 3002].iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(records, [words]);
        }
    }
}

#[test]
fn callbacks_texts_and_loops_are_what_c_says() {
    for bytes in objects("count") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            // 8 times the kind, and 0 to 7.
            assert_eq!(run(way, &object, &host, "sum", &mut packet(0)), 16 + 28, "{way:?}");
            assert_eq!(run(way, &object, &host, "is_ours", &mut b"palimpsest\0.....".to_owned()), 0);
            assert_ne!(run(way, &object, &host, "is_ours", &mut b"palimpsesu\0.....".to_owned()), 0);
            let mut bytes = *b"0123456789abcdef";
            let fnv = bytes
                .iter()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
            assert_eq!(run(way, &object, &host, "checksum", &mut bytes), fnv);
        }
    }
}

#[test]
fn memory_of_lengths_that_packets_say_is_checked_when_programs_run() {
    for bytes in objects("dynptr") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            let run = |name: &str, length: u16| run(way, &object, &host, name, &mut packet(length)) as u32 as i32;
            assert_eq!([0, 3, 56, 57, 65_535].map(|length| run("places", length)), [99, 99, 99, -2, -2], "{way:?}");
            assert_eq!([8, 13, 7, 5000].map(|length| run("records", length)), [1, 1, 0, 0], "{way:?}");
            let events = Arc::clone(host.map("events").expect("it is there"));
            let mut consumer = events.ring().and_then(|ring| ring.take_consumer()).expect("a ring buffer");
            let mut lengths = Vec::new();
            consumer.drain(|record| {
                assert_eq!(record[..8], 99_u64.to_le_bytes());
                lengths.push(record.len());
            });
            assert_eq!(lengths, [8, 13]);
        }
        let host = object.host().expect("good measures").build();
        let program = object.program("keeps").expect("it is there");
        let error = host.verify(contract(), program.code().expect("its structure is right"));
        let error = program.explain(error.map(drop).expect_err("a record is kept")).to_string();
        assert!(error.contains("neither submitted nor discarded") && error.contains("return 0;]"), "{error}");
    }
}

#[test]
fn every_kind_of_map_and_the_other_helpers_do_what_c_says() {
    for bytes in objects("kinds") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").cpu(|| 0).build();
            let run = |name: &str| run(way, &object, &host, name, &mut packet(1));
            // Each CPU counts by itself, and the thread may have moved on.
            let counts = [run("cpus"), run("cpus"), run("cpus")];
            assert!(counts.iter().all(|count| count % 111 == 0 && (111..=333).contains(count)), "{way:?} {counts:?}");
            assert_eq!(run("lru"), 2, "{way:?}: room for two");
            assert_eq!(run("route"), 1 + 20 + 1000, "{way:?}");
            assert_eq!(run("queues"), 10_113_221, "{way:?}");
            assert_eq!(run("bloom"), 2 + 1, "{way:?}");
            assert_eq!(run("texts") as i64, -42 + 0x1f, "{way:?}");
            assert_eq!(run("kernel"), 1 + 2 + 4, "{way:?}");
            let program = object.program("probe").expect("it is there");
            let contract = contract().unproven(Unproven::Probe);
            let linked = host.verify(contract, program.code().expect("right")).expect("it may try");
            let found = match (way, packs()) {
                (Way::Compiled, Some(packs)) => {
                    HostedProgram::load(&packs, &linked).expect("room").run_read_only(&packet(1)).expect("a context")
                }
                _ => linked.interpret(&Interpreter::default(), &mut packet(1)).expect("it ends"),
            };
            assert_eq!(found, 2 + 1, "{way:?}: nothing is there, and the room is zeroed");
        }
    }
}

#[test]
fn a_host_sends_samples_to_its_programs() {
    for bytes in objects("commands") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            let poll = || run(way, &object, &host, "poll", &mut packet(0)) as u32 as i32;
            assert_eq!(poll(), 0, "{way:?}");
            let commands = host.map("commands").and_then(|map| map.user_ring()).expect("one");
            let mut producer = commands.take_producer().expect("the only one");
            for command in [[7_u32, 100], [8, 0], [9, 300]] {
                producer.put(&command.map(u32::to_le_bytes).concat()).expect("room");
            }
            producer.put(b"short").expect("room");
            assert_eq!([poll(), poll(), poll()], [202, 201, 0], "{way:?}");
            let limits =
                HashHandle::<u32, u32>::new(Arc::clone(host.map("limits").expect("there"))).expect("its types");
            assert_eq!([7, 8, 9].map(|source| limits.get(&source)), [Some(100), Some(0), Some(300)]);
        }
    }
}

#[test]
fn functions_of_the_host_are_found_by_name() {
    use Argument::{Bytes, Number, Size};
    let noted = Arc::new(AtomicU64::new(0));
    let builder = |object: &Object, note: Signature| {
        let noted = Arc::clone(&noted);
        let host = object.host().expect("good measures");
        // In another order than the object declares them, among others.
        host.function("other", Signature::new([Number]), |_| Ok(7))
            .function("note", note, move |call| {
                noted.store(call.number(0), Ordering::Relaxed);
                Ok(0)
            })
            .function("weigh", Signature::new([Bytes, Size]), |call| {
                Ok(call.bytes(0)?.iter().map(|byte| u64::from(*byte)).sum())
            })
            .build()
    };
    for bytes in objects("calls") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            noted.store(0, Ordering::Relaxed);
            let host = builder(&object, Signature::new([Number]));
            let mut context = *b"\x01\x02\0\0\0\0\0\0\x10\0\0\0\0\0\0\0";
            assert_eq!(run(way, &object, &host, "weighs", &mut context), 19 + 6, "{way:?}");
            assert_eq!(noted.load(Ordering::Relaxed), 19);
        }
        let refused = |note: Signature, name: &str| {
            let program = object.program(name).expect("it is there");
            let host = builder(&object, note);
            let error = host.verify(contract(), program.code().expect("right")).map(drop).expect_err("refused");
            program.explain(error).to_string()
        };
        let error = refused(Signature::new([Number]), "lacks");
        assert!(error.contains("give it one of that name (`absent`) [./calls.c:24"), "{error}");
        // Its C declaration must fit: how many parameters there are, and what they are.
        for wrong in [Signature::new([]), Signature::new([Number, Number]), Signature::new([Argument::NumberOut])] {
            let error = refused(wrong, "weighs");
            assert!(error.contains("change the signature or the declaration (`note`) [./calls.c:18"), "{error}");
        }
        // Bytes are checked like those of helpers.
        let host = builder(&object, Signature::new([Number]));
        let program = object.program("weighs").expect("it is there");
        let short = Contract::new().context(15, ContextAccess::Read);
        let error = host.verify(short, program.code().expect("right")).map(drop).expect_err("refused");
        assert_eq!(error.fault, Fault::Context { min: 0, end: 16, len: 15 });
    }
}

#[test]
fn maps_of_maps_and_of_programs_begin_with_what_c_says() {
    for bytes in objects("nested") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            let count = |which: u8, place: u8| {
                let mut context = [0; LEN];
                (context[0], context[1]) = (which, place);
                run(way, &object, &host, "count_in", &mut context)
            };
            assert_eq!((count(0, 1), count(0, 1), count(2, 1)), (1, 2, 1), "{way:?}");
            assert_eq!((count(1, 1), count(3, 0), count(9, 0), count(2, 4)), (1000, 1000, 1000, 2000));
            let second = ArrayHandle::<u64>::new(Arc::clone(host.map("second").expect("there"))).expect("its types");
            assert_eq!(second.get(1), Some(1), "the map of this name is the one in place 2");
        }
        let jumps = object.maps().iter().find(|map| map.definition().name == "jumps").expect("there");
        assert_eq!(jumps.initial(), [(1, Initial::Program("there".to_owned()))]);
        let Some(packs) = packs() else { continue };
        let host = object.host().expect("good measures").build();
        let load = |name: &str| {
            let code = object.program(name).expect("there").code().expect("right");
            Arc::new(HostedProgram::load(&packs, &host.verify(contract(), code).expect("harmless")).expect("room"))
        };
        let programs = host.map("jumps").and_then(|map| map.programs()).expect("programs");
        let jump = load("jump");
        assert_eq!(jump.run_read_only(&[0; LEN]), Ok(0));
        for (number, initial) in jumps.initial() {
            let Initial::Program(name) = initial else { panic!("a program") };
            programs.set(*number, Some(load(name))).expect("a place");
        }
        assert_eq!(jump.run_read_only(&[0; LEN]), Ok(77));
    }
}

#[test]
fn maps_are_as_they_are_defined() {
    for bytes in objects("count") {
        let object = Object::parse(&bytes).expect("an object");
        let found = |name: &str| {
            let map = object.maps().iter().find(|map| map.definition().name == name);
            let definition = map.unwrap_or_else(|| panic!("no map `{name}`")).definition();
            (definition.kind, definition.key_len, definition.value_len, definition.max_entries, definition.access)
        };
        assert_eq!(found("counts"), (Kind::Hash, 4, 16, 64, ValueAccess::Write));
        assert_eq!(found("kinds"), (Kind::Array, 4, 8, 8, ValueAccess::Write));
        assert_eq!(found("events"), (Kind::RingBuffer, 0, 0, 4096, ValueAccess::Write));
        assert_eq!(found(".rodata").4, ValueAccess::Read);
        let sections: Vec<&str> = object.programs().iter().map(|program| program.section()).collect();
        assert!(sections.contains(&"hook/packet") && !sections.contains(&"shared"), "{sections:?}");
    }
    for bytes in objects("legacy") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            assert_eq!(run(way, &object, &host, "legacy", &mut [0; LEN]), 7);
            let second =
                HashHandle::<u32, u32>::new(Arc::clone(host.map("second").expect("there"))).expect("its types");
            assert_eq!((host.maps().len(), second.get(&1)), (2, Some(7)), "{way:?}");
        }
    }
}

#[test]
fn what_is_refused_is_shown_in_the_source() {
    for bytes in objects("count") {
        let object = Object::parse(&bytes).expect("an object");
        let host = object.host().expect("good measures").build();
        let program = object.program("wrong").expect("there");
        let error = host.verify(contract(), program.code().expect("right")).map(drop).expect_err("it may be null");
        let explained = program.explain(error);
        assert_eq!(explained.error().fault, Fault::MaybeNull { register: Register::R0 });
        let line = explained.line().expect("compiled with -g");
        assert!(line.file().ends_with("count.c") && line.text() == "return found->packets;", "{line}");
        let source = include_str!("c/count.c");
        let text = source.lines().nth(line.line() as usize - 1).expect("the line is there");
        assert_eq!(text.trim(), line.text());
        assert!(explained.to_string().contains("may be 0 here; compare it with 0 first ["), "{explained}");
    }
}

#[test]
fn programs_are_adapted_to_other_types() {
    let targets = objects("target");
    for (bytes, target) in objects("adapt").iter().zip(&targets) {
        // As it was compiled: id at 0, the array at 8, the small number at 16; it is longer than the context.
        let target = Object::parse(target).expect("an object");
        let target = target.btf().expect("compiled with -g");
        let object = Object::parse_for(bytes, Some(target)).expect("it is adapted");
        let host = object.host().expect("no maps").build();
        let contract = Contract::new().context(64, ContextAccess::Read);
        let run = |name: &str, context: &mut [u8]| {
            let program = object.program(name).expect("there");
            let linked = host.verify(contract.clone(), program.code().expect("right"));
            let linked = linked.unwrap_or_else(|error| panic!("{}", program.explain(error)));
            linked.interpret(&Interpreter::default(), context).expect("it ends")
        };
        let mut context = [0xee; 64];
        // Where C puts them in target.c: id at 8, small at 16, the array at 24 + 8.
        context[8..12].copy_from_slice(&3_u32.to_le_bytes());
        context[16] = 5;
        context[32 + 4..32 + 6].copy_from_slice(&4_u16.to_le_bytes());
        assert_eq!(run("request", &mut context), 3_04_05);
        // 8 + 8 + 8 + 24 bytes.
        assert_eq!(run("sizes", &mut context), 48 * 1000 + 40);
        // Types that do not exist there at all: what depends on them is refused if it can be reached.
        let empty = Object::parse(&objects("legacy")[0]).expect("an object");
        let lacking = Object::parse_for(bytes, empty.btf()).expect("it is poisoned");
        let program = lacking.program("request").expect("there");
        let error = host.verify(contract.clone(), program.code().expect("right")).map(drop).expect_err("poisoned");
        assert!(matches!(error.fault, Fault::Helper { .. }), "{error}");
    }
}

#[test]
fn damaged_objects_are_errors() {
    assert!(matches!(Object::parse(b"\x7fELF"), Err(ObjectError::Foreign { .. })));
    assert!(matches!(Object::parse(&[]), Err(ObjectError::Foreign { .. })));
    assert!(Btf::parse(&[0x9f, 0xeb, 1, 0]).is_err());
    let mut random = Random::new();
    let (mut read, mut refused) = (0, 0);
    for name in ["count", "legacy", "adapt", "target"] {
        let good = &objects(name)[0];
        let target = Object::parse(good).expect("an object");
        for round in 0..1500 {
            let bytes = random.damaged(good, round, 8);
            match Object::parse_for(&bytes, target.btf()) {
                Err(_) => refused += 1,
                Ok(object) => {
                    read += 1;
                    for program in object.programs() {
                        let _ = program.code().map(|code| Contract::new().budget(1000).verify(code).is_ok());
                        let _ = program.line(random.below(100));
                    }
                }
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused: the damage tells nothing");
}

/// Fails on: references of many sections that are the same bytes, by which a file takes memory that grows with the
/// square of its length.
#[test]
fn sections_of_references_that_overlap_are_damage() {
    /// A section's header; its type, offset and length in there (`elf(5)`).
    const HEADER: usize = 64;
    const REFERENCES: u32 = 9;
    let mut bytes = objects("count")[0].clone();
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let first = number(&bytes, 0x28) as usize;
    let count = u16::from_le_bytes([bytes[0x3c], bytes[0x3d]]);
    let mut headers = bytes[first..first + HEADER * usize::from(count)].to_vec();
    let is_wanted = |header: &&[u8]| header[4..8] == REFERENCES.to_le_bytes();
    let mut copy = headers.chunks(HEADER).find(is_wanted).expect("its code refers to maps").to_vec();
    let len = bytes.len() / 16 * 16;
    copy[24..32].copy_from_slice(&0_u64.to_le_bytes());
    copy[32..40].copy_from_slice(&(len as u64).to_le_bytes());
    let more = 500;
    (0..more).for_each(|_| headers.extend(&copy));
    let start = bytes.len() as u64;
    bytes.extend(headers);
    bytes[0x28..0x30].copy_from_slice(&start.to_le_bytes());
    bytes[0x3c..0x3e].copy_from_slice(&(count + more).to_le_bytes());
    let Err(ObjectError::Damaged { reason }) = Object::parse(&bytes) else { panic!("read") };
    assert!(reason.contains("overlap"), "{reason}");
}

#[test]
fn programs_that_share_their_code_have_one_budget() {
    // 3000 names for one function of 1001 slots: 24 MB out of 100 KB, growing with the square of the length.
    let names = |form: fn(u32) -> String| (0..3000).map(form).collect::<String>();
    let source = [
        ".section hook,\"ax\",@progbits\n".to_owned(),
        names(|n| format!(".globl f{n}\n.type f{n},@function\nf{n}:\n")),
        "r0 = 0\n".repeat(1000) + "exit\n",
        names(|n| format!(".size f{n}, 8008\n")),
    ];
    let mut child = match Command::new("clang")
        .args(["-target", "bpf", "-c", "-x", "assembler", "-", "-o", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
    {
        Ok(child) => child,
        Err(error) => return eprintln!("skipped: no clang ({error})"),
    };
    let mut input = child.stdin.take().expect("a pipe");
    // A clang without eBPF does not read it.
    let _ = std::io::Write::write_all(&mut input, source.concat().as_bytes());
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    if !output.status.success() {
        return eprintln!("skipped: this clang assembles nothing for eBPF");
    }
    let error = Object::parse(&output.stdout).expect_err("too much");
    assert!(matches!(error, ObjectError::Long { most: 1_000_000, .. }), "{error}");
}
