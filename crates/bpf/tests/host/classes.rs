//! Classes of mistakes for which other verifiers are known: reports against Linux's, and mends of it. Each row has
//! programs of a class that must be refused, and neighbours that do no harm: these mean the same interpreted and
//! compiled, with guards and without, for contexts near every limit.
//!
//! Mutants that are caught, each planted by itself:
//!
//! | where | mutant |
//! |---|---|
//! | `step` | an address outside its memory is never 0 |
//! | `step` | a copy of 32 bits keeps what is known of 64 |
//! | `scalar` | what a comparison of 32 bits tells is learned of all 64 |
//! | `scalar` | a sign extension keeps numbers whose sign bit is set |
//! | `scalar` | 32 bits are compared with sign as without one if one operand is small |
//! | `scalar` | a remainder by what may be 0 is less than the divisor |
//! | `state` | the rest of an overwritten address is numbers |
//! | `state` | what was given back stays where callers keep it |
//! | `scalar` | a number whose bytes were swapped keeps its bounds |
//! | `step` | an atomic operation leaves on the stack what was there |
//! | `step` | a load of a variable place on the stack looks only at the first bytes |
//! | `state` | the memory of a dynptr, not yet compared with 0, outlives it |
//! | `call` | a function that a helper calls is followed for one round |
//! | `call` | a tail call with a record |
//! | `call` | a function may return an address |
//! | `call` | helpers write to memory that must not be written |
//! | `call` | a length may be negative |

mod addresses;
mod numbers;
mod ways;

use palimpsest_bpf::verify::Trust;

use super::*;
use crate::common::compiles;

/// A class: what is refused, with the name of the fault, and what is not.
struct Class {
    name: &'static str,
    refused: &'static [(&'static str, &'static str)],
    harmless: &'static [&'static str],
}

/// Contexts of two numbers.
const CONTEXTS: [[u64; 2]; 12] = [
    [0, 0],
    [1, 7],
    [7, 1],
    [8, 0x8000_0000],
    [0x7f, 0x80],
    [0xff80, 0x7fff],
    [0x7fff_ffff, 0xffff_ffff],
    [0x8000_0000, 0x1_0000_0000],
    [0xffff_ffff, u64::MAX],
    [0x1_0000_0000, 3],
    [u64::MAX, u64::MAX - 7],
    [1 << 63, u64::MAX >> 1],
];

/// Runs it both ways with each context: with guards and without they mean the same.
fn compare(text: &str) {
    let hosts = || [Trust::Full, Trust::None].map(|trust| (trust, builder().build()));
    let loaded = |packs: &Packs, (trust, host): (Trust, Arc<Host>)| {
        let linked = host.verify(contract().trust(trust), code(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
        (trust, HostedProgram::load(packs, &linked).expect("room"), host)
    };
    let host = builder().build();
    let linked = host.verify(contract(), code(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    static PACKS: std::sync::LazyLock<Packs> = std::sync::LazyLock::new(|| Packs::new().expect("packs"));
    let programs = if compiles() { hosts().map(|host| loaded(&PACKS, host)).into() } else { Vec::new() };
    for numbers in CONTEXTS {
        let context: [u8; LEN] = std::array::from_fn(|at| numbers[at / 8].to_ne_bytes()[at % 8]);
        let mut interpreted = context;
        let expected = linked.interpret(&Interpreter::default(), &mut interpreted);
        let expected = expected.unwrap_or_else(|error| panic!("{error}, with {numbers:x?}\n{text}"));
        for (trust, program, _) in &programs {
            let mut compiled = context;
            assert_eq!(program.run(&mut compiled), Ok(expected), "{trust:?}, with {numbers:x?}\n{text}");
            assert_eq!(compiled, interpreted, "{trust:?}, with {numbers:x?}\n{text}");
        }
    }
    let left = contents(&host);
    programs.iter().for_each(|(trust, _, host)| assert_eq!(contents(host), left, "{trust:?}\n{text}"));
}

/// Tells all that is wrong at once.
fn check(classes: &[Class]) {
    let mut wrong = Vec::new();
    for Class { name, refused, harmless } in classes {
        for (text, fault) in *refused {
            let found = builder().build().verify(contract(), code(text)).map_err(|error| format!("{:?}", error.fault));
            let found = found.map_or_else(|fault| fault, |_| "accepted".to_owned());
            let found = found.split([' ', '(']).next().unwrap_or_default();
            if found != *fault {
                wrong.push(format!("{name}: {found}, and not {fault}\n{text}"));
            }
        }
        for text in *harmless {
            match builder().build().verify(contract(), code(text)) {
                Ok(_) => compare(text),
                Err(error) => wrong.push(format!("{name}: {error}\n{text}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn numbers_of_known_classes() {
    check(numbers::NUMBERS);
}

#[test]
fn ways_of_known_classes() {
    check(ways::WAYS);
}

#[test]
fn addresses_of_known_classes() {
    check(addresses::ADDRESSES);
}
