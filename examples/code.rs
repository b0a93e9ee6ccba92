//! A few functions as bytes, for both architectures, so that the examples need no compiler.

#![forbid(unsafe_code)]

/// `extern "C" fn(u64) -> u64` that adds one.
pub const ADD_ONE: &[u8] = if cfg!(target_arch = "x86_64") {
    // lea rax, [rdi + 1]; ret
    &[0x48, 0x8d, 0x47, 0x01, 0xc3]
} else {
    // add x0, x0, #1; ret
    &[0x00, 0x04, 0x00, 0x91, 0xc0, 0x03, 0x5f, 0xd6]
};

/// `extern "C" fn() -> u32` with an instruction in front that does nothing: as it is, it returns 1.
pub const ONE_OR_TWO: &[u8] = if cfg!(target_arch = "x86_64") {
    // test eax, 6; mov eax, 1; ret; mov eax, 2; ret
    &[0xa9, 6, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xc3, 0xb8, 2, 0, 0, 0, 0xc3]
} else {
    // nop; mov w0, #1; ret; mov w0, #2; ret
    &[
        0x1f, 0x20, 0x03, 0xd5, 0x20, 0x00, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6, 0x40, 0x00, 0x80, 0x52, 0xc0, 0x03,
        0x5f, 0xd6,
    ]
};

/// What may stand in front of [`ONE_OR_TWO`] instead: a jump to its other half.
pub const TO_TWO: &[u8] = if cfg!(target_arch = "x86_64") {
    // jmp +6
    &[0xe9, 6, 0, 0, 0]
} else {
    // b +12
    &[0x03, 0x00, 0x00, 0x14]
};
