// Exceptions, and the way to user mode. Offsets are those of `Context` in user.rs and `Frame` in trap.rs.

.macro from_kernel kind
    .balign 0x80
    sub sp, sp, #272
    stp x0, x1, [sp]
    mov x1, #\kind
    b kernel_common
.endm
.macro from_user kind
    .balign 0x80
    stp x0, x1, [sp, #-16]!
    mov x1, #\kind
    b user_common
.endm

.section .text
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
    from_user 1
    from_user 2
    from_user 2
    from_user 2
    from_user 2
    from_user 2
    from_user 2

kernel_common:
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
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
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    ldp x0, x1, [sp]
    add sp, sp, #272
    eret

// From user mode: the registers go to the context that `run_user` has left on the stack, and `run_user` returns.
user_common:
    ldr x0, [sp, #16]
    stp x2, x3, [x0, #16]
    stp x4, x5, [x0, #32]
    stp x6, x7, [x0, #48]
    stp x8, x9, [x0, #64]
    stp x10, x11, [x0, #80]
    stp x12, x13, [x0, #96]
    stp x14, x15, [x0, #112]
    stp x16, x17, [x0, #128]
    stp x18, x19, [x0, #144]
    stp x20, x21, [x0, #160]
    stp x22, x23, [x0, #176]
    stp x24, x25, [x0, #192]
    stp x26, x27, [x0, #208]
    stp x28, x29, [x0, #224]
    str x1, [x0, #272]
    ldp x2, x3, [sp], #32
    stp x2, x3, [x0]
    mrs x2, sp_el0
    stp x30, x2, [x0, #240]
    mrs x2, elr_el1
    mrs x3, spsr_el1
    stp x2, x3, [x0, #256]
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp x29, x30, [sp], #96
    ret

// run_user(context): returns at the next trap from user mode.
.global run_user
run_user:
    stp x29, x30, [sp, #-96]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    str x0, [sp, #-16]!
    ldp x30, x2, [x0, #240]
    msr sp_el0, x2
    ldp x2, x3, [x0, #256]
    msr elr_el1, x2
    msr spsr_el1, x3
    ldp x2, x3, [x0, #16]
    ldp x4, x5, [x0, #32]
    ldp x6, x7, [x0, #48]
    ldp x8, x9, [x0, #64]
    ldp x10, x11, [x0, #80]
    ldp x12, x13, [x0, #96]
    ldp x14, x15, [x0, #112]
    ldp x16, x17, [x0, #128]
    ldp x18, x19, [x0, #144]
    ldp x20, x21, [x0, #160]
    ldp x22, x23, [x0, #176]
    ldp x24, x25, [x0, #192]
    ldp x26, x27, [x0, #208]
    ldp x28, x29, [x0, #224]
    ldp x0, x1, [x0]
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
