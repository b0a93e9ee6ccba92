//! A library with keys of its own. `tests/keys` loads it, and compares its assembly with the expected one.

use palimpsest_text::key::State;
use palimpsest_text::{Packs, branch, call, static_call, static_key};

static_key! {
    /// Off at first.
    pub static PLUGIN_TRACE: "plugin.trace" = off;
    /// On at first.
    pub static PLUGIN_CHECK: "plugin.check" = on;
}

static_call!(static PLUGIN_SUM: extern "C" fn(u64) -> u64 = once);

extern "C" fn once(number: u64) -> u64 {
    number
}

/// Is a cold arm.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn plugin_slow(number: u64) -> u64 {
    number.wrapping_mul(1000)
}

/// Has a branch whose arm for `on` is out of line.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn plugin_unlikely(number: u64) -> u64 {
    if branch!(unlikely PLUGIN_TRACE) { plugin_slow(number) + 2 } else { number + 1 }
}

/// Has a branch whose arm for `off` is out of line.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn plugin_likely(number: u64) -> u64 {
    if branch!(likely PLUGIN_CHECK) { number + 1 } else { plugin_slow(number) + 2 }
}

/// Makes a static call.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn plugin_call(number: u64) -> u64 {
    call!(PLUGIN_SUM)(number) + 1
}

/// Switches a key through this library's own copy of Palimpsest. Returns zero if that worked.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_switch(on: u32) -> u32 {
    let state = if on == 0 { State::Off } else { State::On };
    PLUGIN_TRACE.set(state).is_err().into()
}

/// Handles faults of programs in packs. Returns zero if that worked.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_resume(_: u64) -> u64 {
    let handled = Packs::new().is_ok_and(|packs| packs.resume_after_faults().is_ok());
    (!handled).into()
}

/// Is never called, and cannot be: the linker drops it, and its site with it.
#[inline(never)]
pub fn dropped(number: u64) -> u64 {
    if branch!(unlikely PLUGIN_TRACE) { plugin_slow(number) } else { number }
}
