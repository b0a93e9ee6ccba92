//! Records which definitions of a module refer to each other, by their relocations.

use std::collections::{BTreeSet, HashMap};

use cranelift_module::FuncOrDataId;

/// Both directions of the relation, kept consistent.
#[derive(Default)]
pub(crate) struct References {
    /// What each definition refers to, except itself.
    targets: HashMap<FuncOrDataId, BTreeSet<FuncOrDataId>>,
    /// The inverse of `targets`.
    referrers: HashMap<FuncOrDataId, BTreeSet<FuncOrDataId>>,
}

impl References {
    /// Records a new definition and what it refers to.
    pub(crate) fn define(&mut self, id: FuncOrDataId, targets: impl IntoIterator<Item = FuncOrDataId>) {
        let targets: BTreeSet<_> = targets.into_iter().filter(|target| *target != id).collect();
        for target in &targets {
            self.referrers.entry(*target).or_default().insert(id);
        }
        if !targets.is_empty() {
            self.targets.insert(id, targets);
        }
    }

    /// Returns the definitions that refer to `id`.
    pub(crate) fn referrers(&self, id: FuncOrDataId) -> impl Iterator<Item = FuncOrDataId> + '_ {
        self.referrers.get(&id).into_iter().flatten().copied()
    }

    /// Forgets that `id` is defined.
    ///
    /// Referrers for which `linked` is true contain its address and no longer wait for `id`; the others will be bound
    /// to the next definition of `id`, so they still refer to it.
    pub(crate) fn undefine(&mut self, id: FuncOrDataId, linked: impl Fn(FuncOrDataId) -> bool) {
        for target in self.targets.remove(&id).unwrap_or_default() {
            remove(&mut self.referrers, target, id);
        }
        let linked: Vec<_> = self.referrers(id).filter(|other| linked(*other)).collect();
        for referrer in linked {
            remove(&mut self.referrers, id, referrer);
            remove(&mut self.targets, referrer, id);
        }
    }
}

/// Removes `member` from the set at `key`, and the set once it is empty.
fn remove(sets: &mut HashMap<FuncOrDataId, BTreeSet<FuncOrDataId>>, key: FuncOrDataId, member: FuncOrDataId) {
    if let Some(set) = sets.get_mut(&key) {
        set.remove(&member);
        if set.is_empty() {
            sets.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use cranelift_module::FuncId;

    use super::*;

    fn f(index: u32) -> FuncOrDataId {
        FuncOrDataId::Func(FuncId::from_u32(index))
    }

    fn referrers(references: &References, id: FuncOrDataId) -> Vec<FuncOrDataId> {
        references.referrers(id).collect()
    }

    #[test]
    fn self_reference_is_none() {
        let mut references = References::default();
        references.define(f(0), [f(0), f(1), f(1)]);
        assert_eq!(referrers(&references, f(0)), []);
        assert_eq!(referrers(&references, f(1)), [f(0)]);
    }

    #[test]
    fn a_freed_caller_releases_its_callees() {
        let mut references = References::default();
        references.define(f(0), [f(1), f(2)]);
        references.define(f(3), [f(1)]);
        references.undefine(f(0), |_| true);
        assert_eq!(referrers(&references, f(1)), [f(3)]);
        assert_eq!(referrers(&references, f(2)), []);
        references.undefine(f(3), |_| true);
        assert!(references.targets.is_empty() && references.referrers.is_empty());
    }

    #[test]
    fn only_unlinked_callers_wait_for_the_next_definition() {
        let mut references = References::default();
        references.define(f(1), [f(0)]);
        references.define(f(2), [f(0)]);
        references.undefine(f(0), |caller| caller == f(1));
        assert_eq!(referrers(&references, f(0)), [f(2)]);
    }
}
