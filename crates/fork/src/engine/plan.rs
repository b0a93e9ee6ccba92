//! Which memory is frozen, which is not, and why.

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::memory::vec::Full;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::policy::has_policy;
use palimpsest_sys::pages::vmas::{Label, Vma, VmaFlags};

use super::prices::{Memory, Prices};
use super::records::{Eligible, Excluded, Skipped};
use super::tables::Tables;
use crate::options::Pays;
use crate::report::Skip;
use crate::worth::Worth;

/// A plan in the making.
pub(super) struct Planner<'a, 't> {
    pub(super) tables: &'a mut Tables<'t>,
    /// The least populated bytes of a mapping that is frozen.
    pub(super) least: usize,
    pub(super) pays: Pays,
    pub(super) sees: Sees,
}

/// Of what the flags of mappings were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sees {
    Everything,
    /// Of what is not frozen.
    New,
}

/// What a plan is expected to be worth.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Expected {
    /// What freezing is worth.
    pub(crate) worth: Worth,
    /// What freezing the rest would be worth, which does not pay.
    pub(crate) left: Worth,
}

impl Planner<'_, '_> {
    /// Sorts the mappings read into eligible and skipped ones. Allocates nothing.
    pub(super) fn plan(&mut self) -> Result<Expected, Full> {
        self.tables.eligible.clear();
        self.tables.skipped.clear();
        for index in 0..self.tables.vmas.len() {
            let vma = self.tables.vmas[index];
            let id = FileId { device: vma.device, inode: vma.inode };
            if let Some(held) = self.tables.held(id) {
                if self.sees == Sees::Everything {
                    held.see(&vma);
                }
                continue;
            }
            match reason_to_skip(&vma, self.least) {
                Some(reason) if vma.anonymous > 0 => {
                    self.tables.skipped.push(Skipped { span: vma.range().into(), populated: vma.anonymous, reason })?;
                }
                Some(_) => {}
                None => self.add_but_excluded(&vma)?,
            }
        }
        self.choose()
    }

    /// Moves what does not pay from the eligible to the skipped.
    fn choose(&mut self) -> Result<Expected, Full> {
        let total = self.tables.eligible_bytes();
        let is_first = self.tables.extents.is_empty();
        let Tables { eligible, skipped, ledger, .. } = &mut *self.tables;
        let worth = |one: &Eligible| ledger.prices.worth(Memory::to_freeze(one.populated, one.huge, total));
        let pays = |one: &Eligible| match self.pays {
            Pays::Anyway => true,
            Pays::Within(forks) => worth(one).pays_within(forks),
        };
        let all = eligible.iter().filter(|one| pays(one)).map(worth).fold(Worth::default(), Worth::and);
        let net = if is_first { Prices::of_first(all) } else { all };
        let does_any = match self.pays {
            Pays::Anyway => true,
            Pays::Within(forks) => net.pays_within(forks),
        };
        let mut expected = Expected::default();
        let mut kept = 0;
        for index in 0..eligible.len() {
            let one = eligible[index];
            if does_any && pays(&one) {
                expected.worth = expected.worth.and(worth(&one));
                eligible[kept] = one;
                kept += 1;
            } else {
                expected.left = expected.left.and(worth(&one));
                skipped.push(Skipped { span: one.span, populated: one.populated, reason: Skip::Unprofitable })?;
            }
        }
        eligible.truncate(kept);
        Ok(expected)
    }

    /// Adds `vma` without the excluded spans, which are sorted.
    fn add_but_excluded(&mut self, vma: &Vma) -> Result<(), Full> {
        let mut rest = Span::from(vma.range());
        for index in 0..self.tables.excluded.len() {
            let Excluded { span, reason } = self.tables.excluded[index];
            let hole = span.intersection(rest);
            if hole.is_empty() {
                continue;
            }
            self.add(vma, Span::new(rest.start, hole.start))?;
            self.tables.skipped.push(Skipped { span: hole, populated: hole.len().min(vma.anonymous), reason })?;
            rest.start = hole.end;
        }
        self.add(vma, rest)
    }

    fn add(&mut self, vma: &Vma, span: Span) -> Result<(), Full> {
        if span.is_empty() {
            return Ok(());
        }
        self.tables.eligible.push(Eligible {
            span,
            traits: Traits::of(vma),
            is_named: vma.label == Label::Named,
            frozen: 0,
            populated: vma.anonymous.min(span.len()),
            huge: vma.huge.min(span.len()),
        })
    }
}

/// Returns why a mapping is left alone; `None` if it is frozen.
fn reason_to_skip(vma: &Vma, least: usize) -> Option<Skip> {
    let flags = |flags| vma.flags.intersects(flags);
    Some(match vma.label {
        // An extent that is not listed cannot be repaired, and must not be taken for anonymous memory.
        Label::File | Label::Extent | Label::Snapshot => Skip::File,
        Label::Stack => Skip::Stack,
        Label::Kernel => Skip::Kernel,
        Label::None | Label::Heap | Label::Named if vma.inode != 0 => Skip::File,
        _ if vma.permissions.contains(Permissions::SHARED) => Skip::Shared,
        _ if flags(VmaFlags::GROWS_DOWN.union(VmaFlags::SHADOW_STACK)) => Skip::Stack,
        _ if flags(VmaFlags::DEVICE.union(VmaFlags::PAGE_FRAMES).union(VmaFlags::MIXED)) => Skip::Device,
        _ if flags(VmaFlags::HUGETLB) => Skip::Hugetlb,
        _ if flags(VmaFlags::DONT_FORK) => Skip::NotForked,
        _ if flags(VmaFlags::WIPE_ON_FORK) => Skip::WipedOnFork,
        _ if flags(VmaFlags::LOCKED) => Skip::Locked,
        _ if flags(VmaFlags::USERFAULT) => Skip::Userfault,
        _ if flags(VmaFlags::SEALED) => Skip::Sealed,
        _ if flags(VmaFlags::TAGGED) => Skip::Tagged,
        // Only code that executes from it asks for these.
        _ if flags(VmaFlags::BRANCH_TARGETS) => Skip::Executable,
        _ if flags(VmaFlags::DROPPABLE) => Skip::Droppable,
        _ if vma.protection_key != 0 => Skip::ProtectionKey,
        _ if vma.permissions.contains(Permissions::EXECUTE) => Skip::Executable,
        _ if !vma.permissions.contains(Permissions::READ) => Skip::Inaccessible,
        _ if vma.anonymous < least => Skip::Small,
        _ if has_policy(vma.start) => Skip::MemoryPolicy,
        _ => return None,
    })
}
