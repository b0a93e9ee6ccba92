//! The functions of the examples for x86-64.

// lea rax, [rdi + 1]; ret
pub(crate) const ADD_ONE: &[u8] = &[0x48, 0x8d, 0x47, 0x01, 0xc3];

// test eax, 6; mov eax, 1; ret; mov eax, 2; ret
pub(crate) const ONE_OR_TWO: &[u8] = &[0xa9, 6, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xc3, 0xb8, 2, 0, 0, 0, 0xc3];

// jmp +6
pub(crate) const TO_TWO: &[u8] = &[0xe9, 6, 0, 0, 0];
