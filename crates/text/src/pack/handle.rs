//! `Packs`: the handle that users hold.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use palimpsest_sys::numa::placement::Place;
use palimpsest_sys::numa::policy::NumaError;
use palimpsest_sys::pages::smaps;
use palimpsest_sys::proc::ProcError;
use palimpsest_sys::{CoreSyncSetupError, SyncPath};

use super::backing::{Backing, Refused};
use super::block::Block;
use super::builder::PacksBuilder;
use super::contents::Extras;
use super::data::{DataAccess, StagedData};
use super::error::{FinalizeError, LoadError, OpenError, ReclaimError, StageError};
use super::found::Found;
use super::limbo::Reclaimed;
use super::memory::Kind;
use super::participant::Participant;
use super::policy::{BranchTargets, ForkPolicy, WriteView};
use super::program::Program;
use super::root::{Generation, Root};
use super::staged::{Described, Staged, finalize_all, publish, synchronize};
use super::stats::{HugeMapped, Stats};
use super::store::Store;
use super::{CHUNK, PACK};

/// Memory for programs: a region of address space with 2 MiB packs in it, which programs share.
///
/// It is a handle; clones refer to the same packs. All methods may be called from any thread, and code is copied
/// without a lock held. The packs live as long as a handle, a program or a participant does.
///
/// # The life of a program
///
/// ```text
///   stage ──► Staged ──► finalize ──► Program ──► drop: retired ──► reclaim: traps ──► free
///     │         └── drop: free                        (waits for threads and for forked children)
///     └─ load: all in one, for code that does not care where it lies
/// ```
///
/// # fork
///
/// A forked child runs the programs that it inherits. When it loads or reclaims for the first time it gets packs of its
/// own, of the same kind; it never writes to its parent's, and cannot: the writable view is not inherited. See
/// [`ForkPolicy`](super::ForkPolicy).
#[derive(Clone)]
pub struct Packs {
    pub(super) root: Arc<Root>,
}

impl Packs {
    /// Opens packs of the best backing that works here.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn new() -> Result<Self, OpenError> {
        Self::builder().open()
    }

    /// Returns options for packs.
    pub fn builder() -> PacksBuilder {
        PacksBuilder::new()
    }

    /// Reserves a place for a program of `len` bytes at a multiple of `align` bytes (a power of two of at most
    /// [`MAX_ALIGN`](super::MAX_ALIGN)). Its address is final at once.
    ///
    /// # Errors
    ///
    /// See [`StageError`]; the packs stay usable.
    pub fn stage(&self, len: usize, align: usize) -> Result<Staged, StageError> {
        Ok(Staged::new(self.take_place(Kind::Code, len, align)?))
    }

    /// Reserves a place for `len` bytes of data at a multiple of `align` bytes, in the same region as the code.
    ///
    /// # Errors
    ///
    /// See [`StageError`]; the packs stay usable.
    pub fn stage_data(&self, access: DataAccess, len: usize, align: usize) -> Result<StagedData, StageError> {
        Ok(StagedData::new(self.take_place(access.kind(), len, align)?))
    }

    /// Loads position-independent code, at a multiple of `align` bytes.
    ///
    /// # Errors
    ///
    /// See [`LoadError`]; the packs stay usable.
    pub fn load(&self, code: &[u8], align: usize) -> Result<Program, LoadError> {
        self.load_with(None, code, align)
    }

    /// Does the same as [`load`](Self::load), with a name for observers and for [`lookup`](Self::lookup).
    ///
    /// # Errors
    ///
    /// See [`LoadError`]; the packs stay usable.
    pub fn load_named(&self, name: &str, code: &[u8], align: usize) -> Result<Program, LoadError> {
        self.load_with(Some(Arc::new(Extras { name: name.into(), ..Extras::default() })), code, align)
    }

    fn load_with(&self, extras: Option<Arc<Extras>>, code: &[u8], align: usize) -> Result<Program, LoadError> {
        let mut block = self.take_place(Kind::Code, code.len(), align)?;
        block.write(code).map_err(FinalizeError::from)?;
        synchronize(block.store())?;
        Ok(publish(block, extras, &Described { code, eh_frame: None, lines: None }))
    }

    /// Returns whether there are observers. These can be told more about programs than packs keep.
    pub fn is_observed(&self) -> bool {
        self.root.peek().store.is_observed()
    }

    /// Finalizes many programs with one core synchronisation for all, if the ISA needs it at all. They may be staged in
    /// any packs.
    ///
    /// # Errors
    ///
    /// [`FinalizeError`] of the first that failed; then none is in place, and all places are free again.
    pub fn finalize_all(&self, staged: Vec<Staged>) -> Result<Vec<Program>, FinalizeError> {
        finalize_all(staged)
    }

    /// Returns the program or data that covers `address`, including retired ones as long as they may run.
    ///
    /// Lock-free and async-signal-safe: a handler for SIGSEGV may call it with the interrupted instruction's address
    /// and continue at [`Found::landing`].
    pub fn lookup(&self, address: usize) -> Option<Found<'_>> {
        let mut generations = std::iter::successors(Some(self.root.peek()), |this| this.parent());
        generations.find_map(|generation| generation.store.find(address))
    }

    /// Registers the calling thread as one that runs code by address.
    pub fn participant(&self) -> Participant {
        Participant::new(Arc::clone(&self.root))
    }

    /// Reclaims the retired programs that no pinned thread can be inside and no forked child can hold: fills them with
    /// traps and frees their memory for others. Gives empty packs back to the system, except one of each kind (code,
    /// read-only data, writable data).
    ///
    /// Never waits; what must wait is counted in the result, and the next call tries again. Takes two core
    /// synchronisations for any number of programs.
    ///
    /// # Errors
    ///
    /// See [`ReclaimError`]; what was not reclaimed stays retired.
    pub fn reclaim(&self) -> Result<Reclaimed, ReclaimError> {
        match self.root.current() {
            Ok(generation) => generation.store.reclaim(),
            // A child without packs of its own has retired nothing.
            Err(_) => Ok(Reclaimed::default()),
        }
    }

    /// Reclaims again and again until nothing waits any more, or `patience` is over. Returns the sum of all rounds, and
    /// in the `waiting_` fields what still waits.
    ///
    /// A thread that calls it while it is pinned waits for itself.
    ///
    /// # Errors
    ///
    /// See [`ReclaimError`]; what was not reclaimed stays retired.
    pub fn reclaim_within(&self, patience: Duration) -> Result<Reclaimed, ReclaimError> {
        const PAUSE: Duration = Duration::from_micros(200);
        let began = Instant::now();
        let mut done = self.reclaim()?;
        while done.waiting() > 0 && began.elapsed() < patience {
            std::thread::sleep(PAUSE.min(patience));
            let Reclaimed { programs, bytes, packs, .. } = done;
            done = self.reclaim()?;
            done.programs += programs;
            done.bytes += bytes;
            done.packs += packs;
        }
        Ok(done)
    }

    /// Returns a snapshot of counters. Locks each pack in turn. In a forked child, the first call opens the child's own
    /// packs.
    pub fn stats(&self) -> Stats {
        match self.root.current() {
            Ok(generation) => generation.store.stats(),
            Err(_) => self.root.peek().store.stats_without_packs(),
        }
    }

    /// Returns how many bytes of the executable views the kernel has really mapped by huge pages. Reads
    /// `/proc/self/smaps`, which takes milliseconds in a process with many mappings.
    ///
    /// # Errors
    ///
    /// [`ProcError`] without `/proc`.
    pub fn huge_mapped(&self) -> Result<HugeMapped, ProcError> {
        let mut huge = HugeMapped { bytes: 0, reserved_bytes: 0 };
        // A child without packs of its own yet has no memory to ask about.
        let Ok(Generation { store, .. }) = self.root.current() else { return Ok(huge) };
        for range in store.code_ranges() {
            huge.reserved_bytes += range.len();
            huge.bytes += smaps::pmd_mapped_bytes(range)?;
        }
        Ok(huge)
    }

    /// Returns what the packs are made of.
    pub fn backing(&self) -> Backing {
        self.root.peek().store.backing
    }

    /// Returns when the memory of code can be written.
    pub fn write_view(&self) -> WriteView {
        let store = &self.root.peek().store;
        store.config.write_view_of(store.backing)
    }

    /// Returns where branches through registers may lead: anywhere, if the machine checks no landing pads.
    pub fn branch_targets(&self) -> BranchTargets {
        let wanted = self.root.peek().store.config.branch_targets;
        let is_checked = !palimpsest_sys::arch::landing_pad_rights().is_empty();
        if is_checked { wanted } else { BranchTargets::Any }
    }

    /// Returns backings better than [`backing`](Self::backing), each with the reason why it is not in use. Empty if the
    /// backing was forced.
    pub fn refused(&self) -> &[Refused] {
        &self.root.peek().store.refused
    }

    /// Returns why some pack's memory could not be requested from the node that [`PacksBuilder::node`] names.
    pub fn node_refused(&self) -> Option<NumaError> {
        self.root.current().ok()?.store.unplaced()
    }

    /// Returns where each page of the packs is, as the kernel reports it now. Takes about a microsecond per page, and
    /// holds each pack's lock meanwhile. In a forked child, the first call opens the child's own packs.
    ///
    /// # Errors
    ///
    /// [`NumaError`] if a container, or a kernel without NUMA, does not allow asking.
    pub fn places(&self) -> Result<Vec<Place>, NumaError> {
        // A child without packs of its own yet has no memory to ask about.
        self.root.current().map_or_else(|_| Ok(Vec::new()), |generation| generation.store.places())
    }

    /// Returns how cores are synchronised: by the better path, and by signals where
    /// [`sync_refused`](Self::sync_refused) says that it has begun to fail.
    pub fn sync_path(&self) -> SyncPath {
        self.root.peek().store.sync.path()
    }

    /// Returns why cores are synchronised by signals instead of `membarrier`, if they are, or were where that failed.
    pub fn sync_refused(&self) -> Option<&CoreSyncSetupError> {
        self.root.peek().store.sync.refused()
    }

    /// Returns the addresses of the region, which holds all programs and data of this process. In a forked child, the
    /// first call opens the child's own packs; if it cannot, these are the addresses of its parent's.
    pub fn region(&self) -> Range<usize> {
        self.root.current().unwrap_or_else(|_| self.root.peek()).store.region.range()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    pub(super) fn take_place(&self, kind: Kind, len: usize, align: usize) -> Result<Block, StageError> {
        let generation = self.root.current().map_err(|error| StageError::Child(Box::new(error)))?;
        generation.store.allocate(generation.shard(), kind, len, align)
    }
}

impl PacksBuilder {
    /// Makes a thread that is [pinned](super::Participant::pin) through these packs or `others` pinned for both: for
    /// code in the one that leads to code in the other.
    pub fn pinned_with(mut self, others: &Packs) -> Self {
        self.0.epochs = Some(Arc::clone(others.root.shared_epochs()));
        self
    }

    /// Opens the packs, and makes the first.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(self) -> Result<Packs, OpenError> {
        Ok(Packs { root: Arc::new(Root::open(self.0)?) })
    }
}

impl Store {
    fn find(&self, address: usize) -> Option<Found<'_>> {
        if self.config.fork == ForkPolicy::Omit && !self.fork.is_same_process() {
            return None;
        }
        let offset = address.checked_sub(self.region.address())?;
        let slot = self.slots.get(offset / PACK)?;
        let guard = self.readers.enter();
        // Acquire, partner: the Release stores in `install_pack` and `place_run`.
        let pack = slot.pack.load(Ordering::Acquire);
        // SAFETY: null, or a pack that is not unmapped before the guard is dropped (`Store::bury`).
        let pack = unsafe { pack.as_ref() }?;
        let offset = address - pack.memory.base();
        let chunk = if pack.memory.len() > PACK { 0 } else { offset / CHUNK };
        let meta: *const _ = pack.directory.find(chunk as u32, &guard)?;
        // SAFETY: not reused before the guard is dropped, which moves into the result with it.
        let meta = unsafe { &*meta };
        let inside = u32::try_from(offset).ok()?.checked_sub(meta.start).filter(|&inside| inside < meta.len)?;
        Some(Found::new(meta, inside, guard))
    }
}

impl fmt::Debug for Packs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packs")
            .field("backing", &self.backing())
            .field("region", &self.root.peek().store.region.range())
            .finish_non_exhaustive()
    }
}
