//! x86-64: number in `rax`, arguments in `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9` (`syscall(2)`).

use std::arch::naked_asm;
use std::ffi::{c_long, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use palimpsest_sys::global_symbol;

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

// Compilers call it for thread-local variables, which the standard library has for panics. glibc has it in its dynamic
// linker, so that an object which refers to it needs that by its name, and other C libraries cannot load it.
#[cfg(not(test))]
std::arch::global_asm!(
    ".pushsection .text.palimpsest_own, \"ax\", %progbits",
    ".hidden __tls_get_addr",
    ".globl __tls_get_addr",
    ".type __tls_get_addr, %function",
    "__tls_get_addr:",
    "endbr64",
    // The argument, which also aligns the stack for the call.
    "push rdi",
    "call {find}",
    "pop rdi",
    "jmp rax",
    ".size __tls_get_addr, . - __tls_get_addr",
    ".popsection",
    find = sym find_tls_get_addr,
);

/// Returns the address of the process's `__tls_get_addr`. Takes a lock of the dynamic linker the first time.
pub(crate) extern "C" fn find_tls_get_addr() -> *const c_void {
    /// `Relaxed`: of code that stays loaded, and publishes nothing else.
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let known = FOUND.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = global_symbol(c"__tls_get_addr").map_or(ptr::null_mut(), NonNull::as_ptr).cast();
    FOUND.store(found, Ordering::Relaxed);
    if found.is_null() {
        // Without it no thread-local variable can be used, not even to panic.
        std::process::abort();
    }
    found
}

/// Does what the first use of a thread-local variable would take a lock for.
pub(crate) fn prepare_thread_locals() {
    find_tls_get_addr();
}
