//! A system call without the C library: number in `rax`, arguments in `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`
//! (`syscall(2)`).

use core::arch::asm;
use core::array::from_fn;

/// The name of this architecture's calls for filters (`include/uapi/linux/audit.h`: `EM_X86_64`, of 64 bits,
/// little-endian).
pub(crate) const AUDIT_ARCH: u32 = 0xc000_003e;

/// The number of `pause`, which returns only after a signal.
pub(crate) const PAUSE: Option<libc::c_long> = Some(libc::SYS_pause);

/// Makes the system call `number`, and returns the kernel's answer: `-errno` for an error. Uses neither `errno` nor
/// other thread-local data, so that a process that borrows its parent's memory may use it. Missing arguments are zeros.
///
/// # Safety
///
/// 1. The call with these arguments does no harm to memory that Rust code relies on.
#[inline]
pub unsafe fn system_call<const N: usize>(number: i64, arguments: [usize; N]) -> isize {
    const { assert!(N <= 6, "a system call has at most six arguments") };
    let [a, b, c, d, e, f] = from_fn(|number| if number < N { arguments[number] } else { 0 });
    let answer: isize;
    // SAFETY: 1.; the instruction itself changes `rax`, `rcx` and `r11`, as told here, and nothing of the stack.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}
