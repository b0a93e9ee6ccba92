//! Random programs mean the same to the interpreter and to the compiler.
//!
//! A program gets a block of memory in `r1` and works on it, on its stack and on its registers: every operation, width,
//! byte order, access, atomic operation and condition, with constants near the limits. Jumps go forward, except one
//! that goes to the first instruction a few times, so that the program ends. In the end memory and all registers are
//! folded into `r0`, so that no difference is lost.
//!
//! Mutants that are caught: a `cmpxchg` of 32 bits that leaves the upper half of `r0`, a sign extension that takes `dh`
//! for `sil`, a signed division without its case for -1. `PALIMPSEST_BPF_PROGRAMS` sets the number of programs: 300 by
//! default, 8000 in an exhaustive run.

#[path = "../common/mod.rs"]
mod common;
mod generator;

use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use palimpsest_bpf::verify::{ContextAccess, Contract, Trust};
use palimpsest_bpf::{Code, Program, VerifiedProgram};
use proptest::test_runner::{Config, TestRunner};

use generator::{BLOCK, program};

use common::packs;

#[test]
fn random_programs_mean_the_same_interpreted_and_compiled() {
    let Some(packs) = packs() else { return };
    let mut runner = TestRunner::new(Config { cases: cases(), ..Config::default() });
    let result = runner.run(&program(), |(instructions, seed)| {
        let bytes = generator::bytes(&instructions);
        let text = || instructions.iter().map(|instruction| format!("{instruction}\n")).collect::<String>();
        let code = Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{}", text()));
        let mut interpreted = seed;
        let mut compiled = seed;
        let mut memory = Memory::new();
        // At the same address in both.
        let address = compiled.as_mut_ptr() as u64;
        memory.add(address, &mut interpreted[..]).expect("free");
        let arguments = [address, 3, u64::MAX, 1 << 63, 0x1234_5678_9abc_def0];
        let expected = Interpreter::default().run(&code, arguments, &mut memory, &mut NoHelpers);
        let expected = expected.unwrap_or_else(|error| panic!("{error}\n{}", text()));
        let loaded = Program::load(&packs, &code, &()).expect("room");
        // SAFETY: 1. the interpreter has run it to its end within that memory. 2. there are no helpers.
        let got = unsafe { loaded.run(arguments) };
        proptest::prop_assert_eq!(got, expected, "{}", text());
        proptest::prop_assert_eq!(&compiled, &interpreted, "{}", text());
        // The same with guards and blinded constants.
        let hardened = generator::with_arguments(&instructions);
        let code = Code::new(&generator::bytes(&hardened)).expect("as before");
        let contract = Contract::new().context(BLOCK as u32, ContextAccess::Write).fuel(1000).trust(Trust::None);
        let verified = contract.verify(code).unwrap_or_else(|error| panic!("{error}\n{}", text()));
        let mut compiled = seed;
        let program = VerifiedProgram::load(&packs, &verified, &()).expect("room");
        proptest::prop_assert_eq!(program.run(&mut compiled[..]), Ok(expected), "hardened: {}", text());
        proptest::prop_assert_eq!(&compiled, &interpreted, "hardened: {}", text());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Returns how many programs to try.
fn cases() -> u32 {
    std::env::var("PALIMPSEST_BPF_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

/// The length that the block must have to be shared by both.
const _: () = assert!(BLOCK.is_multiple_of(8));
