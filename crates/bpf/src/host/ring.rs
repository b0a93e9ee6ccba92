//! Helpers with ring buffers.

use alloc::sync::Arc;

use super::call::{Call, failed};
use crate::interp::{Answer, HelperError, Iteration};
use crate::map::{Fate, Map, Ring, Wake};

type Answered = Result<Answer, HelperError>;

const EINVAL: i64 = 22;

#[inline]
pub(super) fn wake(flags: u64) -> Option<Wake> {
    match flags {
        0 => Some(Wake::IfWaiting),
        1 => Some(Wake::Never),
        2 => Some(Wake::Always),
        _ => None,
    }
}

pub(super) fn output(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    let (Some(ring), Some(wake)) = (map.ring(), wake(call.number(3))) else { return failed(EINVAL) };
    if call.with_value(1, |bytes| ring.output_value(bytes, wake))? { Ok(Answer::Value(0)) } else { failed(11) }
}

pub(super) fn reserve(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    // Flags must be 0, as in Linux.
    let (len, flags) = (call.number(1), call.number(2));
    let record = map.ring().filter(|_| flags == 0).and_then(|ring| take_record(call, ring, len));
    Ok(Answer::Value(record.unwrap_or(0)))
}

/// Reserves a record for the program to hold. If it cannot hold another one, there is no room for it either. Who waits
/// for a record waits for this one, and is woken as for any that is discarded.
pub(super) fn take_record(call: &mut Call<'_>, ring: &Ring, len: u64) -> Option<u64> {
    let record = ring.reserve(len)?;
    call.hold(record).inspect_err(|_| ring.finish(record, Fate::Discard, Wake::IfWaiting)).ok()?;
    Some(record)
}

/// Records that an ended program has left, each with a ring that it may be of.
struct Left<'a, I: Iterator<Item = (&'a Ring, u64)>>(I);

impl<'a, I: Iterator<Item = (&'a Ring, u64)>> Left<'a, I> {
    fn discard(&mut self, wake: Wake) {
        self.0.by_ref().for_each(|(ring, record)| ring.finish(record, Fate::Discard, wake));
    }
}

impl<'a, I: Iterator<Item = (&'a Ring, u64)>> Drop for Left<'a, I> {
    /// What is left when a waker has panicked; a second panic would end the process.
    fn drop(&mut self) {
        self.discard(Wake::Never);
    }
}

/// Discards records that an ended program has left: all, also if somebody panics who is woken.
pub(super) fn discard_all(maps: &[Arc<Map>], records: &[u64]) {
    let rings = maps.iter().filter_map(|map| map.ring());
    let left = rings.flat_map(|ring| records.iter().map(move |record| (ring, *record)));
    Left(left).discard(Wake::IfWaiting);
}

fn finish(call: &mut Call<'_>, fate: Fate) -> Answered {
    give_back(call, call.number(0), fate)
}

/// Gives `record` back, in the way that the second argument says.
pub(super) fn give_back(call: &mut Call<'_>, record: u64, fate: Fate) -> Answered {
    let wake = wake(call.number(1)).unwrap_or_default();
    call.let_go(record);
    call.rings().for_each(|ring| ring.finish(record, fate, wake));
    Ok(Answer::Value(0))
}

pub(super) fn submit(call: &mut Call<'_>) -> Answered {
    finish(call, Fate::Submit)
}

pub(super) fn discard(call: &mut Call<'_>) -> Answered {
    finish(call, Fate::Discard)
}

pub(super) fn query(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    let Some(ring) = map.ring() else { return failed(EINVAL) };
    Ok(Answer::Value(match call.number(1) {
        0 => ring.pending(),
        1 => ring.len(),
        2 => ring.consumer_position(),
        3 => ring.producers_position(),
        _ => 0,
    }))
}

/// `bpf_user_ringbuf_drain`.
pub(super) fn drain(call: &mut Call<'_>) -> Answered {
    const EBUSY: i64 = 16;
    let map = Arc::clone(call.map()?);
    let (Some(ring), Some(wake)) = (map.user_ring(), wake(call.number(3))) else { return failed(EINVAL) };
    let Some(seated) = ring.begin() else { return failed(EBUSY) };
    Ok(Answer::Iterate(Iteration::samples((call.number(1), call.number(2)), (map, seated), wake)))
}
