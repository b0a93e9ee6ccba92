//! A program in a pack: the one place that enters compiled code.

use alloc::sync::Arc;

use palimpsest_bpf::host::Linked;
use palimpsest_bpf::interp::HelperError;
use palimpsest_bpf::jit::{CompileError, OUT_OF_FUEL, Outcome, Target};
use palimpsest_bpf::map::{Foreign, Map};
use palimpsest_bpf::verify::MOST_FUEL;
use palimpsest_paging::VirtAddr;

use super::runner::{self, Cpus};
use crate::flush;
use crate::packs::{Full, Place};

/// A verified program, compiled. It runs on any CPU, with interrupts off.
#[derive(Debug)]
pub(crate) struct Program {
    place: Place,
    has_gauge: bool,
    fuel: i64,
    /// Words of context that it needs.
    words: usize,
    /// The objects whose addresses its code contains.
    linked: Linked,
}

/// Why a program is not loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoadError {
    /// It writes to its context, which is the kernel's.
    Writes,
    /// It cannot be compiled.
    Compile(CompileError),
    /// There is no room.
    Full(Full),
}

/// Why a program has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Its fuel was spent.
    Fuel,
    /// A helper has ended it.
    Helper(Option<HelperError>),
}

/// The value that blinds constants of untrusted programs. This machine has no secret; a real kernel takes a random
/// number.
const BLINDING: u64 = 0x9e37_79b9_7f4a_7c15;

impl Program {
    /// Compiles `linked` into a pack.
    pub(crate) fn load(linked: Linked) -> Result<Self, LoadError> {
        if linked.verified().may_write() {
            return Err(LoadError::Writes);
        }
        let target = Target::NATIVE.unwrap_or_else(|| unreachable!("there are compilers for both architectures"));
        let compiled = linked.compile::<Cpus>(target, BLINDING).map_err(LoadError::Compile)?;
        let fuel = linked.verified().fuel().unwrap_or(MOST_FUEL) as i64;
        let words = linked.verified().context_len().div_ceil(8);
        let place = Place::new(compiled.bytes(), compiled.faults()).map_err(LoadError::Full)?;
        Ok(Self { place, has_gauge: compiled.has_gauge(), fuel, words, linked })
    }

    /// Returns the words of context that it needs.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Returns where it runs.
    pub(crate) fn entry(&self) -> VirtAddr {
        self.place.entry()
    }

    /// Returns the bytes of packs that it occupies.
    pub(crate) fn bytes(&self) -> usize {
        self.place.bytes()
    }

    /// Runs it, and what it calls at its end.
    ///
    /// # Panics
    ///
    /// If the context is shorter than it was verified for.
    pub(crate) fn run(&self, context: &[u64]) -> Result<u64, Ended> {
        assert!(context.len() >= self.words, "a context of {} words, and {} are needed", context.len(), self.words);
        runner::begin(context.len());
        let mut outcome = self.enter(context, self.fuel);
        while let (0.., Some(next)) = (outcome.gauge, runner::take_next()) {
            // What is left of what the program had before, and not more than this one was verified for.
            outcome = next.enter(context, outcome.gauge.min(next.fuel));
        }
        if outcome.gauge >= 0 {
            return Ok(outcome.value);
        }
        match runner::take_failure() {
            None if outcome.gauge == OUT_OF_FUEL => Err(Ended::Fuel),
            failure => Err(Ended::Helper(failure)),
        }
    }

    /// Runs this program alone, and gives back what it holds if it is ended.
    fn enter(&self, context: &[u64], fuel: i64) -> Outcome {
        let arguments = (context.as_ptr().expose_provenance() as u64, size_of_val(context) as u64);
        if !self.has_gauge {
            type Entry = extern "C" fn(u64, u64, u64, u64, u64) -> u64;
            // SAFETY: the compiler makes functions of this type for programs without a gauge, and the place is this
            // program's. The verifier has shown that it reads only its context, its stack and its host's maps, and that
            // it ends.
            let entry = unsafe { core::mem::transmute::<*const (), Entry>(self.entry().0 as *const ()) };
            return Outcome { value: entry(arguments.0, arguments.1, 0, 0, 0), gauge: fuel };
        }
        type Entry = extern "C" fn(u64, u64, u64, u64, u64, i64) -> Outcome;
        // SAFETY: as above, for programs with a gauge.
        let entry = unsafe { core::mem::transmute::<*const (), Entry>(self.entry().0 as *const ()) };
        let outcome = entry(arguments.0, arguments.1, 0, 0, 0, fuel);
        if outcome.gauge < 0 {
            self.linked.host().discard(&runner::take_held());
        }
        outcome
    }
}

/// Puts a program into a map of programs, or takes one out: when this returns, no CPU runs the one that was there.
///
/// # Panics
///
/// If the map has no programs, or no such place.
pub(crate) fn set_tail(map: &Map, index: u32, program: Option<Arc<Program>>) {
    let programs = map.programs().unwrap_or_else(|| panic!("{} has programs", map.definition().name));
    let foreign = program.map(|program| program as Foreign);
    // No CPU runs what it has fetched earlier from the program's place.
    flush::synchronize_all();
    let old = programs.set_foreign(index, foreign).unwrap_or_else(|error| panic!("{error}"));
    // Runs answer no call: those that have found the old one have ended behind this, and drop no last handle.
    flush::synchronize_all();
    drop(old);
}
