//! AArch64, Procedure Call Standard 6.1.1.

use super::{CURRENT, Entrance};

/// Programs per run: fewer, since most runs are emulated, and the verifier is the same.
pub(crate) const PROGRAMS: u64 = 600;

/// `x19` to `x28`, `x29`.
pub(crate) const KEPT: usize = 11;

/// Most bytes of stack that a program without calls takes: two addresses, its 512, a count, and what it keeps.
pub(crate) const DEPTH: usize = 592;

/// Calls `entrance.entry` on its stack.
///
/// # Safety
///
/// 1. The entry is a function of two numbers that returns one, or of six that returns two, and may be called with
///    these on that stack.
/// 2. `CURRENT` is `entrance`, and nobody else calls this meanwhile.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter(entrance: *mut Entrance) {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-96]!",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "mov x9, sp",
        "str x9, [x0, #224]",
        "ldp x19, x20, [x0, #48]",
        "ldp x21, x22, [x0, #64]",
        "ldp x23, x24, [x0, #80]",
        "ldp x25, x26, [x0, #96]",
        "ldp x27, x28, [x0, #112]",
        "ldr x29, [x0, #128]",
        "ldp x9, x10, [x0]",
        "mov sp, x10",
        "ldr x5, [x0, #232]",
        "ldp x0, x1, [x0, #16]",
        "blr x9",
        "adrp x9, {current}",
        "add x9, x9, :lo12:{current}",
        "ldr x9, [x9]",
        "mov x10, sp",
        "stp x0, x10, [x9, #32]",
        "str x1, [x9, #232]",
        "stp x19, x20, [x9, #136]",
        "stp x21, x22, [x9, #152]",
        "stp x23, x24, [x9, #168]",
        "stp x25, x26, [x9, #184]",
        "stp x27, x28, [x9, #200]",
        "str x29, [x9, #216]",
        "ldr x10, [x9, #224]",
        "mov sp, x10",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp x29, x30, [sp], #96",
        "ret",
        current = sym CURRENT,
    )
}

const _: () = assert!(std::mem::offset_of!(Entrance, kept_after) == 136);
const _: () = assert!(std::mem::offset_of!(Entrance, own_stack) == 224);
const _: () = assert!(std::mem::offset_of!(Entrance, gauge) == 232);
