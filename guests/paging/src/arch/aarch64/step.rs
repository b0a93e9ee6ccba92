//! Runs the kernel instruction by instruction: software step (Arm ARM D2.10).
//!
//! The guest is built with single-instruction atomics (`.cargo/config.toml`): a pair of exclusive load and store would
//! never succeed, since the exception between them clears the monitor.

use core::arch::asm;

use palimpsest_paging::VirtAddr;

/// MDSCR_EL1: step, and debug exceptions in the kernel too.
const STEP: u64 = 1 | 1 << 13;

// In `trap.s`.
unsafe extern "C" {
    static system_call_vector: [u8; 0];
    static system_call_vector_end: [u8; 0];
    static from_user_common: [u8; 0];
    static from_user_switched: [u8; 0];
    static from_user_end: [u8; 0];
    static to_user: [u8; 0];
    static to_user_switched: [u8; 0];
    static to_user_end: [u8; 0];
}

/// Raises an exception before each instruction from here on. Exceptions themselves are not stepped.
pub(crate) fn on() {
    begin();
    // SAFETY: the exceptions touch only their own data.
    unsafe { asm!("msr daifclr, #8", options(nostack)) };
}

/// Ends stepping.
pub(crate) fn off() {
    // SAFETY: only makes exceptions of steps wait, of which there are none any more.
    unsafe { asm!("msr daifset, #8", options(nostack)) };
    end();
}

/// Makes an exception follow each instruction that runs while debug exceptions are not masked.
pub(super) fn begin() {
    // SAFETY: the exceptions touch only their own data.
    unsafe {
        asm!(
            "msr oslar_el1, xzr",
            "isb",
            "mrs {0}, mdscr_el1",
            "orr {0}, {0}, {1}",
            "msr mdscr_el1, {0}",
            "isb",
            out(reg) _,
            in(reg) STEP,
            options(nostack),
        );
    }
}

/// Ends that.
pub(super) fn end() {
    // SAFETY: as in `begin`.
    unsafe {
        asm!(
            "mrs {0}, mdscr_el1",
            "bic {0}, {0}, {1}",
            "msr mdscr_el1, {0}",
            "isb",
            out(reg) _,
            in(reg) STEP,
            options(nostack),
        );
    }
}

/// Returns where the instructions are that a system call runs before stepping can begin: first with user mode's root,
/// then with the kernel's.
pub(crate) fn from_user_mode() -> (impl Iterator<Item = VirtAddr>, impl Iterator<Item = VirtAddr>) {
    let vector = code(&raw const system_call_vector, &raw const system_call_vector_end);
    let first = code(&raw const from_user_common, &raw const from_user_switched);
    (vector.chain(first), code(&raw const from_user_switched, &raw const from_user_end))
}

/// Returns where the instructions are that run after stepping has ended, on the way back: first with the kernel's root,
/// then with user mode's.
pub(crate) fn to_user_mode() -> (impl Iterator<Item = VirtAddr>, impl Iterator<Item = VirtAddr>) {
    (code(&raw const to_user, &raw const to_user_switched), code(&raw const to_user_switched, &raw const to_user_end))
}

fn code(start: *const [u8; 0], end: *const [u8; 0]) -> impl Iterator<Item = VirtAddr> {
    (start as u64..end as u64).step_by(4).map(VirtAddr)
}
