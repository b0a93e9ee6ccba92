//! x86-64: number in `rax`, arguments in `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9` (`syscall(2)`).

use std::arch::naked_asm;
use std::ffi::c_long;

use crate::errno;

/// The body of `syscall(3)`: each `$call` goes to `$watched`, all others to the kernel without a stack frame of ours,
/// as in the C library: the child of a `clone` through here must find no return address but that of its caller.
///
/// Not variadic, which Rust cannot define: the first six arguments are in registers and the seventh at `rsp + 8` for
/// both kinds of function, and reading one that was not passed is harmless.
macro_rules! watch {
    ($watched:path, $($call:ident)+) => {
        std::arch::naked_asm!(
            "endbr64",
            $(concat!("cmp rdi, {", stringify!($call), "}"), "je 2f",)+
            "jmp {own}",
            "2:",
            "jmp {watched}",
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
            "endbr64",
            // Seven words, which aligns the stack for the call. `al` counts vector registers for variadic
            // functions.
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "push rax",
            "mov edi, {number}",
            "call {prepare}",
            "mov r11, rax",
            "pop rax",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp r11",
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
        "jmp"
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
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        // The last 4095 numbers are errors (`include/linux/err.h`).
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "mov rdi, rax",
        "jmp {failed}",
        failed = sym errno::answer,
    )
}
