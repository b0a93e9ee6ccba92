//! Says what is known of a number, for the log.

use core::fmt::{Display, Formatter, Result};

use super::Scalar;
use super::low::Low;
use crate::verify::tnum::Tnum;

/// A number that is long in decimal digits, if it is one.
struct Constant(i64);

impl Display for Constant {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        /// From here on digits of 16 are easier to read.
        const LONG: i64 = 1 << 16;
        if (-LONG..LONG).contains(&self.0) { self.0.fmt(f) } else { write!(f, "{:#x}", self.0) }
    }
}

impl Display for Scalar {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(value) = self.as_constant() {
            return Constant(value as i64).fmt(f);
        }
        let has_sign = (self.signed_min, self.signed_max) != (i64::MIN, i64::MAX);
        let has_range = (self.min, self.max) != (0, u64::MAX);
        // Where the sign is known, both ranges are the same.
        let is_one_sign = self.signed_min >= 0 || self.signed_max < 0;
        match (has_sign, has_range && !is_one_sign) {
            (false, false) => f.write_str("any number")?,
            (true, false) => write!(f, "{} to {}", Constant(self.signed_min), Constant(self.signed_max))?,
            (false, true) => write!(f, "{} to {:#x} without sign", self.min, self.max)?,
            (true, true) => {
                let (least, most) = (Constant(self.signed_min), Constant(self.signed_max));
                write!(f, "{least} to {most}, without sign {} to {:#x}", self.min, self.max)?;
            }
        }
        self.show_bits(f)?;
        self.show_low(f)
    }
}

impl Scalar {
    /// Says which bits are known that the range does not tell.
    fn show_bits(&self, f: &mut Formatter<'_>) -> Result {
        let known = !self.bits.mask & Tnum::range(self.min, self.max).mask;
        let ones = self.bits.value & known;
        match (known, ones) {
            (0, _) => Ok(()),
            (known, 0) if known & known.wrapping_add(1) == 0 => write!(f, ", a multiple of {}", known + 1),
            _ => write!(f, ", of the bits {known:#x} those of {ones:#x} set"),
        }
    }

    /// Says what is known of the lower half that the whole does not tell.
    fn show_low(&self, f: &mut Formatter<'_>) -> Result {
        let Low { min, max, signed_min, signed_max } = self.low;
        if (min, max) != (0, u32::MAX) {
            write!(f, ", lower half {min} to {max}")?;
        }
        if (signed_min, signed_max) != (i32::MIN, i32::MAX) && (signed_min < 0 || signed_max as u32 != max) {
            write!(f, ", lower half with sign {signed_min} to {signed_max}")?;
        }
        Ok(())
    }
}
