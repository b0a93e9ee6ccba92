//! Puts programs together: each function with all that it calls.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::adapt::{self, Target};
use super::extension::LineRecord;
use super::externs::Externs;
use super::maps::{MapSource, Place};
use super::program::Program;
use super::types::{FunctionPlace, types};
use super::{Addend, ObjectError, Parts, Reference, Symbol};
use crate::code::MOST_SLOTS;
use crate::host::Declaration;
use crate::insn::SLOT;
use crate::verify::FunctionType;

/// Kinds of references (`include/llvm/BinaryFormat/ELFRelocs/BPF.def` of LLVM, which RFC 9669's appendix names).
const WIDE: u32 = 1;
const CALL: u32 = 10;

/// Operation codes that have references: a load of 64 bits, and a call.
const LOAD_WIDE: u8 = 0x18;
const CALL_CODE: u8 = 0x85;
/// Sources of a load of 64 bits, and of a call.
const FUNCTION: u8 = 4;
const MAP: u8 = 5;
const MAP_VALUE: u8 = 6;
const LOCAL: u8 = 1;
const HOST: u8 = 2;

/// A call, or a load of an address, still to be filled in.
struct Fixup {
    /// The slot, in the program.
    slot: usize,
    /// Slots of the instruction.
    slots: usize,
    callee: FunctionPlace,
}

/// A program that is being put together.
struct Linker<'a> {
    parts: &'a Parts<'a>,
    maps: &'a BTreeMap<Place, i32>,
    functions: &'a BTreeMap<FunctionPlace, u64>,
    /// What global functions take.
    types: &'a BTreeMap<FunctionPlace, FunctionType>,
    target: Option<&'a Target<'a>>,
    externs: &'a mut Externs,
    /// Slots that are left.
    room: usize,
    name: &'a str,
    bytes: Vec<u8>,
    lines: Vec<(u32, LineRecord)>,
    /// What functions take, by the slots in which they begin.
    typed: Vec<(u32, FunctionType)>,
    placed: BTreeMap<FunctionPlace, usize>,
    waiting: Vec<FunctionPlace>,
    fixups: Vec<Fixup>,
}

/// Returns the programs of an object: its visible functions outside `.text`; if there are none, those in `.text`.
pub(super) fn programs(
    parts: &Parts<'_>,
    maps: &[(Place, MapSource)],
    target: Option<&Target<'_>>,
) -> Result<(Vec<Program>, Vec<Declaration>), ObjectError> {
    let mut externs = Externs::default();
    let mut functions = BTreeMap::new();
    let mut entries: Vec<(&Symbol<'_>, FunctionPlace)> = Vec::new();
    for symbol in &parts.symbols {
        let Some(section) = symbol.section.filter(|section| symbol.is_function && parts.sections[*section].is_code)
        else {
            continue;
        };
        functions.insert((section, symbol.offset), symbol.size);
        if symbol.is_global {
            entries.push((symbol, (section, symbol.offset)));
        }
    }
    let is_text = |(_, (section, _)): &(&Symbol<'_>, FunctionPlace)| parts.sections[*section].name == ".text";
    if !entries.iter().all(is_text) {
        entries.retain(|entry| !is_text(entry));
    }
    let types = types(parts);
    let maps = maps.iter().zip(0..).map(|((place, _), index)| (*place, index)).collect();
    // For all programs together: many may share their functions.
    let mut room = MOST_SLOTS;
    let mut programs = Vec::new();
    for (symbol, place) in entries {
        let mut linker = Linker {
            parts,
            maps: &maps,
            functions: &functions,
            types: &types,
            target,
            externs: &mut externs,
            room,
            name: symbol.name,
            bytes: Vec::new(),
            lines: Vec::new(),
            typed: Vec::new(),
            placed: BTreeMap::new(),
            waiting: Vec::from([place]),
            fixups: Vec::new(),
        };
        linker.link()?;
        // Also a function without code takes room here.
        let slots = (linker.bytes.len() / SLOT).max(1);
        let program = || symbol.name.to_string();
        room = room.checked_sub(slots).ok_or_else(|| ObjectError::Long { program: program(), most: MOST_SLOTS })?;
        let section = parts.sections[place.0].name;
        programs.push(Program::new(symbol.name, section, linker.bytes, linker.lines, linker.typed, parts.btf.clone()));
    }
    let declared = externs.declared(parts.btf.as_deref());
    let names: Arc<[String]> = declared.iter().map(|declared| declared.name.clone()).collect();
    for program in &mut programs {
        program.set_functions(&names);
    }
    Ok((programs, declared))
}

fn imm(bytes: &[u8], slot: usize) -> i32 {
    bytes[slot * SLOT..].get(4..8).and_then(|imm| imm.first_chunk()).map_or(0, |imm| i32::from_le_bytes(*imm))
}

fn set_imm(bytes: &mut [u8], slot: usize, value: i32) {
    bytes[slot * SLOT + 4..slot * SLOT + 8].copy_from_slice(&value.to_le_bytes());
}

impl Linker<'_> {
    fn link(&mut self) -> Result<(), ObjectError> {
        while let Some(place) = self.waiting.pop() {
            if !self.placed.contains_key(&place) {
                self.place(place)?;
            }
        }
        for fixup in &self.fixups {
            let target = self.placed[&fixup.callee];
            let distance = target as i64 - (fixup.slot + fixup.slots) as i64;
            set_imm(&mut self.bytes, fixup.slot, distance as i32);
        }
        Ok(())
    }

    fn error(&self, section: usize, offset: u64, what: &'static str, symbol: &str) -> ObjectError {
        let section = self.parts.sections[section].name.to_string();
        ObjectError::Reference { section, offset, what, symbol: symbol.to_string() }
    }

    /// Appends a function.
    fn place(&mut self, place: FunctionPlace) -> Result<(), ObjectError> {
        let (section, start) = place;
        let name = self.parts.sections[section].name;
        let size = self.functions.get(&place).copied();
        let size = size.ok_or_else(|| self.error(section, start, "there is no function at", name))?;
        let data = self.parts.sections[section].data;
        let range = usize::try_from(start).ok().zip(usize::try_from(size).ok());
        let code = range
            .and_then(|(start, size)| data.get(start..)?.get(..size))
            .filter(|code| code.len().is_multiple_of(SLOT) && start.is_multiple_of(SLOT as u64));
        let code = code.ok_or_else(|| self.error(section, start, "the function here reaches beyond", name))?;
        let first = self.bytes.len() / SLOT;
        if first + code.len() / SLOT > self.room {
            return Err(ObjectError::Long { program: self.name.to_string(), most: MOST_SLOTS });
        }
        self.placed.insert(place, first);
        self.typed.extend(self.types.get(&place).map(|takes| (first as u32, takes.clone())));
        self.bytes.extend_from_slice(code);
        self.adapt(section, start, size, first)?;
        self.note_lines(section, start, size, first);
        let count = code.len() / SLOT;
        let mut slot = 0;
        while slot < count {
            slot += self.resolve(section, start + (slot * SLOT) as u64, first + slot)?;
        }
        Ok(())
    }

    /// Resolves the instruction at `offset` of the section, in `slot` of the program. Returns how many slots it has.
    fn resolve(&mut self, section: usize, offset: u64, slot: usize) -> Result<usize, ObjectError> {
        let at = slot * SLOT;
        let (opcode, source) = (self.bytes[at], self.bytes[at + 1] >> 4);
        let references = &self.parts.references[section];
        let found = references.binary_search_by_key(&offset, |(offset, _)| *offset).ok();
        let reference = found.map(|place| &references[place].1);
        match (opcode, reference) {
            (LOAD_WIDE, _) if at + 2 * SLOT > self.bytes.len() => Ok(1),
            (LOAD_WIDE, Some(reference)) => {
                self.resolve_load(section, offset, slot, reference)?;
                Ok(2)
            }
            (LOAD_WIDE, None) => Ok(2),
            (CALL_CODE, Some(reference)) => {
                self.resolve_call(section, offset, slot, reference)?;
                Ok(1)
            }
            (CALL_CODE, None) if source == LOCAL => {
                // Within the section, where the assembler knew the distance.
                let target = offset as i64 + (1 + i64::from(imm(&self.bytes, slot))) * SLOT as i64;
                let name = self.parts.sections[section].name;
                let target = u64::try_from(target);
                let target = target.map_err(|_| self.error(section, offset, "a call goes before", name))?;
                self.call(slot, 1, (section, target));
                Ok(1)
            }
            (_, Some(reference)) => {
                let symbol = self.symbol(section, offset, reference)?;
                Err(self.error(section, offset, "an instruction that is no load and no call refers to", symbol.name))
            }
            _ => Ok(1),
        }
    }

    fn symbol(&self, section: usize, offset: u64, reference: &Reference) -> Result<&Symbol<'_>, ObjectError> {
        let symbol = self.parts.symbols.get(reference.symbol);
        symbol.ok_or_else(|| self.error(section, offset, "a reference to a symbol that is not there", ""))
    }

    fn call(&mut self, slot: usize, slots: usize, callee: FunctionPlace) {
        self.waiting.push(callee);
        self.fixups.push(Fixup { slot, slots, callee });
    }

    fn resolve_call(
        &mut self,
        section: usize,
        offset: u64,
        slot: usize,
        reference: &Reference,
    ) -> Result<(), ObjectError> {
        let symbol = self.symbol(section, offset, reference)?;
        if reference.kind != CALL {
            return Err(self.error(section, offset, "a call refers in a way that is not known to", symbol.name));
        }
        let Some(target) = symbol.section else {
            if symbol.name.is_empty() {
                return Err(self.error(section, offset, "a call refers to a symbol without a name", ""));
            }
            let name = symbol.name.to_string();
            let index = self.externs.index(name);
            let (registers, offset) = (slot * SLOT + 1, slot * SLOT + 2);
            self.bytes[registers] = self.bytes[registers] & 0x0f | HOST << 4;
            self.bytes[offset..offset + 2].fill(0);
            set_imm(&mut self.bytes, slot, index);
            return Ok(());
        };
        // For a section, the instruction gives the slots behind its beginning, minus one.
        let slots = i64::from(imm(&self.bytes, slot)) + 1;
        let added = match reference.addend {
            Some(addend) => addend,
            None if symbol.is_section => slots * SLOT as i64,
            None => 0,
        };
        let callee = symbol.offset.checked_add_signed(added);
        let callee = callee.ok_or_else(|| self.error(section, offset, "a call goes before", symbol.name))?;
        self.bytes[slot * SLOT + 1] = self.bytes[slot * SLOT + 1] & 0x0f | LOCAL << 4;
        self.call(slot, 1, (target, callee));
        Ok(())
    }

    fn resolve_load(
        &mut self,
        section: usize,
        offset: u64,
        slot: usize,
        reference: &Reference,
    ) -> Result<(), ObjectError> {
        let symbol = self.symbol(section, offset, reference)?;
        let Some(target) = symbol.section else {
            return Err(self.error(section, offset, "nothing in this object is called", symbol.name));
        };
        if reference.kind != WIDE {
            return Err(self.error(section, offset, "a load refers in a way that is not known to", symbol.name));
        }
        let place = match reference.addend {
            None if !symbol.is_section => self.place_of(target, symbol, imm(&self.bytes, slot)),
            given => {
                let added = given.unwrap_or_else(|| imm(&self.bytes, slot).into());
                symbol.offset.checked_add_signed(added).ok_or("a load refers to what is before")
            }
        };
        let place = place.map_err(|what| self.error(section, offset, what, symbol.name))?;
        if self.parts.sections[target].is_code {
            self.bytes[slot * SLOT + 1] = self.bytes[slot * SLOT + 1] & 0x0f | FUNCTION << 4;
            set_imm(&mut self.bytes, slot + 1, 0);
            self.call(slot, 2, (target, place));
            return Ok(());
        }
        let variables = self.maps.get(&Place::Variables { section: target }).map(|index| (*index, Some(place)));
        let defined = || self.maps.get(&Place::Defined { section: target, offset: place }).map(|index| (*index, None));
        let found = variables.or_else(defined);
        let Some((index, value)) = found else {
            let what = "there is neither a map nor a variable in the section that is referred to by";
            return Err(self.error(section, offset, what, symbol.name));
        };
        let (source, value) = match value {
            None => (MAP, 0),
            Some(value) => {
                let far = || self.error(section, offset, "a load refers to what is far behind", symbol.name);
                (MAP_VALUE, u32::try_from(value).map_err(|_| far())?)
            }
        };
        self.bytes[slot * SLOT + 1] = self.bytes[slot * SLOT + 1] & 0x0f | source << 4;
        set_imm(&mut self.bytes, slot, index);
        set_imm(&mut self.bytes, slot + 1, value as i32);
        Ok(())
    }

    /// Returns what a load with this immediate refers to by a named symbol of section `target`.
    fn place_of(&self, target: usize, symbol: &Symbol<'_>, imm: i32) -> Result<u64, &'static str> {
        // Functions and maps have no inside.
        if !self.maps.contains_key(&Place::Variables { section: target }) {
            return Ok(symbol.offset);
        }
        let from_symbol = symbol.offset.checked_add_signed(imm.into()).ok_or("a load refers to what is before");
        if self.parts.addend == Addend::Symbol {
            return from_symbol;
        }
        // Which of both counts depends on the assembler's version, so that only one may be in the variable.
        let from_section = u64::try_from(imm).map_err(|_| "a load refers to what is before")?;
        let is_inside = |place: &u64| (symbol.offset..symbol.offset.saturating_add(symbol.size)).contains(place);
        let found = [Some(from_section), from_symbol.ok().filter(|place| *place != from_section)];
        let mut found = found.into_iter().flatten().filter(is_inside);
        match (found.next(), found.next()) {
            (Some(place), None) => Ok(place),
            (None, _) => Err("a load refers to what is outside of"),
            _ => Err("a load may refer to two places of a variable; put it into a section of its own, as `.data.x`:"),
        }
    }

    /// Adapts this function, as recorded by the compiler, to the types of the target.
    fn adapt(&mut self, section: usize, start: u64, size: u64, first: usize) -> Result<(), ObjectError> {
        let (Some(target), Some(local)) = (self.target, &self.parts.btf) else { return Ok(()) };
        let Some(told) = self.parts.told.get(self.parts.sections[section].name) else { return Ok(()) };
        for adaptation in told.adaptations_of(&(start..start + size)) {
            let slot = first + (u64::from(adaptation.offset) - start) as usize / SLOT;
            let adapted = adapt::apply(&mut self.bytes, slot, adaptation, local, target);
            adapted.map_err(|source| ObjectError::Adapt { program: self.name.to_string(), source })?;
        }
        Ok(())
    }

    fn note_lines(&mut self, section: usize, start: u64, size: u64, first: usize) {
        let Some(told) = self.parts.told.get(self.parts.sections[section].name) else { return };
        for record in told.lines_of(&(start..start + size)) {
            let slot = first as u32 + (u64::from(record.offset) - start) as u32 / SLOT as u32;
            self.lines.push((slot, *record));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Addend;
    use super::*;

    /// Where a load with this immediate goes: to a variable of 8 bytes at 16, or one of 100 at 8.
    fn place(addend: Addend, imm: i32, (offset, size): (u64, u64)) -> Result<u64, &'static str> {
        let parts = Parts {
            len: 0,
            sections: Vec::new(),
            symbols: Vec::new(),
            references: Vec::new(),
            btf: None,
            told: BTreeMap::new(),
            addend,
        };
        let linker = Linker {
            parts: &parts,
            maps: &BTreeMap::from([(Place::Variables { section: 3 }, 0)]),
            functions: &BTreeMap::new(),
            types: &BTreeMap::new(),
            target: None,
            externs: &mut Externs::default(),
            room: 0,
            name: "",
            bytes: Vec::new(),
            lines: Vec::new(),
            typed: Vec::new(),
            placed: BTreeMap::new(),
            waiting: Vec::new(),
            fixups: Vec::new(),
        };
        let symbol = Symbol { name: "v", section: Some(3), offset, size, ..Symbol::none() };
        // In a section of maps or functions the symbol alone counts.
        assert_eq!(linker.place_of(2, &symbol, imm), Ok(offset));
        linker.place_of(3, &symbol, imm)
    }

    #[test]
    fn addends_count_as_the_assembler_writes_them() {
        let (number, table) = ((16, 8), (8, 100));
        let clang = |imm, variable| place(Addend::Symbol, imm, variable);
        assert_eq!([clang(0, number), clang(4, number), clang(8, table)], [Ok(16), Ok(20), Ok(16)]);
        assert!(clang(-17, number).is_err());
        let gnu = |imm, variable| place(Addend::Section, imm, variable);
        assert_eq!(
            [gnu(16, number), gnu(20, number), gnu(0, table), gnu(101, table)],
            [Ok(16), Ok(20), Ok(8), Ok(101)]
        );
        // Another assembler that does not add the symbol.
        assert_eq!([gnu(0, number), gnu(4, number), gnu(7, table)], [Ok(16), Ok(20), Ok(15)]);
        for (imm, variable) in [(24, number), (12, number), (-1, number), (108, table), (8, table), (99, table)] {
            assert!(gnu(imm, variable).is_err(), "{imm} {variable:?}");
        }
        // Both mean the same at the beginning of a section.
        assert_eq!(gnu(40, (0, 100)), Ok(40));
    }
}
