//! The end of a round: makes map, tables and figures agree with the mappings again.

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::memory::vec::{Full, MappedVec};
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Detail, Label, Vma};

use super::entry::Entry;
use super::frozen_map::FrozenMap;
use super::places::Places;
use super::prices::Memory;
use super::records::{Held, frozen};
use super::registry::Shared;
use super::tables::Tables;

/// Most thawed ranges in the map, so that there is room for frozen ones.
const MOST_THAWED: usize = 1 << 11;

/// Reads the mappings again, rewrites the map, forgets extents that nothing maps any more, and counts the round.
/// Returns what is frozen now.
///
/// The mappings have changed, so that only a new reading shows which extents a repair has emptied. If that fails, all
/// extents are kept, and the map is unsure of everything.
pub(super) fn settle(tables: &mut Tables<'_>, shared: &Shared) -> Memory {
    shared.statistics.count_round();
    shared.map.begin_epoch();
    let is_read = tables.vmas.read(Detail::Places).is_ok();
    tables.extents.iter_mut().for_each(Held::look_again);
    // What is shown is counted anew below.
    tables.extents.iter_mut().filter(|_| is_read).for_each(Held::hide);
    if !is_read {
        shared.map.doubt();
        shared.origins.doubt();
        return frozen(tables.extents);
    }
    // Without memory for this, nothing is remembered.
    let known = ever_frozen(&shared.map);
    let known = known.as_deref().unwrap_or_default();
    let mut room = MOST_THAWED;
    shared.map.clear();
    shared.forget_replacements();
    shared.forget_erased();
    let mut runs = MapWriter { map: &shared.map, open: None };
    let mut bytes = 0;
    for index in 0..tables.vmas.len() {
        let vma = tables.vmas[index];
        let Some(entry) = entry_of(tables, &vma) else {
            let is_divided = !known.is_empty() && is_divided(&tables.vmas, index);
            for (span, entry) in thawed_in(known, &vma).take(if is_divided { room } else { 0 }) {
                runs.add(span, entry);
                room -= 1;
            }
            continue;
        };
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

/// Publishes an extent that a slice has filled and shows at `shown`, without reading any mapping.
pub(super) fn publish(tables: &mut Tables<'_>, shared: &Shared, id: FileId, shown: &[Span], traits: Traits) {
    shared.map.begin_epoch();
    let Some(held) = tables.held(id) else { return shared.map.doubt() };
    let entry = Entry::new(traits.permissions, held.flags, held.serial);
    let is_known = shown.iter().all(|span| shared.map.add(*span, entry));
    if !is_known {
        // There is no room: guards fail until a round has rewritten the map.
        shared.map.doubt();
    }
    shared.map.sort();
    shared.origins.add(held.serial, held.origin);
    let bytes: usize = shown.iter().map(|span| span.len()).sum();
    held.maps(bytes, 0);
    shared.statistics.count_round();
    shared.statistics.frozen(shared.statistics.frozen_bytes() + bytes, tables.extents.len());
}

/// Publishes that these extents no longer show this many bytes, which the map has forgotten, without reading any
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
    tables.ledger.no_longer_frozen(bytes, kept);
    shared.statistics.frozen(shared.statistics.frozen_bytes().saturating_sub(bytes), kept);
}

/// Makes map, tables and figures agree with what is at `span` by now: a mapping of extent `before`, or of another one,
/// or anonymous memory. Reads no other mapping.
pub(super) fn resettle(tables: &mut Tables<'_>, shared: &Shared, places: &Places, span: Span, before: FileId) {
    shared.statistics.count_round();
    shared.map.begin_epoch();
    let Some(old) = tables.held(before).map(|held| held.serial) else { return shared.map.doubt() };
    let (mut at, mut hidden, mut thawed, mut told) = (span.start, 0, 0, None);
    while at < span.end {
        let Ok(Some(vma)) = places.look_above(&tables.vmas, at) else { return shared.map.doubt() };
        let part = Span::from(vma.range()).intersection(span);
        if part.is_empty() {
            return shared.map.doubt();
        }
        at = part.end;
        match tables.held(FileId { device: vma.device, inode: vma.inode }) {
            Some(held) if held.serial == old => continue,
            Some(held) => {
                held.maps(part.len(), 0);
                let (serial, origin, entry) =
                    (held.serial, held.origin, Entry::new(vma.permissions, held.flags, held.serial));
                if told != Some(serial) {
                    shared.origins.add(serial, origin);
                }
                told = Some(serial);
                if !shared.map.add(part, entry) {
                    return shared.map.doubt();
                }
            }
            None => {
                shared.map.thaw(part);
                thawed += part.len();
            }
        }
        hidden += part.len();
    }
    shared.map.sort();
    if let Some(held) = tables.held(before) {
        held.maps(0, hidden);
    }
    if shared.map.find(|_, entry| entry.extent() == Some(old)).is_none() {
        tables.forget_extent(before);
        shared.origins.forget(old);
    }
    if thawed > 0 {
        tables.ledger.no_longer_frozen(thawed, tables.extents.len());
    }
    shared.statistics.frozen(shared.statistics.frozen_bytes().saturating_sub(thawed), tables.extents.len());
}

/// Most entries of the map about which the kernel is asked: each question takes a microsecond.
const MOST_ASKED: usize = 1000;

/// Forgets extents that are not mapped any more: the program, or the C library, has unmapped them, or the kernel has
/// refused to show them. Of a large map it believes what guards have noted.
pub(super) fn forget_unmapped(tables: &mut Tables<'_>, shared: &Shared, places: &Places) -> Result<(), Full> {
    if shared.map.is_in_doubt() {
        return Ok(());
    }
    let is_small = shared.map.all().count() <= MOST_ASKED;
    let mut bytes = 0;
    tables.runs.clear();
    for (span, entry) in shared.map.all() {
        let Some(serial) = entry.extent() else { continue };
        let is_shown = |tables: &mut Tables<'_>| {
            let vma = places.next_above(&tables.vmas, span.start).filter(|vma| vma.start < span.end);
            let held = vma.and_then(|vma| tables.held(FileId { device: vma.device, inode: vma.inode }));
            held.is_some_and(|held| held.serial == serial)
        };
        if !is_small || is_shown(tables) {
            bytes += span.len();
            tables.runs.push(Span::new(serial as usize, serial as usize))?;
        }
    }
    tables.runs.sort_unstable();
    let Tables { runs, extents, .. } = &mut *tables;
    for held in extents.iter_mut() {
        held.seen = runs.binary_search_by_key(&(held.serial as usize), |run| run.start).is_ok();
        if !held.seen {
            shared.origins.forget(held.serial);
        }
    }
    if tables.extents.iter().any(|held| !held.seen) {
        forget_unseen(tables);
    }
    shared.statistics.frozen(bytes, tables.extents.len());
    Ok(())
}

/// Returns the entry of a mapping; `None` if it is neither frozen nor of a snapshot.
fn entry_of(tables: &mut Tables<'_>, vma: &Vma) -> Option<Entry> {
    match tables.held(FileId { device: vma.device, inode: vma.inode }) {
        Some(held) => {
            held.seen = true;
            held.place(vma);
            held.maps(vma.range().len(), 0);
            let entry = Entry::new(vma.permissions, held.flags, held.serial);
            Some(if held.is_erased { entry.erased() } else { entry })
        }
        None if vma.label == Label::Snapshot && !vma.permissions.contains(Permissions::SHARED) => {
            Some(Entry::of_snapshot(vma.permissions))
        }
        None => None,
    }
}

/// Returns what the map says of frozen and of thawed memory, ascending.
fn ever_frozen(map: &FrozenMap) -> Option<MappedVec<(Span, Entry)>> {
    let is_told = |(_, entry): &(Span, Entry)| entry.is_sure() && !entry.is_of_snapshot();
    let mut known = MappedVec::with_capacity(map.all().filter(is_told).count()).ok()?;
    map.all().filter(is_told).try_for_each(|one| known.push(one)).ok()?;
    known.sort_unstable_by_key(|(span, _)| span.start);
    Some(known)
}

/// Returns the parts of a mapping that were frozen and are anonymous now.
fn thawed_in(known: &[(Span, Entry)], vma: &Vma) -> impl Iterator<Item = (Span, Entry)> {
    let (all, permissions) = (Span::from(vma.range()), vma.permissions);
    let first = known.partition_point(|(span, _)| span.end <= all.start);
    let inside = known[first..].iter().take_while(move |(span, _)| span.start < all.end);
    inside.map(move |(span, entry)| (span.intersection(all), entry.with_rights(permissions).thawed()))
}

/// Whether a mapping is anonymous and has an anonymous neighbour: both may be one to the program, now or once they have
/// the same rights. So what was frozen of it must be remembered: the kernel moves and grows one mapping at a time.
fn is_divided(vmas: &[Vma], index: usize) -> bool {
    let is_anonymous = |vma: &Vma| {
        let has_no_file = vma.inode == 0 && matches!(vma.label, Label::None | Label::Named);
        has_no_file && !vma.permissions.contains(Permissions::SHARED)
    };
    let adjoins = |pair: &[Vma]| pair.iter().all(is_anonymous) && pair[0].end == pair[1].start;
    vmas[index.saturating_sub(1)..vmas.len().min(index + 2)].windows(2).any(adjoins)
}

/// Puts mappings into the map, joining neighbours with the same entry.
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

/// Lists what the extents have held, and whether any holds what was erased.
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

/// Forgets extents that were not seen. Returns how many are left.
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
