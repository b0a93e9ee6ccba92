//! Threads that run code by address.

use std::cell::RefCell;
use std::collections::HashMap;

use palimpsest_text::{Packs, Pins};

use crate::handles;
use crate::packs::palimpsest_packs;
use crate::result::palimpsest_result::{self, PALIMPSEST_NOT_FOUND};
use crate::result::{Failure, answer};

thread_local! {
    /// Those that are pinned: a part keeps the packs' memory.
    static PARTS: RefCell<HashMap<u64, Pins>> = RefCell::default();
}

fn with_parts<R>(work: impl FnOnce(&mut HashMap<u64, Pins>) -> Result<R, Failure>) -> Result<R, Failure> {
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
            parts.entry(packs.handle).or_insert_with(|| named.pins()).pin();
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
            let pins = parts.get(&packs.handle).ok_or_else(not_pinned)?;
            pins.unpin().map_err(|error| Failure::of(PALIMPSEST_NOT_FOUND, &error))?;
            if pins.count() == 0 {
                parts.remove(&packs.handle);
            }
            Ok(())
        })
    })
}
