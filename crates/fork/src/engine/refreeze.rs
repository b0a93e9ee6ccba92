//! Freezes written memory again between forks, one mapping at a time.
//!
//! A repair looks at all mappings, which the kernel does not divide, and so takes longer than a slice may. A slice asks
//! for one mapping, and scans its page tables: its rights are the kernel's answer, its flags what the map says.

use std::time::Duration;

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::is_locked;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::Pagemap;
use palimpsest_sys::pages::vmas::{Vma, VmaFlags};

use super::budget::{Budget, Time};
use super::places::Places;
use super::registry::Shared;
use super::repair::{Repaired, Repairer};
use super::settle::resettle;
use super::subject::Subject;
use super::tables::Tables;
use crate::clock::{WallMoment, nanos};

/// What is copied at a time: a piece takes longer than a slice of the usual length.
const PART: usize = 256 << 10;

/// What became of a frozen mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refrozen {
    /// Nothing that was written is left in it, up to here.
    Upto(usize),
    /// The time was up: there is more from here on.
    Left(usize),
    /// It is left alone, up to here.
    Untouched(usize),
    /// Only a round may know what to do about it, up to here: its flags are not known, or the kernel has refused.
    Unknown(usize),
}

/// What a mapping is to whoever freezes again.
enum Known {
    Subject(Subject),
    /// It is not frozen, or must not be replaced.
    LeftAlone,
    /// Its flags are not known, or not the same everywhere.
    Unknown,
}

/// What freezing again needs.
pub(super) struct Refreezer<'a, 't> {
    pub(super) tables: &'a mut Tables<'t>,
    pub(super) shared: &'a Shared,
    pub(super) pagemap: &'a Pagemap,
    pub(super) places: &'a Places,
    /// When the slice began, and how long it may take.
    pub(super) started: WallMoment,
    pub(super) most: Duration,
}

impl Refreezer<'_, '_> {
    /// Whether mappings can be frozen again one at a time: not where they must be listed.
    pub(super) fn refreezes(&self) -> bool {
        matches!(self.places, Places::Asked(_)) && self.shared.has_room()
    }

    /// Whether an extent is mapped that should have no mapping any more.
    pub(super) fn is_any_to_go(&self) -> bool {
        self.tables.extents.iter().any(|held| held.is_to_go())
    }

    /// Whether the frozen mapping at `address` must be moved off its extent.
    pub(super) fn is_to_go(&mut self, address: usize) -> bool {
        let Some(vma) = self.places.next_above(&self.tables.vmas, address) else { return false };
        self.tables.held(FileId { device: vma.device, inode: vma.inode }).is_some_and(|held| held.is_to_go())
    }

    /// Freezes again what was written to in the mapping at `address`, as long as the slice has time; one part in any
    /// case.
    ///
    /// # Safety
    ///
    /// 1. No other thread runs, and none is started; the kernel writes to none of the memory on behalf of earlier
    ///    requests.
    pub(super) unsafe fn refreeze(&mut self, address: usize, budget: &mut Budget) -> Refrozen {
        let vma = self.places.next_above(&self.tables.vmas, address).filter(|vma| vma.start <= address);
        let Some(vma) = vma else { return Refrozen::Untouched(address + rustix::param::page_size()) };
        let (span, id) = (Span::from(vma.range()), FileId { device: vma.device, inode: vma.inode });
        let subject = match self.known(&vma) {
            Known::Subject(subject) => subject,
            Known::LeftAlone => return Refrozen::Untouched(span.end),
            Known::Unknown => return Refrozen::Unknown(span.end),
        };
        let is_resting = span.cut(PART).all(|part| self.tables.ledger.hot.rests(part));
        if is_resting || is_locked(span) {
            return Refrozen::Untouched(span.end);
        }
        // The last part, and what is renewed behind it, take some time as well.
        let left = nanos(self.most).saturating_sub(self.started.elapsed()) / 2;
        let mut own = Budget::new(budget.mappings()).within(Time::For { nanos: left, since: WallMoment::now() });
        let (tables, pagemap, repaired) = (&mut *self.tables, self.pagemap, Repaired::default());
        let mut repairer = Repairer { tables, pagemap, budget: &mut own, repaired, part: PART, left: None };
        // SAFETY: 1. is (1). 2. the kernel has just told that it is a private mapping of the extent.
        let outcome = unsafe { repairer.repair_mapping(subject) };
        let left = repairer.left;
        *budget = Budget::new(own.mappings());
        resettle(self.tables, self.shared, self.places, span, id);
        if outcome.is_err() {
            // The program may have sealed this mapping, say. The next one is another.
            return Refrozen::Unknown(span.end);
        }
        left.map_or(Refrozen::Upto(span.end), Refrozen::Left)
    }

    /// Returns what a mapping is.
    fn known(&mut self, vma: &Vma) -> Known {
        let span = Span::from(vma.range());
        let id = FileId { device: vma.device, inode: vma.inode };
        let Some(serial) = self.tables.held(id).map(|held| held.serial) else { return Known::LeftAlone };
        let Some(flags) = self.flags(span, vma.permissions, serial) else { return Known::Unknown };
        // The page tables tell whether anything was written.
        let vma = Vma { flags, anonymous: span.len(), ..*vma };
        Subject::of(self.tables, &vma).map_or(Known::LeftAlone, Known::Subject)
    }

    /// Returns the flags that a mapping of this extent has everywhere: the program may have given advice since the last
    /// round, which only the map knows. Where rights were taken and given back, entries are divided that the kernel has
    /// joined.
    fn flags(&self, span: Span, permissions: Permissions, serial: u32) -> Option<VmaFlags> {
        let (mut at, mut known) = (span.start, None);
        while at < span.end {
            let rest = Span::new(at, span.end);
            let (part, entry) = self.shared.map.first(rest).filter(|(part, _)| part.start == at)?;
            let is_its_own = entry.extent() == Some(serial) && entry.permissions() == permissions && entry.key() == 0;
            let flags = entry.flags().filter(|_| is_its_own)?;
            if known.is_some_and(|known| known != flags) {
                return None;
            }
            (at, known) = (part.end, Some(flags));
        }
        known
    }
}
