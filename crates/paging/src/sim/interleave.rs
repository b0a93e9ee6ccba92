//! Turns for CPUs in the middle of an operation: before every access of an entry that is not empty.

use std::cell::Cell;

thread_local! {
    static TURN: Cell<Option<&'static dyn Fn()>> = const { Cell::new(None) };
}

/// Takes the turn away again, also where `body` panics.
struct Reset;

impl Drop for Reset {
    fn drop(&mut self) {
        TURN.set(None);
    }
}

/// Runs `body`, and calls `turn` before each access of an entry that is not empty, by this crate and on this thread;
/// not within `turn` itself. What a test has a CPU do in `turn` happens at that point of the operation: so it finds
/// marks of a walker that the operation loses.
pub fn interleave<T>(turn: &dyn Fn(), body: impl FnOnce() -> T) -> T {
    // SAFETY: only the lifetime changes. `Reset` removes the reference from this thread's cell before this function
    // returns or unwinds, and `meanwhile`, which alone uses it, runs within `body`.
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
