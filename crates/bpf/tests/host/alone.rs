//! Functions that are verified alone: types that do not hold give nobody more than a program without types has.
//!
//! Mutants that are caught: memory that is not forgotten behind a call, an address, unwritten bytes or read-only memory
//! that is passed as bytes, an address that may be 0 for one that is not, alignment that is not checked, frames of the
//! function that are not counted, its tail calls.

use palimpsest_bpf::verify::{FunctionType, Null, Parameter};

use super::*;

const fn memory(len: u32, align: u8, null: Null) -> Parameter {
    Parameter::Memory { len, align, null }
}

/// Some memory, or none.
const EIGHT: Parameter = memory(8, 8, Null::Possible);
/// Memory that is there.
const THERE: Parameter = memory(8, 8, Null::Excluded);

/// Verifies a program whose last function has a type. Returns how many instructions were followed.
fn verified(text: &str, parameters: &[Parameter]) -> Result<usize, Fault> {
    let code = code(text);
    let slot = code.functions().last().map_or(0, |first| code.slot(first));
    let takes = FunctionType::new(parameters).expect("a type");
    let linked = builder().build().verify(contract(), code.with_types([(slot, takes)]));
    linked.map(|linked| linked.verified().followed()).map_err(|error| error.fault)
}

/// Asserts that a program is refused with its type, and for the same reason as without.
#[track_caller]
fn refuses(text: &str, parameters: &[Parameter]) -> Fault {
    let fault = verified(text, parameters).expect_err(text);
    assert_eq!(fault, refused(text), "{text}");
    fault
}

#[test]
fn a_function_is_followed_once() {
    let calls = "r1 = 1\ncall local f\n".repeat(50);
    let branches = "r0 += 1\nif r1 == 0 goto +1\nr0 *= 3\nr1 >>= 1\n".repeat(10);
    let text = format!("{calls}exit\nf: r0 = 0\n{branches}exit");
    let (alone, each) = (verified(&text, &[Parameter::Number]), verified(&text, &[]));
    let (Ok(alone), Ok(each)) = (alone, each) else { panic!("{alone:?}, {each:?}") };
    assert!(alone * 5 < each, "{alone} and {each}");
    assert_eq!(run(&text), run(&text), "both ways of running it agree");
}

/// Gives each function but the program a type without arguments.
fn typed(text: &str) -> Code {
    let code = code(text);
    let slots: Vec<usize> = code.functions().skip(1).map(|first| code.slot(first)).collect();
    code.with_types(slots.into_iter().map(|slot| (slot, FunctionType::new([]).expect("a type"))))
}

/// Six functions, each of which calls the next one `calls` times.
fn nested(calls: usize) -> Code {
    let level = |level: usize| {
        let calls = format!("call local f{}\n", level + 1).repeat(calls);
        format!("f{level}: {calls}r0 = 0\nexit\n")
    };
    let levels: String = (1..7).map(level).collect();
    typed(&format!("call local f1\nr0 = 0\nexit\n{levels}f7: r0 = 0\nexit\n"))
}

/// Mutants: a call counts as one instruction, or as many as its function has without those that it calls.
#[test]
fn with_fuel_a_program_runs_no_longer_than_its_budget_between_two_jumps_back() {
    const BUDGET: u64 = 2000;
    let host = builder().build();
    let fuelled = || contract().budget(BUDGET as usize).fuel(100);
    for calls in 1..200 {
        // Without a loop nothing pays, so that all of it is between two jumps back.
        match host.verify(fuelled(), nested(calls)) {
            Ok(linked) => {
                let interpreter = Interpreter::default().budget(BUDGET);
                assert_eq!(linked.interpret(&interpreter, &mut [0; LEN]), Ok(0), "{calls} calls");
            }
            Err(error) => {
                assert_eq!(error.fault, Fault::Budget { budget: BUDGET as usize });
                assert!(calls > 2, "{calls} calls are few");
            }
        }
        let promised_nothing = host.verify(contract(), nested(calls)).map(|linked| linked.verified().fuel());
        assert_eq!(promised_nothing, Ok(None), "{calls} calls are followed once");
    }
    assert!(host.verify(fuelled().budget(1_000_000), nested(1000)).is_err());
    // A loop that would take too long is one that pays.
    let looping = |calls: usize| {
        let calls = "call local f\n".repeat(calls);
        typed(&format!("{calls}r0 = 0\nexit\nf: r6 = 0\nagain: r6 += 1\nif r6 != 50 goto again\nr0 = 0\nexit\n"))
    };
    let fuel = |calls| host.verify(fuelled(), looping(calls)).map(|linked| linked.verified().fuel());
    assert_eq!((fuel(10), fuel(40)), (Ok(None), Ok(Some(100))));
}

#[test]
fn a_function_reaches_only_what_its_type_has() {
    let eight = "*(u64 *)(r10 - 8) = 5\nr1 = r10\nr1 += -8\ncall local f\nexit\n";
    // It is checked for 0 where there may be none.
    let checked = format!("{eight}f: r0 = 0\nif r1 == 0 goto out\nr0 = *(u64 *)(r1 + 0)\nout: exit");
    assert!(verified(&checked, &[EIGHT]).is_ok());
    let unchecked = format!("{eight}f: r0 = *(u64 *)(r1 + 0)\nexit");
    assert!(verified(&unchecked, &[THERE]).is_ok());
    // This call is right though the type is not: it is followed.
    assert!(verified(&unchecked, &[EIGHT]).is_ok());
    assert!(verified(&unchecked, &[memory(1 << 31, 1, Null::Excluded)]).is_ok());
    let far = format!("{eight}f: r0 = *(u64 *)(r1 + 8)\nexit");
    for len in [8, 16, 512, u32::MAX] {
        let fault = refuses(&far, &[memory(len, 1, Null::Excluded)]);
        assert_eq!(fault, Fault::Stack { min: 0, end: 8 });
    }
    let null = "r1 = 0\ncall local f\nexit\nf: r0 = *(u64 *)(r1 + 0)\nexit";
    for parameter in [EIGHT, THERE, Parameter::Context, Parameter::Number] {
        assert_eq!(refuses(null, &[parameter]), Fault::NoAddress { register: Register::R1 });
    }
    let maybe = "*(u32 *)(r10 - 4) = 0\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nr1 = r0\ncall local f\n\
                 exit\nf: r0 = *(u64 *)(r1 + 0)\nexit";
    for parameter in [EIGHT, THERE] {
        assert_eq!(refuses(maybe, &[parameter]), Fault::MaybeNull { register: Register::R1 });
    }
    let checked = maybe.replace("f: r0", "f: if r1 != 0 goto +2\nr0 = 0\nexit\nr0");
    assert!(verified(&checked, &[memory(16, 8, Null::Possible)]).is_ok());
    // More arguments than it says.
    let second = "r1 = 1\nr2 = 2\ncall local f\nexit\nf: r0 = r2\nexit";
    assert!(verified(second, &[Parameter::Number]).is_ok(), "what it gets is known in its call");
}

#[test]
fn numbers_are_numbers_and_addresses_stay_inside() {
    let text = "call local f\nexit\nf: r0 = r1\nexit";
    assert_eq!(refuses(text, &[Parameter::Number]), Fault::ReturnedAddress);
    assert_eq!(refuses(text, &[Parameter::Context]), Fault::ReturnedAddress);
    // What is returned has no bounds for who calls it.
    let bounded = "call local f\nr1 = r10\nr1 += -8\nr1 += r0\n*(u8 *)(r1 + 0) = 1\nr0 = 0\nexit\nf: r0 = 1\nexit";
    assert_eq!(verified(bounded, &[]).map(drop), Ok(()), "it is followed in the end");
    let free = bounded.replace("f: r0 = 1", "f: call 8\nr0 &= 8");
    assert!(matches!(refuses(&free, &[]), Fault::VariableStack { .. } | Fault::Stack { .. }));
    let unset = "r1 = 1\ncall local f\nr0 = r1\nexit\nf: r0 = 1\nexit";
    assert_eq!(refuses(unset, &[Parameter::Number]), Fault::Unset { register: Register::R1 });
    let kept = "r6 = 1\nr1 = 1\ncall local f\nexit\nf: r0 = r6\nexit";
    assert_eq!(refuses(kept, &[Parameter::Number]), Fault::Unset { register: Register::R6 });
}

#[test]
fn what_a_function_may_have_written_is_not_known() {
    // The distance was 0 before the call, and is 600 behind it.
    let text = "*(u64 *)(r10 - 8) = 0\nr1 = r10\nr1 += -8\ncall local f\nr1 = *(u64 *)(r10 - 8)\nr2 = r10\n\
                r2 += r1\nr0 = *(u8 *)(r2 - 8)\nexit\nf: *(u64 *)(r1 + 0) = 600\nr0 = 0\nexit";
    assert!(matches!(refuses(text, &[THERE]), Fault::Stack { .. }));
    // An address that it would overwrite is not passed as bytes.
    let address = "*(u64 *)(r10 - 8) = r1\nr1 = r10\nr1 += -8\ncall local f\nr1 = *(u64 *)(r10 - 8)\n\
                   r0 = *(u8 *)(r1 + 0)\nexit\nf: *(u64 *)(r1 + 0) = 600\nr0 = 0\nexit";
    assert_eq!(refuses(address, &[THERE]), Fault::NoAddress { register: Register::R1 });
    // Nor read.
    let seen = "*(u64 *)(r10 - 8) = r1\nr1 = r10\nr1 += -8\ncall local f\nexit\nf: r0 = *(u64 *)(r1 + 0)\nexit";
    assert_eq!(refuses(seen, &[THERE]), Fault::ReturnedAddress);
    // Nor what was never written.
    let unset = "r1 = r10\nr1 += -8\ncall local f\nexit\nf: r0 = *(u64 *)(r1 + 0)\nexit";
    assert_eq!(refuses(unset, &[THERE]), Fault::StackUnset { offset: -8, len: 8 });
    let text = "r1 = map[idx:5][0]+0 ll\ncall local f\nexit\nf: *(u64 *)(r1 + 0) = 1\nr0 = 0\nexit";
    assert_eq!(refuses(text, &[THERE]), Fault::ReadOnlyMap);
    let unaligned = "*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 16) = 0\nr1 = r10\nr1 += -12\ncall local f\nexit\n\
                     f: r2 = 1\nlock *(u64 *)(r1 + 0) += r2\nr0 = 0\nexit";
    assert_eq!(refuses(unaligned, &[THERE]), Fault::Unaligned { align: 8 });
    assert_eq!(refuses(unaligned, &[memory(8, 4, Null::Excluded)]), Fault::Unaligned { align: 8 });
    let aligned = unaligned.replace("-12", "-16");
    assert!(verified(&aligned, &[THERE]).is_ok());
}

#[test]
fn a_function_that_is_verified_alone_is_still_called() {
    // Its tail calls are no tail calls of the program.
    let tail = "call local f\nexit\nf: r2 = map[idx:4] ll\nr3 = 0\ncall 12\nr0 = 0\nexit";
    assert_eq!(refuses(tail, &[Parameter::Context]), Fault::TailCall);
    // It gives back what it reserves.
    let reserves = "call local f\nexit\nf: r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nr0 = 0\nexit";
    assert!(matches!(refuses(reserves, &[]), Fault::Unreleased { .. }));
    // A loop in it ends.
    let endless = "r1 = 1\ncall local f\nexit\nf: if r1 != 0 goto f\nr0 = 0\nexit";
    assert_eq!(refuses(endless, &[Parameter::Number]), Fault::Endless);
    // It is active together with those that call it. Here `h` is given the address of `g`, two deep in `f`.
    let deep = |callers: usize| {
        let chain: String = (1..callers).map(|n| format!("c{n}: call local c{}\nexit\n", n + 1)).collect();
        format!(
            "call local c1\nexit\n{chain}c{callers}: r1 = 1\ncall local f\nexit\ng: r0 = 1\nexit\n\
             h: r3 = 0\nr4 = 0\ncall 181\nexit\n\
             f: r1 = 1\nr2 = func[g] ll\ncall local h\nr0 = 0\nexit"
        )
    };
    assert!(verified(&deep(4), &[Parameter::Number]).is_ok());
    assert_eq!(refuses(&deep(5), &[Parameter::Number]), Fault::Depth);
}

#[test]
fn types_of_nothing_are_ignored() {
    let takes = |parameters: &[Parameter]| FunctionType::new(parameters);
    assert_eq!(takes(&[Parameter::Number; 6]), None);
    assert_eq!(takes(&[memory(8, 3, Null::Possible)]), None);
    let text = "r0 = 1 ll\ncall local f\nexit\nf: r0 = 2\nexit";
    let types = [0, 1, 2, 3, 4, 5, usize::MAX].map(|slot| (slot, takes(&[Parameter::Number; 5]).expect("a type")));
    let linked = builder().build().verify(contract(), code(text).with_types(types.clone()));
    let linked = linked.expect("the call is followed: r3 has no value");
    assert_eq!(linked.interpret(&Interpreter::default(), &mut [0; LEN]), Ok(2));
}

#[test]
fn arguments_may_lie_on_a_stack_and_are_not_probed() {
    use palimpsest_bpf::verify::Unproven;

    let verified = |text: &str| {
        let code = code(text);
        let slot = code.functions().last().map_or(0, |first| code.slot(first));
        let takes = FunctionType::new([THERE]).expect("a type");
        let contract = contract().unproven(Unproven::Probe);
        builder().build().verify(contract, code.with_types([(slot, takes)])).map(drop).map_err(|error| error.fault)
    };
    let stack = "*(u64 *)(r10 - 8) = 5\nr1 = r10\nr1 += -8\ncall local f\nexit\n";
    for (offset, fault) in [(-64, Fault::StackUnset { offset: -72, len: 8 }), (8, Fault::Stack { min: 0, end: 8 })] {
        let text = format!("{stack}f: r0 = *(u64 *)(r1 + {offset})\nexit").replace("+ -", "- ");
        assert_eq!(verified(&text), Err(fault), "the host keeps things of its own there");
    }
    let far = found(1, "r1 = r0\ncall local f") + "\nf: r0 = *(u64 *)(r1 + 64)\nexit";
    assert_eq!(verified(&far), Ok(()), "a value is probed");
}
