//! What became of wishes, in words.

use std::error::Error;

use palimpsest_sys::Causes;
use palimpsest_sys::memory::sealed::Made;

use crate::shared::{NotShared, PassedOver};

/// An error with its causes.
pub(crate) fn line(error: &dyn Error) -> String {
    Causes(error).to_string()
}

/// What a copy lacks that was made here.
pub(crate) fn lacks(made: &Made) -> impl Iterator<Item = String> {
    let placed = made.not_placed.as_ref().map(|why| format!("not asked of the node: {}", line(why)));
    let huge = made.not_huge.as_ref().map(|why| format!("not in huge pages: {}", line(why)));
    placed.into_iter().chain(huge)
}

/// Why a copy is this process's alone.
pub(crate) fn not_shared(why: &NotShared) -> String {
    format!("not shared: {}", line(why))
}

/// Which processes have said that they had a copy, and why theirs was not taken.
pub(crate) fn passed_over(all: &[PassedOver]) -> impl Iterator<Item = String> {
    all.iter().map(|passed| format!("a copy was passed over: {}", line(passed)))
}
