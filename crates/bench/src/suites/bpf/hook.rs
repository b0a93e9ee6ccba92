//! `bpf.hook`: a loop with a hook in it, to which nothing or a program is attached, and one without a hook.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use palimpsest_bpf::hook;
use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, Packs, asm};

use super::engine::Refusal;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};

const ID: &str = "bpf.hook";

/// Passes of one sample.
const PASSES: u64 = 2_000_000;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(5);

hook! {
    /// The one that is measured.
    fn measured(number: &u64) = "bench.hook";
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Absent,
    Empty,
    OneProgram,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Absent, Self::Empty, Self::OneProgram];

    fn id(self) -> String {
        let name = match self {
            Self::Absent => "absent",
            Self::Empty => "empty",
            Self::OneProgram => "one_program",
        };
        format!("{ID}.{name}")
    }

    fn contestant(self) -> Contestant {
        let contestant = Contestant::new(self.id(), Unit::Nanoseconds);
        match self {
            Self::Absent => contestant.note("the loop alone"),
            Self::Empty => contestant.against([Self::Absent.id()]).note("a hook without programs"),
            Self::OneProgram => contestant.in_packs().note("a program that returns 0: attached, run, its verdict used"),
        }
    }
}

pub(in crate::suites) fn group() -> Group {
    Group::new(ID, "one pass of a loop with a hook", Kind::ALL.map(Kind::contestant))
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let samples = measure(context.effort.rounds(40, 200, BUDGET)).map_err(failed(ID, "hooks"))?;
    context.record(&group, samples);
    Ok(())
}

/// Takes the tour's samples, of [`group`].
pub(in crate::suites) fn tour(rounds: Rounds) -> Result<Samples, BenchError> {
    measure(rounds).map_err(failed(ID, "hooks"))
}

fn measure(rounds: Rounds) -> Result<Samples, Refusal> {
    let contract = Contract::new().context(8, ContextAccess::Read);
    let linked = Host::builder().build().verify(contract, Code::new(&asm::assemble("r0 = 0\nexit")?)?)?;
    let program = Arc::new(HostedProgram::load(&Packs::new()?, &linked)?);
    let mut samples = Samples::default();
    interleave(&mut Kind::ALL.to_vec(), rounds, |&mut kind| {
        let attached = match kind {
            Kind::OneProgram => Some(measured::HOOK.attach(0, Arc::clone(&program))?),
            Kind::Absent | Kind::Empty => None,
        };
        let passing = if kind == Kind::Absent { without } else { with };
        // With an attached program it takes some fifty times as long.
        let passes = if attached.is_some() { PASSES / 50 } else { PASSES };
        let warm = passing(black_box(passes / 100));
        let started = Stopwatch::start();
        let refused = passing(black_box(passes));
        let taken = started.elapsed();
        if warm + refused != 0 {
            return Err(Refusal::from("a program that returns 0 has refused something"));
        }
        samples.add(&kind.id(), taken.as_secs_f64() * 1e9 / passes as f64);
        attached.map_or(Ok(()), |attached| attached.detach())?;
        Ok(())
    })?;
    Ok(samples)
}

#[inline(never)]
fn without(passes: u64) -> u64 {
    for _ in 0..passes {
        // Only a barrier for the compiler, which leaves the loop as it is.
        black_box(());
    }
    0
}

#[inline(never)]
fn with(passes: u64) -> u64 {
    let mut refused = 0;
    for number in 0..passes {
        if measured(&number) != 0 {
            refused += 1;
        }
        black_box(());
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_at_the_hook_is_asked() -> Result<(), Refusal> {
        let contract = Contract::new().context(8, ContextAccess::Read);
        let odd = "r0 = *(u64 *)(r1 + 0)\nr0 &= 1\nexit";
        let linked = Host::builder().build().verify(contract, Code::new(&asm::assemble(odd)?)?)?;
        let program = Arc::new(HostedProgram::load(&Packs::new()?, &linked)?);
        assert_eq!(with(10), 0);
        let attached = measured::HOOK.attach(0, program)?;
        assert_eq!((with(10), without(10)), (5, 0));
        attached.detach()?;
        assert_eq!(with(10), 0);
        Ok(())
    }
}
