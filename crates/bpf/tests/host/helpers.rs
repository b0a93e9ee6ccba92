//! What helpers may write, and how they end.

use palimpsest_bpf::verify::MapUse;

use super::*;
use crate::common::packs;

#[test]
fn helpers_change_no_read_only_map() {
    let read_only = || {
        let map = |name: &str, kind, key, value| {
            let definition = Definition::new(name, kind, key, value, 4);
            Arc::new(Map::new(Definition { access: ValueAccess::Read, ..definition }).expect("good measures"))
        };
        Host::builder().map(map("array", Kind::Array, 4, 8)).map(map("hash", Kind::Hash, 4, 8)).map(map(
            "queue",
            Kind::Queue,
            0,
            8,
        ))
    };
    let refused = |text: &str| read_only().build().verify(contract(), code(text)).map(drop).expect_err(text).fault;
    let start = "*(u32 *)(r10 - 4) = 0\n*(u64 *)(r10 - 16) = 9\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -16\nr4 = 0\n";
    for map in [0, 1] {
        assert_eq!(refused(&format!("{start}r1 = map[idx:{map}] ll\ncall 2\nr0 = 0\nexit")), Fault::ReadOnlyMap);
    }
    assert_eq!(refused(&format!("{start}r1 = map[idx:1] ll\ncall 3\nr0 = 0\nexit")), Fault::ReadOnlyMap);
    let queue = format!("{start}r1 = map[idx:2] ll\nr2 = r3\nr3 = 0\n");
    for helper in [87, 88] {
        assert_eq!(refused(&format!("{queue}call {helper}\nr0 = 0\nexit")), Fault::ReadOnlyMap);
    }
    // Looking at values is allowed.
    for text in [format!("{queue}call 89\nr0 = 0\nexit"), format!("{start}r1 = map[idx:1] ll\ncall 1\nr0 = 0\nexit")] {
        assert_eq!(run_on(read_only, &text), 0);
    }
}

/// Returns the numbers of a list as the book has them: `1, 2, 112 to 115`.
fn numbers(list: &str) -> Vec<i32> {
    let number = |text: &str| text.trim().parse::<i32>().expect("a number");
    let range = |part: &str| match part.split_once(" to ") {
        Some((first, last)) => number(first)..=number(last),
        None => number(part)..=number(part),
    };
    list.split(", ").flat_map(range).collect()
}

/// Fails on: a helper that is added, or removed, and not in the book.
#[test]
fn the_book_lists_every_helper() {
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/bpf-reference.md");
    let book = match std::fs::read_to_string(book) {
        Ok(book) => book,
        // In the crate as it is published, and in a guest that has the programs alone.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return println!("skipped: the book is not here"),
        Err(error) => panic!("{error}"),
    };
    let (_, table) = book.split_once("| number | helpers | notes |\n").expect("the table of helpers");
    let rows = table.lines().skip(1).map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
    let mut listed: Vec<i32> = rows.flat_map(numbers).collect();
    listed.sort_unstable();
    let exists = |id: &i32| {
        let contract = contract().unproven(palimpsest_bpf::verify::Unproven::Probe);
        let called = Host::builder().build().verify(contract, code(&format!("call {id}\nr0 = 0\nexit")));
        !called.is_err_and(|error| matches!(error.fault, Fault::Helper { .. }))
    };
    assert_eq!(listed, (0..400).filter(exists).collect::<Vec<_>>());
}

/// Helpers that leave room as it is: all of it, part of it, or by failing on the way.
fn sparing() -> HostBuilder {
    use Argument::{BytesOut, Map, Number, NumberOut, Size, ValueOut};
    builder()
        .helper(1000, Signature::new([BytesOut, Size]), |_| Ok(0))
        .helper(1001, Signature::new([BytesOut, Size]), |call| Ok(call.write(0, &[0x55; 3])? as u64))
        .helper(1002, Signature::new([NumberOut]), |_| Ok(0))
        .helper(1003, Signature::new([Map(MapUse::Peek), ValueOut]), |_| Ok(0))
        .helper(1004, Signature::new([NumberOut, Number]), |call| match call.number(1) {
            0 => Err(HelperError::NoArgument { index: 7 }),
            _ => panic!("on purpose"),
        })
        // Reads from the same place to which it writes.
        .helper(1005, Signature::new([Argument::Bytes, Size, BytesOut, Size]), |call| {
            let bytes = call.bytes(0)?;
            Ok(call.write(2, &bytes)? as u64)
        })
        .helper(1006, Signature::new([Map(MapUse::Peek), ValueOut]), |call| call.write(1, &[1; 8]).map(|_| 0))
}

#[test]
fn room_that_a_helper_leaves_as_it_was_is_zero() {
    // The context, 16 times 0xaa, shows it without reading the stack.
    assert_eq!(run_on(sparing, "r6 = r1\nr2 = 16\ncall 1000\nr0 = *(u64 *)(r6 + 8)\nexit"), 0);
    assert_eq!(run_on(sparing, "r6 = r1\nr2 = 12\ncall 1001\nr0 = *(u64 *)(r6 + 0)\nexit"), 0x55_5555);
    assert_eq!(run_on(sparing, "r6 = r1\nr2 = 12\ncall 1001\nr0 = *(u64 *)(r6 + 8)\nexit"), 0xaaaa_aaaa << 32);
    assert_eq!(run_on(sparing, "r6 = r1\ncall 1002\nr0 = *(u64 *)(r6 + 0)\nexit"), 0);
    let value = "r6 = r1\nr2 = r1\nr1 = map[idx:3] ll\ncall 1003\nr0 = *(u64 *)(r6 + 0)\nexit";
    assert_eq!(run_on(sparing, value), 0);
    let large =
        "r1 = map[idx:0][0]+0 ll\nr6 = r1\n*(u64 *)(r1 + 0) = -1\nr2 = 16\ncall 1001\nr0 = *(u64 *)(r6 + 0)\nexit";
    assert_eq!(run_on(sparing, large), 0x55_5555);
    let overlapping =
        "r6 = r1\n*(u64 *)(r1 + 0) = 7\nr2 = 8\nr3 = r1\nr3 += 4\nr4 = 12\ncall 1005\nr0 = *(u64 *)(r6 + 4)\nexit";
    assert_eq!(run_on(sparing, overlapping), 7);
    // A bloom filter's value is not written, and is not room.
    let filter = value.replace("idx:3", "idx:6");
    assert_eq!(run_on(sparing, &filter), 0xaaaa_aaaa_aaaa_aaaa);
    let linked = sparing().build().verify(contract(), code(&filter.replace("1003", "1006"))).expect("harmless");
    linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect_err("nothing to write to");
}

#[test]
fn room_is_zero_behind_a_helper_that_failed() {
    let Some(packs) = packs() else { return };
    let host = sparing().build();
    for (mode, error) in [(0, HelperError::NoArgument { index: 7 }), (1, HelperError::Panicked)] {
        let linked = host.verify(contract(), code(&format!("r2 = {mode}\ncall 1004\nr0 = 0\nexit")));
        let program = HostedProgram::load(&packs, &linked.expect("harmless")).expect("room");
        let mut context = [0xaa; LEN];
        assert_eq!(program.run(&mut context), Err(HostedError::Helper { id: 1004, error }));
        assert_eq!(context, [[0; 8], [0xaa; 8]].concat()[..], "{error:?}");
    }
}

#[test]
fn functions_without_an_object_have_indexes() {
    let host = || {
        builder()
            .function("first", Signature::new([]), |_| Ok(1))
            .function("sum", Signature::new([Argument::Number, Argument::Number]), |call| {
                Ok(call.number(0) + call.number(1))
            })
            // Replaces the one above.
            .function("first", Signature::new([]), |_| Err(HelperError::NoArgument { index: 3 }))
    };
    assert_eq!(host().build().functions().collect::<Vec<_>>(), ["sum", "first"]);
    assert_eq!(run_on(host, "r1 = 3\nr2 = 4\ncall kernel 0\nexit"), 7);
    let refused = |text: &str| host().build().verify(contract(), code(text)).map(drop).expect_err(text).fault;
    let reason = palimpsest_bpf::verify::MissingFunction::NotGiven;
    for index in [2, -1] {
        assert_eq!(refused(&format!("call kernel {index}\nexit")), Fault::Function { index, reason });
    }
    assert_eq!(refused("call kernel 0 of 1\nexit"), Fault::Unknown);
    assert_eq!(refused("r1 = 1\nr2 = r10\ncall kernel 0\nexit"), Fault::Address { register: Register::R2 });
    // One that fails ends the program, as a helper does.
    let host = host().build();
    let linked = host.verify(contract(), code("r6 = r1\ncall kernel 1\n*(u8 *)(r6 + 0) = 1\nr0 = 0\nexit"));
    let (linked, error) = (linked.expect("harmless"), HelperError::NoArgument { index: 3 });
    let trap = linked.interpret(&Interpreter::default(), &mut [0; LEN]).map_err(|error| error.trap);
    assert_eq!(trap, Err(palimpsest_bpf::interp::Trap::HostFunction { index: 1, error }));
    let Some(packs) = packs() else { return };
    let program = HostedProgram::load(&packs, &linked).expect("room");
    let mut context = [0; LEN];
    assert_eq!(program.run(&mut context), Err(HostedError::Function { index: 1, error }));
    assert_eq!(context, [0; LEN]);
}

#[test]
#[should_panic(expected = "helper 12 makes tail calls, and is not replaced")]
fn the_helper_that_makes_tail_calls_is_not_replaced() {
    let _ = Host::builder().helper(12, Signature::new([]), |_| Ok(0));
}

#[test]
fn what_a_panic_was_raised_with_does_not_panic_again() {
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            panic!("once more");
        }
    }
    let Some(packs) = packs() else { return };
    let host = Host::builder().helper(1000, Signature::new([]), |_| std::panic::resume_unwind(Box::new(Again))).build();
    let linked = host.verify(contract(), code("call 1000\nr0 = 9\nexit")).expect("harmless");
    let program = HostedProgram::load(&packs, &linked).expect("room");
    assert_eq!(program.run(&mut [0; LEN]), Err(HostedError::Helper { id: 1000, error: HelperError::Panicked }));
}

#[test]
#[should_panic(expected = "helpers of a host take no records")]
fn a_helper_that_would_keep_a_record_is_refused() {
    let _ = builder().helper(1000, Signature::new([Argument::Record]), |_| Ok(0));
}

#[test]
#[should_panic(expected = "helpers of a host take no records")]
fn a_function_that_would_keep_a_record_is_refused() {
    let _ = builder().function("keep", Signature::new([Argument::Record]), |_| Ok(0));
}

/// Fails on: an output that counts as written while the inputs behind it are checked.
#[test]
fn what_a_helper_reads_was_written_before_the_call_even_where_it_writes_too() {
    use Argument::{BytesOut, Size};
    let host = || builder().helper(1000, Signature::new([BytesOut, Size, Argument::Bytes, Size]), |_| Ok(0)).build();
    let call = "r1 = r10\nr1 += -8\nr2 = 8\nr3 = r1\nr4 = 8\ncall 1000\nr0 = *(u64 *)(r10 - 8)\nexit";
    let verify = |before: &str| {
        let verified = host().verify(contract(), code(&format!("{before}\n{call}"))).map(drop);
        verified.map_err(|error| error.fault)
    };
    assert_eq!(verify(""), Err(Fault::StackUnset { offset: -8, len: 8 }));
    for address in ["r10", "r1"] {
        let fault = Fault::PartOfAddress { offset: -8, len: 8 };
        assert_eq!(verify(&format!("*(u64 *)(r10 - 8) = {address}")), Err(fault), "{address}");
    }
    assert_eq!(verify("*(u64 *)(r10 - 8) = 7"), Ok(()));
    // `bpf_snprintf`, whose numbers come behind what it writes.
    let text = "r1 = r10\nr1 += -8\nr2 = 8\nr3 = map[idx:0][0]+0 ll\nr4 = r1\nr5 = 8\ncall 165\nr0 = 0\nexit";
    let format = Definition { access: ValueAccess::Read, ..Definition::new("format", Kind::Array, 4, 8, 1) };
    let host = Host::builder().map(Arc::new(Map::new(format).expect("good measures"))).build();
    let verify = |before: &str| {
        host.verify(contract(), code(&format!("{before}\n{text}"))).map(drop).map_err(|error| error.fault)
    };
    assert_eq!(verify(""), Err(Fault::StackUnset { offset: -8, len: 8 }));
    assert_eq!(verify("*(u64 *)(r10 - 8) = r1"), Err(Fault::PartOfAddress { offset: -8, len: 8 }));
    assert_eq!(verify("*(u64 *)(r10 - 8) = 7"), Ok(()));
}

/// Fails on: a program whose host's helpers write, loaded with helpers that need not.
#[test]
fn what_was_verified_for_a_host_runs_with_no_others_helpers() {
    extern "C" fn nothing(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
        0
    }
    let Some(packs) = packs() else { return };
    // `bpf_strtol` writes the number.
    let text = "*(u64 *)(r10 - 8) = 0x31\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = 10\nr4 = r10\nr4 += -16\ncall 105\n\
                r0 = *(u64 *)(r10 - 16)\nexit";
    let linked = Host::builder().build().verify(contract(), code(text)).expect("it is right");
    let helpers = [(105, nothing as palimpsest_bpf::jit::Helper)];
    let Err(error) = VerifiedProgram::load(&packs, linked.verified(), &helpers[..]) else { panic!("loaded") };
    assert!(matches!(error, LoadError::Compile(CompileError::Linked)), "{error}");
    assert_eq!(HostedProgram::load(&packs, &linked).expect("room").run(&mut [0; LEN]), Ok(1));
}
