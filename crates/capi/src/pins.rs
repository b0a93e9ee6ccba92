//! Threads that run code by address.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem;

use palimpsest_text::{Packs, Participant, Pinned};

use crate::handles;
use crate::packs::palimpsest_packs;
use crate::result::palimpsest_result::{self, PALIMPSEST_NOT_FOUND};
use crate::result::{Failure, answer};

/// One thread's part in one set of packs. The fields are dropped in this order.
struct Part {
    /// One for each pin: the first in a forked child moves to the child's own account, which only pinning does.
    ///
    /// # Invariants
    ///
    /// 1. They borrow `participant`, and are never handed out.
    pins: Vec<Pinned<'static>>,
    participant: Box<Participant>,
}

thread_local! {
    /// Those that are pinned: a part keeps the packs' memory.
    static PARTS: RefCell<HashMap<u64, Part>> = RefCell::default();
}

fn with_parts<R>(work: impl FnOnce(&mut HashMap<u64, Part>) -> Result<R, Failure>) -> Result<R, Failure> {
    let is_ending = |_| Failure::invalid("this thread is ending, and has no pins any more");
    PARTS.try_with(|parts| work(&mut parts.borrow_mut())).map_err(is_ending)?
}

/// Says that this thread may run programs of `packs` by address from now on, until as many calls of `palimpsest_unpin`:
/// what others release meanwhile stays as it is. Not for signal handlers. Pin anew in forked children.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_pin(packs: palimpsest_packs) -> palimpsest_result {
    answer(|| {
        let named = handles::get::<Packs>(packs.handle)?;
        with_parts(|parts| {
            let part = parts
                .entry(packs.handle)
                .or_insert_with(|| Part { pins: Vec::new(), participant: Box::new(named.participant()) });
            part.pin();
            Ok(())
        })
    })
}

/// Takes back one `palimpsest_pin`, also of closed packs.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_unpin(packs: palimpsest_packs) -> palimpsest_result {
    answer(|| {
        with_parts(|parts| {
            let not_pinned = || Failure::new(PALIMPSEST_NOT_FOUND, "this thread is not pinned");
            let part = parts.get_mut(&packs.handle).ok_or_else(not_pinned)?;
            part.pins.pop();
            if part.pins.is_empty() {
                parts.remove(&packs.handle);
            }
            Ok(())
        })
    })
}

impl Part {
    fn pin(&mut self) {
        let pinned = self.participant.pin();
        // SAFETY: only the lifetime changes. What it refers to is a seat that the packs keep as long as the participant
        // lives, which is dropped after it (the field's invariant).
        self.pins.push(unsafe { mem::transmute::<Pinned<'_>, Pinned<'static>>(pinned) });
    }
}
