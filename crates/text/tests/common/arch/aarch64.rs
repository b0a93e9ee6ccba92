const NOP: u32 = 0xD503_201F;
const RET: u32 = 0xD65F_03C0;

fn bytes(instructions: impl IntoIterator<Item = u32>) -> Vec<u8> {
    instructions.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Returns a program of `len` bytes (at least 20, rounded down to instructions) that returns `id`, after as many NOPs
/// as fit.
pub(crate) fn identity(id: u64, len: usize) -> Vec<u8> {
    let nops = len.max(20) / 4 - 5;
    let moves = (0..4_u32).map(|part| {
        // movz/movk x0, #imm16, lsl #(16 * part)
        let opcode = if part == 0 { 0xD280_0000 } else { 0xF280_0000 };
        let half = (id >> (16 * part)) as u32 & 0xFFFF;
        opcode | part << 21 | half << 5
    });
    bytes(std::iter::repeat_n(NOP, nops).chain(moves).chain([RET]))
}

/// Returns a function of a pointer that loads a byte from it and returns that; the offset of the load; the offset where
/// it continues after a fault of the load, and returns -1.
pub(crate) fn faulting_load() -> (Vec<u8>, u32, u32) {
    // 0: ldrb w0, [x0]; 4: ret; 8: mov x0, #-1; 12: ret
    (bytes([0x3940_0000, RET, 0x9280_0000, RET]), 0, 8)
}

/// Returns the interrupted instruction's address in a signal context.
pub(crate) fn program_counter(context: &mut libc::ucontext_t) -> &mut u64 {
    &mut context.uc_mcontext.pc
}
