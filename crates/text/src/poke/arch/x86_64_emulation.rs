//! Compares emulation with execution: the CPU runs each instruction, and then a trap in its place.

use palimpsest_sys::trap;

use crate::Packs;
use crate::poke::domain::Domain;
use crate::poke::handler::claim;
use crate::poke::{arch, traps_hit};

/// Bytes of the two instructions that load a flag set.
const PROLOGUE: &[u8] = &[0x57, 0x9D]; // push rdi; popfq

/// Returns code: `site`, then "return 1"; where a displacement of 6 leads, "return 2".
fn function(site: &[u8]) -> Vec<u8> {
    let answer = |value: u8| [0xB8, value, 0, 0, 0, 0xC3]; // mov eax, value; ret
    [PROLOGUE, site, &answer(1), &answer(2)].concat()
}

/// Returns every instruction that is emulated, with a displacement of 6.
fn instructions() -> Vec<Vec<u8>> {
    let nops: [&[u8]; 9] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0F, 0x1F, 0x00],
        &[0x0F, 0x1F, 0x40, 0x00],
        &[0x0F, 0x1F, 0x44, 0x00, 0x00],
        &[0x66, 0x0F, 0x1F, 0x44, 0x00, 0x00],
        &[0x0F, 0x1F, 0x80, 0x00, 0x00, 0x00, 0x00],
        &[0x0F, 0x1F, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        &[0x0F, 0x1F, 0x05, 0x00, 0x00, 0x00, 0x00],
    ];
    let nine = [&[0x66], nops[7]].concat();
    let mut all: Vec<Vec<u8>> = nops.into_iter().map(<[u8]>::to_vec).collect();
    all.extend((0..=6).map(|prefixes| [&vec![0x66; prefixes.min(5)][..], &[0x2E; 1][..prefixes / 6], &nine].concat()));
    all.push(vec![0xEB, 6]);
    all.push(vec![0xE9, 6, 0, 0, 0]);
    all.extend((0x70..=0x7F).map(|opcode| vec![opcode, 6]));
    all.extend((0x80..=0x8F).map(|opcode| vec![0x0F, opcode, 6, 0, 0, 0]));
    all
}

#[test]
fn traps_do_what_the_cpu_does() {
    let packs = Packs::new().unwrap();
    let domain = Domain::own().unwrap();
    let mut no_batches = domain.lock();
    let tables = domain.tables(&mut no_batches, 1).unwrap();
    trap::install(claim).unwrap();
    // CF, PF, ZF, SF, OF; bit 1 is always set.
    let flag_sets = (0..32_u64).map(|bits| {
        [0, 2, 6, 7, 11].iter().enumerate().fold(2, |flags, (index, flag)| flags | (bits >> index & 1) << flag)
    });
    let hit = traps_hit();
    let mut traps = 0;
    for instruction in instructions() {
        let real = packs.load(&function(&instruction), 16).unwrap();
        let mut trapping = instruction.clone();
        // Nothing behind the trap matters.
        trapping.fill(0x06);
        trapping[0] = arch::TRAP[0];
        let trapped = packs.load(&function(&trapping), 16).unwrap();
        let site = trapped.address().get() + PROLOGUE.len();
        let action = arch::check(site, &instruction, &instruction).unwrap();
        let action = action.unwrap_or_else(|| panic!("{instruction:x?} is not emulated"));
        tables.private().publish([(site, action)].into_iter());
        for flags in flag_sets.clone() {
            // SAFETY: a function of this type, borrowed.
            let real = unsafe { real.function::<extern "C" fn(u64) -> u32>() };
            // SAFETY: as above, with a trap that the table names.
            let trapped = unsafe { trapped.function::<extern "C" fn(u64) -> u32>() };
            assert_eq!(trapped(flags), real(flags), "{instruction:x?} under flags {flags:#x}");
            traps += 1;
        }
        tables.private().withdraw();
    }
    assert!(traps_hit() - hit >= traps);
}
