//! One pack's memory: the views that are run or read, and the ways to write to them.

use std::sync::Arc;

use palimpsest_sys::{
    HUGE_PAGE, Mapping, OnFork, Pages, PlacedMapping, ProcMem, Protection, Reservation, SharedMemory, Shutter, Source,
    Window, arch, collapse,
};

use super::backing::{Backing, BackingError};
use super::error::WriteError;
use super::policy::{ForkPolicy, WriteView};

/// What a pack is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Code = 1,
    ReadOnlyData = 2,
    ReadWriteData = 3,
}

/// What becomes of a pack for which no huge pages are available.
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
    /// An observer follows them, and perf must not take the pack for a file.
    ByName,
}

/// How to make a pack.
pub(super) struct Plan<'a> {
    pub(super) region: &'a Arc<Reservation>,
    /// Bytes from the region's base.
    pub(super) offset: usize,
    /// Where more copies go, each run at addresses of its own: one for each further NUMA node.
    pub(super) replicas: &'a [usize],
    pub(super) len: usize,
    pub(super) kind: Kind,
    pub(super) backing: Backing,
    pub(super) write_view: WriteView,
    pub(super) fork: ForkPolicy,
    pub(super) on_refusal: OnRefusal,
    pub(super) profiling: Profiling,
}

/// See the module's documentation.
///
/// Never changed once made; who may write which bytes when is said at [`write`](Self::write).
pub(super) struct PackMemory {
    /// The copy whose addresses programs are known by. Held by itself, so that a machine with one node pays nothing
    /// for the others.
    home: PackCopy,
    /// Same bytes, other addresses.
    replicas: Box<[PackCopy]>,
}

/// A memory object, where it is run, and how it is written.
struct PackCopy {
    view: PlacedMapping,
    writer: Writer,
    /// Why it is in base pages though huge ones were wanted.
    downgraded: Option<BackingError>,
}

enum Writer {
    /// Another view of the same memory object, at the same offsets, which forked children do not have.
    Standing(Mapping),
    /// The same, open only while somebody writes.
    DuringCopies(Shutter),
    /// The kernel writes.
    ProcMem,
    /// The view itself is writable, and not executable.
    View,
}

/// The right to write to a pack through its aliases, until it is dropped.
pub(crate) struct Windows<'p>(Vec<Window<'p>>);

impl Windows<'_> {
    /// Gives the right back.
    pub(crate) fn close(self) -> Result<(), WriteError> {
        // Each, even if one fails: the others are closed by their `Drop` then.
        self.0.into_iter().try_for_each(Window::close).map_err(WriteError::Window)
    }
}

impl PackMemory {
    /// Makes a pack that is full of traps (code) or zeros (data).
    pub(super) fn new(plan: &Plan<'_>) -> Result<Self, BackingError> {
        let copy = |offset| PackCopy::new(&Plan { offset, ..*plan });
        Ok(Self {
            home: copy(plan.offset)?,
            replicas: plan.replicas.iter().map(|&offset| copy(offset)).collect::<Result<_, _>>()?,
        })
    }

    fn copies(&self) -> impl Iterator<Item = &PackCopy> {
        std::iter::once(&self.home).chain(&self.replicas)
    }

    /// First address of the view that programs are known by.
    pub(super) fn base(&self) -> usize {
        self.home.view.address()
    }

    /// First address of each copy, the one that programs are known by first.
    pub(super) fn bases(&self) -> impl Iterator<Item = usize> {
        self.copies().map(|copy| copy.view.address())
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.home.view.len()
    }

    /// Whether it is shared memory, which a forked child has in common with its parent, and which is written by
    /// aliases.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.home.writer, Writer::Standing(_) | Writer::DuringCopies(_))
    }

    /// Where the byte at `offset` is written, for each copy in shared memory, while [`open`](Self::open) is in effect.
    pub(super) fn aliases(&self, offset: usize) -> impl Iterator<Item = *mut u8> {
        self.copies().filter_map(move |copy| Some(copy.alias()?.wrapping_add(offset)))
    }

    /// Makes the aliases writable, where they are not at all times.
    pub(super) fn open(&self) -> Result<Windows<'_>, WriteError> {
        let shutters = self.copies().filter_map(|copy| match &copy.writer {
            Writer::DuringCopies(shutter) => Some(shutter),
            Writer::Standing(_) | Writer::ProcMem | Writer::View => None,
        });
        Ok(Windows(shutters.map(Shutter::open).collect::<Result<_, _>>().map_err(WriteError::Window)?))
    }

    /// How many mappings of the process it takes.
    pub(super) fn mappings(&self) -> usize {
        self.copies().map(|copy| 1 + usize::from(copy.alias().is_some())).sum()
    }

    /// Why it is in base pages though huge ones were wanted.
    pub(super) fn downgraded(&self) -> Option<&BackingError> {
        self.copies().find_map(|copy| copy.downgraded.as_ref())
    }

    /// Stores `bytes` at `offset` of every copy.
    ///
    /// # Safety
    ///
    /// 1. `offset + bytes.len()` is at most [`len`](Self::len).
    /// 2. The range is the caller's alone: nobody executes, reads or writes it.
    pub(super) unsafe fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), WriteError> {
        // SAFETY: the caller's contract.
        self.copies().try_for_each(|copy| unsafe { copy.write(offset, bytes) })
    }

    /// Fills a range of every copy with traps.
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write).
    pub(super) unsafe fn fill_traps(&self, offset: usize, len: usize) -> Result<(), WriteError> {
        // SAFETY: the caller's contract.
        self.copies().try_for_each(|copy| unsafe { copy.fill_traps(offset, len) })
    }

    /// Lets instruction fetch see what has been written to `len` bytes at `offset` of every copy.
    pub(super) fn flush(&self, offset: usize, len: usize) {
        self.bases().for_each(|base| arch::flush_instruction_cache(base + offset..base + offset + len));
    }
}

impl PackCopy {
    fn new(plan: &Plan<'_>) -> Result<Self, BackingError> {
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
        // Every page now: lack of memory, or a cgroup's limit on huge pages, is an error here and no SIGBUS at the
        // first store.
        memory.allocate(plan.len)?;
        let source = Source::Shared(memory);
        let view = match plan.profiling {
            Profiling::None => plan.region.place(plan.offset, plan.len, source, plan.protection())?,
            Profiling::ByName => plan.region.place_unnamed(plan.offset, plan.len, source, plan.protection())?,
        };
        if plan.fork == ForkPolicy::Omit {
            view.on_fork(OnFork::Omit)?;
        }
        let copy = Self { view, writer: Writer::Standing(alias), downgraded };
        copy.fill_new(plan)?;
        if plan.backing == Backing::CollapsedMemfd && copy.downgraded.is_none() {
            // The memory is one huge page by now; this makes the view's page table say so before the first run.
            // Where it fails, the kernel maps it on demand.
            let _ = collapse(&copy.view);
        }
        match (copy, plan.write_view) {
            (Self { view, writer: Writer::Standing(alias), downgraded }, WriteView::DuringCopies) => {
                Ok(Self { view, writer: Writer::DuringCopies(Shutter::new(alias)?), downgraded })
            }
            (copy, _) => Ok(copy),
        }
    }

    fn through_proc_mem(plan: &Plan<'_>) -> Result<Self, BackingError> {
        let view = plan.region.place(plan.offset, plan.len, Source::Anonymous, plan.protection())?;
        // Base pages do where the kernel has no others; `Packs::huge_mapped` tells.
        let _ = view.prefer_huge_pages();
        if plan.fork == ForkPolicy::Omit {
            view.on_fork(OnFork::Omit)?;
        }
        let copy = Self { view, writer: Writer::ProcMem, downgraded: None };
        copy.fill_new(plan)?;
        Ok(copy)
    }

    fn fill_new(&self, plan: &Plan<'_>) -> Result<(), BackingError> {
        if plan.kind != Kind::Code {
            return Ok(());
        }
        // SAFETY: 1. in bounds; 2. nobody has an address in the new pack.
        unsafe { self.fill_traps(0, plan.len) }.map_err(|error| match error {
            WriteError::ProcMem(error) => BackingError::ProcMem(error),
            WriteError::Window(error) => BackingError::Map(error),
        })
    }

    fn alias(&self) -> Option<*mut u8> {
        match &self.writer {
            Writer::Standing(alias) => Some(alias.as_ptr()),
            Writer::DuringCopies(shutter) => Some(shutter.as_ptr()),
            Writer::ProcMem | Writer::View => None,
        }
    }

    /// # Safety
    ///
    /// As for [`PackMemory::write`].
    unsafe fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), WriteError> {
        debug_assert!(offset + bytes.len() <= self.view.len());
        let copy = |target: *mut u8| {
            // SAFETY: in bounds (1) of a mapping that is writable while this runs.
            let target = unsafe { target.add(offset) };
            // SAFETY: both are valid for that many bytes; they are different memory, since the target is nobody else's
            // (2).
            unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        };
        match &self.writer {
            Writer::Standing(alias) => copy(alias.as_ptr()),
            Writer::View => copy(self.view.as_ptr()),
            Writer::DuringCopies(shutter) => {
                let window = shutter.open().map_err(WriteError::Window)?;
                copy(shutter.as_ptr());
                window.close().map_err(WriteError::Window)?;
            }
            Writer::ProcMem => {
                // Opened for each write: a child would inherit it, and it means this process's memory in the child as
                // well.
                let memory = ProcMem::open()?;
                // SAFETY: the range is mapped (1), and nobody looks at it (2).
                unsafe { memory.write(self.view.address() + offset, bytes) }?;
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`PackMemory::write`].
    unsafe fn fill_traps(&self, offset: usize, len: usize) -> Result<(), WriteError> {
        debug_assert!(offset + len <= self.view.len());
        let fill = |target: *mut u8| {
            // SAFETY: in bounds (1) of a mapping that is writable while this runs.
            let target = unsafe { target.add(offset) };
            // SAFETY: mapped writable and initialised (the kernel's zeros at least), and nobody else's (2).
            arch::fill_traps(unsafe { std::slice::from_raw_parts_mut(target, len) });
        };
        match &self.writer {
            Writer::Standing(alias) => fill(alias.as_ptr()),
            Writer::View => fill(self.view.as_ptr()),
            Writer::DuringCopies(shutter) => {
                let window = shutter.open().map_err(WriteError::Window)?;
                fill(shutter.as_ptr());
                window.close().map_err(WriteError::Window)?;
            }
            Writer::ProcMem => {
                let mut traps = vec![0; len];
                arch::fill_traps(&mut traps);
                // SAFETY: the caller's contract.
                return unsafe { self.write(offset, &traps) };
            }
        }
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
    keep_the_only_writer(&memory);
    Ok((memory, alias))
}

fn from_base_pages(plan: &Plan<'_>) -> Result<(SharedMemory, Mapping), BackingError> {
    let memory = SharedMemory::create(plan.name(), plan.len, Pages::Base)?;
    let alias = Mapping::unforked(Source::Shared(&memory), plan.len, HUGE_PAGE)?;
    keep_the_only_writer(&memory);
    Ok((memory, alias))
}

/// Sees to it that nobody gets another write view: a child could give itself the right to write to its executable view,
/// which shows its parent's code, or map a descriptor that it was forked with.
fn keep_the_only_writer(memory: &SharedMemory) {
    if let Err(error) = memory.seal_new_writers() {
        tracing::warn!(%error, "a forked child could make its view of a pack writable; Linux 5.1 and later forbid it");
    }
}

/// Makes a new object consist of huge pages, before it has any others that would have to be copied.
fn make_huge(memory: &SharedMemory, alias: &Mapping) -> Result<(), BackingError> {
    // A range with no page at all is refused (`mm/khugepaged.c`), so each huge page begins with one small one.
    memory.allocate_every(HUGE_PAGE)?;
    collapse(alias)?;
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_copy_is_written_and_filled() {
        let region = Arc::new(Reservation::new(4 * HUGE_PAGE, HUGE_PAGE).unwrap());
        for write_view in [WriteView::Standing, WriteView::DuringCopies] {
            let memory = PackMemory::new(&Plan {
                region: &region,
                offset: 0,
                replicas: &[HUGE_PAGE, 3 * HUGE_PAGE],
                len: HUGE_PAGE,
                kind: Kind::Code,
                backing: Backing::SmallMemfd,
                write_view,
                fork: ForkPolicy::Inherit,
                on_refusal: OnRefusal::Fail,
                profiling: Profiling::None,
            })
            .unwrap();
            let bytes_of_copies = |offset: usize| {
                let at = memory.bases().map(move |base| std::ptr::with_exposed_provenance::<[u8; 4]>(base + offset));
                // SAFETY: in bounds of mapped views, which nobody writes to meanwhile.
                at.map(|at| unsafe { at.read() }).collect::<Vec<_>>()
            };
            let mut traps = [0; 4];
            arch::fill_traps(&mut traps);
            assert_eq!(bytes_of_copies(64), [traps; 3]);
            // SAFETY: 1. in bounds; 2. nobody else knows the pack.
            unsafe { memory.write(64, &[1, 2, 3, 4]) }.unwrap();
            assert_eq!(bytes_of_copies(64), [[1, 2, 3, 4]; 3]);
            let windows = memory.open().unwrap();
            for alias in memory.aliases(65) {
                // SAFETY: in bounds, and writable while the windows are open.
                unsafe { alias.write(9) };
            }
            windows.close().unwrap();
            assert_eq!(bytes_of_copies(64), [[1, 9, 3, 4]; 3]);
            // SAFETY: as above.
            unsafe { memory.fill_traps(64, 4) }.unwrap();
            assert_eq!(bytes_of_copies(64), [traps; 3]);
            assert_eq!((memory.bases().count(), memory.mappings()), (3, 6));
        }
    }
}
