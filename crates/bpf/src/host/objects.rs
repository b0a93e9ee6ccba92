//! Objects of the host that programs hold, by numbers that no program can use for anything else.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Object = Arc<dyn Any + Send + Sync>;

/// Numbers of objects are greater. They cannot be mistaken for addresses, since no user space address begins so.
const TAG: u64 = 0x4f42_0000_0000_0000;

/// The objects that programs of a host hold now.
#[derive(Debug, Default)]
pub(super) struct Objects(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    last: u64,
    by_number: BTreeMap<u64, Object>,
}

impl Objects {
    fn lock(&self) -> MutexGuard<'_, Held> {
        // Nothing that panics is done under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a program holds an object. Returns the number by which it knows it, which is not 0.
    pub(super) fn put(&self, object: Object) -> u64 {
        let mut held = self.lock();
        // No program acquires 2^48 objects.
        held.last += 1;
        let number = TAG + held.last;
        held.by_number.insert(number, object);
        number
    }

    /// The object with this number.
    pub(super) fn get(&self, number: u64) -> Option<Object> {
        self.lock().by_number.get(&number).cloned()
    }

    /// Returns the object with this number, which nobody holds any more.
    pub(super) fn take(&self, number: u64) -> Option<Object> {
        self.lock().by_number.remove(&number)
    }
}
