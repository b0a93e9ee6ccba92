//! `pack.test_tag`: the loads of the kernel's test of that name, 40 945 programs of 2 to 4096 instructions, each freed
//! before the next.
//!
//! The kernel's own figure fell from more than two minutes to 19.7 s when its pack stopped flushing the instruction
//! cache once per instruction. Here an instruction is 8 bytes of code, and only placing and freeing are timed: nothing
//! is verified or compiled.

use std::time::Duration;

use palimpsest_sys::arch::{COHERENCE, Coherence};

use crate::PlaceError;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};
use crate::placers::{EachInstruction, Packed, Placer, Who};

const ID: &str = "pack.test_tag";

/// Code bytes per instruction.
const INSTRUCTION: usize = 8;
const SHORTEST: usize = 2;
const LONGEST: usize = 4096;

/// The kernel's test goes through the lengths ten times and starts at 2 in the first five passes, at 3 in the others.
const PASSES: usize = 5;

/// The variant with a core sync per instruction takes only every 797th program, and its time is multiplied.
const SYNC_STRIDE: usize = 797;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Packed,
    PageEach,
    FlushPerInstruction,
    SyncPerInstruction,
}

const VARIANTS: [Variant; 4] =
    [Variant::Packed, Variant::PageEach, Variant::FlushPerInstruction, Variant::SyncPerInstruction];

impl Variant {
    fn id(self) -> String {
        match self {
            Self::Packed => ID.to_owned(),
            Self::PageEach => format!("{ID}.page_each"),
            Self::FlushPerInstruction => format!("{ID}.flush_per_insn"),
            Self::SyncPerInstruction => format!("{ID}.sync_per_insn"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::PageEach => "page_each",
            _ => "packed",
        }
    }

    /// Returns the contestant. The two variants of packs that do something for each instruction show what that costs,
    /// and are no rivals.
    fn contestant(self) -> Contestant {
        let contestant = Contestant::new(self.id(), Unit::Milliseconds).note(self.note());
        match self {
            Self::Packed => contestant.in_packs().against([Self::PageEach.id()]),
            _ => contestant,
        }
    }

    fn note(self) -> String {
        match self {
            Self::Packed => "one flush per program".to_owned(),
            Self::PageEach => "mmap, copy, mprotect, munmap".to_owned(),
            Self::FlushPerInstruction => match COHERENCE {
                Coherence::Coherent => {
                    "one cache flush per instruction, which is an empty function on this CPU".to_owned()
                }
                Coherence::NeedsFlushAndSync => "one cache flush per instruction".to_owned(),
            },
            Self::SyncPerInstruction => {
                format!("one core sync per instruction, measured on every {SYNC_STRIDE}th program and multiplied")
            }
        }
    }

    fn open(self) -> Result<Box<dyn Placer>, PlaceError> {
        Ok(match self {
            Self::Packed => Who::Packed.open()?,
            Self::PageEach => Who::PageEach.open()?,
            Self::FlushPerInstruction => Box::new(EachInstruction::flushing(Packed::open()?, INSTRUCTION)),
            Self::SyncPerInstruction => Box::new(EachInstruction::synchronising(Packed::open()?, INSTRUCTION)?),
        })
    }
}

/// The figure of packs again, under its name in comparisons.
const AGAIN: &str = "pack.test_tag.packed";

pub(super) fn group() -> Group {
    let again = Contestant::new(AGAIN, Unit::Milliseconds).in_packs().against([Variant::PageEach.id()]);
    let again = again.note(format!("the same runs as {ID}"));
    let contestants = std::iter::once(again).chain(VARIANTS.map(Variant::contestant));
    Group::new(ID, "test_tag: 40 945 loads and frees", contestants)
}

/// Returns lengths in bytes, in the order of the kernel's test.
fn lengths() -> Vec<usize> {
    let passes = [SHORTEST, SHORTEST + 1].into_iter().flat_map(|first| std::iter::repeat_n(first, PASSES));
    passes.flat_map(|first| first..=LONGEST).map(|instructions| instructions * INSTRUCTION).collect()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let lengths = lengths();
    let code = vec![0x90_u8; LONGEST * INSTRUCTION];
    let mut runners = Vec::new();
    for variant in VARIANTS {
        let placer = variant.open().map_err(failed(ID, variant.name()))?;
        runners.push((variant, placer));
    }
    let mut samples = Samples::default();
    interleave(&mut runners, context.effort.rounds(9, 15, BUDGET), |(variant, placer)| {
        let stride = match variant {
            Variant::SyncPerInstruction => SYNC_STRIDE,
            _ => 1,
        };
        let taken = load_and_free(&mut **placer, &code, &lengths, stride).map_err(failed(ID, variant.name()))?;
        samples.add(&variant.id(), taken);
        if *variant == Variant::Packed {
            samples.add(AGAIN, taken);
        }
        Ok::<(), BenchError>(())
    })?;
    context.record(&group, samples);
    Ok(())
}

/// Returns milliseconds for all programs.
fn load_and_free(placer: &mut dyn Placer, code: &[u8], lengths: &[usize], stride: usize) -> Result<f64, PlaceError> {
    let mut bytes = 0;
    let started = Stopwatch::start();
    for &len in lengths.iter().step_by(stride) {
        let loaded = placer.load(&code[..len])?;
        placer.free(loaded)?;
        bytes += len;
    }
    placer.settle()?;
    let elapsed = started.elapsed();
    // By bytes, not by programs: the stride does not hit all lengths equally.
    let all: usize = lengths.iter().sum();
    Ok(elapsed.as_secs_f64() * 1e3 * all as f64 / bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_programs_as_in_the_kernels_test() {
        let lengths = lengths();
        assert_eq!(lengths.len(), 40_945);
        assert_eq!(lengths.iter().min(), Some(&16));
        assert_eq!(lengths.iter().max(), Some(&32_768));
    }
}
