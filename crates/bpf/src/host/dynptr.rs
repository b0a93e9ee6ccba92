//! Helpers with dynptrs: memory whose accesses are checked when the program runs.
//!
//! A dynptr lies on the program's stack, where the verifier lets only these helpers read or write it: its first word is
//! the address of the memory, and its second the number of bytes. Both are 0 if none could be made.

use super::call::{Call, failed};
use super::ring::{give_back, take_record};
use crate::interp::{Answer, HelperError};
use crate::map::Fate;

type Answered = Result<Answer, HelperError>;

const EINVAL: i64 = 22;
const E2BIG: i64 = 7;
/// Most bytes of one (`DYNPTR_MAX_SIZE` of Linux, `kernel/bpf/helpers.c`).
const MOST: u64 = (1 << 24) - 1;

/// The memory that a dynptr stands for.
struct Memory {
    address: u64,
    len: u64,
}

impl Memory {
    const NONE: Self = Self { address: 0, len: 0 };

    /// Returns what the argument with this number stands for.
    fn of(call: &Call<'_>, index: usize) -> Result<Self, HelperError> {
        let mut bytes = [0; 16];
        call.read(index, &mut bytes)?;
        let [address, len] = [0, 8].map(|at| bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)));
        Ok(Self { address, len })
    }

    /// Makes the argument with this number stand for it.
    fn put(&self, call: &mut Call<'_>, index: usize) -> Result<(), HelperError> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.len.to_ne_bytes());
        call.write(index, &bytes).map(drop)
    }

    /// Returns where `len` bytes at `offset` lie, or the number of the error.
    fn place(&self, offset: u64, len: u64) -> Result<u64, i64> {
        if self.address == 0 {
            return Err(EINVAL);
        }
        // The program's numbers have 32 bits, as in Linux.
        let offset = u64::from(offset as u32);
        if offset + len > self.len { Err(E2BIG) } else { Ok(self.address + offset) }
    }
}

/// `bpf_dynptr_from_mem`.
pub(super) fn of_value(call: &mut Call<'_>) -> Answered {
    let (address, len) = (call.number(0), call.len(0)? as u64);
    let error = match (len, call.number(2)) {
        (..=MOST, 0) => None,
        (_, 0) => Some(E2BIG),
        _ => Some(EINVAL),
    };
    if error.is_some() { Memory::NONE } else { Memory { address, len } }.put(call, 3)?;
    error.map_or(Ok(Answer::Value(0)), failed)
}

/// `bpf_ringbuf_reserve_dynptr`.
pub(super) fn reserve(call: &mut Call<'_>) -> Answered {
    let len = u64::from(call.number(1) as u32);
    let ring = call.map()?.ring().filter(|_| call.number(2) == 0);
    let record = ring.filter(|_| len <= MOST).and_then(|ring| take_record(call, ring, len));
    record.map_or(Memory::NONE, |address| Memory { address, len }).put(call, 3)?;
    if record.is_some() { Ok(Answer::Value(0)) } else { failed(EINVAL) }
}

fn finish(call: &mut Call<'_>, fate: Fate) -> Answered {
    match Memory::of(call, 0)? {
        // There was no room for it.
        Memory { address: 0, .. } => Ok(Answer::Value(0)),
        Memory { address, .. } => give_back(call, address, fate),
    }
}

/// `bpf_ringbuf_submit_dynptr`.
pub(super) fn submit(call: &mut Call<'_>) -> Answered {
    finish(call, Fate::Submit)
}

/// `bpf_ringbuf_discard_dynptr`.
pub(super) fn discard(call: &mut Call<'_>) -> Answered {
    finish(call, Fate::Discard)
}

/// `bpf_dynptr_read`. What it cannot read is zero.
pub(super) fn read(call: &mut Call<'_>) -> Answered {
    let len = call.len(0)?;
    let place = match call.number(4) {
        0 => Memory::of(call, 2)?.place(call.number(3), len as u64),
        _ => Err(EINVAL),
    };
    match place {
        Ok(place) => call.copy_memory(place, call.address(0), len).map(|()| Answer::Value(0)),
        Err(error) => {
            call.zero_from(0, 0)?;
            failed(error)
        }
    }
}

/// `bpf_dynptr_write`.
pub(super) fn write(call: &mut Call<'_>) -> Answered {
    let len = call.len(2)?;
    let place = match call.number(4) {
        0 => Memory::of(call, 0)?.place(call.number(1), len as u64),
        _ => Err(EINVAL),
    };
    match place {
        Ok(place) => call.copy_memory(call.address(2), place, len).map(|()| Answer::Value(0)),
        Err(error) => failed(error),
    }
}

/// `bpf_dynptr_data`: the address of bytes, or 0.
pub(super) fn data(call: &mut Call<'_>) -> Answered {
    let place = Memory::of(call, 0)?.place(call.number(1), call.number(2));
    Ok(Answer::Value(place.unwrap_or(0)))
}
