//! Helpers as compiled code calls them that take less time than a [`Call`](super::Call): of ring buffers, look-ups and
//! updates of maps, and the time. They do what those of `ring`, `kernel` and `print` do, and leave to those whatever is
//! not plain: wrong flags, long keys and values, maps inside maps, timers, and maps of another kind.
//!
//! No [guard](Runner::guard) stands before what is done here, except for the host's waker: nothing panics.

#[cfg(feature = "std")]
use palimpsest_sys::clock::Clock;

use super::call::status;
use super::ring::wake;
use super::vouched::Vouched;
use super::{Entry, Runner, find};
use crate::interp::{Answer, HelperError};
use crate::map::{Fate, Map, Ring, Update as When, Value, Wake, Waker};

/// Linux's error for a full ring, as a helper returns it.
const NO_ROOM: u64 = -11_i64 as u64;

/// A helper that is called quickly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    LookUp,
    Update,
    #[cfg(feature = "std")]
    Time,
    Processor,
    Output,
    Reserve,
    Submit,
    Discard,
}

impl Kind {
    /// What Linux's helper with this number is.
    pub(super) const fn of(id: i32) -> Option<Self> {
        match id {
            1 => Some(Self::LookUp),
            2 => Some(Self::Update),
            #[cfg(feature = "std")]
            5 => Some(Self::Time),
            8 => Some(Self::Processor),
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

/// `bpf_map_lookup_elem`.
pub(super) struct LookUp;

/// `bpf_map_update_elem`.
pub(super) struct Update;

/// `bpf_ringbuf_output`.
pub(super) struct Output;

/// `bpf_ringbuf_reserve`.
pub(super) struct Reserve;

/// `bpf_ringbuf_submit`.
pub(super) struct Submit;

/// `bpf_ringbuf_discard`.
pub(super) struct Discard;

/// Returns the map with this handle, if it is a plain one.
#[inline(always)]
fn map(entry: &Entry, handle: u64, is_plain: impl Fn(&Map) -> bool) -> Option<&Map> {
    find(&entry.shared.maps, handle).map(|map| &**map).filter(|map| is_plain(map))
}

/// Bytes of most keys and values.
type Short = [u8; 16];

/// Returns bytes of the program; `None` if there are too many.
#[inline(always)]
fn short<R: Runner>(memory: &Vouched<R>, address: u64, len: u32) -> Option<(Short, usize)> {
    let (mut bytes, len) = (Short::default(), len as usize);
    memory.read_vouched(address, bytes.get_mut(..len)?);
    Some((bytes, len))
}

impl Quick for LookUp {
    #[inline(always)]
    fn call<R: Runner>(
        [map, key, _, _]: [u64; 4],
        entry: &Entry,
        memory: &Vouched<R>,
    ) -> Result<Option<u64>, HelperError> {
        let Some(map) = self::map(entry, map, |map| !map.definition().kind.has_maps()) else { return Ok(None) };
        let Some((key, len)) = short(memory, key, map.definition().key_len) else { return Ok(None) };
        Ok(Some(map.address_of(&key[..len], map.share_of(R::cpu)).unwrap_or(0)))
    }
}

impl Quick for Update {
    #[inline(always)]
    fn call<R: Runner>(
        [map, key, value, flags]: [u64; 4],
        entry: &Entry,
        memory: &Vouched<R>,
    ) -> Result<Option<u64>, HelperError> {
        let Some(map) = self::map(entry, map, |map| map.definition().timer.is_none()) else { return Ok(None) };
        let Ok(when) = When::new(flags) else { return Ok(None) };
        let Some((key, key_len)) = short(memory, key, map.definition().key_len) else { return Ok(None) };
        let Some((value, value_len)) = short(memory, value, map.definition().value_len) else { return Ok(None) };
        let value = Value::Near(&value[..value_len]);
        Ok(Some(status(map.update_here(&key[..key_len], value, when, map.share_of(R::cpu)))))
    }
}

/// `bpf_ktime_get_ns`, as compiled code calls a function that only returns a number.
#[cfg(feature = "std")]
pub(super) extern "C" fn time() -> u64 {
    Clock::Monotonic.nanoseconds()
}

/// `bpf_get_smp_processor_id`, in the same way.
pub(super) extern "C" fn processor<R: Runner>() -> u64 {
    R::cpu().into()
}

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
            // As if there were no room. Who waits for a record waits for this one.
            let waker = ring.finish_quietly(record, Fate::Discard, Wake::IfWaiting);
            return waker.map_or(Ok(()), wake_up::<R>).map(|()| Some(0));
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
