//! The calling thread's `errno`.

use std::ffi::{c_int, c_long};

use rustix::io::Errno;

/// Returns its value.
pub(crate) fn get() -> c_int {
    let place = place();
    // SAFETY: the place belongs to this thread and lives as long as it.
    unsafe { place.read() }
}

/// Sets it. Written only if it differs: after a fork each side copies the page for it.
pub(crate) fn set(value: c_int) {
    if get() == value {
        return;
    }
    let place = place();
    // SAFETY: the place belongs to this thread and lives as long as it.
    unsafe { place.write(value) };
}

/// Returns its value after a call that has failed. If that is none of the kernel's (`include/linux/err.h`: 1 to 4095),
/// as another object's function may leave it, the call counts as one with an invalid argument.
pub(crate) fn failure() -> Errno {
    let told = get();
    if (1..=4095).contains(&told) { Errno::from_raw_os_error(told) } else { Errno::INVAL }
}

/// Turns the kernel's answer into that of a C function: `-errno` becomes -1 and `errno`.
pub(crate) extern "C" fn answer(raw: isize) -> c_long {
    // `include/linux/err.h`: the last 4095 numbers are errors, whatever the call.
    if (-4095..0).contains(&raw) {
        // The range fits every integer type.
        set(-raw as c_int);
        return -1;
    }
    raw as c_long
}

/// The value to restore, and its place. The place is kept, since in a child of `fork` asking for it again would be the
/// only call into that part of the C library, and cost a page fault.
pub(crate) struct Kept {
    place: *mut c_int,
    value: c_int,
}

impl Kept {
    /// Notes the present value.
    pub(crate) fn now() -> Self {
        Self { place: place(), value: get() }
    }

    /// Restores the value, in the same thread or in its copy in a child. Writes only if it differs.
    #[inline]
    pub(crate) fn set_again(&self) {
        // SAFETY: the place belongs to this thread, which is still running, or to the only thread of a child.
        let now = unsafe { self.place.read() };
        if now != self.value {
            // SAFETY: as above.
            unsafe { self.place.write(self.value) };
        }
    }
}

fn place() -> *mut c_int {
    // SAFETY: takes nothing and returns an address; glibc keeps it at a fixed distance from the thread pointer.
    unsafe { libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a panic, which would end the program, for what the next definition of a function leaves.
    #[test]
    fn failures_without_a_number_of_the_kernels_are_invalid_arguments() {
        for told in [0, -1, 4096, 70_000, c_int::MAX, c_int::MIN] {
            set(told);
            assert_eq!(failure(), Errno::INVAL, "{told}");
        }
        for told in [libc::EPERM, libc::ENOMEM, 4095] {
            set(told);
            assert_eq!(failure().raw_os_error(), told);
        }
    }

    #[test]
    fn a_kept_value_comes_back() {
        set(5);
        let kept = Kept::now();
        set(7);
        kept.set_again();
        assert_eq!(get(), 5);
        kept.set_again();
        assert_eq!(get(), 5);
    }
}
