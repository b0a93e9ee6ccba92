//! `bpf.test_tag`: the loads of the kernel's test of that name, 40 945 programs of 2 to 4096 instructions, each freed
//! before the next: decoded, compiled, and placed, where `pack.test_tag` only places.
//!
//! rbpf does not take part: its compiler (0.4.1) panics when the code outgrows the memory that it has asked for, as
//! that of long programs does. Nor does async-ebpf, which would run each program to compile it.

use std::time::Duration;

use super::engine::Who;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};

const ID: &str = "bpf.test_tag";

const SHORTEST: usize = 2;
const LONGEST: usize = 4096;

/// The kernel's test goes through the lengths ten times and starts at 2 in the first five passes, at 3 in the others.
const PASSES: usize = 5;

/// Shorter runs, and peers, take only every 41st program, and their time is multiplied.
const STRIDE: usize = 41;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(40);

const ALL: [Who; 5] = [Who::Jit, Who::VerifyJit, Who::SolanaSbpf, Who::SolanaSbpfBare, Who::Ubpf];

fn id(who: Who) -> String {
    match who {
        Who::Jit => ID.to_owned(),
        _ => format!("{ID}.{}", who.name()),
    }
}

pub(super) fn group() -> Group {
    let contestant = |who: Who| -> Contestant { who.contestant(&ALL, Unit::Milliseconds, id).note(who.note()) };
    Group::new(ID, "test_tag: 40 945 loads and ends", ALL.map(contestant))
}

/// Lengths in instructions, in the order of the kernel's test.
fn lengths() -> impl Iterator<Item = usize> {
    let passes = [SHORTEST, SHORTEST + 1].into_iter().flat_map(|first| std::iter::repeat_n(first, PASSES));
    passes.flat_map(|first| first..=LONGEST)
}

/// `r0 = number` again and again, and an end: its last instructions are a program of any length.
fn longest() -> Vec<u8> {
    let number = |number: usize| {
        let mut slot = [0xb7, 0, 0, 0, 0, 0, 0, 0];
        slot[4..].copy_from_slice(&(number as u32).to_le_bytes());
        slot
    };
    let end = [0x95, 0, 0, 0, 0, 0, 0, 0];
    (1..LONGEST).map(number).chain([end]).flatten().collect()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let longest = longest();
    let mut samples = Samples::default();
    let mut runners = Vec::new();
    for who in ALL {
        match who.open() {
            Ok(engine) => runners.push((who, engine)),
            Err(refusal) => samples.refuse(&id(who), refusal.to_string()),
        }
    }
    let own = context.effort.pick(STRIDE, 1);
    interleave(&mut runners, context.effort.rounds(3, 9, BUDGET), |(who, engine)| {
        let stride = if *who == Who::Jit { own } else { STRIDE };
        let chosen = || lengths().step_by(stride);
        let mut programs = chosen().map(|len| &longest[(LONGEST - len) * 8..]);
        let started = Stopwatch::start();
        engine.load_and_free(&mut programs).map_err(failed(&id(*who), who.name()))?;
        let taken = started.elapsed().as_secs_f64() * 1e3;
        // By instructions rather than by programs: the stride does not hit all lengths equally.
        samples.add(&id(*who), taken * lengths().sum::<usize>() as f64 / chosen().sum::<usize>() as f64);
        Ok::<(), BenchError>(())
    })?;
    for (who, _) in &runners {
        if *who != Who::Jit || own == STRIDE {
            samples.note(&id(*who), format!("every {STRIDE}st program, multiplied"));
        }
    }
    context.record(&group, samples);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_programs_as_in_the_kernels_test() {
        assert_eq!(lengths().count(), 40_945);
        assert_eq!((lengths().min(), lengths().max()), (Some(2), Some(4096)));
        assert_eq!(longest().len(), LONGEST * 8);
    }
}
