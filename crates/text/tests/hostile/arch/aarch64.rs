/// `movz w0, #number; ret`
pub(crate) fn return_number(number: u16) -> Vec<u8> {
    let movz = 0x5280_0000 | u32::from(number) << 5;
    [movz, 0xd65f_03c0].into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Returns a NOP, and a jump over `skipped` bytes behind it.
pub(crate) fn nop_and_jump(skipped: u8) -> (Vec<u8>, Vec<u8>) {
    let jump = 0x1400_0000 | (u32::from(skipped) / 4 + 1);
    (0xd503_201f_u32.to_le_bytes().to_vec(), jump.to_le_bytes().to_vec())
}
