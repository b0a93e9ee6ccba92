//! `.BTF.ext`: which line of the source each instruction comes from, and what to adapt to other types.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use super::btf::{Btf, BtfError, Reader, TypeId};

/// A line of the source, for the instructions from an offset on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LineRecord {
    /// Bytes into the section of code.
    pub(super) offset: u32,
    pub(super) file: u32,
    pub(super) text: u32,
    pub(super) line: u32,
    pub(super) column: u32,
}

/// Something about a type that an instruction was compiled with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Adaptation {
    /// Bytes into the section of code.
    pub(super) offset: u32,
    pub(super) of: TypeId,
    /// A text: which members and elements lead from the type to what is meant.
    pub(super) access: u32,
    pub(super) kind: u32,
}

/// What is known about one section of code, by its name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Told {
    /// By offset.
    pub(super) lines: Vec<LineRecord>,
    pub(super) adaptations: Vec<Adaptation>,
}

/// Parses what is known about all sections of code.
pub(super) fn parse(bytes: &[u8], btf: &Btf) -> Result<BTreeMap<String, Told>, BtfError> {
    let all = Reader::new(".BTF.ext", bytes);
    let mut header = all;
    let len = header.header()?;
    let mut told = BTreeMap::new();
    // Functions, which are not used here; lines; and, in newer objects, adaptations.
    let mut fields = all.part(8, len.saturating_sub(8))?;
    let mut part = || match fields.is_at_end() {
        true => Ok(None),
        false => Ok(Some((fields.u32()? as usize, fields.u32()? as usize))),
    };
    let (_functions, lines, adaptations) = (part()?, part()?, part()?);
    if let Some((offset, count)) = lines {
        let mut reader = all.part(len.saturating_add(offset), count)?;
        each(&mut reader, btf, &mut told, 16, |told, record| {
            let (offset, file, text, place) = (record.u32()?, record.u32()?, record.u32()?, record.u32()?);
            told.lines.push(LineRecord { offset, file, text, line: place >> 10, column: place & 0x3ff });
            Ok(())
        })?;
    }
    if let Some((offset, count)) = adaptations {
        let mut reader = all.part(len.saturating_add(offset), count)?;
        each(&mut reader, btf, &mut told, 16, |told, record| {
            let (offset, of, access, kind) = (record.u32()?, record.u32()?, record.u32()?, record.u32()?);
            told.adaptations.push(Adaptation { offset, of, access, kind });
            Ok(())
        })?;
    }
    for told in told.values_mut() {
        // One line for each instruction.
        told.lines.sort_by_key(|line: &LineRecord| line.offset);
        told.lines.dedup_by_key(|line| line.offset);
        // One for each instruction, too.
        told.adaptations.sort_unstable();
        told.adaptations.dedup_by_key(|one| one.offset);
    }
    Ok(told)
}

impl Told {
    /// Returns the lines of instructions at these bytes of the section.
    pub(super) fn lines_of(&self, range: &Range<u64>) -> &[LineRecord] {
        let place = |end: u64| self.lines.partition_point(|line| u64::from(line.offset) < end);
        self.lines.get(place(range.start)..place(range.end)).unwrap_or_default()
    }

    /// Returns what to adapt at these bytes of the section.
    pub(super) fn adaptations_of(&self, range: &Range<u64>) -> &[Adaptation] {
        let place = |end: u64| self.adaptations.partition_point(|one| u64::from(one.offset) < end);
        self.adaptations.get(place(range.start)..place(range.end)).unwrap_or_default()
    }
}

/// Calls `add` with each record and its section's entry.
fn each<'a>(
    reader: &mut Reader<'a>,
    btf: &Btf,
    told: &mut BTreeMap<String, Told>,
    least: usize,
    mut add: impl FnMut(&mut Told, &mut Reader<'a>) -> Result<(), BtfError>,
) -> Result<(), BtfError> {
    if reader.is_at_end() {
        return Ok(());
    }
    let size = reader.u32()? as usize;
    while !reader.is_at_end() {
        let section = btf.text(reader.u32()?);
        let count = reader.u32()?;
        // 8 bytes of input must not buy an entry with a copy of a long name.
        if count == 0 {
            continue;
        }
        let told = told.entry(String::from(section)).or_default();
        for _ in 0..count {
            let bytes = reader.take(size.max(least))?;
            add(told, &mut Reader::new(".BTF.ext", bytes))?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Makes a section of these parts, with its header.
    pub(in crate::elf) fn section(parts: &[Vec<u8>]) -> Vec<u8> {
        let len = 8 + 8 * parts.len() as u32;
        let mut bytes = Vec::new();
        bytes.extend(0x0001_eb9f_u32.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        let mut offset = 0;
        for part in parts {
            bytes.extend(u32::to_le_bytes(offset));
            bytes.extend((part.len() as u32).to_le_bytes());
            offset += part.len() as u32;
        }
        bytes.extend(parts.concat());
        bytes
    }

    pub(in crate::elf) fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn an_instruction_is_adapted_once() {
        let btf = Btf::parse(&section(&[Vec::new(), b"\0code\0".to_vec()])).expect("no types, and two texts");
        // Nothing is told of the section whose name is at 2.
        let records = [words(&[16, 2, 0, 1, 2]), words(&[8, 1, 0, 0]), words(&[8, 2, 0, 5])].concat();
        let told = parse(&section(&[Vec::new(), Vec::new(), records]), &btf).expect("its structure is right");
        assert!(told.keys().eq(["code"]), "{told:?}");
        let adaptations = told["code"].adaptations_of(&(0..16));
        assert_eq!(adaptations, [Adaptation { offset: 8, of: 1, access: 0, kind: 0 }]);
    }
}
