//! What the map says of a range, part by part, and what new memory gets in place of a part.

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::pages::vmas::VmaFlags;
use palimpsest_sys::seccomp::FreezeCall;

use crate::engine::entry::Entry;
use crate::engine::registry;
use crate::hazards::may_lock_new_memory;

/// A part of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Frozen, or thawed, as its entry tells.
    Frozen(Span, Entry),
    /// Anything else, or nothing.
    Other(Span),
}

/// Iterates over the parts of `span`, ascending, without gaps. What the caller does to one may change the map.
pub(super) fn parts(span: Span) -> impl Iterator<Item = Part> {
    let mut rest = span;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let found = registry::shared().and_then(|shared| shared.map.first(rest));
        let part = match found.filter(|(part, _)| !part.is_empty()) {
            None => Part::Other(rest),
            Some((part, _)) if part.start > rest.start => Part::Other(Span::new(rest.start, part.start)),
            Some((part, entry)) => Part::Frozen(part, entry),
        };
        rest.start = part.span().end;
        Some(part)
    })
}

impl Part {
    /// Whether it may show anything but anonymous memory of which nothing must be kept right.
    pub(super) const fn is_shown(self) -> bool {
        matches!(self, Self::Frozen(_, entry) if !entry.is_thawed())
    }

    pub(super) const fn span(self) -> Span {
        match self {
            Self::Frozen(span, _) | Self::Other(span) => span,
        }
    }
}

/// Whether memory that replaces some with this protection key can have it, too: a filter may end the program for that.
pub(super) fn keeps_key(key: u32) -> bool {
    key == 0 || !FreezeCall::ProtectionKey.is_deadly()
}

/// Gives new memory its traits besides rights: by advice only, unless they include a lock or a key, or the kernel may
/// have locked it.
pub(super) fn dress(span: Span, traits: Traits) {
    let is_special = traits.flags.intersects(VmaFlags::LOCKED) || traits.protection_key != 0 || may_lock_new_memory();
    if is_special { traits.give_to(span) } else { traits.advise(span) }
}

/// Returns the pages of `address..address + len`; `None` if the kernel would refuse them, or there are none.
pub(super) fn whole_pages(address: usize, len: usize) -> Option<Span> {
    let page = rustix::param::page_size();
    let end = address.checked_add(len.checked_next_multiple_of(page)?)?;
    (address.is_multiple_of(page) && len > 0).then_some(Span::new(address, end))
}
