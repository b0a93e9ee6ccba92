//! Call frame information for code that was generated without any.

use gimli::{
    Encoding, Format, RunTimeEndian,
    write::{Address, CommonInformationEntry, EhFrame, EndianVec, FrameDescriptionEntry, FrameTable},
};

use super::arch;
use crate::address::CodeAddress;

/// Size of a pointer in bytes.
pub(super) const ADDRESS_BYTES: u8 = size_of::<usize>() as u8;

/// Returns the byte order of the machine this runs on.
pub(super) fn native_endian() -> RunTimeEndian {
    if cfg!(target_endian = "little") { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

/// Describes a function at `address`, `len` bytes long, that begins with the frame-pointer prologue of the architecture
/// and keeps the frame pointer until its epilogue.
///
/// The result is the content of an `.eh_frame` section as [`Loaded`](super::Loaded) wants it: one CIE and one FDE with
/// absolute pointers, no terminator. The prologue must be the first instructions, exactly as the platform's compilers
/// write it: `push rbp; mov rbp, rsp` (`55 48 89 e5`) on x86-64, `stp x29, x30, [sp, #-16]!; mov x29, sp` on AArch64.
/// Unwinding is then right at every call and at every instruction but the last ones of an epilogue, which are not
/// described: only a debugger or a profiler can stop there.
///
/// `len` is in bytes. At most the first 4 GiB of a function are described: more than a branch reaches on either
/// architecture.
#[must_use]
pub fn frame_pointer_eh_frame(address: CodeAddress, len: usize) -> Vec<u8> {
    let length = u32::try_from(len).unwrap_or(u32::MAX);
    let mut cie = CommonInformationEntry::new(
        Encoding { format: Format::Dwarf32, version: 1, address_size: ADDRESS_BYTES },
        arch::CODE_ALIGNMENT,
        arch::DATA_ALIGNMENT,
        arch::RETURN_ADDRESS,
    );
    for instruction in arch::ON_ENTRY {
        cie.add_instruction(instruction);
    }
    let mut fde = FrameDescriptionEntry::new(Address::Constant(address.get() as u64), length);
    for (offset, instruction) in arch::PROLOGUE {
        fde.add_instruction(offset, instruction);
    }
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie);
    table.add_fde(cie, fde);
    let mut section = EhFrame(EndianVec::new(native_endian()));
    // Cannot fail: the instructions are constants, which unit tests encode, and a vector takes any length.
    table.write_eh_frame(&mut section).expect("constant call frame instructions are encodable");
    section.0.into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each record is a length, then that many bytes; the whole is a multiple of the pointer size.
    #[test]
    fn holds_one_cie_and_one_fde_without_a_terminator() {
        let section = frame_pointer_eh_frame(CodeAddress::new(0x7f12_3400_0040), 0x123);
        let word = |at: usize| u32::from_ne_bytes(section[at..at + 4].try_into().expect("four bytes")) as usize;
        assert_eq!(word(4), 0, "the first record is a CIE");
        let fde = 4 + word(0);
        assert_eq!(word(fde + 4), fde + 4, "distance back to the CIE");
        assert_eq!(fde + 4 + word(fde), section.len());
        assert_eq!(section.len() % usize::from(ADDRESS_BYTES), 0);
        assert_eq!(section[fde + 8..fde + 16], 0x7f12_3400_0040_usize.to_ne_bytes());
        assert_eq!(section[fde + 16..fde + 24], 0x123_usize.to_ne_bytes());
    }

    #[test]
    fn is_the_expected_table_byte_by_byte() {
        let section = frame_pointer_eh_frame(CodeAddress::new(0x1122_3344_5566_7788), 0x99);
        assert_eq!(section, arch::EXPECTED_SECTION);
    }
}
