//! Helpers of ring buffers as compiled code calls them: without a [`Call`](super::Call), which takes longer than the
//! record. They do what those of `ring` do, and leave to those whatever is not plain: wrong flags, and maps that are no
//! ring buffers.

use super::ring::wake;
use super::vouched::Vouched;
use super::{Entry, Runner, find};
use crate::interp::{Answer, HelperError};
use crate::map::{Fate, Ring, Wake, Waker};

/// Linux's error for a full ring, as a helper returns it.
const NO_ROOM: u64 = -11_i64 as u64;

/// A helper that is called quickly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Output,
    Reserve,
    Submit,
    Discard,
}

impl Kind {
    /// What Linux's helper with this number is.
    pub(super) const fn of(id: i32) -> Option<Self> {
        match id {
            130 => Some(Self::Output),
            131 => Some(Self::Reserve),
            132 => Some(Self::Submit),
            133 => Some(Self::Discard),
            _ => None,
        }
    }
}

/// How one of them is called.
pub(super) trait Quick {
    /// Returns what the helper returns; `None` if nothing was done, and the helper itself must be called.
    ///
    /// # Errors
    ///
    /// [`HelperError`], which ends the program.
    fn call<R: Runner>(arguments: [u64; 4], entry: &Entry, memory: &Vouched<R>) -> Result<Option<u64>, HelperError>;
}

/// `bpf_ringbuf_output`.
pub(super) struct Output;

/// `bpf_ringbuf_reserve`.
pub(super) struct Reserve;

/// `bpf_ringbuf_submit`.
pub(super) struct Submit;

/// `bpf_ringbuf_discard`.
pub(super) struct Discard;

#[inline(always)]
fn ring(entry: &Entry, handle: u64) -> Option<&Ring> {
    find(&entry.shared.maps, handle)?.ring()
}

/// Wakes the consumer. What wakes it is the host's, and may panic.
#[cold]
fn wake_up<R: Runner>(waker: &Waker) -> Result<(), HelperError> {
    let wake_up = || {
        waker();
        Ok(Answer::Value(0))
    };
    R::guard(wake_up).map(|_| ())
}

impl Quick for Output {
    #[inline(always)]
    fn call<R: Runner>(
        [map, bytes, len, flags]: [u64; 4],
        entry: &Entry,
        memory: &Vouched<R>,
    ) -> Result<Option<u64>, HelperError> {
        let (Some(ring), Some(wake)) = (ring(entry, map), wake(flags)) else { return Ok(None) };
        // The verifier has checked that it is a number of 32 bits.
        let len = len as u32;
        match ring.output_quietly(len.into(), wake, |cells| memory.copy(bytes, len as usize, cells)) {
            Ok(None) => Ok(Some(0)),
            Ok(Some(waker)) => wake_up::<R>(waker).map(|()| Some(0)),
            Err(_) => Ok(Some(NO_ROOM)),
        }
    }
}

impl Quick for Reserve {
    #[inline(always)]
    fn call<R: Runner>(
        [map, len, flags, _]: [u64; 4],
        entry: &Entry,
        _memory: &Vouched<R>,
    ) -> Result<Option<u64>, HelperError> {
        let (Some(ring), 0) = (ring(entry, map), flags) else { return Ok(None) };
        let Some(record) = ring.reserve(len) else { return Ok(Some(0)) };
        if R::hold(record).is_err() {
            // As if there were no room.
            ring.finish(record, Fate::Discard, Wake::Never);
            return Ok(Some(0));
        }
        Ok(Some(record))
    }
}

/// Gives a record back: in the one ring that it is of.
#[inline(always)]
fn finish<R: Runner>(entry: &Entry, record: u64, flags: u64, fate: Fate) -> Result<Option<u64>, HelperError> {
    let wake = wake(flags).unwrap_or_default();
    R::let_go(record);
    let rings = entry.shared.maps.iter().filter_map(|map| map.ring());
    for waker in rings.filter_map(|ring| ring.finish_quietly(record, fate, wake)) {
        wake_up::<R>(waker)?;
    }
    Ok(Some(0))
}

impl Quick for Submit {
    #[inline(always)]
    fn call<R: Runner>(
        [record, flags, _, _]: [u64; 4],
        entry: &Entry,
        _memory: &Vouched<R>,
    ) -> Result<Option<u64>, HelperError> {
        finish::<R>(entry, record, flags, Fate::Submit)
    }
}

impl Quick for Discard {
    #[inline(always)]
    fn call<R: Runner>(
        [record, flags, _, _]: [u64; 4],
        entry: &Entry,
        _memory: &Vouched<R>,
    ) -> Result<Option<u64>, HelperError> {
        finish::<R>(entry, record, flags, Fate::Discard)
    }
}
