//! One pack's memory: the views that are run or read, and the ways to write to them.

use std::sync::Arc;

use palimpsest_sys::numa::NodeId;
use palimpsest_sys::numa::placement::{self, Place};
use palimpsest_sys::numa::policy::{self, NumaError};
use palimpsest_sys::{
    Area, CreateError, HUGE_PAGE, Mapping, OnFork, Pages, PlacedMapping, ProcMem, Protection, Reservation,
    SharedMemory, Shutter, Source, Window, arch, collapse,
};

use super::backing::{Backing, BackingError};
use super::error::WriteError;
use super::parts::Part;
use super::policy::{BranchTargets, ForkPolicy, WriteView};

/// What a pack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Code = 1,
    ReadOnlyData = 2,
    ReadWriteData = 3,
}

impl Kind {
    /// Returns the kind of packs for such parts.
    pub(super) fn of(part: Part) -> Self {
        match part {
            Part::Code => Self::Code,
            Part::ReadOnly => Self::ReadOnlyData,
            Part::ReadWrite => Self::ReadWriteData,
        }
    }

    /// Returns which part lies in packs of this kind.
    pub(super) fn part(self) -> Part {
        match self {
            Self::Code => Part::Code,
            Self::ReadOnlyData => Part::ReadOnly,
            Self::ReadWriteData => Part::ReadWrite,
        }
    }
}

/// What to do with a pack for which there are no huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRefusal {
    /// Fail: while a backing is being chosen, and when one is forced.
    Fail,
    /// Use base pages: later, when the store continues and reports it.
    UseBasePages,
}

/// Whether profilers are expected to look up names of programs.
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
    /// Distance from the region's base, in bytes.
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) kind: Kind,
    pub(super) backing: Backing,
    /// The node that memory should come from, if it matters.
    pub(super) node: Option<NodeId>,
    pub(super) write_view: WriteView,
    pub(super) branch_targets: BranchTargets,
    pub(super) fork: ForkPolicy,
    pub(super) on_refusal: OnRefusal,
    pub(super) profiling: Profiling,
}

/// See the module's documentation.
///
/// Never changed once made; [`write`](Self::write) says who may write which bytes and when.
pub(super) struct PackMemory {
    view: PlacedMapping,
    writer: Writer,
    /// Why it consists of base pages though huge ones were wanted.
    downgraded: Option<BackingError>,
    /// Why its memory could not be requested from the node.
    unplaced: Option<NumaError>,
}

enum Writer {
    /// A second view of the same memory object, at the same offsets, which forked children do not have.
    Standing(Mapping),
    /// The same, open only during writes.
    DuringCopies(Shutter),
    /// None: the kernel writes.
    ProcMem,
    /// None: the first view itself is writable, and not executable.
    View,
}

/// The right to write to a pack through its alias, until it is dropped.
pub(crate) struct Opened<'p>(Option<Window<'p>>);

impl Opened<'_> {
    /// Returns whether there is anything to give back: not for an alias that is writable at all times.
    pub(super) fn is_needed(&self) -> bool {
        self.0.is_some()
    }

    /// Gives back the right.
    pub(crate) fn close(self) -> Result<(), WriteError> {
        self.0.map_or(Ok(()), Window::close).map_err(WriteError::Window)
    }
}

impl PackMemory {
    /// Makes a pack that is full of traps (code) or zeros (data).
    pub(super) fn new(plan: &Plan<'_>) -> Result<Self, BackingError> {
        match (plan.kind, plan.backing) {
            (Kind::ReadWriteData, _) => {
                let view = plan.region.place(plan.offset, plan.len, Source::Anonymous, Protection::ReadWrite)?;
                let unplaced = plan.ask(&view);
                Ok(Self { view, writer: Writer::View, downgraded: None, unplaced })
            }
            (_, Backing::ProcMem) => Self::through_proc_mem(plan),
            (_, Backing::CollapsedMemfd | Backing::HugetlbMemfd | Backing::SmallMemfd) => Self::in_two_views(plan),
        }
    }

    /// Returns the first address of the view in which programs run.
    pub(super) fn base(&self) -> usize {
        self.view.address()
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> usize {
        self.view.len()
    }

    /// Returns whether it is shared memory, which a forked child shares with its parent and which is written through an
    /// alias.
    pub(super) fn is_shared(&self) -> bool {
        self.alias().is_some()
    }

    /// Returns where to write the first byte, if the memory is shared, while [`open`](Self::open) is in effect.
    pub(super) fn alias(&self) -> Option<*mut u8> {
        match &self.writer {
            Writer::Standing(alias) => Some(alias.as_ptr()),
            Writer::DuringCopies(shutter) => Some(shutter.as_ptr()),
            Writer::ProcMem | Writer::View => None,
        }
    }

    /// Returns where the first byte can be written, if it can be at all times.
    pub(super) fn writable(&self) -> Option<*mut u8> {
        match &self.writer {
            Writer::Standing(alias) => Some(alias.as_ptr()),
            Writer::View => Some(self.view.as_ptr()),
            Writer::DuringCopies(_) | Writer::ProcMem => None,
        }
    }

    /// Makes the alias writable, if it is not at all times.
    pub(super) fn open(&self) -> Result<Opened<'_>, WriteError> {
        match &self.writer {
            Writer::DuringCopies(shutter) => Ok(Opened(Some(shutter.open().map_err(WriteError::Window)?))),
            Writer::Standing(_) | Writer::ProcMem | Writer::View => Ok(Opened(None)),
        }
    }

    /// Returns how often the alias was made writable, if it is not writable at all times.
    pub(super) fn openings(&self) -> u64 {
        match &self.writer {
            Writer::DuringCopies(shutter) => shutter.openings(),
            Writer::Standing(_) | Writer::ProcMem | Writer::View => 0,
        }
    }

    /// Returns how many mappings of the process it uses.
    pub(super) fn mappings(&self) -> usize {
        1 + usize::from(self.is_shared())
    }

    /// Returns why it consists of base pages though huge ones were wanted.
    pub(super) fn downgraded(&self) -> Option<&BackingError> {
        self.downgraded.as_ref()
    }

    /// Returns why its memory could not be requested from the node that it is for.
    pub(super) fn unplaced(&self) -> Option<NumaError> {
        self.unplaced
    }

    /// Returns where its pages are, seen through the view by which they were first written.
    pub(super) fn places(&self) -> Result<Vec<Place>, NumaError> {
        let start = self.alias().map_or(self.base(), <*mut u8>::addr);
        placement::of_own_pages(start..start + self.len())
    }

    /// Makes instruction fetch see what has been written to `len` bytes at `offset`.
    pub(super) fn flush(&self, offset: usize, len: usize) {
        arch::flush_instruction_cache(self.base() + offset..self.base() + offset + len);
    }

    fn in_two_views(plan: &Plan<'_>) -> Result<Self, BackingError> {
        if plan.backing == Backing::HugetlbMemfd {
            return match (from_huge_pool(plan), plan.on_refusal) {
                (Ok((memory, alias, unplaced)), _) => Self::finish(plan, &memory, alias, (None, unplaced)),
                (Err(error), OnRefusal::Fail) => Err(error),
                (Err(error), OnRefusal::UseBasePages) => {
                    let (memory, alias, unplaced) = from_base_pages(plan)?;
                    Self::finish(plan, &memory, alias, (Some(error), unplaced))
                }
            };
        }
        let (memory, alias, unplaced) = from_base_pages(plan)?;
        let collapsed = match plan.backing {
            Backing::CollapsedMemfd => make_huge(&memory, &alias),
            _ => Ok(()),
        };
        match (collapsed, plan.on_refusal) {
            (Ok(()), _) => Self::finish(plan, &memory, alias, (None, unplaced)),
            (Err(error), OnRefusal::Fail) => Err(error),
            (Err(error), OnRefusal::UseBasePages) => Self::finish(plan, &memory, alias, (Some(error), unplaced)),
        }
    }

    fn finish(
        plan: &Plan<'_>,
        memory: &SharedMemory,
        alias: Mapping,
        (downgraded, unplaced): (Option<BackingError>, Option<NumaError>),
    ) -> Result<Self, BackingError> {
        // Allocates every page now, so that lack of memory is an error here and not a SIGBUS at the first store.
        memory.allocate(plan.len)?;
        let source = Source::Shared(memory);
        let view = match plan.profiling {
            Profiling::None => plan.region.place(plan.offset, plan.len, source, plan.protection())?,
            Profiling::ByName => plan.region.place_unnamed(plan.offset, plan.len, source, plan.protection())?,
        };
        if plan.fork == ForkPolicy::Omit {
            view.on_fork(OnFork::Omit)?;
        }
        let pack = Self { view, writer: Writer::Standing(alias), downgraded, unplaced };
        pack.fill_new(plan)?;
        if plan.backing == Backing::CollapsedMemfd && pack.downgraded.is_none() {
            // The memory is one huge page by now; this makes the view's page table map it as one before the first run.
            // If it fails, the kernel maps it on demand.
            let _ = collapse(&pack.view);
        }
        match (pack, plan.write_view) {
            (Self { writer: Writer::Standing(alias), view, downgraded, unplaced }, WriteView::DuringCopies) => {
                Ok(Self { writer: Writer::DuringCopies(Shutter::new(alias)?), view, downgraded, unplaced })
            }
            (pack, _) => Ok(pack),
        }
    }

    fn through_proc_mem(plan: &Plan<'_>) -> Result<Self, BackingError> {
        let view = plan.region.place(plan.offset, plan.len, Source::Anonymous, plan.protection())?;
        let unplaced = plan.ask(&view);
        // Base pages will do if the kernel has no others; `Packs::huge_mapped` tells.
        let _ = view.prefer_huge_pages();
        if plan.fork == ForkPolicy::Omit {
            view.on_fork(OnFork::Omit)?;
        }
        let pack = Self { view, writer: Writer::ProcMem, downgraded: None, unplaced };
        pack.fill_new(plan)?;
        Ok(pack)
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

    /// Stores `bytes` at `offset`.
    ///
    /// # Safety
    ///
    /// 1. `offset + bytes.len()` is at most [`len`](Self::len).
    /// 2. The range belongs only to the caller: nobody else executes, reads or writes it.
    pub(super) unsafe fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), WriteError> {
        debug_assert!(offset + bytes.len() <= self.view.len());
        let copy = |target: *mut u8| {
            // SAFETY: in bounds (1) of a mapping that is writable while this runs.
            let target = unsafe { target.add(offset) };
            // SAFETY: both are valid for that many bytes; they do not overlap, since the target belongs only to the
            // caller (2).
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
                // Opened for each write: a child would inherit the descriptor, which still leads to this process's
                // memory.
                let memory = ProcMem::open()?;
                // SAFETY: the range is mapped (1), and nobody looks at it (2).
                unsafe { memory.write(self.view.address() + offset, bytes) }?;
            }
        }
        Ok(())
    }

    /// Fills a range with traps.
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write).
    pub(super) unsafe fn fill_traps(&self, offset: usize, len: usize) -> Result<(), WriteError> {
        debug_assert!(offset + len <= self.view.len());
        let fill = |target: *mut u8| {
            // SAFETY: in bounds (1) of a mapping that is writable while this runs.
            let target = unsafe { target.add(offset) };
            // SAFETY: mapped writable and initialised (by the kernel's zeros at least), and used by nobody else (2).
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
            Kind::Code => match self.branch_targets {
                BranchTargets::Any => Protection::ReadExecute,
                BranchTargets::LandingPads => Protection::ReadExecuteFromLandingPads,
            },
            Kind::ReadOnlyData => Protection::Read,
            Kind::ReadWriteData => Protection::ReadWrite,
        }
    }

    /// Requests memory of the node, before there is any. Returns why, if that failed.
    fn ask(&self, area: &Area) -> Option<NumaError> {
        self.node.and_then(|node| policy::prefer(area, node).err())
    }

    /// Returns the name of the memory in `/proc/self/maps`.
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Code => "palimpsest-code",
            Kind::ReadOnlyData | Kind::ReadWriteData => "palimpsest-data",
        }
    }
}

/// A memory object, the view to write through, and why its memory was not asked of the node.
type Object = (SharedMemory, Mapping, Option<NumaError>);

/// Makes an object out of the pool of huge pages.
#[cfg(any(not(test), loom))]
fn object_of_pool(plan: &Plan<'_>) -> Result<SharedMemory, CreateError> {
    SharedMemory::create(plan.name(), plan.len, Pages::Hugetlb)
}

/// Allocates all pages of such an object.
#[cfg(any(not(test), loom))]
fn allocate_from_pool(memory: &SharedMemory) -> Result<(), CreateError> {
    memory.allocate(memory.len())
}

fn from_huge_pool(plan: &Plan<'_>) -> Result<Object, BackingError> {
    let memory = object_of_pool(plan)?;
    // The kernel takes the pages out of the pool when it maps them.
    let alias = Mapping::unforked(Source::Shared(&memory), plan.len, HUGE_PAGE).map_err(BackingError::HugePool)?;
    let unplaced = plan.ask(&alias);
    if plan.node.is_some() {
        // The object does not keep a policy set on a view (`fs/hugetlbfs/inode.c`): the policy counts where a page is
        // first touched. Kernels before 5.14 refuse, and place pages anywhere.
        let _ = alias.populate();
    }
    // Here, where there is still a choice: a cgroup's limit on huge pages counts only when they are allocated.
    allocate_from_pool(&memory)?;
    keep_the_only_writer(&memory);
    Ok((memory, alias, unplaced))
}

fn from_base_pages(plan: &Plan<'_>) -> Result<Object, BackingError> {
    let memory = SharedMemory::create(plan.name(), plan.len, Pages::Base)?;
    let alias = Mapping::unforked(Source::Shared(&memory), plan.len, HUGE_PAGE)?;
    let unplaced = plan.ask(&alias);
    keep_the_only_writer(&memory);
    Ok((memory, alias, unplaced))
}

/// Prevents other write views: a child could make its executable view of the parent's code writable, or map an
/// inherited descriptor.
fn keep_the_only_writer(memory: &SharedMemory) {
    if let Err(error) = memory.seal_new_writers() {
        tracing::warn!(%error, "a forked child could make its view of a pack writable; Linux 5.1 and later forbid it");
    }
}

/// Makes a new object consist of huge pages, before it has any others that would have to be copied.
fn make_huge(memory: &SharedMemory, alias: &Mapping) -> Result<(), BackingError> {
    // The kernel refuses a range without any page (`mm/khugepaged.c`), so each huge page begins with one small page.
    memory.allocate_every(HUGE_PAGE)?;
    collapse(alias)?;
    Ok(())
}

#[cfg(all(test, not(loom)))]
use tests::{allocate_from_pool, object_of_pool};

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::io;

    use super::*;

    thread_local! {
        /// Whether this thread's pool is one of base pages, and under a cgroup's limit that is reached.
        static IS_LIMITED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn object_of_pool(plan: &Plan<'_>) -> Result<SharedMemory, CreateError> {
        let pages = if IS_LIMITED.get() { Pages::Base } else { Pages::Hugetlb };
        SharedMemory::create(plan.name(), plan.len, pages)
    }

    pub(super) fn allocate_from_pool(memory: &SharedMemory) -> Result<(), CreateError> {
        let len = memory.len();
        if IS_LIMITED.get() {
            return Err(CreateError::Allocate { len, source: io::ErrorKind::StorageFull.into() });
        }
        memory.allocate(len)
    }

    /// Fails on: huge pages that are first allocated when there is no choice any more.
    #[test]
    fn a_limit_on_huge_pages_is_no_limit_on_packs() {
        let region = Arc::new(Reservation::new(2 * HUGE_PAGE, HUGE_PAGE).unwrap());
        IS_LIMITED.set(true);
        let made = |on_refusal| {
            let plan = plan(&region, WriteView::Standing, None);
            PackMemory::new(&Plan { backing: Backing::HugetlbMemfd, on_refusal, ..plan })
        };
        assert!(matches!(made(OnRefusal::Fail), Err(BackingError::Create(CreateError::Allocate { .. }))));
        let memory = made(OnRefusal::UseBasePages).unwrap();
        assert!(matches!(memory.downgraded(), Some(BackingError::Create(CreateError::Allocate { .. }))));
        // SAFETY: 1. in bounds; 2. nobody else knows the pack.
        unsafe { memory.write(64, &[1, 2, 3, 4]) }.unwrap();
        assert_eq!(bytes_at(&memory, 64), [1, 2, 3, 4]);
    }

    fn bytes_at(memory: &PackMemory, offset: usize) -> [u8; 4] {
        let at = std::ptr::with_exposed_provenance::<[u8; 4]>(memory.base() + offset);
        // SAFETY: in bounds of a mapped view, which nobody writes to meanwhile.
        unsafe { at.read() }
    }

    fn plan(region: &Arc<Reservation>, write_view: WriteView, node: Option<NodeId>) -> Plan<'_> {
        Plan {
            region,
            offset: HUGE_PAGE,
            len: HUGE_PAGE,
            kind: Kind::Code,
            backing: Backing::SmallMemfd,
            node,
            write_view,
            branch_targets: BranchTargets::Any,
            fork: ForkPolicy::Inherit,
            on_refusal: OnRefusal::Fail,
            profiling: Profiling::None,
        }
    }

    #[test]
    fn what_is_written_is_seen_where_it_runs() {
        let region = Arc::new(Reservation::new(2 * HUGE_PAGE, HUGE_PAGE).unwrap());
        for write_view in [WriteView::Standing, WriteView::DuringCopies] {
            let memory = PackMemory::new(&plan(&region, write_view, None)).unwrap();
            let mut traps = [0; 4];
            arch::fill_traps(&mut traps);
            assert_eq!(bytes_at(&memory, 64), traps);
            // SAFETY: 1. in bounds; 2. nobody else knows the pack.
            unsafe { memory.write(64, &[1, 2, 3, 4]) }.unwrap();
            assert_eq!(bytes_at(&memory, 64), [1, 2, 3, 4]);
            let opened = memory.open().unwrap();
            let alias = memory.alias().unwrap().wrapping_add(65);
            // SAFETY: in bounds, and writable while it is open.
            unsafe { alias.write(9) };
            opened.close().unwrap();
            assert_eq!(bytes_at(&memory, 64), [1, 9, 3, 4]);
            // SAFETY: as above.
            unsafe { memory.fill_traps(64, 4) }.unwrap();
            assert_eq!(bytes_at(&memory, 64), traps);
            assert_eq!((memory.base(), memory.mappings()), (region.address() + HUGE_PAGE, 2));
        }
    }

    #[test]
    fn a_node_that_is_absent_is_told_and_does_no_harm() {
        if let Err(error) = policy::can_ask() {
            return println!("skipped: {error}");
        }
        let region = Arc::new(Reservation::new(2 * HUGE_PAGE, HUGE_PAGE).unwrap());
        let there = policy::allowed_nodes().unwrap().iter().next().unwrap();
        for (node, is_refused) in [(None, false), (Some(there), false), (Some(NodeId(1023)), true)] {
            let memory = PackMemory::new(&plan(&region, WriteView::Standing, node)).unwrap();
            assert_eq!(memory.unplaced().is_some(), is_refused, "{node:?}");
            assert_eq!(memory.mappings(), 2, "a wish costs nothing");
            match memory.places() {
                Ok(places) => assert!(places.iter().all(|place| matches!(place, Place::On(_))), "{node:?}: {places:?}"),
                Err(error) => println!("skipped: {error}"),
            }
        }
    }
}
