# From QEMU's PVH entry (32-bit protected mode without paging; Xen's docs/misc/pvh.pandoc), and from the start-up
# interrupt of other CPUs (16-bit real mode), to 64-bit mode (SDM volume 3, 10.8.5).
#
# The image can run at any of `SLOTS` addresses, 2 MiB from one another. What is here does not move, and its 32-bit
# addresses are constants: `boot_base` is where this section is linked.

.set SLOTS, 128
# Where QEMU puts the slot to be taken, plus one: see `asked.rs`.
.set SLOT_AT, 0x2f00010

.section .note.pvh, "a", @note
.balign 4
    .long 4, 4, 18                  # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long boot_base + (start - boot_begin)

.section .boot, "awx"
boot_begin:

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
    .long boot_base + (start_protected - boot_begin)
    .word 0x18
ap_gdtr:
    .word 31
    .long boot_base + (boot_gdt - boot_begin)
.global ap_trampoline_end
ap_trampoline_end:

.code32
.global start
start:
    cli
    .byte 0x0f, 0x01, 0x15          # lgdt [disp32]
    .long boot_base + (boot_gdtr - boot_begin)
    .byte 0xea
    .long boot_base + (start_protected - boot_begin)
    .word 0x18
start_protected:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    .byte 0xb8                      # mov eax, imm32
    .long boot_base + (boot_top - boot_begin)
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
    .long boot_base + (start_long - boot_begin)
    .word 0x08

.code64
start_long:
    cmp qword ptr [rip + boot_cpu], 0
    jne 9f
    # The first CPU chooses the slot: the one that was asked for, or else a random one if the CPU can tell one (SDM
    # volume 1, 7.3.17), or else the first.
    mov eax, SLOT_AT
    mov rbx, [rax]
    sub rbx, 1
    jnc 3f
    xor ebx, ebx
    mov eax, 1
    cpuid
    xor ebx, ebx
    bt ecx, 30
    jnc 3f
    mov ecx, 10                     # as often as Intel advises to try
2:  rdrand rbx
    jc 3f
    dec ecx
    jnz 2b
    xor ebx, ebx
3:  and ebx, SLOTS - 1
    # The image's place: memory from 0 on, that much further up.
    lea rdi, [rip + boot_image]
    lea rdi, [rdi + rbx * 8]
    mov eax, 0x83
4:  mov [rdi], rax
    add rax, 0x200000
    add rdi, 8
    test edi, 0xfff
    jnz 4b
    # Pointers to the image, which are wherever `.rela.dyn` says: each is the address that it has in the first slot.
    shl rbx, 21
    mov rdx, 0xffffffff80000000
    lea rsi, [rip + rela_start]
    sub rsi, rdx
    lea rcx, [rip + rela_end]
    sub rcx, rdx
5:  cmp rsi, rcx
    jae 8f
    cmp dword ptr [rsi + 8], 8      # R_X86_64_RELATIVE
    jne 7f
    mov rdi, [rsi]
    mov rax, rdi
    sub rax, rdx
    cmovnc rdi, rax
    mov rax, [rsi + 16]
    cmp rax, rdx
    jb 6f
    add rax, rbx
6:  mov [rdi], rax
    add rsi, 24
    jmp 5b
7:  ud2
8:
9:  mov rdi, [rip + boot_cpu]
    mov rsp, [rip + boot_stack]
    call [rip + boot_entry]
    ud2

.balign 8
.global boot_cpu
boot_cpu:
    .quad 0
.global boot_stack
boot_stack:
    .quad first_stack_end
boot_entry:
    .quad cpu_main
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff        # 0x08: 64-bit code
    .quad 0x00cf92000000ffff        # 0x10: data
    .quad 0x00cf9a000000ffff        # 0x18: 32-bit code
boot_gdtr:
    .word 31
    .long boot_base + (boot_gdt - boot_begin)

# Maps the first 4 GiB at 0 and at the physical map, and memory at the image's slot, all with all rights. Used until
# the kernel's space is loaded. Entries that lead to tables are their addresses, plus 3.
.balign 4096
boot_top:
    .long boot_base + 3 + (boot_low - boot_begin), 0
    .fill 510, 8, 0
    .long boot_base + 3 + (boot_high - boot_begin), 0
boot_low:
    .quad 0x00000083, 0x40000083, 0x80000083, 0xc0000093
    .fill 508, 8, 0
boot_high:
    .quad 0x00000083, 0x40000083, 0x80000083, 0xc0000093
    .fill 506, 8, 0
    .long boot_base + 3 + (boot_image - boot_begin), 0
    .quad 0
boot_image:
    .fill 512, 8, 0

# Where these are, for code that moves.
.section .data.rel.ro.boot, "aw"
.balign 8
.global boot_places
boot_places:
    .quad ap_trampoline, ap_trampoline_end, boot_cpu, boot_stack
