//! What a process has one of: the tables that its handler searches, the lock that keeps batches apart, the ways to write and to synchronise.
//!
//! # One per process
//!
//! A forked child inherits its parent's domain as a copy, locked perhaps by a thread that it does not have. It searches the
//! inherited tables all the same, and makes a domain of its own, with the inherited one as `parent`, when it pokes for the first time.
//!
//! | table | memory | names sites in | in a child |
//! |---|---|---|---|
//! | `private` | private | text, and programs that are private memory | as of the fork, like the text itself |
//! | `shared` | shared | programs | what the parent is doing now, like the programs themselves |
//!
//! A fork and a store to text exclude each other (both take the kernel's `mmap_lock`), and the memory of the forking process is
//! copied as of one moment in the order of each thread's stores: a thread that stores to a page after it was copied waits until the fork is over. So a child
//! that inherits a trap inherits the table that was published before it, and withdrawn after it.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use palimpsest_sys::{
    CoreSync, ForkDetector, Mapping, Pages, Protection, SharedMemory, Source, SyncError, SyncPath, TextWriter,
};

use super::error::PokeError;
use super::site::Site;
use super::table::Table;
use crate::primitive::AtomicU64;

/// Sites that trap at once, of either kind.
pub(super) const MAX_SITES: usize = (1 << 18) - 1;

/// A multiple of every page size, in bytes.
const PAGES: usize = 1 << 16;

const TABLE_BYTES: usize = (Table::words_for(MAX_SITES) * size_of::<u64>()).next_multiple_of(PAGES);

/// See the module's documentation.
pub(super) struct Domain {
    process: ForkDetector,
    parent: Option<&'static Domain>,
    private: Mapping,
    shared: Mapping,
    shared_memory: SharedMemory,
    /// The sites of the batch under way, for children; null if there is none. Set before the first trap and unset after the last.
    in_flight: AtomicPtr<Vec<Site>>,
    state: Mutex<State>,
}

/// What a batch uses.
pub(super) struct State {
    pub(super) text: TextWriter,
    pub(super) sync: CoreSync,
    /// The other way to synchronise, once it was needed.
    fallback: Option<CoreSync>,
    /// A batch has failed half-way.
    pub(super) stuck: bool,
    /// Bytes of the shared table that have memory.
    shared_bytes: usize,
}

/// The domain of this process, or of one that it was forked from; null before the first batch. Never freed.
static CURRENT: AtomicPtr<Domain> = AtomicPtr::new(ptr::null_mut());

impl Domain {
    /// The domain of this process, made now if it has none.
    pub(super) fn own() -> Result<&'static Self, PokeError> {
        loop {
            let inherited = Self::youngest();
            if let Some(domain) = inherited
                && domain.process.is_same_process()
            {
                return Ok(domain);
            }
            let own = Box::into_raw(Box::new(Self::new(inherited)?));
            let known = inherited.map_or(ptr::null_mut(), |domain| ptr::from_ref(domain).cast_mut());
            // Release, partner: the Acquire load in `youngest`. Relaxed on failure: looked at again.
            if CURRENT.compare_exchange(known, own, Ordering::Release, Ordering::Relaxed).is_err() {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(own) });
            }
        }
    }

    fn youngest() -> Option<&'static Self> {
        // Acquire, partner: the Release exchange in `own`. Forbids a handler that sees the domain without its tables.
        let domain = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a domain that is never freed.
        unsafe { domain.as_ref() }
    }

    fn new(parent: Option<&'static Self>) -> Result<Self, PokeError> {
        let shared_memory = SharedMemory::create("palimpsest-sites", TABLE_BYTES, Pages::Base)?;
        shared_memory.allocate(PAGES)?;
        Ok(Self {
            process: ForkDetector::new(),
            parent,
            private: Mapping::new(Source::Anonymous, TABLE_BYTES, Protection::ReadWrite, PAGES)?,
            shared: Mapping::new(Source::Shared(&shared_memory), TABLE_BYTES, Protection::ReadWrite, PAGES)?,
            shared_memory,
            in_flight: AtomicPtr::new(ptr::null_mut()),
            state: Mutex::new(State {
                text: TextWriter::new(),
                sync: CoreSync::new()?,
                fallback: None,
                stuck: false,
                shared_bytes: PAGES,
            }),
        })
    }

    /// Keeps batches apart.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every table that this process's code may have a trap of.
    pub(super) fn all_tables() -> impl Iterator<Item = Table<'static>> + Clone {
        let domains = std::iter::successors(Self::youngest(), |domain| domain.parent);
        domains.flat_map(|domain| [domain.private(), domain.shared()])
    }

    pub(super) fn private(&self) -> Table<'_> {
        table_in(&self.private)
    }

    pub(super) fn shared(&self) -> Table<'_> {
        table_in(&self.shared)
    }

    /// Takes memory for `sites` sites in the shared table: lack of it is an error here and would be SIGBUS later.
    pub(super) fn reserve_shared(&self, state: &mut State, sites: usize) -> Result<(), PokeError> {
        let bytes = Table::words_for(sites) * size_of::<u64>();
        if bytes > state.shared_bytes {
            let bytes = bytes.next_multiple_of(PAGES).min(TABLE_BYTES);
            self.shared_memory.allocate(bytes)?;
            state.shared_bytes = bytes;
        }
        Ok(())
    }

    /// Tells children which sites are under way.
    pub(super) fn set_in_flight(&self, sites: Option<&Vec<Site>>) {
        let sites = sites.map_or(ptr::null_mut(), |sites| ptr::from_ref(sites).cast_mut());
        // Release: a forked child sees the stores of each thread in order; this keeps the compiler from changing it.
        self.in_flight.store(sites, Ordering::Release);
    }

    /// The sites in private memory that were under way when this process, or one that it descends from, was forked. Some may not have their
    /// trap yet, or no longer.
    pub(super) fn inherited(&self) -> Vec<Site> {
        self.ancestors().flat_map(Self::left_behind).collect()
    }

    fn left_behind(&self) -> Vec<Site> {
        // Acquire, partner: `set_in_flight`, in another process.
        let sites = self.in_flight.load(Ordering::Acquire);
        // SAFETY: null, or a vector that was alive and complete at the time of the fork, in a private copy that nobody changes.
        let sites = unsafe { sites.as_ref() }.map_or(&[][..], Vec::as_slice);
        sites.iter().filter(|site| self.private().find(site.address).is_some()).copied().collect()
    }

    /// What ancestors' handlers knew of private memory is no longer needed.
    pub(super) fn forget_inherited(&self) {
        for domain in self.ancestors() {
            domain.set_in_flight(None);
            if !domain.private().stamp().is_multiple_of(2) {
                domain.private().withdraw();
            }
        }
    }

    fn ancestors(&self) -> impl Iterator<Item = &'static Self> {
        std::iter::successors(self.parent, |domain| domain.parent)
    }
}

impl State {
    /// Synchronises all cores, by the other way if the first fails.
    pub(super) fn sync_cores(&mut self) -> Result<(), SyncError> {
        let Err(error) = self.sync.sync() else { return Ok(()) };
        if self.sync.path() == SyncPath::Signals {
            return Err(error);
        }
        if self.fallback.is_none() {
            self.fallback = CoreSync::with_path(SyncPath::Signals).ok();
        }
        match &self.fallback {
            Some(fallback) => fallback.sync(),
            None => Err(error),
        }
    }
}

fn table_in(mapping: &Mapping) -> Table<'_> {
    #[expect(clippy::cast_ptr_alignment, reason = "a mapping starts at a page")]
    let words = mapping.as_ptr().cast::<AtomicU64>();
    // SAFETY: mapped for reading and writing as long as `mapping` lives, zeroed at first, aligned to a page, and accessed as
    // atomics only.
    Table::new(unsafe { std::slice::from_raw_parts(words, mapping.len() / size_of::<u64>()) })
}
