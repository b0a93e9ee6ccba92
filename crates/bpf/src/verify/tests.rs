use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};

use super::state::{Callback, State, Value};
use super::*;
use crate::asm::assemble;
use crate::function::FunctionType;
use crate::insn::Register;

fn verify(text: &str) -> Result<Verified, VerifyError> {
    let code =
        Code::new(&assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"))).expect("its structure is right");
    Contract::new().context(16, ContextAccess::Write).helper(1, 2).budget(20_000).verify(code)
}

fn accepted(text: &str) {
    if let Err(error) = verify(text) {
        panic!("{error}\n{text}");
    }
}

fn fault(text: &str) -> Fault {
    verify(text).expect_err(text).fault
}

#[test]
fn what_has_no_value_is_not_read() {
    assert_eq!(fault("r0 = r3\nexit"), Fault::Unset { register: Register::R3 });
    assert_eq!(fault("exit"), Fault::Unset { register: Register::R0 });
    assert_eq!(fault("if r2 == 0 goto out\nr0 = 1\nout: exit"), Fault::Unset { register: Register::R0 });
    assert_eq!(fault("r1 = 1\nr2 = 2\ncall 1\nr0 = r1\nexit"), Fault::Unset { register: Register::R1 });
    assert_eq!(
        fault("r1 = 1\nr2 = 2\nr6 = 1\ncall local f\nexit\nf: r0 = r6\nexit"),
        Fault::Unset { register: Register::R6 }
    );
    assert_eq!(fault("r0 = *(u64 *)(r10 - 8)\nexit"), Fault::StackUnset { offset: -8, len: 8 });
    assert_eq!(fault("*(u32 *)(r10 - 8) = 1\nr0 = *(u64 *)(r10 - 8)\nexit"), Fault::StackUnset { offset: -8, len: 8 });
    accepted("*(u32 *)(r10 - 8) = 1\n*(u32 *)(r10 - 4) = 1\nr0 = *(u64 *)(r10 - 8)\nexit");
}

#[test]
fn memory_is_reached_within_its_bounds() {
    accepted("r0 = *(u64 *)(r1 + 8)\nexit");
    assert_eq!(fault("r0 = *(u64 *)(r1 + 9)\nexit"), Fault::Context { min: 9, end: 17, len: 16 });
    assert_eq!(fault("r0 = *(u8 *)(r1 - 1)\nexit"), Fault::Context { min: -1, end: 0, len: 16 });
    assert_eq!(fault("r0 = *(u8 *)(r2 + 0)\nexit"), Fault::NoAddress { register: Register::R2 });
    accepted("*(u64 *)(r10 - 512) = 1\nr0 = 0\nexit");
    assert_eq!(fault("*(u64 *)(r10 - 513) = 1\nr0 = 0\nexit"), Fault::Stack { min: -513, end: -505 });
    assert_eq!(fault("*(u64 *)(r10 - 4) = 1\nr0 = 0\nexit"), Fault::Stack { min: -4, end: 4 });
    // A number bounded by a mask, and one bounded by a comparison.
    accepted("r3 = *(u8 *)(r1 + 0)\nr3 &= 7\nr1 += r3\nr0 = *(u64 *)(r1 + 8)\nexit".replace("+ 8", "+ 1").as_str());
    let bounded = "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif r3 > 15 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit";
    accepted(bounded);
    let loose = bounded.replace("15", "16");
    assert_eq!(fault(&loose), Fault::Context { min: 0, end: 17, len: 16 });
    let signed = bounded.replace("r3 > 15", "r3 s> 15");
    assert!(matches!(fault(&signed), Fault::Far { .. } | Fault::Context { .. }));
    let code = Code::new(&assemble("*(u8 *)(r1 + 0) = 1\nr0 = 0\nexit").expect("a program")).expect("right");
    let error = Contract::new().context(16, ContextAccess::Read).verify(code).expect_err("it writes");
    let text = error.to_string();
    assert!(text.starts_with("slot 0, `*(u8 *)(r1 + 0) = 1`: the context is read-only; copy"), "{text}");
}

#[test]
fn addresses_stay_inside() {
    assert_eq!(fault("r0 = r10\nexit"), Fault::ReturnedAddress);
    assert_eq!(fault("*(u64 *)(r1 + 0) = r1\nr0 = 0\nexit"), Fault::StoredAddress { register: Register::R1 });
    assert_eq!(fault("*(u32 *)(r10 - 8) = r1\nr0 = 0\nexit"), Fault::StoredAddress { register: Register::R1 });
    accepted("*(u64 *)(r10 - 8) = r1\nr2 = *(u64 *)(r10 - 8)\nr0 = *(u64 *)(r2 + 0)\nexit");
    let part = "*(u64 *)(r10 - 8) = r1\nr0 = *(u32 *)(r10 - 8)\nexit";
    assert_eq!(fault(part), Fault::PartOfAddress { offset: -8, len: 4 });
    assert_eq!(fault("r1 *= 2\nr0 = 0\nexit"), Fault::Address { register: Register::R1 });
    assert_eq!(fault("w0 = w1\nexit"), Fault::Address { register: Register::R1 });
    assert_eq!(fault("r0 = 5\nr0 ^= r1\nexit"), Fault::Address { register: Register::R1 });
    assert_eq!(fault("r2 = 0\ncall 1\nexit"), Fault::Address { register: Register::R1 });
    assert_eq!(fault("r0 = 1\nif r1 > 5 goto out\nr0 = 2\nout: exit"), Fault::Address { register: Register::R1 });
    // What is left of an overwritten address is not a number either.
    let rest = "*(u64 *)(r10 - 8) = r1\n*(u8 *)(r10 - 8) = 1\nr0 = *(u8 *)(r10 - 7)\nexit";
    assert_eq!(fault(rest), Fault::StackUnset { offset: -7, len: 1 });
    let atomic = "*(u64 *)(r10 - 8) = r1\nr2 = 1\nlock *(u64 *)(r10 - 8) += r2\nr0 = 0\nexit";
    assert!(matches!(fault(atomic), Fault::PartOfAddress { .. }));
}

#[test]
fn stacks_of_functions_do_not_dangle() {
    accepted("r1 = r10\nr1 += -8\ncall local f\nr0 = *(u64 *)(r10 - 8)\nexit\nf: *(u64 *)(r1 + 0) = 7\nr0 = 0\nexit");
    let left = "r1 = r10\nr1 += -8\ncall local f\nr0 = 0\nexit\nf: *(u64 *)(r1 + 0) = r10\nr0 = 0\nexit";
    assert_eq!(fault(left), Fault::StoredAddress { register: Register::R10 });
    assert_eq!(fault("call local f\nr0 = 0\nexit\nf: r0 = r10\nexit"), Fault::ReturnedAddress);
}

#[test]
fn loops_end() {
    accepted("r0 = 0\nr3 = 100\nagain: r0 += r3\nr3 += -1\nif r3 != 0 goto again\nexit");
    assert_eq!(fault("r0 = 0\nagain: r3 = 5\nr4 = 6\ngoto again"), Fault::Endless);
    let unbounded = "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nagain: r0 += 1\nr3 += -1\nif r3 != 0 goto again\nexit";
    assert_eq!(fault(unbounded), Fault::Budget { budget: 20_000 });
    let guarded = unbounded.replace("again: r0", "again: may_goto out\nr0").replace("\nexit", "\nout: exit");
    accepted(&guarded);
    // What a loop with a guard does to an address is not forgotten: behind the loop the address is of no use.
    let moved = "r0 = 0\nagain: may_goto out\nr1 += 1\ngoto again\nout: r0 = *(u8 *)(r1 + 0)\nexit";
    assert_eq!(fault(moved), Fault::Unset { register: Register::R1 });
}

#[test]
fn a_count_that_has_run_out_ends_no_loop() {
    // It jumps to itself; its way out leads back in, directly and into what was followed before.
    assert_eq!(fault("r0 = 0\nagain: may_goto again\nexit"), Fault::Endless);
    assert_eq!(fault("r0 = 0\nagain: may_goto out\ngoto again\nout: goto again"), Fault::Endless);
    let shared = "r0 = 0\nagain: may_goto out\nbody: r3 = 1\ngoto again\nout: goto body";
    assert_eq!(fault(shared), Fault::Endless);
    // A second one behind the first has run out, too.
    accepted("r0 = 0\nagain: may_goto out\ngoto again\nout: may_goto end\ngoto again\nend: exit");
    // Each call of a function counts for itself.
    let called = "r6 = 1\nagain: r6 += 1\ncall local f\nif r6 != 0 goto again\nr0 = 0\nexit\n\
                  f: r0 = 0\nf2: may_goto out\ngoto f2\nout: exit";
    assert_eq!(fault(called), Fault::Budget { budget: 20_000 });
    accepted(&called.replace("r6 != 0", "r6 != 9"));
}

#[test]
fn the_count_of_one_call_ends_no_loop_of_another() {
    // What is behind `v` was followed in the first call, back to `k`: there the count of that call ends it.
    let text = "r6 = *(u64 *)(r1 + 0)\nh: call local f\nif r0 == 1 goto done\nr6 = 0\ngoto h\n\
                done: r0 = r6\nexit\n\
                f: r7 = 0\nk: may_goto spent\nif r7 == 1 goto ok\nr0 = 0\nr0 = 0\nr0 = 0\nr0 = 0\nr0 = 0\nr0 = 0\n\
                r0 = 0\nr0 = 0\ngoto v\nv: r7 = 1\ngoto k\nok: r0 = 0\nexit\nspent: r0 = 1\nexit";
    assert_eq!(fault(&text.replace("r6 = 0\n", "")), Fault::Endless);
    assert_eq!(fault(text), Fault::Endless);
    // Calls that end are followed, and what is around them is followed once.
    accepted(&text.replace("ok: r0 = 0", "ok: r0 = 1"));
}

#[test]
fn loops_that_are_not_proven_take_fuel() {
    let verify = |text: &str, fuel: u64| {
        let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
        Contract::new().context(16, ContextAccess::Write).fuel(fuel).verify(code)
    };
    let fuel = |text: &str| verify(text, 77).unwrap_or_else(|error| panic!("{error}\n{text}")).fuel();
    let unbounded = "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nagain: r0 += 1\nr3 += -1\nif r3 != 0 goto again\nexit";
    assert_eq!(fuel(unbounded), Some(77));
    assert_eq!(fuel("r0 = 0\nagain: r3 = 5\nr4 = 6\ngoto again"), Some(77));
    // An index that is compared in each round is known in each.
    let indexed = "r0 = 0\nr3 = 0\nr4 = *(u64 *)(r1 + 0)\nagain: if r3 > 15 goto out\nr5 = r1\nr5 += r3\n\
                   r5 = *(u8 *)(r5 + 0)\nr0 += r5\nr3 += r4\ngoto again\nout: exit";
    assert_eq!(fuel(indexed), Some(77));
    // What is proven does not pay.
    assert_eq!(fuel("r0 = 0\nr3 = 100\nagain: r0 += r3\nr3 += -1\nif r3 != 0 goto again\nexit"), None);
    // What ends by counts pays, since counts multiply.
    let counted = "r0 = 0\nagain: may_goto out\ngoto again\nout: exit";
    assert_eq!(fuel(counted), Some(77));
    assert_eq!(fuel("r1 = func[f] ll\nr0 = 0\nexit\nf: r0 = 0\nexit"), Some(77));
    // Fuel makes no access right, at once or in a later round.
    let refused = |text: &str| verify(text, 77).map(drop).expect_err(text).fault;
    assert_eq!(refused(&indexed.replace("> 15", "> 16")), Fault::Context { min: 0, end: 17, len: 16 });
    let later = "r0 = 0\nr3 = 0\nr4 = *(u64 *)(r1 + 0)\nagain: r5 = r1\nr5 += r3\nr0 = *(u8 *)(r5 + 0)\n\
                 r3 += 1\nif r4 > r3 goto again\nexit";
    assert!(matches!(refused(later), Fault::Context { .. } | Fault::Far { .. }));
    let lost = "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nr6 = r1\nagain: r0 = *(u8 *)(r6 + 0)\nr6 = r3\ngoto again";
    assert_eq!(refused(lost), Fault::NoAddress { register: Register::R6 });
    assert_eq!(verify(unbounded, u64::MAX).map(|verified| verified.fuel()), Ok(Some(MOST_FUEL)));
}

/// What guards a program whose makers are not trusted.
fn guards(text: &str) -> Vec<(u32, Guard)> {
    let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
    let mut contract = Contract::new().context(16, ContextAccess::Write).trust(Trust::None);
    contract.set_helper(2, Signature::new([Argument::BytesOut, Argument::Size]));
    Vec::from(contract.verify(code).unwrap_or_else(|error| panic!("{error}\n{text}")).guards())
}

#[test]
fn what_a_mask_leaves_was_checked() {
    let mask = Guard::Mask { most: 7, number: Side::Right };
    assert_eq!(guards("r0 = *(u8 *)(r1 + 0)\nr0 &= 7\nr1 += r0\nr0 = *(u8 *)(r1 + 0)\nexit"), [(2, mask)]);
    // With 0 instead of 8 to 15 the CPU would load part of an address.
    let stores = "*(u64 *)(r10 - 24) = r1\n*(u64 *)(r10 - 16) = 1\n*(u64 *)(r10 - 8) = 2\nr3 = r10\nr3 += -24\n";
    let number = "r4 = *(u8 *)(r1 + 0)\nr4 &= 7\n";
    let load = "r3 += r4\nr0 = *(u8 *)(r3 + 0)\nexit";
    let stored = [0, 1, 2].map(|index| (index, Guard::Behind));
    assert_eq!(guards(&format!("{stores}{number}r4 |= 8\n{load}")), [&stored[..], &[(8, Guard::Before)]].concat());
    assert_eq!(guards(&format!("{stores}{number}r3 += 8\n{load}")), [&stored[..], &[(8, mask)]].concat());
}

#[test]
fn what_is_written_where_no_number_was_is_guarded() {
    // What an earlier program has left there may be an address.
    let stores = "*(u32 *)(r10 - 8) = 1\n*(u32 *)(r10 - 4) = 1\n*(u64 *)(r10 - 8) = 2\nr0 = 0\nexit";
    assert_eq!(guards(stores), [(0, Guard::Behind), (1, Guard::Behind)]);
    let written = "*(u64 *)(r10 - 8) = 1\nr1 = r10\nr1 += -8\nr2 = 8\ncall 2\nexit";
    assert_eq!(guards(written), [(0, Guard::Behind)]);
    assert_eq!(guards(&written.replacen("*(u64 *)(r10 - 8) = 1", "r0 = 1", 1)), [(4, Guard::Behind)]);
    let spilled = written.replacen("= 1", "= r1", 1);
    assert_eq!(guards(&spilled), [(0, Guard::Behind), (4, Guard::Behind)]);
}

#[test]
fn what_lies_in_a_map_is_within_its_value() {
    let verify_of = |definition: Definition, offset: u32| {
        let code = Code::new(&assemble(&format!("r1 = map[idx:0][0]+{offset} ll\nr0 = 0\nexit")).expect("a program"));
        let mut contract = Contract::new();
        contract.set_maps(&[&definition]);
        contract.verify(code.expect("its structure is right")).map(drop).map_err(|error| error.fault)
    };
    let verify = |offset: u32| verify_of(Definition::new("m", Kind::Array, 4, 8, 1), offset);
    assert_eq!(verify(8), Ok(()));
    assert_eq!(verify(9), Err(Fault::Outside { what: "the value", min: 9, end: 9, len: 8 }));
    for (kind, key_len, value_len) in [(Kind::RingBuffer, 0, 0), (Kind::Hash, 4, 8), (Kind::PerCpuArray, 4, 8)] {
        let of_other = verify_of(Definition::new("m", kind, key_len, value_len, 4096), 0);
        assert_eq!(of_other, Err(Fault::NoFirstValue { kind }));
    }
}

#[test]
fn constant_text_is_the_only_value_of_a_map_of_the_host() {
    let verify = |definition: Definition, text: &str| {
        let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
        let mut contract = Contract::new();
        contract.set_helper(2, Signature::new([Argument::Text]));
        contract
            .set_helper(1, Signature::new([Argument::Map(MapUse::Get), Argument::Key]).returning(Returns::ValueOrNull));
        contract.set_maps(&[&definition]);
        contract.verify(code).map(drop).map_err(|error| error.fault)
    };
    let texts = |entries| {
        let definition = Definition::new("texts", Kind::Array, 4, 8, entries);
        Definition { access: ValueAccess::Read, ..definition }
    };
    let no_text = Err(Fault::NoText { register: Register::R1 });
    let first = "r1 = map[idx:0][0]+2 ll\ncall 2\nexit";
    assert_eq!(verify(texts(1), first), Ok(()));
    assert_eq!(verify(texts(2), first), no_text);
    let looked_up = |in_it: &str| {
        format!(
            "*(u32 *)(r10 - 4) = 0\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\n{in_it}\
             r1 = r0\ncall 2\nout: r0 = 0\nexit"
        )
    };
    assert_eq!(verify(texts(1), &looked_up("")), Ok(()));
    let inner = Definition::new("outer", Kind::ArrayOfMaps, 4, 4, 1);
    let inner = Definition { inner: Some(Box::new(texts(1))), ..inner };
    let again = "r1 = r0\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\n";
    assert_eq!(verify(inner, &looked_up(again)), no_text);
}

#[test]
fn ways_that_meet_are_followed_once() {
    // 2^40 ways, all of which look the same behind each branch.
    let branches: String = (0..40)
        .map(|n| format!("r3 = *(u8 *)(r1 + 0)\nif r3 == {n} goto l{n}\nr4 = 1\nr4 = 2\nr4 = 3\nr4 = 4\nl{n}:\n"))
        .collect();
    accepted(&format!("r0 = 0\n{branches}exit"));
    // But what differs and is looked at again is followed.
    let differs =
        "r3 = *(u8 *)(r1 + 0)\nr4 = 0\nif r3 == 0 goto on\nr4 = 100\non: r1 += r4\nr0 = *(u8 *)(r1 + 0)\nexit";
    assert_eq!(fault(differs), Fault::Context { min: 100, end: 101, len: 16 });
    let other = differs.replace("r4 = 0", "r4 = 200").replace("r4 = 100", "r4 = 0");
    assert_eq!(fault(&other), Fault::Context { min: 200, end: 201, len: 16 });
}

#[test]
fn the_work_follows_the_length_of_programs_that_branch() {
    let followed = |branches: usize| {
        let body: String = (0..branches)
            .map(|n| format!("r3 = *(u8 *)(r1 + {})\nif r3 == {n} goto l{n}\nr4 = 1\nr4 = 2\nl{n}:\n", n % 16))
            .collect();
        let code = Code::new(&assemble(&format!("r0 = 0\n{body}exit")).expect("a program")).expect("right");
        let instructions = code.instructions().len();
        let contract = Contract::new().context(16, ContextAccess::Read);
        (contract.verify(code).expect("it is harmless").followed(), instructions)
    };
    let [(first, _), (second, instructions)] = [followed(1000), followed(10_000)];
    // Each way is followed once, and a bit further where it meets another.
    assert!(second <= 3 * instructions, "{second} of {instructions} instructions");
    assert!(second <= 11 * first, "{first} for 1000 branches, and {second} for 10 000");
    // If something differs on all ways, the budget refuses the program, and no later.
    let sums: String = (0..64)
        .map(|n| format!("r3 = *(u8 *)(r1 + 0)\nif r3 == {n} goto l{n}\nr4 += {}\nl{n}:\n", 1_u64 << (n % 31)))
        .collect();
    let text = format!("r0 = 0\nr4 = 0\n{sums}r4 &= 15\nr1 += r4\nr0 = *(u8 *)(r1 + 0)\nexit");
    assert_eq!(fault(&text), Fault::Budget { budget: 20_000 });
}

#[test]
fn operations_that_nothing_comes_between_are_aligned() {
    accepted("r2 = 1\nlock *(u64 *)(r1 + 8) += r2\nr0 = 0\nexit");
    assert_eq!(fault("r2 = 1\nlock *(u64 *)(r1 + 4) += r2\nr0 = 0\nexit"), Fault::Unaligned { align: 8 });
    let variable = "r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr1 += r3\nr2 = 1\nlock *(u64 *)(r1 + 0) += r2\nr0 = 0\nexit";
    accepted(variable);
    assert_eq!(fault(&variable.replace("&= 8", "&= 7")), Fault::Unaligned { align: 8 });
}

#[test]
fn helpers_are_those_of_the_contract() {
    accepted("r1 = 1\nr2 = 2\ncall 1\nexit");
    assert_eq!(fault("call 2\nexit"), Fault::Helper { id: 2 });
    accepted("r1 = 1\nr3 = 1\ncallx r3\nexit");
    assert_eq!(fault("r1 = 1\nr3 = 5\ncallx r3\nexit"), Fault::Helper { id: 5 });
    assert_eq!(fault("r3 = *(u8 *)(r1 + 0)\nr1 = 1\ncallx r3\nexit"), Fault::VariableCall { register: Register::R3 });
    let reason = MissingFunction::NotGiven;
    assert_eq!(fault("call kernel 1\nexit"), Fault::Function { index: 1, reason });
    assert_eq!(fault("r1 = 1\nr2 = r3\ncall 1\nexit"), Fault::Unset { register: Register::R3 });
}

#[test]
fn what_is_kept_in_mind_is_bounded() {
    // Each part of the ways has a stack of its own.
    let slots: String = (1..=64).map(|slot| format!("*(u64 *)(r10 - {}) = {slot}\n", 8 * slot)).collect();
    let parts: String = (0..50)
        .map(|n| format!("r3 = *(u8 *)(r1 + 0)\nif r3 == {n} goto l{n}\n*(u64 *)(r10 - 8) = {n}\nl{n}:\n"))
        .collect();
    let text = format!("{slots}{parts}r0 = *(u64 *)(r10 - 8)\nexit");
    let code = Code::new(&assemble(&text).expect("a program")).expect("its structure is right");
    let within = |values| within(&of_context(), &code, Limits { values, ..Limits::new(BUDGET) });
    assert_eq!(within(2000), Err(Fault::Values { most: 2000 }));
    assert_eq!(within(MOST_VALUES), Ok(()));
}

/// A contract with a ring buffer, whose records helper 131 reserves, and 132 submits.
fn with_ring() -> Contract {
    let mut contract = Contract::new();
    let reserve = [Argument::Map(MapUse::Records), Argument::RecordSize, Argument::Number];
    contract.set_helper(131, Signature::new(reserve).returning(Returns::RecordOrNull));
    contract.set_helper(132, Signature::new([Argument::Record, Argument::Number]));
    contract.set_maps(&[&Definition::new("ring", Kind::RingBuffer, 0, 0, 4096)]);
    contract
}

/// Reserves 64 records, and submits each: two parts of a program.
fn records() -> [String; 2] {
    let slots = 1..=64;
    let reserve = slots
        .clone()
        .map(|slot| format!("r1 = map[idx:0] ll\nr2 = 8\nr3 = 0\ncall 131\n*(u64 *)(r10 - {}) = r0\n", 8 * slot));
    let submit = slots.map(|slot| {
        let at = 8 * slot;
        format!(
            "r1 = *(u64 *)(r10 - {at})\nif r1 == 0 goto n{slot}\nr2 = 0\ncall 132\n*(u64 *)(r10 - {at}) = 0\nn{slot}:\n"
        )
    });
    [reserve.collect(), submit.collect()]
}

/// Mutants: what two states hold is compared for nothing, be they followed to their ends or not.
#[test]
fn comparing_what_is_held_is_bounded() {
    const TIMES: usize = 100;
    let contract = with_ring().context(16, ContextAccess::Read);
    let [reserve, submit] = records();
    let least = |meetings: &str, end: &str| {
        least_with(&contract, &format!("r6 = r1\nr7 = 0\n{reserve}{meetings}{submit}{end}"))
    };
    // Two ways that differ in one register meet each other.
    let ways = "r3 = *(u8 *)(r6 + 0)\nif r3 == 5 goto on\nr7 = 1\non:\n".to_string() + &"goto +0\n".repeat(TIMES);
    let ways = least(&ways, "r6 += r7\nr0 = *(u8 *)(r6 + 0)\nexit");
    // In a loop all states are still followed.
    let rounds = format!("again: r7 += 1\nif r7 != {TIMES} goto again\n");
    let rounds = least(&rounds, "r0 = 0\nexit");
    let rest = least("", "r0 = 0\nexit");
    assert!(ways > rest + 95_000, "{ways}, {rest} of them for the rest");
    assert!(rounds > rest + 80_000, "{rounds}, {rest} of them for the rest");
}

/// Mutants: records weigh nothing; nor does what is kept beside a state, or the memory of what is called later.
#[test]
fn all_that_is_kept_weighs() {
    let is_kept = |values: usize, [before, behind]: &[String; 2]| {
        let meetings = "goto +0\n".repeat(1000);
        let text = format!("{before}{meetings}{behind}r0 = 0\nexit");
        let code = Code::new(&assemble(&text).expect("a program")).expect("its structure is right");
        let limits = Limits { values, ..Limits::new(BUDGET) };
        match within(&with_ring(), &code, limits) {
            Ok(()) => true,
            Err(fault) => {
                assert_eq!(fault, Fault::Values { most: values });
                false
            }
        }
    };
    // Each of the states has 10 registers, and 64 slots of the stack and 64 records.
    let nothing = Default::default();
    assert_eq!([13_900, 14_100].map(|values| is_kept(values, &nothing)), [false, true]);
    assert_eq!([141_000, 160_000].map(|values| is_kept(values, &records())), [false, true]);
    let callback = Callback { entry: 0, map: None, sample: None, context: Value::Unset };
    let later = State::of_timer(callback, false, Value::Unset, 1);
    assert_eq!((later.frames.capacity(), later.weight()), (1, 16));
}

fn of_context() -> Contract {
    Contract::new().context(16, ContextAccess::Read)
}

/// Mutants: each way counts what a call on it runs; nothing but the first call counts; nor do those in other calls of a
/// function.
#[test]
fn a_call_counts_once_for_all_ways_if_jumps_back_pay() {
    const BUDGET: usize = 20_000;
    let verify = |text: &str| {
        let code = format!("{text}f: {}exit", "r0 = 0\n".repeat(1000));
        let contract = of_context().budget(BUDGET).fuel(100);
        contract.verify(typed(&code)).map(|verified| verified.fuel()).map_err(|error| error.fault)
    };
    // 32 ways differ behind the call, too.
    let ways: String = [1, 2, 4, 8, 16]
        .map(|bit| format!("r3 = *(u8 *)(r7 + 0)\nif r3 == {bit} goto b{bit}\nr6 += {bit}\nb{bit}:\n"))
        .concat();
    let used = "r6 &= 15\nr7 += r6\nr0 = *(u8 *)(r7 + 0)\nexit\n";
    assert_eq!(verify(&format!("r7 = r1\nr6 = 0\n{ways}call local f\n{used}")), Ok(Some(100)));
    let calls = "call local f\n".repeat(20);
    assert_eq!(verify(&format!("{calls}exit\n")), Err(Fault::Budget { budget: BUDGET }));
    // A function without a type is followed in each of its calls.
    let calls = "call local g\n".repeat(20);
    assert_eq!(verify(&format!("{calls}exit\ng: call local f\nexit\n")), Err(Fault::Budget { budget: BUDGET }));
}

/// Follows all of `code`.
fn within(contract: &Contract, code: &Code, limits: Limits) -> Result<(), Fault> {
    let explored = explore(code, &Functions::default(), contract, (Loops::Proven, limits), None);
    explored.map(drop).map_err(|error| error.fault)
}

/// Returns the least effort within which a program is verified.
fn least(text: &str) -> usize {
    least_with(&of_context(), text)
}

/// The same for a program with this contract.
fn least_with(contract: &Contract, text: &str) -> usize {
    let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
    let is_enough = |effort| match within(contract, &code, Limits { effort, ..Limits::new(BUDGET) }) {
        Ok(()) => true,
        Err(fault) => {
            assert_eq!(fault, Fault::Effort { most: effort });
            false
        }
    };
    let (mut low, mut high) = (0_usize, 1 << 20);
    while low < high {
        let middle = low.midpoint(high);
        (low, high) = if is_enough(middle) { (low, middle) } else { (middle + 1, high) };
    }
    low
}

/// Mutants: comparisons are not counted; copies are not, where ways part or where they meet.
#[test]
fn what_is_compared_and_copied_is_bounded() {
    let slots: String = (1..=64).map(|slot| format!("*(u64 *)(r10 - {}) = {slot}\n", 8 * slot)).collect();
    // Nothing meets: each branch copies all.
    let parting: String = (0..100).map(|n| format!("r3 = *(u8 *)(r1 + 0)\nif r3 == {n} goto end\n")).collect();
    // Eight ways differ in one slot, and meet each other again and again.
    let bits: String = [1, 2, 4]
        .map(|bit| format!("r3 = *(u8 *)(r1 + {bit})\nif r3 > 5 goto b{bit}\nr6 += {bit}\nb{bit}:\n"))
        .concat();
    let meeting = format!("r6 = 0\n{bits}*(u64 *)(r10 - 512) = r6\nr3 = 0\nr6 = 0\n{}", "goto +0\n".repeat(100));
    let used = "r4 = *(u64 *)(r10 - 512)\nr1 += r4\nr4 = *(u8 *)(r1 + 0)\n";
    let parting = least(&format!("{slots}{parting}end: r0 = 0\nexit"));
    let meeting = least(&format!("{slots}{meeting}{used}r0 = 0\nexit"));
    // 74 values are copied at each branch, and those that were set are compared at the end.
    assert!((2 * 66 * 100..15_500).contains(&parting), "{parting}");
    // A state is copied every 8 meetings, and compared with one more at each.
    assert!((80_000..100_000).contains(&meeting), "{meeting}");
}

/// Gives the last function of a program a type without arguments.
fn typed(text: &str) -> Code {
    let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
    let slot = code.functions().last().map_or(0, |first| code.slot(first));
    code.with_types([(slot, FunctionType::new([]).expect("a type"))])
}

/// Mutant: what calls run that are not followed counts against what is followed to prove loops.
#[test]
fn a_counted_loop_may_call_long_functions() {
    let text = format!(
        "r7 = r1\nr6 = 0\nagain: call local f\nr1 = r6\nr1 <<= 3\nr2 = r7\nr2 += r1\n*(u64 *)(r2 + 0) = r0\n\
         r6 += 1\nif r6 != 64 goto again\nr0 = 0\nexit\nf: {}exit",
        "r0 = 1\n".repeat(2000)
    );
    let contract = Contract::new().context(512, ContextAccess::Write).fuel(100);
    let proven = contract.clone().verify(typed(&text)).expect("its end is found");
    assert_eq!(proven.fuel(), None);
    assert!(proven.followed() < 3000, "{}", proven.followed());
    // With fuel nobody knows the index, and with less budget all of it may take too long.
    let refused = contract.budget(100_000).verify(typed(&text)).expect_err("its index has no bounds").fault;
    assert!(matches!(refused, Fault::Far { .. } | Fault::Context { .. }), "{refused}");
}

/// Mutants: registers that nobody looks at again count as compared; states that are looked at do not count.
#[test]
fn tight_loops_are_followed_to_the_end_of_the_budget() {
    const ROUNDS: usize = 1000;
    for register in ["r0", "r6", "r9"] {
        let text =
            format!("{register} = 0\nagain: {register} += 1\nif {register} != {ROUNDS} goto again\nr0 = 0\nexit");
        // In each round 64 states are looked at, and a number in each.
        let (least, most) = (least(&text), EFFORT * 2 * ROUNDS);
        assert!((100 * ROUNDS..most * 2 / 3).contains(&least), "{least} of {most}");
    }
}

/// Mutants: a comparison that tells all copies counts nothing; nor does a call that tells old results from new ones, a
/// result that becomes known, what is given back, and finding links of what is kept.
#[test]
fn what_is_told_to_all_values_is_bounded() {
    const TIMES: usize = 100;
    let slots: String = (1..=64).map(|slot| format!("*(u64 *)(r10 - {}) = r3\n", 8 * slot)).collect();
    // Each time only one way is possible, and 64 copies are told.
    let told = "r3 = *(u8 *)(r1 + 0)\n".to_string() + &slots + &"if r3 > 300 goto end\n".repeat(TIMES);
    let told = least(&format!("{told}end: r0 = 0\nexit"));
    assert!((74 * TIMES..90 * TIMES).contains(&told), "{told}");
    let kept = "goto +0\n".repeat(TIMES);
    let kept = least(&format!("r3 = *(u8 *)(r1 + 0)\n{slots}{kept}r0 = 0\nexit"));
    // Each state is copied, and its links are found.
    assert!((2 * 74 * TIMES..2 * 90 * TIMES).contains(&kept), "{kept}");
    // The null check copies a state, and a copied and compared one is kept behind it, with its links.
    let reserve = |n| {
        let reserve = "r1 = map[idx:0] ll\nr2 = 8\nr3 = 0\ncall 131\n";
        format!("{reserve}if r0 == 0 goto n{n}\nr1 = r0\nr2 = 0\ncall 132\nn{n}:\n")
    };
    let records: String = (0..TIMES).map(reserve).collect();
    let records = least_with(&with_ring(), &format!("r3 = 1\n{slots}{records}r0 = 0\nexit"));
    assert!((600 * TIMES..630 * TIMES).contains(&records), "{records}");
}

#[test]
fn calls_in_loops_with_counts_are_followed_about_once() {
    let followed = |calls: usize| {
        // Between branches that meet there are calls of a function with a loop of its own and one that goes on.
        let body: String = (0..calls)
            .map(|n| {
                format!("r3 = *(u8 *)(r6 + {})\nif r3 == {n} goto l{n}\nr7 = 1\nl{n}: r1 = r6\ncall local f\n", n % 16)
            })
            .collect();
        let text = format!(
            "r6 = r1\nagain: may_goto out\n{body}goto again\nout: r0 = 0\nexit\n\
             f: r6 = r1\nr0 = 0\nk: may_goto end\nr3 = *(u8 *)(r6 + 0)\nif r3 == 1 goto m\nr0 += 1\n\
             m: r4 = 1\nr4 = 2\nr4 = 3\nr4 = 4\nr4 = 5\nr4 = 6\nif r3 == 2 goto end\ngoto k\nend: r0 = 0\nexit"
        );
        verify(&text).expect(&text).followed()
    };
    let [few, many] = [followed(5), followed(40)];
    assert!(many <= 10 * few, "{few} for 5 calls, and {many} for 40");
}
