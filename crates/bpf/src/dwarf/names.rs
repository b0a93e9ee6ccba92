//! Finds types by their names: one pass over all entries.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use gimli::{AttributeValue, DwTag};

use super::units::{Place, Refers, Slice, Units};
use super::{Asked, DwarfError};

/// How deeply entries nest at most; compilers need a few dozen levels.
const MOST_DEPTH: usize = 4096;

/// Entries whose names matter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// A type.
    Type,
    /// Only contains types.
    Place,
}

const fn named(tag: DwTag) -> Option<Named> {
    match tag {
        gimli::DW_TAG_structure_type
        | gimli::DW_TAG_class_type
        | gimli::DW_TAG_union_type
        | gimli::DW_TAG_enumeration_type
        | gimli::DW_TAG_typedef
        | gimli::DW_TAG_template_alias
        | gimli::DW_TAG_base_type => Some(Named::Type),
        gimli::DW_TAG_namespace | gimli::DW_TAG_module => Some(Named::Place),
        _ => None,
    }
}

/// What an entry says of itself.
#[derive(Default)]
struct Said<'a> {
    name: Option<AttributeValue<Slice<'a>>>,
    is_declared_only: bool,
    completes: bool,
}

/// Returns the places of the types that are asked for, each with its number in `asked`.
pub(super) fn find(units: &Units<'_>, asked: &[Asked]) -> Result<Vec<(usize, Place)>, DwarfError> {
    let mut numbers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, asked) in asked.iter().enumerate() {
        numbers.entry(&asked.name).or_default().push(number);
    }
    let mut found = Vec::new();
    for root in units.roots() {
        let mut cursor = units.cursor(root)?;
        // The names of the entries around it, one for each level; empty for entries without names.
        let mut path: Vec<&str> = Vec::new();
        // Behind the root's children there may be padding.
        while let Some(depth) = cursor.depth().and_then(|depth| usize::try_from(depth).ok()) {
            let place = cursor.place();
            let Some(kind) = cursor.kind()? else { continue };
            if depth >= MOST_DEPTH {
                return Err(DwarfError::Wrong { what: "entries nest too deeply" });
            }
            path.truncate(depth);
            let Some(named) = named(kind.tag()) else {
                cursor.skip(kind)?;
                path.push("");
                continue;
            };
            let mut said = Said::default();
            cursor.attributes(kind, |attribute| match attribute.name() {
                gimli::DW_AT_name => said.name = Some(attribute.value()),
                gimli::DW_AT_declaration => said.is_declared_only = true,
                gimli::DW_AT_specification => said.completes = true,
                _ => {}
            })?;
            let name = match said.completes {
                true => name_of_first(units, place)?,
                false => said.name.and_then(|name| units.text(place, name)),
            };
            let name = name.unwrap_or_default();
            if named == Named::Type && !said.is_declared_only {
                let numbers = numbers.get(name).map_or(&[] as &[usize], |numbers| numbers);
                units.look(numbers.len())?;
                for number in numbers.iter().filter(|number| ends_with(&path, &asked[**number].within)) {
                    units.keep(size_of::<(usize, Place)>())?;
                    found.push((*number, place));
                }
            }
            path.push(name);
        }
    }
    Ok(found)
}

/// Returns the name in the declaration that the entry completes (C++).
fn name_of_first<'a>(units: &Units<'a>, place: Place) -> Result<Option<&'a str>, DwarfError> {
    let entry = units.entry(place)?;
    let Refers::To(first) = units.refers(place, &entry, gimli::DW_AT_specification) else { return Ok(None) };
    let first_entry = units.entry(first)?;
    Ok(first_entry.attr_value(gimli::DW_AT_name).and_then(|name| units.text(first, name)))
}

fn ends_with(path: &[&str], end: &[String]) -> bool {
    let own = path.iter().rev();
    path.len() >= end.len() && own.zip(end.iter().rev()).all(|(own, asked)| *own == asked)
}
