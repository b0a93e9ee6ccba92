// From QEMU, or from PSCI's CPU_ON, at EL1 without translation, to cpu_main.

//
// The image can run at any of `SLOTS` addresses, 2 MiB from one another. What is here does not move, and addresses of
// tables are constants: `boot_base` is where this section is linked.

.set SLOTS, 128

.section .boot, "awx"
boot_begin:
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
    cbnz x0, 9f
    // The first CPU chooses the slot: the one that was asked for, or else a random one if the CPU can tell one
    // (FEAT_RNG), or else the first.
    ldr x1, boot_slot_at
    ldr x2, [x1]
    subs x2, x2, #1
    b.hs 3f
    mov x2, #0
    mrs x1, id_aa64isar0_el1
    lsr x1, x1, #60
    cbz x1, 3f
    mov x3, #10
2:  mrs x2, s3_3_c2_c4_0            // RNDR
    b.ne 3f
    mov x2, #0
    subs x3, x3, #1
    b.ne 2b
3:  and x2, x2, #SLOTS - 1
    // The image's place: memory from its start on, that much further up.
    adr x4, boot_image
    add x4, x4, x2, lsl #3
    ldr x5, boot_block
    mov x6, #0x200000
4:  str x5, [x4], #8
    add x5, x5, x6
    tst x4, #0xfff
    b.ne 4b
    // Pointers to the image, which are wherever `.rela.dyn` says: each is the address that it has in the first slot.
    lsl x2, x2, #21
    ldr x3, boot_offset
    adrp x4, rela_start
    add x4, x4, :lo12:rela_start
    sub x4, x4, x3
    adrp x5, rela_end
    add x5, x5, :lo12:rela_end
    sub x5, x5, x3
    mov w10, #1027                  // R_AARCH64_RELATIVE
5:  cmp x4, x5
    b.hs 8f
    ldp x6, x7, [x4], #16
    ldr x8, [x4], #8
    cmp x7, x10
    b.ne 7f
    subs x9, x6, x3
    csel x6, x9, x6, hs
    add x9, x8, x2
    cmp x8, x3
    csel x8, x9, x8, hs
    str x8, [x6]
    b 5b
7:  brk #1
    b 7b
    // What walks find of the image's place.
8:  dsb ish
    isb
9:  ldr x0, boot_cpu
    ldr x1, boot_stack
    mov sp, x1
    mov x29, xzr
    ldr x1, boot_entry
    blr x1
1:  b 1b

// replace_kernel_root(root, empty): the boot code's tables map by blocks what the root maps by pages, so that all
// translations of the upper half are forgotten in between. It runs at its physical address, which the lower half maps.
.global replace_kernel_root
replace_kernel_root:
    dsb ish
    msr ttbr1_el1, x1
    isb
    tlbi vmalle1
    dsb nsh
    isb
    msr ttbr1_el1, x0
    isb
    ret

.balign 8
.global boot_cpu
boot_cpu:
    .quad 0
.global boot_stack
boot_stack:
    .quad first_stack_end
boot_entry:
    .quad cpu_main
// Where QEMU puts the slot to be taken, plus one: see `asked.rs`.
boot_slot_at:
    .quad 0x42f00010
// What the image's addresses have more than the physical ones, in the first slot; and memory as boot_blocks maps it.
boot_offset:
    .quad 0xffffffff80000000
boot_block:
    .quad 0x40000701
// Both halves 48 bits, 4 KiB granule, cached inner shareable walks, 48-bit physical addresses (Arm ARM D19.2.139).
boot_tcr:
    .quad 0x5b5103510

// Maps devices and the first 1 GiB of memory at their own addresses and at the physical map, and memory at the image's
// place too, all with all rights. Used until the kernel's space is loaded.
.balign 4096
boot_low:
    .quad boot_base + 3 + (boot_blocks - boot_begin)
    .fill 511, 8, 0
boot_high:
    .fill 511, 8, 0
    .quad boot_base + 3 + (boot_blocks - boot_begin)
boot_blocks:
    .quad 0x0060000000000405
    .quad 0x40000701
    .fill 509, 8, 0
    .quad boot_base + 3 + (boot_image - boot_begin)
boot_image:
    .fill 512, 8, 0

// Where these are, for code that moves.
.section .data.rel.ro.boot, "aw"
.balign 8
.global boot_places
boot_places:
    .quad start, boot_cpu, boot_stack, replace_kernel_root
