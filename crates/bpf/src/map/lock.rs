//! Locks in the values of maps: `struct bpf_spin_lock`, of 4 bytes, which programs and the host take.
//!
//! The 4 bytes hold the [`Owner`] of the lock, or 0. They are half of a word. Nothing else writes to them: programs
//! reach them only through helpers, and copying a value into a map leaves them out ([`Cells`](super::cells::Cells)).
//!
//! # Why no thread waits for ever
//!
//! * The verifier makes sure that a program holds at most one lock, meanwhile calls only its own functions, and gives
//!   the lock back on every path. If the program is ended before, by its fuel or by a fault, its runner gives the lock
//!   back, as it does with records. Loops that only a count ends (`may_goto`), which nested take hours, are refused
//!   under a lock unless the program has fuel: with much fuel others wait for long, as its contract allows.
//! * Asking for a lock that the same thread holds, in a signal handler or in what the host does under a lock, is an
//!   error ([`Deadlock`]). So is waiting for another one while the thread holds any lock of a value, a map or a hook
//!   (`holding` says why).
//! * In a child of `fork`, the locks of threads that it does not have count as free.

use core::sync::atomic::{AtomicU64, Ordering};

use super::pause::Wait;
use crate::holding::{self, Level};

#[cfg(feature = "std")]
#[path = "owner.rs"]
mod owner;
#[cfg(not(feature = "std"))]
#[path = "cpu_owner.rs"]
mod owner;

/// An owner of locks: a thread, or, without an operating system, a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    /// Returns the owner that runs here; `cpu` returns the CPU, and is asked only if that makes a difference.
    pub(crate) fn here(cpu: impl FnOnce() -> u32) -> Self {
        Self(owner::number(cpu))
    }

    /// Returns its number, which is not 0.
    pub(super) const fn number(self) -> u32 {
        self.0
    }
}

/// What the holder of a lock does that somebody else wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    /// It goes on.
    Runs,
    /// It does not before who asks returns: a signal handler, on its thread.
    #[cfg_attr(not(feature = "std"), expect(dead_code, reason = "without `std` nobody knows who is interrupted"))]
    Interrupted,
    /// It is a thread that this process does not have.
    #[cfg_attr(not(feature = "std"), expect(dead_code, reason = "no CPU goes away"))]
    Gone,
}

impl Holder {
    /// What the owner with this number does. For locks in which nothing of the host's runs.
    pub(super) fn of(number: u32) -> Self {
        owner::holder(number)
    }
}

/// The owner that asks for the lock holds it already, or holds others and would have to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadlock;

/// A lock in a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock<'a> {
    word: &'a AtomicU64,
    /// Bits below it in its word.
    shift: u32,
}

/// Bytes of a word.
const WORD: u32 = size_of::<AtomicU64>() as u32;
/// The bits of an owner.
const OWNER: u64 = u32::MAX as u64;

/// Bits below the 4 bytes at `offset`, a multiple of 4, in their word.
const fn shift(offset: u32) -> u32 {
    let bytes = offset % WORD;
    let below = if cfg!(target_endian = "little") { bytes } else { WORD - 4 - bytes };
    below * 8
}

/// Returns the bits of the lock at `offset` in its word.
pub(super) const fn bits(offset: u32) -> u64 {
    OWNER << shift(offset)
}

impl<'a> Lock<'a> {
    /// The lock in this word, at `offset` in the value.
    pub(super) const fn new(word: &'a AtomicU64, offset: u32) -> Self {
        Self { word, shift: shift(offset) }
    }

    /// Takes the lock; waits while another has it.
    pub(crate) fn take(&self, owner: Owner) -> Result<(), Deadlock> {
        let may_wait = holding::begin(Level::Value);
        self.take_counted(owner, may_wait).inspect_err(|_| holding::end(Level::Value))
    }

    fn take_counted(&self, owner: Owner, may_wait: bool) -> Result<(), Deadlock> {
        let mine = u64::from(owner.0) << self.shift;
        let mut wait = Wait::begin();
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let holder = (word >> self.shift & OWNER) as u32;
            if holder == owner.0 {
                return Err(Deadlock);
            }
            if holder != 0 && !owner::is_gone(holder) {
                if !wait.again(may_wait) {
                    return Err(Deadlock);
                }
                continue;
            }
            let taken = word & !(OWNER << self.shift) | mine;
            // Acquire: with the release of `give_back`; without it, this thread could read the value as it was before
            // the last holder's writes. The other half of the word is exchanged for itself.
            if self.word.compare_exchange_weak(word, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(());
            }
        }
    }

    /// Gives the lock back. Returns whether `owner` had it.
    pub(crate) fn give_back(&self, owner: Owner) -> bool {
        let mine = u64::from(owner.0) << self.shift;
        if self.word.load(Ordering::Relaxed) & OWNER << self.shift != mine {
            return false;
        }
        // Release: with the acquire of `take`; without it, the next holder could miss some of what was written.
        self.word.fetch_and(!(OWNER << self.shift), Ordering::Release);
        holding::end(Level::Value);
        true
    }

    /// Gives back the lock that its owner's program held when it was ended.
    pub(crate) fn discard(&self) {
        // Release: as in `give_back`.
        self.word.fetch_and(!(OWNER << self.shift), Ordering::Release);
        holding::end(Level::Value);
    }
}

/// A lock that is held.
pub(super) struct Held<'a>(pub(super) Lock<'a>, pub(super) Owner);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.give_back(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Value;

    #[test]
    fn a_lock_is_half_of_a_word() {
        for offset in [0, 4, 8, 12] {
            let word = AtomicU64::new(u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]) & !bits(offset));
            let before = word.load(Ordering::Relaxed);
            let lock = Lock::new(&word, offset);
            assert_eq!(lock.take(Owner(7)), Ok(()));
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            let at = offset as usize % 8;
            assert_eq!(bytes[at..at + 4], 7_u32.to_ne_bytes());
            assert_eq!(lock.take(Owner(7)), Err(Deadlock));
            assert!(!lock.give_back(Owner(8)), "it is not another's");
            assert!(lock.give_back(Owner(7)));
            assert_eq!(word.load(Ordering::Relaxed), before);
            assert!(!lock.give_back(Owner(7)), "nobody has it");
        }
    }

    #[test]
    #[cfg(feature = "std")]
    fn who_holds_something_does_not_wait_for_the_lock_of_a_value() {
        use crate::holding::Holding;
        use crate::map::tests::in_the_middle;

        let words = [const { AtomicU64::new(0) }; 2];
        let [wanted, other] = [0, 1].map(|index| Lock::new(&words[index], 0));
        let hold = |is_held: &dyn Fn()| {
            let owner = Owner::here(|| 0);
            assert_eq!(wanted.take(owner), Ok(()));
            is_held();
            assert!(wanted.give_back(owner));
        };
        in_the_middle(hold, || {
            let owner = Owner::here(|| 0);
            for level in [Level::Timers, Level::Part, Level::Turn] {
                let _holding = Holding::begin(level);
                assert_eq!(wanted.take(owner), Err(Deadlock), "{level:?}");
            }
            assert_eq!((other.take(owner), wanted.take(owner)), (Ok(()), Err(Deadlock)));
            assert!(other.give_back(owner) && !holding::is_holding());
        });
        assert_eq!(wanted.take(Owner::here(|| 0)), Ok(()));
    }

    #[test]
    fn copies_into_a_map_leave_locks_out() {
        use crate::map::{Definition, Kind, Map, OpError, Update};

        for (kind, offset) in [(Kind::Array, 0), (Kind::Array, 4), (Kind::Hash, 8), (Kind::Hash, 12)] {
            let definition = Definition { lock: Some(offset), ..Definition::new("m", kind, 4, 18, 2) };
            let map = Map::new(definition).expect("good measures");
            let key = 1_u32.to_ne_bytes();
            let there = |byte| {
                let mut bytes = [byte; 18];
                bytes[offset as usize..offset as usize + 4].fill(0);
                bytes
            };
            let read = || {
                let mut value = [7; 18];
                map.read(&key, 0, &mut value).map(|()| value)
            };
            map.update(&key, &[0xff; 18], Update::Always).expect("room");
            assert_eq!(read(), Ok(there(0xff)));
            let owner = Owner::here(|| 0);
            let address = map.address_of(&key, 0).expect("it is there") + u64::from(offset);
            let lock = map.lock_at(address).expect("it is there");
            let word = lock.word.load(Ordering::Relaxed);
            assert_eq!(word & bits(offset), 0, "{kind:?}: what was copied is no owner");
            assert_eq!(lock.take(owner), Ok(()));
            map.update(&key, &[1; 18], Update::Always).expect("it does not wait");
            if kind == Kind::Hash {
                map.remove(&key).expect("it does not wait");
                // Any element may be the next one.
                for other in [key, [9; 4]] {
                    map.update(&other, &[1; 18], Update::Always).expect("room");
                }
            } else {
                map.set_first(&[2; 18]);
            }
            assert_eq!(map.update_locked(&key, Value::Near(&[3; 18]), Update::Always, owner), Err(OpError::Deadlock));
            assert!(lock.give_back(owner), "{kind:?}");
            assert_eq!(read(), Ok(there(1)));
            assert_eq!(map.update_locked(&key, Value::Near(&[3; 18]), Update::Insert, owner), Err(OpError::Exists));
            assert_eq!(map.update_locked(&key, Value::Near(&[3; 18]), Update::Replace, owner), Ok(()));
            assert_eq!((read(), map.lock_at(address - 4).is_none()), (Ok(there(3)), true));
            if kind == Kind::Hash {
                map.remove(&key).expect("it is there");
                assert_eq!(
                    map.update_locked(&key, Value::Near(&[4; 18]), Update::Replace, owner),
                    Err(OpError::NotFound)
                );
                assert_eq!(map.update_locked(&key, Value::Near(&[4; 18]), Update::Always, owner), Ok(()));
                assert_eq!(read(), Ok(there(4)));
            }
        }
        let plain = Map::new(Definition::new("m", Kind::Array, 4, 18, 2)).expect("good measures");
        let update = plain.update_locked(&[0; 4], Value::Near(&[3; 18]), Update::Always, Owner::here(|| 0));
        assert_eq!((update, plain.change_locked(&[0; 4], |_| ())), (Err(OpError::NoLock), Err(OpError::NoLock)));
        for (offset, kind) in [(2, Kind::Array), (16, Kind::Hash), (0, Kind::LruHash), (0, Kind::PerCpuArray)] {
            let wrong = Definition { lock: Some(offset), ..Definition::new("m", kind, 4, 18, 2) };
            assert!(matches!(Map::new(wrong), Err(crate::map::MapError::Lock { .. })), "{offset} {kind:?}");
        }
        for timer in [0, 8] {
            let both = Definition { lock: Some(8), timer: Some(timer), ..Definition::new("m", Kind::Array, 4, 40, 2) };
            assert!(Map::new(both).is_err(), "{timer}");
        }
    }
}
