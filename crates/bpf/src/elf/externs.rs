//! Functions that an object declares but does not define: the host's.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::btf::{Btf, Form, TypeId};
use crate::host::{Declaration, Prototype, Shape};

/// Parameters to look at: there are registers for five.
const MOST_PARAMETERS: usize = 6;

/// Functions called by name; each one's index is how many there were before it.
#[derive(Debug, Default)]
pub(super) struct Externs {
    indexes: BTreeMap<String, i32>,
}

impl Externs {
    /// Returns the index of the function of this name.
    pub(super) fn index(&mut self, name: String) -> i32 {
        let next = self.indexes.len() as i32;
        *self.indexes.entry(name).or_insert(next)
    }

    /// Returns all of them, by index, with what `btf` says of them.
    pub(super) fn declared(self, btf: Option<&Btf>) -> Vec<Declaration> {
        let mut prototypes: BTreeMap<&str, Prototype> = BTreeMap::new();
        if let (Some(btf), false) = (btf, self.indexes.is_empty()) {
            for (id, found) in btf.ids() {
                let name = btf.text(found.name);
                // A type of that name may be something else.
                if self.indexes.contains_key(name)
                    && let Some(prototype) = prototype(btf, id)
                {
                    prototypes.insert(name, prototype);
                }
            }
        }
        let mut names: Vec<(String, i32)> = self.indexes.into_iter().collect();
        names.sort_unstable_by_key(|(_, index)| *index);
        let mut prototype = |name: &str| prototypes.remove(name);
        let declaration = |(name, _): (String, i32)| Declaration { prototype: prototype(&name), name };
        names.into_iter().map(declaration).collect()
    }
}

fn prototype(btf: &Btf, id: TypeId) -> Option<Prototype> {
    let (_, found) = btf.resolved(id)?;
    let Form::Function { parameters, returns } = &found.form else { return None };
    let parameters = parameters.iter().take(MOST_PARAMETERS).map(|id| shape(btf, *id)).collect();
    Some(Prototype { parameters, result: shape(btf, *returns) })
}

fn shape(btf: &Btf, id: TypeId) -> Shape {
    match btf.resolved(id).map(|(_, found)| &found.form) {
        Some(Form::Void) => Shape::Nothing,
        Some(Form::Integer { size, .. } | Form::Enum { size, .. }) if *size <= 8 => Shape::Number,
        Some(Form::Pointer(_)) => Shape::Address,
        _ => Shape::Other,
    }
}
