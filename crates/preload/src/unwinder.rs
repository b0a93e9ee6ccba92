//! The unwinder, `libgcc_s`: loaded when this object panics, and not with every program.
//!
//! The standard library calls the functions below by name. Linked against `libgcc_s`, each program that is executed
//! would load it: five mappings, which each fork copies, and seven page faults, for a panic that nobody has seen yet.
//! Linked statically, there would be two unwinders in the process: that of `pthread_cancel`, which the C library loads
//! in the same way, would hand its own state of a thread, whose form is nobody's interface, to the other's functions.
//! So these are defined here, for this object only (`wrapped`): as jumps to those of the one library.
//!
//! Loading it takes the program's allocator and the dynamic linker's lock: a panic inside the program's own `malloc`,
//! or in a handler that has interrupted it, may hang instead of being told. So it is loaded (`prepare`) before a fork
//! of a process whose other threads may be held, and elsewhere only by a panic, which is an error of ours. Not at the
//! start: most programs that are executed never freeze.
//!
//! Without the library a panic ends the process, after a line that says so.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use palimpsest_fork::on_own_stack;

use crate::arch::prepare_thread_locals;
#[cfg(not(test))]
use crate::arch::trampoline;
use crate::started;

/// The name under which GCC and its runtime libraries know it on all supported machines.
const LIBRARY: &CStr = c"libgcc_s.so.1";

/// Defines the functions.
macro_rules! functions {
    ($count:literal: $($number:literal $own:ident $name:literal)+) => {
        const NAMES: [&CStr; $count] = [$($name),+];

        $(
            #[cfg(not(test))]
            #[doc = concat!("Goes on in ", stringify!($name), ", with that function's parameters.")]
            #[unsafe(naked)]
            pub(crate) extern "C" fn $own() {
                trampoline!($number, find)
            }
        )+
    };
}

functions! {
    12:
    0 backtrace c"_Unwind_Backtrace"
    1 delete_exception c"_Unwind_DeleteException"
    2 get_data_rel_base c"_Unwind_GetDataRelBase"
    3 get_ip c"_Unwind_GetIP"
    4 get_ip_info c"_Unwind_GetIPInfo"
    5 get_language_specific_data c"_Unwind_GetLanguageSpecificData"
    6 get_region_start c"_Unwind_GetRegionStart"
    7 get_text_rel_base c"_Unwind_GetTextRelBase"
    8 raise_exception c"_Unwind_RaiseException"
    9 resume c"_Unwind_Resume"
    10 set_gr c"_Unwind_SetGR"
    11 set_ip c"_Unwind_SetIP"
}

/// Their addresses; null before they are needed. `Relaxed`: of code that stays loaded, and publishes nothing else.
static FOUND: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()];

/// Whether the library was loaded, or is not there. `Relaxed`: doing it twice does no harm.
static IS_PREPARED: AtomicBool = AtomicBool::new(false);

/// Loads the library now, for a process with other threads that a freeze holds, of which one may be inside the dynamic
/// linker or `malloc`. Called at forks only: in a process with threads the C library's `fork` takes the locks of
/// `malloc`, too, so that a handler which may have interrupted that must not fork.
pub(crate) fn prepare() {
    if IS_PREPARED.load(Ordering::Relaxed) || !has_threads() {
        return;
    }
    // The dynamic linker needs more than a stack for signals may have.
    let loaded = on_own_stack(|| {
        prepare_thread_locals();
        for number in 0..NAMES.len() {
            // Without the library a panic says so.
            let _ = look_up(number);
        }
    });
    IS_PREPARED.store(loaded.is_ok(), Ordering::Relaxed);
}

/// Whether this process has other threads. The folder has a link for itself, one for its parent, and one for each
/// thread (`proc_task_getattr` in `fs/proc/base.c`).
fn has_threads() -> bool {
    rustix::fs::stat("/proc/self/task").is_ok_and(|folder| folder.st_nlink > 3)
}

/// Returns the address of the function with this number. For the trampolines.
extern "C" fn find(number: usize) -> *const c_void {
    let known = FOUND.get(number).map_or(ptr::null_mut(), |found| found.load(Ordering::Relaxed));
    if known.is_null() { look_up(number).unwrap_or_else(|| end()) } else { known }
}

#[cold]
fn look_up(number: usize) -> Option<*const c_void> {
    // SAFETY: a C string; the library's start-up code is that which every C++ program runs. It is never unloaded.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    // SAFETY: an open library, and a C string; the result is an address that is not used here.
    let address = unsafe { libc::dlsym(library, NAMES.get(number)?.as_ptr()) };
    if address.is_null() {
        return None;
    }
    FOUND.get(number)?.store(address, Ordering::Relaxed);
    Some(address)
}

/// Ends the process: nothing can go on from a panic that cannot be unwound.
#[cold]
fn end() -> ! {
    const LINE: &[u8] = b"palimpsest: an error in Palimpsest itself, and no libgcc_s.so.1 to go on from it; please \
        report it, and run the program without Palimpsest meanwhile\n";
    // Without standard error, nothing can be reported.
    let _ = started::get().and_then(|started| started.standard_error).map(|descriptor| descriptor.write(LINE));
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a process with threads that is taken for one without.
    #[test]
    fn other_threads_are_seen() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(has_threads());
        drop(end);
        let _ = thread.join();
    }

    /// Fails on: a name that the library does not have, and names in another order than their numbers.
    #[test]
    fn every_function_is_that_of_the_one_library() {
        let own = |number: usize| {
            // SAFETY: looks a name up. This test is linked with the library.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAMES[number].as_ptr()) }
        };
        for (number, name) in NAMES.into_iter().enumerate() {
            assert!(!own(number).is_null(), "{name:?}");
            assert_eq!(find(number), own(number).cast_const(), "{name:?}");
            assert_eq!(find(number), own(number).cast_const(), "{name:?}, found before");
        }
    }
}
