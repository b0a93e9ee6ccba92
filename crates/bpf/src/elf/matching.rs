//! Whether a type of the target has all that a type of an object has (`BPF_CORE_TYPE_MATCHES` of Linux).
//!
//! By the rules of libbpf (`__bpf_core_types_match`, `tools/lib/bpf/relo_core.c`): kinds and names are the same at each
//! step, numbers and enumerations have the same size, every member and value of the object's type has one of its name,
//! wherever it is and whatever value it has. Behind a pointer the names of structures are enough, and one of the two
//! may only be declared.
//!
//! Mutants that are caught: structures behind pointers that are compared, a sign that is not, a question for existence
//! in its place.

use core::cell::Cell;

use super::btf::{Btf, Form, TypeId};

/// Most types inside each other, as in libbpf.
const MOST_DEEP: u32 = 32;
/// Most types and members that are compared for all questions of an object.
pub(super) const MOST_COMPARED: u32 = 10_000_000;

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoAnswer {
    /// A type is not there.
    Missing,
    /// They are too deep, or too many.
    Long,
}

/// Where a type is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Inside,
    BehindPointer,
}

/// Two sets of types.
struct Matching<'a> {
    own: &'a Btf,
    target: &'a Btf,
    /// Comparisons that are left.
    left: &'a Cell<u32>,
    same: fn(&str, &str) -> bool,
}

/// Returns whether `candidate` of the target has all that `root` has, with as many comparisons as are `left`. `same`
/// compares names.
pub(super) fn matches(
    own: &Btf,
    root: TypeId,
    target: &Btf,
    candidate: TypeId,
    same: fn(&str, &str) -> bool,
    left: &Cell<u32>,
) -> Result<bool, NoAnswer> {
    Matching { own, target, left, same }.types(root, candidate, Place::Inside, MOST_DEEP)
}

impl Matching<'_> {
    /// Counts a comparison.
    fn count(&self) -> Result<(), NoAnswer> {
        self.left.set(self.left.get().checked_sub(1).ok_or(NoAnswer::Long)?);
        Ok(())
    }

    /// Whether names are the same. Long ones cost more than one comparison.
    fn names(&self, own: u32, target: u32) -> Result<bool, NoAnswer> {
        let (own, target) = (self.own.text(own), self.target.text(target));
        let more = ((own.len() + target.len()) / 64) as u32;
        self.left.set(self.left.get().checked_sub(more).ok_or(NoAnswer::Long)?);
        Ok((self.same)(own, target))
    }

    fn types(&self, own: TypeId, target: TypeId, place: Place, depth: u32) -> Result<bool, NoAnswer> {
        self.count()?;
        let depth = depth.checked_sub(1).ok_or(NoAnswer::Long)?;
        let (of_own, of_target) = (self.own, self.target);
        let (_, own) = of_own.resolved(own).ok_or(NoAnswer::Missing)?;
        let (_, target) = of_target.resolved(target).ok_or(NoAnswer::Missing)?;
        if !self.names(own.name, target.name)? {
            return Ok(false);
        }
        Ok(match (&own.form, &target.form) {
            (Form::Void, Form::Void) => true,
            (Form::Integer { size, is_signed }, Form::Integer { size: other, is_signed: sign }) => {
                size == other && is_signed == sign
            }
            (Form::Float { size }, Form::Float { size: other }) => size == other,
            (Form::Pointer(own), Form::Pointer(target)) => self.types(*own, *target, Place::BehindPointer, depth)?,
            (Form::Array { of, count }, Form::Array { of: other, count: length }) => {
                count == length && self.types(*of, *other, place, depth)?
            }
            (Form::Enum { size, values, .. }, Form::Enum { size: other, values: all, .. }) => {
                if size != other {
                    return Ok(false);
                }
                for value in values {
                    let mut is_there = false;
                    for target in all {
                        self.count()?;
                        is_there |= self.names(value.name, target.name)?;
                    }
                    if !is_there {
                        return Ok(false);
                    }
                }
                true
            }
            (Form::Struct { is_union, .. } | Form::Declared { is_union }, Form::Declared { is_union: other })
            | (Form::Declared { is_union }, Form::Struct { is_union: other, .. }) => {
                let is_declared = matches!((&own.form, &target.form), (Form::Declared { .. }, Form::Declared { .. }));
                is_union == other && (is_declared || place == Place::BehindPointer)
            }
            (Form::Struct { members, is_union, .. }, Form::Struct { members: all, is_union: other, .. }) => {
                if is_union != other || place == Place::BehindPointer {
                    return Ok(is_union == other);
                }
                if members.len() > all.len() {
                    return Ok(false);
                }
                for member in members {
                    let mut is_there = false;
                    for target in all {
                        self.count()?;
                        is_there =
                            self.names(member.name, target.name)? && self.types(member.of, target.of, place, depth)?;
                        if is_there {
                            break;
                        }
                    }
                    if !is_there {
                        return Ok(false);
                    }
                }
                true
            }
            (Form::Function { parameters, returns }, Form::Function { parameters: others, returns: other }) => {
                if parameters.len() != others.len() {
                    return Ok(false);
                }
                for (own, target) in parameters.iter().zip(others) {
                    if !self.types(*own, *target, place, depth)? {
                        return Ok(false);
                    }
                }
                self.types(*returns, *other, place, depth)?
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::extension::tests::{section, words};
    use super::*;

    /// Types with the names `a` (1), `b` (3), `c` (5), `int` (7) and `s` (11); the first is an `int` of 4 bytes.
    fn types(others: &[&[u32]]) -> Btf {
        let mut types = words(&[7, 1 << 24, 4, 1 << 24 | 32]);
        others.iter().for_each(|words_of| types.extend(words(words_of)));
        Btf::parse(&section(&[types, b"\0a\0b\0c\0int\0s\0".to_vec()])).expect("right")
    }

    fn asked(own: &[&[u32]], target: &[&[u32]], root: TypeId) -> Result<bool, NoAnswer> {
        let left = Cell::new(100_000);
        matches(&types(own), root, &types(target), root, |own, target| own == target, &left)
    }

    const STRUCT: u32 = 4 << 24;
    const UNION: u32 = 5 << 24;
    const POINTER: u32 = 2 << 24;
    const ENUM: u32 = 6 << 24;
    const DECLARED: u32 = 7 << 24;
    const FUNCTION: u32 = 13 << 24;

    /// A type, and whether types match it.
    fn matched<const N: usize>(own: &[&[u32]], targets: [&[&[u32]]; N]) -> [bool; N] {
        targets.map(|target| asked(own, target, 2).expect("few types"))
    }

    #[test]
    fn members_are_found_by_name_and_type() {
        let own: &[u32] = &[11, STRUCT | 2, 8, 1, 1, 0, 3, 1, 32];
        let more: &[u32] = &[11, STRUCT | 3, 12, 5, 1, 0, 3, 1, 32, 1, 1, 64];
        let other_name: &[u32] = &[11, STRUCT | 2, 8, 1, 1, 0, 5, 1, 32];
        let other_type: &[u32] = &[11, STRUCT | 2, 12, 1, 1, 0, 3, 3, 32];
        let long: &[u32] = &[7, 1 << 24, 8, 1 << 24 | 64];
        let unsigned: &[u32] = &[7, 1 << 24, 4, 32];
        let union: &[u32] = &[11, UNION | 2, 8, 1, 1, 0, 3, 1, 0];
        let renamed: &[u32] = &[1, STRUCT | 2, 8, 1, 1, 0, 3, 1, 32];
        let targets = [&[own][..], &[more], &[other_name], &[other_type, long], &[other_type, unsigned], &[union]];
        assert_eq!(matched(&[own], targets), [true, true, false, false, false, false]);
        assert_eq!(matched(&[own], [&[renamed]]), [false]);
        // Fewer members are enough the other way round only.
        assert_eq!(matched(&[more], [&[own], &[more]]), [false, true]);
    }

    #[test]
    fn behind_pointers_names_are_enough() {
        let pointer: &[u32] = &[0, POINTER, 3];
        let with = |name, form| [name, form, 4, 1, 1, 0];
        let (own, other, union) = (with(11, STRUCT | 1), with(1, STRUCT | 1), with(11, UNION | 1));
        let empty: &[u32] = &[11, STRUCT, 0];
        let declared: &[u32] = &[11, DECLARED, 0];
        let declared_union: &[u32] = &[11, 1 << 31 | DECLARED, 0];
        let targets = [
            &[pointer, &own][..],
            &[pointer, empty],
            &[pointer, declared],
            &[pointer, &other],
            &[pointer, &union],
            &[pointer, declared_union],
        ];
        assert_eq!(matched(&[pointer, &own], targets), [true, true, true, false, false, false]);
        assert_eq!(matched(&[pointer, declared], targets), [true, true, true, false, false, false]);
        // Not behind a pointer.
        assert_eq!(matched(&[&own], [&[declared], &[empty]]), [false; 2]);
        assert_eq!(matched(&[declared], [&[declared], &[empty], &[declared_union]]), [true, false, false]);
    }

    #[test]
    fn values_arrays_and_functions_are_compared() {
        let values = |size, names: [u32; 2]| [11, ENUM | 2, size, names[0], 5, names[1], 6];
        let (own, turned, fewer) = (values(4, [1, 3]), values(4, [3, 1]), values(4, [3, 3]));
        assert_eq!(
            matched(&[&own], [&[&own], &[&turned], &[&fewer], &[&values(8, [1, 3])]]),
            [true, true, false, false]
        );
        let array = |count| [0, 3 << 24, 0, 1, 1, count];
        assert_eq!(matched(&[&array(4)], [&[&array(4)], &[&array(5)]]), [true, false]);
        let function: &[u32] = &[0, FUNCTION | 1, 1, 1, 1];
        let targets =
            [&[function][..], &[&[0, FUNCTION | 1, 0, 1, 1]], &[&[0, FUNCTION | 1, 1, 1, 0]], &[&[0, FUNCTION, 1]]];
        assert_eq!(matched(&[function], targets), [true, false, false, false]);
    }

    #[test]
    fn hostile_types_have_no_answer() {
        // An array of itself, and many members of one name whose types differ late.
        let endless: &[u32] = &[0, 3 << 24, 0, 2, 1, 4];
        assert_eq!(asked(&[endless], &[endless], 2), Err(NoAnswer::Long));
        let pointers: &[u32] = &[0, POINTER, 2];
        assert_eq!(asked(&[pointers], &[pointers], 2), Err(NoAnswer::Long));
        let many = |last: u32| {
            let mut members = Vec::from([11, STRUCT | 400, 4]);
            (0..400).for_each(|_| members.extend([1, 1, 0]));
            let len = members.len();
            members[len - 3] = last;
            members
        };
        assert_eq!(asked(&[&many(1)], &[&many(3)], 2), Ok(true));
        let deep = |kind| {
            (2..20)
                .map(|id| Vec::from([11, STRUCT | 2, 4, 1, id + 1, 0, 1, id + 1, 0]))
                .chain([Vec::from([11, kind, 4])])
                .collect::<Vec<_>>()
        };
        let (own, target) = (deep(STRUCT), deep(UNION));
        let (own, target): (Vec<&[u32]>, Vec<&[u32]>) =
            (own.iter().map(Vec::as_slice).collect(), target.iter().map(Vec::as_slice).collect());
        assert_eq!(asked(&own, &target, 2), Err(NoAnswer::Long), "two ways at each of 18 steps");
        assert_eq!(asked(&[pointers], &[&[0, POINTER, 9]], 2), Err(NoAnswer::Missing));
    }
}
