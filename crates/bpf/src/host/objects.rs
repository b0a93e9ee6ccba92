//! Objects of the host that programs hold, by numbers that no program can use for anything else.
//!
//! Each thread has its own: a program runs on one thread from its beginning to its end, and no number outlives its run.
//! So no thread waits for another, and a child of `fork` misses nothing of the threads that it does not have.

use alloc::sync::Arc;
use core::any::Any;
use core::cell::RefCell;
use core::mem::ManuallyDrop;

use super::panics;
use crate::interp::{HelperError, MOST_HELD};

type Object = Arc<dyn Any + Send + Sync>;

/// Numbers of objects are greater. They cannot be mistaken for addresses, since no user space address begins so.
const TAG: u64 = 0x4f42_0000_0000_0000;

/// The objects that programs of a thread hold now.
struct Held {
    last: u64,
    by_number: [Option<(u64, Object)>; MOST_HELD],
}

std::thread_local! {
    /// Not dropped: no object is left when the thread ends, and a thread's first object needs no destructor, for which
    /// the C library allocates.
    static HELD: ManuallyDrop<RefCell<Held>> =
        const { ManuallyDrop::new(RefCell::new(Held { last: 0, by_number: [const { None }; MOST_HELD] })) };
}

/// Does something with this thread's objects, which runs nothing of the host's.
///
/// # Errors
///
/// [`HelperError::Deadlock`] in a signal handler that has interrupted this.
fn with<T>(act: impl FnOnce(&mut Held) -> T) -> Result<T, HelperError> {
    HELD.with(|held| held.try_borrow_mut().map(|mut held| act(&mut held)).map_err(|_| HelperError::Deadlock))
}

/// Notes that a program of this thread holds an object. Returns the number by which it knows it, which is not 0.
pub(super) fn put(object: Object) -> Result<u64, HelperError> {
    with(|held| {
        let free = held.by_number.iter_mut().find(|place| place.is_none());
        let place = free.ok_or(HelperError::Held { most: MOST_HELD })?;
        // No program acquires 2^48 objects.
        held.last += 1;
        let number = TAG + held.last;
        *place = Some((number, object));
        Ok(number)
    })?
}

/// The object with this number.
pub(super) fn get(number: u64) -> Result<Option<Object>, HelperError> {
    with(|held| {
        let same = held.by_number.iter().flatten().find(|(known, _)| *known == number);
        same.map(|(_, object)| Arc::clone(object))
    })
}

/// Returns the object with this number, which nobody holds any more.
pub(super) fn take(number: u64) -> Result<Option<Object>, HelperError> {
    with(|held| {
        let same = |place: &&mut Option<(u64, Object)>| place.as_ref().is_some_and(|(known, _)| *known == number);
        held.by_number.iter_mut().find(same)?.take().map(|(_, object)| object)
    })
}

/// Objects that an ended program has left, when dropped: all, also if one of them panics.
pub(super) struct Left<'a>(pub(super) &'a [u64]);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let Some((record, rest)) = self.0.split_first() else { return };
        let _next = Left(rest);
        panics::without_a_second(|| drop(take(*record)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_do_not_wait_for_each_other() {
        let number = put(Arc::new(7)).expect("nobody is interrupted");
        assert_ne!(put(Arc::new(8)), Ok(number));
        let other = std::thread::spawn(move || (get(number).is_ok_and(|found| found.is_none()), put(Arc::new(9))));
        assert_eq!(other.join().expect("it ends"), (true, Ok(TAG + 1)), "it has its own");
        // What a signal handler finds that has interrupted this thread in `put`: a mutex would wait for ever.
        let interrupted = with(|_| (put(Arc::new(1)), get(number).err(), take(number).err()));
        let deadlock = HelperError::Deadlock;
        assert_eq!(interrupted, Ok((Err(deadlock), Some(deadlock), Some(deadlock))));
        let taken = take(number).expect("nobody is interrupted").and_then(|found| found.downcast::<i32>().ok());
        assert_eq!(taken.as_deref(), Some(&7));
        assert!(take(number).is_ok_and(|found| found.is_none()), "it is gone");
    }
}
