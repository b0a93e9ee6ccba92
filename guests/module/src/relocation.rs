//! What the numbers of relocations mean: System V psABI for AMD64, 4.4.1; ELF for the Arm 64-bit Architecture, 5.7.

use object::elf;
use palimpsest_text::link::{Architecture, Field};

/// What a relocation asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    Nothing,
    Field(Field),
}

/// Returns what a relocation's type means, if modules may have it.
pub(crate) fn meaning(architecture: Architecture, number: u32) -> Option<Meaning> {
    let number = elf::RelocationType(number);
    let field = match architecture {
        Architecture::X86_64 => match number {
            elf::R_X86_64_NONE => return Some(Meaning::Nothing),
            elf::R_X86_64_64 => Field::Absolute8,
            elf::R_X86_64_PC32 => Field::X86Distance,
            elf::R_X86_64_PLT32 => Field::X86Call,
            elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => Field::X86Slot,
            _ => return None,
        },
        Architecture::Aarch64 => match number {
            // The old number too: 256.
            elf::R_AARCH64_NONE | elf::RelocationType(256) => return Some(Meaning::Nothing),
            elf::R_AARCH64_ABS64 => Field::Absolute8,
            elf::R_AARCH64_PREL32 => Field::Distance4,
            elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26 => Field::Aarch64Call,
            elf::R_AARCH64_ADR_PREL_PG_HI21 => Field::Aarch64Page,
            elf::R_AARCH64_ADD_ABS_LO12_NC => Field::Aarch64InPage,
            elf::R_AARCH64_LDST8_ABS_LO12_NC => Field::Aarch64Access(0),
            elf::R_AARCH64_LDST16_ABS_LO12_NC => Field::Aarch64Access(1),
            elf::R_AARCH64_LDST32_ABS_LO12_NC => Field::Aarch64Access(2),
            elf::R_AARCH64_LDST64_ABS_LO12_NC => Field::Aarch64Access(3),
            elf::R_AARCH64_LDST128_ABS_LO12_NC => Field::Aarch64Access(4),
            elf::R_AARCH64_ADR_GOT_PAGE => Field::Aarch64SlotPage,
            elf::R_AARCH64_LD64_GOT_LO12_NC => Field::Aarch64SlotInPage,
            _ => return None,
        },
        Architecture::Riscv64 => return None,
    };
    Some(Meaning::Field(field))
}

/// Returns the number of the machine in a file's header.
pub(crate) fn machine(architecture: Architecture) -> u16 {
    match architecture {
        Architecture::X86_64 => elf::EM_X86_64.0,
        Architecture::Aarch64 => elf::EM_AARCH64.0,
        Architecture::Riscv64 => elf::EM_RISCV.0,
    }
}

/// Returns how many bytes a field has.
pub(crate) fn width(field: Field) -> u64 {
    if field == Field::Absolute8 { 8 } else { 4 }
}

/// Whether the field is part of an instruction of which all begin at multiples of 4.
pub(crate) fn is_in_word(field: Field) -> bool {
    matches!(
        field,
        Field::Aarch64Call
            | Field::Aarch64Page
            | Field::Aarch64InPage
            | Field::Aarch64Access(_)
            | Field::Aarch64SlotPage
            | Field::Aarch64SlotInPage
    )
}

/// Returns what fills code between functions.
pub(crate) fn trap(architecture: Architecture) -> &'static [u8] {
    match architecture {
        Architecture::X86_64 => &[0xcc],
        // `brk #0`
        Architecture::Aarch64 => &[0, 0, 0x20, 0xd4],
        // `ebreak`
        Architecture::Riscv64 => &[0x73, 0, 0x10, 0],
    }
}
