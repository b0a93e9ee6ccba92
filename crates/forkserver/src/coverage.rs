//! The coverage map: one counter byte per edge, in memory that the fuzzer reads.
//!
//! A process has one map, so this is global; before a [`Server`](crate::Server) or [`Host`](crate::host::Host) has set
//! it, counts are lost. There are three ways to count: [`edge!`](crate::edge) placed by hand, [`hit`] with any number,
//! and C or C++ code that clang compiled with `-fsanitize-coverage=trace-pc-guard`, for which
//! [`export_guards!`](crate::export_guards) defines the two functions that such code calls.
//!
//! A counter never overflows to zero: a fuzzer would think that the edge was not reached.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use palimpsest_sys::memory::sysv::SharedBytes;

/// First byte of the map; null while there is none.
static START: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Length of the map in bytes. Written before `START`.
static LEN: AtomicUsize = AtomicUsize::new(0);
/// Guards numbered so far. Number 0 means that a guard is not counted.
static GUARDS: AtomicU32 = AtomicU32::new(0);

/// Makes `map` this process's map until its end.
pub(crate) fn set_map(map: SharedBytes) {
    LEN.store(map.len, Ordering::Relaxed);
    // Release, partner: the Acquire load in `counter`. Forbids seeing the address without the length.
    START.store(map.start.as_ptr(), Ordering::Release);
}

/// Returns the length of the map in bytes; 0 while there is none.
pub fn map_len() -> usize {
    LEN.load(Ordering::Relaxed)
}

/// Returns the counter of edge `id`, taken modulo the length of the map.
fn counter(id: usize) -> Option<&'static AtomicU8> {
    // Acquire, partner: the Release store in `set_map`.
    let start = START.load(Ordering::Acquire);
    if start.is_null() {
        return None;
    }
    let len = LEN.load(Ordering::Relaxed);
    let id = if id < len { id } else { id.checked_rem(len)? };
    // SAFETY: `id` is below the length of the map, which is attached until the process ends.
    let byte = unsafe { start.add(id) };
    // SAFETY: the byte is mapped writable until the process ends, and this process accesses it only by atomic
    // operations.
    Some(unsafe { AtomicU8::from_ptr(byte) })
}

/// Counts one passage of edge `id`. Edges beyond the map share its counters.
///
/// Safe in signal handlers. Two threads that pass at the same time may count as one, which affects only the count.
#[inline]
pub fn hit(id: usize) {
    if let Some(counter) = counter(id) {
        let (sum, carry) = counter.load(Ordering::Relaxed).overflowing_add(1);
        counter.store(sum + u8::from(carry), Ordering::Relaxed);
    }
}

/// Returns the number that [`edge!`](crate::edge) gives to a place in the source: the same in each build, in 16 bits.
#[must_use]
pub const fn place(file: &str, line: u32, column: u32) -> usize {
    // FNV-1a, folded: any hash that a compiler can compute will do.
    const PRIME: u32 = 0x0100_0193;
    let mut hash: u32 = 0x811c_9dc5;
    let mut at = 0;
    while at < file.len() {
        hash = (hash ^ file.as_bytes()[at] as u32).wrapping_mul(PRIME);
        at += 1;
    }
    hash = (hash ^ line).wrapping_mul(PRIME);
    hash = (hash ^ column).wrapping_mul(PRIME);
    ((hash >> 16) ^ hash) as usize & 0xffff
}

/// Counts one passage of this place in the source.
#[macro_export]
macro_rules! edge {
    () => {{
        const PLACE: usize = $crate::coverage::place(file!(), line!(), column!());
        $crate::coverage::hit(PLACE)
    }};
}

/// Defines the functions that code compiled by clang with `-fsanitize-coverage=trace-pc-guard` calls, so that it counts
/// in our map.
///
/// Use it once per program, and not together with another runtime that defines them: AFL++'s, libFuzzer's, or that of
/// `-fsanitize=address`.
#[macro_export]
macro_rules! export_guards {
    () => {
        const _: () = {
            // SAFETY: the name is the one that clang's documentation gives, and the macro is used once per program.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn __sanitizer_cov_trace_pc_guard_init(start: *mut u32, stop: *mut u32) {
                // SAFETY: (1) the compiled code hands over its array of guards.
                unsafe { $crate::coverage::number_guards(start, stop) }
            }

            // SAFETY: as above.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn __sanitizer_cov_trace_pc_guard(guard: *mut u32) {
                // SAFETY: (1) the compiled code hands over one of its guards.
                unsafe { $crate::coverage::hit_guard(guard) }
            }
        };
    };
}

/// Numbers the guards of one object, from 1 on over all objects.
///
/// # Safety
///
/// 1. `start..stop` is an array of guards that nobody else accesses meanwhile.
pub unsafe fn number_guards(start: *mut u32, stop: *mut u32) {
    let count = (stop.addr().saturating_sub(start.addr())) / size_of::<u32>();
    for index in 0..count {
        // SAFETY: (1) the guard lies in the array.
        let guard = unsafe { start.add(index) };
        // SAFETY: (1) it is ours.
        let numbered = unsafe { guard.read() } != 0;
        // Each compilation unit may announce the object again.
        if !numbered {
            let number = GUARDS.fetch_add(1, Ordering::Relaxed) + 1;
            // SAFETY: (1) it is ours.
            unsafe { guard.write(number) };
        }
    }
}

/// Counts one passage of a guard's edge.
///
/// # Safety
///
/// 1. `guard` belongs to an array that was passed to [`number_guards`].
#[inline]
pub unsafe fn hit_guard(guard: *mut u32) {
    // SAFETY: (1) guards are not written after they were numbered.
    let number = unsafe { guard.read() };
    if number != 0 {
        hit(number as usize);
    }
}

/// Returns the numbers of guards: the edges of the program that are counted automatically.
pub fn guards() -> Range<usize> {
    1..GUARDS.load(Ordering::Relaxed) as usize + 1
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    /// The map is one per process: a single test uses it.
    #[test]
    fn counters_count_wrap_past_zero_and_are_shared_beyond_the_map() {
        hit(1);
        let map: &'static mut [u8] = Box::leak(Box::new([0u8; 64]));
        let (start, len) = (NonNull::from(&mut *map).cast(), map.len());
        set_map(SharedBytes { start, len });
        let read = |id: usize| counter(id).unwrap().load(Ordering::Relaxed);
        assert_eq!(read(1), 0, "nothing is counted before there is a map");
        for _ in 0..255 {
            hit(5);
        }
        assert_eq!(read(5), 255);
        hit(5);
        assert_eq!(read(5), 1, "never zero again");
        hit(64 + 7);
        assert_eq!(read(7), 1);
        let mut array = [0u32; 3];
        let Range { start: first, end: last } = array.as_mut_ptr_range();
        // SAFETY: (1) the array is ours.
        unsafe { number_guards(first, last) };
        // SAFETY: (1) the same again.
        unsafe { number_guards(first, last) };
        assert_eq!(array, [1, 2, 3]);
        assert_eq!(guards(), 1..4);
        // SAFETY: (1) a numbered guard.
        unsafe { hit_guard(&raw mut array[2]) };
        assert_eq!(read(3), 1);
        crate::edge!();
    }

    #[test]
    fn places_differ_and_are_stable() {
        assert_eq!(place("a.rs", 1, 2), place("a.rs", 1, 2));
        assert_ne!(place("a.rs", 1, 2), place("a.rs", 2, 1));
        assert_ne!(place("a.rs", 1, 2), place("b.rs", 1, 2));
        assert!(place("crates/some/long/path.rs", 10_000, 80) < 1 << 16);
    }
}
