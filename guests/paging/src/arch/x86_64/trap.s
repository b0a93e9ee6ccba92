# Interrupts and exceptions, and the way to user mode. Offsets are those of `Context` in user.rs.

# What user mode's tables have: the way in and out. It is linked and mapped at the same addresses in both roots, so that
# the change of roots goes on in the next instruction.
.section .entry, "ax"
.global trap_stubs
.balign 16
trap_stubs:
.set vector, 0
.rept 256
    .balign 16
    .if vector == 0x80
    .global system_call_stub
system_call_stub:
    .endif
    .if vector == 0x81
    .global system_call_stub_end
system_call_stub_end:
    .endif
    # Vectors with an error code: SDM volume 3, table 7-1.
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    push 0
    .endif
    .byte 0x68                      # push imm32
    .long vector
    jmp trap_common
    .set vector, vector + 1
.endr

.global from_user
from_user:
trap_common:
    # User mode may have set AC, and the kernel may have for itself: handlers touch nothing of user mode's.
    clac
    test byte ptr [rsp + 24], 3
    jz kernel_common
    # From user mode, on the entry stack. GS leads to this CPU's entry area; its offsets are those of `PerCpu`.
    swapgs
    push rax
    mov rax, gs:[8]                 # the kernel's root
    mov cr3, rax
.global from_user_switched
from_user_switched:
    mov rax, gs:[24]                # the context
    mov [rax + 16], r15
    mov [rax + 24], r14
    mov [rax + 32], r13
    mov [rax + 40], r12
    mov [rax + 48], r11
    mov [rax + 56], r10
    mov [rax + 64], r9
    mov [rax + 72], r8
    mov [rax + 80], rbp
    mov [rax + 88], rdi
    mov [rax + 96], rsi
    mov [rax + 104], rdx
    mov [rax + 112], rcx
    mov [rax + 120], rbx
    pop qword ptr [rax + 128]       # rax
    pop qword ptr [rax + 136]       # the vector, the error, and what the CPU has saved
    pop qword ptr [rax + 144]
    pop qword ptr [rax + 152]
    pop qword ptr [rax + 160]
    pop qword ptr [rax + 168]
    pop qword ptr [rax + 176]
    pop qword ptr [rax + 184]
    # Return from `run_user`.
    cld
    mov rsp, [rax + 8]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
.global from_user_end
from_user_end:

# run_user(context): returns at the next trap from user mode.
.global run_user
.global to_user
to_user:
run_user:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    mov [rdi + 8], rsp
    mov gs:[24], rdi
    mov rsp, gs:[32]                # the end of the entry stack
    push qword ptr [rdi + 184]
    push qword ptr [rdi + 176]
    push qword ptr [rdi + 168]
    push qword ptr [rdi + 160]
    push qword ptr [rdi + 152]
    push qword ptr [rdi + 128]      # rax
    mov r15, [rdi + 16]
    mov r14, [rdi + 24]
    mov r13, [rdi + 32]
    mov r12, [rdi + 40]
    mov r11, [rdi + 48]
    mov r10, [rdi + 56]
    mov r9, [rdi + 64]
    mov r8, [rdi + 72]
    mov rbp, [rdi + 80]
    mov rsi, [rdi + 96]
    mov rdx, [rdi + 104]
    mov rcx, [rdi + 112]
    mov rbx, [rdi + 120]
    mov rdi, [rdi + 88]
    mov rax, gs:[16]                # user mode's root
    swapgs
    mov cr3, rax
.global to_user_switched
to_user_switched:
    pop rax
    iretq
.global to_user_end
to_user_end:

# From the kernel itself, on its stack.
.section .text
kernel_common:
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    mov rdi, rsp
    mov rbp, rsp
    and rsp, -16
    cld
    call kernel_trap
    mov rsp, rbp
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    add rsp, 16
    iretq

# probe_store(address, value) -> 1, or 0 if the store faults.
.global probe_store
.global probe_store_at
probe_store:
    mov eax, 1
probe_store_at:
    mov [rdi], rsi
    ret
# probe_load(address) -> 1, or 0 if the load faults.
.global probe_load
.global probe_load_at
probe_load:
    mov eax, 1
probe_load_at:
    mov rdi, [rdi]
    ret
# probe_execute(address) -> 1 if the bytes at the address, a return instruction, run; 0 if they cannot be fetched.
.global probe_execute
probe_execute:
    mov eax, 1
    call rdi
.global probe_executed
probe_executed:
    ret
.global probe_failed
probe_failed:
    xor eax, eax
    ret

# patch_sites() -> how many of the sites let the increment behind them run. Site 28 lies across two pages.
.global patch_sites
.balign 4096
.skip 4096 - 2 - 28 * 7 - 2, 0xcc
patch_sites:
    xor eax, eax
.global patch_sites_first
patch_sites_first:
.rept 56
    .byte 0x0f, 0x1f, 0x44, 0, 0    # a NOP of 5 bytes
    inc eax
.endr
    ret
