//! Values by key.
//!
//! Elements are numbered and never change their place; used ones are linked from their bucket.
//!
//! # Who waits
//!
//! A bucket has a version, which is odd while somebody writes. A writer makes it odd, and then even again; a reader
//! reads it before and after, and begins again if it has changed: an element that was removed meanwhile may be linked
//! from another bucket, and lead the reader there. Steps are counted, so that a chain that was turned into a circle
//! ends.
//!
//! | writer | reader |
//! |---|---|
//! | W1 version := odd, acquire; fence, release | R1 reads the version, acquire |
//! | W2 links, keys, values | R2 links, keys |
//! | W3 version := even, release | R3 fence, acquire; reads the version again |
//!
//! R1 reads what W3 wrote: R2 sees all of W2. R2 sees some of W2: by the fences R3 sees W1, and the reader begins
//! again.
//!
//! A value that was looked up is used after that: by then its element may belong to another key, which gives a wrong
//! number but touches no wrong memory. Linux does the same.
//!
//! # Who does not go on
//!
//! The version has its writer beside it. In a child of `fork` a writer may be a thread that the child does not have:
//! the child goes on without it. A signal handler may have interrupted the writer: it reads what is there, and may not
//! write. Both find whole chains, since each change of one is a single store. What the writer was about to link, or had
//! just unlinked, is lost to the child, and a value may be a mixture.
//!
//! A writer on another thread may itself be held up by a signal handler, and that may wait for this thread. So a thread
//! that may not wait (`holding`) gives up after a short time. Its look-ups then take what is there, while the writer
//! may go on after all: they may miss a key, and a value may be a mixture.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use super::cells::{Cells, hash, seed};
use super::lock::{Holder, Owner};
use super::pause::Wait;
use super::value::Value;
use super::{Definition, Element, MapError, OpError, Update, this_cpu};
use crate::holding::{Holding, Level, may_wait};

/// What happens if there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Eviction {
    /// Nothing is added.
    Never,
    /// An element not used since the clock's hand passed it makes room.
    Unused,
}

/// No element.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Bucket {
    /// A number of 32 bits, which is odd while somebody writes, and above it who does: whoever made it odd is the
    /// bucket's writer.
    version: AtomicU64,
    /// The first element. The writer changes it, anybody follows it.
    head: AtomicU32,
}

/// Returns the version behind this one, with its writer.
fn behind(version: u64, steps: u32, writer: Option<Owner>) -> u64 {
    u64::from((version as u32).wrapping_add(steps)) | u64::from(writer.map_or(0, Owner::number)) << 32
}

/// Returns what the writer does that a version tells of; `None` if nobody writes.
fn writer(version: u64) -> Option<Holder> {
    (!version.is_multiple_of(2)).then(|| Holder::of((version >> 32) as u32))
}

/// An element is linked from a bucket.
const LIVE: u8 = 1;
/// An element was used.
const USED: u8 = 2;

/// A hash map.
#[derive(Debug)]
pub(super) struct Hash {
    buckets: Box<[Bucket]>,
    keys: Cells,
    /// Of each CPU in turn.
    values: Cells,
    /// The next element: in a bucket, changed by the bucket's writer; or in the free list, changed by whoever gives the
    /// element back.
    next: Box<[AtomicU32]>,
    /// [`LIVE`] belongs to the writer of the element's bucket. Look-ups set [`USED`], the clock clears it.
    marks: Box<[AtomicU8]>,
    /// The first free element, and above it a number that changes each time: anybody exchanges it.
    free: AtomicU64,
    eviction: Eviction,
    /// Where the clock looks next: whoever needs room moves it on.
    hand: AtomicU32,
    seed: u64,
    count: u32,
    cpus: u32,
}

fn filled<T>(definition: &Definition, count: u32, make: impl FnMut() -> T) -> Result<Box<[T]>, MapError> {
    let mut list = Vec::new();
    list.try_reserve_exact(count as usize).map_err(|_| MapError::Memory {
        name: definition.name.clone(),
        bytes: u64::from(count) * size_of::<T>() as u64,
    })?;
    list.resize_with(count as usize, make);
    Ok(list.into_boxed_slice())
}

impl Hash {
    /// Bytes that it takes.
    pub(super) fn bytes(definition: &Definition, cpus: u32) -> u64 {
        let count = u64::from(definition.max_entries);
        let links = count * (size_of::<AtomicU32>() + size_of::<AtomicU8>()) as u64;
        let buckets = count.next_power_of_two() * size_of::<Bucket>() as u64;
        Cells::bytes(count * u64::from(cpus), definition.value_len)
            .saturating_add(Cells::bytes(count, definition.key_len) + links + buckets)
    }

    pub(super) fn new(definition: &Definition, cpus: u32, eviction: Eviction) -> Result<Self, MapError> {
        let count = definition.max_entries;
        let values = Cells::new(definition, u64::from(count) * u64::from(cpus), definition.value_len)?
            .with_lock(definition.lock);
        let keys = Cells::new(definition, count.into(), definition.key_len)?;
        let mut index = 0;
        let next = filled(definition, count, || {
            index += 1;
            AtomicU32::new(if index == count { NONE } else { index })
        })?;
        let bucket = || Bucket { version: AtomicU64::new(0), head: AtomicU32::new(NONE) };
        Ok(Self {
            buckets: filled(definition, count.next_power_of_two(), bucket)?,
            keys,
            values,
            next,
            marks: filled(definition, count, || AtomicU8::new(0))?,
            free: AtomicU64::new(0),
            eviction,
            hand: AtomicU32::new(0),
            seed: seed(),
            count,
            cpus,
        })
    }

    pub(super) const fn values(&self) -> &Cells {
        &self.values
    }

    pub(super) const fn keys(&self) -> &Cells {
        &self.keys
    }

    fn bucket(&self, key: &[u8]) -> &Bucket {
        self.bucket_of(hash(self.seed, key))
    }

    /// The bucket for keys with this hash.
    fn bucket_of(&self, hash: u64) -> &Bucket {
        let mask = self.buckets.len() - 1;
        &self.buckets[hash as usize & mask]
    }

    /// Finds the element of `key`, and the one before it in the bucket.
    fn walk_to(&self, bucket: &Bucket, key: &[u8]) -> Option<(Option<u32>, u32)> {
        self.walk(bucket, |at| self.keys.is(at as usize, key))
    }

    /// Finds the first element that `is_it` says is the one, and the one before it in the bucket.
    #[inline]
    fn walk(&self, bucket: &Bucket, is_it: impl Fn(u32) -> bool) -> Option<(Option<u32>, u32)> {
        let mut before = None;
        let mut at = bucket.head.load(Ordering::Relaxed);
        for _ in 0..self.count {
            if at == NONE {
                return None;
            }
            if is_it(at) {
                return Some((before, at));
            }
            (before, at) = (Some(at), self.next[at as usize].load(Ordering::Relaxed));
        }
        None
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        self.consistent(self.bucket(key), || self.walk_to(self.bucket(key), key).map(|(_, at)| at))
    }

    /// Returns what `look` finds while nobody writes to the bucket; or, on a thread that may not wait for a writer that
    /// does not come to its end, what it finds all the same.
    fn consistent<T>(&self, bucket: &Bucket, mut look: impl FnMut() -> T) -> T {
        let (mut wait, mut is_late) = (Wait::begin(), false);
        loop {
            // Acquire: with the release of `Held::drop`; without it `look` could see what was before that.
            let version = bucket.version.load(Ordering::Acquire);
            // A writer that does not go on changes nothing meanwhile.
            if is_late || writer(version) != Some(Holder::Runs) {
                let found = look();
                // With the fence of `lock`: without it `look` could see part of what a writer does, and this load the
                // old version.
                fence(Ordering::Acquire);
                if is_late || bucket.version.load(Ordering::Relaxed) == version {
                    return found;
                }
            }
            is_late = !wait.again(may_wait(Level::Part));
        }
    }

    /// Makes this thread the writer of a bucket; waits while another is, as far as `holding` allows.
    fn lock<'a>(&self, bucket: &'a Bucket) -> Result<Held<'a>, OpError> {
        let (owner, holding) = (Owner::here(this_cpu), Holding::begin(Level::Part));
        let mut wait = Wait::begin();
        loop {
            let version = bucket.version.load(Ordering::Relaxed);
            let locked = match writer(version) {
                None => Some(behind(version, 1, Some(owner))),
                Some(Holder::Gone) => Some(behind(version, 2, Some(owner))),
                Some(Holder::Interrupted) => return Err(OpError::Deadlock),
                Some(Holder::Runs) => None,
            };
            // Acquire: with the release of `Held::drop`; everything that the last writer did is visible.
            let change = (Ordering::Acquire, Ordering::Relaxed);
            let take = |locked| bucket.version.compare_exchange_weak(version, locked, change.0, change.1).is_ok();
            if locked.is_some_and(take) {
                // With the fence of `consistent`: whoever sees what is written from here on sees the odd version, too.
                fence(Ordering::Release);
                return Ok(Held { bucket, _holding: holding });
            }
            if !wait.again(holding.may_wait()) {
                return Err(OpError::Deadlock);
            }
        }
    }

    fn use_it(&self, element: u32) {
        let mark = &self.marks[element as usize];
        if self.eviction == Eviction::Unused && mark.load(Ordering::Relaxed) & USED == 0 {
            mark.fetch_or(USED, Ordering::Relaxed);
        }
    }

    /// Takes a free element. The number above the index is different each time, so that an element that was taken and
    /// given back meanwhile is not mistaken for the one that was seen.
    fn take_free(&self) -> Option<u32> {
        // Acquire: with the release of `give_back`, which has written `next`.
        let mut seen = self.free.load(Ordering::Acquire);
        loop {
            let element = seen as u32;
            if element == NONE {
                return None;
            }
            let next = self.next[element as usize].load(Ordering::Relaxed);
            let new = ((seen >> 32) + 1) << 32 | u64::from(next);
            match self.free.compare_exchange_weak(seen, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(element),
                Err(now) => seen = now,
            }
        }
    }

    fn give_back(&self, element: u32) {
        let mut seen = self.free.load(Ordering::Relaxed);
        loop {
            self.next[element as usize].store(seen as u32, Ordering::Relaxed);
            let new = ((seen >> 32) + 1) << 32 | u64::from(element);
            // Release: with the acquire of `take_free`; without it that could read an older `next`.
            match self.free.compare_exchange_weak(seen, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn unlink(&self, bucket: &Bucket, before: Option<u32>, element: u32) {
        let next = self.next[element as usize].load(Ordering::Relaxed);
        let link = before.map_or(&bucket.head, |before| &self.next[before as usize]);
        link.store(next, Ordering::Relaxed);
        self.marks[element as usize].store(0, Ordering::Relaxed);
    }

    /// Whether an element may make room: it is in a bucket, and was not used since the clock's hand passed it. The
    /// third time around it may in any case: few elements are used again as fast as the hand comes back.
    fn may_leave(&self, element: u32, step: u64) -> bool {
        let mark = &self.marks[element as usize];
        let seen = mark.load(Ordering::Relaxed);
        if seen & LIVE == 0 {
            return false;
        }
        if seen & USED == 0 || step >= 2 * u64::from(self.count) {
            return true;
        }
        mark.fetch_and(!USED, Ordering::Relaxed);
        false
    }

    /// Takes an element that was not used lately from its bucket.
    fn evict(&self, renew: &dyn Fn(u64)) -> Option<u32> {
        for step in 0..3 * u64::from(self.count) {
            let element = self.hand.fetch_add(1, Ordering::Relaxed) % self.count;
            if !self.may_leave(element, step) {
                continue;
            }
            let bucket = self.bucket_of(self.keys.hash(element as usize, self.seed));
            let Ok(held) = self.lock(bucket) else { continue };
            // It may be another bucket's by now.
            if let Some((before, _)) = self.walk(bucket, |at| at == element) {
                self.unlink(bucket, before, element);
                renew(self.values.address(element as usize));
                drop(held);
                return Some(element);
            }
        }
        None
    }

    /// Writes a value, of all CPUs if none is named; missing bytes are zero.
    fn write(&self, element: u32, cpu: Option<u32>, value: Value<'_>) {
        let count = self.count as usize;
        match cpu {
            Some(cpu) => self.values.write(cpu as usize * count + element as usize, value),
            None => (0..self.cpus as usize).for_each(|cpu| self.values.write(cpu * count + element as usize, value)),
        }
    }

    /// Sets a value, for all CPUs if none is named; returns whether the key is new. `renew` gets the address of each
    /// value before it is removed or set; it must not use this map.
    pub(super) fn update(
        &self,
        key: &[u8],
        cpu: Option<u32>,
        value: Value<'_>,
        update: Update,
        renew: &dyn Fn(u64),
    ) -> Result<bool, OpError> {
        let bucket = self.bucket(key);
        let replace = |element: u32| {
            if update == Update::Insert {
                return Err(OpError::Exists);
            }
            renew(self.values.address(element as usize));
            self.write(element, cpu, value);
            self.use_it(element);
            Ok(false)
        };
        let held = self.lock(bucket)?;
        if let Some((_, element)) = self.walk_to(bucket, key) {
            return replace(element);
        }
        if update == Update::Replace {
            return Err(OpError::NotFound);
        }
        let insert = |element: u32| {
            // A program may have made a timer in it since another key's value was here.
            renew(self.values.address(element as usize));
            self.keys.write(element as usize, Value::Near(key));
            if cpu.is_some() && self.cpus > 1 {
                // Of the other CPUs.
                self.write(element, None, Value::Near(&[]));
            }
            self.write(element, cpu, value);
            self.next[element as usize].store(bucket.head.load(Ordering::Relaxed), Ordering::Relaxed);
            // Not used yet: what is put in and never looked up leaves first.
            self.marks[element as usize].store(LIVE, Ordering::Relaxed);
            bucket.head.store(element, Ordering::Relaxed);
            Ok(true)
        };
        if self.eviction == Eviction::Never {
            // Under the lock, so that nobody who inserts the same key takes another element meanwhile.
            return insert(self.take_free().ok_or(OpError::Full)?);
        }
        // Not under the lock: making room locks another bucket.
        drop(held);
        let element = self.take_free().or_else(|| self.evict(renew)).ok_or(OpError::Full)?;
        let held = self.lock(bucket).inspect_err(|_| self.give_back(element))?;
        if let Some((_, found)) = self.walk_to(bucket, key) {
            // Another thread was faster.
            let replaced = replace(found);
            drop(held);
            self.give_back(element);
            return replaced;
        }
        insert(element)
    }

    /// Writes the value of `key`, of the first CPU, if it still lies at `address`; without these bytes of it.
    pub(super) fn write_at(
        &self,
        key: &[u8],
        address: u64,
        value: Value<'_>,
        kept: Range<usize>,
    ) -> Result<(), OpError> {
        let bucket = self.bucket(key);
        // Meanwhile nobody removes it.
        let _held = self.lock(bucket)?;
        let found = self.walk_to(bucket, key).map(|(_, element)| element);
        let element = found.filter(|element| self.values.address(*element as usize) == address);
        self.values.write_without(element.ok_or(OpError::NotFound)? as usize, value, kept);
        Ok(())
    }

    /// Removes a key; `renew` as in [`update`](Self::update).
    pub(super) fn remove(&self, key: &[u8], renew: &dyn Fn(u64)) -> Result<(), OpError> {
        let bucket = self.bucket(key);
        let held = self.lock(bucket)?;
        let (before, element) = self.walk_to(bucket, key).ok_or(OpError::NotFound)?;
        self.unlink(bucket, before, element);
        renew(self.values.address(element as usize));
        // Under the lock, so that there is room for whoever misses the key.
        self.give_back(element);
        drop(held);
        Ok(())
    }

    pub(super) fn read(&self, key: &[u8], cpu: u32, value: &mut [u8]) -> Result<(), OpError> {
        let bucket = self.bucket(key);
        let found = self.consistent(bucket, || {
            let (_, element) = self.walk_to(bucket, key)?;
            self.values.read(cpu as usize * self.count as usize + element as usize, value);
            Some(element)
        });
        self.use_it(found.ok_or(OpError::NotFound)?);
        Ok(())
    }

    pub(super) fn address(&self, key: &[u8], cpu: u32) -> Option<u64> {
        let element = self.find(key)?;
        self.use_it(element);
        Some(self.values.address(cpu as usize * self.count as usize + element as usize))
    }

    pub(super) fn element(&self, from: usize, cpu: u32) -> Option<Element> {
        let is_live = |index: &usize| self.marks[*index].load(Ordering::Relaxed) & LIVE != 0;
        let index = (from..self.count as usize).find(is_live)?;
        let value = self.values.address(cpu as usize * self.count as usize + index);
        Some(Element { index, key: self.keys.address(index), value })
    }
}

/// A bucket to which one thread writes.
struct Held<'a> {
    bucket: &'a Bucket,
    /// Dropped behind the lock.
    _holding: Holding,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let version = self.bucket.version.load(Ordering::Relaxed);
        // Release: with the acquires of `lock` and `consistent`, which then see all that was written.
        self.bucket.version.store(behind(version, 1, None), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Kind;
    use crate::map::tests::{beside, in_the_middle};

    #[test]
    fn nobody_waits_for_who_does_not_go_on() {
        // One bucket.
        let definition = Definition::new("hash", Kind::Hash, 4, 8, 1);
        let hash = Hash::new(&definition, 1, Eviction::Never).expect("room");
        let set = |value| hash.update(&[1; 4], None, Value::Near(&[value; 8]), Update::Always, &|_| ());
        let read = || {
            let mut value = [0; 8];
            hash.read(&[1; 4], 0, &mut value).map(|()| value)
        };
        assert_eq!(set(1), Ok(true));
        let held = hash.lock(&hash.buckets[0]).expect("it is free");
        // As a signal handler that has interrupted its thread.
        assert_eq!((set(2), read()), (Err(OpError::Deadlock), Ok([1; 8])));
        assert_eq!(hash.remove(&[1; 4], &|_| ()), Err(OpError::Deadlock));
        drop(held);
        assert_eq!((set(3), read()), (Ok(false), Ok([3; 8])));
        beside(|| hash.lock(&hash.buckets[0]), || read() == Ok([3; 8]) && set(4) == Ok(false) && read() == Ok([4; 8]));
        assert_eq!(read(), Ok([3; 8]), "what the child did is the child's");
    }

    #[test]
    fn two_that_hold_what_the_other_one_wants_both_give_up() {
        let definition = Definition::new("hash", Kind::Hash, 4, 8, 1);
        let maps = [(); 2].map(|()| Hash::new(&definition, 1, Eviction::Never).expect("room"));
        let set = |map: &Hash, value| map.update(&[1; 4], None, Value::Near(&[value; 8]), Update::Always, &|_| ());
        assert_eq!([set(&maps[0], 1), set(&maps[1], 1)], [Ok(true); 2]);
        let both = std::sync::Barrier::new(2);
        let meet = |mine: usize| {
            let held = maps[mine].lock(&maps[mine].buckets[0]).expect("it is free");
            both.wait();
            // As signal handlers that have interrupted their threads.
            let (other, mut value) = (&maps[1 - mine], [0; 8]);
            let seen = other.read(&[1; 4], 0, &mut value).map(|()| value);
            let changed = (set(other, 2), other.remove(&[1; 4], &|_| ()));
            both.wait();
            drop(held);
            assert_eq!((seen, changed), (Ok([1; 8]), (Err(OpError::Deadlock), Err(OpError::Deadlock))));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| meet(0));
            meet(1);
        });
        assert_eq!([set(&maps[0], 3), set(&maps[1], 3)], [Ok(false); 2]);
    }

    #[test]
    fn a_look_up_inside_the_lock_of_timers_waits_for_nobody() {
        let definition = Definition::new("hash", Kind::Hash, 4, 8, 1);
        let hash = Hash::new(&definition, 1, Eviction::Never).expect("room");
        let hold = |is_held: &dyn Fn()| {
            let held = hash.lock(&hash.buckets[0]).expect("it is free");
            is_held();
            drop(held);
        };
        in_the_middle(hold, || {
            let _inside = Holding::begin(Level::Timers);
            assert_eq!((hash.address(&[1; 4], 0), hash.remove(&[1; 4], &|_| ())), (None, Err(OpError::Deadlock)));
        });
    }

    /// Both would often find the map full: while the other has taken an element and not linked it, or unlinked it and
    /// not given it back.
    #[test]
    fn who_inserts_the_same_key_takes_no_other_element() {
        let definition = Definition::new("hash", Kind::Hash, 4, 8, 1);
        let hash = Hash::new(&definition, 1, Eviction::Never).expect("room");
        let work = || {
            for _ in 0..20_000 {
                let set = hash.update(&[1; 4], None, Value::Near(&[1; 8]), Update::Always, &|_| ());
                assert_ne!(set, Err(OpError::Full));
                let _ = hash.remove(&[1; 4], &|_| ());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(work);
            work();
        });
    }

    #[test]
    fn an_element_that_is_used_all_the_time_makes_room_all_the_same() {
        let definition = Definition::new("lru", Kind::LruHash, 4, 8, 2);
        let hash = Hash::new(&definition, 1, Eviction::Unused).expect("room");
        let set = hash.update(&[1; 4], None, Value::Near(&[1; 8]), Update::Always, &|_| ());
        assert_eq!(set, Ok(true));
        let may_leave = |step| {
            // By a thread that does nothing else.
            hash.use_it(0);
            hash.may_leave(0, step)
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(may_leave), [false, false, false, false, true, true]);
        assert!(!hash.may_leave(1, 5), "it is in no bucket");
    }
}
