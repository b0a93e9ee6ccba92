//! Random calls of the functions for C, compared with a model: for the fuzz target `paging_capi` and the test `random`
//! (feature `fuzzing`). Not an interface: it may change at any time.
//!
//! Two kernels have memory of their own, whose CPUs remember translations until they are flushed; what they find is
//! what a plain list says. Structures are passed in memory of exactly the length that they give, so that
//! AddressSanitizer notices one byte too many.

mod calls;
mod kernel;
mod many;
mod model;
mod pages;
mod walk;

use std::format;
use std::string::String;

/// The result of a step: `Err` tells what was wrong.
type Step<T = ()> = Result<T, String>;

/// Calls of one input.
const CALLS: usize = 150;

/// Does what `input` says. Returns what was wrong.
///
/// # Errors
///
/// An answer that the model does not expect, a translation that is not the model's, or memory that was freed too early,
/// twice or never.
pub fn play(input: &[u8]) -> Step {
    let mut input = Input(input);
    let mut player = calls::Player::new();
    for number in 0..CALLS {
        if input.0.is_empty() {
            break;
        }
        player.step(&mut input).map_err(|what| format!("call {number}: {what}"))?;
    }
    player.end()
}

impl calls::Player {
    fn step(&mut self, input: &mut Input<'_>) -> Step {
        let choice = input.byte();
        // Now and then there is hardly any memory.
        let budget = if input.seldom() { input.byte() % 6 } else { usize::MAX };
        self.kernels.iter().for_each(|kernel| kernel.allow(budget));
        match choice % 32 {
            0..3 => self.make(input),
            3..6 => self.fork(input),
            6 => self.drop_space(input),
            7..14 => self.map(input),
            14..17 => self.change(input, pages::Change::Unmap),
            17..20 => self.change(input, pages::Change::Protect),
            20..22 => self.query(input),
            22..24 => self.fault(input),
            24..28 => self.access(input),
            28..31 => self.many(input),
            _ => self.others(input),
        }?;
        self.kernels.iter().for_each(|kernel| kernel.allow(usize::MAX));
        self.kernels.iter().try_for_each(|kernel| kernel.complaint())?;
        // Even a call that was refused leaves all spaces as they were.
        (0..calls::SPACES).try_for_each(|slot| self.compare(slot))
    }
}

/// The rest of an input. Behind its end are zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first)
    }

    /// Whether something happens that mostly does not.
    fn seldom(&mut self) -> bool {
        self.byte() >= 232
    }

    /// Returns one of them.
    fn one<T: Copy, const COUNT: usize>(&mut self, of: [T; COUNT]) -> T {
        of[self.byte() % COUNT]
    }
}
