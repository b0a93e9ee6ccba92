use super::*;
use crate::attributes::{MemoryType, Privilege, Rights, Scope, Sharing};

fn every_leaf(frame: Frame, check: &mut dyn FnMut(Leaf)) {
    let rights =
        [Rights::empty(), Rights::READ, Rights::READ | Rights::WRITE, Rights::READ | Rights::EXECUTE, Rights::all()];
    for rights in rights {
        for bits in 0..128_u32 {
            let is = |bit: u32| bits & 1 << bit != 0;
            let stores = if is(0) && rights.contains(Rights::WRITE) { Stores::Fault } else { Stores::Pass };
            check(Leaf {
                frame,
                attributes: Attributes {
                    rights,
                    privilege: if is(1) { Privilege::User } else { Privilege::Kernel },
                    scope: if is(2) { Scope::Global } else { Scope::Local },
                    sharing: if is(6) { Sharing::Shared } else { Sharing::Private },
                    memory: MemoryType(if is(3) { 2 } else { 1 }),
                },
                stores,
                accessed: is(4),
                dirty: is(5),
            });
        }
    }
}

fn round_trips<F: Format>() {
    for size in crate::PageSize::DESCENDING {
        let level = size.level();
        assert!(F::has_leaf(level));
        let frame = Frame::new(F::PHYSICAL_END / 2 + 3 * size.bytes()).unwrap();
        every_leaf(frame, &mut |leaf| {
            let bits = F::leaf(level, leaf);
            assert_eq!(
                F::decode(level, bits),
                Entry::Leaf(leaf),
                "{} level {} bits {bits:#x}",
                F::NAME,
                level.number()
            );
        });
        if let Some(above) = Some(level.number() + 1).filter(|&level| level <= F::TOP.number()) {
            let frame = Frame::new(0x1234_5000).unwrap();
            let entry = F::decode(Level::new(above), F::table(frame, Stores::Pass));
            assert_eq!(entry, Entry::Table { frame, stores: Stores::Pass });
            if F::SHARE_MODE == ShareMode::TableProtect {
                let entry = F::decode(Level::new(above), F::table(frame, Stores::Fault));
                assert_eq!(entry, Entry::Table { frame, stores: Stores::Fault });
            }
        }
    }
    for level in 1..=F::TOP.number() {
        assert_eq!(F::decode(Level::new(level), 0), Entry::Empty);
    }
}

#[test]
fn entries_say_what_they_were_made_of() {
    round_trips::<X86_64>();
    round_trips::<X86_64La57>();
    round_trips::<AArch64>();
    round_trips::<Sv39>();
    round_trips::<Sv48>();
}

fn user(rights: Rights) -> Leaf {
    let frame = Frame::new(0x20_0000).unwrap();
    Leaf { frame, attributes: Attributes::user(rights), stores: Stores::Pass, accessed: true, dirty: true }
}

/// Bits derived by hand from the manuals.
#[test]
fn bits_are_those_of_the_manuals() {
    let writable = user(Rights::READ | Rights::WRITE);
    // P, R/W, U/S, A, D, our bit 9, XD; at level 2 also PS.
    assert_eq!(X86_64::leaf(Level::LAST, writable), 0x8000_0000_0020_0267);
    assert_eq!(X86_64::leaf(Level::new(2), writable), 0x8000_0000_0020_02e7);
    // V, page, AP[1], SH, AF, nG, PXN, UXN, our bits 55 and 56.
    assert_eq!(AArch64::leaf(Level::LAST, writable), 0x01e0_0000_0020_0f43);
    assert_eq!(AArch64::leaf(Level::new(2), writable), 0x01e0_0000_0020_0f41);
    // V, R, W, U, A, D, our bit 8; the number starts at bit 10.
    assert_eq!(Sv39::leaf(Level::LAST, writable), 0x0008_01d7);
}

/// A shared page or table lets no store pass, according to the bits that the hardware reads.
#[test]
fn hardware_sees_that_stores_must_fault() {
    let shared = Leaf { stores: Stores::Fault, ..user(Rights::all()) };
    for level in [1, 2, 3].map(Level::new) {
        assert_eq!(X86_64::leaf(level, shared) & 2, 0);
        assert_ne!(AArch64::leaf(level, shared) & 1 << 7, 0);
        assert_eq!(Sv48::leaf(level, shared) & 4, 0);
    }
    let table = Frame::new(0x1000).unwrap();
    assert_eq!(X86_64::table(table, Stores::Fault) & 2, 0);
    assert_ne!(AArch64::table(table, Stores::Fault) & 1 << 62, 0);
    // Reserved in a pointer: D, A, U.
    assert_eq!(Sv39::table(table, Stores::Pass) & 0xd0, 0);
}

#[test]
fn addresses_that_cannot_be_translated_are_known() {
    assert!(X86_64::is_valid(VirtAddr(0x7fff_ffff_ffff)));
    assert!(!X86_64::is_valid(VirtAddr(0x8000_0000_0000)));
    assert!(X86_64::is_valid(VirtAddr(0xffff_8000_0000_0000)));
    assert!(X86_64La57::is_valid(VirtAddr(0x8000_0000_0000)));
    assert!(AArch64::is_valid(VirtAddr(0xffff_ffff_ffff)));
    assert!(!AArch64::is_valid(VirtAddr(0x1_0000_0000_0000)));
    assert!(!Sv39::is_valid(VirtAddr(1 << 38)));
}

/// Each memory type at each size, by the bits of the manuals: Intel SDM volume 3, tables 5-16, 5-18 and 5-20 (PAT is
/// bit 7 of a 4 KiB page's entry and bit 12 of a larger one's); Arm ARM D8.3 (AttrIndx); RISC-V Svpbmt.
#[test]
fn memory_types_are_where_the_manuals_have_them() {
    fn bits<F: Format>(level: Level, memory: u8) -> u64 {
        let plain = user(Rights::READ);
        let attributes = Attributes { memory: MemoryType(memory), ..plain.attributes };
        let leaf = Leaf { frame: Frame::new(3 << 30).unwrap(), attributes, ..plain };
        let entry = F::leaf(level, leaf);
        assert_eq!(F::decode(level, entry), Entry::Leaf(leaf), "{} type {memory}", F::NAME);
        let zero = Leaf { attributes: Attributes { memory: MemoryType(0), ..leaf.attributes }, ..leaf };
        entry ^ F::leaf(level, zero)
    }
    for level in [1, 2, 3].map(Level::new) {
        let pat = if level == Level::LAST { 1 << 7 } else { 1 << 12 };
        for memory in 0..8_u8 {
            let [pwt, pcd, high] = [0, 1, 2].map(|bit| u64::from(memory >> bit & 1));
            assert_eq!(
                bits::<X86_64>(level, memory),
                (pwt << 3) | (pcd << 4) | (high * pat),
                "type {memory}, {level:?}"
            );
            assert_eq!(bits::<AArch64>(level, memory), u64::from(memory) << 2, "type {memory}, {level:?}");
        }
        for memory in 0..Sv39::MEMORY_TYPES {
            assert_eq!(bits::<Sv39>(level, memory), u64::from(memory) << 61, "type {memory}, {level:?}");
        }
    }
}

/// CVE-2018-3620: an entry that is not present must not contain the address of its frame.
#[test]
fn a_page_without_rights_withholds_its_frame() {
    for size in crate::PageSize::DESCENDING {
        for number in [0, 1, 77] {
            let frame = Frame::new(number * size.bytes()).unwrap();
            let bits = X86_64::leaf(size.level(), Leaf { frame, ..user(Rights::empty()) });
            assert_eq!(bits & 1, 0);
            let named = bits & 0x000f_ffff_ffff_f000 & !(size.bytes() - 1);
            assert!(named >= 1 << 51, "{size:?} at {frame} names {named:#x}");
        }
    }
}
