//! x86-64: number in `rax`, arguments in `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9` (`syscall(2)`).

use std::arch::{asm, naked_asm};
use std::ffi::c_long;

use crate::errno;

/// Makes the system call `number`, and gives what the kernel answers: `-errno` for an error.
///
/// # Safety
///
/// 1. The call with these arguments must be sound here: what it does is the caller's matter.
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: contract 1; the kernel changes rax, rcx and r11 and no other register, and uses no stack of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// The body of `syscall(3)`: calls about memory and `execve` go to `$watched`, all others to the kernel without a stack
/// frame of ours, as in the C library: the child of a `clone` through here must find no return address but that of its
/// caller.
///
/// Not variadic, which Rust cannot define: the first six arguments are in registers and the seventh at `rsp + 8` for
/// both kinds of function, and reading one that was not passed is harmless.
macro_rules! watch {
    ($watched:path) => {
        std::arch::naked_asm!(
            "endbr64",
            "cmp rdi, {madvise}",
            "je 2f",
            "cmp rdi, {mremap}",
            "je 2f",
            "cmp rdi, {mmap}",
            "je 2f",
            "cmp rdi, {mlock}",
            "je 2f",
            "cmp rdi, {mlock2}",
            "je 2f",
            "cmp rdi, {mlockall}",
            "je 2f",
            "cmp rdi, {mprotect}",
            "je 2f",
            "cmp rdi, {pkey_mprotect}",
            "je 2f",
            "cmp rdi, {execve}",
            "je 2f",
            "cmp rdi, {execveat}",
            "je 2f",
            "jmp {own}",
            "2:",
            "jmp {watched}",
            madvise = const libc::SYS_madvise,
            mremap = const libc::SYS_mremap,
            mmap = const libc::SYS_mmap,
            mlock = const libc::SYS_mlock,
            mlock2 = const libc::SYS_mlock2,
            mlockall = const libc::SYS_mlockall,
            mprotect = const libc::SYS_mprotect,
            pkey_mprotect = const libc::SYS_pkey_mprotect,
            execve = const libc::SYS_execve,
            execveat = const libc::SYS_execveat,
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
