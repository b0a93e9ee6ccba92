//! AArch64: fields inside 32-bit instructions (ELF for the Arm 64-bit Architecture, "Static AArch64 relocations").

use super::{Encoder, Field, Misfit, Role, distance, replace_bits};

/// `b` and `bl` hold a signed count of 26 bits of 4-byte instructions.
const CALL_MASK: u32 = 0x03ff_ffff;
const CALL_REACH: i64 = 1 << 27;

/// `adrp` holds a signed count of 21 bits of 4 KiB pages: two low bits at 29, the others at 5.
const PAGE_LOW_MASK: u32 = 0x6000_0000;
const PAGE_HIGH_MASK: u32 = 0x00ff_ffe0;
const PAGE_REACH: i64 = 1 << 20;

/// `add` and `ldr` hold an unsigned immediate of 12 bits at bit 10.
const LOW_MASK: u32 = 0x003f_fc00;

/// `ldr x16, #8`, `br x16`: AAPCS64 reserves x16 for veneers.
const JMP_THROUGH_NEXT_QUAD: [u32; 2] = [0x5800_0050, 0xd61f_0200];

#[derive(Debug)]
pub(super) struct Aarch64;

impl Encoder for Aarch64 {
    fn role(&self, field: Field, _before: &[u8]) -> Role {
        match field {
            Field::Aarch64Call => Role::Call,
            Field::Aarch64Page | Field::Aarch64InPage | Field::Aarch64Access(0..=4) => Role::Value,
            Field::Aarch64SlotPage | Field::Aarch64SlotInPage => Role::Slot,
            _ => Role::Unsupported,
        }
    }

    fn call_reach(&self) -> u64 {
        (CALL_REACH - 4).unsigned_abs()
    }

    fn call_bias(&self) -> i64 {
        0
    }

    fn veneer_len(&self) -> usize {
        16
    }

    fn write_veneer(&self, veneer: &mut [u8], callee: u64) {
        veneer[..4].copy_from_slice(&JMP_THROUGH_NEXT_QUAD[0].to_le_bytes());
        veneer[4..8].copy_from_slice(&JMP_THROUGH_NEXT_QUAD[1].to_le_bytes());
        veneer[8..16].copy_from_slice(&callee.to_le_bytes());
    }

    fn patch(&self, field: Field, site: &mut [u8], at: u64, to: u64) -> Result<(), Misfit> {
        match field {
            Field::Aarch64Call => {
                let distance = distance(at, to);
                if distance % 4 != 0 {
                    return Err(Misfit::Alignment(4));
                }
                if !(-CALL_REACH..CALL_REACH).contains(&distance) {
                    return Err(Misfit::Distance { reach: self.call_reach() });
                }
                replace_bits(site, CALL_MASK, low_32(distance / 4))
            }
            Field::Aarch64Page | Field::Aarch64SlotPage => {
                let pages = distance(at & !0xfff, to & !0xfff) / 4096;
                if !(-PAGE_REACH..PAGE_REACH).contains(&pages) {
                    return Err(Misfit::Distance { reach: ((PAGE_REACH - 1) * 4096).unsigned_abs() });
                }
                let pages = low_32(pages);
                replace_bits(site, PAGE_LOW_MASK, pages << 29)?;
                replace_bits(site, PAGE_HIGH_MASK, (pages >> 2) << 5)
            }
            Field::Aarch64InPage => replace_bits(site, LOW_MASK, in_page(to) << 10),
            Field::Aarch64Access(power @ 0..=4) => access(site, power, to),
            Field::Aarch64SlotInPage => access(site, 3, to),
            _ => Err(Misfit::Unsupported),
        }
    }
}

/// Writes the place in its page of `to`, counted in units of 2 to the power `power` bytes.
fn access(site: &mut [u8], power: u8, to: u64) -> Result<(), Misfit> {
    let unit = 1 << power;
    if !to.is_multiple_of(unit) {
        return Err(Misfit::Alignment(unit));
    }
    replace_bits(site, LOW_MASK, (in_page(to) >> power) << 10)
}

/// Returns the low 32 bits of a value that was checked to be small enough.
fn low_32(value: i64) -> u32 {
    value.cast_unsigned() as u32
}

/// Returns the offset of `address` in its 4 KiB page.
fn in_page(address: u64) -> u32 {
    (address & 0xfff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1_0000_0000;

    fn patched(field: Field, instruction: u32, at: u64, to: u64) -> Result<u32, Misfit> {
        let mut site = instruction.to_le_bytes();
        Aarch64.patch(field, &mut site, at, to)?;
        Ok(u32::from_le_bytes(site))
    }

    // Expected words: an assembler's output for the same distances.
    #[test]
    fn calls() {
        let bl = 0x9400_0000;
        assert_eq!(patched(Field::Aarch64Call, bl, AT, AT + 8), Ok(0x9400_0002));
        assert_eq!(patched(Field::Aarch64Call, bl, AT, AT - 4), Ok(0x97ff_ffff));
        assert_eq!(patched(Field::Aarch64Call, bl, AT, AT + 0x7ff_fffc), Ok(0x95ff_ffff));
        assert_eq!(patched(Field::Aarch64Call, bl, AT, AT - 0x800_0000), Ok(0x9600_0000));
        for to in [AT + 0x800_0000, AT - 0x800_0004] {
            assert_eq!(patched(Field::Aarch64Call, bl, AT, to), Err(Misfit::Distance { reach: 0x7ff_fffc }));
        }
        assert_eq!(patched(Field::Aarch64Call, bl, AT, AT + 2), Err(Misfit::Alignment(4)));
    }

    #[test]
    fn pages() {
        let adrp_x0 = 0x9000_0000;
        let field = Field::Aarch64Page;
        assert_eq!(patched(field, adrp_x0, AT + 0x123, AT + 0xfff), Ok(0x9000_0000));
        assert_eq!(patched(field, adrp_x0, AT + 0xffc, AT + 0x1000), Ok(0xb000_0000));
        assert_eq!(patched(field, adrp_x0, AT, AT + 0x4000), Ok(0x9000_0020));
        assert_eq!(patched(field, adrp_x0, AT, AT - 1), Ok(0xf0ff_ffe0));
        assert_eq!(patched(field, adrp_x0, AT, AT + 0xffff_ffff), Ok(0xf07f_ffe0));
        assert!(patched(field, adrp_x0, AT, AT + 0x1_0000_0000).is_err());
        assert_eq!(patched(field, adrp_x0, AT, 0), Ok(0x9080_0000));
    }

    #[test]
    fn low_bits() {
        assert_eq!(patched(Field::Aarch64InPage, 0x9100_0000, 0, 0x1_2fff), Ok(0x913f_fc00));
        assert_eq!(patched(Field::Aarch64SlotInPage, 0xf940_0000, 0, 0x1_2ff8), Ok(0xf947_fc00));
        assert_eq!(patched(Field::Aarch64SlotInPage, 0xf940_0000, 0, 0x1_2ff4), Err(Misfit::Alignment(8)));
        // `ldrb`, `ldrh`, `ldr w`, `ldr x`, `ldr q`, each of x0 + 0.
        let accesses = [0x3940_0000, 0x7940_0000, 0xb940_0000, 0xf940_0000, 0x3dc0_0000];
        for (power, (access, last)) in (0..).zip(accesses.into_iter().zip([0xfff, 0xffe, 0xffc, 0xff8, 0xff0])) {
            let field = Field::Aarch64Access(power);
            assert_eq!(patched(field, access, 0, 0x1_2000 + last), Ok(access | (last as u32 >> power) << 10));
            let odd = patched(field, access, 0, 0x1_2001);
            assert_eq!(odd.is_err(), power > 0, "{odd:?}");
        }
        assert_eq!(patched(Field::Aarch64Access(5), 0, 0, 0), Err(Misfit::Unsupported));
    }

    #[test]
    fn patching_again_replaces() {
        let once = patched(Field::Aarch64Call, 0x9400_0000, AT, AT - 4).unwrap();
        assert_eq!(patched(Field::Aarch64Call, once, AT, AT + 8), Ok(0x9400_0002));
    }
}
