//! The domain, of which a process has one: tables, the lock that keeps batches apart, the ways to write and to
//! synchronise.
//!
//! # One per process
//!
//! A forked child inherits a copy of its parent's domain, perhaps locked by a thread that it does not have. It searches
//! the inherited tables all the same, and makes its own domain, with the inherited one as `parent`, when it pokes for
//! the first time.
//!
//! The first batch that goes by traps makes tables; a batch that needs longer ones makes those, and the old ones stay,
//! as a handler may be reading them.
//!
//! | table | memory | names sites in | in a child |
//! |---|---|---|---|
//! | `private` | private | text, and programs that are private memory | as of the fork, like the text itself |
//! | `shared` | shared | programs | what the parent is doing now, like the programs themselves |
//!
//! Handlers read the shared table through a view without the right to write, which is all that a child inherits: a
//! writer of the table decides where threads of the parent continue. No descriptor of its memory is kept.
//!
//! A fork and a store to text exclude each other (both take the kernel's `mmap_lock`), and the fork copies memory as of
//! one moment in the order of each thread's stores: a thread that stores to a page after it was copied waits until the
//! fork is over. So a child that inherits a trap inherits the table that was published before it, and withdrawn after
//! it.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use palimpsest_sys::{
    Causes, CoreSync, ForkDetector, Mapping, Pages, Protection, SharedMemory, Source, SyncError, TextWriter,
};

use super::error::PokeError;
use super::site::Site;
use super::table::Table;
use crate::primitive::AtomicU64;

/// The maximum number of sites that trap at the same time, of either kind.
pub(super) const MAX_SITES: usize = (1 << 18) - 1;

/// A multiple of every page size, in bytes.
const PAGES: usize = 1 << 16;

/// See the module's documentation.
///
/// | field | who writes |
/// |---|---|
/// | `process`, `parent` | nobody |
/// | `tables`, `in_flight` | the batch that holds `state`; handlers and children read |
pub(super) struct Domain {
    process: ForkDetector,
    parent: Option<&'static Domain>,
    /// The longest tables; null before the first batch that goes by traps. Never freed.
    tables: AtomicPtr<Tables>,
    /// The sites of the batch under way, for children; null if there is none. Set before the first trap and unset after
    /// the last.
    in_flight: AtomicPtr<Vec<Site>>,
    state: Mutex<State>,
}

/// Two tables of one length.
pub(super) struct Tables {
    private: Mapping,
    /// What handlers read.
    shared: Mapping,
    /// What batches write. Children do not have it.
    shared_writer: Mapping,
    shorter: Option<&'static Tables>,
}

/// The state that a batch uses.
pub(super) struct State {
    pub(super) text: TextWriter,
    pub(super) sync: CoreSync,
    /// Whether a batch has failed half-way.
    pub(super) stuck: bool,
}

/// The domain of this process, or of an ancestor; null before the first batch. Never freed.
static CURRENT: AtomicPtr<Domain> = AtomicPtr::new(ptr::null_mut());

impl Domain {
    /// Returns the domain of this process; makes it if there is none.
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
        Ok(Self {
            process: ForkDetector::new(),
            parent,
            tables: AtomicPtr::new(ptr::null_mut()),
            in_flight: AtomicPtr::new(ptr::null_mut()),
            state: Mutex::new(State { text: TextWriter::new(), sync: CoreSync::new()?, stuck: false }),
        })
    }

    /// Takes the lock that keeps batches apart.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns every table that may know a trap in this process's code.
    pub(super) fn all_tables() -> impl Iterator<Item = Table<'static>> + Clone {
        let domains = std::iter::successors(Self::youngest(), |domain| domain.parent);
        domains.flat_map(Self::own_tables).flat_map(|tables| [tables.private(), tables.shared()])
    }

    /// Returns the process's own tables, from the longest to the shortest.
    fn own_tables(&self) -> impl Iterator<Item = &'static Tables> + Clone + use<> {
        std::iter::successors(self.longest(), |tables| tables.shorter)
    }

    fn longest(&self) -> Option<&'static Tables> {
        // Acquire, partner: the Release store in `tables`. Forbids a handler that sees tables before their memory.
        let tables = self.tables.load(Ordering::Acquire);
        // SAFETY: null, or tables that are never freed.
        unsafe { tables.as_ref() }
    }

    /// Returns tables for `sites` sites, with all their memory allocated: lack of memory is an error here and would be
    /// a SIGBUS later.
    pub(super) fn tables(&self, _state: &mut State, sites: usize) -> Result<&'static Tables, PokeError> {
        let longest = self.longest();
        if let Some(tables) = longest.filter(|tables| tables.private().capacity() >= sites) {
            return Ok(tables);
        }
        let tables: &'static Tables = Box::leak(Box::new(Tables::new(sites.next_power_of_two(), longest)?));
        // Release, partner: the Acquire load in `longest`.
        self.tables.store(ptr::from_ref(tables).cast_mut(), Ordering::Release);
        Ok(tables)
    }

    /// Tells children which sites are under way.
    pub(super) fn set_in_flight(&self, sites: Option<&Vec<Site>>) {
        let sites = sites.map_or(ptr::null_mut(), |sites| ptr::from_ref(sites).cast_mut());
        // Release: a forked child sees each thread's stores in order; this keeps the compiler from reordering them.
        self.in_flight.store(sites, Ordering::Release);
    }

    /// Returns the sites in private memory that were under way when this process or an ancestor was forked. Some may
    /// not have their trap yet, or no longer.
    pub(super) fn inherited(&self) -> Vec<Site> {
        self.ancestors().flat_map(Self::left_behind).collect()
    }

    fn left_behind(&self) -> Vec<Site> {
        // Acquire, partner: `set_in_flight`, in another process.
        let sites = self.in_flight.load(Ordering::Acquire);
        // SAFETY: null, or a vector on the heap that was alive and complete at the fork, in a private copy that nobody
        // changes: the thread that owned it is not in this process, or has left it (`run`).
        let sites = unsafe { sites.as_ref() }.map_or(&[][..], Vec::as_slice);
        let is_known = |site: &&Site| self.own_tables().any(|tables| tables.private().find(site.address).is_some());
        sites.iter().filter(is_known).copied().collect()
    }

    /// Forgets what ancestors' handlers knew of private memory: it is no longer needed.
    pub(super) fn forget_inherited(&self) {
        for domain in self.ancestors() {
            domain.set_in_flight(None);
            for table in domain.own_tables().map(Tables::private) {
                if !table.stamp().is_multiple_of(2) {
                    table.withdraw();
                }
            }
        }
    }

    fn ancestors(&self) -> impl Iterator<Item = &'static Self> {
        std::iter::successors(self.parent, |domain| domain.parent)
    }
}

impl Tables {
    fn new(sites: usize, shorter: Option<&'static Self>) -> Result<Self, PokeError> {
        let len = (Table::words_for(sites) * size_of::<u64>()).next_multiple_of(PAGES);
        let memory = SharedMemory::create("palimpsest-sites", len, Pages::Base)?;
        memory.allocate(len)?;
        let source = Source::Shared(&memory);
        let shared_writer = Mapping::unforked(source, len, PAGES)?;
        // Otherwise a child could give itself the right to write (`mprotect`). Kernels before 5.1 refuse.
        let _ = memory.seal_new_writers();
        Ok(Self {
            private: Mapping::new(Source::Anonymous, len, Protection::ReadWrite, PAGES)?,
            shared: Mapping::new(source, len, Protection::Read, PAGES)?,
            shared_writer,
            shorter,
        })
    }

    pub(super) fn private(&self) -> Table<'_> {
        table_in(&self.private)
    }

    /// Returns the shared table, for reading.
    fn shared(&self) -> Table<'_> {
        table_in(&self.shared)
    }

    pub(super) fn shared_writer(&self) -> Table<'_> {
        table_in(&self.shared_writer)
    }
}

impl State {
    /// Synchronises all cores, by signals if `membarrier` has begun to fail. The library with this code stays loaded:
    /// otherwise the dynamic linker would be asked, and a constructor that waits for the state's lock has the linker's.
    pub(super) fn sync_cores(&self) -> Result<(), SyncError> {
        if let Some(refused) = self.sync.sync_by_any_path()? {
            tracing::warn!(refused = %Causes(refused), "core synchronisation falls back to signals");
        }
        Ok(())
    }
}

fn table_in(mapping: &Mapping) -> Table<'_> {
    #[expect(clippy::cast_ptr_alignment, reason = "a mapping starts at a page")]
    let words = mapping.as_ptr().cast::<AtomicU64>();
    // SAFETY: mapped as long as `mapping` lives, zeroed at first, aligned to a page, and accessed as atomics only;
    // `Tables::shared` is not written through.
    Table::new(unsafe { std::slice::from_raw_parts(words, mapping.len() / size_of::<u64>()) })
}
