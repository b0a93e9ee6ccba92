//! Plain read-only data, with a copy on every node that is worth one.
//!
//! # What changes, and who sees it
//!
//! All copies of one content form a *generation*. It never changes, except that copies are added. `update` makes
//! another generation and publishes that (`sys::published`). Readers keep the generation that they started with until
//! they are done; then the next update, or [`Replicated::reclaim`], frees it. So readers never wait for an update, nor
//! an update for readers.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_sys::numa::{NodeId, current_node};
use palimpsest_sys::published::{Published, Reading};

use crate::copy::{Copy, CopyError};
use crate::plain::Plain;
use crate::shared::Sharing;
use crate::status::NodeStatus;
use crate::topology::Topology;

/// When copies are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum When {
    /// At the first access from a node, by the thread that makes it; meanwhile others use another copy.
    #[default]
    Lazy,
    /// All at once.
    Eager,
}

/// How data is replicated.
#[derive(Clone, Debug)]
pub struct ReplicateOptions {
    topology: Topology,
    when: When,
    sharing: Sharing,
}

impl ReplicateOptions {
    /// Returns options for the present nodes of this machine: lazily, for this process only.
    pub fn new() -> Self {
        Self { topology: Topology::read(), when: When::default(), sharing: Sharing::default() }
    }

    /// Sets the nodes.
    #[must_use]
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Sets when copies are made.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Sets who uses the copies.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }
}

impl Default for ReplicateOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Why data could not be replicated.
#[derive(Debug, thiserror::Error)]
pub enum ReplicateError {
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Not even one copy could be made.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// Plain read-only data, with a copy on every node that is worth one ([`Topology::homes`]).
///
/// A copy is constant memory, requested from its node but, if that has none left, from another: preferred, not bound.
/// It uses huge pages if it fills them. [`status`](Self::status) tells where the pages really are.
///
/// # Examples
///
/// ```
/// use palimpsest_numa::{ReplicateOptions, Replicated, When};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let table = Replicated::<[u64]>::new(&[1, 4, 9, 16], ReplicateOptions::new().when(When::Eager))?;
///
/// // The copy of the node that this thread runs on.
/// assert_eq!(table.get()[3], 16);
///
/// // All copies at once. What `get` has returned before stays as it was.
/// let before = table.get();
/// table.update(&[1, 8, 27])?;
/// assert_eq!((before.len(), table.get().len()), (4, 3));
/// # Ok(())
/// # }
/// ```
pub struct Replicated<T: ?Sized> {
    current: Published<Generation>,
    options: ReplicateOptions,
    /// For each possible node, the index of its home in a generation.
    places: Box<[u16]>,
    content: PhantomData<fn(&T)>,
}

impl<T: Plain + ?Sized> Replicated<T> {
    /// Makes a copy of `content` for the calling thread's node and, if `options` say so, for all others.
    ///
    /// # Errors
    ///
    /// [`ReplicateError::Copy`] if not even one copy can be made; [`status`](Self::status) tells what other copies
    /// lack.
    pub fn new(content: &T, options: ReplicateOptions) -> Result<Self, ReplicateError> {
        let places = options.topology.places();
        let generation = Generation::new(content.as_bytes(), &options, place_of(&places, current_node()))?;
        if options.when == When::Eager {
            generation.fill(&options, |_| true);
        }
        Ok(Self { current: Published::new(generation), options, places, content: PhantomData })
    }

    /// Returns the copy on the calling thread's node. It does not change while the result lives, whatever
    /// [`update`](Self::update) does meanwhile. Takes a few nanoseconds, from any thread.
    ///
    /// While a thread has such a result, no content is freed that was replaced, of any `Replicated`, since the first of
    /// them.
    ///
    /// In a signal handler, `get` may be called if its thread has called it before and all copies were made at once
    /// ([`When::Eager`]): making one takes memory from the heap. Drop the result there.
    #[inline]
    pub fn get(&self) -> Local<'_, T> {
        self.get_on(current_node())
    }

    /// Returns the copy for threads that run on `node`.
    #[inline]
    pub fn get_on(&self, node: NodeId) -> Local<'_, T> {
        let place = place_of(&self.places, node);
        Local(self.current.read().map(|generation| generation.near(place, &self.options).content()))
    }

    /// Replaces the content of all copies at once. When this returns, the nodes that had a copy have a new one; readers
    /// see either the old content or the new one, and never wait. Frees the old copies, unless a thread keeps reading
    /// them: then the next update does, or [`reclaim`](Self::reclaim).
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); then the content is as before.
    pub fn update(&self, content: &T) -> Result<(), ReplicateError> {
        let generation = Generation::new(content.as_bytes(), &self.options, place_of(&self.places, current_node()))?;
        {
            let before = self.current.read();
            generation.fill(&self.options, |place| self.options.when == When::Eager || before.is_made(place));
        }
        self.current.replace(generation);
        Ok(())
    }

    /// Frees the copies of old contents that nobody reads any more. Never waits. Returns how many contents are left.
    pub fn reclaim(&self) -> usize {
        self.current.reclaim()
    }

    /// Returns the state of each node's copy and where its pages are, as the kernel reports it now. Takes about a
    /// microsecond per page.
    pub fn status(&self) -> Vec<NodeStatus> {
        let generation = self.current.read();
        let homes = self.options.topology.homes().iter().zip(&generation.copies);
        homes.map(|(&node, slot)| NodeStatus::of(node, slot.made.get())).collect()
    }

    /// Returns how it is replicated.
    pub fn options(&self) -> &ReplicateOptions {
        &self.options
    }
}

impl Replicated<[u8]> {
    /// Does the same as [`new`](Self::new), with the contents of a file. Later changes of the file have no effect.
    ///
    /// # Errors
    ///
    /// [`ReplicateError::Read`], and as for [`new`](Self::new); an empty file cannot be replicated.
    pub fn from_file(path: impl AsRef<Path>, options: ReplicateOptions) -> Result<Self, ReplicateError> {
        let path = path.as_ref();
        let content =
            std::fs::read(path).map_err(|source| ReplicateError::Read { path: path.to_path_buf(), source })?;
        Self::new(&content, options)
    }
}

impl<T: ?Sized> fmt::Debug for Replicated<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Replicated").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The copies of one content.
struct Generation {
    /// One for each home; at least one was made.
    copies: Box<[Slot]>,
    /// The index of the first that was made.
    first: usize,
}

#[derive(Default)]
struct Slot {
    /// Written once, by the thread that has claimed it; read by all.
    made: OnceLock<Result<Copy, CopyError>>,
    /// Whether some thread is making it, or has tried to: the first one that finds no copy sets this, by an exchange.
    claimed: AtomicBool,
}

impl Generation {
    fn new(content: &[u8], options: &ReplicateOptions, first: usize) -> Result<Self, CopyError> {
        let homes = options.topology.homes();
        let copies: Box<[Slot]> = homes.iter().map(|_| Slot::default()).collect();
        let copy = Copy::get(content, homes[first], options.sharing.folder())?;
        copies[first].claimed.store(true, Ordering::Relaxed);
        // Nobody else knows it yet.
        let _ = copies[first].made.set(Ok(copy));
        Ok(Self { copies, first })
    }

    fn is_made(&self, place: usize) -> bool {
        self.made(place).is_some()
    }

    #[inline]
    fn made(&self, place: usize) -> Option<&Copy> {
        self.copies[place].made.get()?.as_ref().ok()
    }

    /// Returns the copy to read for threads whose home has index `place`.
    #[inline]
    fn near(&self, place: usize, options: &ReplicateOptions) -> &Copy {
        match self.made(place) {
            Some(copy) => copy,
            None => self.make(place, options),
        }
    }

    /// Makes the copy at `place`, unless that was tried already or another thread is making it.
    #[cold]
    fn make(&self, place: usize, options: &ReplicateOptions) -> &Copy {
        let slot = &self.copies[place];
        // Relaxed: it only picks one thread; `OnceLock` hands over the copy.
        if !slot.claimed.swap(true, Ordering::Relaxed) {
            let content = self.first().as_bytes();
            let copy = Copy::get(content, options.topology.homes()[place], options.sharing.folder());
            // Only this thread has claimed it.
            let _ = slot.made.set(copy);
        }
        self.made(place).unwrap_or_else(|| self.first())
    }

    fn first(&self) -> &Copy {
        match self.made(self.first) {
            Some(copy) => copy,
            None => unreachable!("a generation begins with a copy"),
        }
    }

    fn fill(&self, options: &ReplicateOptions, wanted: impl Fn(usize) -> bool) {
        (0..self.copies.len()).filter(|&place| wanted(place)).for_each(|place| {
            self.near(place, options);
        });
    }
}

#[inline]
fn place_of(places: &[u16], node: NodeId) -> usize {
    places.get(node.0 as usize).map_or(0, |&place| usize::from(place))
}

/// A copy that was near when it was requested.
pub struct Local<'a, T: ?Sized>(Reading<'a, T>);

impl<T: ?Sized> Deref for Local<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Local<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Local").field(&&**self).finish()
    }
}
