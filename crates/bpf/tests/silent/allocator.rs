//! The C library's allocator, through which the Rust one goes, too: it tells when it is called where it must not be,
//! and can be interrupted by a signal.
#![expect(unsafe_code, reason = "functions of the C library are put in place of its own, and signals are sent")]

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(place: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
    fn __libc_free(place: *mut c_void);
}

std::thread_local! {
    /// Whether this thread must not use the allocator now.
    static IS_FORBIDDEN: Cell<bool> = const { Cell::new(false) };
    /// How often it has done so all the same.
    static CAUGHT: Cell<u32> = const { Cell::new(0) };
    /// Whether this thread's next call of the allocator is interrupted.
    static IS_INTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether calls that are caught end the process, to see in a debugger where they come from.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Each call of the allocator begins here.
fn enter() {
    if IS_FORBIDDEN.get() {
        CAUGHT.set(CAUGHT.get() + 1);
        if ENDS.load(Ordering::Relaxed) {
            std::process::abort();
        }
    }
    if IS_INTERRUPTED.replace(false) {
        // SAFETY: a valid signal; its handler returns before this does.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
}

/// Returns what `act` returns, and how often it used the allocator.
pub(crate) fn forbidden<T>(act: impl FnOnce() -> T) -> (T, u32) {
    ENDS.store(std::env::var_os("PALIMPSEST_ABORT").is_some(), Ordering::Relaxed);
    let before = IS_FORBIDDEN.replace(true);
    let caught = CAUGHT.replace(0);
    let done = act();
    IS_FORBIDDEN.set(before);
    (done, CAUGHT.replace(caught))
}

/// Calls the allocator, and has a signal interrupt that.
pub(crate) fn interrupted() {
    IS_INTERRUPTED.set(true);
    drop(std::hint::black_box(Box::new(7)));
    assert!(!IS_INTERRUPTED.get(), "the allocator is not the one of this file");
}

#[unsafe(no_mangle)]
extern "C" fn malloc(len: usize) -> *mut c_void {
    enter();
    // SAFETY: any length.
    unsafe { __libc_malloc(len) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
    enter();
    // SAFETY: any lengths.
    unsafe { __libc_calloc(count, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(place: *mut c_void, len: usize) -> *mut c_void {
    enter();
    // SAFETY: as the caller says.
    unsafe { __libc_realloc(place, len) }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, len: usize) -> *mut c_void {
    enter();
    // SAFETY: any measures.
    unsafe { __libc_memalign(align, len) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, len: usize) -> *mut c_void {
    memalign(align, len)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, len: usize) -> libc::c_int {
    let made = memalign(align, len);
    if made.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: room for a pointer, says the caller.
    unsafe { place.write(made) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(place: *mut c_void) {
    enter();
    // SAFETY: as the caller says.
    unsafe { __libc_free(place) };
}
