//! `bpf_trace_printk` with fewer numbers than it takes: the others are 0, whatever the registers held.
//!
//! Mutants that are caught: a call behind which registers are not cleared, interpreted or compiled; a function that
//! prints the fuel that its helper passes.

use palimpsest_bpf::verify::Trust;

use super::*;

/// The helper gets three numbers, and returns the length of what it prints.
const FORMAT: &str = "%llx.%llx.%llx";

fn host() -> Arc<Host> {
    let text = Definition { access: ValueAccess::Read, ..Definition::new("text", Kind::Array, 4, 16, 1) };
    let text = Map::new(text).expect("good measures");
    let mut value = [0; 16];
    value[..FORMAT.len()].copy_from_slice(FORMAT.as_bytes());
    text.update(&[0; 4], &value, Update::Always).expect("there");
    let array = Map::new(Definition::new("array", Kind::Array, 4, 8, 2)).expect("good measures");
    let programs = Map::new(Definition::new("programs", Kind::Programs, 4, 4, 2)).expect("good measures");
    Host::builder().map(Arc::new(text)).map(Arc::new(array)).map(Arc::new(programs)).build()
}

/// Prints; `r3` to `r5` are what they are.
const PRINT: &str = "r1 = map[idx:0][0]+0 ll\nr2 = 14\ncall 6";

/// What a program returns, which gets a number.
fn run(text: &str, number: u64) -> u64 {
    let mut results = Vec::new();
    for trust in [Trust::Full, Trust::None] {
        for contract in [contract().trust(trust), contract().trust(trust).fuel(1000)] {
            let linked = host().verify(contract, code(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let mut context = [0; LEN];
            context[..8].copy_from_slice(&number.to_ne_bytes());
            results.push(linked.interpret(&Interpreter::default(), &mut context).expect("it ends"));
            if let Some(packs) = packs() {
                let program = HostedProgram::load(&packs, &linked).expect("room");
                results.push(program.run(&mut context).expect("it ends"));
            }
        }
    }
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}\n{text}");
    results[0]
}

#[test]
fn numbers_that_are_not_given_are_0() {
    // Where the registers may hold anything, and which numbers are given.
    for (begin, printed) in [
        ("", "0.0.0"),
        ("r3 = 0x123", "123.0.0"),
        ("r4 = 0x1234", "0.1234.0"),
        ("call 5", "0.0.0"),
        ("call 5\nr5 = 0x12", "0.0.12"),
        ("call 14\nr4 = r0\nr4 &= 0\ncall 7", "0.0.0"),
        // Behind a look-up in place, which uses registers of its own.
        ("*(u32 *)(r10 - 4) = 1\nr1 = map[idx:1] ll\nr2 = r10\nr2 += -4\nr3 = 7\nr4 = 8\nr5 = r10\ncall 1", "0.0.0"),
        // Behind itself.
        ("r1 = map[idx:0][0]+0 ll\nr2 = 14\nr5 = 0x77\ncall 6", "0.0.0"),
    ] {
        let text = format!("{begin}\n{PRINT}\nexit");
        assert_eq!(run(&text, 0), printed.len() as u64, "{text}");
    }
    // Behind a tail call that finds no program.
    let Some(packs) = packs() else { return };
    let text = format!("r2 = map[idx:2] ll\nr3 = 0\nr4 = r10\ncall 12\n{PRINT}\nexit");
    let linked = host().verify(contract(), code(&text)).expect("harmless");
    assert_eq!(HostedProgram::load(&packs, &linked).expect("room").run(&mut [0; LEN]), Ok(5));
}

#[test]
fn functions_leave_nothing_and_get_what_their_callers_had() {
    // What a function has left, which had the stack's address.
    let left = format!("call local f\n{PRINT}\nexit\nf: r3 = r10\nr4 = r10\nr5 = 0x77\nr0 = 0\nexit");
    assert_eq!(run(&left, 0), 5);
    let got = format!("call 5\nr4 = 0x1234\ncall local f\nexit\nf: {PRINT}\nexit");
    assert_eq!(run(&got, 0), 8);
    // A function that a helper calls, and behind the call; with `r6` one that prints all numbers.
    let called = format!(
        "*(u64 *)(r10 - 8) = 0\nr1 = 3\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n{PRINT}\nr0 <<= 32\n\
         r1 = *(u64 *)(r10 - 8)\nr0 |= r1\nexit\n\
         f: r6 = r2\n{PRINT}\nr1 = *(u64 *)(r6 + 0)\nr0 += r1\n*(u64 *)(r6 + 0) = r0\nr0 = 0\nexit"
    );
    assert_eq!(run(&called, 0), 5 << 32 | 15);
    // One that gets addresses in `r3` and `r4`.
    let each = called.replace("r1 = 3\nr2 = func[f] ll", "r1 = map[idx:1] ll\nr2 = func[f] ll").replace("181", "164");
    let each = each.replace("f: r6 = r2\n", "f: r6 = r4\nr3 = 1\nr4 = 2\n");
    assert_eq!(run(&each, 0), 5 << 32 | 10);
}

#[test]
fn ways_differ_in_what_they_give() {
    let given = "r3 = 0x1234\ngoto print";
    for (first, second, at) in [("goto print", given, 0), (given, "goto print", 1)] {
        let text = format!(
            "r6 = *(u64 *)(r1 + 0)\ncall 5\nif r6 != 0 goto other\n{first}\nother: {second}\nprint: {PRINT}\nexit"
        );
        let lengths = [run(&text, 0), run(&text, 1)];
        assert_eq!((lengths[at], lengths[1 - at]), (5, 8), "{text}");
    }
    let in_loop = format!("r6 = 0\nagain: may_goto out\n{PRINT}\nr6 = r0\ngoto again\nout: {PRINT}\nexit");
    let bounded = in_loop.replace("may_goto out", "r6 += 1\nif r6 > 9 goto out");
    assert_eq!(run(&bounded.replace("r6 = r0\n", ""), 0), 5);
}

#[test]
fn registers_without_a_value_are_good_for_nothing_else() {
    let refused = |text: &str| host().verify(contract(), code(text)).map(drop).expect_err(text).fault;
    let unset = |register| Fault::Unset { register };
    assert_eq!(refused(&format!("{PRINT}\nr0 = r3\nexit")), unset(Register::R3));
    assert_eq!(refused(&format!("*(u64 *)(r10 - 8) = r4\n{PRINT}\nexit")), unset(Register::R4));
    assert_eq!(refused(&format!("if r5 == 0 goto out\nout: {PRINT}\nexit")), unset(Register::R5));
    assert_eq!(refused(&format!("r4 += r3\n{PRINT}\nexit")), unset(Register::R3));
    assert_eq!(refused("call 5\nr1 = map[idx:0][0]+0 ll\ncall 6\nexit"), unset(Register::R2));
    assert_eq!(refused(&format!("{PRINT}\ncall 164\nexit")), unset(Register::R1));
    // Addresses are not numbers, and no register has either of both.
    assert_eq!(refused(&format!("r3 = r10\n{PRINT}\nexit")), Fault::Address { register: Register::R3 });
    let both = format!("r0 = 0\nagain: may_goto print\nr3 = r10\ngoto again\nprint: {PRINT}\nexit");
    assert_eq!(refused(&both), unset(Register::R3));
    // A function that is verified alone gets anything from its callers, so that it is followed in each of its calls.
    let number = "r3 = 0x123";
    let address = "r3 = r10";
    let calls = |begin: &str| format!("{begin}\nr4 = 0\nr5 = 0\ncall local f\nexit\nf: {PRINT}\nexit");
    assert_eq!(run(&calls(number), 0), 7);
    assert_eq!(refused(&calls(address)), Fault::Address { register: Register::R3 });
}

/// A program that prints again and again, with some registers set, and adds up the lengths.
fn printing(random: &mut u64) -> String {
    let mut below = |count: u64| {
        *random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (*random >> 33) % count
    };
    let mut text = "r6 = 0\nr7 = *(u64 *)(r1 + 0)\n".to_owned();
    for step in 0..6 {
        for register in 3..6 {
            if below(3) == 0 {
                text += &format!("r{register} = {}\n", 1_u64 << below(31));
            }
        }
        let print = format!("{PRINT}\nr6 <<= 5\nr6 += r0\n");
        text += &match below(7) {
            0 => "call 5\n".to_owned(),
            1 => "call local f\nr6 += r0\n".to_owned(),
            2 => "r1 = 2\nr2 = func[g] ll\nr3 = 0\nr4 = 0\ncall 181\n".to_owned(),
            3 => format!("if r7 > {} goto l{step}\n{print}l{step}: r2 = 0\n", below(4)),
            4 => format!("r1 = 1\nif r7 > {} goto l{step}\nr{} = 0x12345\nl{step}: {print}", below(4), 3 + below(3)),
            _ => print,
        };
    }
    format!(
        "{text}{PRINT}\nr0 += r6\nexit\nf: r3 = r10\n{}\nexit\ng: {PRINT}\nr0 = 0\nexit",
        PRINT.replace("r1 =", "r3 = 5\nr1 =")
    )
}

#[test]
fn random_programs_print_the_same_interpreted_and_compiled() {
    let mut random = 1;
    for _ in 0..60 {
        let text = printing(&mut random);
        for number in [0, 2, 9] {
            run(&text, number);
        }
    }
}
