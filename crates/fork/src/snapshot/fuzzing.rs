//! The comparison of two lists of mappings, for the fuzz targets.

use std::ops::Range;

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::Vma;

use super::layout::{Change, compare};

/// How to restore a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// Nothing was there.
    Unmap,
    /// Something else was there.
    Remake,
    /// It had these rights.
    Protect(Permissions),
}

/// Returns the stretches in which two lists of mappings differ, outside what is excluded.
pub fn differences(then: &[Vma], now: &[Vma], excluded: &[Span]) -> Vec<(Range<usize>, Difference)> {
    let mut all = Vec::new();
    let outcome = compare(then, now, excluded, &mut |range, change| {
        let difference = match change {
            Change::Unmap => Difference::Unmap,
            Change::Remake => Difference::Remake,
            Change::Protect(permissions) => Difference::Protect(permissions),
        };
        all.push((range, difference));
        Ok(())
    });
    outcome.expect("only the closure could fail");
    all
}
