# From QEMU's PVH entry (32-bit protected mode without paging; Xen's docs/misc/pvh.pandoc) to C in 64-bit mode (SDM
# volume 3, 10.8.5), and the handler of page faults.
.intel_syntax noprefix

.section .note.pvh, "a", @note
.balign 4
    .long 4, 4, 18                  # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long start

.section .text.boot, "ax"
.code32
.global start
start:
    cli
    lgdt [gdtr]
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, offset boot_top
    mov cr3, eax
    mov eax, cr4
    or eax, 0x20                    # PAE
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
    mov rsp, offset stack_end
    call arch_begin
    call kernel_main
    ud2

# Every exception: those without an error code get one of 0.
.macro without_code vector
.balign 16
    push 0
    push \vector
    jmp trapped
.endm
.macro with_code vector
.balign 16
    push \vector
    jmp trapped
.endm
.balign 16
.global traps
traps:
    without_code 0
    without_code 1
    without_code 2
    without_code 3
    without_code 4
    without_code 5
    without_code 6
    without_code 7
    with_code 8
    without_code 9
    with_code 10
    with_code 11
    with_code 12
    with_code 13
    with_code 14

# On the stack: vector, error code, RIP, CS, flags, RSP, SS.
trapped:
    push rax
    push rcx
    push rdx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push rbx
    mov rbx, rsp
    mov rdi, [rsp + 80]             # vector
    mov rsi, [rsp + 88]             # error code
    lea rdx, [rsp + 96]             # where RIP is kept
    and rsp, -16
    call arch_trap
    mov rsp, rbx
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rax
    add rsp, 16
    iretq

# Between `probes` and `probes_end`, a fault that nobody resolves goes on at `probe_failed`.
.global probes, probes_end, probe_failed
probes:
.global arch_load
arch_load:
    mov rax, [rdi]
    mov [rsi], rax
    mov eax, 1
    ret
.global arch_store
arch_store:
    mov [rdi], rsi
    mov eax, 1
    ret
probes_end:
probe_failed:
    xor eax, eax
    ret

# A call that cannot fetch faults at its target, with the address to return to on the stack.
.global arch_call
arch_call:
    call rdi
    mov eax, 1
    ret
.global arch_call_return
.set arch_call_return, arch_call + 2

.section .rodata
.balign 8
gdt:
    .quad 0
    .quad 0x00af9a000000ffff        # 0x08: 64-bit code
    .quad 0x00cf92000000ffff        # 0x10: data
gdtr:
    .word 23
    .long gdt

# Maps the first GiB with all rights, where it is and at DIRECT (kernel.h), until the kernel's space is loaded.
.section .data
.balign 4096
boot_top:
    .quad boot_second + 3
    .fill 127, 8, 0
    .quad boot_second + 3
    .fill 383, 8, 0
boot_second:
    .quad boot_third + 3
    .fill 511, 8, 0
boot_third:
    .set at, 0
    .rept 512
    .quad at + 0x83
    .set at, at + 0x200000
    .endr

.section .bss
.balign 16
    .skip 65536
stack_end:

.section .note.GNU-stack, "", %progbits
