//! x86-64, System V ABI 3.2.

use super::{CURRENT, Entrance};

/// Programs per run.
pub(crate) const PROGRAMS: u64 = 3000;

/// `rbx`, `rbp`, `r12` to `r15`.
pub(crate) const KEPT: usize = 6;

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
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi + 144], rsp",
        "mov rbx, [rdi + 48]",
        "mov rbp, [rdi + 56]",
        "mov r12, [rdi + 64]",
        "mov r13, [rdi + 72]",
        "mov r14, [rdi + 80]",
        "mov r15, [rdi + 88]",
        "mov rax, [rdi]",
        "mov rsp, [rdi + 8]",
        "mov rsi, [rdi + 24]",
        "mov r9, [rdi + 152]",
        "mov rdi, [rdi + 16]",
        "call rax",
        "lea rdi, [rip + {current}]",
        "mov rdi, [rdi]",
        "mov [rdi + 32], rax",
        "mov [rdi + 152], rdx",
        "mov [rdi + 40], rsp",
        "mov [rdi + 96], rbx",
        "mov [rdi + 104], rbp",
        "mov [rdi + 112], r12",
        "mov [rdi + 120], r13",
        "mov [rdi + 128], r14",
        "mov [rdi + 136], r15",
        "mov rsp, [rdi + 144]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        current = sym CURRENT,
    )
}

const _: () = assert!(std::mem::offset_of!(Entrance, kept_after) == 96);
const _: () = assert!(std::mem::offset_of!(Entrance, own_stack) == 144);
const _: () = assert!(std::mem::offset_of!(Entrance, gauge) == 152);
