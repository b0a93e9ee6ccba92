//! The types of an object's global functions, as compilers describe them: with these they are verified alone.
//!
//! As in Linux (`btf_prepare_func_args` of `kernel/bpf/btf.c`): numbers, addresses of memory as large as the type that
//! they point to, and tags of parameters (`__arg_ctx`, `__arg_nonnull` of libbpf). A function that takes or returns
//! anything else has no type here; then each of its calls is followed.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Parts;
use super::btf::{Btf, Form, Type, TypeId};
use super::link::FunctionPlace;
use crate::verify::{FunctionType, Null, Parameter};

/// Members of a type that are looked at for its alignment.
const MOST_LOOKED_AT: usize = 256;

/// Returns the types of global functions, by their places.
pub(super) fn types(parts: &Parts<'_>) -> BTreeMap<FunctionPlace, FunctionType> {
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
    for (id, found) in btf.ids().filter(|(_, found)| matches!(found.form, Form::Alias(_))) {
        if let Some(place) = places.get(btf.text(found.name))
            && let Some((_, Type { form: Form::Function { parameters, returns }, .. })) = btf.resolved(id)
            && is_number(btf, *returns)
        {
            let tags_of = |number: u32| tags.get(&(id, number)).map_or(&[] as &[&str], |tags| tags);
            let parameters = (0..).zip(parameters).take(6).map(|(number, of)| parameter(btf, *of, tags_of(number)));
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

fn parameter(btf: &Btf, id: TypeId, tags: &[&str]) -> Option<Parameter> {
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
    Some(Parameter::Memory { len, align: align(btf, to), null })
}

/// Returns to how many bytes the compiler aligns a type by default.
fn align(btf: &Btf, id: TypeId) -> u8 {
    let mut most = 1;
    let mut open = Vec::from([id]);
    for _ in 0..MOST_LOOKED_AT {
        let Some((_, found)) = open.pop().and_then(|id| btf.resolved(id)) else { break };
        most = most.max(match &found.form {
            Form::Integer { size, .. } | Form::Enum { size, .. } | Form::Float { size } => (*size).min(8) as u8,
            Form::Pointer(_) => 8,
            Form::Array { of, .. } => {
                open.push(*of);
                1
            }
            Form::Struct { members, .. } => {
                open.extend(members.iter().take(MOST_LOOKED_AT).map(|member| member.of));
                1
            }
            _ => 1,
        });
    }
    // A hostile number may have any size.
    most.next_power_of_two()
}
