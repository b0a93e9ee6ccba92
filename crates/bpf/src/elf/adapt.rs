//! Compile once, run everywhere: changes instructions that depend on the compiler's types to depend on the target's
//! (`enum bpf_core_relo_kind`, `include/uapi/linux/bpf.h` of Linux).

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::Cell;

use super::btf::{Btf, Form, MOST_STEPS, Member, Type, TypeId};
use super::extension::Adaptation;
use super::matching::{MOST_COMPARED, matches};
use crate::insn::SLOT;

/// Why an instruction cannot be adapted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdaptError {
    /// What the compiler has recorded makes no sense.
    #[error("the record for slot {slot} is damaged: type {of}, access `{access}`, kind {kind}")]
    Record {
        /// The slot.
        slot: usize,
        /// Number of the type.
        of: u32,
        /// The access.
        access: String,
        /// What is wanted.
        kind: u32,
    },
    /// Several types of the target have the name, and differ.
    #[error("slot {slot}: several types of the target are called `{name}`, and differ in what is wanted")]
    Ambiguous {
        /// The slot.
        slot: usize,
        /// Name of the type.
        name: String,
    },
    /// The instruction has no place for the number.
    #[error("slot {slot}: the instruction with the operation code {opcode:#x} has no place for {value}")]
    Place {
        /// The slot.
        slot: usize,
        /// Operation code.
        opcode: u8,
        /// The number.
        value: u64,
    },
}

/// What is wanted of a field, a type or an enumeration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    ByteOffset,
    ByteSize,
    FieldExists,
    Signed,
    ShiftLeft,
    ShiftRight,
    LocalId,
    TargetId,
    TypeExists,
    TypeMatches,
    TypeSize,
    ValueExists,
    Value,
}

impl Wanted {
    const fn new(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::ByteOffset,
            1 => Self::ByteSize,
            2 => Self::FieldExists,
            3 => Self::Signed,
            4 => Self::ShiftLeft,
            5 => Self::ShiftRight,
            6 => Self::LocalId,
            7 => Self::TargetId,
            8 => Self::TypeExists,
            9 => Self::TypeSize,
            10 => Self::ValueExists,
            11 => Self::Value,
            12 => Self::TypeMatches,
            _ => return None,
        })
    }
}

/// A helper that never exists: code that depends on something the target lacks calls it, so that the verifier refuses
/// that code if it can be reached (libbpf does the same).
const POISON: i32 = 195_896_080;

/// Types that programs are adapted to, by name.
pub(super) struct Target<'a> {
    btf: &'a Btf,
    named: BTreeMap<&'a str, Vec<TypeId>>,
    /// Comparisons of types, members and enumerators that are left for the object.
    left: Cell<u32>,
}

impl<'a> Target<'a> {
    pub(super) fn new(btf: &'a Btf) -> Self {
        let mut named: BTreeMap<&str, Vec<TypeId>> = BTreeMap::new();
        // Functions and variables have types, and are none.
        let is_type = |found: &Type| found.name != 0 && !matches!(found.form, Form::Value(_));
        for (id, found) in btf.ids().filter(|(_, found)| is_type(found)) {
            named.entry(plain(btf.text(found.name))).or_default().push(id);
        }
        Self { btf, named, left: Cell::new(MOST_COMPARED) }
    }
}

/// How many bytes a load or store takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Width {
    /// As the compiler said.
    Same,
    /// As many as the target's field.
    Other(u32),
    /// The same, of a number with a sign.
    Signed(u32),
    /// The target's field has another size and cannot be accessed with it: a load extends by zeros, so that only
    /// numbers without a sign, and addresses, keep their value. (libbpf also refuses enumerations; but those of Rust
    /// have one byte. One with a sign is loaded with it, as the numbers are that it is compared with.)
    Unfit,
}

/// A step from a type to what is in it.
enum Step<'a> {
    Member(&'a str),
    Element(u32),
}

/// A field, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Field {
    bits_before: u64,
    of: TypeId,
    bits: Option<u32>,
}

/// Adapts the instruction in `slot`.
pub(super) fn apply(
    bytes: &mut [u8],
    slot: usize,
    adaptation: &Adaptation,
    local: &Btf,
    target: &Target<'_>,
) -> Result<(), AdaptError> {
    let access = local.text(adaptation.access);
    let damaged = || AdaptError::Record { slot, of: adaptation.of, access: access.to_string(), kind: adaptation.kind };
    let indexes: Result<Vec<u32>, _> = access.split(':').map(str::parse).collect();
    let indexes = indexes.map_err(|_| damaged())?;
    let wanted = Wanted::new(adaptation.kind).ok_or_else(damaged)?;
    if !(adaptation.offset as usize).is_multiple_of(SLOT) || bytes.len() < (slot + 1) * SLOT {
        return Err(damaged());
    }
    if wanted == Wanted::LocalId {
        return patch(bytes, slot, adaptation.of.into(), Width::Same);
    }
    let (root, root_type) = local.resolved(adaptation.of).ok_or_else(damaged)?;
    let name = plain(local.text(named(local, adaptation.of).unwrap_or(root_type).name));
    let mut found: Option<(u64, Width)> = None;
    let (left, target, named) = (&target.left, target.btf, target.named.get(name));
    for candidate in named.into_iter().flatten() {
        let Some((candidate, _)) = target.resolved(*candidate) else { continue };
        let answer = if wanted == Wanted::TypeMatches {
            let is_like = matches(local, root, target, candidate, |own, other| plain(own) == plain(other), left);
            is_like.map_err(|_| damaged())?.then_some((1, Width::Same))
        } else {
            ask(local, root, target, candidate, &indexes, wanted, left).map_err(|()| damaged())?
        };
        let Some(answer) = answer else { continue };
        if found.is_some_and(|found| found != answer) {
            return Err(AdaptError::Ambiguous { slot, name: name.to_string() });
        }
        found = Some(answer);
    }
    let is_question =
        matches!(wanted, Wanted::FieldExists | Wanted::TypeExists | Wanted::TypeMatches | Wanted::ValueExists);
    match found {
        Some((value, width)) => patch(bytes, slot, value, width),
        None if is_question => patch(bytes, slot, 0, Width::Same),
        None => {
            poison(bytes, slot);
            Ok(())
        }
    }
}

/// Returns the name of the type that an instruction is to be adapted to.
pub(super) fn asks<'a>(adaptation: &Adaptation, local: &'a Btf) -> Option<&'a str> {
    if Wanted::new(adaptation.kind)? == Wanted::LocalId {
        return None;
    }
    let name = plain(local.text(named(local, adaptation.of)?.name));
    if name.is_empty() { None } else { Some(name) }
}

/// The type as it is named, behind qualifiers without names.
fn named(btf: &Btf, mut id: TypeId) -> Option<&Type> {
    for _ in 0..MOST_STEPS {
        let found = btf.get(id)?;
        match found.form {
            Form::Alias(of) if found.name == 0 => id = of,
            _ => return Some(found),
        }
    }
    None
}

/// Strips a name of its flavour, which is behind the last place with exactly three underscores, as in libbpf.
fn plain(name: &str) -> &str {
    let is_end =
        |window: &[u8]| matches!(window, [before, b'_', b'_', b'_', after] if *before != b'_' && *after != b'_');
    name.as_bytes().windows(5).rposition(is_end).map_or(name, |end| &name[..=end])
}

/// Takes one from what is left; an error if nothing is.
fn count(left: &Cell<u32>) -> Result<(), ()> {
    left.set(left.get().checked_sub(1).ok_or(())?);
    Ok(())
}

/// Returns what `candidate` has for what was wanted of `root`: a number, and the width of an access to the field.
/// `None` if it lacks it; an error if the record is damaged, or asks for more comparisons than are `left`.
fn ask(
    local: &Btf,
    root: TypeId,
    target: &Btf,
    candidate: TypeId,
    indexes: &[u32],
    wanted: Wanted,
    left: &Cell<u32>,
) -> Result<Option<(u64, Width)>, ()> {
    let (Some(own), Some(other)) = (local.get(root), target.get(candidate)) else { return Err(()) };
    if core::mem::discriminant(&own.form) != core::mem::discriminant(&other.form) {
        return Ok(None);
    }
    match wanted {
        Wanted::TypeExists => return Ok(Some((1, Width::Same))),
        Wanted::TargetId => return Ok(Some((candidate.into(), Width::Same))),
        Wanted::TypeSize => return Ok(target.size(candidate).map(|size| (size.into(), Width::Same))),
        Wanted::Value | Wanted::ValueExists => {
            let (Form::Enum { values: own, .. }, Form::Enum { values, .. }) = (&own.form, &other.form) else {
                return Err(());
            };
            let [index] = indexes else { return Err(()) };
            let name = plain(local.text(own.get(*index as usize).ok_or(())?.name));
            for value in values {
                count(left)?;
                if plain(target.text(value.name)) == name {
                    return Ok(Some((if wanted == Wanted::Value { value.value } else { 1 }, Width::Same)));
                }
            }
            return Ok(None);
        }
        _ => {}
    }
    let (steps, own) = path(local, root, indexes).ok_or(())?;
    let Some(field) = follow(target, candidate, &steps, left)? else { return Ok(None) };
    let width = if wanted == Wanted::ByteOffset { width((local, own), (target, field)) } else { Width::Same };
    Ok(answer(target, field, wanted).map(|value| (value, width)))
}

/// Returns the width of an access to a field of the program's types that is `field` in the target's.
fn width((local, own): (&Btf, Field), (target, field): (&Btf, Field)) -> Width {
    if own.bits.is_some() != field.bits.is_some() {
        return Width::Unfit;
    }
    match (size_of_field(local, own), size_of_field(target, field)) {
        (Some(before), Some(size)) if before != size => {
            let before = local.resolved(own.of).map(|(_, found)| &found.form);
            match (before, target.resolved(field.of).map(|(_, found)| &found.form)) {
                (Some(Form::Pointer(_)), Some(Form::Pointer(_)))
                | (Some(Form::Integer { is_signed: false, .. }), Some(Form::Integer { is_signed: false, .. }))
                | (Some(Form::Enum { .. }), Some(Form::Enum { is_signed: false, .. })) => Width::Other(size),
                (Some(Form::Enum { .. }), Some(Form::Enum { is_signed: true, .. })) => Width::Signed(size),
                _ => Width::Unfit,
            }
        }
        _ => Width::Same,
    }
}

/// Bytes of a field that is no bit field.
fn size_of_field(btf: &Btf, field: Field) -> Option<u32> {
    if field.bits.is_some() { None } else { btf.size(field.of) }
}

/// Returns the way that indexes describe, by names, and where it leads.
fn path<'a>(btf: &'a Btf, root: TypeId, indexes: &[u32]) -> Option<(Vec<Step<'a>>, Field)> {
    let (first, rest) = indexes.split_first()?;
    let mut steps = Vec::from([Step::Element(*first)]);
    let mut field = Field { bits_before: bits_of(*first, btf.size(root)?)?, of: root, bits: None };
    for index in rest.iter().take(MOST_STEPS) {
        let (_, found) = btf.resolved(field.of)?;
        match &found.form {
            Form::Struct { members, .. } => {
                let member = members.get(*index as usize)?;
                if member.name != 0 {
                    steps.push(Step::Member(btf.text(member.name)));
                }
                field = inside(field, member);
            }
            Form::Array { of, .. } => {
                steps.push(Step::Element(*index));
                field = element(btf, field, *of, *index)?;
            }
            _ => return None,
        }
    }
    Some((steps, field))
}

fn inside(field: Field, member: &Member) -> Field {
    Field { bits_before: field.bits_before + u64::from(member.offset), of: member.of, bits: member.bits }
}

fn element(btf: &Btf, field: Field, of: TypeId, index: u32) -> Option<Field> {
    let before = bits_of(index, btf.size(of)?)?;
    Some(Field { bits_before: field.bits_before.checked_add(before)?, of, bits: None })
}

/// Returns the bits of `count` elements of `size` bytes; `None` if those of all steps together might not fit in a
/// number.
fn bits_of(count: u32, size: u32) -> Option<u64> {
    (u64::from(count) * u64::from(size)).checked_mul(8).filter(|bits| *bits < 1 << 56)
}

/// Returns where steps lead in another type.
fn follow(btf: &Btf, root: TypeId, steps: &[Step<'_>], left: &Cell<u32>) -> Result<Option<Field>, ()> {
    let mut field = Field { bits_before: 0, of: root, bits: None };
    for (number, step) in steps.iter().enumerate() {
        let next = match step {
            // The first step goes over whole types.
            Step::Element(index) if number == 0 => {
                let bits_before = btf.size(root).and_then(|size| bits_of(*index, size));
                bits_before.map(|bits_before| Field { bits_before, ..field })
            }
            Step::Element(index) => element_at(btf, field, *index),
            Step::Member(name) => member_called(btf, field, name, left)?,
        };
        let Some(next) = next else { return Ok(None) };
        field = next;
    }
    Ok(Some(field))
}

/// Returns an element of the array that a field is.
fn element_at(btf: &Btf, field: Field, index: u32) -> Option<Field> {
    let Form::Array { of, count } = btf.resolved(field.of)?.1.form else { return None };
    // An array of no elements is as long as one likes.
    if count > 0 && index >= count { None } else { element(btf, field, of, index) }
}

/// Finds the member of this name, which has no flavour, also inside unnamed members.
fn member_called(btf: &Btf, within: Field, name: &str, left: &Cell<u32>) -> Result<Option<Field>, ()> {
    let mut open = Vec::from([(within, 0)]);
    while let Some((within, depth)) = open.pop() {
        let Some((_, found)) = btf.resolved(within.of) else { return Ok(None) };
        let Form::Struct { members, .. } = &found.form else { continue };
        for member in members {
            count(left)?;
            if member.name == 0 && depth < MOST_STEPS {
                open.push((inside(within, member), depth + 1));
            } else if btf.text(member.name) == name {
                return Ok(Some(inside(within, member)));
            }
        }
    }
    Ok(None)
}

fn answer(btf: &Btf, field: Field, wanted: Wanted) -> Option<u64> {
    if wanted == Wanted::FieldExists {
        return Some(1);
    }
    let mut size = u64::from(btf.size(field.of)?);
    let bits = field.bits.map_or(size * 8, u64::from);
    let mut start = field.bits_before / 8;
    if field.bits.is_some() {
        // The fewest aligned bytes that contain all of its bits.
        loop {
            start = field.bits_before / 8 / size.max(1) * size;
            if field.bits_before + bits <= (start + size) * 8 {
                break;
            }
            size = if size < 8 { size.max(1) * 2 } else { return None };
        }
    }
    match wanted {
        Wanted::ByteOffset => Some(start),
        Wanted::ByteSize => Some(size),
        Wanted::Signed => match btf.resolved(field.of)?.1.form {
            Form::Integer { is_signed, .. } | Form::Enum { is_signed, .. } => Some(is_signed.into()),
            _ => Some(0),
        },
        Wanted::ShiftLeft => 64_u64.checked_sub(field.bits_before + bits - start * 8),
        Wanted::ShiftRight => 64_u64.checked_sub(bits),
        _ => None,
    }
}

/// Puts `value` in place of the compiler's in the instruction, and changes how many bytes a load or store takes.
fn patch(bytes: &mut [u8], slot: usize, value: u64, width: Width) -> Result<(), AdaptError> {
    let at = slot * SLOT;
    let opcode = bytes[at];
    let no_place = || AdaptError::Place { slot, opcode, value };
    let low = |value: u64| (value as u32).to_le_bytes();
    match opcode & 7 {
        // Loads of 64 bits.
        0 if opcode == 0x18 && bytes.len() >= at + 2 * SLOT => {
            bytes[at + 4..at + 8].copy_from_slice(&low(value));
            bytes[at + 12..at + 16].copy_from_slice(&low(value >> 32));
        }
        // Loads and stores.
        1..=3 if width == Width::Unfit => poison(bytes, slot),
        1..=3 => {
            let offset = i16::try_from(value).map_err(|_| no_place())?;
            bytes[at + 2..at + 4].copy_from_slice(&offset.to_le_bytes());
            if let Width::Other(size) | Width::Signed(size) = width {
                let code = match size {
                    1 => 0x10,
                    2 => 0x08,
                    4 => 0x00,
                    8 => 0x18,
                    _ => return Err(no_place()),
                };
                bytes[at] = opcode & !0x18 | code;
                // `BPF_LDX`, from `BPF_MEM` to `BPF_MEMSX`, which has no double word.
                if matches!(width, Width::Signed(..8)) && opcode & 0xe7 == 0x61 {
                    bytes[at] = bytes[at] & !0xe0 | 0x80;
                }
            }
        }
        // Arithmetic with a constant.
        4 | 7 if opcode & 8 == 0 => {
            let value = i32::try_from(value as i64).or_else(|_| u32::try_from(value).map(|value| value as i32));
            bytes[at + 4..at + 8].copy_from_slice(&value.map_err(|_| no_place())?.to_le_bytes());
        }
        _ => return Err(no_place()),
    }
    Ok(())
}

fn poison(bytes: &mut [u8], slot: usize) {
    let at = slot * SLOT;
    let is_wide = bytes[at] == 0x18 && bytes.len() >= at + 2 * SLOT;
    let mut call = [0x85, 0, 0, 0, 0, 0, 0, 0];
    call[4..].copy_from_slice(&POISON.to_le_bytes());
    for place in bytes[at..].chunks_exact_mut(SLOT).take(1 + usize::from(is_wide)) {
        place.copy_from_slice(&call);
    }
}

#[cfg(test)]
mod tests {
    use super::super::extension::tests::{section, words};
    use super::*;

    /// A structure of one `int` with this size, which the second has a sign.
    fn with_int(size: u32, sign: u32) -> Btf {
        let mut types = words(&[1, 1 << 24, size, sign << 24 | (size * 8)]);
        types.extend(words(&[5, 4 << 24 | 1, size, 5, 1, 0]));
        Btf::parse(&section(&[types, b"\0int\0s\x000:0\0".to_vec()])).expect("two types")
    }

    #[test]
    fn a_type_that_exists_may_not_match() {
        let asked = |kind, size, left: u32| {
            let (local, target) = (with_int(4, 1), with_int(size, 1));
            let target = Target { left: Cell::new(left), ..Target::new(&target) };
            // r0 = 9
            let mut bytes = [0xb7, 0, 0, 0, 9, 0, 0, 0];
            let adaptation = Adaptation { offset: 0, of: 2, access: 7, kind };
            apply(&mut bytes, 0, &adaptation, &local, &target).map(|()| bytes[4]).map_err(|error| error.to_string())
        };
        assert_eq!([asked(8, 4, 9), asked(8, 8, 9)], [Ok(1), Ok(1)]);
        assert_eq!([asked(12, 4, 9), asked(12, 8, 9)], [Ok(1), Ok(0)]);
        assert!(asked(12, 4, 2).is_err(), "the structure, its member, and the number");
    }

    /// The same of one `enum`.
    fn with_enum(size: u32, sign: u32) -> Btf {
        let mut types = words(&[1, sign << 31 | 6 << 24 | 1, size, 1, 0]);
        types.extend(words(&[5, 4 << 24 | 1, size, 5, 1, 0]));
        Btf::parse(&section(&[types, b"\0int\0s\x000:0\0".to_vec()])).expect("two types")
    }

    #[test]
    fn enumerations_of_another_size_keep_their_sign() {
        let opcode = |opcode, other: (u32, u32)| {
            let (local, target) = (with_enum(4, 0), with_enum(other.0, other.1));
            adapt(opcode, &local, &Target::new(&target)).expect("it has a place")[0]
        };
        // `BPF_LDX` of a word: of a byte, of a byte with its sign, of a double word.
        assert_eq!([(1, 0), (1, 1), (8, 1)].map(|other| opcode(0x61, other)), [0x71, 0x91, 0x79]);
        // `BPF_STX` has no sign.
        assert_eq!(opcode(0x63, (1, 1)), 0x73);
    }

    /// Asks for the only field's offset. Returns the instruction afterwards.
    fn adapt(opcode: u8, local: &Btf, target: &Target<'_>) -> Result<[u8; 8], AdaptError> {
        let mut bytes = [opcode, 0x10, 0, 0, 0, 0, 0, 0];
        apply(&mut bytes, 0, &Adaptation { offset: 0, of: 2, access: 7, kind: 0 }, local, target).map(|()| bytes)
    }

    /// Does that with comparisons `left`.
    fn adapted(opcode: u8, own: (u32, u32), other: (u32, u32), left: u32) -> Result<[u8; 8], AdaptError> {
        let (local, target) = (with_int(own.0, own.1), with_int(other.0, other.1));
        adapt(opcode, &local, &Target { left: Cell::new(left), ..Target::new(&target) })
    }

    #[test]
    fn a_field_of_another_size_keeps_its_value_or_is_not_accessed() {
        const LOAD: u8 = 0x61;
        const LOAD_DOUBLE: u8 = 0x79;
        const ADD_CONSTANT: u8 = 0x07;
        let opcode = |opcode, own, other| adapted(opcode, own, other, 9).expect("it has a place")[0];
        assert_eq!(opcode(LOAD_DOUBLE, (8, 0), (4, 0)), LOAD, "a load extends by zeros");
        assert_eq!(opcode(LOAD_DOUBLE, (8, 1), (8, 1)), LOAD_DOUBLE);
        for (own, other) in [((8, 1), (4, 1)), ((8, 0), (4, 1)), ((8, 1), (4, 0))] {
            assert_eq!(opcode(LOAD_DOUBLE, own, other), 0x85, "{own:?} {other:?}");
            assert_eq!(opcode(ADD_CONSTANT, own, other), ADD_CONSTANT, "it is only an offset");
        }
    }

    #[test]
    fn members_are_looked_at_as_often_as_the_object_pays_for() {
        assert!(adapted(0x79, (8, 0), (8, 0), 1).is_ok());
        assert!(adapted(0x79, (8, 0), (8, 0), 0).is_err());
    }

    #[test]
    fn flavours_are_behind_the_last_three_underscores() {
        for (name, expected) in [
            ("task", "task"),
            ("task___old", "task"),
            ("a___b___v2", "a___b"),
            ("a____b", "a____b"),
            ("___a", "___a"),
            ("a___", "a___"),
            ("é___ü", "é"),
        ] {
            assert_eq!(plain(name), expected);
        }
    }

    #[test]
    fn variables_and_functions_are_no_types_that_have_their_name() {
        // `struct s { unsigned x; }`, and a variable and a function called `s`.
        let mut types = words(&[1, 1 << 24, 4, 32]);
        types.extend(words(&[4, 4 << 24 | 1, 4, 6, 1, 0]));
        types.extend(words(&[4, 14 << 24, 1, 1]));
        types.extend(words(&[0, 13 << 24, 0]));
        types.extend(words(&[4, 12 << 24, 4]));
        let btf = Btf::parse(&section(&[types, b"\0un\0s\0x\0".to_vec()])).expect("five types");
        assert_eq!(Target::new(&btf).named.get("s"), Some(&Vec::from([2])));
    }

    #[test]
    fn places_far_beyond_everything_are_none() {
        assert_eq!(bits_of(3, 5), Some(120));
        assert_eq!(bits_of(u32::MAX, u32::MAX), None);
        assert_eq!(bits_of(1 << 31, 1 << 30), None, "32 of them would be too many for a number");
        assert_eq!(bits_of(u32::MAX, 1 << 20), Some(u64::from(u32::MAX) << 23));
    }
}
