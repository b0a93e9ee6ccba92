//! The types of an object's global functions, as compilers describe them: with these they are verified alone.
//!
//! As in Linux (`btf_prepare_func_args` of `kernel/bpf/btf.c`): numbers, addresses of memory as large as the type that
//! they point to, and tags of parameters (`__arg_ctx`, `__arg_nonnull` of libbpf). A function that takes or returns
//! anything else has no type here; then each of its calls is followed.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::slice;

use super::Parts;
use super::btf::{Btf, Form, Member, Type, TypeId};
use crate::verify::{FunctionType, Null, Parameter};

/// Where a function is: its section, and bytes into it.
pub(super) type FunctionPlace = (usize, u64);

/// Types that are looked at for the alignment of one.
const MOST_LOOKED_AT: usize = 256;
/// Parameters, and types for their alignment, that are looked at for all functions. Those behind have no type.
const MOST_IN_ALL: usize = 1 << 16;

/// Returns the types of global functions, by their places.
pub(super) fn types(parts: &Parts<'_>) -> BTreeMap<FunctionPlace, FunctionType> {
    let mut budget = MOST_IN_ALL;
    types_within(parts, &mut budget)
}

fn types_within(parts: &Parts<'_>, budget: &mut usize) -> BTreeMap<FunctionPlace, FunctionType> {
    let mut places: BTreeMap<&str, FunctionPlace> = BTreeMap::new();
    for symbol in parts.symbols.iter().filter(|symbol| symbol.is_function && symbol.is_global) {
        places.extend(symbol.section.map(|section| (symbol.name, (section, symbol.offset))));
    }
    let Some(btf) = parts.btf.as_deref().filter(|_| !places.is_empty()) else { return BTreeMap::new() };
    let mut tags: BTreeMap<(TypeId, u32), Vec<&str>> = BTreeMap::new();
    for (_, found) in btf.ids() {
        if let Form::Tag { of, component } = found.form {
            tags.entry((of, component)).or_default().push(btf.text(found.name));
        }
    }
    let mut types = BTreeMap::new();
    let mut aligns = Aligns { btf, budget, known: BTreeMap::new() };
    for (id, found) in btf.ids().filter(|(_, found)| matches!(found.form, Form::Value(_))) {
        // Other names may be the same; the first one that is right counts.
        if let Some(place) = places.get(btf.text(found.name)).filter(|place| !types.contains_key(*place))
            && let Some((_, Type { form: Form::Function { parameters, returns }, .. })) = btf.resolved(id)
            && is_number(btf, *returns)
        {
            let tags_of = |number: u32| tags.get(&(id, number)).map_or(&[] as &[&str], |tags| tags);
            let parameters =
                (0..).zip(parameters).take(6).map(|(number, of)| parameter(&mut aligns, *of, tags_of(number)));
            let takes = parameters.collect::<Option<Vec<Parameter>>>().and_then(FunctionType::new);
            types.extend(takes.map(|takes| (*place, takes)));
        }
    }
    types
}

fn is_number(btf: &Btf, id: TypeId) -> bool {
    let form = btf.resolved(id).map(|(_, found)| &found.form);
    matches!(form, Some(Form::Integer { size, .. } | Form::Enum { size, .. }) if *size <= 8)
}

/// The alignment of types, found within a budget.
struct Aligns<'a> {
    btf: &'a Btf,
    budget: &'a mut usize,
    known: BTreeMap<TypeId, u8>,
}

impl Aligns<'_> {
    /// Returns to how many bytes the compiler aligns a type by default; `None` if too many types were looked at.
    fn of(&mut self, id: TypeId) -> Option<u8> {
        if let Some(known) = self.known.get(&id) {
            return Some(*known);
        }
        let btf = self.btf;
        let mut most = 1;
        // Types, and members that are not looked at yet: each may be of a type with as many again.
        let mut of = Some(id);
        let mut open: Vec<slice::Iter<'_, Member>> = Vec::new();
        for _ in 0..MOST_LOOKED_AT {
            let Some(id) = of.take() else { break };
            self.look()?;
            let Some((_, found)) = btf.resolved(id) else { break };
            most = most.max(match &found.form {
                Form::Integer { size, .. } | Form::Enum { size, .. } | Form::Float { size } => (*size).min(8) as u8,
                Form::Pointer(_) => 8,
                Form::Array { of: element, .. } => {
                    of = Some(*element);
                    1
                }
                Form::Struct { members, .. } => {
                    open.push(members.iter());
                    1
                }
                _ => 1,
            });
            while of.is_none()
                && let Some(members) = open.last_mut()
            {
                of = members.next().map(|member| member.of);
                if of.is_none() {
                    open.pop();
                }
            }
        }
        // A hostile number may have any size.
        let align = most.next_power_of_two();
        self.known.insert(id, align);
        Some(align)
    }

    /// Pays for a look at a type; `None` if there were too many.
    fn look(&mut self) -> Option<()> {
        *self.budget = self.budget.checked_sub(1)?;
        Some(())
    }
}

fn parameter(aligns: &mut Aligns<'_>, id: TypeId, tags: &[&str]) -> Option<Parameter> {
    let btf = aligns.btf;
    aligns.look()?;
    if is_number(btf, id) {
        return Some(Parameter::Number);
    }
    let Form::Pointer(to) = btf.resolved(id)?.1.form else { return None };
    let mut null = Null::Possible;
    for tag in tags {
        match *tag {
            "arg:ctx" => return Some(Parameter::Context),
            "arg:nonnull" => null = Null::Excluded,
            // Tags for objects of the kernel, for memory that is not trusted, and unknown ones.
            tag if tag.starts_with("arg:") => return None,
            _ => {}
        }
    }
    // Only helpers work on these.
    let name = btf.text(btf.resolved(to)?.1.name);
    if matches!(name, "bpf_dynptr" | "bpf_timer" | "bpf_spin_lock") {
        return None;
    }
    let len = btf.size(to).filter(|len| *len > 0)?;
    Some(Parameter::Memory { len, align: aligns.of(to)?, null })
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::super::extension::tests::{section, words};
    use super::super::{Addend, Section, Symbol};
    use super::*;

    /// Where the only function is.
    const PLACE: FunctionPlace = (0, 0);

    /// An object with a global function `f`, and these types: 1: 4 bytes; 2: a structure of four of these; 3: a pointer
    /// to it; 4: a function that takes this; 5: one that takes a number; 6: one that takes such a function, which has
    /// no type here; and functions of these types, all of them called `f`.
    fn parts(names: &[TypeId]) -> Parts<'static> {
        let mut types = words(&[0, 1 << 24, 4, 32]);
        types.extend(words(&[0, 4 << 24 | 4, 16, 0, 1, 0, 0, 1, 32, 0, 1, 64, 0, 1, 96]));
        types.extend(words(&[0, 2 << 24, 2]));
        [3, 1, 4].iter().for_each(|takes| types.extend(words(&[0, 13 << 24 | 1, 1, 0, *takes])));
        names.iter().for_each(|of| types.extend(words(&[1, 12 << 24, *of])));
        let btf = Btf::parse(&section(&[types, b"\0f\0".to_vec()])).expect("types");
        let (name, section) = ("f", Some(PLACE.0));
        Parts {
            len: 0,
            sections: Vec::from([Section { name: ".text", data: &[], size: 0, is_code: true }]),
            symbols: Vec::from([Symbol { name, section, is_function: true, is_global: true, ..Symbol::none() }]),
            references: Vec::new(),
            btf: Some(Arc::new(btf)),
            told: BTreeMap::new(),
            addend: Addend::Symbol,
        }
    }

    #[test]
    fn the_first_type_of_a_function_counts() {
        let memory = Parameter::Memory { len: 16, align: 4, null: Null::Possible };
        let taking = |of| FunctionType::new(Vec::from([of])).map(|takes| BTreeMap::from([(PLACE, takes)]));
        assert_eq!(Some(types(&parts(&[4, 5]))), taking(memory));
        assert_eq!(Some(types(&parts(&[6, 5, 4]))), taking(Parameter::Number));
    }

    #[test]
    fn types_of_functions_have_one_budget() {
        let paid = |names: &[TypeId]| {
            let mut budget = 100;
            (types_within(&parts(names), &mut budget).len(), 100 - budget)
        };
        // A parameter, its type, and the four members of that.
        let once = paid(&[4]);
        assert_eq!(once, (1, 6));
        // A function has one type, however many names it has.
        assert_eq!(paid(&[4; 1000]), once);
        // One that has none is looked at again for each name, until it is too often.
        assert_eq!(paid(&[6; 3]), (0, 3));
        let mut hostile = Vec::from([6; 1000]);
        hostile.push(4);
        assert_eq!(paid(&hostile), (0, 100));
    }

    #[test]
    fn a_type_is_looked_at_once_for_its_alignment() {
        let parts = parts(&[]);
        let mut budget = 5;
        let mut aligns =
            Aligns { btf: parts.btf.as_deref().expect("types"), budget: &mut budget, known: BTreeMap::new() };
        assert_eq!((aligns.of(2), aligns.of(2)), (Some(4), Some(4)));
        assert_eq!((*aligns.budget, aligns.of(3)), (0, None));
    }
}
