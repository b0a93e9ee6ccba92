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
    /// # Invariants
    ///
    /// 1. Borrows `participant`, and is never handed out.
    pinned: Option<Pinned<'static>>,
    participant: Box<Participant>,
    depth: usize,
}

thread_local! {
    static PARTS: RefCell<HashMap<u64, Part>> = RefCell::default();
}

/// Says that this thread may run programs of `packs` by address from now on, until as many calls of
/// `palimpsest_unpin`: what is released by others meanwhile stays as it is. Not for signal handlers. Pin anew in forked
/// children.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_pin(packs: palimpsest_packs) -> palimpsest_result {
    answer(|| {
        PARTS.with_borrow_mut(|parts| {
            if let Some(part) = parts.get_mut(&packs.handle) {
                if part.depth == 0 {
                    part.pin();
                }
                part.depth += 1;
                return Ok(());
            }
            let participant = Box::new(handles::get::<Packs>(packs.handle)?.participant());
            let mut part = Part { pinned: None, participant, depth: 1 };
            part.pin();
            parts.insert(packs.handle, part);
            Ok(())
        })
    })
}

/// Takes one `palimpsest_pin` back.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_unpin(packs: palimpsest_packs) -> palimpsest_result {
    answer(|| {
        PARTS.with_borrow_mut(|parts| {
            let not_pinned = || Failure::new(PALIMPSEST_NOT_FOUND, "this thread is not pinned");
            let part = parts.get_mut(&packs.handle).filter(|part| part.depth > 0).ok_or_else(not_pinned)?;
            part.depth -= 1;
            if part.depth == 0 {
                part.pinned = None;
                if handles::get::<Packs>(packs.handle).is_err() {
                    // The packs are closed: nobody pins them again.
                    parts.remove(&packs.handle);
                }
            }
            Ok(())
        })
    })
}

impl Part {
    fn pin(&mut self) {
        let pinned = self.participant.pin();
        // SAFETY: only the lifetime changes. The participant is in a box that is dropped after it, and is never moved
        // out (the field's invariant).
        self.pinned = Some(unsafe { mem::transmute::<Pinned<'_>, Pinned<'static>>(pinned) });
    }
}
