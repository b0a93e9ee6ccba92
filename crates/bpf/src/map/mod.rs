//! Maps: memory that programs and the host share, and that outlives both.
//!
//! A [`Map`] is made from a [`Definition`] and never grows: all its memory is allocated when it is made, so that
//! programs that use it neither allocate nor run out of memory later. Programs get the addresses of values and work on
//! them at the same time as the host and other threads; so everything that a program can reach consists of atomic words
//! (`cells`), and what one reads while another writes is a mixture of both, and never undefined.
//!
//! Nobody waits for a thread that does not go on. In a child of `fork`, what is held by threads that it does not have
//! is free. (A record of a ring buffer is not: `ring` says why.)
//! A signal handler that has interrupted a change on its own thread reads what is there, while its changes of the same
//! part are errors ([`OpError::Deadlock`]); so are those of the timers in values. It does not wait for other threads,
//! either, since they may be held up by handlers that wait for its own: if another thread is changing a part for more
//! than a short time, it reads what is there, and its changes are errors. In a child whose parent was putting a
//! map into maps, such changes of these maps are errors, too ([`OpError::Abandoned`]). Without `std` whoever changes a
//! hash map, trie or queue must not be interrupted by somebody who uses the same map.
//!
//! | kind | module | who waits for whom |
//! |---|---|---|
//! | array, per-CPU array | `array` | nobody |
//! | hash, LRU hash, per-CPU ones | `hash` | everybody for a writer of the same bucket |
//! | trie of prefixes | `trie` | as hash |
//! | queue, stack | `queue` | everybody for each other |
//! | bloom filter | `bloom` | nobody |
//! | ring buffer | `ring`; `reader` in other processes | producers for nobody |
//! | user ring buffer | `user_ring` | nobody |
//! | programs | `programs` | nobody; without `std`, everybody for each other |
//! | array, hash of maps | `maps` | as array, hash |

mod array;
mod bloom;
pub(crate) mod cells;
mod definition;
mod guarded;
mod hash;
mod lock;
mod locked;
mod maps;
mod memory;
mod once;
mod op;
mod pause;
mod programs;
mod queue;
#[cfg(feature = "std")]
mod reader;
mod ring;
mod seat;
#[cfg(feature = "std")]
mod timed;
mod trie;
#[cfg(feature = "std")]
pub(crate) mod turns;
mod typed;
#[cfg(not(feature = "std"))]
mod untimed;
mod user_ring;
pub(crate) mod value;

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicU64;

/// What [`Map::signalling`] signals.
#[cfg(feature = "std")]
pub use palimpsest_sys::event::{Event, Waited, Waiter};

use array::Array;
pub(crate) use array::ArrayPlace;
use bloom::Bloom;
pub(crate) use definition::Room;
use definition::check;
pub use definition::{Definition, Kind, MOST_BYTES, MapError, ValueAccess};
pub(crate) use definition::{LOCK, MOST_KEY, TIMER};
use hash::{Eviction, Hash};
pub(crate) use lock::{Lock, Owner};
pub use maps::{Maps, NestError};
pub use op::{OpError, Update, WhenFull};
pub use programs::{Foreign, InsertError, Programs};
use queue::{Order, Queue};
#[cfg(feature = "std")]
pub use reader::{BrokenRing, Drained, OpenRingError, Rest, RingReader};
pub use ring::{Consumer, Ring, Wake};
pub(crate) use ring::{Fate, Waker};
pub(crate) use seat::Seated;
#[cfg(feature = "std")]
pub(crate) use timed::Timed;
use trie::Trie;
pub use typed::{
    ArrayHandle, BloomHandle, Handle, HashHandle, MapsHandle, PerCpuArrayHandle, PerCpuHashHandle, Plain, Prefix,
    QueueHandle, RecordConsumer, RecordLength, RingHandle, SampleProducer, TrieHandle, TypeError, UserRingHandle,
};
#[cfg(not(feature = "std"))]
use untimed::Timed;
pub(crate) use user_ring::Next;
pub use user_ring::{Producer, ReserveError, Sample, UserRing};
pub(crate) use value::{Copied, Far, Out, Value};

/// A map.
#[derive(Debug)]
pub struct Map {
    definition: Definition,
    cpus: u32,
    store: Store,
    timed: Timed,
}

#[derive(Debug)]
enum Store {
    Array(Array),
    Hash(Hash),
    Trie(Trie),
    Queue(Queue),
    Bloom(Bloom),
    Ring(Ring),
    UserRing(UserRing),
    Programs(Programs),
    Maps(alloc::boxed::Box<Maps>),
}

impl Store {
    /// The values of arrays and hash maps.
    const fn values(&self) -> Option<&cells::Cells> {
        match self {
            Self::Array(array) => Some(array.values()),
            Self::Hash(hash) => Some(hash.values()),
            _ => None,
        }
    }
}

#[cfg(feature = "std")]
fn cpus() -> u32 {
    palimpsest_sys::threads::possible_cpus()
}

#[cfg(not(feature = "std"))]
const fn cpus() -> u32 {
    1
}

/// The CPU that this thread is on.
#[cfg(feature = "std")]
pub(crate) fn this_cpu() -> u32 {
    palimpsest_sys::threads::current_cpu()
}

/// Without an operating system, whoever runs a program names the CPU ([`Runner::cpu`](crate::host::Runner::cpu),
/// [`HostBuilder::cpu`](crate::host::HostBuilder::cpu)); where nobody does, it is the first.
#[cfg(not(feature = "std"))]
pub(crate) const fn this_cpu() -> u32 {
    0
}

/// How many values each key has.
fn cpus_of(definition: &Definition) -> u32 {
    if definition.kind.is_per_cpu() { definition.cpus.unwrap_or_else(cpus).max(1) } else { 1 }
}

/// Returns the bytes of a map, including all its parts.
fn bytes(definition: &Definition, cpus: u32) -> u64 {
    let store = match definition.kind {
        Kind::Array | Kind::PerCpuArray => Array::bytes(definition, cpus),
        Kind::Hash | Kind::LruHash | Kind::PerCpuHash | Kind::LruPerCpuHash => Hash::bytes(definition, cpus),
        Kind::LpmTrie => Trie::bytes(definition),
        Kind::Queue | Kind::Stack => Queue::bytes(definition),
        Kind::BloomFilter => Bloom::bytes(definition),
        Kind::RingBuffer => Ring::bytes(definition),
        Kind::UserRingBuffer => UserRing::bytes(definition),
        Kind::Programs => Programs::bytes(definition),
        Kind::ArrayOfMaps | Kind::HashOfMaps => Maps::bytes(definition),
    };
    store.saturating_add(Timed::bytes(definition))
}

impl Map {
    /// Makes a map with all its memory; values are zeros.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    pub fn new(definition: Definition) -> Result<Self, MapError> {
        Self::take_room(&definition, &mut Room::new(MOST_BYTES))?;
        // Makes here what names owners of locks, and not in a signal handler that is the first to need one.
        #[cfg(feature = "std")]
        Owner::here(this_cpu);
        let cpus = cpus_of(&definition);
        let store = match definition.kind {
            Kind::Array | Kind::PerCpuArray => Store::Array(Array::new(&definition, cpus)?),
            Kind::Hash | Kind::PerCpuHash => Store::Hash(Hash::new(&definition, cpus, Eviction::Never)?),
            Kind::LruHash | Kind::LruPerCpuHash => Store::Hash(Hash::new(&definition, cpus, Eviction::Unused)?),
            Kind::LpmTrie => Store::Trie(Trie::new(&definition)?),
            Kind::Queue => Store::Queue(Queue::new(&definition, Order::OldestFirst)?),
            Kind::Stack => Store::Queue(Queue::new(&definition, Order::LatestFirst)?),
            Kind::BloomFilter => Store::Bloom(Bloom::new(&definition)?),
            Kind::RingBuffer => Store::Ring(Ring::new(&definition)?),
            Kind::UserRingBuffer => Store::UserRing(UserRing::new(&definition)?),
            Kind::Programs => Store::Programs(Programs::new(&definition)?),
            Kind::ArrayOfMaps | Kind::HashOfMaps => Store::Maps(alloc::boxed::Box::new(Maps::new(&definition)?)),
        };
        let timed = Timed::new(&definition, store.values())?;
        Ok(Self { definition, cpus, store, timed })
    }

    /// Checks a map's sizes, and takes what it needs from `room`.
    pub(crate) fn take_room(definition: &Definition, room: &mut Room) -> Result<(), MapError> {
        check(definition)?;
        room.take(definition, bytes(definition, cpus_of(definition)))
    }

    /// Moves a ring buffer to memory that other processes can map ([`Ring::descriptor`]); leaves other maps as they
    /// are.
    ///
    /// # Errors
    ///
    /// [`SharedWordsError`](palimpsest_sys::memory::words::SharedWordsError).
    #[cfg(feature = "std")]
    pub fn shared_with_processes(mut self) -> Result<Self, palimpsest_sys::memory::words::SharedWordsError> {
        match &mut self.store {
            Store::Ring(ring) => ring.share(&self.definition.name)?,
            Store::UserRing(ring) => ring.share(&self.definition.name)?,
            _ => {}
        }
        Ok(self)
    }

    /// Calls `waker` when a record finds the consumer of a ring buffer waiting; for other maps nobody waits. The thread
    /// that runs the program calls it, so it must be short.
    pub fn waking(mut self, waker: impl Fn() + Send + Sync + 'static) -> Self {
        match &mut self.store {
            Store::Ring(ring) => ring.set_waker(alloc::boxed::Box::new(waker)),
            Store::UserRing(ring) => ring.set_waker(alloc::boxed::Box::new(waker)),
            _ => {}
        }
        self
    }

    /// Signals `event` when a record finds the consumer of a ring buffer waiting, or when programs have made room in a
    /// user ring buffer: a system call, which signal handlers may make, too, and which never waits. Whoever waits for
    /// the event may be a loop that watches its descriptor, or another process that got it beside that of the ring
    /// ([`shared_with_processes`](Self::shared_with_processes)) and need not be trusted.
    #[cfg(feature = "std")]
    pub fn signalling(self, event: &alloc::sync::Arc<Event>) -> Self {
        let event = alloc::sync::Arc::clone(event);
        self.waking(move || event.signal())
    }

    /// What it was made from.
    pub const fn definition(&self) -> &Definition {
        &self.definition
    }

    /// How many values each key has: 1, or one for each CPU.
    pub const fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Returns whose values a program on this CPU works on. Asks for the CPU only if that makes a difference.
    #[inline(always)]
    pub(crate) fn share_of(&self, cpu: impl FnOnce() -> u32) -> u32 {
        if self.cpus == 1 { 0 } else { cpu() % self.cpus }
    }

    /// Copies the value of `key`; in per-CPU maps, that on which a program on `cpu` works.
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn read(&self, key: &[u8], cpu: u32, value: &mut [u8]) -> Result<(), OpError> {
        self.check_key(key)?;
        self.check_value(value.len())?;
        let cpu = self.share_of(|| cpu);
        match &self.store {
            Store::Array(array) => array.read(key, cpu, value),
            Store::Hash(hash) => hash.read(key, cpu, value),
            Store::Trie(trie) => trie.read(key, value),
            _ => Err(self.unsupported()),
        }?;
        if let Some(offset) = self.definition.timer {
            // The bytes of a timer mean nothing.
            value[offset as usize..][..TIMER as usize].fill(0);
        }
        if let Some(offset) = self.definition.lock {
            value[offset as usize..][..LOCK as usize].fill(0);
        }
        Ok(())
    }

    /// Sets the value of `key`, for every CPU in per-CPU maps. If the old value has a timer, removes it.
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn update(&self, key: &[u8], value: &[u8], update: Update) -> Result<(), OpError> {
        self.update_of(key, Value::Near(value), update, None)
    }

    /// Does the same for this CPU only, as programs do.
    pub(crate) fn update_here(&self, key: &[u8], value: Value<'_>, update: Update, cpu: u32) -> Result<(), OpError> {
        self.update_of(key, value, update, Some(cpu))
    }

    fn update_of(&self, key: &[u8], value: Value<'_>, update: Update, cpu: Option<u32>) -> Result<(), OpError> {
        self.check_key(key)?;
        self.check_value(value.len())?;
        self.check_timers()?;
        match &self.store {
            Store::Array(array) => array.update(key, cpu, value, update, &|value| self.forget_timer(value)),
            Store::Hash(hash) => hash.update(key, cpu, value, update, &|value| self.forget_timer(value)).map(|_| ()),
            Store::Trie(trie) => trie.update(key, value, update),
            _ => Err(self.unsupported()),
        }
    }

    /// Removes `key`, and its value's timer.
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn remove(&self, key: &[u8]) -> Result<(), OpError> {
        self.check_key(key)?;
        self.check_timers()?;
        match &self.store {
            Store::Hash(hash) => hash.remove(key, &|value| self.forget_timer(value)),
            Store::Trie(trie) => trie.remove(key),
            _ => Err(self.unsupported()),
        }
    }

    /// Returns the keys that exist. Those that come and go meanwhile may be among them or not.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let len = self.definition.key_len as usize;
        let mut keys = Vec::new();
        let mut at = 0;
        while let Some(element) = self.element_of(at, 0) {
            at = element.index + 1;
            let mut key = alloc::vec![0; len];
            self.key_cells().read(element.index, &mut key);
            keys.push(key);
        }
        keys
    }

    /// Adds a value: to a queue, a stack or, with [`WhenFull::Refuse`], a bloom filter.
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn push(&self, value: &[u8], when_full: WhenFull) -> Result<(), OpError> {
        self.push_value(Value::Near(value), when_full)
    }

    /// Does the same with a program's value.
    pub(crate) fn push_value(&self, value: Value<'_>, when_full: WhenFull) -> Result<(), OpError> {
        self.check_value(value.len())?;
        match &self.store {
            Store::Queue(queue) => queue.push(value, when_full),
            Store::Bloom(bloom) if when_full == WhenFull::Refuse => {
                bloom.push(value);
                Ok(())
            }
            // Linux knows no flags here, and filters are never full.
            Store::Bloom(_) => Err(OpError::Flags { flags: when_full as u64 }),
            _ => Err(self.unsupported()),
        }
    }

    /// Takes the next value out of a queue or off a stack.
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn pop(&self, value: &mut [u8]) -> Result<(), OpError> {
        self.check_value(value.len())?;
        self.pop_to(&mut |at, piece| value[at..][..piece.len()].copy_from_slice(piece))
    }

    /// Takes the next value out of a queue or off a stack. Nobody else can use it before `out` has all of it.
    pub(crate) fn pop_to(&self, out: &mut Out<'_>) -> Result<(), OpError> {
        match &self.store {
            Store::Queue(queue) => queue.pop(out),
            _ => Err(self.unsupported()),
        }
    }

    /// Copies the next value of a queue or stack. For a bloom filter: whether `value` may be in it.
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn peek(&self, value: &mut [u8]) -> Result<(), OpError> {
        self.check_value(value.len())?;
        match &self.store {
            Store::Bloom(_) => self.may_have(Value::Near(value)),
            _ => self.peek_to(&mut |at, piece| value[at..][..piece.len()].copy_from_slice(piece)),
        }
    }

    /// Copies the next value of a queue or stack.
    pub(crate) fn peek_to(&self, out: &mut Out<'_>) -> Result<(), OpError> {
        match &self.store {
            Store::Queue(queue) => queue.peek(out),
            _ => Err(self.unsupported()),
        }
    }

    /// Whether `value` may be in a bloom filter.
    pub(crate) fn may_have(&self, value: Value<'_>) -> Result<(), OpError> {
        match &self.store {
            Store::Bloom(bloom) if bloom.may_have(value) => Ok(()),
            Store::Bloom(_) => Err(OpError::NotFound),
            _ => Err(self.unsupported()),
        }
    }

    /// Returns the ring buffer, if it is one.
    pub const fn ring(&self) -> Option<&Ring> {
        match &self.store {
            Store::Ring(ring) => Some(ring),
            _ => None,
        }
    }

    /// Returns the user ring buffer, if it is one.
    pub const fn user_ring(&self) -> Option<&UserRing> {
        match &self.store {
            Store::UserRing(ring) => Some(ring),
            _ => None,
        }
    }

    /// Returns its programs, if that is its kind.
    pub const fn programs(&self) -> Option<&Programs> {
        match &self.store {
            Store::Programs(programs) => Some(programs),
            _ => None,
        }
    }

    /// Returns its maps, if that is its kind.
    pub const fn maps(&self) -> Option<&Maps> {
        match &self.store {
            Store::Maps(maps) => Some(maps),
            _ => None,
        }
    }

    /// Returns where all values lie that programs reach by their addresses.
    pub(crate) fn values(&self) -> Option<Range<u64>> {
        let values = match &self.store {
            Store::Trie(trie) => trie.values(),
            store => store.values()?,
        };
        let start = values.address(0);
        Some(start..start + size_of_val(values.words()) as u64)
    }

    /// Returns the address of the value of `key`; of this CPU, if each has its own.
    pub(crate) fn address_of(&self, key: &[u8], cpu: u32) -> Option<u64> {
        match &self.store {
            Store::Array(array) => array.address(key, cpu),
            Store::Hash(hash) => hash.address(key, cpu),
            Store::Trie(trie) => trie.address(key),
            _ => None,
        }
    }

    /// Removes the timer of the value at this address, if it has one.
    fn forget_timer(&self, value: u64) {
        if let Some(offset) = self.definition.timer {
            self.timed.forget(value + u64::from(offset));
        }
    }

    /// What drives its timers: that of the first host that it was given to.
    #[cfg(feature = "std")]
    pub(crate) const fn timed(&self) -> &Timed {
        &self.timed
    }

    /// Where the values of an array lie, if all CPUs share them.
    pub(crate) fn array_place(&self) -> Option<ArrayPlace> {
        match &self.store {
            Store::Array(array) if self.definition.kind == Kind::Array => Some(array.place()),
            _ => None,
        }
    }

    /// Returns where the first value of an array lies: an object's variables are an array of one.
    pub(crate) fn first_value(&self) -> Option<u64> {
        match &self.store {
            Store::Array(array) => array.address(&[0; 4], 0),
            _ => None,
        }
    }

    /// Sets the first value of an array; bytes that `value` lacks are zero.
    pub(crate) fn set_first(&self, value: &[u8]) {
        if let Store::Array(array) = &self.store {
            let len = value.len().min(self.definition.value_len as usize);
            array.values().write(0, Value::Near(&value[..len]));
        }
    }

    /// Returns how many bytes there are from `address` to the end of an array's first value; `None` for others.
    pub(crate) fn rest_of_value(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.first_value()?)?;
        // What begins where this one ends belongs to another value.
        u64::from(self.definition.value_len).checked_sub(offset).filter(|rest| *rest > 0)
    }

    /// Returns the first existing element from this number on, with its value; of this CPU, if each has its own.
    pub(crate) fn element_of(&self, from: usize, cpu: u32) -> Option<Element> {
        match &self.store {
            Store::Array(array) => array.element(from, cpu),
            Store::Hash(hash) => hash.element(from, cpu),
            Store::Trie(trie) => trie.element(from),
            _ => None,
        }
    }

    /// Returns where keys lie, by the number of the element.
    fn key_cells(&self) -> &cells::Cells {
        match &self.store {
            Store::Array(array) => array.keys(),
            Store::Hash(hash) => hash.keys(),
            Store::Trie(trie) => trie.keys(),
            _ => unreachable!("only what has elements is asked for its keys"),
        }
    }

    /// Returns the memory that programs can reach: addresses, and the words there.
    pub(crate) fn shared(&self) -> Vec<&[AtomicU64]> {
        match &self.store {
            Store::Array(array) => Vec::from([array.values().words(), array.keys().words()]),
            Store::Hash(hash) => Vec::from([hash.values().words(), hash.keys().words()]),
            Store::Trie(trie) => Vec::from([trie.values().words(), trie.keys().words()]),
            Store::Ring(ring) => Vec::from([ring.words()]),
            Store::UserRing(ring) => Vec::from([ring.words()]),
            _ => Vec::new(),
        }
    }

    const fn unsupported(&self) -> OpError {
        OpError::Unsupported { kind: self.definition.kind }
    }

    const fn check_key(&self, key: &[u8]) -> Result<(), OpError> {
        let len = self.definition.key_len as usize;
        if key.len() == len { Ok(()) } else { Err(OpError::Length { len, given: key.len() }) }
    }

    const fn check_value(&self, given: usize) -> Result<(), OpError> {
        let len = self.definition.value_len as usize;
        if given == len { Ok(()) } else { Err(OpError::Length { len, given }) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.definition.timer.is_some() {
            self.timed.forget_all();
        }
    }
}

/// One of the elements of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Element {
    /// Its number.
    pub(crate) index: usize,
    /// Where its key lies.
    pub(crate) key: u64,
    /// Where its value lies.
    pub(crate) value: u64,
}

#[cfg(test)]
pub(crate) mod tests;
