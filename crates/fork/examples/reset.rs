//! A static library for C targets that AFL++ keeps in one process: one function that restores the process after each
//! run.
//!
//! ```c
//! static void run(unsigned long number, void *unused) {
//!   if (number) __AFL_LOOP(1 << 30);  // ends the last run, and waits for this one
//!   target(__AFL_FUZZ_TESTCASE_BUF, __AFL_FUZZ_TESTCASE_LEN);
//! }
//!
//! if (__AFL_LOOP(1 << 30)) palimpsest_rounds(run, 0);
//! ```
//!
//! The first `__AFL_LOOP` comes before the snapshot, which holds the loop's own state, too. Build with
//! `cargo build --release --package palimpsest-fork --example reset` and link `target/release/examples/libreset.a`.

use std::convert::Infallible;
use std::error::Error;
use std::ffi::{c_int, c_ulong, c_void};

use palimpsest_fork::arena::{Arena, Backing};
use palimpsest_fork::snapshot::{Round, Scope, SignalMask, SnapshotOptions, abandon, take_and_enter};

/// Not the target's heap: what this library left there would change where the target's own blocks lie, and so what the
/// target covers (SQLite compares addresses of blocks).
#[global_allocator]
static HEAP: Arena = Arena::with_backing(Backing::Anonymous);

/// Takes a snapshot of the process and calls `round` with the numbers from 0, for ever, each time in the state of the
/// snapshot: memory, statics, stack and mappings. Returns only if it cannot go on: -1, after a line on standard error.
///
/// # Safety
///
/// 1. The contract of [`take_and_enter`], with `round` as the body.
/// 2. `round` does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_rounds(
    round: unsafe extern "C" fn(number: c_ulong, argument: *mut c_void),
    argument: *mut c_void,
) -> c_int {
    let body = |this: Round| -> Infallible {
        // SAFETY: (1, 2).
        unsafe { round(this.number, argument) };
        // SAFETY: 1. called by `take_and_enter`, on its thread; 2. `round` has returned.
        unsafe { abandon(0) }
    };
    // SAFETY: (1).
    let ended = unsafe { take_and_enter(&SnapshotOptions::new(Scope::Whole), SignalMask::Restore, body) };
    let Err(error) = ended;
    match error.source() {
        Some(cause) => eprintln!("palimpsest: {error}: {cause}"),
        None => eprintln!("palimpsest: {error}"),
    }
    -1
}
