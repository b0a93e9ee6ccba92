//! Turns for CPUs in the middle of an operation: before every access to an entry that is not empty.

use std::cell::Cell;

thread_local! {
    static TURN: Cell<Option<&'static dyn Fn()>> = const { Cell::new(None) };
}

/// Takes the turn away again, also if `body` panics.
struct Reset;

impl Drop for Reset {
    fn drop(&mut self) {
        TURN.set(None);
    }
}

/// Runs `body`, and calls `turn` before each access that this crate makes on this thread to an entry that is not empty,
/// except within `turn` itself. What a test makes a CPU do in `turn` happens at that point of the operation: so it
/// finds marks of a walker that the operation loses.
pub fn interleave<T>(turn: &dyn Fn(), body: impl FnOnce() -> T) -> T {
    // SAFETY: only the lifetime changes. `Reset` removes the reference from this thread's cell before this function
    // returns or unwinds, and only `meanwhile` uses it, which runs within `body`.
    let turn = unsafe { std::mem::transmute::<&dyn Fn(), &'static dyn Fn()>(turn) };
    TURN.set(Some(turn));
    let _reset = Reset;
    body()
}

pub(crate) fn meanwhile() {
    if let Some(turn) = TURN.take() {
        turn();
        TURN.set(Some(turn));
    }
}
