//! Random programs mean the same here and to uBPF, whose makers read the same RFC 9669: to its interpreter, and
//! compiled by it. They use everything that uBPF has; the crate `rbpf`, with which the fuzz target `bpf_run` compares
//! as well, has no signed division, no extension of signs, no plain swap of bytes and of atomic operations only an
//! addition.
//!
//! `cargo xtask test --only ubpf` runs this. By hand: `RUSTFLAGS='--cfg palimpsest_ubpf' cargo test -p palimpsest-bpf
//! --test peer`, with CMake and libclang.
//!
//! No program was found that means something else. uBPF has neither loads that acquire nor stores that release, which
//! stand there as plain ones.
#![cfg(palimpsest_ubpf)]

#[path = "../differential/generator.rs"]
mod generator;
#[path = "../common/ubpf.rs"]
mod ubpf;

use palimpsest_bpf::Code;
use palimpsest_bpf::insn::Instruction;
use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use proptest::test_runner::{Config, TestRunner};

use ubpf::Ubpf;

/// How many programs to try.
const CASES: u32 = 4000;

#[test]
fn random_programs_mean_the_same_to_ubpf() {
    let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
    let result = runner.run(&generator::program(), |(instructions, seed)| {
        let instructions: Vec<Instruction> =
            generator::with_arguments(&instructions).into_iter().map(ubpf::without_order).collect();
        let text = || instructions.iter().map(|instruction| format!("{instruction}\n")).collect::<String>();
        let bytes = generator::bytes(&instructions);
        let code = Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{}", text()));
        let (mut here, mut interpreted, mut compiled) = (seed, seed, seed);
        let mut memory = Memory::new();
        let address = here.as_ptr() as u64;
        memory.add(address, &mut here[..]).expect("free");
        let expected = Interpreter::default().run(&code, [address, 0, 0, 0, 0], &mut memory, &mut NoHelpers);
        let expected = expected.unwrap_or_else(|error| panic!("{error}\n{}", text()));
        let mut peer = Ubpf::load(&bytes).unwrap_or_else(|error| panic!("uBPF: {error}\n{}", text()));
        proptest::prop_assert_eq!(peer.interpret(&mut interpreted[..]), Ok(expected), "interpreted:\n{}", text());
        proptest::prop_assert_eq!(&interpreted, &here, "interpreted:\n{}", text());
        // SAFETY: 1. the interpreter has run it to its end within that memory.
        let result = unsafe { peer.run_compiled(&mut compiled[..]) };
        proptest::prop_assert_eq!(result, Ok(expected), "compiled:\n{}", text());
        proptest::prop_assert_eq!(&compiled, &here, "compiled:\n{}", text());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
