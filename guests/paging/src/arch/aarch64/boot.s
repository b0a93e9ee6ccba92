// From QEMU, or from PSCI's CPU_ON, at EL1 without translation, to cpu_main.

.section .boot, "awx"
.global start
start:
    msr daifset, #15
    mov x1, #0xff                   // MAIR: 0 is write-back memory, 1 devices
    msr mair_el1, x1
    ldr x1, boot_tcr
    msr tcr_el1, x1
    adr x1, boot_low
    msr ttbr0_el1, x1
    adr x1, boot_high
    msr ttbr1_el1, x1
    dsb sy
    tlbi vmalle1
    dsb sy
    isb
    mrs x1, sctlr_el1
    mov x2, #0x1005                 // M, C, I
    orr x1, x1, x2
    msr sctlr_el1, x1
    isb
    ldr x0, boot_cpu
    ldr x1, boot_stack
    mov sp, x1
    mov x29, xzr
    ldr x1, boot_entry
    blr x1
1:  b 1b

.balign 8
.global boot_cpu
boot_cpu:
    .quad 0
.global boot_stack
boot_stack:
    .quad first_stack_end
boot_entry:
    .quad cpu_main
// Both halves 48 bits, 4 KiB granule, cached inner shareable walks, 48-bit physical addresses (Arm ARM D19.2.139).
boot_tcr:
    .quad 0x5b5103510

// Maps devices and the first 1 GiB of memory at their own addresses and at the physical map, and memory at the image's
// place too, all with all rights. Used until the kernel's space is loaded.
.balign 4096
boot_low:
    .quad boot_blocks + 3
    .fill 511, 8, 0
boot_high:
    .fill 511, 8, 0
    .quad boot_blocks + 3
boot_blocks:
    .quad 0x0060000000000405
    .quad 0x40000701
    .fill 509, 8, 0
    .quad 0x40000701
