//! Helpers for locks in the values of maps: `bpf_spin_lock` and `bpf_spin_unlock`.

use alloc::sync::Arc;

use super::call::Call;
use crate::interp::{Answer, HelperError};
use crate::map::{Lock, Map};

type Answered = Result<Answer, HelperError>;

fn find(maps: &[Arc<Map>], address: u64) -> Option<Lock<'_>> {
    maps.iter().find_map(|map| map.lock_at(address))
}

/// `bpf_spin_lock`. If the program is ended while it holds the lock, its runner has it given back.
pub(super) fn take(call: &mut Call<'_>) -> Answered {
    let address = call.number(0);
    let lock = find(call.maps(), address).ok_or(HelperError::NoArgument { index: 0 })?;
    lock.take(call.owner()).map_err(|_| HelperError::Deadlock)?;
    call.hold(address).inspect_err(|_| lock.discard())?;
    Ok(Answer::Value(0))
}

/// `bpf_spin_unlock`.
pub(super) fn give_back(call: &mut Call<'_>) -> Answered {
    let address = call.number(0);
    let lock = find(call.maps(), address).ok_or(HelperError::NoArgument { index: 0 })?;
    call.let_go(address);
    if lock.give_back(call.owner()) { Ok(Answer::Value(0)) } else { Err(HelperError::NoArgument { index: 0 }) }
}

/// Gives a lock back that an ended program holds, if there is one at this address.
pub(super) fn discard(maps: &[Arc<Map>], address: u64) {
    if let Some(lock) = find(maps, address) {
        lock.discard();
    }
}
