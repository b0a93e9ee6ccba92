//! AArch64.

fn code(instructions: &[u32]) -> Vec<u8> {
    instructions.iter().flat_map(|instruction| instruction.to_le_bytes()).collect()
}

/// Returns a function that calls `host` and keeps a frame pointer.
pub(crate) fn call_with_frame_pointer(host: usize) -> Vec<u8> {
    let mut code = code(&[
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9100_03fd, // mov x29, sp
        0x5800_0090, // ldr x16, +16
        0xd63f_0200, // blr x16
        0xa8c1_7bfd, // ldp x29, x30, [sp], #16
        0xd65f_03c0, // ret
    ]);
    code.extend(host.to_le_bytes());
    code
}

/// Returns a function that calls `host` and keeps none: only call frame information tells where its return address is.
pub(crate) fn call_without_frame_pointer(host: usize) -> Vec<u8> {
    let mut code = code(&[
        0xf81f_0ffe, // str x30, [sp, #-16]!
        0x5800_00b0, // ldr x16, +20
        0xd63f_0200, // blr x16
        0xf841_07fe, // ldr x30, [sp], #16
        0xd65f_03c0, // ret
        0xd420_0000, // brk #0
    ]);
    code.extend(host.to_le_bytes());
    code
}

/// Returns a function that counts its argument down to zero.
pub(crate) fn count_down() -> Vec<u8> {
    code(&[
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9100_03fd, // mov x29, sp
        0xf100_0400, // 1: subs x0, x0, #1
        0x54ff_ffe1, // b.ne 1b
        0xa8c1_7bfd, // ldp x29, x30, [sp], #16
        0xd65f_03c0, // ret
    ])
}

/// CIE without its length: version 1, alignments 4 and -8, return address in 30; def_cfa sp+0; padding.
pub(super) const FRAMELESS_CIE: [u8; 20] = [0, 0, 0, 0, 1, 0, 4, 0x78, 30, 0x0c, 31, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// advance 4; def_cfa_offset 16; offset x30 at -16; padding.
pub(super) const FRAMELESS_CHANGES: [u8; 8] = [0x41, 0x0e, 16, 0x9e, 2, 0, 0, 0];
