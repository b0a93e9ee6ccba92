//! Objects as an assembler would write them, linked at chosen addresses: what each field says is checked, and damaged
//! objects are refused or linked, and never more.

use object::write::{Object, Relocation, SectionId, Symbol, SymbolSection};
use object::{BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope, elf};
use palimpsest_module::{
    Addresses, Architecture, Count, Limits, LinkError, Linked, Module, Part, ReadError, RelocationFault, SectionFault,
    SymbolFault,
};
use palimpsest_text::link::Misfit;
use proptest::prelude::*;

const AT: Addresses =
    Addresses { text: 0xffff_ffff_a000_0000, constants: 0xffff_ffff_a040_0000, data: 0xffff_ffff_a060_0000 };
/// In reach of every call, and not.
const NEAR: u64 = AT.text - 0x10_0000;
const FAR: u64 = 0xffff_8000_0000_0000;

/// An object under construction.
struct Made {
    object: Object<'static>,
    text: SectionId,
}

fn architecture(of: Architecture) -> object::Architecture {
    match of {
        Architecture::X86_64 => object::Architecture::X86_64,
        Architecture::Aarch64 => object::Architecture::Aarch64,
        Architecture::Riscv64 => object::Architecture::Riscv64,
    }
}

impl Made {
    fn new(of: Architecture) -> Self {
        let mut object = Object::new(BinaryFormat::Elf, architecture(of), Endianness::Little);
        let text = object.section_id(object::write::StandardSection::Text);
        Self { object, text }
    }

    fn section(&mut self, name: &str, kind: SectionKind) -> SectionId {
        self.object.add_section(Vec::new(), name.into(), kind)
    }

    fn symbol(&mut self, name: &str, section: SymbolSection, value: u64, kind: SymbolKind) -> object::write::SymbolId {
        self.object.add_symbol(Symbol {
            name: name.into(),
            value,
            size: 0,
            kind,
            scope: SymbolScope::Dynamic,
            weak: false,
            section,
            flags: SymbolFlags::None,
        })
    }

    fn undefined(&mut self, name: &str) -> object::write::SymbolId {
        self.symbol(name, SymbolSection::Undefined, 0, SymbolKind::Unknown)
    }

    fn defined(&mut self, name: &str, section: SectionId, value: u64) -> object::write::SymbolId {
        self.symbol(name, SymbolSection::Section(section), value, SymbolKind::Data)
    }

    fn relocate(&mut self, section: SectionId, offset: u64, kind: u32, symbol: object::write::SymbolId, addend: i64) {
        let flags = object::RelocationFlags::Elf { r_type: elf::RelocationType(kind) };
        self.object.add_relocation(section, Relocation { offset, symbol, addend, flags }).expect("a relocation");
    }

    fn bytes(&self) -> Vec<u8> {
        self.object.write().expect("an object")
    }
}

fn read(bytes: &[u8], of: Architecture) -> Result<Module<'_>, ReadError> {
    Module::read(bytes, of, &Limits::USUAL)
}

fn exporting(address: u64) -> impl Fn(&str) -> Option<u64> {
    move |name| (name == "kernel").then_some(address)
}

/// Returns the word at `offset`.
fn word(linked: &Linked, part: Part, offset: usize) -> u32 {
    u32::from_le_bytes(linked.bytes(part)[offset..][..4].try_into().expect("4 bytes"))
}

fn quad(linked: &Linked, part: Part, offset: usize) -> u64 {
    u64::from_le_bytes(linked.bytes(part)[offset..][..8].try_into().expect("8 bytes"))
}

#[test]
fn x86_fields_hold_what_they_should() {
    let mut made = Made::new(Architecture::X86_64);
    let (text, constants) = (made.text, made.section(".rodata.x", SectionKind::ReadOnlyData));
    let (data, zeros) =
        (made.section(".data.x", SectionKind::Data), made.section(".bss.x", SectionKind::UninitializedData));
    // call kernel; lea rax, [rip + datum]; mov rax, [rip + kernel@slot]
    let code = [0xe8, 0, 0, 0, 0, 0x48, 0x8d, 0x05, 0, 0, 0, 0, 0x48, 0x8b, 0x05, 0, 0, 0, 0, 0xc3];
    made.object.append_section_data(text, &code, 16);
    made.object.append_section_data(constants, &[0; 12], 8);
    made.object.append_section_data(data, &[7; 8], 8);
    made.object.append_section_bss(zeros, 24, 16);
    let kernel = made.undefined("kernel");
    made.undefined("_GLOBAL_OFFSET_TABLE_");
    let datum = made.defined("datum", data, 4);
    made.defined("zero", zeros, 8);
    made.relocate(text, 1, elf::R_X86_64_PLT32.0, kernel, -4);
    made.relocate(text, 8, elf::R_X86_64_PC32.0, datum, -4);
    made.relocate(text, 15, elf::R_X86_64_REX_GOTPCRELX.0, kernel, -4);
    made.relocate(constants, 0, elf::R_X86_64_64.0, datum, 3);
    made.relocate(constants, 8, elf::R_X86_64_PC32.0, datum, 0);
    let bytes = made.bytes();
    let module = read(&bytes, Architecture::X86_64).expect("a module");
    assert_eq!(module.needs().collect::<Vec<_>>(), ["kernel"]);

    for (kernel, is_near) in [(NEAR, true), (FAR, false)] {
        let linked = module.link(&AT, exporting(kernel)).expect("linked");
        let target = |at: usize, field: usize| {
            let distance = word(&linked, Part::Text, field).cast_signed();
            AT.text.wrapping_add(at as u64).wrapping_add_signed(distance.into())
        };
        // The veneer is behind the code, and the slot behind the constants.
        let veneer = 24;
        assert_eq!(target(5, 1), if is_near { kernel } else { AT.text + veneer });
        assert_eq!(linked.bytes(Part::Text)[24..28], [0xff, 0x25, 2, 0], "jmp [rip + 2]");
        assert_eq!(quad(&linked, Part::Text, 32), kernel);
        assert_eq!(target(12, 8), AT.data + 4);
        assert_eq!(target(19, 15), AT.constants + 16);
        assert_eq!(quad(&linked, Part::Constants, 16), kernel);
        assert_eq!(quad(&linked, Part::Constants, 0), AT.data + 7);
        let distance = (AT.data + 4).wrapping_sub(AT.constants + 8) as u32;
        assert_eq!(word(&linked, Part::Constants, 8), distance);
        assert_eq!(linked.bytes(Part::Text)[20..24], [0xcc; 4], "traps between functions and veneers");
        assert_eq!(linked.bytes(Part::Data)[..8], [7; 8]);
        assert_eq!((linked.bytes(Part::Data).len(), linked.exports()["zero"]), (40, AT.data + 24));
        assert!(linked.bytes(Part::Data)[16..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(module.link(&AT, |_| None), Err(LinkError::Undefined("kernel".into())));
    let odd = module.link(&Addresses { data: AT.data + 8, ..AT }, exporting(NEAR));
    assert_eq!(odd, Err(LinkError::Alignment { part: Part::Data, address: AT.data + 8, align: 16 }));
    // What is no call has no veneer: the distance is an error.
    let far = module.link(&Addresses { data: FAR, ..AT }, exporting(NEAR));
    let misfit = Misfit::Distance { reach: i32::MAX as u64 };
    assert_eq!(far, Err(LinkError::Misfit { part: Part::Text, offset: 8, misfit }));
}

#[test]
fn aarch64_fields_hold_what_they_should() {
    let mut made = Made::new(Architecture::Aarch64);
    let (text, constants) = (made.text, made.section(".data.rel.ro.x", SectionKind::Data));
    let data = made.section(".data.x", SectionKind::Data);
    // bl kernel; b kernel; adrp x0, datum; ldr w1, [x0, datum]; adrp x2, slot; ldr x2, [x2, slot]; add x0, x0, datum
    let code: [u32; 7] = [0x9400_0000, 0x1400_0000, 0x9000_0000, 0xb940_0001, 0x9000_0002, 0xf940_0042, 0x9100_0000];
    made.object.append_section_data(text, &code.map(u32::to_le_bytes).concat(), 4);
    made.object.append_section_data(constants, &[0; 12], 8);
    made.object.append_section_data(data, &[0; 0x1238], 8);
    let kernel = made.undefined("kernel");
    let datum = made.defined("datum", data, 0x1234);
    for (index, kind, symbol) in [
        (0, elf::R_AARCH64_CALL26, kernel),
        (1, elf::R_AARCH64_JUMP26, kernel),
        (2, elf::R_AARCH64_ADR_PREL_PG_HI21, datum),
        (3, elf::R_AARCH64_LDST32_ABS_LO12_NC, datum),
        (4, elf::R_AARCH64_ADR_GOT_PAGE, kernel),
        (5, elf::R_AARCH64_LD64_GOT_LO12_NC, kernel),
        (6, elf::R_AARCH64_ADD_ABS_LO12_NC, datum),
    ] {
        made.relocate(text, index * 4, kind.0, symbol, 0);
    }
    made.relocate(constants, 0, elf::R_AARCH64_ABS64.0, datum, -4);
    made.relocate(constants, 8, elf::R_AARCH64_PREL32.0, datum, 0);
    let bytes = made.bytes();
    let module = read(&bytes, Architecture::Aarch64).expect("a module");
    // What has addresses in it and never changes is constant.
    assert_eq!((module.extent(Part::Constants).len, module.extent(Part::Data).len), (24, 0x1238));
    for (kernel, is_near) in [(NEAR, true), (FAR, false)] {
        let linked = module.link(&AT, exporting(kernel)).expect("linked");
        let called = |index: usize| {
            let words = (word(&linked, Part::Text, index * 4) << 6).cast_signed() >> 6;
            (AT.text + index as u64 * 4).wrapping_add_signed(i64::from(words) * 4)
        };
        let veneer = AT.text + 32;
        assert_eq!([called(0), called(1)], [if is_near { kernel } else { veneer }; 2], "one veneer for both");
        assert_eq!([8, 9].map(|word_at| word(&linked, Part::Text, word_at * 4)), [0x5800_0050, 0xd61f_0200]);
        assert_eq!(quad(&linked, Part::Text, 40), kernel);
        let page = |index: usize| {
            let word = word(&linked, Part::Text, index * 4);
            let pages = ((word >> 3 & 0x1f_fffc | word >> 29 & 3) << 11).cast_signed() >> 11;
            (AT.text & !0xfff).wrapping_add_signed(i64::from(pages) * 4096)
        };
        let low = |index: usize| word(&linked, Part::Text, index * 4) >> 10 & 0xfff;
        assert_eq!((page(2), low(3), low(6)), (AT.data + 0x1000, 0x234 / 4, 0x234));
        assert_eq!((page(4), low(5)), (AT.constants, 2), "the slot is behind 16 bytes");
        assert_eq!(quad(&linked, Part::Constants, 16), kernel);
        assert_eq!(quad(&linked, Part::Constants, 0), AT.data + 0x1230);
        assert_eq!(word(&linked, Part::Constants, 8), (AT.data + 0x1234).wrapping_sub(AT.constants + 8) as u32);
        assert_eq!(word(&linked, Part::Text, 28), 0xd420_0000, "a trap between the code and the veneer");
    }
}

/// A small module for this architecture, with one of everything.
fn sample(of: Architecture) -> Vec<u8> {
    let mut made = Made::new(of);
    let (text, data) = (made.text, made.section(".data.x", SectionKind::Data));
    made.object.append_section_data(text, &[0; 16], 4);
    made.object.append_section_data(data, &[0; 16], 8);
    let kernel = made.undefined("kernel");
    made.defined("entry", text, 0);
    let datum = made.defined("datum", data, 8);
    let (call, quad) = match of {
        Architecture::X86_64 => (elf::R_X86_64_PLT32.0, elf::R_X86_64_64.0),
        _ => (elf::R_AARCH64_CALL26.0, elf::R_AARCH64_ABS64.0),
    };
    made.relocate(text, 4, call, kernel, 0);
    made.relocate(data, 8, quad, datum, 0);
    made.bytes()
}

#[test]
fn what_cannot_be_loaded_is_refused_with_its_place() {
    let of = Architecture::X86_64;
    let with = |change: &dyn Fn(&mut Made)| {
        let mut made = Made::new(of);
        made.object.append_section_data(made.text, &[0; 8], 4);
        change(&mut made);
        read(&made.bytes(), of).expect_err("refused")
    };
    let flags = |sh_flags: elf::SectionFlags| object::SectionFlags::Elf { sh_type: elf::SHT_PROGBITS, sh_flags };
    let section = |made: &mut Made, kind, set: elf::SectionFlags| {
        let section = made.section(".x", kind);
        made.object.append_section_data(section, &[0; 8], 8);
        made.object.section_mut(section).flags = flags(set);
    };
    let code = elf::SectionFlags(elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0 | elf::SHF_WRITE.0);
    let fault = |error: ReadError| match error {
        ReadError::Section { fault, .. } => fault,
        other => panic!("{other}"),
    };
    let writable = with(&|made| section(made, SectionKind::Text, code));
    assert_eq!(fault(writable), SectionFault::WritableCode);
    let thread = elf::SectionFlags(elf::SHF_ALLOC.0 | elf::SHF_TLS.0 | elf::SHF_WRITE.0);
    assert_eq!(fault(with(&|made| section(made, SectionKind::Data, thread))), SectionFault::ThreadLocal);
    let large = with(&|made| {
        let zeros = made.section(".bss.x", SectionKind::UninitializedData);
        made.object.append_section_bss(zeros, 1 << 40, 8);
    });
    assert_eq!(large, ReadError::Large { part: Part::Data, limit: Limits::USUAL.part });
    let aligned = with(&|made| {
        let data = made.section(".data.x", SectionKind::Data);
        made.object.append_section_data(data, &[0; 8], 1 << 20);
    });
    assert_eq!(fault(aligned), SectionFault::Alignment(1 << 20));
    let relocation = |offset, kind, addend| {
        let error = with(&|made| {
            let kernel = made.undefined("kernel");
            made.relocate(made.text, offset, kind, kernel, addend);
        });
        match error {
            ReadError::Relocation { offset: at, fault, .. } => {
                assert_eq!(at, offset);
                fault
            }
            other => panic!("{other}"),
        }
    };
    assert_eq!(relocation(5, elf::R_X86_64_PC32.0, 0), RelocationFault::Outside);
    assert_eq!(relocation(u64::MAX - 1, elf::R_X86_64_64.0, 0), RelocationFault::Outside);
    assert_eq!(relocation(0, elf::R_X86_64_32S.0, 0), RelocationFault::Type(11));
    assert_eq!(relocation(0, elf::R_X86_64_GOTPCREL.0, 4), RelocationFault::Addend(4));
    let outside = with(&|made| {
        made.defined("beyond", made.text, 9);
    });
    assert!(matches!(outside, ReadError::Symbol { fault: SymbolFault::Outside, .. }), "{outside}");
    let twice = with(&|made| {
        made.defined("one", made.text, 0);
        made.defined("one", made.text, 4);
    });
    assert!(matches!(twice, ReadError::Symbol { fault: SymbolFault::Taken(_), .. }), "{twice}");
    // Lists of functions that nobody would call, by their names: their type says nothing of it.
    for name in [".ctors", ".dtors", ".init_array", ".init_array.00100", ".fini_array", ".preinit_array"] {
        let listed = with(&|made| {
            let list = made.section(name, SectionKind::Data);
            made.object.append_section_data(list, &[0; 8], 8);
            made.object.section_mut(list).flags = flags(elf::SectionFlags(elf::SHF_ALLOC.0 | elf::SHF_WRITE.0));
        });
        assert_eq!(fault(listed), SectionFault::Constructors, "{name}");
    }
    let other = Module::read(&sample(Architecture::Aarch64), of, &Limits::USUAL).expect_err("another machine");
    assert_eq!(other, ReadError::Machine { machine: 183, wanted: 62 });
    let few = Limits { entries: 3, ..Limits::USUAL };
    assert!(matches!(Module::read(&sample(of), of, &few), Err(ReadError::Many { limit: 3, .. })));
}

/// Many symbols may share the bytes of one long name, so that names are bounded one by one.
#[test]
fn long_names_are_refused() {
    let of = Architecture::X86_64;
    let limits = Limits { name: 12, ..Limits::USUAL };
    let with = |change: &dyn Fn(&mut Made)| {
        let mut made = Made::new(of);
        made.object.append_section_data(made.text, &[0; 8], 4);
        change(&mut made);
        Module::read(&made.bytes(), of, &limits).map(|_| ())
    };
    let exported = |name: &str| {
        with(&|made| {
            made.defined(name, made.text, 0);
        })
    };
    let needed = |name: &str| {
        with(&|made| {
            made.undefined(name);
        })
    };
    let placed = |name: &str| {
        with(&|made| {
            let data = made.section(name, SectionKind::Data);
            made.object.append_section_data(data, &[0; 8], 8);
        })
    };
    for name in [&exported as &dyn Fn(&str) -> Result<(), ReadError>, &needed] {
        assert_eq!(name("just_as_long"), Ok(()));
        let long = name("one_too_longs").expect_err("13 bytes");
        assert!(matches!(long, ReadError::LongName { what: Count::Symbols, limit: 12, .. }), "{long}");
    }
    assert_eq!(placed(".data.long_1"), Ok(()));
    let long = placed(".data.long_12").expect_err("13 bytes");
    assert!(matches!(long, ReadError::LongName { what: Count::Sections, limit: 12, .. }), "{long}");
}

#[test]
fn lengths_do_not_wrap() {
    let of = Architecture::X86_64;
    let mut made = Made::new(of);
    for (name, len) in [(".bss.most", u64::MAX - 7), (".bss.more", 8)] {
        let zeros = made.section(name, SectionKind::UninitializedData);
        made.object.append_section_bss(zeros, len, 16);
    }
    let limits = Limits { part: usize::MAX, ..Limits::USUAL };
    let error = Module::read(&made.bytes(), of, &limits).expect_err("longer than the address space");
    assert_eq!(error, ReadError::Large { part: Part::Data, limit: usize::MAX });
}

#[test]
fn tables_are_whole_and_one() {
    let of = Architecture::X86_64;
    let with = |lens: &[usize]| {
        let mut made = Made::new(of);
        for len in lens {
            let table = made.section(".table", SectionKind::Data);
            made.object.append_section_data(table, &vec![0; *len], 8);
        }
        read(&made.bytes(), of).expect("a module").table(".table", 16)
    };
    assert_eq!(with(&[]), Ok(None));
    assert_eq!(with(&[32]), Ok(Some((Part::Data, 0..32))));
    assert!(matches!(with(&[24]), Err(ReadError::Entries { len: 24, entry: 16, .. })));
    assert!(matches!(with(&[16, 16]), Err(ReadError::Twice { .. })));
}

#[test]
fn code_of_words_is_not_changed_between_them() {
    let mut made = Made::new(Architecture::Aarch64);
    made.object.append_section_data(made.text, &[0; 12], 4);
    let kernel = made.undefined("kernel");
    made.relocate(made.text, 2, elf::R_AARCH64_CALL26.0, kernel, 0);
    let error = read(&made.bytes(), Architecture::Aarch64).map(|_| ()).expect_err("between two instructions");
    assert!(matches!(error, ReadError::Relocation { fault: RelocationFault::Alignment, .. }), "{error}");
}

#[test]
fn an_object_that_is_cut_off_is_refused() {
    for of in [Architecture::X86_64, Architecture::Aarch64] {
        let bytes = sample(of);
        assert!(read(&bytes, of).expect("a module").link(&AT, exporting(NEAR)).is_ok());
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len], of).is_err(), "{len} of {} bytes", bytes.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Damaged objects: whatever is read fits the limits, and linking it ends.
    #[test]
    fn damage_is_bounded(
        is_arm: bool,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        kernel: u64,
    ) {
        let of = if is_arm { Architecture::Aarch64 } else { Architecture::X86_64 };
        let mut bytes = sample(of);
        let len = bytes.len();
        damage.iter().for_each(|(index, byte)| bytes[index.index(len)] = *byte);
        let Ok(module) = read(&bytes, of) else { return Ok(()) };
        for part in Part::ALL {
            let extent = module.extent(part);
            prop_assert!(extent.len <= Limits::USUAL.part && extent.align <= Limits::USUAL.align);
        }
        if let Ok(linked) = module.link(&AT, |_| Some(kernel)) {
            prop_assert!(Part::ALL.iter().all(|part| linked.bytes(*part).len() == module.extent(*part).len));
        }
    }
}
