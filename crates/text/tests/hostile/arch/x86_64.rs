/// `mov eax, number; ret`
pub(crate) fn return_number(number: u16) -> Vec<u8> {
    let [low, high] = number.to_le_bytes();
    vec![0xb8, low, high, 0, 0, 0xc3]
}
