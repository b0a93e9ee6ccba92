//! What compiled programs do besides what they say: fuel, guards, blinded constants.

use super::unwinding::Unwinding;
use crate::verify::{Guard, Leftovers, Region, Trust, Verified};

/// Whether a program keeps in a register how much fuel is left, and whether it was ended.
///
/// The program then gets a sixth argument, and has a second result: what is left of it, or a negative number. Helpers
/// that may end a program have such a result, too. A register holds the fuel all the time: it becomes negative when the
/// program is ended, and each function that then returns makes its caller return as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Gauge {
    /// It is never ended.
    #[default]
    Absent,
    /// Helpers may end it.
    Kept,
    /// It also pays for each jump back.
    Paid,
}

/// What a program with a gauge returns ([`Compiled::has_gauge`](super::Compiled::has_gauge)), and what helpers that may
/// end it return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Outcome {
    /// `r0`; meaningless if the gauge is negative.
    pub value: u64,
    /// What is left of the fuel, or a negative number: [`OUT_OF_FUEL`], or another if a helper ended it, or a store
    /// ([`outside`](Self::outside)).
    pub gauge: i64,
}

impl Outcome {
    /// Returns the slot of the store that has ended the program, since it would have left its memory.
    pub const fn outside(&self) -> Option<usize> {
        let above = self.gauge.wrapping_sub(OUTSIDE);
        if above >= 0 && above <= u32::MAX as i64 { Some(above as usize) } else { None }
    }
}

/// What the gauge becomes where a store in the first slot would leave its memory; greater by the slot for others. Less
/// than [`OUT_OF_FUEL`], and greater than [`STOPPED`] with any fuel in its lower bits.
pub(super) const OUTSIDE: i64 = 1 - (1 << 62);

/// The second result of a program that could not pay for a jump back, if it [takes fuel](super::Compiled::takes_fuel).
pub const OUT_OF_FUEL: i64 = -1;
/// What a helper adds to the gauge, which is less than [`MOST_FUEL`](crate::verify::MOST_FUEL), to end the program: the
/// sum is not [`OUT_OF_FUEL`].
pub(crate) const STOPPED: i64 = i64::MIN;

/// What the compiler adds to what the program says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// Loads that may fault: instructions of the program, in order.
    pub(crate) probes: &'a [u32],
    /// Stores that are checked, in order.
    pub(crate) checked: &'a [(u32, Region)],
    /// Whether what the code does to the stack is noted, for [`Compiled::eh_frame`](super::Compiled::eh_frame).
    pub(crate) unwinding: Unwinding,
    /// Bytes of the context.
    pub(crate) context_len: u64,
    pub(crate) metering: Metering,
    /// What guards instructions, in order.
    pub(crate) guards: &'a [(u32, Guard)],
    /// The number that blinds constants of the program, so that its maker cannot tell what the code contains.
    pub(crate) blinding: Option<u64>,
    /// What registers without a value hold.
    pub(crate) leftovers: Leftovers,
}

impl<'a> Wanted<'a> {
    /// Returns what a program was verified for.
    pub(crate) fn of(verified: &'a Verified, random: u64) -> Self {
        Self {
            probes: verified.probes(),
            checked: verified.checked(),
            unwinding: Unwinding::Untold,
            context_len: verified.context_len() as u64,
            metering: if verified.fuel().is_some() { Metering::Fuel } else { Metering::Free },
            guards: verified.guards(),
            blinding: match verified.trust() {
                Trust::Full => None,
                Trust::None => Some(random),
            },
            leftovers: verified.leftovers(),
        }
    }
}

/// Whether jumps back are paid for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Metering {
    #[default]
    Free,
    Fuel,
}
