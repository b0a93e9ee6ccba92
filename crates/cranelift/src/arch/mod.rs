//! Instruction encoding per instruction set: how a symbol's address is written into code.
//!
//! Everything here is arithmetic on bytes; the instruction set is chosen at run time from the target triple, because a
//! [`PackModule`](crate::PackModule) may compile for another machine than the one it runs on.

mod aarch64;
mod riscv64;
mod x86_64;

use cranelift_codegen::binemit::Reloc;
use target_lexicon::{Architecture, Triple};

use crate::error::UnsupportedTarget;

/// What a relocation needs beside the symbol's own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The field holds the address, or the distance to it; nothing may stand between.
    Value,
    /// A call or tail call: a veneer may stand between when the callee is too far.
    Call,
    /// The field refers to an 8-byte slot that holds the address (a "GOT" entry).
    Slot,
    /// The low half of the address whose high half is in the instruction that the target names.
    LowHalf,
    /// Not something that code in packs can contain.
    Unsupported,
}

/// Why an address does not go into a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
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
    /// The kind does not belong to this instruction set.
    Unsupported,
}

/// The encoder of one instruction set.
pub(crate) trait Machine: Send + Sync {
    /// What `kind` needs, given the code that precedes the field.
    fn role(&self, kind: Reloc, before: &[u8]) -> Role;

    /// Farthest distance, in bytes, that every call reaches in both directions.
    fn call_reach(&self) -> u64;

    /// Bytes by which a call's addend is lowered because its distance counts from the end of the field.
    fn call_bias(&self) -> i64;

    /// Bytes of a veneer; a multiple of 8.
    fn veneer_len(&self) -> usize;

    /// Writes a jump to `callee` that changes no register which a call preserves or passes arguments in.
    ///
    /// `veneer` has [`Self::veneer_len`] bytes and is 8-byte aligned at its final address.
    fn write_veneer(&self, veneer: &mut [u8], callee: u64);

    /// Writes into `site`, which will lie at address `at`, a field of kind `kind` that means address `to`.
    ///
    /// The field's earlier contents are replaced, so patching twice is patching once.
    fn patch(&self, kind: Reloc, site: &mut [u8], at: u64, to: u64) -> Result<(), Misfit>;
}

/// The encoder for `triple`.
pub(crate) fn machine(triple: &Triple) -> Result<&'static dyn Machine, UnsupportedTarget> {
    match triple.architecture {
        Architecture::X86_64 => Ok(&x86_64::X86_64),
        Architecture::Aarch64(_) => Ok(&aarch64::Aarch64),
        Architecture::Riscv64(_) => Ok(&riscv64::Riscv64),
        _ => Err(UnsupportedTarget::new(triple.to_string())),
    }
}

/// Writes the absolute kinds, which are the same everywhere, or passes on to `machine`.
pub(crate) fn patch(machine: &dyn Machine, kind: Reloc, site: &mut [u8], at: u64, to: u64) -> Result<(), Misfit> {
    match kind {
        Reloc::Abs8 => {
            *field::<8>(site)? = to.to_le_bytes();
            Ok(())
        }
        Reloc::Abs4 => {
            let to = u32::try_from(to).map_err(|_| Misfit::Absolute32)?;
            *field::<4>(site)? = to.to_le_bytes();
            Ok(())
        }
        _ => machine.patch(kind, site, at, to),
    }
}

/// The role of the absolute kinds, or what `machine` says.
pub(crate) fn role(machine: &dyn Machine, kind: Reloc, before: &[u8]) -> Role {
    match kind {
        Reloc::Abs4 | Reloc::Abs8 => Role::Value,
        _ => machine.role(kind, before),
    }
}

/// The first `N` bytes of `site`.
fn field<const N: usize>(site: &mut [u8]) -> Result<&mut [u8; N], Misfit> {
    site.first_chunk_mut().ok_or(Misfit::Truncated { needed: N })
}

/// Distance from `at` to `to` as the machine computes it, modulo 2⁶⁴.
fn distance(at: u64, to: u64) -> i64 {
    to.wrapping_sub(at).cast_signed()
}

/// Replaces the bits of `mask` in the little-endian instruction at the start of `site`.
fn replace_bits(site: &mut [u8], mask: u32, bits: u32) -> Result<(), Misfit> {
    let field = field::<4>(site)?;
    let kept = u32::from_le_bytes(*field) & !mask;
    *field = (kept | (bits & mask)).to_le_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_fields_hold_the_address() {
        let mut site = [0xaa; 9];
        patch(&x86_64::X86_64, Reloc::Abs8, &mut site, 0, 0x1122_3344_5566_7788).unwrap();
        assert_eq!(site, [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xaa]);
        let mut site = [0; 4];
        patch(&x86_64::X86_64, Reloc::Abs4, &mut site, 0, 0xffff_ffff).unwrap();
        assert_eq!(site, [0xff; 4]);
        assert_eq!(patch(&x86_64::X86_64, Reloc::Abs4, &mut site, 0, 0x1_0000_0000), Err(Misfit::Absolute32));
        assert_eq!(patch(&x86_64::X86_64, Reloc::Abs8, &mut site, 0, 1), Err(Misfit::Truncated { needed: 8 }));
    }

    #[test]
    fn machines_are_chosen_by_triple() {
        for (triple, known) in [
            ("x86_64-unknown-linux-gnu", true),
            ("aarch64-unknown-linux-gnu", true),
            ("riscv64gc-unknown-linux-gnu", true),
            ("s390x-unknown-linux-gnu", false),
        ] {
            let triple: Triple = triple.parse().unwrap();
            assert_eq!(machine(&triple).is_ok(), known, "{triple}");
        }
    }
}
