//! Machine code of the programs under test, by instruction set.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod isa;

pub(crate) use self::isa::*;

/// Returns an `.eh_frame` section for the code of [`call_without_frame_pointer`] at `address`.
pub(crate) fn eh_frame_without_frame_pointer(address: usize, len: usize) -> Vec<u8> {
    let fde_len = 4 + 2 * size_of::<usize>() + FRAMELESS_CHANGES.len();
    [
        &(FRAMELESS_CIE.len() as u32).to_ne_bytes()[..],
        &FRAMELESS_CIE,
        &(fde_len as u32).to_ne_bytes(),
        &(FRAMELESS_CIE.len() as u32 + 8).to_ne_bytes(),
        &address.to_ne_bytes(),
        &len.to_ne_bytes(),
        &FRAMELESS_CHANGES,
    ]
    .concat()
}
