// From QEMU's entry (EL1, without translation) to C with translation (Arm ARM, D8), and the handler of aborts.

.section .text.boot, "ax"
.global start
start:
    // Translation by the tables below: Arm ARM D24.2, MAIR_EL1, TCR_EL1, TTBR0_EL1, SCTLR_EL1.
    ldr x0, =0x04ff                 // type 0: normal, write-back; type 1: device, nGnRE
    msr mair_el1, x0
    ldr x0, =0x200803510            // T0SZ 16, write-back, inner shareable, 4 KiB, EPD1, IPS of 40 bits
    msr tcr_el1, x0
    adrp x0, boot_top
    add x0, x0, :lo12:boot_top
    msr ttbr0_el1, x0
    dsb ish
    tlbi vmalle1
    dsb ish
    isb
    ldr x0, =0x30d01805             // M, C, I, SPAN, and what is always set
    msr sctlr_el1, x0
    isb
    adrp x0, vectors
    add x0, x0, :lo12:vectors
    msr vbar_el1, x0
    isb
    adrp x0, stack_end
    add x0, x0, :lo12:stack_end
    mov sp, x0
    bl kernel_main
    b .

// Arm ARM D1.3.1: sixteen entries of 128 bytes. All exceptions come here from EL1 with its own stack.
.balign 2048
vectors:
.rept 16
    b trapped
    .balign 128
.endr

trapped:
    sub sp, sp, #176
    stp x0, x1, [sp]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x30, [sp, #144]
    mrs x0, elr_el1
    mrs x1, spsr_el1
    stp x0, x1, [sp, #160]
    mov x0, sp
    bl arch_trap
    ldp x0, x1, [sp, #160]
    msr elr_el1, x0
    msr spsr_el1, x1
    ldp x0, x1, [sp]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x30, [sp, #144]
    add sp, sp, #176
    eret

// Between `probes` and `probes_end`, a fault that nobody resolves goes on at `probe_failed`.
.global probes, probes_end, probe_failed
probes:
.global arch_load
arch_load:
    ldr x2, [x0]
    str x2, [x1]
    mov w0, #1
    ret
.global arch_store
arch_store:
    str x1, [x0]
    mov w0, #1
    ret
probes_end:
probe_failed:
    mov w0, #0
    ret

// A call that cannot fetch faults at its target, with the address to return to in x30.
.global arch_call
arch_call:
    stp x29, x30, [sp, #-16]!
    blr x0
.global arch_call_return
arch_call_return:
    mov w0, #1
    ldp x29, x30, [sp], #16
    ret
.global arch_call_failed
arch_call_failed:
    mov w0, #0
    ldp x29, x30, [sp], #16
    ret

// Maps the first two GiB, devices and memory, with all rights of EL1, where they are and at DIRECT (kernel.h), until
// the kernel's space is loaded.
.section .data
.balign 4096
boot_top:
    .quad boot_second + 3
    .fill 127, 8, 0
    .quad boot_second + 3
    .fill 383, 8, 0
boot_second:
    .quad 0x0040000000000405        // device, not for EL0 to run
    .quad 0x0040000040000701        // memory
    .fill 510, 8, 0

.section .bss
.balign 16
    .skip 65536
stack_end:

.section .note.GNU-stack, "", %progbits
