//! Handles: numbers that name what C holds, so that a released, foreign or invented one is an error and not a pointer.
//!
//! A handle is a key of a [`SlotMap`]: a place, and how often the place was used. It names one thing for ever, unless
//! 2^31 uses of one place bring it back. All tables share one lock, which a fork takes, so that children can go on
//! ([`watch_forks`]).

use std::cell::RefCell;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockWriteGuard, TryLockError};

use palimpsest_text::{Allocation, Data, Packs, Program, Staged, StagedData};
use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use crate::result::{Failure, palimpsest_result};

/// What C holds of one kind.
pub(crate) type Slots<T> = SlotMap<DefaultKey, Arc<T>>;

/// All that C holds.
#[derive(Default)]
pub(crate) struct Handles {
    packs: Slots<Packs>,
    // Each is locked by the one call that writes into it or takes it; `None` once it was taken.
    allocations: Slots<Mutex<Option<Allocation>>>,
    staged: Slots<Mutex<Option<Staged>>>,
    staged_data: Slots<Mutex<Option<StagedData>>>,
    programs: Slots<Program>,
    data: Slots<Data>,
}

/// A kind of thing that handles name.
pub(crate) trait Kind: Sized + 'static {
    /// Its name in messages.
    const NAME: &'static str;

    fn slots(handles: &Handles) -> &Slots<Self>;
    fn slots_mut(handles: &mut Handles) -> &mut Slots<Self>;
}

macro_rules! kinds {
    ($($kind:ty = $field:ident, $name:literal;)+) => {
        $(impl Kind for $kind {
            const NAME: &'static str = $name;

            fn slots(handles: &Handles) -> &Slots<Self> {
                &handles.$field
            }

            fn slots_mut(handles: &mut Handles) -> &mut Slots<Self> {
                &mut handles.$field
            }
        })+
    };
}

kinds! {
    Packs = packs, "packs";
    Mutex<Option<Allocation>> = allocations, "allocation that is not finalized";
    Mutex<Option<Staged>> = staged, "staged program";
    Mutex<Option<StagedData>> = staged_data, "staged data";
    Program = programs, "program";
    Data = data, "data";
}

/// Calls that look up a handle read it, calls that make or give back one write it.
static HANDLES: LazyLock<RwLock<Handles>> = LazyLock::new(RwLock::default);

/// Reads the tables. A thread that forks holds the lock, and its handlers (`pthread_atfork`) may call us.
fn read<R>(work: impl FnOnce(&Handles) -> R) -> R {
    let mut work = Some(work);
    let held = HELD.try_with(|held| {
        let held = held.try_borrow().ok()?;
        held.as_deref().map(|handles| work.take().map(|work| work(handles)))
    });
    match (held, work) {
        (Ok(Some(Some(done))), _) => done,
        (_, Some(work)) => work(&HANDLES.read().unwrap_or_else(PoisonError::into_inner)),
        _ => unreachable!("work is taken where it is done"),
    }
}

/// Changes the tables; see [`read`].
fn write<R>(work: impl FnOnce(&mut Handles) -> R) -> R {
    let mut work = Some(work);
    let held = HELD.try_with(|held| {
        let mut held = held.try_borrow_mut().ok()?;
        held.as_deref_mut().map(|handles| work.take().map(|work| work(handles)))
    });
    match (held, work) {
        (Ok(Some(Some(done))), _) => done,
        (_, Some(work)) => work(&mut HANDLES.write().unwrap_or_else(PoisonError::into_inner)),
        _ => unreachable!("work is taken where it is done"),
    }
}

/// Returns the key that `handle` is. Every number makes a key, so what that key makes is compared.
fn key_of(handle: u64) -> Option<DefaultKey> {
    let data = KeyData::from_ffi(handle);
    (data.as_ffi() == handle).then(|| DefaultKey::from(data))
}

fn stale<T: Kind>(handle: u64) -> Failure {
    let name = T::NAME;
    let message = format_args!("{handle:#x} names no {name}: it was released or finalized, or never handed out");
    Failure::new(palimpsest_result::PALIMPSEST_STALE, message)
}

/// Names `value`.
pub(crate) fn insert<T: Kind>(value: T) -> u64 {
    watch_forks();
    write(|handles| T::slots_mut(handles).insert(Arc::new(value)).data().as_ffi())
}

/// Returns what `handle` names. It lives as long as somebody uses it, released or not.
pub(crate) fn get<T: Kind>(handle: u64) -> Result<Arc<T>, Failure> {
    let found = key_of(handle).and_then(|key| read(|handles| T::slots(handles).get(key).cloned()));
    found.ok_or_else(|| stale::<T>(handle))
}

/// As [`get`], for signal handlers: waits for nobody, and takes nothing from the heap.
pub(crate) fn with_at_once<T: Kind, R>(handle: u64, work: impl FnOnce(&T) -> R) -> Result<R, palimpsest_result> {
    // Before the first handle there is nothing to find, and making the tables would take the heap.
    let handles = LazyLock::get(&HANDLES).ok_or(palimpsest_result::PALIMPSEST_STALE)?;
    let handles = match handles.try_read() {
        Ok(handles) => handles,
        Err(TryLockError::Poisoned(handles)) => handles.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(palimpsest_result::PALIMPSEST_BUSY),
    };
    let found = key_of(handle).and_then(|key| T::slots(&handles).get(key));
    found.map(|found| work(found)).ok_or(palimpsest_result::PALIMPSEST_STALE)
}

/// Ends a handle. Whoever is using what it named goes on with it.
pub(crate) fn remove<T: Kind>(handle: u64) -> Result<Arc<T>, Failure> {
    let found = key_of(handle).and_then(|key| write(|handles| T::slots_mut(handles).remove(key)));
    found.ok_or_else(|| stale::<T>(handle))
}

/// Ends a handle, and takes what it named, which waits to be finalized.
pub(crate) fn take<T>(handle: u64) -> Result<T, Failure>
where
    Mutex<Option<T>>: Kind,
{
    let found = remove::<Mutex<Option<T>>>(handle)?;
    alone(&found)?.take().ok_or_else(being_finalized)
}

/// As [`take`] for each of these: all handles are ended, or after `PALIMPSEST_STALE` and `PALIMPSEST_INVALID` none. If
/// another thread uses one, what the others named is dropped.
pub(crate) fn take_all<T>(listed: impl ExactSizeIterator<Item = u64> + Clone) -> Result<Vec<T>, Failure>
where
    Mutex<Option<T>>: Kind,
{
    // Looks up all handles before it takes the first, so that a wrong one does not cost the others.
    let mut sorted = Vec::with_capacity(listed.len());
    for handle in listed.clone() {
        get::<Mutex<Option<T>>>(handle)?;
        sorted.push(handle);
    }
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Failure::invalid(format_args!("{:#x} is listed twice", twice[0])));
    }
    // Ends all handles, even if one of them is in use. What was there just now, another thread has taken.
    let taken: Vec<_> = listed.map(|handle| take(handle).map_err(|_| being_finalized())).collect();
    taken.into_iter().collect()
}

/// Why there is nothing where something waited to be finalized.
pub(crate) fn being_finalized() -> Failure {
    let message = "another thread uses, finalizes or drops what is staged or allocated";
    Failure::new(palimpsest_result::PALIMPSEST_BUSY, message)
}

/// Returns the handle of the first for which `is_it` returns true.
pub(crate) fn find<T: Kind>(is_it: impl Fn(&T) -> bool) -> Option<u64> {
    read(|handles| T::slots(handles).iter().find(|(_, value)| is_it(value)).map(|(key, _)| key.data().as_ffi()))
}

/// Takes what is staged for this thread only. Waits for nobody: a child may have inherited the lock from a thread that
/// it does not have.
pub(crate) fn alone<T>(staged: &Mutex<T>) -> Result<MutexGuard<'_, T>, Failure> {
    match staged.try_lock() {
        Ok(found) => Ok(found),
        Err(TryLockError::Poisoned(found)) => Ok(found.into_inner()),
        Err(TryLockError::WouldBlock) => {
            let message = "another thread is at what is staged, or was when this process was forked";
            Err(Failure::new(palimpsest_result::PALIMPSEST_BUSY, message))
        }
    }
}

thread_local! {
    /// The lock, while this thread forks.
    static HELD: RefCell<Option<RwLockWriteGuard<'static, Handles>>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    let lock = || HANDLES.write().unwrap_or_else(PoisonError::into_inner);
    // A handler of a handler's own fork has it already.
    let _ = HELD.try_with(|held| {
        if let Ok(mut held) = held.try_borrow_mut() {
            held.get_or_insert_with(lock);
        }
    });
}

/// Releases the lock in both processes: the forking thread holds it in each.
extern "C" fn after_fork() {
    // Cannot panic. Where the place is in use, this is the fork of a handler that interrupted a call of another
    // handler's fork, which will release the lock.
    let _ = HELD.try_with(|held| {
        if let Ok(mut held) = held.try_borrow_mut() {
            held.take();
        }
    });
}

/// Makes each `fork` of the C library take the lock, so that a child never inherits it from a thread that it does not
/// have. A raw `clone` system call does not: such a child must leave handles alone.
fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handlers may run at any time between calls of this library. A failure (no memory) leaves children
        // of other threads' forks with a held lock, as without handlers.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Fails on: a fork that does not take the lock, which a child then waits for in vain.
    #[test]
    fn children_find_the_lock_free_whatever_other_threads_do() {
        let insert_and_remove = || remove::<Mutex<Option<Staged>>>(insert(Mutex::new(None::<Staged>))).is_ok();
        assert!(insert_and_remove());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(insert_and_remove());
                }
            });
            let mut ended = (0..50).map(|_| {
                // SAFETY: the child takes locks that a fork takes, of this crate and of the C library's heap, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends the child if it waits for ever.
                    unsafe { libc::alarm(600) };
                    let status = i32::from(!insert_and_remove());
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(status) };
                }
                let mut status = -1;
                // SAFETY: a child of this thread's, and a local.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                status
            });
            let failed = ended.find(|status| *status != 0);
            done.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
    }
}
