//! Faults of programs that say where to continue: a handler for SIGSEGV and SIGBUS that looks them up.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use palimpsest_sys::fault::{self, Claimed, FaultHandlerError, TrapFrame};

use super::Packs;

/// Packs whose programs' faults are handled. A list that only grows: a handler may look at it at any time.
struct Known {
    packs: Packs,
    next: Option<&'static Self>,
}

static KNOWN: AtomicPtr<Known> = AtomicPtr::new(std::ptr::null_mut());

fn first() -> Option<&'static Known> {
    // Acquire, partner: the Release in `resume_after_faults`. Forbids an entry without its fields.
    let first = KNOWN.load(Ordering::Acquire);
    // SAFETY: null, or an entry that is never freed.
    unsafe { first.as_ref() }
}

fn all() -> impl Iterator<Item = &'static Known> {
    std::iter::successors(first(), |known| known.next)
}

/// Decides about a fault. Async-signal-safe: lock-free look-ups.
fn claim(frame: &mut TrapFrame) -> Claimed {
    let address = frame.program_counter();
    let landing = all().find_map(|known| known.packs.lookup(address)?.landing());
    match landing {
        Some(landing) => {
            frame.resume_at(landing.as_ptr().addr());
            Claimed::Ours
        }
        None => Claimed::Foreign,
    }
}

impl Packs {
    /// Makes programs of these packs continue after faults as their tables say ([`Staged::set_faults`]). Other faults
    /// go to the handlers that were there before.
    ///
    /// Threads that run such programs must not block SIGSEGV and SIGBUS, nor must the `sa_mask` of a signal handler
    /// that does: the kernel then takes the default action instead of the handler, which ends the process
    /// (`force_sig_info_to_task`, `kernel/signal.c`).
    ///
    /// The packs live as long as the process from then on, and the library that holds this code stays loaded. Do not
    /// call this while holding a lock that a constructor or destructor of a library could take.
    ///
    /// [`Staged::set_faults`]: super::Staged::set_faults
    ///
    /// # Errors
    ///
    /// [`FaultHandlerError`].
    pub fn resume_after_faults(&self) -> Result<(), FaultHandlerError> {
        fault::install(claim)?;
        let mut entry: Option<Box<Known>> = None;
        loop {
            if all().any(|known| Arc::ptr_eq(&known.packs.root, &self.root)) {
                return Ok(());
            }
            let next = first();
            let mut new = entry.take().unwrap_or_else(|| Box::new(Known { packs: self.clone(), next }));
            new.next = next;
            let seen = next.map_or(std::ptr::null_mut(), |next| std::ptr::from_ref(next).cast_mut());
            let new = Box::leak(new);
            // Release, partner: the Acquire in `first`.
            match KNOWN.compare_exchange(seen, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                // Another thread was faster, perhaps with these packs.
                Err(_) => {
                    // SAFETY: leaked above, and nobody has seen it.
                    entry = Some(unsafe { Box::from_raw(new) });
                }
            }
        }
    }
}
