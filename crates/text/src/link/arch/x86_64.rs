//! x86-64: 32-bit distances counted from the end of the field (System V psABI for AMD64, section 4.4).

use super::{Encoder, Field, Misfit, Role, distance, first};

/// Opcodes of `call rel32` and `jmp rel32` (Intel SDM volume 2, CALL and JMP).
const CALL_REL32: u8 = 0xe8;
const JMP_REL32: u8 = 0xe9;

/// `jmp qword ptr [rip + 2]`, then two bytes that never run, so that the address behind them is 8-byte aligned.
const JMP_THROUGH_NEXT_QUAD: [u8; 8] = [0xff, 0x25, 0x02, 0x00, 0x00, 0x00, 0x0f, 0x0b];

const REACH: u64 = i32::MAX as u64;

#[derive(Debug)]
pub(super) struct X86_64;

impl Encoder for X86_64 {
    fn role(&self, field: Field, before: &[u8]) -> Role {
        match field {
            // Compilers (Cranelift) use the relocation for calls for `lea reg, [rip + symbol]` as well. That needs the
            // symbol's own address, for which a veneer's would be wrong. A ModRM byte for RIP-relative addressing
            // (`xx05`, `xx0d`, … `xx3d`) is never one of the two opcodes.
            Field::X86Call => match before.last() {
                Some(&(CALL_REL32 | JMP_REL32)) => Role::Call,
                _ => Role::Value,
            },
            Field::X86Distance => Role::Value,
            Field::X86Slot => Role::Slot,
            _ => Role::Unsupported,
        }
    }

    fn call_reach(&self) -> u64 {
        // The field's own four bytes shorten one direction.
        REACH - 4
    }

    fn call_bias(&self) -> i64 {
        4
    }

    fn veneer_len(&self) -> usize {
        16
    }

    fn write_veneer(&self, veneer: &mut [u8], callee: u64) {
        veneer[..8].copy_from_slice(&JMP_THROUGH_NEXT_QUAD);
        veneer[8..16].copy_from_slice(&callee.to_le_bytes());
    }

    fn patch(&self, field: Field, site: &mut [u8], at: u64, to: u64) -> Result<(), Misfit> {
        match field {
            Field::X86Distance | Field::X86Call | Field::X86Slot => {
                let distance = i32::try_from(distance(at, to)).map_err(|_| Misfit::Distance { reach: REACH })?;
                *first::<4>(site)? = distance.to_le_bytes();
                Ok(())
            }
            _ => Err(Misfit::Unsupported),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_checked_on_both_sides() {
        let at = 0x7000_0000_0000;
        for (to, field) in [
            (at, Some(0_i32)),
            (at + 0x7fff_ffff, Some(i32::MAX)),
            (at + 0x8000_0000, None),
            (at - 0x8000_0000, Some(i32::MIN)),
            (at - 0x8000_0001, None),
        ] {
            let mut site = [0xee; 4];
            match X86_64.patch(Field::X86Distance, &mut site, at, to) {
                Ok(()) => assert_eq!(Some(i32::from_le_bytes(site)), field),
                Err(misfit) => {
                    assert_eq!(misfit, Misfit::Distance { reach: REACH });
                    assert_eq!(field, None);
                    assert_eq!(site, [0xee; 4], "a refused field is left alone");
                }
            }
        }
    }

    #[test]
    fn only_calls_and_jumps_may_go_through_a_veneer() {
        assert_eq!(X86_64.role(Field::X86Call, &[0x90, 0xe8]), Role::Call);
        assert_eq!(X86_64.role(Field::X86Call, &[0xe9]), Role::Call);
        // lea rax, [rip + disp32]
        assert_eq!(X86_64.role(Field::X86Call, &[0x48, 0x8d, 0x05]), Role::Value);
        assert_eq!(X86_64.role(Field::X86Call, &[]), Role::Value);
        assert_eq!(X86_64.role(Field::RiscvLow, &[]), Role::Unsupported);
    }
}
