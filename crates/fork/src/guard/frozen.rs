//! What the kernel says is frozen.

use palimpsest_sys::proc::maps::Permissions;
use palimpsest_sys::vmas::{Label, Vma, first_above};
use rustix::io::Errno;

use crate::engine::span::Span;

/// A part of a range, of one mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) span: Span,
    pub(super) vma: Vma,
    pub(super) is_frozen: bool,
}

/// Calls `each` with the mapped parts of `span`, ascending, until it fails.
///
/// # Errors
///
/// Those of `each`, or ENOMEM where the kernel does not tell its mappings (no `/proc`).
pub(super) fn each_part(span: Span, mut each: impl FnMut(Part) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut at = span.start;
    while at < span.end {
        let Some(vma) = first_above(at).map_err(|_| Errno::NOMEM)? else { return Ok(()) };
        let part = span.intersection(Span::from(vma.range())).intersection(Span::new(at, span.end));
        if part.is_empty() {
            return Ok(());
        }
        each(Part { span: part, vma, is_frozen: is_frozen(&vma) })?;
        at = part.end;
    }
    Ok(())
}

/// Whether a mapping shows an extent, of frozen memory or of a snapshot: where it is discarded, old bytes would come back.
fn is_frozen(vma: &Vma) -> bool {
    matches!(vma.label, Label::Extent | Label::Snapshot) && !vma.permissions.contains(Permissions::SHARED)
}

/// Whether any part of `span` is frozen.
pub(super) fn any(span: Span) -> Result<bool, Errno> {
    let mut found = false;
    each_part(span, |part| {
        found |= part.is_frozen;
        Ok(())
    })?;
    Ok(found)
}
