//! One pack's memory: the view that is run or read, and the way to write to it.

use std::sync::Arc;

use palimpsest_sys::{
    HUGE_PAGE, Mapping, OnFork, Pages, ProcMem, ProcMemError, Protection, Reservation, SharedMemory, Source, View,
    arch, collapse,
};

use super::backing::{Backing, BackingError};
use super::builder::ForkPolicy;

/// What a pack is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Code = 1,
    ReadOnlyData = 2,
    ReadWriteData = 3,
}

/// Whether a pack that cannot be had in huge pages is one in base pages, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRefusal {
    /// While a backing is being chosen, and when one is forced.
    Fail,
    /// Later: the store goes on and reports it.
    UseBasePages,
}

/// Whether profilers are expected to look for names of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Profiling {
    /// Nobody follows the programs.
    None,
    /// An observer does, and perf must not take the pack for a file.
    ByName,
}

/// What a new pack is to be.
pub(super) struct Plan<'a> {
    pub(super) region: &'a Arc<Reservation>,
    /// Bytes from the region's base.
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) kind: Kind,
    pub(super) backing: Backing,
    pub(super) proc_mem: Option<&'a Arc<ProcMem>>,
    pub(super) fork: ForkPolicy,
    pub(super) on_refusal: OnRefusal,
    pub(super) profiling: Profiling,
}

/// See the module's documentation.
pub(super) struct PackMemory {
    view: View,
    writer: Writer,
    /// Why it is in base pages though huge ones were wanted.
    downgraded: Option<BackingError>,
}

enum Writer {
    /// Another view of the same memory object, at the same offsets, which forked children do not have.
    Alias(Mapping),
    /// The kernel writes.
    ProcMem(Arc<ProcMem>),
    /// The view itself is writable, and not executable.
    View,
}

impl PackMemory {
    /// Makes a pack that is full of traps (code) or zeros (data).
    pub(super) fn new(plan: &Plan<'_>) -> Result<Self, BackingError> {
        match (plan.kind, plan.backing) {
            (Kind::ReadWriteData, _) => {
                let view = plan.region.place(plan.offset, plan.len, Source::Anonymous, Protection::ReadWrite)?;
                Ok(Self { view, writer: Writer::View, downgraded: None })
            }
            (_, Backing::ProcMem) => Self::through_proc_mem(plan),
            (_, Backing::CollapsedMemfd | Backing::HugetlbMemfd | Backing::SmallMemfd) => Self::in_two_views(plan),
        }
    }

    fn in_two_views(plan: &Plan<'_>) -> Result<Self, BackingError> {
        if plan.backing == Backing::HugetlbMemfd {
            return match (from_huge_pool(plan), plan.on_refusal) {
                (Ok((memory, alias)), _) => Self::finish(plan, &memory, alias, None),
                (Err(error), OnRefusal::Fail) => Err(error),
                (Err(error), OnRefusal::UseBasePages) => {
                    let (memory, alias) = from_base_pages(plan)?;
                    Self::finish(plan, &memory, alias, Some(error))
                }
            };
        }
        let (memory, alias) = from_base_pages(plan)?;
        let collapsed = match plan.backing {
            Backing::CollapsedMemfd => make_huge(&memory, &alias),
            _ => Ok(()),
        };
        match (collapsed, plan.on_refusal) {
            (Ok(()), _) => Self::finish(plan, &memory, alias, None),
            (Err(error), OnRefusal::Fail) => Err(error),
            (Err(error), OnRefusal::UseBasePages) => Self::finish(plan, &memory, alias, Some(error)),
        }
    }

    fn finish(
        plan: &Plan<'_>,
        memory: &SharedMemory,
        alias: Mapping,
        downgraded: Option<BackingError>,
    ) -> Result<Self, BackingError> {
        // Every page now, so that lack of memory, or a cgroup's limit on huge pages, is an error here and not a SIGBUS at the first
        // store.
        memory.allocate(plan.len)?;
        let source = Source::Shared(memory);
        let view = match plan.profiling {
            Profiling::None => plan.region.place(plan.offset, plan.len, source, plan.protection())?,
            Profiling::ByName => plan.region.place_unnamed(plan.offset, plan.len, source, plan.protection())?,
        };
        if plan.fork == ForkPolicy::Omit {
            view.on_fork(OnFork::Omit)?;
        }
        let pack = Self { view, writer: Writer::Alias(alias), downgraded };
        if plan.kind == Kind::Code {
            // SAFETY: 1. in bounds; 2. nobody has an address in the new pack.
            unsafe { pack.fill_traps(0, plan.len) }?;
        }
        if plan.backing == Backing::CollapsedMemfd && pack.downgraded.is_none() {
            // The memory is one huge page by now; this makes the view's page table say so before the first run.
            // Where it fails, the kernel maps it on demand.
            let _ = collapse(&pack.view);
        }
        Ok(pack)
    }

    fn through_proc_mem(plan: &Plan<'_>) -> Result<Self, BackingError> {
        let proc_mem = match plan.proc_mem {
            Some(proc_mem) => Arc::clone(proc_mem),
            None => Arc::new(ProcMem::open()?),
        };
        let view = plan.region.place(plan.offset, plan.len, Source::Anonymous, plan.protection())?;
        // Base pages do where the kernel has no others; `Packs::huge_mapped` tells.
        let _ = view.prefer_huge_pages();
        if plan.fork == ForkPolicy::Omit {
            view.on_fork(OnFork::Omit)?;
        }
        let pack = Self { view, writer: Writer::ProcMem(proc_mem), downgraded: None };
        if plan.kind == Kind::Code {
            // SAFETY: 1. in bounds; 2. nobody has an address in the new pack.
            unsafe { pack.fill_traps(0, plan.len) }?;
        }
        Ok(pack)
    }

    /// First address of the view.
    pub(super) fn base(&self) -> usize {
        self.view.address()
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.view.len()
    }

    /// Where the byte at `offset` is written, if that is another view of shared memory.
    pub(super) fn alias(&self, offset: usize) -> Option<*mut u8> {
        match &self.writer {
            Writer::Alias(alias) => Some(alias.as_ptr().wrapping_add(offset)),
            Writer::ProcMem(_) | Writer::View => None,
        }
    }

    /// How many mappings of the process it takes.
    pub(super) fn mappings(&self) -> usize {
        match self.writer {
            Writer::Alias(_) => 2,
            Writer::ProcMem(_) | Writer::View => 1,
        }
    }

    /// Why it is in base pages though huge ones were wanted.
    pub(super) fn downgraded(&self) -> Option<&BackingError> {
        self.downgraded.as_ref()
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Safety
    ///
    /// 1. `offset + bytes.len()` is at most [`len`](Self::len).
    /// 2. The range is the caller's alone: nobody executes, reads or writes it.
    pub(super) unsafe fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), ProcMemError> {
        debug_assert!(offset + bytes.len() <= self.len());
        let target = match &self.writer {
            Writer::Alias(alias) => alias.as_ptr(),
            Writer::View => self.view.as_ptr(),
            Writer::ProcMem(proc_mem) => {
                // SAFETY: the range is mapped (1), and nobody looks at it (2).
                return unsafe { proc_mem.write(self.base() + offset, bytes) };
            }
        };
        // SAFETY: in bounds (1) of a writable mapping of `len` bytes.
        let target = unsafe { target.add(offset) };
        // SAFETY: both are valid for that many bytes; they are different memory, since the target is nobody else's (2).
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Fills a range with traps.
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write).
    pub(super) unsafe fn fill_traps(&self, offset: usize, len: usize) -> Result<(), ProcMemError> {
        let target = match &self.writer {
            Writer::Alias(alias) => alias.as_ptr(),
            Writer::View => self.view.as_ptr(),
            Writer::ProcMem(_) => {
                let mut traps = vec![0; len];
                arch::fill_traps(&mut traps);
                // SAFETY: the caller's contract.
                return unsafe { self.write(offset, &traps) };
            }
        };
        debug_assert!(offset + len <= self.len());
        // SAFETY: in bounds (1) of a writable mapping of `len` bytes.
        let target = unsafe { target.add(offset) };
        // SAFETY: mapped writable and initialised (the kernel's zeros at least), and nobody else's (2).
        arch::fill_traps(unsafe { std::slice::from_raw_parts_mut(target, len) });
        Ok(())
    }
}

impl Plan<'_> {
    fn protection(&self) -> Protection {
        match self.kind {
            Kind::Code => Protection::ReadExecute,
            Kind::ReadOnlyData => Protection::Read,
            Kind::ReadWriteData => Protection::ReadWrite,
        }
    }

    /// What `/proc/self/maps` calls the memory.
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Code => "palimpsest-code",
            Kind::ReadOnlyData | Kind::ReadWriteData => "palimpsest-data",
        }
    }
}

fn from_huge_pool(plan: &Plan<'_>) -> Result<(SharedMemory, Mapping), BackingError> {
    let memory = SharedMemory::create(plan.name(), plan.len, Pages::Hugetlb)?;
    // Mapping is where the kernel takes the pages out of the pool.
    let alias = Mapping::unforked(Source::Shared(&memory), plan.len, HUGE_PAGE).map_err(BackingError::HugePool)?;
    Ok((memory, alias))
}

fn from_base_pages(plan: &Plan<'_>) -> Result<(SharedMemory, Mapping), BackingError> {
    let memory = SharedMemory::create(plan.name(), plan.len, Pages::Base)?;
    let alias = Mapping::unforked(Source::Shared(&memory), plan.len, HUGE_PAGE)?;
    Ok((memory, alias))
}

/// Makes a new object consist of huge pages, before it has any others that would have to be copied.
fn make_huge(memory: &SharedMemory, alias: &Mapping) -> Result<(), BackingError> {
    // A range with no page at all is refused (`mm/khugepaged.c`), so each huge page begins with one small one.
    memory.allocate_every(HUGE_PAGE)?;
    collapse(alias)?;
    Ok(())
}
