//! Debug information of a program whose lines are known: one unit, its functions, and a table of lines.

use gimli::{
    DW_AT_decl_file, DW_AT_decl_line, DW_AT_high_pc, DW_AT_language, DW_AT_low_pc, DW_AT_name, DW_LANG_C99,
    DW_TAG_subprogram, Encoding, Format, LineEncoding, SectionId,
    write::{Address, AttributeValue, Dwarf, EndianVec, FileId, LineProgram, LineString, Sections, Unit},
};

use crate::observe::{
    Loaded, SourceLines,
    eh_frame::{ADDRESS_BYTES, native_endian},
    symbol_name::symbol_name,
};

/// Sections with content, by name.
pub(super) type Described = Vec<(&'static str, Vec<u8>)>;

/// Describes `loaded`, whose `lines` these are.
///
/// # Errors
/// The lines cannot be written.
pub(super) fn write(loaded: &Loaded<'_>, lines: &SourceLines) -> Result<Described, gimli::write::Error> {
    // Version 4: gdb 7 reads it, and files have their names in the table itself.
    let encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: ADDRESS_BYTES };
    let (address, len) = (Address::Constant(loaded.address.get() as u64), loaded.code.len() as u64);
    let first = lines.files().next().unwrap_or_default();
    let text = |text: &str| LineString::String(text.into());
    // File names are those that the compiler got; its working directory is unknown.
    let directory = text(".");
    let mut table = LineProgram::new(encoding, LineEncoding::default(), directory, None, text(first), None);
    let directory = table.default_directory();
    let files: Vec<FileId> = lines.files().map(|file| table.add_file(text(file), directory, None)).collect();
    table.begin_sequence(Some(address));
    for (file, line) in lines.within(0..loaded.code.len()) {
        let row = table.row();
        (row.address_offset, row.file) = (line.offset.into(), files[file]);
        (row.line, row.column) = (line.line.into(), line.column.into());
        table.generate_row();
    }
    table.end_sequence(len);

    let mut dwarf = Dwarf::new();
    let unit = dwarf.units.add(Unit::new(encoding, table));
    let unit = dwarf.units.get_mut(unit);
    let root = unit.root();
    let of_unit = unit.get_mut(root);
    of_unit.set(DW_AT_name, AttributeValue::String(first.into()));
    of_unit.set(DW_AT_language, AttributeValue::Language(DW_LANG_C99));
    of_unit.set(DW_AT_low_pc, AttributeValue::Address(address));
    of_unit.set(DW_AT_high_pc, AttributeValue::Udata(len));
    for one in loaded.symbols() {
        let entry = unit.add(root, DW_TAG_subprogram);
        let function = unit.get_mut(entry);
        function.set(DW_AT_name, AttributeValue::String(symbol_name(one.name).as_bytes().into()));
        function.set(DW_AT_low_pc, AttributeValue::Address(Address::Constant(one.address.get() as u64)));
        function.set(DW_AT_high_pc, AttributeValue::Udata(one.code.len() as u64));
        let start = one.address.get() - loaded.address.get();
        if let Some((file, line)) = lines.within(start..start + one.code.len()).next() {
            function.set(DW_AT_decl_file, AttributeValue::FileIndex(Some(files[file])));
            function.set(DW_AT_decl_line, AttributeValue::Udata(line.line.into()));
        }
    }

    let mut sections = Sections::new(EndianVec::new(native_endian()));
    dwarf.write(&mut sections)?;
    let mut described = Described::new();
    sections.for_each(|id: SectionId, data| {
        if !data.slice().is_empty() {
            described.push((id.name(), data.slice().to_vec()));
        }
        Ok::<(), gimli::write::Error>(())
    })?;
    Ok(described)
}
