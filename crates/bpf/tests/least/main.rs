//! What the verifier accepts runs within what it was promised, to the byte: random programs run in the least context
//! with which each is accepted, so that whatever it has proven one too small shows. The interpreter, which knows every
//! bound, and the compiled code agree.
//!
//! Mutants that are caught by the programs of every run, each planted by itself: links count as known without being
//! looked at.

#[path = "../common/mod.rs"]
mod common;
mod generator;
mod links;

use std::ops::Range;
use std::sync::Arc;

use palimpsest_bpf::host::{Host, HostedError, HostedProgram, Linked};
use palimpsest_bpf::interp::{Interpreter, RunError, Trap};
use palimpsest_bpf::verify::{ContextAccess, Contract, FunctionType, Null, Parameter, Trust};
use palimpsest_bpf::{Code, Packs, asm};

use common::packs;
use generator::{Generated, READ, Random};

/// Bytes of context with which a program is either accepted or never.
const MOST: u32 = 70_000;
/// Contexts that each program is run with.
const CONTEXTS: usize = 24;

/// Makes the code: functions that have types get a word's address and two numbers.
fn code(Generated { text, typed }: &Generated) -> Option<Code> {
    let bytes = asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    // Calls may be too deep.
    let code = Code::new(&bytes).ok()?;
    let slots: Vec<usize> = code.functions().skip(1).map(|first| code.slot(first)).collect();
    let memory = Parameter::Memory { len: 32, align: 8, null: Null::Excluded };
    let takes = || FunctionType::new([memory, Parameter::Number, Parameter::Number]).expect("a type");
    let types = slots.into_iter().zip(typed).filter(|(_, is_typed)| **is_typed).map(|(slot, _)| (slot, takes()));
    Some(code.with_types(types.collect::<Vec<_>>()))
}

/// Verifies a program with the least context with which it is accepted.
fn verified(host: &Arc<Host>, code: &Code, seed: u64) -> Option<Linked> {
    let trust = if seed.is_multiple_of(5) { Trust::None } else { Trust::Full };
    let verify = |len: u32| {
        let contract = Contract::new().context(len, ContextAccess::Write).budget(6000).trust(trust);
        let contract = if seed.is_multiple_of(3) { contract.fuel(300) } else { contract };
        host.verify(contract, code.clone()).ok()
    };
    let mut least = verify(MOST)?;
    let (mut low, mut high) = (READ as u32, MOST);
    while low < high {
        let middle = low.midpoint(high);
        match verify(middle) {
            Some(linked) => (least, high) = (linked, middle),
            None => low = middle + 1,
        }
    }
    Some(least)
}

/// Returns bytes of which many are at some limit.
fn context(random: &mut Random, len: usize, is_low: bool) -> Vec<u8> {
    let mut context = vec![0; len];
    for byte in &mut context[..READ as usize] {
        *byte = match random.below(6) {
            0 => 0,
            1 => u8::MAX,
            2 => random.below(8) as u8,
            3 => 128,
            4 => random.below(64) as u8,
            _ => random.next() as u8,
        };
    }
    for at in (0..READ as usize).filter(|at| at % 4 != 0) {
        // Numbers of several bytes are small.
        if is_low && random.once_in(2) {
            context[at] = 0;
        }
    }
    context
}

/// Runs a program with some contexts.
fn run(packs: &Packs, linked: &Linked, seed: u64, text: &str) {
    let interpreter = Interpreter::default().budget(200_000);
    let compiled = HostedProgram::load(packs, linked).expect("room");
    let mut random = Random(seed ^ 0x5555);
    for number in 0..CONTEXTS {
        let mut seen = context(&mut random, linked.verified().context_len(), number % 3 == 0);
        let (first, mut other) = (seen[..READ as usize].to_vec(), seen.clone());
        let expected = match linked.interpret(&interpreter, &mut seen) {
            Ok(value) => Ok(value),
            Err(RunError { trap: Trap::Fuel { .. }, .. }) => Err(()),
            // Loops inside each other end, but nobody waits for that.
            Err(RunError { trap: Trap::Budget { .. }, .. }) if text.contains("may_goto") => return,
            Err(error) => panic!("seed {seed}, {} bytes, {first:?}: {error}\n{text}", seen.len()),
        };
        let result = match compiled.run(&mut other) {
            Ok(value) => Ok(value),
            Err(HostedError::Fuel { .. }) => Err(()),
            Err(error) => panic!("seed {seed}, {} bytes, {first:?}: compiled, {error}\n{text}", seen.len()),
        };
        assert_eq!(result, expected, "seed {seed}, {} bytes, {first:?}\n{text}", seen.len());
        assert!(seen == other, "seed {seed}, {} bytes, {first:?}: other contexts are left\n{text}", seen.len());
    }
}

/// Runs the programs of `seeds`. Returns how many were accepted, had functions that were verified alone, and had fuel.
fn run_all(seeds: Range<u64>, program: fn(u64) -> Generated) -> Option<[usize; 3]> {
    let (packs, host) = (packs()?, Host::builder().build());
    let mut counts = [0; 3];
    for seed in seeds {
        let generated = program(seed);
        let Some(code) = code(&generated) else { continue };
        let Some(linked) = verified(&host, &code, seed) else { continue };
        run(&packs, &linked, seed, &generated.text);
        let seen = [true, generated.typed.contains(&true), linked.verified().fuel().is_some()];
        counts.iter_mut().zip(seen).for_each(|(count, seen)| *count += usize::from(seen));
    }
    Some(counts)
}

#[test]
fn programs_with_functions_and_loops_need_the_context_they_are_promised() {
    let Some([accepted, alone, fuelled]) = run_all(0..400, generator::program) else { return };
    assert!(accepted > 20 && alone > 2 && fuelled > 2, "{accepted}, {alone}, {fuelled}");
}

#[test]
fn programs_with_links_need_the_context_they_are_promised() {
    let Some([accepted, ..]) = run_all(0..400, links::program) else { return };
    assert!(accepted > 100, "{accepted}");
}

#[test]
#[ignore = "a campaign of minutes: more programs of the same kinds"]
fn programs_need_the_context_they_are_promised_in_a_campaign() {
    let Some([accepted, ..]) = run_all(400..20_000, generator::program) else { return };
    let Some([linked, ..]) = run_all(400..20_000, links::program) else { return };
    assert!(accepted > 1000 && linked > 5000, "{accepted}, {linked}");
}
