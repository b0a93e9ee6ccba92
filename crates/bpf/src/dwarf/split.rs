//! Types that are not in the program: the compiler has left them in a `.dwo` file for each unit (`-gsplit-dwarf`,
//! `split-debuginfo`), or a tool has put these files into one package, a `.dwp` file.
//!
//! A unit of the program and its unit elsewhere have the same number, a sum of their contents: what has another number
//! is of another build, and is not read. A package has indexes, which tell which parts of its sections each `.dwo` file
//! was. Of these indexes only the table of parts is used, and not the table of numbers, in which a search could be made
//! to take long.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use std::path::{Path, PathBuf};

use gimli::{DebugCuIndex, DebugTuIndex, EndianSlice, IndexSectionId, LittleEndian, UnitIndex};

use super::units::{Role, Sections, Skeleton, Units, View};
use super::{DwarfError, file};

/// Most `.dwo` files of a program.
const MOST_FILES: usize = 1 << 16;

/// The debug information of a program, wherever it is.
#[derive(Debug)]
pub(super) struct Files {
    /// The program's own.
    own: Sections,
    split: Vec<Sections>,
    package: Option<Package>,
    /// A `.dwo` file that is not there.
    absent: Option<String>,
}

impl Files {
    /// Takes the program's own sections, without looking for others.
    pub(super) fn alone(own: Sections, most: u64) -> Result<Self, DwarfError> {
        let absent =
            Units::new([own.view(Role::Program)], most)?.skeletons().first().map(|first| first.file.to_owned());
        Ok(Self { own, split: Vec::new(), package: None, absent })
    }

    /// Reads the sections of a program, and of its `.dwp` file beside one of `places`, or of its `.dwo` files: in the
    /// folder of one of `places`, or where the compiler has left them.
    pub(super) fn find(own: Sections, places: &[&Path], most: u64) -> Result<Self, DwarfError> {
        let Found { split, package, absent } = Search::new(places, &own, most).run(&own)?;
        Ok(Self { own, split, package, absent })
    }

    /// Returns all units, the program's own first.
    pub(super) fn views(&self) -> impl Iterator<Item = View<'_>> {
        let split = self.split.iter().map(|sections| sections.view(Role::Split));
        let package =
            self.package.iter().flat_map(|Package { sections, parts }| parts.iter().map(|p| p.view(sections)));
        [self.own.view(Role::Program)].into_iter().chain(split).chain(package)
    }

    /// Returns the name of a `.dwo` file that is not there.
    pub(super) fn absent(&self) -> Option<&str> {
        self.absent.as_deref()
    }
}

/// Says in which file something is wrong.
fn apart(path: &Path) -> impl FnOnce(DwarfError) -> DwarfError {
    move |source| DwarfError::Apart { path: path.to_owned(), source: Box::new(source) }
}

/// What a search has found.
#[derive(Default)]
struct Found {
    split: Vec<Sections>,
    package: Option<Package>,
    absent: Option<String>,
}

/// A search for the `.dwo` files that a program names.
struct Search<'p> {
    /// The program, and the separate file with its debug information.
    places: &'p [&'p Path],
    /// Numbers of the units that are not found yet.
    ids: BTreeSet<u64>,
    /// Bytes that may still be read. What is read in vain counts, too: a program may name one file in many ways.
    left: u64,
    most: u64,
}

impl<'p> Search<'p> {
    fn new(places: &'p [&'p Path], own: &Sections, most: u64) -> Self {
        Self { places, ids: BTreeSet::new(), left: most.saturating_sub(own.bytes()), most }
    }

    fn run(&mut self, own: &Sections) -> Result<Found, DwarfError> {
        let units = Units::new([own.view(Role::Program)], self.most)?;
        units.keep(size_of_val(units.skeletons()))?;
        let mut skeletons = units.skeletons().to_vec();
        skeletons.sort_unstable();
        skeletons.dedup();
        if skeletons.len() > MOST_FILES {
            return Err(DwarfError::Wrong { what: "it names more than 65536 .dwo files" });
        }
        self.ids = skeletons.iter().filter_map(|skeleton| skeleton.id).collect();
        let mut found = Found::default();
        // A file that cannot be read matters only if no other has what is wanted.
        let mut wrong_package = None;
        for place in self.places.iter().filter(|_| !skeletons.is_empty()) {
            let mut path = place.as_os_str().to_owned();
            path.push(".dwp");
            let path = PathBuf::from(path);
            match self.package(&path) {
                Ok(None) => {}
                Ok(package) => {
                    found.package = package;
                    break;
                }
                Err(error) => wrong_package = wrong_package.or(Some(apart(&path)(error))),
            }
        }
        // A file may have many units.
        for group in skeletons.chunk_by(|a, b| (a.file, a.folder) == (b.file, b.folder)) {
            let mut wrong = None;
            for path in self.paths(group[0]) {
                if !self.wants(group) {
                    break;
                }
                match self.file(&path) {
                    Ok(sections) => found.split.extend(sections),
                    Err(error) => wrong = wrong.or(Some(apart(&path)(error))),
                }
            }
            if self.wants(group)
                && let Some(error) = wrong.or_else(|| wrong_package.take())
            {
                return Err(error);
            }
            let is_absent = |skeleton: &Skeleton<'_>| skeleton.id.is_none_or(|id| self.ids.contains(&id));
            if found.absent.is_none() && group.iter().any(is_absent) {
                found.absent = Some(group[0].file.to_owned());
            }
        }
        Ok(found)
    }

    /// Returns whether one of these units is not found yet.
    fn wants(&self, skeletons: &[Skeleton<'_>]) -> bool {
        skeletons.iter().filter_map(|skeleton| skeleton.id).any(|id| self.ids.contains(&id))
    }

    /// Returns where the file of this unit may be. A program says where only by a whole path: the folder in which the
    /// host happens to run is nobody's to name.
    fn paths(&self, skeleton: Skeleton<'_>) -> Vec<PathBuf> {
        let name = Path::new(skeleton.file);
        let folders = || self.places.iter().filter_map(|place| place.parent());
        let only = name.file_name();
        let mut paths: Vec<PathBuf> = only.iter().flat_map(|only| folders().map(move |at| at.join(only))).collect();
        // Whole paths remain as they are.
        paths.extend(folders().map(|folder| folder.join(skeleton.folder.unwrap_or_default()).join(name)));
        paths.dedup();
        paths
    }

    /// Reads a `.dwo` file; `None` if it has no unit that is wanted, or does not exist.
    fn file(&mut self, path: &Path) -> Result<Option<Sections>, DwarfError> {
        let Some(sections) = file::open_split(path, &mut self.left)? else { return Ok(None) };
        let units = Units::new([sections.view(Role::Split)], self.most)?;
        let wanted = self.ids.len();
        for id in units.ids() {
            self.ids.remove(id);
        }
        drop(units);
        Ok((self.ids.len() < wanted).then_some(sections))
    }

    /// Reads a package; `None` if it has no unit that is wanted, or does not exist.
    fn package(&mut self, path: &Path) -> Result<Option<Package>, DwarfError> {
        let Some(sections) = file::open_split(path, &mut self.left)? else { return Ok(None) };
        let mut found = BTreeSet::new();
        let mut parts = parts(&sections)?;
        let mut first_error = None;
        parts.retain(|part| match Units::new([part.view(&sections)], self.most) {
            Ok(units) => {
                let before = found.len();
                found.extend(units.ids().iter().filter(|id| self.ids.contains(id)).copied());
                found.len() > before
            }
            Err(error) => {
                first_error.get_or_insert(error);
                false
            }
        });
        if let Some(error) = first_error {
            return Err(error);
        }
        self.ids.retain(|id| !found.contains(id));
        Ok((!parts.is_empty()).then_some(Package { sections, parts }))
    }
}

/// A `.dwp` file.
#[derive(Debug)]
struct Package {
    sections: Sections,
    /// Those that belong to the program.
    parts: Vec<Part>,
}

/// What a package has of a `.dwo` file.
#[derive(Debug, Default)]
struct Part {
    info: Vec<Range<usize>>,
    types: Vec<Range<usize>>,
    abbreviations: Range<usize>,
    text_offsets: Range<usize>,
}

impl Part {
    fn view<'a>(&self, sections: &'a Sections) -> View<'a> {
        let parts =
            |section: &'a [u8], ranges: &[Range<usize>]| ranges.iter().map(|range| &section[range.clone()]).collect();
        View {
            role: Role::Split,
            info: parts(&sections.info, &self.info),
            types: parts(&sections.types, &self.types),
            abbreviations: &sections.abbreviations[self.abbreviations.clone()],
            texts: &sections.texts,
            line_texts: &sections.line_texts,
            text_offsets: &sections.text_offsets[self.text_offsets.clone()],
        }
    }
}

/// Returns the parts of a package, each within its section, and none read twice.
fn parts(sections: &Sections) -> Result<Vec<Part>, DwarfError> {
    let units = DebugCuIndex::new(&sections.unit_index, LittleEndian).index()?;
    let types = DebugTuIndex::new(&sections.type_index, LittleEndian).index()?;
    let mut parts: BTreeMap<[usize; 4], Part> = BTreeMap::new();
    for index in [units, types] {
        // An index without sections says nothing of its rows, however many it claims to have.
        let rows = if index.section_count() == 0 { 0 } else { index.unit_count() };
        for row in 1..=rows {
            let Row { info, types, abbreviations, text_offsets } = Row::read(&index, row, sections)?;
            let key = [abbreviations.start, abbreviations.end, text_offsets.start, text_offsets.end];
            let part = parts.entry(key).or_insert(Part { abbreviations, text_offsets, ..Part::default() });
            part.info.extend(info);
            part.types.extend(types);
        }
    }
    let parts: Vec<Part> = parts.into_values().collect();
    // Else a short file could have its bytes read again for each of many rows.
    if !are_apart(&sections.info, parts.iter().flat_map(|part| &part.info))
        || !are_apart(&sections.types, parts.iter().flat_map(|part| &part.types))
        || !are_apart(&sections.abbreviations, parts.iter().map(|part| &part.abbreviations))
    {
        return Err(DwarfError::Wrong { what: "parts of a package overlap" });
    }
    Ok(parts)
}

/// Whether ranges have no more bytes than their section.
fn are_apart<'a>(section: &[u8], mut ranges: impl Iterator<Item = &'a Range<usize>>) -> bool {
    ranges.try_fold(section.len(), |left, range| left.checked_sub(range.len())).is_some()
}

/// What an index says of a unit.
#[derive(Default)]
struct Row {
    info: Option<Range<usize>>,
    types: Option<Range<usize>>,
    abbreviations: Range<usize>,
    text_offsets: Range<usize>,
}

impl Row {
    fn read(
        index: &UnitIndex<EndianSlice<'_, LittleEndian>>,
        row: u32,
        sections: &Sections,
    ) -> Result<Self, DwarfError> {
        let mut read = Self::default();
        for part in index.sections(row)? {
            let start = part.offset as usize;
            let range = start..start.saturating_add(part.size as usize);
            let within = |section: &[u8]| match section.get(range.clone()) {
                Some(_) => Ok(range.clone()),
                None => Err(DwarfError::Wrong { what: "a part of a package reaches beyond its section" }),
            };
            match part.section {
                IndexSectionId::DebugInfo => read.info = Some(within(&sections.info)?),
                IndexSectionId::DebugTypes => read.types = Some(within(&sections.types)?),
                IndexSectionId::DebugAbbrev => read.abbreviations = within(&sections.abbreviations)?,
                IndexSectionId::DebugStrOffsets => read.text_offsets = within(&sections.text_offsets)?,
                _ => {}
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index of version 5, with units and abbreviations: for each row where both begin, and how long they are.
    fn index(sections: u32, count: u32, rows: &[[u32; 4]]) -> Vec<u8> {
        let head = [5, sections, count, 0, 1, 3].into_iter().take(4 + sections as usize);
        let offsets = rows.iter().flat_map(|[info, abbreviations, ..]| [*info, *abbreviations]);
        let sizes = rows.iter().flat_map(|[.., info, abbreviations]| [*info, *abbreviations]);
        head.chain(offsets).chain(sizes).flat_map(u32::to_le_bytes).collect()
    }

    fn package(index: Vec<u8>) -> Result<usize, DwarfError> {
        let (info, abbreviations) = (alloc::vec![0; 100], alloc::vec![0; 50]);
        parts(&Sections { info, abbreviations, unit_index: index, ..Sections::default() }).map(|parts| parts.len())
    }

    #[test]
    fn packages_say_nothing_impossible() {
        let right = [[0, 0, 60, 20], [60, 20, 40, 30]];
        assert!(matches!(package(index(2, 2, &right)), Ok(2)));
        for wrong in [[60, 20, 41, 30], [61, 20, 40, 30], [60, 21, 40, 30], [u32::MAX, 20, u32::MAX, 30]] {
            assert!(matches!(package(index(2, 2, &[right[0], wrong])), Err(DwarfError::Wrong { .. })), "{wrong:?}");
        }
        // All together have no more bytes than the section.
        for twice in [[59, 20, 41, 30], [60, 19, 40, 31]] {
            assert!(matches!(package(index(2, 2, &[right[0], twice])), Err(DwarfError::Wrong { .. })), "{twice:?}");
        }
        // As many rows as it likes, of which each has nothing.
        assert!(matches!(package(index(0, u32::MAX, &[])), Ok(0)));
        assert!(package(index(2, u32::MAX, &right)).is_err());
    }
}
