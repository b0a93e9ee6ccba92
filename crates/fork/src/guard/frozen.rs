//! What the kernel says is frozen.

use palimpsest_sys::proc::maps::Permissions;
use palimpsest_sys::vmas::{Label, Vma, VmaFlags};
use rustix::io::Errno;

use crate::engine::registry;
use crate::engine::span::Span;
use crate::engine::traits::Traits;
use crate::hazards::borrowed;

/// Whether a part shows an extent, of frozen memory or of a snapshot: where it is discarded, old bytes would come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// It does.
    Frozen,
    /// It is anything else.
    Other,
}

/// A part of a range, of one mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) span: Span,
    pub(super) vma: Vma,
    pub(super) kind: Kind,
}

impl Part {
    /// The flags that it was frozen with, if nothing has changed since.
    pub(super) fn known_flags(&self) -> Option<VmaFlags> {
        registry::shared()?.touched.flags(self.span)
    }

    /// What memory in its place must have: as the mappings were frozen, or, if the program has changed that since, as the kernel tells.
    ///
    /// # Errors
    ///
    /// ENOMEM where the kernel does not tell.
    pub(super) fn traits(&self) -> Result<Traits, Errno> {
        let shared = registry::shared().ok_or(Errno::NOMEM)?;
        if let Some(flags) = self.known_flags() {
            return Ok(Traits { permissions: self.vma.permissions, flags, protection_key: 0 });
        }
        let told = shared.maps.figures_above(self.span.start).map_err(|_| Errno::NOMEM)?;
        told.filter(|vma| vma.start <= self.span.start).map(|vma| Traits::of(&vma)).ok_or(Errno::NOMEM)
    }
}

/// Calls `each` with the mapped parts of `span`, ascending, until it fails.
///
/// # Errors
///
/// Those of `each`, or ENOMEM where the kernel does not tell its mappings. Not EAGAIN, which allocators answer by asking again for ever (tcmalloc, mimalloc).
pub(super) fn each_part(span: Span, mut each: impl FnMut(Part) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut rest = span;
    while let Some(part) = first_part(rest)? {
        rest.start = part.span.end;
        each(part)?;
    }
    Ok(())
}

/// The first mapped part of `span`.
fn first_part(span: Span) -> Result<Option<Part>, Errno> {
    if span.is_empty() {
        return Ok(None);
    }
    let shared = registry::shared().ok_or(Errno::NOMEM)?;
    let process = borrowed::owner().unwrap_or_else(|| rustix::process::getpid().as_raw_nonzero().get());
    let vma = shared.maps.first_above(process, span.start).map_err(|_| Errno::NOMEM)?;
    let part = |vma: Vma| Part { span: span.intersection(Span::from(vma.range())), vma, kind: kind(&vma) };
    Ok(vma.map(part).filter(|part| !part.span.is_empty()))
}

fn kind(vma: &Vma) -> Kind {
    match vma.label {
        Label::Extent | Label::Snapshot if !vma.permissions.contains(Permissions::SHARED) => Kind::Frozen,
        _ => Kind::Other,
    }
}

/// All of `span` as a part, if it is of one mapping: one look, where [`any`] and [`each_part`] are two.
///
/// # Errors
///
/// As [`each_part`], of its own.
pub(super) fn only_part(span: Span) -> Result<Option<Part>, Errno> {
    Ok(first_part(span)?.filter(|part| part.span == span))
}

/// Whether any part of `span` is frozen.
pub(super) fn any(span: Span) -> Result<bool, Errno> {
    let mut found = false;
    each_part(span, |part| {
        found |= part.kind == Kind::Frozen;
        Ok(())
    })?;
    Ok(found)
}
