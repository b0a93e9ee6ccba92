//! Turns retired programs into free memory.
//!
//! # Who may still need a retired program
//!
//! *Threads of this process* that called it by address: they are pinned, and `epoch` tells when they have left.
//!
//! *Processes forked from this one*, which share the memory: a child inherits the handles that were live at the fork,
//! and runs those programs from the same physical memory. `sys::ForkWitness` tells whether a child is alive that was
//! forked in the witness's time. Witnesses follow one another, with overlap, and count *generations*:
//!
//! ```text
//!   witness 0 mapped  ├────────────────┤ unmapped
//!   generation              0          │ 1
//!   witness 1 mapped               ├───┼──────────────…
//! ```
//!
//! A program is born in the generation that it reads before its handle exists. A child forked while it is alive has the
//! witness of that generation or of a later one: generation `g + 1` is stored after witness `g + 1` is mapped and
//! before witness `g` is unmapped. So a program may be overwritten when no witness from its generation on has heirs;
//! the current witness is retired first, so that it can tell.
//!
//! *Readers* that look up an address: they finish in an instant, and `directory` tells when.
//!
//! *Cores* that have fetched its instructions ahead: ended by the second core synchronisation, after the traps are in
//! place and before the memory is free.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use palimpsest_sys::SyncError;

use super::CHUNKS;
use super::contents::{Meta, Place};
use super::error::ReclaimError;
use super::limbo::{Item, ReclaimState, Reclaimed};
use super::memory::Kind;
use super::policy::ReclaimPolicy;
use super::release::Thrift;
use super::store::Store;
use super::tally::Tally;

/// How often a shard looks at the sum over all shards while enough for one reclaim is retired.
const LOOKS_PER_RECLAIM: usize = 16;

impl Store {
    /// Retires a program, whose handle is gone.
    ///
    /// # Safety
    ///
    /// 1. `meta` is published in this store, and this is the only call for it.
    pub(super) unsafe fn retire(&self, tally: &Tally, meta: Item) {
        if !self.fork.is_same_process() {
            // In a child: the memory is the parent's.
            return;
        }
        // SAFETY: published (1).
        let bytes = unsafe { meta.as_ref() }.place.len();
        tally.retired_bytes.add(bytes as u64);
        // SAFETY: 1. entries stay where they are until `take`, which follows `take_all`.
        unsafe { tally.retired.push(meta) };
        if let ReclaimPolicy::Automatic { retired_bytes } = self.config.reclaim {
            // Relaxed, here and below: thresholds. A thread looks at the sum over all shards now and then.
            let unlooked = tally.unlooked.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if unlooked >= retired_bytes / LOOKS_PER_RECLAIM {
                tally.unlooked.store(0, Ordering::Relaxed);
                if self.retired_bytes() >= self.next_reclaim.load(Ordering::Relaxed)
                    && let Some(state) = try_lock(&self.reclaiming)
                {
                    self.reclaim_when_due(state);
                }
            }
        }
    }

    /// Returns the bytes of chunks that are retired and not yet reclaimed.
    pub(super) fn retired_bytes(&self) -> usize {
        let retired: u64 = self.tallies.iter().map(|tally| tally.retired_bytes.get()).sum();
        // What is being reclaimed this instant may be counted on only one side.
        retired.saturating_sub(self.counters.reclaimed_bytes.get()) as usize
    }

    /// Reclaims what nobody needs any more, and counts what must wait.
    pub(super) fn reclaim(&self) -> Result<Reclaimed, ReclaimError> {
        self.reclaim_under(self.reclaiming.lock().unwrap_or_else(PoisonError::into_inner), Thrift::Strict)
    }

    /// Reclaims before a new pack is made, unless the policy forbids it. Waits for a thread that is reclaiming.
    pub(super) fn reclaim_for_room(&self) {
        if self.config.reclaim != ReclaimPolicy::Manual {
            self.reclaim_when_due(self.reclaiming.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn reclaim_when_due<'s>(&'s self, state: MutexGuard<'s, ReclaimState>) {
        if let Err(error) = self.reclaim_under(state, Thrift::KeepHomes) {
            tracing::warn!(%error, "retired programs could not be reclaimed");
        }
        if let ReclaimPolicy::Automatic { retired_bytes } = self.config.reclaim {
            let due = self.retired_bytes().saturating_add(retired_bytes);
            // Relaxed: a threshold. The rest waits for somebody; looking again at every drop would not help.
            self.next_reclaim.store(due, Ordering::Relaxed);
        }
    }

    fn reclaim_under<'s>(
        &'s self,
        mut state: MutexGuard<'s, ReclaimState>,
        thrift: Thrift,
    ) -> Result<Reclaimed, ReclaimError> {
        let mut done = Reclaimed::default();
        match self.collect(&mut state, &mut done) {
            Err(ReclaimError::Sync(SyncError::Membarrier(_))) => {
                drop(state);
                // Without the lock: see there. From here on signals are ready.
                self.sync_cores()?;
                state = self.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
                done = Reclaimed::default();
                self.collect(&mut state, &mut done)?;
            }
            collected => collected?,
        }
        let mut ending = Ending::new(self, &mut state);
        // Observers are told without any lock held, so that they may use the packs.
        drop(state);
        ending.run(&mut done)?;
        done.packs = self.release_empty_packs(thrift);
        Ok(done)
    }

    /// Collects what was retired, and moves what nobody needs any more to `unseen`.
    fn collect(&self, state: &mut ReclaimState, done: &mut Reclaimed) -> Result<(), ReclaimError> {
        // Steps (g) and (h) of `epoch`.
        let collected: Vec<Item> = self.tallies.iter().flat_map(|tally| tally.retired.take_all()).collect();
        if collected.is_empty() && state.is_empty() {
            return Ok(());
        }
        self.counters.reclaims.add(1);
        let epochs = &self.epochs.epochs;
        let tag = epochs.advance();
        state.limbo.extend(collected.into_iter().map(|item| (tag, item)));
        // The heavy barrier between (h) and (i).
        self.sync.sync()?;
        state.leave_limbo(&self.generation, epochs.oldest_pin(), done)?;
        if !state.unlinked.is_empty() && self.readers.leave() {
            let mut unlinked = std::mem::take(&mut state.unlinked);
            state.unseen.append(&mut unlinked);
        }
        done.waiting_for_lookups = state.unlinked.len();
        Ok(())
    }

    /// Returns whether some thread is about to free what it has collected.
    pub(super) fn is_freeing(&self) -> bool {
        // Relaxed: the caller asks again.
        self.freeing.load(Ordering::Relaxed) > 0
    }

    /// Tells observers that a program is gone.
    pub(super) fn announce(&self, meta: &Meta) {
        if meta.pack().kind == Kind::Code {
            self.observe(|observer| observer.unloaded(meta.address(), meta.len as usize));
        }
    }

    fn fill_with_traps(&self, meta: &Meta) -> Result<(), ReclaimError> {
        // A run is unmapped as a whole, and data cannot be executed.
        if meta.pack().kind != Kind::Code || meta.place.chunks > CHUNKS {
            return Ok(());
        }
        let (offset, len) = meta.place.range();
        // SAFETY: 1. the program's own chunks; 2. nobody is inside, and nobody finds it (module header).
        unsafe { meta.pack().memory.fill_traps(offset, len) }?;
        meta.pack().memory.flush(offset, len);
        self.counters.refills.add(1);
        Ok(())
    }
}

/// Items that are being ended. Those that do not get to the end, because of an error or a panic of an observer, return
/// to the state.
struct Ending<'a> {
    store: &'a Store,
    unseen: Vec<Item>,
    silent: Vec<Item>,
}

impl<'a> Ending<'a> {
    fn new(store: &'a Store, state: &mut ReclaimState) -> Self {
        store.freeing.fetch_add(1, Ordering::Relaxed);
        Self { store, unseen: std::mem::take(&mut state.unseen), silent: std::mem::take(&mut state.silent) }
    }

    fn run(&mut self, done: &mut Reclaimed) -> Result<(), ReclaimError> {
        self.silent.reserve(self.unseen.len());
        while let Some(item) = self.unseen.pop() {
            // Pushed before the call, so that no observer is told twice.
            self.silent.push(item);
            // SAFETY: unlinked, and not taken yet.
            self.store.announce(unsafe { item.as_ref() });
        }
        if self.silent.is_empty() {
            return Ok(());
        }
        for item in &self.silent {
            // SAFETY: as above.
            self.store.fill_with_traps(unsafe { item.as_ref() })?;
        }
        // No core may hold instructions of the old programs when the memory becomes free for new ones.
        self.store.sync_cores()?;
        let mut vacated: Vec<Place> = self.silent.drain(..).map(end).collect();
        // Sorted, so that a pack's lock is taken once for many, and its map changed once for neighbours. By slot first,
        // as they came: what was dropped in the order of its addresses is in order then.
        vacated.sort_by_key(|place| place.slot);
        for of_a_slot in vacated.chunk_by_mut(|one, next| one.slot == next.slot) {
            of_a_slot.sort_unstable_by_key(|place| Reverse(place.first_chunk));
        }
        self.store.give_back(&vacated);
        done.programs = vacated.len();
        done.bytes = vacated.iter().map(Place::len).sum();
        self.store.counters.reclaimed_bytes.add(done.bytes as u64);
        self.store.counters.frees.add(done.programs as u64);
        Ok(())
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.unseen.is_empty() || !self.silent.is_empty() {
            let mut state = self.store.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
            state.unseen.append(&mut self.unseen);
            state.silent.append(&mut self.silent);
        }
        self.store.freeing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends a silent program. Returns its place, which the caller gives back.
fn end(item: Item) -> Place {
    // SAFETY: unlinked, and not taken yet.
    let meta = unsafe { item.as_ref() };
    let vacated = meta.place;
    // SAFETY: 1. unlinked, and the readers have left since; 2. it was in `silent` only once, and is drained from there.
    drop(unsafe { meta.pack().directory.take(vacated.entry) });
    vacated
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{PipeReader, PipeWriter, Read};

    use super::*;
    use crate::pack::root::Root;
    use crate::pack::{Packs, Program};

    /// A forked child that keeps what it inherits until `gate` is dropped.
    struct Child {
        pid: i32,
        gate: Option<PipeWriter>,
    }

    impl Child {
        fn fork() -> Self {
            let (mut read, gate): (PipeReader, _) = std::io::pipe().unwrap();
            // SAFETY: the child closes a descriptor, reads from another and leaves by `_exit`.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                drop(gate);
                let _ = read.read(&mut [0]);
                // SAFETY: ends the child without the harness's exit handlers.
                unsafe { libc::_exit(0) };
            }
            Self { pid, gate: Some(gate) }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            self.gate = None;
            // SAFETY: the child is this process's own, and no status is wanted.
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        }
    }

    /// Forks between any two steps of a change of witnesses: the child may run what was loaded just before the fork, so
    /// the parent must not reuse that while the child lives.
    #[test]
    fn a_child_of_any_instant_keeps_what_it_inherits() {
        let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
        if packs.backing() == crate::pack::Backing::ProcMem {
            eprintln!("skipped: children do not share the memory of this backing");
            return;
        }
        let root: &Root = packs.root();
        let store = &root.current().unwrap().store;
        let steps = 4;
        for step in 0..steps {
            let mut inherited: Option<(Program, Child)> = None;
            let mut state = store.reclaiming.lock().unwrap();
            let mut reached = 0;
            let fork_at_the_step = || {
                if reached == step {
                    inherited = Some((packs.load(&[0; 64], 16).unwrap(), Child::fork()));
                }
                reached += 1;
            };
            state.begin_a_generation(&store.generation, fork_at_the_step).unwrap();
            drop(state);
            assert_eq!(reached, steps);
            let (program, child) = inherited.unwrap();
            drop(program);
            let done = packs.reclaim().unwrap();
            assert_eq!((done.programs, done.waiting_for_children), (0, 1), "forked at step {step}");
            // Once more, with the witnesses one step further.
            assert_eq!(packs.reclaim().unwrap().waiting_for_children, 1, "forked at step {step}");
            drop(child);
            // Another test of this program may have forked meanwhile: waits for its child too, which ends.
            while packs.reclaim().unwrap().programs == 0 {
                std::thread::yield_now();
            }
        }
    }
}
