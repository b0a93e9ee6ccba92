//! `pack.test_tag`: the loads of the kernel's test of that name, 40 945 programs of 2 to 4096 instructions, each freed
//! before the next.
//!
//! The kernel's own figure fell from more than two minutes to 19.7 s when its pack stopped flushing the instruction
//! cache once per instruction. Here an instruction is 8 bytes of code, and only placing and freeing is timed: nothing
//! is verified or compiled.

use std::time::Duration;

use palimpsest_sys::arch::{COHERENCE, Coherence};

use super::{failed, group_of};
use crate::clock::Stopwatch;
use crate::placers::{Contestant, EachInstruction, Packed, Placer};
use crate::record::Unit;
use crate::sampler::interleave;
use crate::suite::{Group, Measured};
use crate::{BenchError, Context, PlaceError};

const ID: &str = "pack.test_tag";

/// Code bytes per instruction.
const INSTRUCTION: usize = 8;
const SHORTEST: usize = 2;
const LONGEST: usize = 4096;

/// The kernel's test goes through the lengths ten times and starts at 2 in the first five passes, at 3 in the others.
const PASSES: usize = 5;

/// The variant with a core sync per instruction takes every so-many-th program only, and its time is multiplied.
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

    fn contestant(self) -> Contestant {
        match self {
            Self::PageEach => Contestant::PageEach,
            _ => Contestant::Packed,
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
            Self::Packed | Self::PageEach => self.contestant().open()?,
            Self::FlushPerInstruction => Box::new(EachInstruction::flushing(Packed::open()?, INSTRUCTION)),
            Self::SyncPerInstruction => Box::new(EachInstruction::synchronising(Packed::open()?, INSTRUCTION)?),
        })
    }
}

pub(super) fn group() -> Group {
    let mut group = group_of(ID, "test_tag: 40 945 loads and frees", &[Contestant::Packed]);
    group.figures.extend(VARIANTS.map(Variant::id));
    group
}

/// Lengths in bytes, in the order of the kernel's test.
fn lengths() -> Vec<usize> {
    let passes = [SHORTEST, SHORTEST + 1].into_iter().flat_map(|first| std::iter::repeat_n(first, PASSES));
    passes.flat_map(|first| first..=LONGEST).map(|instructions| instructions * INSTRUCTION).collect()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    if !context.wants(&group()) {
        return Ok(());
    }
    context.begin(ID);
    let lengths = lengths();
    let code = vec![0x90_u8; LONGEST * INSTRUCTION];
    let mut runners = Vec::new();
    for variant in VARIANTS {
        let placer = variant.open().map_err(failed(ID, variant.contestant()))?;
        runners.push((variant, placer));
    }
    let taken = interleave(&mut runners, context.effort.rounds(9, 15, BUDGET), |(variant, placer)| {
        let stride = match variant {
            Variant::SyncPerInstruction => SYNC_STRIDE,
            _ => 1,
        };
        load_and_free(&mut **placer, &code, &lengths, stride).map_err(failed(ID, variant.contestant()))
    })?;
    // The two variants of packs show what a flush per instruction costs; as rivals they stand behind page_each.
    let mut measured = Vec::new();
    for (&(variant, _), samples) in runners.iter().zip(taken) {
        if variant == Variant::Packed {
            measured.push(Measured {
                id: format!("{ID}.packed"),
                contestant: Some(Contestant::Packed),
                samples: samples.clone(),
                note: Some(format!("the same runs as {ID}")),
            });
        }
        measured.push(Measured {
            id: variant.id(),
            contestant: matches!(variant, Variant::Packed | Variant::PageEach).then(|| variant.contestant()),
            samples,
            note: Some(variant.note()),
        });
    }
    context.record_group(Unit::Milliseconds, measured);
    context.done();
    Ok(())
}

/// Milliseconds for all programs.
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
    // By bytes rather than by programs: the stride does not hit all lengths equally.
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
