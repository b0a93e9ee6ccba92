# From QEMU's PVH entry (32-bit protected mode without paging; Xen's docs/misc/pvh.pandoc), and from the start-up
# interrupt of other CPUs (16-bit real mode), to 64-bit mode (SDM volume 3, 10.8.5).

.section .note.pvh, "a", @note
.balign 4
    .long 4, 4, 18                  # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long start

.section .boot, "awx"

# Copied to ap_code, since the start-up interrupt names a page below 1 MiB.
.code16
.global ap_trampoline
ap_trampoline:
    cli
    xor ax, ax
    mov ds, ax
    .byte 0x0f, 0x01, 0x16          # lgdt [disp16]
    .word 0x8000 + ap_gdtr - ap_trampoline
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xea                # far jump to 32-bit code
    .long start_protected
    .word 0x18
ap_gdtr:
    .word 31
    .long boot_gdt
.global ap_trampoline_end
ap_trampoline_end:

.code32
.global start
start:
    cli
    lgdt [boot_gdtr]
    .byte 0xea
    .long start_protected
    .word 0x18
start_protected:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, offset boot_top
    mov cr3, eax
    mov eax, cr4
    or eax, 0x20                    # PAE; without PGE, since no translation may outlive a change of roots
    mov cr4, eax
    mov ecx, 0xc0000080             # EFER: LME, NXE
    rdmsr
    or eax, 0x900
    wrmsr
    mov eax, cr0
    or eax, 0x80010000              # PG, WP
    mov cr0, eax
    .byte 0xea
    .long start_long
    .word 0x08

.code64
start_long:
    mov rdi, [boot_cpu]
    mov rsp, [boot_stack]
    movabs rax, offset cpu_main
    call rax
    ud2

.balign 8
.global boot_cpu
boot_cpu:
    .quad 0
.global boot_stack
boot_stack:
    .quad first_stack_end
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff        # 0x08: 64-bit code
    .quad 0x00cf92000000ffff        # 0x10: data
    .quad 0x00cf9a000000ffff        # 0x18: 32-bit code
boot_gdtr:
    .word 31
    .long boot_gdt

# Maps the first 4 GiB at 0 and at the physical map, and the first 1 GiB at the image's place, all with all rights. Used
# until the kernel's space is loaded.
.balign 4096
boot_top:
    .quad boot_low + 3
    .fill 510, 8, 0
    .quad boot_high + 3
boot_low:
    .quad 0x00000083, 0x40000083, 0x80000083, 0xc0000093
    .fill 508, 8, 0
boot_high:
    .quad 0x00000083, 0x40000083, 0x80000083, 0xc0000093
    .fill 506, 8, 0
    .quad 0x00000083
    .quad 0
