//! `bpf.verify`: whether a program can do no harm.
//!
//! No crate has a verifier that follows values; what peers call so looks only at the structure, and is listed beside
//! ours as that.

use std::time::Duration;

use palimpsest_bpf::Code;

use super::engine::{Refusal, contract};
use super::source::Source;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};

/// Instructions of a program.
const LENGTHS: [usize; 3] = [100, 200, 10_000];

/// Instructions of all programs of a sample together.
const ALL: usize = 10_000;

/// Time for all rounds of a length.
const BUDGET: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Values followed.
    Palimpsest,
    /// Decoded, and the structure checked.
    Structure,
    /// What rbpf checks.
    Rbpf,
}

impl What {
    const ALL: [Self; 3] = [Self::Palimpsest, Self::Structure, Self::Rbpf];

    fn id(self, len: usize) -> String {
        let name = match self {
            Self::Palimpsest => "palimpsest",
            Self::Structure => "structure",
            Self::Rbpf => "rbpf",
        };
        format!("bpf.verify.{len}.{name}")
    }

    fn note(self) -> &'static str {
        match self {
            Self::Palimpsest => "every way followed with what is known of values, from Code to Verified",
            Self::Structure => "Code::new: decoding, jumps, functions",
            Self::Rbpf => "EbpfVmRaw::new: jumps and opcodes",
        }
    }
}

fn group(len: usize) -> Group {
    let contestants = What::ALL.map(|what| {
        let contestant = Contestant::new(what.id(len), Unit::Microseconds).note(what.note());
        if what == What::Rbpf { contestant } else { contestant.ours() }
    });
    Group::new(format!("bpf.verify.{len}"), format!("a program of {len} instructions"), contestants)
}

pub(super) fn groups() -> [Group; 3] {
    LENGTHS.map(group)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for len in LENGTHS {
        let group = group(len);
        if context.wants(&group) {
            context.begin(&group.id);
            let samples = measure(context, len).map_err(failed(&group.id, "the verifier"))?;
            context.record(&group, samples);
        }
    }
    Ok(())
}

fn measure(context: &Context<'_>, len: usize) -> Result<Samples, Refusal> {
    let sources = super::load::sources(len, (ALL / len) as u64)?;
    let mut samples = Samples::default();
    interleave(&mut What::ALL.to_vec(), context.effort.rounds(9, 60, BUDGET), |&mut what| {
        match sample(what, &sources)? {
            Some(taken) => samples.add(&what.id(len), taken),
            None => samples.refuse(&what.id(len), "rbpf is not in this build: build with `--features peers`"),
        }
        Ok::<(), Refusal>(())
    })?;
    Ok(samples)
}

/// Returns microseconds per program; `None` for a peer that this build does not contain.
fn sample(what: What, sources: &[Source]) -> Result<Option<f64>, Refusal> {
    let codes: Vec<Code> = match what {
        What::Palimpsest => sources.iter().map(|source| Code::new(&source.bytes)).collect::<Result<_, _>>()?,
        What::Structure | What::Rbpf => Vec::new(),
    };
    let started = Stopwatch::start();
    match what {
        What::Palimpsest => {
            for (code, source) in codes.into_iter().zip(sources) {
                contract(source.context).verify(code)?;
            }
        }
        What::Structure => {
            for source in sources {
                Code::new(&source.bytes)?;
            }
        }
        #[cfg(feature = "peers")]
        What::Rbpf => {
            for source in sources {
                crate::machine::RbpfProgram::new(&source.bytes)?;
            }
        }
        #[cfg(not(feature = "peers"))]
        What::Rbpf => return Ok(None),
    }
    Ok(Some(started.elapsed().as_secs_f64() * 1e6 / sources.len() as f64))
}
