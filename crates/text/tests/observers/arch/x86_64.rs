//! x86-64.

/// Returns a function that calls `host` and keeps a frame pointer.
pub(crate) fn call_with_frame_pointer(host: usize) -> Vec<u8> {
    [
        // push rbp; mov rbp, rsp; movabs rax, …
        &[0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8][..],
        &host.to_le_bytes(),
        // call rax; pop rbp; ret
        &[0xff, 0xd0, 0x5d, 0xc3],
    ]
    .concat()
}

/// Returns a function that calls `host` and keeps none: only call frame information tells where its return address is.
pub(crate) fn call_without_frame_pointer(host: usize) -> Vec<u8> {
    [
        // sub rsp, 8; movabs rax, …
        &[0x48, 0x83, 0xec, 0x08, 0x48, 0xb8][..],
        &host.to_le_bytes(),
        // call rax; add rsp, 8; ret
        &[0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08, 0xc3],
    ]
    .concat()
}

/// Returns a function that counts its argument down to zero.
pub(crate) fn count_down() -> Vec<u8> {
    // push rbp; mov rbp, rsp; 1: dec rdi; jnz 1b; pop rbp; ret
    vec![0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3]
}

/// CIE without its length: version 1, alignments 1 and -8, return address in 16; def_cfa rsp+8; offset 16 at -8;
/// padding.
pub(super) const FRAMELESS_CIE: [u8; 20] = [0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0, 0, 0, 0, 0];

/// advance 4; def_cfa_offset 16; padding.
pub(super) const FRAMELESS_CHANGES: [u8; 8] = [0x44, 0x0e, 16, 0, 0, 0, 0, 0];
