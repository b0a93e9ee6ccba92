//! Maps of the section `maps`: the old kind, defined by numbers one after the other (libbpf's `struct bpf_map_def`).

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Bound;

use super::attributes::{Attributes, Pinning};
use super::{ObjectError, Parts};
use crate::map::{Definition, Kind};

/// Bytes of a definition in the section `maps` that each has: kind, lengths, entries. Flags follow, and behind
/// them what other loaders know.
const LEGACY: usize = 16;
/// Most bytes of a definition there; iproute2's has 36.
const MOST_LEGACY: usize = 64;

/// Finds the maps of the section with this index, and where in it they are.
pub(super) fn find(parts: &Parts<'_>, index: usize) -> Result<Vec<(u64, Definition, Pinning)>, ObjectError> {
    let mut maps = Vec::new();
    let in_section = || {
        let found = parts.symbols.iter().filter(|symbol| symbol.section == Some(index) && !symbol.is_section);
        found.filter(|symbol| !symbol.name.is_empty())
    };
    let offsets: BTreeSet<u64> = in_section().map(|symbol| symbol.offset).collect();
    for symbol in in_section() {
        let wrong = |what| ObjectError::Map { map: symbol.name.to_string(), what };
        let start = usize::try_from(symbol.offset).unwrap_or(usize::MAX);
        let bytes = parts.sections[index].data.get(start..).filter(|bytes| bytes.len() >= LEGACY);
        let mut bytes = bytes.ok_or_else(|| wrong("its definition reaches beyond the section `maps`"))?;
        // It ends where the next begins, whatever the symbol's size.
        if let Some(next) = offsets.range((Bound::Excluded(symbol.offset), Bound::Unbounded)).next() {
            let len = usize::try_from(next - symbol.offset).unwrap_or(usize::MAX);
            bytes = bytes.get(..len).unwrap_or(bytes);
        }
        if !(LEGACY..=MOST_LEGACY).contains(&bytes.len()) {
            return Err(wrong("its definition has fewer than 16 or more than 64 bytes; give it a symbol of its own"));
        }
        let field =
            |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let kind =
            Kind::new(field(0)).ok_or_else(|| ObjectError::Kind { map: symbol.name.to_string(), kind: field(0) })?;
        let mut definition = Definition::new(symbol.name, kind, field(4), field(8), field(12));
        let pinning = Attributes { flags: field(16), ..Attributes::default() }.apply(&mut definition)?;
        if bytes.iter().skip(LEGACY + 4).any(|byte| *byte != 0) {
            return Err(wrong("its definition goes on behind `map_flags`; define it in the section .maps"));
        }
        maps.push((symbol.offset, definition, pinning));
    }
    Ok(maps)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::super::extension::tests::words;
    use super::super::{Addend, Section, Symbol};
    use super::*;
    use crate::map::ValueAccess;

    /// The maps of a section `maps` with these words, which begin at these bytes.
    fn accesses(all: &[u32], starts: &[u64]) -> Result<Vec<ValueAccess>, ObjectError> {
        let bytes = words(all);
        let symbol = |offset: &u64| Symbol { name: "m", section: Some(0), offset: *offset, ..Symbol::none() };
        let parts = Parts {
            len: bytes.len(),
            sections: Vec::from([Section { name: "maps", data: &bytes, size: bytes.len() as u64, is_code: false }]),
            symbols: starts.iter().map(symbol).collect(),
            references: Vec::new(),
            btf: None,
            told: BTreeMap::new(),
            addend: Addend::Symbol,
        };
        find(&parts, 0).map(|maps| maps.into_iter().map(|(_, definition, _)| definition.access).collect())
    }

    #[test]
    fn old_definitions_end_where_the_next_begins() {
        let access = |all: &[u32], starts: &[u64]| accesses(all, starts).map_err(|error| error.to_string());
        let (read, write) = (ValueAccess::Read, ValueAccess::Write);
        // The flags are the fifth word; without it, the kind of the next is none.
        assert_eq!(access(&[2, 4, 8, 1, 0x80, 2, 4, 8, 1, 0], &[0, 20]), Ok(Vec::from([read, write])));
        assert_eq!(access(&[2, 4, 8, 1, 2, 4, 8, 1], &[0, 16]), Ok(Vec::from([write; 2])));
        assert_eq!(access(&[2, 4, 8, 1, 0x80], &[0, 0]), Ok(Vec::from([read; 2])));
        let flag = "map `m`: BPF_F_WRONLY_PROG (0x100): programs that may write may also read; leave it out";
        assert_eq!(access(&[2, 4, 8, 1, 0x100], &[0]), Err(flag.to_string()));
        assert_eq!(access(&[2, 4, 8, 1, 0, 0, 0], &[0]), Ok(Vec::from([write])));
        let behind = "map `m`: its definition goes on behind `map_flags`; define it in the section .maps";
        assert_eq!(access(&[2, 4, 8, 1, 0, 0, 1], &[0]), Err(behind.to_string()));
        let len = "map `m`: its definition has fewer than 16 or more than 64 bytes; give it a symbol of its own";
        let mut long = Vec::from([2, 4, 8, 1]);
        long.resize(17, 0);
        assert_eq!(access(&long, &[0]), Err(len.to_string()));
        assert_eq!(access(&long[..16], &[0]), Ok(Vec::from([write])));
        assert_eq!(access(&[2, 4, 8, 2, 4, 8, 1, 0], &[0, 12]), Err(len.to_string()));
    }
}
