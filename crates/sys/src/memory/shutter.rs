//! A write view that is open only during writes.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::MprotectFlags;

use crate::memory::area::Area;
use crate::memory::error::MapError;
use crate::memory::mapping::Mapping;

/// A mapping without any rights, which forked children do not get, and which is writable while a [`Window`] is open.
///
/// It needs no descriptor: opening and closing change the rights of the whole mapping, and so never split it. When it
/// is closed, the kernel interrupts the other cores that run this process (`mm/mprotect.c`, `tlb_finish_mmu`).
#[derive(Debug)]
pub struct Shutter {
    mapping: Mapping,
    /// The number of open windows. The thread that holds the lock changes it, and changes the rights.
    windows: Mutex<usize>,
    /// How often the first window was opened. Changed under the same lock, read by any thread.
    openings: AtomicU64,
}

/// The right to write to a [`Shutter`]'s memory, for the whole process, until the last window is dropped.
#[derive(Debug)]
pub struct Window<'a>(&'a Shutter);

impl Shutter {
    /// Makes a closed shutter of `mapping`.
    ///
    /// # Errors
    ///
    /// See [`MapError`]; then the mapping is gone.
    pub fn new(mapping: Mapping) -> Result<Self, MapError> {
        let shutter = Self { mapping, windows: Mutex::new(0), openings: AtomicU64::new(0) };
        shutter.close()?;
        Ok(shutter)
    }

    /// Makes the memory writable until the window is closed.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn open(&self) -> Result<Window<'_>, MapError> {
        let mut windows = self.lock();
        if *windows == 0 {
            self.mapping.set_protection(MprotectFlags::READ | MprotectFlags::WRITE)?;
            // Relaxed: only a count.
            self.openings.fetch_add(1, Ordering::Relaxed);
        }
        *windows += 1;
        Ok(Window(self))
    }

    /// Returns how often the memory was made writable.
    pub fn openings(&self) -> u64 {
        // Relaxed: only a count.
        self.openings.load(Ordering::Relaxed)
    }

    fn close(&self) -> Result<(), MapError> {
        self.mapping.set_protection(MprotectFlags::empty())
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Shutter {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.mapping
    }
}

impl Window<'_> {
    /// Closes the window, and with the last one the view.
    ///
    /// # Errors
    ///
    /// [`MapError`]: the view is still writable. Closing the next window tries again.
    pub fn close(self) -> Result<(), MapError> {
        let shutter = self.0;
        std::mem::forget(self);
        shutter.leave()
    }
}

impl Shutter {
    fn leave(&self) -> Result<(), MapError> {
        let mut windows = self.lock();
        *windows -= 1;
        if *windows > 0 { Ok(()) } else { self.close() }
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        // Callers that need the error call `close`.
        let _ = self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::maps::Maps;
    use crate::{Pages, SharedMemory, Source};

    fn rights(shutter: &Shutter) -> String {
        Maps::read().unwrap().at(shutter.address()).unwrap().permissions.to_string()
    }

    #[test]
    fn it_is_open_as_long_as_one_window_is() {
        let page = rustix::param::page_size();
        let memory = SharedMemory::create("test", page, Pages::Base).unwrap();
        let alias = Mapping::unforked(Source::Shared(&memory), page, page).unwrap();
        let shutter = Shutter::new(alias).unwrap();
        assert_eq!(rights(&shutter), "---s");
        let first = shutter.open().unwrap();
        let second = shutter.open().unwrap();
        drop(first);
        assert_eq!(rights(&shutter), "rw-s");
        // SAFETY: writable, since a window is open, and nobody else has its address.
        unsafe { shutter.as_ptr().write(1) };
        second.close().unwrap();
        assert_eq!(rights(&shutter), "---s");
        let _again = shutter.open().unwrap();
        assert_eq!(rights(&shutter), "rw-s");
    }
}
