//! Cranelift's relocations in terms of [`palimpsest_text::link`].

use cranelift_codegen::binemit::Reloc;
use palimpsest_text::link::{self, Architecture, Encoder, Field, Misfit, Role};
use target_lexicon::Triple;

use crate::error::UnsupportedTarget;

/// Returns the encoder for `triple`, which need not be the present machine.
pub(crate) fn encoder(triple: &Triple) -> Result<&'static dyn Encoder, UnsupportedTarget> {
    let architecture = match triple.architecture {
        target_lexicon::Architecture::X86_64 => Architecture::X86_64,
        target_lexicon::Architecture::Aarch64(_) => Architecture::Aarch64,
        target_lexicon::Architecture::Riscv64(_) => Architecture::Riscv64,
        _ => return Err(UnsupportedTarget::new(triple.to_string())),
    };
    Ok(link::encoder(architecture))
}

/// Returns the field that a relocation of this kind fills, if code in packs can contain it.
fn field(kind: Reloc) -> Option<Field> {
    Some(match kind {
        Reloc::Abs4 => Field::Absolute4,
        Reloc::Abs8 => Field::Absolute8,
        Reloc::X86PCRel4 => Field::X86Distance,
        Reloc::X86CallPCRel4 | Reloc::X86CallPLTRel4 => Field::X86Call,
        Reloc::X86GOTPCRel4 => Field::X86Slot,
        Reloc::Arm64Call => Field::Aarch64Call,
        Reloc::Aarch64AdrPrelPgHi21 => Field::Aarch64Page,
        Reloc::Aarch64AddAbsLo12Nc => Field::Aarch64InPage,
        Reloc::Aarch64AdrGotPage21 => Field::Aarch64SlotPage,
        Reloc::Aarch64Ld64GotLo12Nc => Field::Aarch64SlotInPage,
        Reloc::RiscvCallPlt => Field::RiscvCall,
        Reloc::RiscvPCRelHi20 => Field::RiscvHigh,
        Reloc::RiscvGotHi20 => Field::RiscvSlotHigh,
        Reloc::RiscvPCRelLo12I => Field::RiscvLow,
        _ => return None,
    })
}

/// Returns what a relocation needs, given the code that precedes its field.
pub(crate) fn role(encoder: &dyn Encoder, kind: Reloc, before: &[u8]) -> Role {
    field(kind).map_or(Role::Unsupported, |field| link::role(encoder, field, before))
}

/// Writes into `site`, which will lie at address `at`, a field that refers to address `to`.
pub(crate) fn patch(encoder: &dyn Encoder, kind: Reloc, site: &mut [u8], at: u64, to: u64) -> Result<(), Misfit> {
    field(kind).map_or(Err(Misfit::Unsupported), |field| link::patch(encoder, field, site, at, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_are_chosen_by_triple() {
        for (triple, known) in [
            ("x86_64-unknown-linux-gnu", true),
            ("aarch64-unknown-linux-gnu", true),
            ("riscv64gc-unknown-linux-gnu", true),
            ("s390x-unknown-linux-gnu", false),
        ] {
            let triple: Triple = triple.parse().unwrap();
            assert_eq!(encoder(&triple).is_ok(), known, "{triple}");
        }
    }

    #[test]
    fn what_packs_cannot_hold_is_unsupported() {
        let encoder = link::encoder(Architecture::X86_64);
        assert_eq!(role(encoder, Reloc::ElfX86_64TlsGd, &[]), Role::Unsupported);
        assert_eq!(patch(encoder, Reloc::ElfX86_64TlsGd, &mut [0; 8], 0, 0), Err(Misfit::Unsupported));
        assert_eq!(role(encoder, Reloc::Arm64Call, &[]), Role::Unsupported);
    }
}
