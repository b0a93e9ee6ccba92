//! A system call without the C library: number in `x8`, arguments in `x0` to `x5` (`syscall(2)`).

use core::arch::asm;
use core::array::from_fn;

/// The name of this architecture's calls for filters (`include/uapi/linux/audit.h`: `EM_AARCH64`, of 64 bits,
/// little-endian).
pub(crate) const AUDIT_ARCH: u32 = 0xc000_00b7;

/// The number of `pause`, which does not exist here: the C library calls `ppoll` in its place.
pub(crate) const PAUSE: Option<libc::c_long> = None;

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
    // SAFETY: 1.; the instruction itself changes `x0`, as told here, and nothing of the stack.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    answer
}
