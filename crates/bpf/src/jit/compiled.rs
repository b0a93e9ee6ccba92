//! What a compiler returns.

use alloc::vec::Vec;

use super::Gauge;
use super::unwinding::{self, Frames, Step};
#[cfg(doc)]
use super::{OUT_OF_FUEL, Target};

/// Machine code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    pub(super) bytes: Vec<u8>,
    pub(super) starts: Vec<u32>,
    pub(super) faults: Vec<(u32, u32)>,
    pub(super) steps: Vec<(u32, Step)>,
    pub(super) frames: Frames,
    pub(super) code_len: usize,
    pub(super) alignment: usize,
    pub(super) gauge: Gauge,
}

impl Compiled {
    /// Returns code and the literals behind it; it begins with the program's first instruction.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns how many bytes of that are code.
    pub const fn code_len(&self) -> usize {
        self.code_len
    }

    /// Returns the bytes to which the code should be aligned. It must be by [`Target::alignment`]; if this is more, its
    /// short loops then lie in one line each, and are faster.
    pub const fn alignment(&self) -> usize {
        self.alignment
    }

    /// Returns the machine instructions that may fault, since the verifier could not prove their loads, and where the
    /// code then goes on: in bytes, in order. The register that they load is then 0.
    pub fn faults(&self) -> &[(u32, u32)] {
        &self.faults
    }

    /// Whether it gets a sixth argument, and has a second result.
    #[cfg(feature = "std")]
    pub(crate) const fn gauge(&self) -> Gauge {
        self.gauge
    }

    /// Whether the program has a sixth argument and a second result: it takes fuel, or helpers may end it. Then its
    /// type is `extern "C" fn(u64, u64, u64, u64, u64, i64) -> Outcome`; the sixth argument is its fuel, or
    /// [`MOST_FUEL`](crate::verify::MOST_FUEL). In C: `struct { uint64_t r0; int64_t left; } (uint64_t, uint64_t,
    /// uint64_t, uint64_t, uint64_t, int64_t)`. Otherwise it is `extern "C" fn(u64, u64, u64, u64, u64) -> u64`.
    pub fn has_gauge(&self) -> bool {
        self.gauge != Gauge::Absent
    }

    /// Whether the program pays for jumps back with the fuel in its sixth argument ([`has_gauge`](Self::has_gauge)),
    /// and ends with [`OUT_OF_FUEL`] when none is left.
    pub fn takes_fuel(&self) -> bool {
        self.gauge == Gauge::Paid
    }

    /// Returns the bytes of an `.eh_frame` section for the code at this address, if that was asked for.
    #[cfg_attr(not(feature = "std"), expect(dead_code, reason = "only observers of packs ask for it"))]
    pub(crate) fn eh_frame(&self, address: u64) -> Vec<u8> {
        unwinding::eh_frame(self.frames, &self.steps, address, self.code_len)
    }

    /// Returns where the code of each instruction begins, in bytes.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }
}
