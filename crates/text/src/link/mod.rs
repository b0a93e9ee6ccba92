//! Puts addresses into code, as every compiler that places its output in packs must.
//!
//! | part | what it does |
//! |---|---|
//! | [`Field`] | the places for addresses in code and data, each with the name of its ELF relocation |
//! | [`Encoder`] | how one instruction set encodes them, and its *veneer*: a jump for calls whose callee is too far |
//! | [`Islands`] | where veneers and address slots stand behind a function's code |
//!
//! The encoders are arithmetic on bytes and work for every instruction set on every machine, also without the feature
//! `std`.
//!
//! ```
//! use palimpsest_text::link::{self, Architecture, Field, Misfit};
//!
//! // `call callee` at 0x1000, five bytes long: the field is the last four, and counts from its own end.
//! let encoder = link::encoder(Architecture::X86_64);
//! let mut code = [0xE8, 0, 0, 0, 0];
//! link::patch(encoder, Field::X86Call, &mut code[1..], 0x1001, 0x2000 - 4)?;
//! assert_eq!(code, [0xE8, 0xFB, 0x0F, 0, 0]);
//! // Too far for a direct call: a veneer has to stand between.
//! let far = link::patch(encoder, Field::X86Call, &mut code[1..], 0x1001, 0x7F00_0000_0000);
//! assert!(matches!(far, Err(Misfit::Distance { .. })));
//! # Ok::<(), Misfit>(())
//! ```

mod arch;
#[cfg(feature = "std")]
mod islands;

pub use arch::encoder;
#[cfg(feature = "std")]
pub use islands::{Islands, Reference};

/// An instruction set with an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// x86-64.
    X86_64,
    /// AArch64.
    Aarch64,
    /// RISC-V with 64 bits.
    Riscv64,
}

/// A place for an address, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The address in 4 bytes.
    Absolute4,
    /// The address in 8 bytes.
    Absolute8,
    /// The distance from the field in 4 bytes of data (`R_AARCH64_PREL32`).
    Distance4,
    /// The distance from the field in 4 bytes (`R_X86_64_PC32`).
    X86Distance,
    /// The same, perhaps in a call (`R_X86_64_PLT32`).
    X86Call,
    /// The distance from the field to a slot that holds the address (`R_X86_64_GOTPCREL`).
    X86Slot,
    /// `b` or `bl` (`R_AARCH64_CALL26`).
    Aarch64Call,
    /// `adrp` (`R_AARCH64_ADR_PREL_PG_HI21`).
    Aarch64Page,
    /// `add` with the address's low 12 bits (`R_AARCH64_ADD_ABS_LO12_NC`).
    Aarch64InPage,
    /// A load or store with the address's low 12 bits, of 2 to this power bytes, at most 4
    /// (`R_AARCH64_LDST8_ABS_LO12_NC` to `R_AARCH64_LDST128_ABS_LO12_NC`).
    Aarch64Access(u8),
    /// `adrp` of a slot (`R_AARCH64_ADR_GOT_PAGE`).
    Aarch64SlotPage,
    /// `ldr` of a slot (`R_AARCH64_LD64_GOT_LO12_NC`).
    Aarch64SlotInPage,
    /// `auipc` and `jalr` (`R_RISCV_CALL_PLT`).
    RiscvCall,
    /// `auipc` (`R_RISCV_PCREL_HI20`).
    RiscvHigh,
    /// `auipc` of a slot (`R_RISCV_GOT_HI20`).
    RiscvSlotHigh,
    /// The low half for an `auipc` elsewhere (`R_RISCV_PCREL_LO12_I`).
    RiscvLow,
}

/// What a field needs, beyond the symbol's own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The field holds the address, or the distance to it; no veneer may stand between.
    Value,
    /// A call or tail call: a veneer may stand between when the callee is too far.
    Call,
    /// The field refers to an 8-byte slot that holds the address (a "GOT" entry).
    Slot,
    /// The low half of the address whose high half is in another instruction.
    LowHalf,
    /// Code in packs cannot contain it.
    Unsupported,
}

/// Why an address does not go into a field. The field is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The distance from the field is above `reach` bytes.
    Distance {
        /// Farthest distance, in bytes, that the field expresses.
        reach: u64,
    },
    /// The field holds an absolute address of 32 bits.
    Absolute32,
    /// The target is not a multiple of this many bytes.
    Alignment(u64),
    /// The code ends before the field does.
    Truncated {
        /// Bytes that the field occupies.
        needed: usize,
    },
    /// The field does not belong to this instruction set.
    Unsupported,
}

impl core::fmt::Display for Misfit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Distance { reach } => write!(f, "the target is more than {reach:#x} bytes away"),
            Self::Absolute32 => f.write_str("the target is not below 4 GiB"),
            Self::Alignment(align) => write!(f, "the target is not a multiple of {align} bytes"),
            Self::Truncated { needed } => write!(f, "the code ends within the field of {needed} bytes"),
            Self::Unsupported => f.write_str("the field does not belong to this instruction set"),
        }
    }
}

impl core::error::Error for Misfit {}

/// The encoder of one instruction set.
pub trait Encoder: Send + Sync + core::fmt::Debug {
    /// Returns what `field` needs, given the code that precedes it.
    fn role(&self, field: Field, before: &[u8]) -> Role;

    /// Returns the farthest distance, in bytes, that every call reaches in both directions.
    fn call_reach(&self) -> u64;

    /// Returns the bytes by which a call's addend is lowered because its distance counts from the end of the field.
    fn call_bias(&self) -> i64;

    /// Returns the bytes of a veneer; a multiple of 8.
    fn veneer_len(&self) -> usize;

    /// Writes a jump to `callee` that changes no register which a call preserves or passes arguments in.
    ///
    /// `veneer` has [`veneer_len`](Self::veneer_len) bytes and is 8-byte aligned at its final address.
    fn write_veneer(&self, veneer: &mut [u8], callee: u64);

    /// Writes into `site`, which will lie at address `at`, a field that means address `to`. The function [`patch`]
    /// handles absolute fields and distances in data itself.
    ///
    /// Replaces the field's earlier contents, so that patching twice is the same as patching once.
    ///
    /// # Errors
    ///
    /// See [`Misfit`].
    fn patch(&self, field: Field, site: &mut [u8], at: u64, to: u64) -> Result<(), Misfit>;
}

/// Writes into `site`, which will lie at address `at`, a field that means address `to`.
///
/// # Errors
///
/// See [`Misfit`].
pub fn patch(encoder: &dyn Encoder, field: Field, site: &mut [u8], at: u64, to: u64) -> Result<(), Misfit> {
    match field {
        Field::Absolute8 => {
            *first::<8>(site)? = to.to_le_bytes();
            Ok(())
        }
        Field::Absolute4 => {
            let to = u32::try_from(to).map_err(|_| Misfit::Absolute32)?;
            *first::<4>(site)? = to.to_le_bytes();
            Ok(())
        }
        Field::Distance4 => {
            let reach = i32::MAX as u64;
            let distance = i32::try_from(distance(at, to)).map_err(|_| Misfit::Distance { reach })?;
            *first::<4>(site)? = distance.to_le_bytes();
            Ok(())
        }
        _ => encoder.patch(field, site, at, to),
    }
}

/// Returns what `field` needs, given the code that precedes it.
pub fn role(encoder: &dyn Encoder, field: Field, before: &[u8]) -> Role {
    match field {
        Field::Absolute4 | Field::Absolute8 | Field::Distance4 => Role::Value,
        _ => encoder.role(field, before),
    }
}

/// Returns the first `N` bytes of `site`.
fn first<const N: usize>(site: &mut [u8]) -> Result<&mut [u8; N], Misfit> {
    site.first_chunk_mut().ok_or(Misfit::Truncated { needed: N })
}

/// Returns the distance from `at` to `to` as the machine computes it, modulo 2⁶⁴.
fn distance(at: u64, to: u64) -> i64 {
    to.wrapping_sub(at).cast_signed()
}

/// Replaces the bits of `mask` in the little-endian instruction at the start of `site`.
fn replace_bits(site: &mut [u8], mask: u32, bits: u32) -> Result<(), Misfit> {
    let field = first::<4>(site)?;
    let kept = u32::from_le_bytes(*field) & !mask;
    *field = (kept | (bits & mask)).to_le_bytes();
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn absolute_fields_hold_the_address() {
        let encoder = encoder(Architecture::X86_64);
        let mut site = [0xaa; 9];
        patch(encoder, Field::Absolute8, &mut site, 0, 0x1122_3344_5566_7788).unwrap();
        assert_eq!(site, [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xaa]);
        let mut site = [0; 4];
        patch(encoder, Field::Absolute4, &mut site, 0, 0xffff_ffff).unwrap();
        assert_eq!(site, [0xff; 4]);
        assert_eq!(patch(encoder, Field::Absolute4, &mut site, 0, 0x1_0000_0000), Err(Misfit::Absolute32));
        assert_eq!(patch(encoder, Field::Absolute8, &mut site, 0, 1), Err(Misfit::Truncated { needed: 8 }));
    }

    #[test]
    fn distances_in_data_are_the_same_everywhere() {
        for architecture in [Architecture::X86_64, Architecture::Aarch64, Architecture::Riscv64] {
            let encoder = encoder(architecture);
            let mut site = [0; 4];
            patch(encoder, Field::Distance4, &mut site, 0x8000_0003, 0x8000_0001).unwrap();
            assert_eq!(site, (-2_i32).to_le_bytes());
            let far = patch(encoder, Field::Distance4, &mut site, 0, 0x8000_0000);
            assert_eq!((far, site), (Err(Misfit::Distance { reach: 0x7fff_ffff }), (-2_i32).to_le_bytes()));
        }
    }
}
