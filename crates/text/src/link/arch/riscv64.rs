//! RISC-V: pairs of `auipc` and an instruction with a signed 12-bit immediate (RISC-V ELF psABI, "Relocations").

use super::{Encoder, Field, Misfit, Role, distance, replace_bits};

/// Immediate of `auipc`.
const HIGH_MASK: u32 = 0xffff_f000;
/// Immediate of `addi`, `ld` and `jalr`.
const LOW_MASK: u32 = 0xfff0_0000;

/// The low half is signed, so the high half is rounded: the upward reach is this much less than 2 GiB.
const ROUND: i64 = 0x800;
const REACH: u64 = i32::MAX as u64 - ROUND as u64;

/// `auipc t3, 0`, `ld t3, 16(t3)`, `jr t3`, `nop`: the psABI's own PLT entries use t3 too.
const JMP_THROUGH_NEXT_QUAD: [u32; 4] = [0x0000_0e17, 0x010e_3e03, 0x000e_0067, 0x0000_0013];

#[derive(Debug)]
pub(super) struct Riscv64;

impl Encoder for Riscv64 {
    fn role(&self, field: Field, _before: &[u8]) -> Role {
        match field {
            Field::RiscvCall => Role::Call,
            Field::RiscvHigh => Role::Value,
            Field::RiscvSlotHigh => Role::Slot,
            Field::RiscvLow => Role::LowHalf,
            _ => Role::Unsupported,
        }
    }

    fn call_reach(&self) -> u64 {
        REACH
    }

    fn call_bias(&self) -> i64 {
        0
    }

    fn veneer_len(&self) -> usize {
        24
    }

    fn write_veneer(&self, veneer: &mut [u8], callee: u64) {
        let (code, address) = veneer.split_at_mut(16);
        for (place, instruction) in code.chunks_exact_mut(4).zip(JMP_THROUGH_NEXT_QUAD) {
            place.copy_from_slice(&instruction.to_le_bytes());
        }
        address[..8].copy_from_slice(&callee.to_le_bytes());
    }

    fn patch(&self, field: Field, site: &mut [u8], at: u64, to: u64) -> Result<(), Misfit> {
        let distance = distance(at, to);
        let rounded = distance
            .checked_add(ROUND)
            .and_then(|rounded| i32::try_from(rounded).ok())
            .ok_or(Misfit::Distance { reach: REACH })?
            .cast_unsigned();
        let low = (distance.cast_unsigned() as u32) << 20;
        match field {
            Field::RiscvCall => {
                let jalr = site.get_mut(4..).ok_or(Misfit::Truncated { needed: 8 })?;
                replace_bits(jalr, LOW_MASK, low)?;
                replace_bits(site, HIGH_MASK, rounded)
            }
            Field::RiscvHigh | Field::RiscvSlotHigh => replace_bits(site, HIGH_MASK, rounded),
            Field::RiscvLow => replace_bits(site, LOW_MASK, low),
            _ => Err(Misfit::Unsupported),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the pair computes, by the definition of the two instructions.
    fn computed(auipc: u32, low: u32, at: u64) -> u64 {
        let high = i64::from((auipc & HIGH_MASK).cast_signed());
        let low = i64::from(low.cast_signed() >> 20);
        at.wrapping_add_signed(high).wrapping_add_signed(low)
    }

    #[test]
    fn pairs_mean_the_target() {
        let at = 0x10_0000_0000;
        for distance in
            [0, 4, -4, 0x7fe, 0x800, 0xfff, -0x800, -0x802, 0x1234_5678, -0x1234_5678, 0x7fff_f7ff, -0x8000_0800]
        {
            let to = u64::wrapping_add_signed(at, distance);
            // auipc ra, 0; jalr ra, 0(ra)
            let mut call = [0x97, 0, 0, 0, 0xe7, 0x80, 0, 0];
            Riscv64.patch(Field::RiscvCall, &mut call, at, to).unwrap();
            let auipc = u32::from_le_bytes(*call.first_chunk().unwrap());
            let jalr = u32::from_le_bytes(*call.last_chunk().unwrap());
            assert_eq!(computed(auipc, jalr, at), to, "{distance:#x}");
            assert_eq!(auipc & 0xfff, 0x097);
            assert_eq!(jalr & 0xf_ffff, 0x080e7);
        }
        let mut call = [0; 8];
        for distance in [0x7fff_f800_i64, -0x8000_0801] {
            let misfit = Riscv64.patch(Field::RiscvCall, &mut call, at, at.wrapping_add_signed(distance));
            assert_eq!(misfit, Err(Misfit::Distance { reach: REACH }));
        }
    }
}
