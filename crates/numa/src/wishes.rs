//! The outcome of wishes, in words.

use std::error::Error;

use palimpsest_sys::Causes;
use palimpsest_sys::memory::sealed::{Made, NotHuge};

use crate::shared::{NotShared, PassedOver};

/// Returns an error with its causes.
pub(crate) fn line(error: &dyn Error) -> String {
    Causes(error).to_string()
}

/// Returns what a copy made here lacks.
pub(crate) fn lacks(made: &Made) -> impl Iterator<Item = String> {
    let placed = made.not_placed.as_ref().map(|why| format!("not asked of the node: {}", line(why)));
    let huge = made.not_huge.as_ref().map(|why| format!("not in huge pages: {}", line(why)));
    placed.into_iter().chain(huge)
}

/// Returns the same for text, of which small pieces are meant to stay in small pages.
pub(crate) fn lacks_of_text(mut made: Made) -> impl Iterator<Item = String> {
    made.not_huge = made.not_huge.filter(|why| !matches!(why, NotHuge::Small { .. }));
    lacks(&made).collect::<Vec<_>>().into_iter()
}

/// Returns why only this process uses a copy.
pub(crate) fn not_shared(why: &NotShared) -> String {
    format!("not shared: {}", line(why))
}

/// Returns which processes' entries were passed over, and why.
pub(crate) fn passed_over(all: &[PassedOver]) -> impl Iterator<Item = String> {
    all.iter().map(|passed| format!("a copy was passed over: {}", line(passed)))
}
