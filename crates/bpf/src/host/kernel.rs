//! Linux's helpers, as far as they make sense in user space. Numbers and arguments are those of
//! `include/uapi/linux/bpf.h`; errors are its numbers, negative.

use alloc::sync::Arc;

use super::call::{Call, failed, status};
#[cfg(feature = "std")]
use super::timed;
use super::{dynptr, lock, probe, ring, text};
use crate::interp::{Answer, HelperError, Iteration};
use crate::map::{Kind, OpError, Update, Value as MapValue, WhenFull};
use crate::verify::Argument::{
    Anything, Bytes, BytesOut, Context, Drain, Dynptr, DynptrOut, Each, Key, Lock, Loop, Map, MapBytes, Number,
    NumberOut, Record, RecordDynptr, RecordSize, Size, Text, Unlock, Value, ValueOut,
};
#[cfg(feature = "std")]
use crate::verify::Argument::{OnTimer, Printed, PrintedBytes, Timer};
#[cfg(feature = "std")]
use crate::verify::MapUse::Timers;
use crate::verify::MapUse::{Each as EachUse, EachCpu, Find, Get, Peek, Pop, Programs, Push, Records, Remove, Samples};
use crate::verify::{Backing, Returns, Signature, TAIL_CALL};

type Function = fn(&mut Call<'_>) -> Result<Answer, HelperError>;
type Answered = Result<Answer, HelperError>;

/// Most calls of one `bpf_loop` (`BPF_MAX_LOOPS` of Linux, `include/linux/bpf_verifier.h`).
const MOST_LOOPS: u64 = 8 << 20;
/// Works under the value's lock (Linux's `BPF_F_LOCK`, `include/uapi/linux/bpf.h`).
const LOCKED: u64 = 4;
const EINVAL: i64 = 22;
const E2BIG: i64 = 7;

/// Number, signature and function of each.
pub(super) const HELPERS: &[(i32, Signature, Function)] = &[
    (1, Signature::new([Map(Get), Key]).returning(Returns::ValueOrNull), lookup),
    (2, Signature::new([Map(Find), Key, Value, Number]), update),
    (3, Signature::new([Map(Remove), Key]), remove),
    // There is one address space: `_user` and `_kernel` are the same, and so is `bpf_copy_from_user`.
    (4, PROBE, probe::read),
    #[cfg(feature = "std")]
    (5, Signature::new([]), super::print::monotonic),
    #[cfg(feature = "std")]
    (6, Signature::new([Bytes, Size, Printed, Printed, Printed]), super::print::trace),
    #[cfg(feature = "std")]
    (7, Signature::new([]), super::print::random),
    (8, Signature::new([]), processor),
    (TAIL_CALL, Signature::new([Context, Map(Programs), Number]), tail_call),
    #[cfg(feature = "std")]
    (14, Signature::new([]), super::print::process),
    #[cfg(feature = "std")]
    (15, Signature::new([]), super::print::owner),
    #[cfg(feature = "std")]
    (16, Signature::new([BytesOut, Size]), super::print::name),
    #[cfg(feature = "std")]
    (42, Signature::new([]), super::print::node),
    (45, PROBE, probe::text),
    (87, Signature::new([Map(Push), Value, Number]), push),
    (88, Signature::new([Map(Pop), ValueOut]), pop),
    (89, Signature::new([Map(Peek), ValueOut]), peek),
    (93, Signature::new([Lock]), lock::take),
    (94, Signature::new([Unlock]), lock::give_back),
    (105, Signature::new([Bytes, Size, Number, NumberOut]), text::signed),
    (106, Signature::new([Bytes, Size, Number, NumberOut]), text::unsigned),
    (112, PROBE, probe::read),
    (113, PROBE, probe::read),
    (114, PROBE, probe::text),
    (115, PROBE, probe::text),
    #[cfg(feature = "std")]
    (125, Signature::new([]), super::print::since_start),
    (130, Signature::new([Map(Records), Bytes, Size, Number]), ring::output),
    (131, Signature::new([Map(Records), RecordSize, Number]).returning(Returns::RecordOrNull), ring::reserve),
    (132, Signature::new([Record, Number]), ring::submit),
    (133, Signature::new([Record, Number]), ring::discard),
    (134, Signature::new([Map(Records), Number]), ring::query),
    (148, PROBE, probe::read),
    #[cfg(feature = "std")]
    (160, Signature::new([]), super::print::coarse),
    (164, Signature::new([Map(EachUse), Each, Anything, Number]), each),
    #[cfg(feature = "std")]
    (165, Signature::new([BytesOut, Size, Text, PrintedBytes, Size]), super::print::format),
    #[cfg(feature = "std")]
    (177, Signature::new([Bytes, Size, PrintedBytes, Size]), super::print::trace_many),
    #[cfg(feature = "std")]
    (169, Signature::new([Timer, Map(Timers), Number]), timed::init),
    #[cfg(feature = "std")]
    (super::kept::SET_CALLBACK, Signature::new([Timer, OnTimer]), timed::set_callback),
    #[cfg(feature = "std")]
    (171, Signature::new([Timer, Number, Number]), timed::start),
    #[cfg(feature = "std")]
    (172, Signature::new([Timer]), timed::cancel),
    (181, Signature::new([Number, Loop, Anything, Number]), times),
    (182, Signature::new([Bytes, Size, Text]), text::compare),
    (195, Signature::new([Map(EachCpu), Key, Number]).returning(Returns::ValueOrNull), lookup_of_cpu),
    (
        197,
        Signature::new([MapBytes, Size, Number, DynptrOut]).returning(Returns::Dynptr(Backing::Value)),
        dynptr::of_value,
    ),
    (
        198,
        Signature::new([Map(Records), Number, Number, DynptrOut]).returning(Returns::Dynptr(Backing::Record)),
        dynptr::reserve,
    ),
    (199, Signature::new([RecordDynptr, Number]), dynptr::submit),
    (200, Signature::new([RecordDynptr, Number]), dynptr::discard),
    (201, Signature::new([BytesOut, Size, Dynptr, Number, Number]), dynptr::read),
    (202, Signature::new([Dynptr, Number, Bytes, Size, Number]), dynptr::write),
    (203, Signature::new([Dynptr, Number, RecordSize]).returning(Returns::SliceOrNull), dynptr::data),
    #[cfg(feature = "std")]
    (208, Signature::new([]), super::print::atomic),
    (209, Signature::new([Map(Samples), Drain, Anything, Number]), ring::drain),
];

/// It may read anything that the process knows, so that the contract must allow it.
const PROBE: Signature = Signature::new([BytesOut, Size, Anything]).returning(Returns::Probed);

fn answer(result: Result<(), OpError>) -> Answered {
    Ok(Answer::Value(status(result)))
}

/// The CPU that the program runs on.
fn processor(call: &mut Call<'_>) -> Answered {
    Ok(Answer::Value(call.processor().into()))
}

fn lookup(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    if map.definition().kind.has_maps() {
        return Ok(Answer::Value(call.with_key(1, |key| super::inner_handle(call.number(0), map, key))?));
    }
    let cpu = call.cpu(map);
    Ok(Answer::Value(call.with_key(1, |key| map.address_of(key, cpu))?.unwrap_or(0)))
}

fn lookup_of_cpu(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    let cpu = u32::try_from(call.number(2)).ok().filter(|cpu| *cpu < map.cpus());
    let address = cpu.map(|cpu| call.with_key(1, |key| map.address_of(key, cpu))).transpose()?;
    Ok(Answer::Value(address.flatten().unwrap_or(0)))
}

fn update(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    let (flags, cpu) = (call.number(3), call.cpu(map));
    if flags & LOCKED != 0 {
        let owner = call.owner();
        let update =
            |key: &[u8], value: MapValue<'_>| map.update_locked(key, value, Update::new(flags & !LOCKED)?, owner);
        return match call.with_key(1, |key| call.with_value(2, |value| update(key, value)))?? {
            Err(OpError::Deadlock) => Err(HelperError::Deadlock),
            result => answer(result),
        };
    }
    answer(call.with_key(1, |key| {
        call.with_value(2, |value| Update::new(flags).and_then(|update| map.update_here(key, value, update, cpu)))
    })??)
}

fn remove(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    answer(call.with_key(1, |key| map.remove(key))?)
}

fn push(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    let when_full = match call.number(2) {
        0 => WhenFull::Refuse,
        2 => WhenFull::DropOldest,
        _ => return failed(EINVAL),
    };
    answer(call.with_value(1, |value| map.push_value(value, when_full))?)
}

// Linux writes zeros if there is nothing, and the verifier counts the value as written.
fn pop(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    answer(call.receive(1, |out| map.pop_to(out))?)
}

fn peek(call: &mut Call<'_>) -> Answered {
    let map = call.map()?;
    answer(match map.definition().kind {
        Kind::BloomFilter => call.with_value(1, |value| map.may_have(value))?,
        _ => call.receive(1, |out| map.peek_to(out))?,
    })
}

fn each(call: &mut Call<'_>) -> Answered {
    if call.number(3) != 0 {
        return failed(EINVAL);
    }
    let map = Arc::clone(call.map()?);
    let cpu = call.cpu(&map);
    Ok(Answer::Iterate(Iteration::elements((call.number(1), call.number(2)), map, cpu, call.number(0))))
}

fn times(call: &mut Call<'_>) -> Answered {
    match (call.number(0), call.number(3)) {
        (_, flags) if flags != 0 => failed(EINVAL),
        (times, _) if times > MOST_LOOPS => failed(E2BIG),
        (times, _) => Ok(Answer::Iterate(Iteration::times(call.number(1), call.number(2), times))),
    }
}

fn tail_call(call: &mut Call<'_>) -> Answered {
    let (map, index) = (Arc::clone(call.map()?), u32::try_from(call.number(2)));
    let is_taken = index.is_ok_and(|index| call.tail_call(&map, index));
    Ok(Answer::Value(is_taken.into()))
}
