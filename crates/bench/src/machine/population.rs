//! Many placed programs, and the loop that calls them.

use std::hint::black_box;
use std::mem;

use crate::PlaceError;
use crate::placers::{HugePages, Loaded, Placer};
use crate::programs::{Compiled, Printer};

/// What every compiled program is.
type Function = extern "C" fn(u64) -> u64;

/// Programs that one contestant has placed.
///
/// # Invariants
///
/// `functions[i]` enters the code of `held[i]`, which stays executable while `held[i]` exists. Both are emptied
/// together.
pub(crate) struct Population {
    functions: Vec<Function>,
    held: Vec<Loaded>,
    placer: Box<dyn Placer>,
}

/// The programs of a population in the order in which they will be called.
pub(crate) struct Callables<'a> {
    population: &'a Population,
    permuted: Option<Vec<Function>>,
}

impl Population {
    /// Makes `placer` place all `programs`. On an error those placed so far are freed.
    pub(crate) fn place(placer: Box<dyn Placer>, programs: &[Compiled]) -> Result<Self, PlaceError> {
        Self::place_codes(placer, programs.iter().map(Compiled::code))
    }

    /// Makes `placer` place all `printers`, `instances` times over. On an error those placed so far are freed.
    pub(crate) fn place_printers(
        placer: Box<dyn Placer>,
        printers: &[Printer],
        instances: usize,
    ) -> Result<Self, PlaceError> {
        Self::place_codes(placer, (0..instances).flat_map(|_| printers).map(Printer::code))
    }

    /// Each of `codes` is that of a [`Compiled`] or a [`Printer`]: [`enter`] relies on it.
    fn place_codes<'c>(mut placer: Box<dyn Placer>, codes: impl Iterator<Item = &'c [u8]>) -> Result<Self, PlaceError> {
        let mut held = Vec::new();
        for code in codes {
            match placer.load(code) {
                Ok(loaded) => held.push(loaded),
                Err(error) => {
                    for loaded in held {
                        placer.free(loaded)?;
                    }
                    return Err(error);
                }
            }
        }
        let functions = held.iter().map(enter).collect();
        Ok(Self { functions, held, placer })
    }

    /// Returns the programs in the order in which they were placed.
    pub(crate) fn in_sequence(&self) -> Callables<'_> {
        Callables { population: self, permuted: None }
    }

    /// Returns the programs in `order`, a list of their numbers.
    pub(crate) fn in_order(&self, order: &[usize]) -> Callables<'_> {
        Callables { population: self, permuted: Some(order.iter().map(|&number| self.functions[number]).collect()) }
    }

    /// Returns how much of the code huge pages map.
    pub(crate) fn huge_mapped(&self) -> Option<HugePages> {
        self.placer.huge_mapped()
    }

    /// Frees all programs.
    pub(crate) fn free(mut self) -> Result<(), PlaceError> {
        self.functions.clear();
        for loaded in mem::take(&mut self.held) {
            self.placer.free(loaded)?;
        }
        self.placer.settle()
    }
}

impl Callables<'_> {
    /// Number of programs.
    pub(crate) fn len(&self) -> usize {
        self.functions().len()
    }

    /// Calls every program once with `argument`, and adds up what they return.
    pub(crate) fn call_all(&self, argument: u64) -> u64 {
        let mut sum = 0_u64;
        for function in self.functions() {
            sum = sum.wrapping_add(function(black_box(argument)));
        }
        sum
    }

    /// Returns what each program returns for `argument`.
    pub(crate) fn call_each(&self, argument: u64) -> impl Iterator<Item = u64> {
        self.functions().iter().map(move |function| function(argument))
    }

    fn functions(&self) -> &[Function] {
        self.permuted.as_deref().unwrap_or(&self.population.functions)
    }
}

/// Returns the function at the beginning of `loaded`.
///
/// The result may be called only while `loaded` exists; the callers in this file keep both in one [`Population`].
fn enter(loaded: &Loaded) -> Function {
    // SAFETY: `Population::place_codes` is the only caller and loads only code of `Compiled`s and `Printer`s, which by
    // those types' invariants is a function of this type; a placer's `load` returns the address of an executable copy
    // of it (contract of `Placer`).
    unsafe { mem::transmute::<*const u8, Function>(loaded.entry()) }
}
