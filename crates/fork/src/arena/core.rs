//! The allocator proper, in a mapping of its own, so that the [`Arena`](super::Arena) that points to it may be a
//! constant and may move.

use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use palimpsest_sys::memory::calls::{self, Commit};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use rustix::io::Errno;

use super::class::{CLASSES, Class, MAX_SMALL, UNIT};
use super::runs::mark;
use super::segments::{Flip, Flipped, MOST, Segment, State};
use super::slab::{Bin, Block, SHARDS, shard};
use super::space::{Layout, Space};
use super::stats::{InUse, Memory, Stats};
use super::unit::{Kind, Units};
use super::{Backing, misuse};
use crate::lock::Lock;

/// A freed run of at least this many units gives its memory back at once: at this size page faults cost far more than
/// the system calls.
const DISCARD_UNITS: u32 = 64;

/// Keeps neighbours out of each other's cache lines.
#[repr(align(64))]
#[derive(Default)]
struct Apart<T>(T);

/// See the module.
pub(super) struct Core {
    bins: [Apart<Lock<Bin>>; CLASSES * SHARDS],
    space: Lock<Space>,
    units: Units,
    layout: Layout,
    /// The next arena of this process; written under the registry's lock.
    pub(super) next: AtomicPtr<Core>,
    /// Freezes that froze something. Whoever freezes adds to this under the lock of `space`; anybody reads it.
    freezes: AtomicUsize,
}

impl Core {
    /// Makes an arena. `watched` tells whether forks call its handlers once it is in the list of `forks`.
    pub(super) fn create(backing: Backing, watched: Result<(), Errno>) -> Result<NonNull<Self>, Errno> {
        let layout = Layout::reserve()?;
        let mapped = calls::map(mapping_len(), Permissions::READ_WRITE, Commit::Uncounted).inspect_err(|_| {
            // SAFETY: nobody knows of it yet.
            unsafe { layout.release([Span::default(); 2]) };
        })?;
        // Behind the value, at its alignment.
        let table = ptr::with_exposed_provenance_mut::<MaybeUninit<Segment>>(mapped.start + table_offset());
        // SAFETY: mapped to this length, aligned, used by nothing else, and valid uninitialised; `'static` stands for
        // the life of the mapping, which the value in it does not outlive.
        let table = unsafe { std::slice::from_raw_parts_mut(table, MOST) };
        let mut space = Space::new(layout, table, backing);
        match watched {
            Ok(()) => space.segments.forgo_files_where_memory_is_counted(),
            Err(errno) => space.segments.forgo_files(errno),
        }
        // SAFETY: records are reserved there, aligned to a piece, and used by this value alone.
        let units = unsafe { Units::new(layout.records()) };
        let core = Self {
            bins: [const { Apart(Lock::new(Bin::EMPTY)) }; CLASSES * SHARDS],
            space: Lock::new(space),
            units,
            layout,
            next: AtomicPtr::new(ptr::null_mut()),
            freezes: AtomicUsize::new(0),
        };
        let place = ptr::with_exposed_provenance_mut::<Self>(mapped.start);
        // SAFETY: mapped, page-aligned, and used by nobody else.
        unsafe { place.write(core) };
        // SAFETY: a successful mapping is not at 0.
        Ok(unsafe { NonNull::new_unchecked(place) })
    }

    /// Unmaps the arena and closes its files.
    ///
    /// # Safety
    ///
    /// 1. It came from [`create`](Self::create), is in no list, and nobody uses it or its memory any more.
    pub(super) unsafe fn destroy(core: NonNull<Self>) {
        // SAFETY: contract 1.
        let this = unsafe { core.as_ref() };
        let mut space = this.space.lock();
        let mirror = space.segments.mirror.kept();
        // They end with the mirror.
        space.segments.forget_asides();
        space.segments.close();
        drop(space);
        // SAFETY: 1. contract 1.
        unsafe { this.layout.release(mirror) };
        let start = core.addr().get();
        // SAFETY: 1. the mapping that `create` made; nothing in the value has a destructor that matters.
        let _ = unsafe { calls::unmap(Span::new(start, start + mapping_len())) };
    }

    /// Allocates at least `size` bytes at a multiple of `align`, a power of two.
    #[inline]
    pub(super) fn allocate(&self, size: usize, align: usize) -> Option<Block> {
        let class = if align <= 16 && size <= MAX_SMALL { Some(Class::of(size)) } else { Class::aligned(size, align) };
        let block = match class {
            Some(class) => {
                let shard = shard();
                self.bin(class, shard).lock().take(&self.units, &self.space, class, shard)?
            }
            None => self.allocate_run(size, align)?,
        };
        Some(Block { address: self.layout.data + block.address, ..block })
    }

    fn allocate_run(&self, size: usize, align: usize) -> Option<Block> {
        let len = u32::try_from(size.max(1).div_ceil(UNIT)).ok()?;
        let align = u32::try_from(align.div_ceil(UNIT)).ok()?;
        let mut space = self.space.lock();
        let taken = space.take(&self.units, len, align)?;
        space.large += 1;
        space.large_units += len as usize;
        Some(Block { address: taken.first as usize * UNIT, dirty: (taken.dirty as usize * UNIT).min(size) })
    }

    /// Takes back the block at `address`.
    #[inline]
    pub(super) fn release(&self, address: usize) {
        let place = self.locate(address);
        let unit = self.units.get(place.head);
        if place.kind == Kind::Slab {
            let (class, shard) = unit.bin();
            let class = Class::from_index(class);
            let given =
                self.bin(class, shard.into()).lock().give(&self.units, &self.space, class, place.head, place.offset);
            if let Err(misused) = given {
                misuse(misused.0);
            }
            return;
        }
        let len = unit.len.get();
        let mut space = self.space.lock();
        space.large -= 1;
        space.large_units -= len as usize;
        self.give(&mut space, place.head, len);
    }

    fn give(&self, space: &mut Space, first: u32, len: u32) {
        space.segments.let_go(1);
        let range = self.layout.address(first)..self.layout.address(first + len);
        // SAFETY: the caller gives these units up.
        let zeroed = if len >= DISCARD_UNITS { unsafe { space.segments.discard(&range) } } else { 0 };
        let dirty = if zeroed == range.len() { 0 } else { len };
        space.runs.give(&self.units, first, len, dirty);
    }

    /// Returns the bytes of the block at `address`.
    pub(super) fn usable(&self, address: usize) -> usize {
        let place = self.locate(address);
        let unit = self.units.get(place.head);
        match place.kind {
            Kind::Slab => Class::from_index(unit.bin().0).size(),
            _ => unit.len.get() as usize * UNIT,
        }
    }

    /// Resizes the block at `address` to `size` bytes in place. `None` leaves it unchanged.
    pub(super) fn resize(&self, address: usize, size: usize) -> Option<()> {
        let place = self.locate(address);
        let unit = self.units.get(place.head);
        if place.kind == Kind::Slab {
            let has = Class::from_index(unit.bin().0).size();
            // A block that would fill less than half of its place moves, so that shrinking frees memory.
            return (size <= has && (size * 2 >= has || has <= 64)).then_some(());
        }
        if size <= MAX_SMALL {
            return None;
        }
        let wanted = u32::try_from(size.div_ceil(UNIT)).ok()?;
        let len = unit.len.get();
        if wanted == len {
            return Some(());
        }
        let mut space = self.space.lock();
        if wanted < len {
            mark(&self.units, place.head, wanted, Kind::Run);
            mark(&self.units, place.head + wanted, len - wanted, Kind::Run);
            self.give(&mut space, place.head + wanted, len - wanted);
        } else {
            space.runs.extend(&self.units, place.head, len, wanted - len)?;
        }
        space.large_units = space.large_units - len as usize + wanted as usize;
        Some(())
    }

    /// Makes shared memory private, and leaves nothing of it for later.
    pub(super) fn freeze(&self) -> Flipped {
        let mut space = self.space.lock();
        space.segments.let_go(usize::MAX);
        self.flip(&mut space, Flip::Whole)
    }

    /// Notes that a snapshot is about to hold `range`, and maps its own file there.
    pub(super) fn note_snapshot(&self, range: &Range<usize>) {
        self.space.lock().segments.note_snapshot(range);
    }

    fn flip(&self, space: &mut Space, how: Flip) -> Flipped {
        let flipped = space.segments.flip(how);
        // Relaxed: a figure for `stats`.
        self.freezes.fetch_add(usize::from(flipped.bytes > 0), Ordering::Relaxed);
        flipped
    }

    /// The part of the arena that a re-freeze works on.
    pub(super) fn space(&self) -> &Lock<Space> {
        &self.space
    }

    /// Gives back the memory of free runs. Returns how many bytes became untouched zeros.
    pub(super) fn trim(&self) -> usize {
        let mut space = self.space.lock();
        space.segments.let_go(usize::MAX);
        let mut trimmed = 0;
        let mut last = 0;
        while let Some((first, len)) = space.runs.next_dirty(&self.units, last) {
            last = first;
            let range = self.layout.address(first)..self.layout.address(first + len);
            // SAFETY: the run is free, so nobody needs its bytes, and the lock keeps it so.
            let mut zeroed = unsafe { space.segments.discard(&range) };
            let mut at = range.start;
            // SAFETY: as above.
            while let Some(renewed) = unsafe { space.segments.renew(&(at..range.end)) } {
                at = renewed.end;
                zeroed += renewed.len();
            }
            if zeroed == range.len() {
                self.units.get(first).dirty.set(0);
            }
            trimmed += zeroed;
        }
        trimmed
    }

    /// Takes every lock and makes shared memory private, since the fork may come with the next instruction.
    pub(super) fn before_fork(&self) {
        self.bins.iter().for_each(|bin| bin.0.acquire());
        let mut space = self.space.lock();
        self.flip(&mut space, Flip::InHaste);
        // Held until `after_fork`, in both processes.
        mem::forget(space);
    }

    /// Drops what a child must not have, and releases every lock.
    pub(super) fn after_fork_in_child(&self) {
        // SAFETY: taken by `before_fork`, in the thread that this one is a copy of.
        let segments = unsafe { &mut self.space.held().segments };
        segments.begin_mirror_in_child();
        segments.close();
        self.after_fork();
    }

    /// Releases every lock.
    pub(super) fn after_fork(&self) {
        self.space.release();
        self.bins.iter().for_each(|bin| bin.0.release());
    }

    /// Counts blocks, bytes and segments.
    pub(super) fn stats(&self) -> Stats {
        let mut in_use = InUse::default();
        for (index, bin) in self.bins.iter().enumerate() {
            let bin = bin.0.lock();
            // Below 48.
            let class = Class::from_index((index / SHARDS) as u8);
            in_use.blocks += bin.live;
            in_use.bytes += bin.live * class.size();
        }
        let space = self.space.lock();
        in_use.blocks += space.large;
        in_use.bytes += space.large_units * UNIT;
        let segments = &space.segments;
        Stats {
            in_use,
            memory: Memory {
                shared: segments.bytes(State::Shared),
                frozen: segments.bytes(State::Frozen),
                anonymous: segments.bytes(State::Anonymous),
            },
            committed: space.committed(),
            free: space.runs.free as usize * UNIT,
            longest_free: space.runs.longest(&self.units) as usize * UNIT,
            segments: segments.all().len(),
            // Relaxed: a number.
            freezes: self.freezes.load(Ordering::Relaxed),
            unsealed: segments.unsealed,
            aside: segments.aside_bytes(),
            refused: segments.refused.map(|errno| errno.raw_os_error()),
        }
    }

    #[inline]
    fn bin(&self, class: Class, shard: usize) -> &Lock<Bin> {
        &self.bins[class.index() * SHARDS + shard].0
    }

    #[inline]
    fn locate(&self, address: usize) -> Place {
        let offset = address.wrapping_sub(self.layout.data);
        // A pointer below the arena becomes a huge number, which `get` rejects.
        let index = u32::try_from(offset / UNIT).unwrap_or(u32::MAX);
        let unit = self.units.get(index);
        let kind = unit.kind();
        let head = unit.head.get();
        let offset = offset - head as usize * UNIT;
        if kind == Kind::Free || kind == Kind::Run && offset != 0 {
            misuse("a pointer that is not of a block in use");
        }
        Place { head, kind, offset }
    }
}

/// Where a block is.
struct Place {
    head: u32,
    kind: Kind,
    /// Bytes from the start of its slab or run.
    offset: usize,
}

fn table_offset() -> usize {
    size_of::<Core>().next_multiple_of(64)
}

fn mapping_len() -> usize {
    (table_offset() + MOST * size_of::<Segment>()).next_multiple_of(rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Whether `before_fork` waits for a thread that holds `lock`.
    fn waits_for<T: Send>(core: &Core, lock: &Lock<T>) -> bool {
        let (held, given_back) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let guard = lock.lock();
                held.wait();
                std::thread::sleep(std::time::Duration::from_millis(50));
                // Relaxed: the lock orders it.
                given_back.store(true, Ordering::Relaxed);
                drop(guard);
            });
            held.wait();
            core.before_fork();
            let waited = given_back.load(Ordering::Relaxed);
            core.after_fork();
            waited
        })
    }

    #[test]
    fn a_fork_waits_for_every_holder_of_a_lock() {
        let core = Core::create(Backing::Memfd, Ok(())).unwrap();
        // SAFETY: made above, and destroyed below.
        let this = unsafe { core.as_ref() };
        for index in [0, CLASSES * SHARDS / 2, CLASSES * SHARDS - 1] {
            assert!(waits_for(this, &this.bins[index].0), "bin {index}");
        }
        assert!(waits_for(this, &this.space), "runs");
        // SAFETY: nobody uses it any more.
        unsafe { Core::destroy(core) };
    }

    /// Memory that could not be made private is not mapped in the child, and of no use to it.
    #[test]
    fn a_child_closes_the_files_of_memory_that_stayed_shared() {
        let core = Core::create(Backing::Memfd, Ok(())).unwrap();
        // SAFETY: made above, and destroyed below.
        let this = unsafe { core.as_ref() };
        this.allocate(1 << 20, 16).unwrap();
        let files = || this.space.lock().segments.all().iter().filter_map(|segment| segment.file).collect::<Vec<_>>();
        let before = files();
        assert!(!before.is_empty());
        this.bins.iter().for_each(|bin| bin.0.acquire());
        this.space.acquire();
        this.after_fork_in_child();
        assert_eq!(files(), []);
        assert!(before.iter().all(|file| file.seal() == Err(Errno::BADF)), "they are closed");
        // SAFETY: nobody uses it any more.
        unsafe { Core::destroy(core) };
    }
}
