//! Which memory is frozen, and which is not and why.

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::vec::Full;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Label, Vma, VmaFlags};

use super::registry::State;
use super::span::Span;
use super::traits::Traits;
use crate::report::Skip;

/// Memory that will be frozen: a mapping, or a part of one, with what it must have afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eligible {
    pub(crate) span: Span,
    pub(crate) traits: Traits,
    /// Whether it has a name, which a mapping of a file cannot have.
    pub(crate) is_named: bool,
    /// Bytes that were copied, once it is frozen.
    pub(crate) frozen: usize,
    /// Populated bytes of the whole mapping.
    pub(crate) populated: usize,
}

/// Memory that must be left alone although its mapping could be frozen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excluded {
    pub(crate) span: Span,
    pub(crate) reason: Skip,
}

/// Memory that is left as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skipped {
    pub(crate) span: Span,
    pub(crate) populated: usize,
    pub(crate) reason: Skip,
}

impl State {
    /// Sorts the mappings that were read into `eligible` and `skipped`. Allocates nothing.
    pub(crate) fn plan(&mut self, least: usize) -> Result<(), Full> {
        self.eligible.clear();
        self.skipped.clear();
        for index in 0..self.vmas.len() {
            let vma = self.vmas[index];
            let id = FileId { device: vma.device, inode: vma.inode };
            if let Some(held) = self.held(id) {
                held.see(&vma);
                continue;
            }
            match reason_to_skip(&vma, least) {
                Some(reason) if vma.anonymous > 0 => {
                    self.skipped.push(Skipped { span: vma.range().into(), populated: vma.anonymous, reason })?;
                }
                Some(_) => {}
                None => self.add_but_excluded(&vma)?,
            }
        }
        Ok(())
    }

    /// Bytes that are populated in all eligible memory.
    pub(crate) fn eligible_bytes(&self) -> usize {
        self.eligible.iter().map(|one| one.populated.min(one.span.len())).sum()
    }

    /// Adds what is left of `vma` without the excluded spans, which are sorted.
    fn add_but_excluded(&mut self, vma: &Vma) -> Result<(), Full> {
        let mut rest = Span::from(vma.range());
        for index in 0..self.excluded.len() {
            let Excluded { span, reason } = self.excluded[index];
            let hole = span.intersection(rest);
            if hole.is_empty() {
                continue;
            }
            self.add(vma, Span::new(rest.start, hole.start))?;
            self.skipped.push(Skipped { span: hole, populated: hole.len().min(vma.anonymous), reason })?;
            rest.start = hole.end;
        }
        self.add(vma, rest)
    }

    fn add(&mut self, vma: &Vma, span: Span) -> Result<(), Full> {
        if span.is_empty() {
            return Ok(());
        }
        self.eligible.push(Eligible {
            span,
            traits: Traits::of(vma),
            is_named: vma.label == Label::Named,
            frozen: 0,
            populated: vma.anonymous,
        })
    }
}

/// Why a mapping is left alone; `None` if it is to be frozen.
fn reason_to_skip(vma: &Vma, least: usize) -> Option<Skip> {
    let flags = |flags| vma.flags.intersects(flags);
    Some(match vma.label {
        // An extent that is not in the list cannot be repaired, and must not be taken for anonymous memory.
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
        // Only who executes from it asks for these.
        _ if flags(VmaFlags::BRANCH_TARGETS) => Skip::Executable,
        _ if flags(VmaFlags::DROPPABLE) => Skip::Droppable,
        _ if vma.protection_key != 0 => Skip::ProtectionKey,
        _ if vma.permissions.contains(Permissions::EXECUTE) => Skip::Executable,
        _ if !vma.permissions.contains(Permissions::READ) => Skip::Inaccessible,
        _ if vma.anonymous < least => Skip::Small,
        _ if has_memory_policy(vma.start) => Skip::MemoryPolicy,
        _ => return None,
    })
}

/// Whether the mapping at `address` has a NUMA policy of its own (`get_mempolicy(2)`). Where that cannot be told, it
/// has none.
fn has_memory_policy(address: usize) -> bool {
    /// `MPOL_F_ADDR` of `include/uapi/linux/mempolicy.h`.
    const OF_ADDRESS: usize = 2;
    const DEFAULT: i32 = 0;
    let mut mode = DEFAULT;
    // SAFETY: the kernel writes an int to `mode`; no set of nodes is asked for.
    let answer =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, 0_usize, 0_usize, address, OF_ADDRESS) };
    answer == 0 && mode != DEFAULT
}
