//! Programs that are ended: by helpers that fail, or because they have no fuel left.
//!
//! Mutants that are caught: a call of a function after which nothing checks whether the program was ended, a branch
//! that pays when it is not taken, records that an ended program keeps, a `may_goto` whose count has run out but still
//! guards its loop, rounds of another call of `bpf_loop` that are taken for progress.

use palimpsest_bpf::interp::Trap;

use super::*;
use crate::common::{compiles, packs};

/// What ended a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Helper(i32, HelperError),
    Fuel(u64),
}

/// Runs it both ways, with `fuel` if it needs some; both leave the same in the context and in maps.
fn outcome(builder: impl Fn() -> HostBuilder, text: &str, fuel: u64) -> (Result<u64, Ended>, [u8; LEN]) {
    static PACKS: std::sync::LazyLock<Packs> = std::sync::LazyLock::new(|| Packs::new().expect("packs"));
    // A small budget, since what is not proven takes all of it.
    let contract = || contract().budget(2000).fuel(fuel);
    let host = builder().build();
    let linked = host.verify(contract(), code(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let interpret = || {
        let mut context = [0; LEN];
        let result = linked.interpret(&Interpreter::default(), &mut context).map_err(|error| match error.trap {
            Trap::Helper { id, error } => Ended::Helper(id, error),
            Trap::Fuel { fuel } => Ended::Fuel(fuel),
            trap => panic!("{trap}\n{text}"),
        });
        (result, context)
    };
    let (expected, interpreted) = interpret();
    // The second run knows nothing of the first, here and below.
    assert_eq!(interpret(), (expected, interpreted));
    if !compiles() {
        return (expected, interpreted);
    }
    let other = builder().build();
    let linked = other.verify(contract(), code(text)).expect("as before");
    let program = HostedProgram::load(&PACKS, &linked).expect("room");
    for _ in 0..2 {
        let mut compiled = [0; LEN];
        let got = program.run(&mut compiled).map_err(|error| match error {
            HostedError::Helper { id, error } => Ended::Helper(id, error),
            HostedError::Fuel { fuel } => Ended::Fuel(fuel),
            error => panic!("{error}\n{text}"),
        });
        assert_eq!((got, compiled), (expected, interpreted), "fuel {fuel}\n{text}");
    }
    assert_eq!(contents(&other), contents(&host), "{text}");
    (expected, interpreted)
}

const FAILS: HelperError = HelperError::NoArgument { index: 7 };

/// A helper that fails, one that does not, and one that fails if it gets 0.
fn failing() -> HostBuilder {
    builder()
        .helper(1000, Signature::new([]), |_| Err(FAILS))
        .helper(1001, Signature::new([]), |_| Ok(u64::MAX))
        .helper(1002, Signature::new([Argument::Number]), |call| {
            if call.number(0) == 0 { Err(FAILS) } else { Ok(call.number(0)) }
        })
}

#[test]
fn a_helper_that_fails_ends_the_program_at_once() {
    let failed = |text: &str| {
        // Calls by a helper take some.
        let (result, context) = outcome(failing, text, 10);
        assert_eq!(result, Err(Ended::Helper(1000, FAILS)), "{text}");
        context[0]
    };
    let mark = |number: i32| format!("*(u8 *)(r6 + 0) = {number}\n");
    // In the program's own function, in one that it calls, and in that one's callee; what comes behind never runs.
    assert_eq!(failed(&format!("r6 = r1\n{}call 1000\n{}r0 = 0\nexit", mark(1), mark(2))), 1);
    let deep = format!(
        "r6 = r1\ncall local f\n{}r0 = 0\nexit\nf: r6 = r1\n{}call local g\n{}r0 = 0\nexit\n\
         g: r6 = r1\nr7 = 1\n{}call 1000\n{}r0 = 0\nexit",
        mark(2),
        mark(1),
        mark(3),
        mark(4),
        mark(5)
    );
    assert_eq!(failed(&deep), 4);
    // Called by a helper, in the third round; then nothing of the program that called the helper runs.
    let round = format!(
        "r6 = r1\nr3 = r10\nr3 += -8\n*(u64 *)(r10 - 8) = r1\nr1 = 10\nr2 = func[f] ll\nr4 = 0\ncall 181\n{}r0 = 0\n\
         exit\nf: r6 = *(u64 *)(r2 + 0)\nr7 = *(u8 *)(r6 + 0)\nr7 += 1\n*(u8 *)(r6 + 0) = r7\nr0 = 0\n\
         if r1 != 2 goto out\ncall 1000\n{}out: exit",
        mark(20),
        mark(30)
    );
    assert_eq!(failed(&round), 3);
    // A result that looks like an end is not one.
    assert_eq!(outcome(failing, "call 1001\nexit", 0).0, Ok(u64::MAX));
    let signs = "r1 = 1 ll\nr1 <<= 63\ncall 1002\nexit";
    assert_eq!(outcome(failing, signs, 0).0, Ok(1 << 63));
}

#[test]
fn a_program_that_is_ended_leaves_its_records() {
    // Before and behind the record that stays there are others, which the consumer gets.
    let output = "*(u64 *)(r10 - 8) = 7\nr1 = map[idx:2] ll\nr2 = r10\nr2 += -8\nr3 = 8\nr4 = 0\ncall 130\n";
    let reserve =
        "r1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto none\nr8 = r0\n*(u64 *)(r0 + 0) = 1\n";
    let submit = "r1 = r8\nr2 = 0\ncall 132\nr0 = 0\nexit\nnone: r0 = 1\nexit";
    let text = format!("{output}{reserve}{output}call 1000\n{submit}");
    assert_eq!(outcome(failing, &text, 0).0, Err(Ended::Helper(1000, FAILS)));
    let host = failing().build();
    let linked = host.verify(contract(), code(&text)).expect("harmless");
    linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect_err("the helper fails");
    let count = |host: &Host| {
        let ring = host.map("ring").and_then(|map| map.ring()).expect("there");
        let mut count = 0;
        ring.take_consumer().expect("the only one").drain(|record| {
            assert_eq!(record, 7_u64.to_ne_bytes());
            count += 1;
        });
        assert_eq!(ring.pending(), 0);
        count
    };
    assert_eq!(count(&host), 2);
    let Some(packs) = packs() else { return };
    // The program inside the helper of another is ended; the outer one has its record, and submits it.
    let inner = failing().build();
    let linked = inner.verify(contract(), code(&text)).expect("harmless");
    let program = HostedProgram::load(&packs, &linked).expect("room");
    let outer =
        failing().helper(1003, Signature::new([]), move |_| Ok(program.run(&mut [0; LEN]).map_or(1, |_| 0))).build();
    let linked = outer.verify(contract(), code(&format!("{reserve}call 1003\n*(u64 *)(r8 + 0) = r0\n{submit}")));
    let program = HostedProgram::load(&packs, &linked.expect("harmless")).expect("room");
    assert_eq!(program.run(&mut [0; LEN]), Ok(0));
    let records = contents(&outer);
    assert!(records.iter().any(|(map, record)| map == "ring" && record[..8] == 1_u64.to_ne_bytes()), "{records:?}");
    assert_eq!(count(&inner), 2);
}

#[test]
fn an_interpreted_program_whose_helper_panics_leaves_its_records() {
    let host = builder().helper(1000, Signature::new([]), |_| panic!("on purpose")).build();
    let output = "*(u64 *)(r10 - 8) = 7\nr1 = map[idx:2] ll\nr2 = r10\nr2 += -8\nr3 = 8\nr4 = 0\ncall 130\n";
    let interpret = |text: &str| {
        let linked = host.verify(contract(), code(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let run = || linked.interpret(&Interpreter::default(), &mut [0; LEN]);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).ok()
    };
    let reserve = "r1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto none\nr8 = r0\n\
                   *(u64 *)(r0 + 0) = 1\ncall 1000\nr1 = r8\nr2 = 0\ncall 132\nnone: r0 = 0\nexit";
    assert_eq!(interpret(reserve), None, "the panic passes through");
    assert_eq!(interpret(&format!("{output}r0 = 0\nexit")), Some(Ok(0)));
    let mut records = 0;
    let ring = host.map("ring").and_then(|map| map.ring()).expect("there");
    ring.take_consumer().expect("the only one").drain(|record| {
        assert_eq!(record, 7_u64.to_ne_bytes());
        records += 1;
    });
    assert_eq!((records, ring.pending()), (1, 0));
}

/// Counts its rounds in the context; nobody knows how many there will be, except by its first byte.
const ROUNDS: &str = "r6 = r1\nr7 = 0\nagain: r7 += 1\n*(u64 *)(r6 + 8) = r7\nr1 = *(u8 *)(r6 + 0)\n\
                      if r1 != r7 goto again\nr0 = 0\nexit";

#[test]
fn fuel_is_for_as_many_jumps_back() {
    let rounds = |context: [u8; LEN]| context[8];
    // The first byte is 0: it goes on until 0 comes round, which takes all fuel.
    for fuel in [0, 1, 2, 100] {
        let (result, context) = outcome(builder, ROUNDS, fuel);
        assert_eq!((result, rounds(context)), (Err(Ended::Fuel(fuel)), fuel as u8 + 1));
    }
    // Other forms of jumps back; the last two leave from a place of their own.
    let endless = [
        ROUNDS.replace("if r1 != r7 goto again\nr0 = 0\nexit", "if r1 == r7 goto out\ngoto again\nout: r0 = 0\nexit"),
        ROUNDS.replace("if r1 != r7 goto again\nr0 = 0\nexit", "goto again"),
        format!(
            "call local f\nr0 = 7\nexit\nf: {}",
            ROUNDS.replace("if r1 != r7 goto again\nr0 = 0\nexit", "goto again")
        ),
        ROUNDS.replace("if r1 != r7 goto again", "if w1 != w7 goto again"),
        ROUNDS.replace("if r1 != r7 goto again", "if r1 & 1 goto out\nif r7 s> -9 goto again\nout:"),
    ];
    for text in endless {
        let (result, context) = outcome(builder, &text, 9);
        assert_eq!((result, rounds(context)), (Err(Ended::Fuel(9)), 10), "{text}");
    }
    // All functions share the fuel, including those that helpers call; each such call takes some.
    let called = "r6 = r1\nr7 = 0\nagain: r1 = r6\ncall local f\nr7 += 1\nr1 = *(u8 *)(r6 + 0)\n\
                  if r1 != r7 goto again\nr0 = 0\nexit\n\
                  f: r2 = 0\nr5 = *(u8 *)(r1 + 0)\nr5 += 3\nagainf: r2 += 1\nr3 = *(u64 *)(r1 + 8)\nr3 += 1\n\
                  *(u64 *)(r1 + 8) = r3\nif r2 != r5 goto againf\nr0 = 0\nexit";
    for fuel in 0..12_u64 {
        let (result, context) = outcome(builder, called, fuel);
        // Three rounds of the inner one take two jumps back, and the outer one takes one.
        assert_eq!((result, u64::from(rounds(context))), (Err(Ended::Fuel(fuel)), fuel + 1));
    }
    let iterated = "r6 = r1\nr7 = 0\nagain: *(u64 *)(r10 - 8) = r6\nr1 = 3\nr2 = func[f] ll\nr3 = r10\nr3 += -8\n\
                    r4 = 0\ncall 181\nr7 += 1\nr1 = *(u8 *)(r6 + 0)\nif r1 != r7 goto again\nr0 = 0\nexit\n\
                    f: r2 = *(u64 *)(r2 + 0)\nr3 = *(u64 *)(r2 + 8)\nr3 += 1\n*(u64 *)(r2 + 8) = r3\nr0 = 0\nexit";
    for fuel in 0..12_u64 {
        let (result, context) = outcome(builder, iterated, fuel);
        // Three calls, and then a jump back.
        assert_eq!((result, u64::from(rounds(context))), (Err(Ended::Fuel(fuel)), fuel - fuel / 4));
    }
    // Enough fuel.
    let ends = ROUNDS.replace("r7 = 0", "*(u8 *)(r6 + 0) = 50\nr7 = 0");
    assert_eq!(outcome(builder, &ends, 49).0, Ok(0));
    assert_eq!(outcome(builder, &ends, 48).0, Err(Ended::Fuel(48)));
}

#[test]
fn what_is_proven_and_what_fails_take_no_fuel() {
    let proven = "r0 = 0\nr3 = 100\nagain: r0 += r3\nr3 += -1\nif r3 != 0 goto again\nexit";
    assert_eq!(outcome(builder, proven, 0).0, Ok(5050));
    let host = builder().build();
    let refused = host.verify(contract(), code(ROUNDS)).map(drop).expect_err("there is no fuel").fault;
    assert_eq!(refused, Fault::Budget { budget: 50_000 });
    // A helper ends a program that has fuel left, and one without a limit.
    let text = ROUNDS.replace("r7 += 1", "r7 += 1\nr1 = 4\nr1 -= r7\ncall 1002");
    for fuel in [3, 5, palimpsest_bpf::verify::MOST_FUEL] {
        assert_eq!(outcome(failing, &text, fuel).0, Err(Ended::Helper(1002, FAILS)));
    }
    assert_eq!(outcome(failing, &text, 2).0, Err(Ended::Fuel(2)));
    // Records are given back when fuel is out, too: the ring has none that is unfinished.
    let held = "r6 = r1\nr1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto none\nr8 = r0\nr7 = 0\n\
                again: r7 += 1\nr1 = *(u8 *)(r6 + 0)\nif r1 != r7 goto again\nr1 = r8\nr2 = 0\ncall 132\n\
                none: r0 = 0\nexit";
    assert_eq!(outcome(builder, held, 3).0, Err(Ended::Fuel(3)));
    let host = builder().build();
    let linked = host.verify(contract().fuel(3), code(held)).expect("harmless");
    linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect_err("no fuel");
    assert_eq!(contents(&host).iter().filter(|(map, _)| map == "ring").count(), 0);
    assert_eq!(host.map("ring").and_then(|map| map.ring()).expect("there").pending(), 0);
}

#[test]
fn programs_that_call_each_other_share_their_fuel() {
    let Some(packs) = packs() else { return };
    let host = builder().build();
    let programs = host.map("programs").and_then(|map| map.programs()).expect("there");
    let text = "r6 = r1\nr7 = 0\nagain: r7 += 1\nr1 = *(u64 *)(r6 + 8)\nr1 += 1\n*(u64 *)(r6 + 8) = r1\n\
                r1 = *(u8 *)(r6 + 0)\nif r1 != r7 goto again\nr1 = r6\nr2 = map[idx:4] ll\nr3 = 0\ncall 12\n\
                r0 = 0\nexit";
    let linked = host.verify(contract().fuel(10), code(text)).expect("harmless");
    let program = Arc::new(HostedProgram::load(&packs, &linked).expect("room"));
    programs.set(0, Some(Arc::clone(&program))).expect("a place");
    // Four rounds take three jumps back, so that the fourth program has one left.
    let mut context = [0; LEN];
    context[0] = 4;
    assert!(matches!(program.run(&mut context), Err(HostedError::Fuel { .. })));
    assert_eq!(context[8], 4 + 4 + 4 + 2);
    programs.set(0, None).expect("a place");
    context[8] = 0;
    assert_eq!(program.run(&mut context), Ok(0));
}
