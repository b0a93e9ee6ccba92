//! A program with large thread-local variables, behind which the C library's own lie. A test of its own, since every
//! thread has them.

mod common;

use common::{freeze, play, skip};
use palimpsest_fork::Options;
use palimpsest_sys::memory::extent::EXTENT_NAME;
use palimpsest_sys::pages::maps::Maps;

const MIB: usize = 1 << 20;

fn is_frozen(address: usize) -> bool {
    let maps = Maps::read().expect("/proc");
    maps.at(address).expect("mapped").path.as_ref().is_some_and(|path| path.as_os_str() == EXTENT_NAME)
}

/// Freezes far from the end of the stack, which on a thread lies beside its variables.
#[inline(never)]
fn freeze_deep_below() {
    let array = [7_u8; 512 << 10];
    std::hint::black_box(&array);
    freeze(&Options::new());
    assert!(std::hint::black_box(&array).iter().all(|byte| *byte == 7));
}

#[test]
fn what_lies_far_from_the_thread_pointer_is_never_frozen() {
    thread_local! {
        /// Between the thread pointer and the C library's variables.
        static LARGE: std::cell::UnsafeCell<[u8; 1 << 20]> = const { std::cell::UnsafeCell::new([0; 1 << 20]) };
    }
    play("what_lies_far_from_the_thread_pointer_is_never_frozen", || {
        // SAFETY: the C library gives a valid pointer to the thread's own variable.
        let errno = unsafe { libc::__errno_location() }.addr();
        // SAFETY: only tells the calling thread's identity.
        let pointer = unsafe { libc::pthread_self() } as usize;
        let large = LARGE.with(|large| {
            // SAFETY: this thread's own, to which there is no reference.
            unsafe { large.get().cast::<u8>().write_bytes(7, 1 << 20) };
            large.get().addr()
        });
        freeze_deep_below();
        assert!(is_frozen(large + MIB / 2), "thread-local variables are in a mapping that is frozen");
        assert!(pointer.abs_diff(large + MIB / 2) > MIB / 4);
        assert!(!is_frozen(errno), "errno, {:#x} bytes from the thread pointer", pointer.abs_diff(errno));
        // SAFETY: the C library's symbols, if it has them.
        let symbol = |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let offset = symbol(c"__rseq_offset");
        if !offset.is_null() {
            // SAFETY: glibc exports it as a `const ptrdiff_t`.
            assert!(!is_frozen(pointer.wrapping_add_signed(unsafe { offset.cast::<isize>().read() })));
        }
        if pointer.abs_diff(errno) < 64 << 10 {
            skip("this machine has the C library's variables beside the thread pointer");
        }
    });
}
