//! The object file that describes one program to a debugger.

use object::{
    Endianness, elf,
    write::elf::{FileHeader, SectionHeader, Sym, Writer},
};

use super::dwarf;
use crate::observe::{Loaded, arch::ELF_MACHINE, symbol_name::symbol_name};

/// Alignment of the sections within the file, in bytes.
const SECTION_ALIGNMENT: u64 = 8;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    #[error("the object file cannot be written")]
    Object(#[from] object::write::Error),
    #[error("the lines of the source cannot be described")]
    Lines(#[from] gimli::write::Error),
}

/// Writes an ELF file with the known information on frames and lines, and with symbols at their final addresses: one
/// for the program, or one for each function inside if those are known.
///
/// The code itself is not copied: `.text` is NOBITS at that address, and debuggers read instructions from the process.
/// It has the flags of code, because gdb looks only at allocated sections when it asks which object owns an address.
///
/// # Errors
/// The file would not fit its own offsets, or the lines cannot be described.
pub(super) fn write(loaded: &Loaded<'_>) -> Result<Vec<u8>, ImageError> {
    let address = loaded.address.get() as u64;
    let len = loaded.code.len() as u64;
    let mut described = match loaded.lines {
        Some(lines) if !lines.is_empty() => dwarf::write(loaded, lines)?,
        _ => dwarf::Described::new(),
    };
    described.extend(loaded.eh_frame.map(|data| (".eh_frame", data.to_vec())));
    let endian = if cfg!(target_endian = "little") { Endianness::Little } else { Endianness::Big };

    let mut image = Vec::new();
    let mut writer = Writer::new(endian, cfg!(target_pointer_width = "64"), &mut image);
    writer.reserve_file_header();
    let symbols: Vec<_> = loaded.symbols().map(|one| (symbol_name(one.name), one)).collect();
    let symbols: Vec<_> =
        symbols.iter().map(|(name, one)| (writer.add_string(name.as_bytes()), one.address, one.code.len())).collect();
    let text_name = writer.add_section_name(b".text");
    writer.reserve_null_section_index();
    let text_section = writer.reserve_section_index();
    let mut placed = Vec::new();
    for (section, data) in &described {
        let section_name = writer.add_section_name(section.as_bytes());
        writer.reserve_section_index();
        placed.push((section_name, data, writer.reserve(data.len() as u64, SECTION_ALIGNMENT)));
    }
    writer.reserve_null_symbol_index();
    for _ in &symbols {
        writer.reserve_symbol_index(Some(text_section));
    }
    writer.reserve_symtab_section_index();
    writer.reserve_symtab();
    writer.reserve_strtab_section_index();
    writer.reserve_strtab()?;
    writer.reserve_shstrtab_section_index();
    writer.reserve_shstrtab()?;
    writer.reserve_section_headers();

    writer.write_file_header(&FileHeader {
        os_abi: elf::ELFOSABI_NONE,
        abi_version: 0,
        // Symbol values are addresses and nothing is relocated.
        e_type: elf::ET_EXEC,
        e_machine: ELF_MACHINE,
        e_entry: 0,
        e_flags: elf::FileFlags::default(),
    })?;
    for (_, data, offset) in &placed {
        writer.pad_until(*offset);
        writer.write(data);
    }
    writer.write_null_symbol();
    for (name, address, len) in symbols {
        let name = writer.string_offset(Some(name));
        writer.write_symbol(&Sym {
            section: Some(text_section.0),
            st_name: name,
            st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
            st_other: elf::SymbolOther::default(),
            st_shndx: elf::SymbolSection::default(),
            st_value: address.get() as u64,
            st_size: len as u64,
        });
    }
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    let text_name_offset = writer.section_name_offset(Some(text_name));
    writer.write_section_header(&SectionHeader {
        sh_name: text_name_offset,
        sh_type: elf::SHT_NOBITS,
        sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
        sh_addr: address,
        sh_offset: 0,
        sh_size: len,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 1,
        sh_entsize: 0,
    });
    for (section_name, data, offset) in placed {
        let section_name_offset = writer.section_name_offset(Some(section_name));
        writer.write_section_header(&SectionHeader {
            sh_name: section_name_offset,
            sh_type: elf::SHT_PROGBITS,
            // Not allocated: it has no address in the process, and its pointers are absolute.
            sh_flags: elf::SectionFlags::default(),
            sh_addr: 0,
            sh_offset: offset,
            sh_size: data.len() as u64,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: SECTION_ALIGNMENT,
            sh_entsize: 0,
        });
    }
    writer.write_symtab_section_header(1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    Ok(image)
}
