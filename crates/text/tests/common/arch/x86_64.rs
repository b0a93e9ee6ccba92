/// Returns a program of `len` bytes (at least 11) that returns `id`, after as many NOPs as fit.
pub(crate) fn identity(id: u64, len: usize) -> Vec<u8> {
    let mut code = vec![0x90; len.max(11) - 11];
    // mov rax, imm64; ret
    code.extend([0x48, 0xB8]);
    code.extend(id.to_le_bytes());
    code.push(0xC3);
    code
}

/// Returns a function of a pointer that loads a byte from it and returns that; the offset of the load; the offset where
/// it continues after a fault of the load, and returns -1.
pub(crate) fn faulting_load() -> (Vec<u8>, u32, u32) {
    // 0: movzx eax, byte [rdi]; 3: ret; 4: mov rax, -1; 11: ret
    (vec![0x0F, 0xB6, 0x07, 0xC3, 0x48, 0xC7, 0xC0, 0xFF, 0xFF, 0xFF, 0xFF, 0xC3], 0, 4)
}

/// Returns the interrupted instruction's address in a signal context.
pub(crate) fn program_counter(context: &mut libc::ucontext_t) -> &mut u64 {
    let register = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    // SAFETY: `i64` and `u64` have the same layout, and every value is valid for both.
    unsafe { &mut *std::ptr::from_mut(register).cast() }
}
