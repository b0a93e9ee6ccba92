//! Programs with maps and helpers: verified, interpreted and compiled, on hosts that begin alike and end alike.
//!
//! Mutants that are caught: a look-up that does not forget what the same instruction returned before, a record that can
//! be used after it was given back, a value that counts as a byte too long, a 34th tail call, a ring buffer whose
//! consumer does not clear what it has read.

mod alone;
mod arrays;
mod churn;
mod classes;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/cpu.rs"]
mod cpu;
mod descriptors;
mod dynptrs;
mod ended;
mod fork;
mod helpers;
mod kernel;
mod kfuncs;
mod landing_pads;
mod locks;
mod logs;
mod memory;
mod nested;
mod printing;
mod quick;
mod runner;
mod signals;
mod stores;
mod texts;
mod typed;
mod user_ring;
mod wakes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palimpsest_bpf::host::{Host, HostBuilder, HostedError, HostedProgram, Slot};
use palimpsest_bpf::insn::Register;
use palimpsest_bpf::interp::{HelperError, Interpreter};
use palimpsest_bpf::jit::{CompileError, Target};
use palimpsest_bpf::map::{ArrayHandle, Definition, HashHandle, Kind, Map, Update, ValueAccess};
use palimpsest_bpf::verify::{Argument, ContextAccess, Contract, Fault, Signature};
use palimpsest_bpf::{Code, LoadError, Packs, VerifiedProgram, asm};

use common::packs;

/// What programs find: an array of two numbers for each of 4, a hash map, a ring buffer, a queue, an array of programs,
/// read-only text, a bloom filter, a trie.
fn builder() -> HostBuilder {
    let map = |name: &str, kind, key, value, entries| {
        Arc::new(Map::new(Definition::new(name, kind, key, value, entries)).expect("good measures"))
    };
    let text = Definition { access: ValueAccess::Read, ..Definition::new("text", Kind::Array, 4, 16, 1) };
    let text = Arc::new(Map::new(text).expect("good measures"));
    text.update(&[0; 4], b"palimpsest\0......", Update::Always).expect_err("17 bytes");
    text.update(&[0; 4], b"palimpsest\0.....", Update::Always).expect("there");
    Host::builder()
        .map(map("array", Kind::Array, 4, 16, 4))
        .map(map("hash", Kind::Hash, 8, 8, 8))
        .map(map("ring", Kind::RingBuffer, 0, 0, 4096))
        .map(map("queue", Kind::Queue, 0, 8, 2))
        .map(map("programs", Kind::Programs, 4, 4, 4))
        .map(text)
        .map(map("bloom", Kind::BloomFilter, 0, 8, 16))
        .map(map("trie", Kind::LpmTrie, 8, 8, 8))
}

const LEN: usize = 16;

fn contract() -> Contract {
    Contract::new().context(LEN as u32, ContextAccess::Write).budget(50_000)
}

fn code(text: &str) -> Code {
    let bytes = asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refused(text: &str) -> Fault {
    builder().build().verify(contract(), code(text)).map(drop).expect_err(text).fault
}

/// All that a host holds.
fn contents(host: &Host) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for map in host.maps() {
        let definition = map.definition();
        let mut keys = if matches!(definition.kind, Kind::Array | Kind::Hash) { map.keys() } else { Vec::new() };
        keys.sort_unstable();
        for key in keys {
            let mut value = vec![0; definition.value_len as usize];
            map.read(&key, 0, &mut value).expect("it is there");
            all.push((definition.name.clone(), [key, value].concat()));
        }
        if let Some(mut consumer) = map.ring().and_then(|ring| ring.take_consumer()) {
            consumer.drain(|record| all.push((definition.name.clone(), record.to_vec())));
        }
    }
    all
}

/// Runs it both ways. Returns what both return.
fn run_on(builder: impl Fn() -> HostBuilder, text: &str) -> u64 {
    let mut interpreted = [0xaa; LEN];
    let host = builder().build();
    let linked = host.verify(contract(), code(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let expected = linked.interpret(&Interpreter::default(), &mut interpreted);
    let expected = expected.unwrap_or_else(|error| panic!("{error}\n{text}"));
    let Some(packs) = packs() else { return expected };
    let mut compiled = [0xaa; LEN];
    let other = builder().build();
    let linked = other.verify(contract(), code(text)).expect("as before");
    let program = HostedProgram::load(&packs, &linked).expect("room");
    assert_eq!(program.run(&mut compiled), Ok(expected), "{text}");
    assert_eq!(compiled, interpreted, "{text}");
    assert_eq!(contents(&other), contents(&host), "{text}");
    expected
}

fn run(text: &str) -> u64 {
    run_on(builder, text)
}

/// `r0` is the address of the array's value with this number; the program goes on behind the check.
fn found(index: i32, body: &str) -> String {
    format!(
        "*(u32 *)(r10 - 4) = {index}\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\n{body}\n\
             exit\n\
         none: r0 = -1\nexit"
    )
}

#[test]
fn values_of_arrays_are_read_and_written() {
    let counts = found(2, "r1 = *(u64 *)(r0 + 8)\nr1 += 5\n*(u64 *)(r0 + 8) = r1\nr0 = r1");
    assert_eq!(run(&counts), 5);
    assert_eq!(run(&found(4, "r0 = 1")), u64::MAX);
    let added =
        found(1, "r6 = r0\nr1 = 3\nlock *(u64 *)(r6 + 0) += r1\nlock *(u64 *)(r6 + 0) += r1\nr0 = *(u32 *)(r6 + 0)");
    assert_eq!(run(&added), 6);
    // The variables of an object.
    assert_eq!(run("r1 = map[idx:5][0]+3 ll\nr0 = *(u8 *)(r1 + 1)\nexit"), u64::from(b"palimpsest"[4]));
}

#[test]
fn what_may_be_nothing_is_compared_first() {
    use Register::{R0, R1, R2, R6};
    let text = found(2, "r0 = *(u64 *)(r0 + 0)");
    assert_eq!(refused(&text.replace("if r0 == 0 goto none", "")), Fault::MaybeNull { register: R0 });
    assert_eq!(refused(&text.replace("r0 == 0", "r0 != 0")), Fault::NoAddress { register: R0 });
    // Comparing one copy tells about the other.
    assert_eq!(
        run(&found(2, "r0 = 7").replace("call 1\n", "call 1\nr6 = r0\n").replace("r0 = 7", "r0 = *(u64 *)(r6 + 0)")),
        0
    );
    // But not about what an earlier call returned in the same place.
    let twice = |compared: &str, used: &str| {
        format!(
            "r7 = 2\nagain: *(u32 *)(r10 - 4) = 0\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\n\
             if r7 == 1 goto second\nr6 = r0\nr7 += -1\ngoto again\n\
             second: if {compared} == 0 goto out\nr0 = *(u64 *)({used} + 0)\nout: r0 = 0\nexit"
        )
    };
    assert_eq!(refused(&twice("r6", "r0")), Fault::MaybeNull { register: R0 });
    assert_eq!(refused(&twice("r0", "r6")), Fault::MaybeNull { register: R6 });
    assert_eq!([run(&twice("r6", "r6")), run(&twice("r0", "r0"))], [0; 2]);
    let outside = |offset| refused(&found(0, &format!("r0 = *(u64 *)(r0 + {offset})")));
    assert_eq!(outside(9), Fault::Outside { what: "the value", min: 9, end: 17, len: 16 });
    assert_eq!(
        refused(&found(0, "r0 = *(u64 *)(r0 - 1)")),
        Fault::Outside { what: "the value", min: -1, end: 7, len: 16 }
    );
    assert_eq!(refused(&found(0, "*(u64 *)(r0 + 0) = r10\nr0 = 0")), Fault::StoredAddress { register: Register::R10 });
    assert_eq!(refused(&found(0, "")), Fault::ReturnedAddress);
    assert_eq!(refused("r1 = map[idx:9] ll\nr0 = 0\nexit"), Fault::Map { index: 9 });
    assert_eq!(refused("r1 = map[idx:0] ll\nr0 = r1\nexit"), Fault::ReturnedAddress);
    assert_eq!(refused("r1 = map[idx:0] ll\nr0 = *(u64 *)(r1 + 0)\nexit"), Fault::NoAddress { register: R1 });
    assert_eq!(refused("r1 = map[idx:5][0]+0 ll\n*(u8 *)(r1 + 0) = 1\nr0 = 0\nexit"), Fault::ReadOnlyMap);
    let key = |text: &str| refused(&found(0, "r0 = 0").replace("*(u32 *)(r10 - 4) = 0", text));
    assert_eq!(key("*(u16 *)(r10 - 4) = 0"), Fault::StackUnset { offset: -4, len: 4 });
    assert_eq!(refused(&found(0, "r0 = 0").replace("r2 += -4", "r2 += -2")), Fault::Stack { min: -2, end: 2 });
    assert_eq!(refused(&found(0, "r0 = 0").replace("r2 = r10\nr2 += -4", "r2 = 5")), Fault::NoAddress { register: R2 });
    assert_eq!(
        refused(&found(0, "r0 = 0").replace("map[idx:0]", "map[idx:2]")),
        Fault::MapKind { register: R1, kind: Kind::RingBuffer }
    );
}

/// Key and value on the stack, and the hash map in `r1`.
const PAIR: &str =
    "*(u64 *)(r10 - 8) = 77\n*(u64 *)(r10 - 16) = 5\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr1 = map[idx:1] ll\n";

#[test]
fn hash_maps_are_updated_and_emptied() {
    assert_eq!(run(&format!("{PAIR}r4 = 0\ncall 2\nexit")), 0);
    assert_eq!(run(&format!("{PAIR}r4 = 2\ncall 2\nexit")), -2_i64 as u64);
    assert_eq!(run(&format!("{PAIR}r4 = 9\ncall 2\nexit")), -22_i64 as u64);
    assert_eq!(run(&format!("{PAIR}call 3\nexit")), -2_i64 as u64);
    let kept = format!(
        "{PAIR}r4 = 0\ncall 2\nr1 = map[idx:1] ll\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto none\n\
             r0 = *(u64 *)(r0 + 0)\nexit\nnone: r0 = 1\nexit"
    );
    assert_eq!(run(&kept), 5);
    // The program finds what the host puts there, and the other way round.
    let Some(packs) = Target::NATIVE.map(|_| Packs::new().expect("packs")) else { return };
    let host = builder().build();
    let hash = HashHandle::<u64, u64>::new(Arc::clone(host.map("hash").expect("there"))).expect("its types");
    let linked = host.verify(contract(), code(&format!("{PAIR}r4 = 0\ncall 2\nexit"))).expect("harmless");
    HostedProgram::load(&packs, &linked).expect("room").run(&mut [0; LEN]).expect("a context");
    assert_eq!((hash.get(&77), hash.get(&78)), (Some(5), None));
}

#[test]
fn queues_filters_and_tries_serve_programs() {
    let pushed = |map: i32, flags: i32| {
        format!("*(u64 *)(r10 - 8) = 9\nr1 = map[idx:{map}] ll\nr2 = r10\nr2 += -8\nr3 = {flags}\ncall 87\n")
    };
    assert_eq!(
        run(&format!(
            "{}{}r1 = map[idx:3] ll\nr2 = r10\nr2 += -8\ncall 88\nr0 = *(u64 *)(r10 - 8)\nexit",
            pushed(3, 0),
            pushed(3, 2)
        )),
        9
    );
    assert_eq!(run("r1 = map[idx:3] ll\nr2 = r10\nr2 += -8\ncall 89\nexit"), -2_i64 as u64);
    let peeked = "r1 = map[idx:6] ll\nr2 = r10\nr2 += -8\ncall 89\nexit";
    assert_eq!(run(&format!("{}{peeked}", pushed(6, 0))), 0);
    assert_eq!(refused(peeked), Fault::StackUnset { offset: -8, len: 8 });
    assert_eq!(run(&format!("*(u64 *)(r10 - 8) = 3\n{peeked}")), -2_i64 as u64);
    let trie = "*(u32 *)(r10 - 8) = 8\n*(u32 *)(r10 - 4) = 10\n*(u64 *)(r10 - 16) = 6\nr1 = map[idx:7] ll\n\
         r2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 0\ncall 2\n\
                *(u32 *)(r10 - 8) = 32\n*(u32 *)(r10 - 4) = 0x0102010a\nr1 = map[idx:7] ll\nr2 = r10\nr2 += -8\n\
                     call 1\nif r0 == 0 goto none\nr0 = *(u64 *)(r0 + 0)\nexit\nnone: r0 = 0\nexit";
    assert_eq!(run(trie), 6);
}

#[test]
fn records_are_written_and_given_back() {
    let reserve = "r1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto none\n";
    let end = "none: r0 = 0\nexit";
    let submitted = format!("{reserve}*(u64 *)(r0 + 0) = 1\n*(u64 *)(r0 + 8) = 2\nr1 = r0\nr2 = 0\ncall 132\n{end}");
    assert_eq!(run(&submitted), 0);
    assert_eq!(run(&submitted.replace("call 132", "call 133")), 0);
    let host = builder().build();
    let linked = host.verify(contract(), code(&submitted)).expect("harmless");
    linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("it ends");
    let record: Vec<u8> = [1_u64, 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert!(contents(&host).contains(&("ring".to_owned(), record)));
    let output = "*(u64 *)(r10 - 8) = 7\nr1 = map[idx:2] ll\nr2 = r10\nr2 += -8\nr3 = 8\nr4 = 0\ncall 130\n\
         r1 = map[idx:2] ll\nr2 = 0\ncall 134\nexit";
    assert_eq!(run(output), 16);

    assert_eq!(refused(&format!("{reserve}r0 = 0\nexit\n{end}")), Fault::Unreleased { slot: 4 });
    assert_eq!(
        refused(&format!("{reserve}r6 = r0\nr1 = r0\nr2 = 0\ncall 132\nr0 = *(u64 *)(r6 + 0)\nexit\n{end}")),
        Fault::Unset { register: Register::R6 }
    );
    assert_eq!(
        refused(&format!("{reserve}r1 = r0\nr1 += 8\nr2 = 0\ncall 132\n{end}")),
        Fault::NoRecord { register: Register::R1 }
    );
    assert_eq!(
        refused(&format!("{reserve}*(u64 *)(r0 + 9) = 1\n{end}")),
        Fault::Outside { what: "the record", min: 9, end: 17, len: 16 }
    );
    assert_eq!(
        refused(
            &submitted
                .replace("r2 = 16", "r2 = *(u8 *)(r1 + 0)")
                .replace("r1 = map[idx:2] ll\nr2 = *(u8 *)(r1 + 0)", "r2 = *(u8 *)(r1 + 0)\nr1 = map[idx:2] ll")
        ),
        Fault::VariableSize { register: Register::R2 }
    );
    let twice = format!("r7 = 2\nagain: {reserve}r7 += -1\nif r7 != 0 goto again\n{end}");
    assert_eq!(refused(&twice), Fault::Reserved);
}

#[test]
fn functions_of_the_program_are_called_by_helpers() {
    let sum = "*(u64 *)(r10 - 8) = 0\nr1 = 10\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
         r1 = *(u64 *)(r10 - 8)\nr0 <<= 32\nr0 |= r1\nexit\n\
               f: r3 = *(u64 *)(r2 + 0)\nr3 += r1\n*(u64 *)(r2 + 0) = r3\nr0 = 0\nexit";
    assert_eq!(run(sum), 10 << 32 | 45);
    let early = sum.replace("r0 = 0\nexit", "r0 = 0\nif r1 != 3 goto on\nr0 = 1\non: exit");
    assert_eq!(run(&early), 4 << 32 | 6);
    assert_eq!(run(&sum.replace("r1 = 10", "r1 = 0")), 0);
    assert_eq!(run(&sum.replace("r1 = 10", "r1 = 100000000 ll").replace("r0 <<= 32\nr0 |= r1\n", "")), -7_i64 as u64);
    // What it leaves in the program's stack is known afterwards.
    let lost = sum.replace("r0 = 0\nexit", "*(u64 *)(r2 + 0) = r2\nr0 = 0\nexit");
    assert!(matches!(refused(&lost), Fault::Address { .. } | Fault::PartOfAddress { .. }), "{lost}");
    // It keeps what the caller keeps, and offers no way round the end of loops.
    let kept = sum
        .replace("r1 = 10", "r6 = 77\nr1 = 10")
        .replace("r0 <<= 32\nr0 |= r1", "r0 = r6")
        .replace("f: ", "f: r6 = 5\n");
    assert_eq!(run(&kept), 77);
    assert_eq!(refused(&sum.replace("f: ", "f: again: r4 = 0\nif r4 == 0 goto again\n")), Fault::Endless);
    assert_eq!(refused(&sum.replace("func[f] ll", "5")), Fault::NoFunction { register: Register::R2 });

    // Rounds of one call of the helper say nothing about how often that is called.
    let again = "again: *(u64 *)(r10 - 8) = 0\nr1 = 1\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
                 r1 = *(u64 *)(r10 - 8)\nif r1 != 0 goto again\nr0 = 0\nexit\nf: *(u64 *)(r2 + 0) = 1\nr0 = 0\nexit";
    assert_eq!(refused(again), Fault::Endless);

    let set = "r1 = map[idx:0][0]+0 ll\n*(u64 *)(r1 + 0) = 3\n";
    let each = format!(
        "{set}*(u64 *)(r10 - 8) = 0\nr1 = map[idx:0] ll\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 164\n\
             r1 = *(u64 *)(r10 - 8)\nr0 <<= 32\nr0 |= r1\nexit\n\
         f: r5 = *(u32 *)(r2 + 0)\nr6 = *(u64 *)(r3 + 0)\nr5 += r6\nr6 = *(u64 *)(r4 + 0)\nr6 += r5\n\
              *(u64 *)(r4 + 0) = r6\n*(u64 *)(r3 + 8) = r5\nr0 = 0\nexit"
    );
    assert_eq!(run(&each), 4 << 32 | 9);
    assert_eq!(refused(&each.replace("*(u64 *)(r3 + 8) = r5", "*(u32 *)(r2 + 0) = 1")), Fault::ReadOnlyMap);
    // A loop in a loop.
    let nested = "*(u64 *)(r10 - 8) = 0\nr1 = 3\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
         r0 = *(u64 *)(r10 - 8)\nexit\n\
                  f: r3 = r2\nr1 = 4\nr2 = func[g] ll\nr4 = 0\ncall 181\nr0 = 0\nexit\n\
                  g: r3 = 1\nlock *(u64 *)(r2 + 0) += r3\nr0 = 0\nexit";
    assert_eq!(run(nested), 12);
    let itself = nested.replace("g: ", "g: r5 = func[f] ll\n");
    assert!(Code::new(&asm::assemble(&itself).expect("a program")).is_err(), "functions that call each other");
}

#[test]
fn the_system_is_asked() {
    for helper in [5, 7, 8, 14, 125] {
        let linked = builder().build().verify(contract(), code(&format!("call {helper}\nexit"))).expect("harmless");
        linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("it ends");
    }
    assert_eq!(run("call 5\nr6 = r0\ncall 5\nr1 = 1\nif r0 >= r6 goto out\nr1 = 0\nout: r0 = r1\nexit"), 1);
    assert_eq!(run("r1 = map[idx:5][0]+0 ll\nr2 = 11\nr3 = 1\nr4 = 2\nr5 = 3\ncall 6\nexit"), 10);
}

/// A helper of the host that adds up bytes, and one that writes some.
fn custom() -> HostBuilder {
    builder()
        .helper(1000, Signature::new([Argument::Bytes, Argument::Size]), |call| {
            Ok(call.bytes(0)?.iter().map(|byte| u64::from(*byte)).sum())
        })
        .helper(1001, Signature::new([Argument::BytesOut, Argument::Size, Argument::Number]), |call| {
            let byte = call.number(2) as u8;
            let len = call.len(0)?;
            Ok(call.write(0, &vec![byte; len])? as u64)
        })
        .helper(1002, Signature::new([Argument::Number]), |call| Err(HelperError::Exit(call.number(0))))
        .helper(1003, Signature::new([]), |_| panic!("on purpose"))
        .helper(1004, Signature::new([Argument::Number]), |call| call.bytes(0).map(|_| 0))
}

#[test]
fn helpers_of_the_host_get_what_their_signatures_say() {
    // The context is 16 times 0xaa.
    assert_eq!(run_on(custom, "r2 = 16\ncall 1000\nexit"), 16 * 0xaa);
    assert_eq!(run_on(custom, "r1 += 13\nr2 = 3\ncall 1000\nexit"), 3 * 0xaa);
    assert_eq!(run_on(custom, "r2 = 4\nr3 = 7\ncall 1001\nexit"), 4);
    assert_eq!(
        run_on(custom, "r1 = r10\nr1 += -16\nr2 = 9\nr3 = 7\ncall 1001\nr1 = r10\nr1 += -16\nr2 = 9\ncall 1000\nexit"),
        63
    );
    assert_eq!(run_on(custom, "r2 = *(u8 *)(r1 + 0)\nr2 &= 7\ncall 1000\nexit"), 2 * 0xaa);
    let refused = |text: &str| custom().build().verify(contract(), code(text)).map(drop).expect_err(text).fault;
    assert_eq!(refused("r2 = 17\ncall 1000\nexit"), Fault::Context { min: 0, end: 17, len: 16 });
    assert!(matches!(refused("r2 = *(u64 *)(r1 + 0)\ncall 1000\nexit"), Fault::Size { .. }));
    assert_eq!(refused("r1 = map[idx:5][0]+0 ll\nr2 = 4\nr3 = 7\ncall 1001\nexit"), Fault::ReadOnlyMap);
    let unsure = "r2 = *(u8 *)(r1 + 0)\nr2 &= 7\nr1 = r10\nr1 += -8\nr3 = 1\ncall 1001\nr0 = *(u8 *)(r10 - 8)\nexit";
    assert_eq!(refused(unsure), Fault::StackUnset { offset: -8, len: 1 });
    assert_eq!(run_on(custom, "r1 = 5\ncall 1002\nr0 = 6\nexit"), 5);
}

#[test]
fn a_helper_that_fails_ends_the_result_and_not_the_process() {
    let Some(packs) = packs() else { return };
    let host = custom().build();
    let load = |text: &str| {
        let linked = host.verify(contract(), code(text)).expect("harmless");
        HostedProgram::load(&packs, &linked).expect("room")
    };
    let panics = load("call 1003\nr0 = 9\nexit");
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = panics.run(&mut [0; LEN]);
    std::panic::set_hook(quiet);
    assert_eq!(result, Err(HostedError::Helper { id: 1003, error: HelperError::Panicked }));
    let wrong = load("r1 = 1\ncall 1004\nexit").run(&mut [0; LEN]);
    assert_eq!(wrong, Err(HostedError::Helper { id: 1004, error: HelperError::NoArgument { index: 0 } }));
    assert_eq!(load("r0 = 9\nexit").run(&mut [0; LEN]), Ok(9), "the next run knows nothing of it");
    assert!(matches!(load("r0 = 9\nexit").run(&mut [0; 3]), Err(HostedError::Context(_))));
}

#[test]
fn tail_calls_go_to_other_programs_thirty_three_times() {
    let Some(packs) = packs() else { return };
    let host = builder().build();
    let programs = host.map("programs").and_then(|map| map.programs()).expect("there");
    let load = |text: &str, contract: Contract| {
        Arc::new(HostedProgram::load(&packs, &host.verify(contract, code(text)).expect("harmless")).expect("room"))
    };
    let call = |index: i32| format!("r6 = r1\nr2 = map[idx:4] ll\nr3 = {index}\ncall 12\n");
    let counts =
        format!("r2 = *(u64 *)(r1 + 0)\nr2 += 1\n*(u64 *)(r1 + 0) = r2\n{}r0 = *(u64 *)(r6 + 0)\nexit", call(0));
    let program = load(&counts, contract());
    // Nothing is there: it goes on.
    assert_eq!(program.run(&mut [0; LEN]), Ok(1));
    programs.set(0, Some(Arc::clone(&program))).expect("a place");
    assert_eq!(program.run(&mut [0; LEN]), Ok(34));
    assert_eq!(program.run(&mut [0; LEN]), Ok(34), "each run counts for itself");
    programs.set(1, Some(load("r0 = 77\nexit", contract()))).expect("a place");
    let leaves = load(&format!("{}r0 = 1\nexit", call(1)), contract());
    assert_eq!(leaves.run(&mut [0; LEN]), Ok(77));
    // One that needs more context than there is is not called.
    programs
        .set(1, Some(load("r0 = *(u8 *)(r1 + 31)\nexit", contract().context(32, ContextAccess::Read))))
        .expect("a place");
    assert_eq!(leaves.run(&mut [0; LEN]), Ok(1));
    assert_eq!(leaves.run(&mut [9; 32]), Ok(9));
    let reader = load(&format!("{}r0 = 1\nexit", call(0)), contract().context(LEN as u32, ContextAccess::Read));
    assert_eq!(reader.run_read_only(&[0; LEN]), Ok(1), "the other one would write");
    assert!(programs.set(4, None).is_err());
    programs.set(0, None).expect("a place");
    assert_eq!(program.run(&mut [0; LEN]), Ok(1));

    let function = format!("call local f\nr0 = 0\nexit\nf: {}r0 = 0\nexit", call(0));
    assert_eq!(refused(&function), Fault::TailCall);
    assert_eq!(
        refused(&format!("{}r0 = 0\nexit", call(0).replace("r6 = r1", "r1 = r10"))),
        Fault::NotContext { register: Register::R1 }
    );
}

#[test]
fn programs_are_replaced_while_others_run_them() {
    let Some(packs) = packs() else { return };
    let host = builder().build();
    let load = |value: u32| {
        let text = found(1, &format!("r1 = 1\nlock *(u64 *)(r0 + 0) += r1\nr0 = {value}"));
        Arc::new(HostedProgram::load(&packs, &host.verify(contract(), code(&text)).expect("harmless")).expect("room"))
    };
    let slot = Slot::new(load(0));
    let runs = AtomicU64::new(0);
    let replaced = 200;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut last = 0;
                while last < replaced {
                    let value = slot.get().run(&mut [0; LEN]).expect("a context");
                    assert!(value >= last, "{value} after {last}");
                    last = value;
                    runs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for value in 1..=replaced {
            slot.replace(load(value as u32));
            packs.reclaim().expect("it works");
        }
    });
    let counted = ArrayHandle::<[u64; 2]>::new(Arc::clone(host.map("array").expect("there"))).expect("its types");
    assert_eq!(counted.get(1), Some([runs.into_inner(), 0]));
}

#[test]
fn threads_share_maps_and_records() {
    let Some(packs) = packs() else { return };
    let host = builder().build();
    let output = "r6 = *(u64 *)(r1 + 0)\nr1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto none\n\
                  *(u64 *)(r0 + 0) = r6\nr6 = -r6\n*(u64 *)(r0 + 8) = r6\nr1 = r0\nr2 = 0\ncall 132\nr0 = 1\nexit\n\
                       none: r0 = 0\nexit";
    let program = HostedProgram::load(&packs, &host.verify(contract(), code(output)).expect("harmless")).expect("room");
    let ring = host.map("ring").and_then(|map| map.ring()).expect("there");
    const THREADS: u64 = 4;
    const EACH: u64 = 5000;
    let mut next = [0; THREADS as usize];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let program = &program;
            scope.spawn(move || {
                for number in 0..EACH {
                    let mut context = [0; LEN];
                    context[..8].copy_from_slice(&(thread << 32 | number).to_ne_bytes());
                    while program.run(&mut context) != Ok(1) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut consumer = ring.take_consumer().expect("the only one");
        while next != [EACH; THREADS as usize] {
            let count = consumer.drain(|record| {
                let word = |at: usize| u64::from_ne_bytes(record[at..at + 8].try_into().expect("16 bytes"));
                assert_eq!(word(0), word(8).wrapping_neg());
                let (thread, number) = (word(0) >> 32, word(0) & 0xffff_ffff);
                assert_eq!(number, next[thread as usize], "records of a thread come in order");
                next[thread as usize] += 1;
            });
            if count == 0 {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(ring.pending(), 0);
}

#[test]
fn threads_that_change_a_hash_map_find_their_own_keys() {
    let map = Arc::new(Map::new(Definition::new("m", Kind::Hash, 8, 8, 64)).expect("good measures"));
    let hash = HashHandle::<u64, u64>::new(map).expect("its types");
    // One that always exists, whatever is linked around it.
    hash.set(&u64::MAX, &1, Update::Insert).expect("room");
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let hash = hash.clone();
            scope.spawn(move || {
                for round in 0..3000_u64 {
                    let key = (thread << 32) + round % 12;
                    hash.set(&key, &(key ^ round), Update::Insert).expect("room for 4 times 12");
                    assert_eq!(hash.get(&key), Some(key ^ round));
                    assert_eq!(hash.get(&u64::MAX), Some(1));
                    hash.remove(&key).expect("it is there");
                    assert_eq!(hash.get(&key), None);
                }
            });
        }
    });
    assert_eq!(hash.keys(), [u64::MAX]);
}

#[test]
fn a_ring_buffer_is_seen_by_other_processes() {
    let map = Map::new(Definition::new("ring", Kind::RingBuffer, 0, 0, 4096)).expect("good measures");
    assert!(map.ring().expect("it is one").descriptor().is_none());
    let map = map.shared_with_processes().expect("a memory object");
    let ring = map.ring().expect("it is one");
    assert!(ring.output(b"hello", palimpsest_bpf::map::Wake::Never));
    let descriptor = ring.descriptor().expect("it can be mapped").try_clone_to_owned().expect("a descriptor");
    let file = std::fs::File::from(descriptor);
    let mut bytes = [0; 13];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 8192).expect("it is there");
    assert_eq!(&bytes, b"\x05\0\0\x20\0\0\0\0hello");
}

#[test]
fn a_function_that_helpers_call_jumps_to_its_beginning() {
    let sum = "r6 = 6\nr7 = 7\nr8 = 8\nr9 = 9\n*(u64 *)(r10 - 8) = 0\nr1 = 10\nr2 = func[f] ll\nr3 = r10\nr3 += -8\n\
               r4 = 0\ncall 181\nr0 = *(u64 *)(r10 - 8)\nr0 ^= r6\nr0 += r7\nr0 ^= r8\nr0 += r9\nexit\n\
               f: r6 = 1\nr7 = 2\nr8 = 3\nr9 = r10\n*(u64 *)(r9 - 8) = r1\nr3 = *(u64 *)(r2 + 0)\nr3 += 1\n\
               *(u64 *)(r2 + 0) = r3\nr1 >>= 1\nif r1 != 0 goto f\nr0 = 0\nexit";
    // Rounds for 0 to 9: 1, 1, 2, 2, 3, 3, 3, 3, 4, 4.
    assert_eq!(run(sum), (((26 ^ 6) + 7) ^ 8) + 9);
}

/// A function that hands itself on and calls itself through a helper `times` times; the innermost call does `last`.
fn handed_on(times: u32, last: &str) -> String {
    format!(
        "r2 = func[f] ll\n*(u64 *)(r10 - 8) = r2\n*(u64 *)(r10 - 16) = {times}\nr1 = 1\nr3 = r10\nr3 += -16\nr4 = 0\n\
             call 181\nr0 = 0\nexit\n\
         f: r6 = *(u64 *)(r2 + 0)\nif r6 == 0 goto last\nr6 += -1\n*(u64 *)(r10 - 16) = r6\nr7 = *(u64 *)(r2 + 8)\n\
             *(u64 *)(r10 - 8) = r7\nr1 = 1\nr2 = r7\nr3 = r10\nr3 += -16\nr4 = 0\ncall 181\nr0 = 0\nexit\n\
         last: {last}\nr0 = 0\nexit\n\
         {}",
        if last == "call local g" { "g: r0 = 0\nexit" } else { "" }
    )
}

#[test]
fn functions_that_are_handed_on_call_each_other_as_deeply_as_others() {
    // The program, and one function more than `times`, make 8.
    assert_eq!(run(&handed_on(6, "r0 = 1")), 0);
    assert_eq!(refused(&handed_on(7, "r0 = 1")), Fault::Depth);
    assert_eq!(run(&handed_on(5, "call local g")), 0);
    assert_eq!(refused(&handed_on(6, "call local g")), Fault::Depth);
}

#[test]
fn what_was_an_address_is_no_number_for_atomic_operations() {
    let text = "r1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto none\n*(u64 *)(r10 - 8) = r0\nr1 = r0\n\
                r2 = 0\ncall 133\nr1 = 0\nr1 = atomic_fetch_add((u64 *)(r10 - 8), r1)\nr0 = r1\nexit\n\
                none: r0 = 0\nexit";
    assert_eq!(refused(text), Fault::PartOfAddress { offset: -8, len: 8 });
}
