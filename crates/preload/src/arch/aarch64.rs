//! AArch64: number in `x8`, arguments in `x0` to `x5` (`syscall(2)`).

use std::arch::naked_asm;
use std::ffi::c_long;

use crate::errno;

/// The body of `syscall(3)`: each `$call` goes to `$watched`, all others to the kernel without a stack frame of ours,
/// as in the C library: the child of a `clone` through here must find no return address but that of its caller.
///
/// Not variadic, which Rust cannot define: all seven arguments are in registers for both kinds of function.
macro_rules! watch {
    ($watched:path, $($call:ident)+) => {
        std::arch::naked_asm!(
            // `bti c`
            "hint #34",
            $(concat!("cmp x0, #{", stringify!($call), "}"), "b.eq 2f",)+
            "b {own}",
            "2:",
            "b {watched}",
            $($call = const libc::$call,)+
            watched = sym $watched,
            own = sym crate::arch::own_syscall,
        )
    };
}
pub(crate) use watch;

/// The body of a function of the family `exec`: calls `$prepare` with its number, and goes on in the function whose
/// address that gives, with the registers and the stack as its caller has set them.
macro_rules! trampoline {
    ($number:literal, $prepare:path) => {
        std::arch::naked_asm!(
            // `bti c`
            "hint #34",
            "stp x29, x30, [sp, #-80]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "mov x0, #{number}",
            "bl {prepare}",
            // The register from which a branch may reach a `bti c`.
            "mov x16, x0",
            "ldp x6, x7, [sp, #64]",
            "ldp x4, x5, [sp, #48]",
            "ldp x2, x3, [sp, #32]",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #80",
            "br x16",
            number = const $number,
            prepare = sym $prepare,
        )
    };
}
pub(crate) use trampoline;

/// The instruction that jumps to a label.
#[cfg(not(test))]
macro_rules! jump {
    () => {
        "b"
    };
}
#[cfg(not(test))]
pub(crate) use jump;

/// `syscall(3)` of the kernel, for this object's own code too: nothing is looked at.
///
/// # Safety
///
/// 1. As for `system_call`.
#[unsafe(naked)]
#[unsafe(link_section = "palimpsest_start")]
pub(crate) unsafe extern "C" fn own_syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    naked_asm!(
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        // The last 4095 numbers are errors (`include/linux/err.h`).
        "cmn x0, #4095",
        "b.hs 3f",
        "ret",
        "3:",
        "b {failed}",
        failed = sym errno::answer,
    )
}

/// Does nothing: thread-local variables are found by descriptors, which the dynamic linker has filled in.
pub(crate) fn prepare_thread_locals() {}
