//! Objects of the host that programs hold, by numbers that no program can use for anything else.
//!
//! Each thread has its own: a program runs on one thread from its beginning to its end, and no number outlives its run.
//! So no thread waits for another, and a child of `fork` misses nothing of the threads that it does not have.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::cell::RefCell;

use crate::interp::HelperError;

type Object = Arc<dyn Any + Send + Sync>;

/// Numbers of objects are greater. They cannot be mistaken for addresses, since no user space address begins so.
const TAG: u64 = 0x4f42_0000_0000_0000;

/// The objects that programs of a thread hold now, those of outer runs first.
#[derive(Debug)]
struct Held {
    last: u64,
    by_number: Vec<(u64, Object)>,
}

std::thread_local! {
    static HELD: RefCell<Held> = const { RefCell::new(Held { last: 0, by_number: Vec::new() }) };
}

/// Does something with this thread's objects, which runs nothing of the host's.
///
/// # Errors
///
/// [`HelperError::Deadlock`] in a signal handler that has interrupted this, and while the thread ends.
fn with<T>(act: impl FnOnce(&mut Held) -> T) -> Result<T, HelperError> {
    let act = |held: &RefCell<Held>| held.try_borrow_mut().map(|mut held| act(&mut held)).ok();
    HELD.try_with(act).ok().flatten().ok_or(HelperError::Deadlock)
}

/// Notes that a program of this thread holds an object. Returns the number by which it knows it, which is not 0.
pub(super) fn put(object: Object) -> Result<u64, HelperError> {
    with(|held| {
        // No program acquires 2^48 objects.
        held.last += 1;
        let number = TAG + held.last;
        held.by_number.push((number, object));
        number
    })
}

/// The object with this number.
pub(super) fn get(number: u64) -> Result<Option<Object>, HelperError> {
    let same = |(known, object): &(u64, Object)| (*known == number).then(|| Arc::clone(object));
    with(|held| held.by_number.iter().rev().find_map(same))
}

/// Returns the object with this number, which nobody holds any more.
pub(super) fn take(number: u64) -> Result<Option<Object>, HelperError> {
    with(|held| {
        let place = held.by_number.iter().rposition(|(known, _)| *known == number)?;
        Some(held.by_number.remove(place).1)
    })
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
