//! AArch64: number in `x8`, arguments in `x0` to `x5` (`syscall(2)`).

use std::arch::{asm, naked_asm};
use std::ffi::{c_int, c_long};

use crate::{dispatch, errno, execute};

/// Makes the system call `number`, and gives what the kernel answers: `-errno` for an error.
///
/// # Safety
///
/// 1. The call with these arguments must be sound here: what it does is the caller's matter.
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: contract 1; the kernel changes x0 and no other register, and uses no stack of ours.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") arguments[0] => answer,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack),
        );
    }
    answer
}

/// `syscall(3)`. Calls about memory and `execve` go to `dispatch::syscall`, all others to the kernel without a stack
/// frame of ours, as in the C library: the child of a `clone` through here must find no return address but its
/// caller's.
///
/// Not variadic, which Rust cannot define: all seven arguments are in registers for both kinds of function.
///
/// # Safety
///
/// 1. As for `system_call`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    naked_asm!(
        // `bti c`
        "hint #34",
        "cmp x0, #{madvise}",
        "b.eq 2f",
        "cmp x0, #{mremap}",
        "b.eq 2f",
        "cmp x0, #{mmap}",
        "b.eq 2f",
        "cmp x0, #{mlock}",
        "b.eq 2f",
        "cmp x0, #{mlock2}",
        "b.eq 2f",
        "cmp x0, #{mlockall}",
        "b.eq 2f",
        "cmp x0, #{mprotect}",
        "b.eq 2f",
        "cmp x0, #{pkey_mprotect}",
        "b.eq 2f",
        "cmp x0, #{execve}",
        "b.eq 2f",
        "cmp x0, #{execveat}",
        "b.eq 2f",
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
        "2:",
        "b {watched}",
        "3:",
        "b {failed}",
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
        watched = sym dispatch::syscall,
        failed = sym errno::answer,
    )
}

/// Defines functions of the family `exec`: each calls `execute::prepare` with its number, and goes on in the function
/// whose address that gives, with the registers and the stack as its caller has set them.
macro_rules! trampolines {
    ($($number:literal $name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`, with that function's parameters.")]
        ///
        /// # Safety
        ///
        /// 1. As for the C library's function, to which the type written here is of no concern.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
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
                prepare = sym execute::prepare,
            )
        }
    )*};
}

trampolines! {
    0 execve
    1 execv
    2 execvp
    3 execvpe
    4 execl
    5 execlp
    6 execle
    7 fexecve
    8 execveat
}

/// `syscall(3)` for this object's own code: nothing is looked at.
///
/// # Safety
///
/// 1. As for `system_call`.
#[cfg(not(test))]
#[unsafe(naked)]
unsafe extern "C" fn own_syscall(
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

// The targets of `--wrap` (`build.rs`). Hidden, so that no other object is bound to them.
#[cfg(not(test))]
std::arch::global_asm!(
    ".macro palimpsest_own name, target",
    ".hidden __wrap_\\name",
    ".globl __wrap_\\name",
    ".type __wrap_\\name, %function",
    "__wrap_\\name:",
    "b \\target",
    ".size __wrap_\\name, . - __wrap_\\name",
    ".endm",
    ".pushsection .text.palimpsest_own, \"ax\", %progbits",
    "palimpsest_own fork, {fork}",
    "palimpsest_own madvise, {madvise}",
    "palimpsest_own mremap, {mremap}",
    "palimpsest_own mmap, {mmap}",
    "palimpsest_own mmap64, {mmap}",
    "palimpsest_own mlock, {mlock}",
    "palimpsest_own mlock2, {mlock2}",
    "palimpsest_own mlockall, {mlockall}",
    "palimpsest_own syscall, {syscall}",
    "palimpsest_own epoll_wait, {epoll_wait}",
    "palimpsest_own epoll_pwait, {epoll_pwait}",
    "palimpsest_own poll, {poll}",
    "palimpsest_own ppoll, {ppoll}",
    "palimpsest_own select, {select}",
    "palimpsest_own pselect, {pselect}",
    "palimpsest_own nanosleep, {nanosleep}",
    "palimpsest_own clock_nanosleep, {clock_nanosleep}",
    ".popsection",
    ".purgem palimpsest_own",
    fork = sym crate::fork::plain,
    madvise = sym crate::kernel::madvise,
    mremap = sym crate::kernel::mremap,
    mmap = sym crate::kernel::mmap,
    mlock = sym crate::kernel::mlock,
    mlock2 = sym crate::kernel::mlock2,
    mlockall = sym crate::kernel::mlockall,
    syscall = sym own_syscall,
    epoll_wait = sym crate::own_waits::own_epoll_wait,
    epoll_pwait = sym crate::own_waits::own_epoll_pwait,
    poll = sym crate::own_waits::own_poll,
    ppoll = sym crate::own_waits::own_ppoll,
    select = sym crate::own_waits::own_select,
    pselect = sym crate::own_waits::own_pselect,
    nanosleep = sym crate::own_waits::own_nanosleep,
    clock_nanosleep = sym crate::own_waits::own_clock_nanosleep,
);
