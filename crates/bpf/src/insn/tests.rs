//! Decoding is total, and the inverse of encoding.

use alloc::string::ToString;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::decode::{Slot, decode_any};
use super::*;
use crate::asm::assemble;

/// The bytes of an instruction.
fn bytes(instruction: &Instruction) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(instruction, &mut |slot| bytes.extend(slot));
    bytes
}

proptest! {
    #[test]
    fn what_decodes_encodes_to_the_same_bytes_and_reads_as_it_is_written(
        opcode: u8, registers in 0..0xbb_u8, offset in prop_oneof![Just(0_i16), Just(1), Just(8), any::<i16>()],
        immediate in prop_oneof![Just(0_i32), Just(0xf1), Just(0x110), Just(16), any::<i32>()], high: u32,
    ) {
        let mut code = Vec::from([opcode, registers]);
        code.extend(offset.to_le_bytes());
        code.extend(immediate.to_le_bytes());
        code.extend([0; 4]);
        code.extend(high.to_le_bytes());
        if let Ok(instruction) = decode(&code, 0) {
            let same = bytes(&instruction);
            prop_assert_eq!(&same[..], &code[..instruction.slots() * SLOT]);
            let text = instruction.to_string();
            let read = assemble(&text);
            prop_assert_eq!(read.as_deref().map_err(|error| error.to_string()), Ok(&same[..]), "{}", text);
        }
    }

    #[test]
    fn no_bytes_panic(code: Vec<u8>, slot in 0..usize::MAX) {
        let _ = (decode(&code, slot), decode(&code, slot % 8));
    }
}

#[test]
fn every_opcode_is_an_instruction_or_named_as_unknown() {
    // The opcodes of RFC 9669's appendix A, and the one that Linux has added, 0xe5.
    let known = (0..=u8::MAX).filter(|opcode| {
        [(0, 0), (0, 16), (1, 0), (0, 0xf1)].into_iter().any(|(offset, immediate)| {
            let mut code = [0; 2 * SLOT];
            (code[0], code[2], code[4]) = (*opcode, offset, immediate);
            decode(&code, 0).is_ok()
        })
    });
    // 26 of each arithmetic class (12 operations with either operand, negation; byte orders twice, then once), 22
    // conditions in each of two classes, four jumps and calls by number and by register, 22 loads and stores, 2 atomics
    // for each size, six packet loads, one wide load.
    let known: Vec<u8> = known.collect();
    for opcode in [
        0x04, 0x07, 0x84, 0x87, 0xd4, 0xdc, 0xd7, 0x05, 0x06, 0x85, 0x8d, 0x95, 0xe5, 0x18, 0x61, 0x81, 0xc3, 0xdb,
        0x30, 0x50,
    ] {
        assert!(known.contains(&opcode), "{opcode:#x}");
    }
    for opcode in [0x8c, 0x8f, 0xdf, 0x0d, 0x0e, 0x86, 0x96, 0x9d, 0xe4, 0xe6, 0x00, 0x99, 0x38, 0xe3, 0xff] {
        assert!(!known.contains(&opcode), "{opcode:#x}");
    }
}

#[test]
fn errors_name_the_value() {
    let fault = |code: [u8; 8]| decode(&code, 0).expect_err("no instruction").fault;
    assert_eq!(fault([0xff, 0, 0, 0, 0, 0, 0, 0]), Fault::Opcode { opcode: 0xff });
    assert_eq!(fault([0xbf, 0xb0, 0, 0, 0, 0, 0, 0]), Fault::Register { number: 11 });
    assert_eq!(fault([0xb7, 0x0a, 0, 0, 1, 0, 0, 0]), Fault::FramePointer { opcode: 0xb7 });
    assert_eq!(fault([0xb7, 0x10, 0, 0, 1, 0, 0, 0]), Fault::Source { opcode: 0xb7, source_field: 1 });
    assert_eq!(fault([0x37, 0, 2, 0, 1, 0, 0, 0]), Fault::Offset { opcode: 0x37, offset: 2 });
    assert_eq!(fault([0xdc, 0, 0, 0, 17, 0, 0, 0]), Fault::Immediate { opcode: 0xdc, immediate: 17 });
    assert_eq!(fault([0x18, 0, 0, 0, 17, 0, 0, 0]), Fault::Cut { bytes: 8 });
    assert_eq!(fault([0x95, 1, 0, 0, 0, 0, 0, 0]), Fault::Destination { opcode: 0x95, destination: 1 });
}

/// Every opcode, with each field valid and invalid.
#[test]
fn what_is_decoded_quickly_is_what_it_is() {
    let mut quick = 0;
    for opcode in 0..=u8::MAX {
        for (dst, src) in (0..16).flat_map(|dst| (0..16).map(move |src| (dst, src))) {
            for offset in [0, 1, 8, 16, 32, -8, i16::MAX] {
                for immediate in [0, 1, 16, -1, 0x100, i32::MAX] {
                    let bytes = Slot { opcode, dst, src, offset, immediate }.to_bytes();
                    if let Some((instruction, named)) =
                        common::decode(&bytes, |instruction, named| (instruction, named))
                    {
                        let mut registers = 0;
                        instruction.each_register(|register| registers |= 1 << register.number());
                        assert_eq!(named, registers, "{instruction}");
                        assert_eq!(decode_any(&bytes), Ok(instruction), "{bytes:02x?}");
                        quick += 1;
                    }
                }
            }
        }
    }
    assert!(quick > 40_000, "{quick} were decoded quickly");
}
