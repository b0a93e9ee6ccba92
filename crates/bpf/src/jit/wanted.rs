//! What compiled programs do besides what they say: fuel, guards, blinded constants.

use crate::verify::{Guard, Trust, Verified};

/// Whether a program keeps how much fuel there is, and whether it was ended, in a register of its own.
///
/// The program gets a sixth argument then, and has a second result: what is left of it, or a negative number. Helpers
/// that may end a program have such a result, too. A register has the fuel all the time: it becomes negative where the
/// program is ended, and each function that then returns has its caller return as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Gauge {
    /// It is never ended.
    #[default]
    Absent,
    /// It may be ended by helpers.
    Kept,
    /// It also pays for each jump back.
    Paid,
}

/// What a program with a gauge returns ([`Compiled::has_gauge`](super::Compiled::has_gauge)), and what helpers return
/// that may end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Outcome {
    /// `r0`; nothing, if the gauge is negative.
    pub value: u64,
    /// What is left of the fuel, or a negative number: [`OUT_OF_FUEL`], or another one if a helper has ended it.
    pub gauge: i64,
}

/// What is left of the fuel of a program that could not pay for a jump back: its second result, if it
/// [takes fuel](super::Compiled::takes_fuel).
pub const OUT_OF_FUEL: i64 = -1;
/// What a helper adds to the gauge, which is less than [`MOST_FUEL`](crate::verify::MOST_FUEL), to end the program:
/// another number than [`OUT_OF_FUEL`].
pub(crate) const STOPPED: i64 = i64::MIN;

/// What the compiler is to do besides what the program says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// Loads that may fault: instructions of the program, in order.
    pub(crate) probes: &'a [u32],
    pub(crate) metering: Metering,
    /// What guards instructions, in order.
    pub(crate) guards: &'a [(u32, Guard)],
    /// What constants of the program are blinded by, so that nobody who has made it can tell what stands in the code.
    pub(crate) blinding: Option<u64>,
}

impl<'a> Wanted<'a> {
    /// What a program was verified for.
    pub(crate) fn of(verified: &'a Verified, random: u64) -> Self {
        Self {
            probes: verified.probes(),
            metering: if verified.fuel().is_some() { Metering::Fuel } else { Metering::Free },
            guards: verified.guards(),
            blinding: match verified.trust() {
                Trust::Full => None,
                Trust::None => Some(random),
            },
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
