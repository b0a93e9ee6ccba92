//! The log of changed code, for observers.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;

use super::site::Code;

/// One site that has been changed.
#[derive(Clone, Copy, Debug)]
pub struct PatchRecord {
    /// The address of the first byte.
    pub address: usize,
    /// The bytes before.
    pub old: Code,
    /// The bytes now.
    pub new: Code,
    /// When the batch was complete.
    pub time: Instant,
}

type Log = dyn Fn(&[PatchRecord]) + Send + Sync;

/// Null, or a box that is never freed.
static LOG: AtomicPtr<Box<Log>> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the function that is called after each batch of this process, with its sites sorted by address, before
/// [`Batch::apply`](super::Batch::apply) returns. It must not poke. An earlier function is not called any more, but
/// stays in memory, since a batch may be calling it.
pub fn set_log(log: impl Fn(&[PatchRecord]) + Send + Sync + 'static) {
    let log: Box<Log> = Box::new(log);
    // Release, partner: the Acquire load in `current`.
    LOG.store(Box::leak(Box::new(log)), Ordering::Release);
}

/// Returns the function to call.
pub(super) fn current() -> Option<&'static Log> {
    // Acquire, partner: the Release store in `set_log`.
    let log = LOG.load(Ordering::Acquire);
    // SAFETY: null, or leaked above.
    unsafe { log.as_ref() }.map(|log| &**log)
}
