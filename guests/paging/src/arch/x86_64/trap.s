# Interrupts and exceptions, and the way to user mode. Offsets are those of `Context` in user.rs.

.section .text
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
    test byte ptr [rsp + 24], 3
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
    jz 1f
    # From user mode: the registers are in the Context now, whose end is what RSP0 names. Return from `run_user`.
    mov rsp, [rsp - 8]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
.global from_user_end
from_user_end:
1:  mov rdi, rsp
    mov rbp, rsp
    and rsp, -16
    cld
    call kernel_trap
    mov rsp, rbp
    jmp 2f

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
    lea rsp, [rdi + 16]
2:  pop r15
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
.global to_user_end
to_user_end:

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
