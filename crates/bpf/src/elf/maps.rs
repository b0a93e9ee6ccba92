//! The maps of an object: those that types define, those of the section `maps`, and sections of variables.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::attributes::{Attributes, Pinning};
use super::btf::{Btf, Form, Type, TypeId, Variable};
use super::{ObjectError, Parts, legacy};
use crate::map::{Definition, Kind, ValueAccess};

/// A map that an object wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapSource {
    definition: Definition,
    /// The initial bytes of its only value, for variables.
    value: Option<Vec<u8>>,
    /// Its initial elements by number, for maps of maps and of programs.
    initial: Vec<(u32, Initial)>,
    pinning: Pinning,
}

/// An initial element of a map of maps or of programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Initial {
    /// A map of the object, by index.
    Map(usize),
    /// A program of the object, by name.
    Program(String),
}

impl MapSource {
    pub(super) const fn of(definition: Definition, pinning: Pinning) -> Self {
        Self { definition, value: None, initial: Vec::new(), pinning }
    }

    /// Returns whether it is shared by its name.
    pub const fn pinning(&self) -> Pinning {
        self.pinning
    }

    /// Returns what it is made from.
    pub const fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Returns its initial elements by number, if it is a map of maps or of programs.
    /// [`Object::host`](super::Object::host) puts maps in; the host puts programs in, once they are loaded.
    pub fn initial(&self) -> &[(u32, Initial)] {
        &self.initial
    }

    /// Returns the initial bytes of its only value, if it is a section of variables; the rest is zero.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }
}

/// Where something is: a section, and bytes into it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    /// The map itself, which is defined there.
    Defined { section: usize, offset: u64 },
    /// Variables: all of a section.
    Variables { section: usize },
}

/// Most members of a structure that defines a map; about a dozen are known.
const MOST_MEMBERS: usize = 64;

/// Finds all maps, and where they are.
pub(super) fn find(parts: &Parts<'_>) -> Result<Vec<(Place, MapSource)>, ObjectError> {
    let mut all = MOST_IN_ALL;
    find_within(parts, &mut all)
}

fn find_within(parts: &Parts<'_>, all: &mut usize) -> Result<Vec<(Place, MapSource)>, ObjectError> {
    let variables = Variables::new(parts);
    let mut maps = Vec::new();
    let mut copied = 0;
    let mut defining = BTreeSet::new();
    for (index, section) in parts.sections.iter().enumerate() {
        // Each of these is searched for all maps.
        if matches!(section.name, "maps" | ".maps") && !defining.insert(section.name) {
            return Err(ObjectError::Damaged { reason: format!("there are two sections `{}`", section.name) });
        }
        match section.name {
            "maps" => {
                let found = legacy::find(parts, index)?.into_iter();
                maps.extend(found.map(|(offset, definition, pinning)| {
                    (Place::Defined { section: index, offset }, MapSource::of(definition, pinning))
                }));
            }
            ".maps" => typed(parts, index, all, &mut maps)?,
            name if is_variables(name) && section.size > 0 => {
                let value_len = u32::try_from(section.size).unwrap_or(u32::MAX);
                let mut definition = Definition::new(name, Kind::Array, 4, value_len, 1);
                if name.starts_with(".rodata") {
                    definition.access = ValueAccess::Read;
                } else {
                    let wrong = |what| ObjectError::Map { map: name.to_string(), what };
                    definition.lock = within(all, |budget| variables.lock(index, name, budget)).map_err(wrong)?;
                }
                // Sections that share their bytes could be far more than the file.
                copied += section.data.len();
                if copied > parts.len {
                    return Err(ObjectError::Damaged { reason: "sections of variables overlap".to_string() });
                }
                let mut source = MapSource::of(definition, Pinning::None);
                source.value = Some(Vec::from(section.data));
                maps.push((Place::Variables { section: index }, source));
            }
            _ => {}
        }
    }
    Ok(maps)
}

/// Whether a section of this name has variables.
fn is_variables(name: &str) -> bool {
    [".data", ".rodata", ".bss"]
        .iter()
        .any(|kind| name.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

fn typed(
    parts: &Parts<'_>,
    index: usize,
    all: &mut usize,
    maps: &mut Vec<(Place, MapSource)>,
) -> Result<(), ObjectError> {
    let none = |what| ObjectError::Map { map: ".maps".to_string(), what };
    let btf = parts.btf.as_ref().ok_or_else(|| none("the section needs types; compile with -g"))?;
    let variables = btf.ids().find_map(|(_, found)| match &found.form {
        Form::Section(variables) if btf.text(found.name) == ".maps" => Some(variables),
        _ => None,
    });
    let in_section = parts.symbols.iter().filter(|symbol| symbol.section == Some(index));
    let offsets: BTreeMap<&str, u64> = in_section.map(|symbol| (symbol.name, symbol.offset)).collect();
    // Maps with values: where they begin, and where their values do.
    let mut starts = BTreeMap::new();
    for variable in variables.ok_or_else(|| none("the section is not among the types"))? {
        let name = btf.get(variable.of).map_or("", |found| btf.text(found.name));
        // The compiler leaves offsets to the linker, so that the symbol tells the place.
        let offset = offsets.get(name).copied().unwrap_or_else(|| variable.offset.into());
        let (source, values) = define(btf, name, variable.of, all)?;
        if let Some(values) = values {
            let values = offset.checked_add(values.into()).ok_or_else(|| none("a map lies behind every address"))?;
            starts.insert(offset, (maps.len(), values));
        }
        maps.push((Place::Defined { section: index, offset }, source));
    }
    initialise(parts, index, &starts, maps)
}

/// Notes initial elements: references from where their values are written.
fn initialise(
    parts: &Parts<'_>,
    index: usize,
    starts: &BTreeMap<u64, (usize, u64)>,
    maps: &mut [(Place, MapSource)],
) -> Result<(), ObjectError> {
    let places: BTreeMap<Place, usize> = maps.iter().enumerate().map(|(map, (place, _))| (*place, map)).collect();
    if starts.is_empty() {
        return Ok(());
    }
    let functions = parts.symbols.iter().filter(|symbol| symbol.is_function);
    let functions: BTreeMap<_, _> = functions.map(|symbol| ((symbol.section, symbol.offset), symbol.name)).collect();
    for (offset, reference) in &parts.references[index] {
        let Some((_, &(map, values))) = starts.range(..=offset).next_back() else { continue };
        let source = &mut maps[map].1;
        let wrong = |what| ObjectError::Map { map: source.definition.name.clone(), what };
        let Some(behind) = offset.checked_sub(values) else { continue };
        let number = u32::try_from(behind / 8).ok().filter(|number| *number < source.definition.max_entries);
        let number = number.filter(|_| behind.is_multiple_of(8));
        let number = number.ok_or_else(|| wrong("it has more initial values than entries"))?;
        let symbol = parts.symbols.get(reference.symbol).ok_or_else(|| wrong("an initial value is no symbol"))?;
        let target = symbol.section.ok_or_else(|| wrong("an initial value is not in this object"))?;
        // Without an addend the bytes at the reference have it.
        let bytes =
            usize::try_from(*offset).ok().and_then(|start| parts.sections[index].data.get(start..)?.first_chunk());
        let added = reference.addend.unwrap_or_else(|| bytes.map_or(0, |bytes| i64::from_le_bytes(*bytes)));
        let place = symbol.offset.checked_add_signed(added).unwrap_or(u64::MAX);
        let initial = if source.definition.kind.has_maps() {
            let found = places.get(&Place::Defined { section: target, offset: place });
            Initial::Map(*found.ok_or_else(|| wrong("an initial value is no map"))?)
        } else if source.definition.kind == Kind::Programs {
            let name = functions.get(&(Some(target), place)).filter(|name| !name.is_empty());
            Initial::Program(name.ok_or_else(|| wrong("an initial value is no function"))?.to_string())
        } else {
            return Err(wrong("only maps of maps and of programs have initial values"));
        };
        source.initial.push((number, initial));
    }
    Ok(())
}

/// Makes a map from the structure that defines it: numbers are the counts of arrays that pointers point to, and types
/// are what pointers point to (libbpf's `__uint` and `__type`). Also returns the offset in bytes at which its initial
/// values begin (`__array`).
fn define(btf: &Btf, name: &str, of: TypeId, all: &mut usize) -> Result<(MapSource, Option<u32>), ObjectError> {
    define_within(btf, name, of, Nesting::Outer, all)
}

/// Whether a map is defined by itself, or as one inside others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nesting {
    Outer,
    Inner,
}

fn define_within(
    btf: &Btf,
    name: &str,
    of: TypeId,
    nesting: Nesting,
    all: &mut usize,
) -> Result<(MapSource, Option<u32>), ObjectError> {
    let wrong = |what| ObjectError::Map { map: name.to_string(), what };
    let Some(Form::Struct { members, .. }) = btf.resolved(of).map(|(_, found)| &found.form) else {
        return Err(wrong("its type is no structure"));
    };
    let pointed = |id: TypeId| match btf.resolved(id)?.1.form {
        Form::Pointer(to) => Some(to),
        _ => None,
    };
    let number = |id: TypeId| match btf.resolved(pointed(id)?)?.1.form {
        Form::Array { count, .. } => Some(count),
        _ => None,
    };
    // Many maps may have one type.
    if members.len() > MOST_MEMBERS {
        return Err(wrong("its structure has more than 64 members"));
    }
    let (mut kind, mut key_len, mut value_len, mut entries) = (None, 0, 0, 0);
    let (mut values, mut inner, mut timer, mut lock) = (None, None, None, None);
    let mut attributes = Attributes::default();
    for member in members {
        let count = || number(member.of).ok_or_else(|| wrong("a number is written wrongly; use __uint"));
        let size = || {
            let size = pointed(member.of).and_then(|to| btf.size(to));
            size.ok_or_else(|| wrong("the type of keys or values has no size; use __type"))
        };
        match btf.text(member.name) {
            "type" => kind = Some(count()?),
            "key" => key_len = size()?,
            "key_size" => key_len = count()?,
            "value" => {
                value_len = size()?;
                let mut place = |inside| {
                    let place = |value| within(all, |budget| place_of(btf, inside, value, budget));
                    Ok::<_, ObjectError>(pointed(member.of).map(place).transpose().map_err(wrong)?.flatten())
                };
                (timer, lock) = (place(&TIMER)?, place(&LOCK)?);
            }
            "value_size" => value_len = count()?,
            "max_entries" => entries = count()?,
            "map_flags" => attributes.flags = count()?,
            "map_extra" => attributes.extra = count()?,
            "pinning" => attributes.pinning = count()?,
            "numa_node" => attributes.numa_node = Some(count()?),
            "values" => {
                let Some(Form::Array { of, .. }) = btf.resolved(member.of).map(|(_, found)| &found.form) else {
                    return Err(wrong("its values are written wrongly; use __array"));
                };
                values = Some(member.offset / 8);
                // Programs are functions, and what is not a function is a map.
                inner = pointed(*of)
                    .filter(|to| matches!(btf.resolved(*to), Some((_, Type { form: Form::Struct { .. }, .. }))));
            }
            _ => return Err(wrong("its structure has a member that is not known")),
        }
    }
    let kind = kind.ok_or_else(|| wrong("its structure has no `type`"))?;
    let kind = Kind::new(kind).ok_or_else(|| ObjectError::Kind { map: name.to_string(), kind })?;
    let mut definition = Definition { timer, lock, ..Definition::new(name, kind, key_len, value_len, entries) };
    match inner {
        Some(inner) if nesting == Nesting::Outer && kind.has_maps() => {
            let (inner, _) = define_within(btf, name, inner, Nesting::Inner, all)?;
            if inner.pinning != Pinning::None {
                return Err(wrong("what is in it is pinned; pin maps that have a name"));
            }
            definition.inner = Some(Box::new(inner.definition));
        }
        Some(_) => return Err(wrong("maps are in maps of maps, and not deeper")),
        None => {}
    }
    if matches!(kind, Kind::Programs | Kind::ArrayOfMaps | Kind::HashOfMaps) && definition.value_len == 0 {
        definition.value_len = 4;
    }
    if matches!(kind, Kind::Programs | Kind::ArrayOfMaps) && definition.key_len == 0 {
        definition.key_len = 4;
    }
    let pinning = attributes.apply(&mut definition)?;
    Ok((MapSource::of(definition, pinning), values))
}

/// Members of types that are looked at for timers and locks, in all values of a map, or all variables.
const MOST_LOOKED_AT: usize = 4096;
/// The same in all maps and variables of an object: many may have one type.
const MOST_IN_ALL: usize = 1 << 20;

/// Calls `search` with a budget that is part of what is left for all.
fn within<T>(all: &mut usize, search: impl FnOnce(&mut usize) -> Result<T, &'static str>) -> Result<T, &'static str> {
    let most = all.checked_sub(1).ok_or("the maps and variables up to it have too many members")?;
    let given = most.min(MOST_LOOKED_AT);
    let mut budget = given;
    let found = search(&mut budget);
    *all = most - (given - budget);
    found
}

/// A part of a value that only helpers reach: its type, and why there cannot be two.
struct Inside {
    name: &'static str,
    second: &'static str,
}

const TIMER: Inside = Inside { name: "bpf_timer", second: "its values have more than one timer" };
const LOCK: Inside = Inside { name: "bpf_spin_lock", second: "its values have more than one lock" };

/// Returns the offset of such a part in a value of this type, in bytes.
fn place_of(btf: &Btf, inside: &Inside, value: TypeId, budget: &mut usize) -> Result<Option<u32>, &'static str> {
    let mut open = Vec::from([(value, 0_u32)]);
    let mut found = None;
    while let Some((of, offset)) = open.pop() {
        let Some((_, Type { name, form })) = btf.resolved(of) else { continue };
        let Form::Struct { members, .. } = form else { continue };
        if btf.text(*name) == inside.name {
            if found.replace(offset).is_some() {
                return Err(inside.second);
            }
            continue;
        }
        for member in members.iter().filter(|member| member.bits.is_none()) {
            *budget = budget.checked_sub(1).ok_or("its values have too many members")?;
            open.push((member.of, offset.saturating_add(member.offset / 8)));
        }
    }
    Ok(found)
}

/// Variables: what the types tell of each section, and where its symbols are. Many sections may have variables, so that
/// each list is read once for all.
struct Variables<'a> {
    btf: Option<&'a Btf>,
    /// By the section's name.
    told: BTreeMap<&'a str, &'a [Variable]>,
    /// Bytes into the section, by its index and the name.
    offsets: BTreeMap<(usize, &'a str), u64>,
}

impl<'a> Variables<'a> {
    fn new(parts: &'a Parts<'_>) -> Self {
        let mut this = Self { btf: parts.btf.as_deref(), told: BTreeMap::new(), offsets: BTreeMap::new() };
        let Some(btf) = this.btf else { return this };
        for (_, found) in btf.ids() {
            if let Form::Section(variables) = &found.form {
                this.told.entry(btf.text(found.name)).or_insert(variables);
            }
        }
        for symbol in &parts.symbols {
            let section = symbol.section.filter(|section| this.told.contains_key(parts.sections[*section].name));
            this.offsets.extend(section.map(|section| ((section, symbol.name), symbol.offset)));
        }
        this
    }

    /// Returns the offset of the lock among a section's variables.
    fn lock(&self, index: usize, section: &str, budget: &mut usize) -> Result<Option<u32>, &'static str> {
        let Some(btf) = self.btf else { return Ok(None) };
        let mut found = None;
        for variable in self.told.get(section).copied().unwrap_or_default() {
            *budget = budget.checked_sub(1).ok_or("it has too many variables")?;
            let Some(place) = place_of(btf, &LOCK, variable.of, budget)? else { continue };
            // As for maps: the compiler leaves offsets to the linker.
            let name = btf.get(variable.of).map_or("", |found| btf.text(found.name));
            let offset = self.offsets.get(&(index, name)).copied().unwrap_or_else(|| variable.offset.into());
            let place = u32::try_from(offset).ok().and_then(|offset| offset.checked_add(place));
            if found.replace(place.ok_or("a lock is far behind")?).is_some() {
                return Err("its variables have more than one lock; put each into a section of its own");
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::super::extension::tests::{section, words};
    use super::super::{Addend, Section, Symbol};
    use super::*;

    /// A structure with the member `type`, a ring buffer, and `others` called `max_entries`.
    fn types(others: u32) -> Btf {
        let mut types = words(&[0, 1 << 24, 4, 32]);
        // An array of 27, and a pointer to it.
        types.extend(words(&[0, 3 << 24, 0, 1, 1, 27]));
        types.extend(words(&[0, 2 << 24, 2]));
        types.extend(words(&[0, 4 << 24 | (1 + others), 8, 1, 3, 0]));
        (0..others).for_each(|_| types.extend(words(&[6, 3, 0])));
        Btf::parse(&section(&[types, b"\0type\0max_entries\0".to_vec()])).expect("four types")
    }

    #[test]
    fn a_map_is_defined_by_few_members() {
        let kind = |others| define(&types(others), "m", 4, &mut 100).map(|(source, _)| source.definition.kind);
        assert_eq!(kind(63), Ok(Kind::RingBuffer));
        let what = "its structure has more than 64 members";
        assert_eq!(kind(64), Err(ObjectError::Map { map: "m".to_string(), what }));
    }

    /// A map of kind 27 or 30 with one attribute more, whose number is the kind, too.
    fn with_attribute(kind: u32, attribute: &str) -> Result<MapSource, ObjectError> {
        let mut types = words(&[0, 1 << 24, 4, 32]);
        types.extend(words(&[0, 3 << 24, 0, 1, 1, kind]));
        types.extend(words(&[0, 2 << 24, 2]));
        types.extend(words(&[0, 4 << 24 | 2, 8, 1, 3, 0, 6, 3, 0]));
        let names = [b"\0type\0", attribute.as_bytes(), b"\0"].concat();
        let btf = Btf::parse(&section(&[types, names])).expect("four types");
        define(&btf, "m", 4, &mut 100).map(|(source, _)| source)
    }

    #[test]
    fn no_attribute_is_ignored() {
        let wrong = |kind, attribute| with_attribute(kind, attribute).map(drop).expect_err(attribute).to_string();
        let flag = "map `m`: BPF_F_NO_PREALLOC (0x1): maps of this kind do not take it; leave it out";
        assert_eq!(wrong(27, "map_flags"), flag);
        let node = "map `m`: numa_node (0x1b): where the memory of a map lies is not chosen; leave it out, and make \
                    the map on a thread of that node";
        assert_eq!(wrong(27, "numa_node"), node);
        let pinning = "map `m`: pinning (0x1b): it is 0, or 1 (LIBBPF_PIN_BY_NAME)";
        assert_eq!(wrong(27, "pinning"), pinning);
        let extra = "map `m`: map_extra (0x1b): only bloom filters have it, for their functions; leave it out";
        assert_eq!(wrong(27, "map_extra"), extra);
        let functions = "map `m`: map_extra (0x1e): a bloom filter has 1 to 15 functions, or 0 for as many as usual";
        assert_eq!(wrong(30, "map_extra"), functions);
        assert_eq!(with_attribute(27, "max_entries").map(|source| source.pinning), Ok(Pinning::None));
    }

    #[test]
    fn a_value_has_one_timer_however_deep() {
        // 1: 8 bytes; 2: a timer; 3: a structure with one at 8; 4: one with that at 24, and perhaps a timer at 48;
        // 5: a structure with a pointer to a timer and one as a bit field, which are none.
        let timer = |second: u32| {
            let mut types = words(&[0, 1 << 24, 8, 64]);
            types.extend(words(&[1, 4 << 24 | 1, 16, 11, 1, 0]));
            types.extend(words(&[0, 4 << 24 | 2, 24, 11, 1, 0, 11, 2, 64]));
            types.extend(words(&[0, 4 << 24 | (1 + second), 64, 11, 3, 24 * 8]));
            (0..second).for_each(|_| types.extend(words(&[11, 2, 48 * 8])));
            types.extend(words(&[0, 2 << 24, 2]));
            types.extend(words(&[0, 1 << 31 | 4 << 24 | 2, 64, 11, 5, 0, 11, 2, 7 << 24 | 64]));
            let btf = Btf::parse(&section(&[types, b"\0bpf_timer\0m\0".to_vec()])).expect("six types");
            [1, 2, 3, 4, 6].map(|of| place_of(&btf, &TIMER, of, &mut 100))
        };
        assert_eq!(timer(0), [Ok(None), Ok(Some(0)), Ok(Some(8)), Ok(Some(32)), Ok(None)]);
        assert_eq!(timer(1)[3], Err("its values have more than one timer"));
        let (few, lock) = (place_of(&types(3), &TIMER, 4, &mut 2), place_of(&types(3), &LOCK, 4, &mut 100));
        assert_eq!((few, lock), (Err("its values have too many members"), Ok(None)));
    }

    #[test]
    fn maps_are_defined_in_one_section() {
        let section = |_| Section { name: "maps", data: &[], size: 0, is_code: false };
        let parts = |count| Parts {
            len: 0,
            sections: (0..count).map(section).collect(),
            symbols: Vec::new(),
            references: Vec::new(),
            btf: None,
            told: BTreeMap::new(),
            addend: Addend::Symbol,
        };
        assert_eq!(find(&parts(1)), Ok(Vec::new()));
        let reason = "there are two sections `maps`".to_string();
        assert_eq!(find(&parts(2)), Err(ObjectError::Damaged { reason }));
    }

    /// An object with sections of these names, of 8 bytes, and symbols; types: 1: 8 bytes; 2: a lock; 3: a structure
    /// with one at 8; 4: a variable `v` of it; 5: the section `.bss.a` with this at 16; 6: the same once more, empty.
    fn with_variables(names: &[&'static str], symbols: Vec<Symbol<'static>>) -> Parts<'static> {
        let mut types = words(&[0, 1 << 24, 8, 64]);
        types.extend(words(&[1, 4 << 24 | 1, 4, 0, 1, 0]));
        types.extend(words(&[0, 4 << 24 | 2, 16, 0, 1, 0, 0, 2, 64]));
        types.extend(words(&[15, 14 << 24, 3, 1]));
        types.extend(words(&[17, 15 << 24 | 1, 0, 4, 16, 16]));
        types.extend(words(&[17, 15 << 24, 0]));
        let btf = Btf::parse(&section(&[types, b"\0bpf_spin_lock\0v\0.bss.a\0".to_vec()])).expect("six types");
        let section = |name: &&'static str| Section { name, data: &[], size: 8, is_code: false };
        Parts {
            len: 0,
            sections: names.iter().map(section).collect(),
            symbols,
            references: Vec::new(),
            btf: Some(Arc::new(btf)),
            told: BTreeMap::new(),
            addend: Addend::Symbol,
        }
    }

    #[test]
    fn a_lock_is_where_its_sections_symbol_is() {
        let symbol = |section, offset| Symbol { name: "v", section: Some(section), offset, ..Symbol::none() };
        let parts = with_variables(&[".bss.b", ".bss.a", ".bss.a"], Vec::from([symbol(0, 64), symbol(2, 32)]));
        let locks: Vec<_> = find(&parts).expect("right").into_iter().map(|(_, map)| map.definition.lock).collect();
        assert_eq!(locks, [None, Some(16 + 8), Some(32 + 8)]);
    }

    #[test]
    fn all_sections_of_variables_have_one_budget() {
        let parts = with_variables(&[".bss.a"; 10], Vec::new());
        // For each: the section, its variable, and the two members of that.
        let mut all = 100;
        assert_eq!(find_within(&parts, &mut all).map(|maps| maps.len()), Ok(10));
        assert_eq!(all, 60);
        let what = "the maps and variables up to it have too many members";
        assert_eq!(find_within(&parts, &mut 36).map(drop), Err(ObjectError::Map { map: ".bss.a".to_string(), what }));
    }
}
