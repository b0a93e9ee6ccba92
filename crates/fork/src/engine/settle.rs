//! The end of a round: map, tables and figures say again what the mappings are.

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Detail, Label, Vma};

use super::frozen_map::{Entry, FrozenMap};
use super::prices::Memory;
use super::records::{Held, frozen};
use super::registry::Shared;
use super::span::Span;
use super::tables::Tables;
use super::traits::Traits;

/// Reads the mappings again, writes the map anew, forgets extents that nothing maps any more, and counts the round.
/// Returns what is frozen then.
///
/// The mappings have changed, so extents that a repair has emptied are seen only by a new reading. If that fails, they
/// are kept, and the map says nothing that it is sure of.
pub(super) fn settle(tables: &mut Tables<'_>, shared: &Shared) -> Memory {
    tables.ledger.hot.end();
    shared.statistics.count_round();
    let is_read = tables.vmas.read(Detail::Places).is_ok();
    tables.extents.iter_mut().for_each(Held::look_again);
    if !is_read {
        shared.map.doubt();
        shared.origins.doubt();
        return frozen(tables.extents);
    }
    shared.map.clear();
    shared.forget_replacements();
    shared.forget_erased();
    let mut runs = MapWriter { map: &shared.map, open: None };
    let mut bytes = 0;
    for index in 0..tables.vmas.len() {
        let vma = tables.vmas[index];
        let Some(entry) = entry_of(tables, &vma) else { continue };
        if entry.extent().is_some() {
            bytes += vma.range().len();
        }
        runs.add(vma.range().into(), entry);
    }
    runs.close();
    let kept = forget_unseen(tables);
    tell_origins(tables, shared);
    shared.statistics.frozen(bytes, kept);
    frozen(tables.extents)
}

/// Has an extent known that a slice has filled and shows at `shown`, without reading any mapping.
pub(super) fn publish(tables: &mut Tables<'_>, shared: &Shared, id: FileId, shown: &[Span], traits: Traits) {
    let Some(held) = tables.held(id) else { return shared.map.doubt() };
    let entry = Entry::new(traits.permissions, held.flags, held.serial);
    let is_known = shown.iter().all(|span| shared.map.add(*span, entry));
    if !is_known {
        // No room: guards fail until a round has written it anew.
        shared.map.doubt();
    }
    shared.map.sort();
    shared.origins.add(held.serial, held.origin);
    let bytes: usize = shown.iter().map(|span| span.len()).sum();
    shared.statistics.count_round();
    shared.statistics.frozen(shared.statistics.frozen_bytes() + bytes, tables.extents.len());
}

/// Has it known that so many bytes are shown by these extents no more, which the map has forgotten, without reading any
/// mapping.
pub(super) fn withdraw(tables: &mut Tables<'_>, shared: &Shared, extents: &[u32], bytes: usize) {
    if shared.map.is_in_doubt() {
        return;
    }
    for held in tables.extents.iter_mut() {
        let shows = |entry: Entry| entry.extent() == Some(held.serial);
        held.seen = !extents.contains(&held.serial) || shared.map.find(|_, entry| shows(entry)).is_some();
    }
    let kept = forget_unseen(tables);
    shared.statistics.frozen(shared.statistics.frozen_bytes().saturating_sub(bytes), kept);
}

/// What the map says of a mapping; nothing if it is neither frozen nor of a snapshot.
fn entry_of(tables: &mut Tables<'_>, vma: &Vma) -> Option<Entry> {
    match tables.held(FileId { device: vma.device, inode: vma.inode }) {
        Some(held) => {
            held.seen = true;
            held.place(vma);
            let entry = Entry::new(vma.permissions, held.flags, held.serial);
            Some(if held.is_erased { entry.erased() } else { entry })
        }
        None if vma.label == Label::Snapshot && !vma.permissions.contains(Permissions::SHARED) => {
            Some(Entry::of_snapshot(vma.permissions))
        }
        None => None,
    }
}

/// Puts mappings into the map, neighbours of which the same is said as one.
struct MapWriter<'a> {
    map: &'a FrozenMap,
    open: Option<(Span, Entry)>,
}

impl MapWriter<'_> {
    fn add(&mut self, span: Span, entry: Entry) {
        match &mut self.open {
            Some((open, said)) if open.end == span.start && *said == entry => open.end = span.end,
            _ => {
                self.close();
                self.open = Some((span, entry));
            }
        }
    }

    fn close(&mut self) {
        if let Some((span, entry)) = self.open.take() {
            self.map.append(span, entry);
        }
    }
}

/// Tells what the extents have held, and whether any holds what was erased.
fn tell_origins(tables: &mut Tables<'_>, shared: &Shared) {
    let origins = &shared.origins;
    for held in tables.extents.iter_mut().filter(|held| origins.is_moved(held.serial)) {
        held.note_move();
    }
    origins.clear();
    for held in tables.extents.iter() {
        origins.add(held.serial, held.origin);
    }
    if shared.has_marks() {
        shared.note_erased();
    }
}

/// Forgets extents that were not seen; how many are left.
fn forget_unseen(tables: &mut Tables<'_>) -> usize {
    let mut kept = 0;
    for index in 0..tables.extents.len() {
        let held = tables.extents[index];
        if !held.seen {
            continue;
        }
        tables.extents[kept] = held;
        kept += 1;
    }
    tables.extents.truncate(kept);
    let Tables { contents, extents, .. } = tables;
    contents.retain(|serial| extents.iter().any(|held| held.serial == serial));
    kept
}
