// Exceptions, and the way to user mode. Offsets are those of `Context` in user.rs and `Frame` in trap.rs.

// Stores or loads x2 to x29, at their places in `Context` and `Frame`.
.macro x2_to_x29 op, base
    \op x2, x3, [\base, #16]
    \op x4, x5, [\base, #32]
    \op x6, x7, [\base, #48]
    \op x8, x9, [\base, #64]
    \op x10, x11, [\base, #80]
    \op x12, x13, [\base, #96]
    \op x14, x15, [\base, #112]
    \op x16, x17, [\base, #128]
    \op x18, x19, [\base, #144]
    \op x20, x21, [\base, #160]
    \op x22, x23, [\base, #176]
    \op x24, x25, [\base, #192]
    \op x26, x27, [\base, #208]
    \op x28, x29, [\base, #224]
.endm
// Stores or loads what functions keep, above the frame record of `run_user`.
.macro x19_to_x28 op
    \op x19, x20, [sp, #16]
    \op x21, x22, [sp, #32]
    \op x23, x24, [sp, #48]
    \op x25, x26, [sp, #64]
    \op x27, x28, [sp, #80]
.endm

.macro from_kernel kind
    .balign 0x80
    sub sp, sp, #272
    stp x0, x1, [sp]
    mov x1, #\kind
    b kernel_common
.endm
.set first_from_user, 1
.macro from_user kind
    .balign 0x80
    .if (\kind == 0) && first_from_user
    .global system_call_vector
system_call_vector:
    .set first_from_user, 0
    .endif
    stp x0, x1, [sp, #-16]!
    mov x1, #\kind
    b user_common
.endm

// The entry, which user mode's tables map, too: the vectors, and the code that enters and leaves the kernel. Both roots
// of the upper half map it at the same addresses, so the next instruction is found after the change of roots.
.section .entry, "ax"
.balign 2048
.global trap_vectors
trap_vectors:
    from_kernel 2
    from_kernel 2
    from_kernel 2
    from_kernel 2
    from_kernel 0
    from_kernel 1
    from_kernel 2
    from_kernel 2
    from_user 0
.global system_call_vector_end
system_call_vector_end:
    from_user 1
    from_user 2
    from_user 2
    from_user 2
    from_user 2
    from_user 2
    from_user 2

// From user mode: the stack is that of this CPU's entry area, above which its fields are (`Area` in entry.rs). The
// registers go to the context, and `run_user` returns.
.global from_user_common
from_user_common:
user_common:
    ldr x0, [sp, #16]               // the kernel's root
    msr ttbr1_el1, x0
    isb
    tlbi vmalle1
    dsb nsh
    isb
.global from_user_switched
from_user_switched:
    ldr x0, [sp, #32]               // the context
    x2_to_x29 stp, x0
    str x1, [x0, #272]
    ldp x2, x3, [sp], #16
    stp x2, x3, [x0]
    mrs x2, sp_el0
    stp x30, x2, [x0, #240]
    mrs x2, elr_el1
    mrs x3, spsr_el1
    stp x2, x3, [x0, #256]
    ldr x2, [sp, #24]               // the kernel's stack
    mov sp, x2
    x19_to_x28 ldp
    ldp x29, x30, [sp], #96
    ret
.global from_user_end
from_user_end:

// run_user(context, area): returns at the next trap from user mode.
.global run_user
.global to_user
to_user:
run_user:
    stp x29, x30, [sp, #-96]!
    x19_to_x28 stp
    mov x2, sp
    stp x0, x2, [x1, #16]
    mov sp, x1
    ldp x30, x2, [x0, #240]
    msr sp_el0, x2
    ldp x2, x3, [x0, #256]
    msr elr_el1, x2
    msr spsr_el1, x3
    x2_to_x29 ldp, x0
    ldp x0, x1, [x0]
    stp x0, x1, [sp, #-16]!
    ldr x0, [sp, #24]               // user mode's root
    msr ttbr1_el1, x0
    isb
.global to_user_switched
to_user_switched:
    // Translations of the kernel are not left behind.
    tlbi vmalle1
    dsb nsh
    isb
    ldp x0, x1, [sp], #16
    eret
.global to_user_end
to_user_end:

// From the kernel itself, on its stack.
.section .text
kernel_common:
    x2_to_x29 stp, sp
    mrs x2, elr_el1
    mrs x3, spsr_el1
    stp x30, x2, [sp, #240]
    str x3, [sp, #256]
    mov x0, sp
    bl kernel_trap
    ldr x3, [sp, #256]
    ldp x30, x2, [sp, #240]
    msr elr_el1, x2
    msr spsr_el1, x3
    x2_to_x29 ldp, sp
    ldp x0, x1, [sp]
    add sp, sp, #272
    eret

// probe_store(address, value) -> 1, or 0 if the store faults.
.global probe_store
.global probe_store_at
probe_store:
    mov x2, #1
probe_store_at:
    str x1, [x0]
    mov x0, x2
    ret
// probe_load(address) -> 1, or 0 if the load faults.
.global probe_load
.global probe_load_at
probe_load:
    mov x2, #1
probe_load_at:
    ldr x1, [x0]
    mov x0, x2
    ret
// probe_execute(address) -> 1 if the instruction at the address, a return, runs; 0 if it cannot be fetched.
.global probe_execute
probe_execute:
    stp x29, x30, [sp, #-16]!
    mov x2, x0
    mov x0, #1
    blr x2
.global probe_executed
probe_executed:
    ldp x29, x30, [sp], #16
    ret
.global probe_failed
probe_failed:
    mov x0, #0
    ret

// patch_sites() -> how many of the sites let the increment behind them run.
.global patch_sites
.balign 64
patch_sites:
    mov w0, #0
.global patch_sites_first
patch_sites_first:
.rept 56
    nop
    add w0, w0, #1
.endr
    ret
