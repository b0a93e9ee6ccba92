//! `bpf.call.time`: a program that asks for the time, and the host that asks for it itself.

use std::hint::black_box;
use std::time::Duration;

use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, Packs, asm};
use palimpsest_sys::clock::Clock;

use super::engine::Refusal;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};

const ID: &str = "bpf.call.time";

/// Calls of one sample.
const CALLS: u64 = 50_000;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
enum Who {
    Jit,
    Host,
}

impl Who {
    const ALL: [Self; 2] = [Self::Jit, Self::Host];

    fn id(self) -> String {
        let name = match self {
            Self::Jit => "jit",
            Self::Host => "host",
        };
        format!("{ID}.{name}")
    }

    fn contestant(self) -> Contestant {
        let contestant = Contestant::new(self.id(), Unit::Nanoseconds);
        match self {
            Self::Jit => contestant.in_packs().against([Self::Host.id()]).note("a program that calls bpf_ktime_get_ns"),
            Self::Host => contestant.note("clock_gettime, which the vDSO answers"),
        }
    }
}

pub(super) fn group() -> Group {
    Group::new(ID, "one call of a program that returns the time", Who::ALL.map(Who::contestant))
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let samples = measure(context.effort.rounds(30, 120, BUDGET)).map_err(failed(ID, "jit"))?;
    context.record(&group, samples);
    Ok(())
}

fn measure(rounds: Rounds) -> Result<Samples, Refusal> {
    let host = Host::builder().build();
    let contract = Contract::new().context(8, ContextAccess::Read);
    let linked = host.verify(contract, Code::new(&asm::assemble("call 5\nexit")?)?)?;
    let program = HostedProgram::load(&Packs::new()?, &linked)?;
    let mut samples = Samples::default();
    let mut last = 0;
    interleave(&mut Who::ALL.to_vec(), rounds, |who| {
        let started = Stopwatch::start();
        for _ in 0..CALLS {
            let now = match who {
                Who::Jit => program.run_read_only(black_box(&[0; 8]))?,
                Who::Host => Clock::Monotonic.nanoseconds(),
            };
            if now < last {
                return Err(format!("{now} ns come after {last}").into());
            }
            last = now;
        }
        samples.add(&who.id(), started.elapsed().as_secs_f64() * 1e9 / CALLS as f64);
        Ok::<(), Refusal>(())
    })?;
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_their_host_share_a_clock() -> Result<(), Refusal> {
        measure(Rounds { least: 1, most: 1, budget: Duration::ZERO }).map(|_| ())
    }
}
