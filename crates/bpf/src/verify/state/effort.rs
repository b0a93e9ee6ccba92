//! What it costs to look at states: steps of programs that use much stack take longer than others.

use core::cell::Cell;

/// How many values of registers and stack were compared, copied with their state, or looked through for those that an
/// instruction changes.
#[derive(Debug, Default)]
pub(in crate::verify) struct Effort(Cell<usize>);

impl Effort {
    pub(in crate::verify) fn add(&self, values: usize) {
        self.0.set(self.0.get().saturating_add(values));
    }

    pub(in crate::verify) fn get(&self) -> usize {
        self.0.get()
    }

    /// Whether all of these are true; those that are looked at are counted.
    #[inline]
    pub(super) fn all(&self, mut each: impl Iterator<Item = bool>) -> bool {
        let mut looked_at = 0;
        let are_all = each.all(|is| {
            looked_at += 1;
            is
        });
        self.add(looked_at);
        are_all
    }
}
