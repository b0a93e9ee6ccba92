//! Dynptrs: memory whose accesses helpers check when the program runs.
//!
//! Mutants that are caught: a store, or a helper's result, that does not end the dynptr it lies over; an address of a
//! record's bytes that outlives the record, whether it was compared with 0 or not; a byte too many; an atomic operation
//! on bytes that may lie anywhere; a dynptr of a value that is given back.

use palimpsest_bpf::insn::Register::{R0, R1, R3, R4, R6};

use super::*;

/// `-EINVAL` and `-E2BIG`, as programs get them.
const EINVAL: u64 = -22_i64 as u64;
const E2BIG: u64 = -7_i64 as u64;

/// The program has a dynptr of the 16 bytes of a value at `r10 - 16`, the value's address in `r6`, and 8 bytes of its
/// own at `r10 - 40`.
fn of_value(body: &str) -> String {
    found(1, &format!("r6 = r0\n*(u64 *)(r10 - 40) = 0x1234\n{}{body}", make(16)))
}

/// Makes a dynptr of `len` bytes at `r6`.
fn make(len: i32) -> String {
    format!("r1 = r6\nr2 = {len}\nr3 = 0\nr4 = r10\nr4 += -16\ncall 197\n")
}

/// The program has a dynptr of a record of `len` bytes at `r10 - 16`.
fn of_record(len: i32, body: &str) -> String {
    format!(
        "*(u64 *)(r10 - 40) = 0x1234\nr1 = map[idx:2] ll\nr2 = {len}\nr3 = 0\nr4 = r10\nr4 += -16\ncall 198\nr7 = r0\n\
         {body}\nexit"
    )
}

/// Copies `len` bytes at `r10 - 40` to `offset` of the dynptr.
fn write(offset: i32, len: i32) -> String {
    format!("r1 = r10\nr1 += -16\nr2 = {offset}\nr3 = r10\nr3 += -40\nr4 = {len}\nr5 = 0\ncall 202\n")
}

/// Copies `len` bytes at `offset` of the dynptr to `r10 - 40`.
fn read(offset: i32, len: i32) -> String {
    format!("r1 = r10\nr1 += -40\nr2 = {len}\nr3 = r10\nr3 += -16\nr4 = {offset}\nr5 = 0\ncall 201\n")
}

/// Returns the address of `len` bytes at `offset` of the dynptr, or 0.
fn data(offset: i32, len: i32) -> String {
    format!("r1 = r10\nr1 += -16\nr2 = {offset}\nr3 = {len}\ncall 203\n")
}

/// Gives the record back with this helper: 199 submits, 200 discards.
fn give_back(helper: i32) -> String {
    format!("r1 = r10\nr1 += -16\nr2 = 0\ncall {helper}\n")
}

#[test]
fn bytes_of_a_value_are_read_and_written_where_they_are() {
    assert_eq!(run(&of_value(&format!("{}r0 = *(u64 *)(r6 + 3)", write(3, 8)))), 0x1234);
    assert_eq!(run(&of_value(&format!("*(u32 *)(r6 + 5) = 77\n{}r0 = *(u64 *)(r10 - 40)", read(5, 8)))), 77);
    let slice = format!("{}if r0 == 0 goto none\n*(u16 *)(r0 + 2) = 9\nr0 = *(u32 *)(r6 + 10)", data(8, 4));
    assert_eq!(run(&of_value(&slice)), 9);
    // A length that is only known, and checked, at run time.
    let by_context = "r1 = *(u8 *)(r9 + 0)\nr1 &= 7\n";
    let variable =
        of_value(&format!("{}r0 = 1", write(0, 8))).replacen("*(u32 *)", &format!("r9 = r1\n{by_context}*(u32 *)"), 1);
    assert_eq!(run(&variable), 1);
}

#[test]
fn what_is_outside_is_an_error_of_the_helper() {
    for (offset, len, expected) in [(8, 8, 0), (9, 8, E2BIG), (16, 0, 0), (17, 0, E2BIG), (-1, 8, E2BIG)] {
        assert_eq!(run(&of_value(&write(offset, len))), expected, "{len} bytes to {offset}");
        assert_eq!(run(&of_value(&read(offset, len))), expected, "{len} bytes at {offset}");
        let there = format!("{}r1 = r0\nr0 = 0\nif r1 == 0 goto none", data(offset, len));
        assert_eq!(run(&of_value(&there)), if expected == 0 { 0 } else { u64::MAX }, "{len} bytes of {offset}");
    }
    // What could not be read is zero.
    assert_eq!(run(&of_value(&format!("{}r0 = *(u64 *)(r10 - 40)", read(9, 8)))), 0);
    // Flags are for later kernels.
    assert_eq!(run(&of_value(&write(0, 8)).replace("r5 = 0\ncall 202", "r5 = 1\ncall 202")), EINVAL);
    let flags = of_value(&write(0, 8)).replacen("r3 = 0\nr4 = r10", "r3 = 1\nr4 = r10", 1);
    assert_eq!(run(&flags), EINVAL, "there is none");
    // A shorter one.
    let short = found(1, &format!("r6 = r0\n*(u64 *)(r10 - 40) = 1\n{}{}", make(7), write(0, 8)));
    assert_eq!(run(&short), E2BIG);
}

#[test]
fn records_have_lengths_that_are_known_when_the_program_runs() {
    let submitted = format!("{}{}r0 = r7", write(4, 8), give_back(199));
    assert_eq!(run(&of_record(12, &submitted)), 0);
    assert_eq!(run(&of_record(12, &format!("{}r0 = r7", give_back(200)))), 0);
    let slice = format!("{}if r0 == 0 goto out\n*(u64 *)(r0 + 0) = 5\nout: {}r0 = 3", data(0, 8), give_back(199));
    assert_eq!(run(&of_record(8, &slice)), 3);
    // Without room there is nothing, which is given back all the same.
    let none = format!("{}r6 = r0\n{}r0 = r6", write(0, 8), give_back(199));
    assert_eq!(run(&of_record(4096, &none)), EINVAL);
    let by_context = of_record(8, &submitted).replacen("r2 = 8", "r2 = *(u8 *)(r9 + 0)\nr2 &= 31", 1);
    assert_eq!(run(&format!("r9 = r1\n{by_context}")), 0);
}

#[test]
fn nobody_else_reads_or_writes_a_dynptr() {
    for at in [-16, -12, -9, -8, -1] {
        let read = of_value(&format!("r0 = *(u8 *)(r10 {at})"));
        assert_eq!(refused(&read), Fault::PartOfAddress { offset: at, len: 1 });
        // What is overwritten is no longer one, whichever half it was.
        let written = of_value(&format!("*(u8 *)(r10 {at}) = 1\n{}", write(0, 8)));
        assert_eq!(refused(&written), Fault::NoDynptr { register: R1 }, "{at}");
        let by_helper = of_value(&format!("{}{}", read_to(at), write(0, 8)));
        assert_eq!(refused(&by_helper), Fault::NoDynptr { register: R1 }, "{at}");
        let lost = of_record(8, &format!("*(u8 *)(r10 {at}) = 1\n{}r0 = 0", give_back(199)));
        assert_eq!(refused(&lost), Fault::DynptrLost { slot: 7 }, "{at}");
    }
    let whole = of_value("r0 = *(u64 *)(r10 - 16)");
    assert_eq!(refused(&whole), Fault::PartOfAddress { offset: -16, len: 8 });
    let atomic = of_value("r1 = 1\nlock *(u64 *)(r10 - 8) += r1\nr0 = 0");
    assert_eq!(refused(&atomic), Fault::PartOfAddress { offset: -8, len: 8 });
    let half = of_value(&write(0, 8)).replace("r1 = r10\nr1 += -16\nr2 = 0", "r1 = r10\nr1 += -8\nr2 = 0");
    assert_eq!(refused(&half), Fault::Stack { min: -8, end: 8 });
    let between = of_value(&write(0, 8)).replace("r1 = r10\nr1 += -16\nr2 = 0", "r1 = r10\nr1 += -24\nr2 = 0");
    assert_eq!(refused(&between), Fault::NoDynptr { register: R1 });
    // Nothing beside it is lost.
    assert_eq!(run(&of_value(&format!("*(u8 *)(r10 - 17) = 1\n{}", write(0, 8)))), 0);
    // One may be made in place of another.
    assert_eq!(run(&of_value(&format!("{}{}", make(16), write(8, 8)))), 0);
}

/// Makes a helper write 1 byte to `at` of the stack.
fn read_to(at: i64) -> String {
    let second = format!("{}r1 = r10\nr1 += {at}\nr2 = 1\nr3 = r10", second());
    read(0, 1)
        .replace("r1 += -40", &format!("r1 += {at}"))
        .replace("r3 += -16", "r3 += -32")
        .replace("r3 = r10", &second)
}

/// A second dynptr, at `r10 - 32`.
fn second() -> String {
    make(16).replace("r4 += -16", "r4 += -32")
}

#[test]
fn a_dynptr_is_made_of_a_maps_value_on_the_stack() {
    let made = |from: &str, to: &str| {
        let text = found(1, &format!("r6 = r0\n{}r0 = 0", make(8)));
        refused(&text.replace("r1 = r6", from).replace("r4 = r10\nr4 += -16", to))
    };
    let there = "r4 = r10\nr4 += -16";
    assert_eq!(made("*(u64 *)(r10 - 40) = 1\nr1 = r10\nr1 += -40", there), Fault::NoMapBytes { register: R1 });
    assert_eq!(made("r1 = 5", there), Fault::NoMapBytes { register: R1 });
    assert_eq!(made("r1 = map[idx:5][0]+0 ll", there), Fault::ReadOnlyMap);
    assert_eq!(made("r1 = r6\nr1 += 9", there), Fault::Outside { what: "the value", min: 9, end: 17, len: 16 });
    assert_eq!(made("r1 = r6", "r4 = r6"), Fault::DynptrPlace { register: R4 });
    assert_eq!(made("r1 = r6", "r4 = r10\nr4 += -20"), Fault::DynptrPlace { register: R4 });
    assert_eq!(made("r1 = r6", "r4 = r10\nr4 += -8"), Fault::Stack { min: -8, end: 8 });
    assert_eq!(made("r1 = r6", "r4 = r10\nr4 += -520"), Fault::Stack { min: -520, end: -504 });
    // Only a record can be given back.
    assert_eq!(refused(&of_value(&give_back(199))), Fault::NoDynptr { register: R1 });
    let none = of_value("").replacen("call 197", "call 5", 1);
    assert_eq!(
        refused(&none.replace("exit\nnone", &format!("{}exit\nnone", write(0, 8)))),
        Fault::NoDynptr { register: R1 }
    );
}

#[test]
fn records_of_dynptrs_are_given_back_once() {
    let end = "r0 = 0";
    assert_eq!(refused(&of_record(8, end)), Fault::Unreleased { slot: 7 });
    let twice = format!("{}{}{end}", give_back(199), give_back(200));
    assert_eq!(refused(&of_record(8, &twice)), Fault::NoDynptr { register: R1 });
    assert_eq!(refused(&of_record(8, &format!("{}{}", give_back(200), write(0, 8)))), Fault::NoDynptr { register: R1 });
    // What was part of it no longer is; also before anybody has checked whether it is there.
    let slice = |before: &str, behind: &str| {
        of_record(8, &format!("{}{before}{}{behind}\nout: {end}", data(0, 8), give_back(199)))
    };
    let used = slice("r6 = r0\nif r0 == 0 goto +6\n", "*(u8 *)(r6 + 0) = 1");
    assert_eq!(refused(&used), Fault::Unset { register: R6 });
    let unseen = slice("r6 = r0\n", "if r6 == 0 goto out\n*(u8 *)(r6 + 0) = 1");
    assert_eq!(refused(&unseen), Fault::Unset { register: R6 });
    // It is not a record by itself, is as long as was said, and nobody knows where it begins.
    let inside = |body: &str| {
        refused(&of_record(64, &format!("{}if r0 == 0 goto out\n{body}\nout: {}{end}", data(3, 8), give_back(199))))
    };
    assert_eq!(inside("r1 = r0\nr2 = 0\ncall 132"), Fault::NoRecord { register: R1 });
    assert_eq!(inside("r1 = *(u64 *)(r0 + 1)"), Fault::Outside { what: "the slice", min: 1, end: 9, len: 8 });
    assert_eq!(inside("r1 = 1\nlock *(u64 *)(r0 + 0) += r1"), Fault::Unaligned { align: 8 });
    assert_eq!(inside("*(u64 *)(r0 + 0) = r10"), Fault::StoredAddress { register: Register::R10 });
    assert_eq!(
        refused(&of_record(8, &format!("{}r1 = *(u8 *)(r0 + 0)\n{end}", data(0, 8)))),
        Fault::MaybeNull { register: R0 }
    );
    let long = of_record(8, &data(0, 8).replace("r3 = 8", "r3 = *(u8 *)(r9 + 0)"));
    assert_eq!(refused(&format!("r9 = r1\n{long}")), Fault::VariableSize { register: R3 });
    assert_eq!(
        refused(&of_record(8, "").replacen("r1 = map[idx:2] ll", "r1 = map[idx:0] ll", 1)),
        Fault::MapKind { register: R1, kind: Kind::Array }
    );
    // In a loop, each round's record is given back in that round.
    let round = of_record(8, &format!("{}r8 += -1\nif r8 != 0 goto again\n{end}", give_back(199)));
    let looped = |text: &str| format!("r8 = 3\nagain: {text}");
    assert_eq!(run(&looped(&round)), 0);
    let kept = of_record(8, &format!("r8 += -1\nif r8 != 0 goto again\n{}{end}", give_back(199)));
    assert_eq!(refused(&looped(&kept)), Fault::Reserved);
}

#[test]
fn functions_get_dynptrs_of_their_callers() {
    let text = of_value("r1 = r10\nr1 += -16\ncall local inner");
    let inner = "\ninner: *(u64 *)(r10 - 8) = 0x77\nr3 = r10\nr3 += -8\nr2 = 4\nr4 = 8\nr5 = 0\ncall 202\nexit";
    let text = format!(
        "{}{inner}",
        text.replace("call local inner", "call local inner\nif r0 != 0 goto none\nr0 = *(u32 *)(r6 + 4)")
    );
    assert_eq!(run(&text), 0x77);
    // What the function overwrites is lost for the caller, too.
    let lost = format!(
        "{}\ninner: *(u8 *)(r1 + 3) = 1\nr0 = 0\nexit",
        of_value(&format!("r1 = r10\nr1 += -16\ncall local inner\n{}", write(0, 8)))
    );
    assert_eq!(refused(&lost), Fault::NoDynptr { register: R1 });
}

#[test]
fn a_program_that_is_ended_leaves_no_record_of_a_dynptr() {
    let fails = || builder().helper(1000, Signature::new([]), |_| Err(HelperError::NoArgument { index: 7 }));
    let text = of_record(8, &format!("{}call 1000\n{}r0 = 0", write(0, 8), give_back(199)));
    let host = fails().build();
    let linked = host.verify(contract(), code(&text)).expect("harmless");
    linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect_err("the helper fails");
    if Target::NATIVE.is_some() {
        let program = HostedProgram::load(&Packs::new().expect("packs"), &linked).expect("room");
        program.run(&mut [0; LEN]).expect_err("the helper fails");
    }
    let ring = host.map("ring").and_then(|map| map.ring()).expect("there");
    ring.take_consumer().expect("the only one").drain(|record| panic!("{record:?}"));
    assert_eq!(ring.pending(), 0);
}

#[test]
fn a_look_up_in_the_place_of_a_reservation_gives_no_record_back() {
    // The same call first reserves, and then looks up; what that finds says nothing about the record.
    let text = "r9 = 0\nr6 = 131\nr1 = map[idx:2] ll\nr2 = 8\nr3 = 0\n\
                place: callx r6\nif r9 != 0 goto second\nif r0 == 0 goto none\nr8 = r0\nr9 = 1\nr6 = 1\n\
                *(u32 *)(r10 - 4) = 0\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ngoto place\n\
                second: if r0 == 0 goto none\nr1 = r8\nr2 = 0\ncall 132\nnone: r0 = 0\nexit";
    assert_eq!(refused(text), Fault::Unreleased { slot: 6 });
}
