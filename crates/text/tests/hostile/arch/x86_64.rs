/// `mov eax, number; ret`
pub(crate) fn return_number(number: u16) -> Vec<u8> {
    let [low, high] = number.to_le_bytes();
    vec![0xb8, low, high, 0, 0, 0xc3]
}

/// Returns a NOP of a jump's length, and a jump over `skipped` bytes behind it.
pub(crate) fn nop_and_jump(skipped: u8) -> (Vec<u8>, Vec<u8>) {
    (vec![0x0f, 0x1f, 0x44, 0, 0], vec![0xe9, skipped, 0, 0, 0])
}
