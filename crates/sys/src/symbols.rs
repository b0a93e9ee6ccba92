//! Addresses by name, from the dynamic linker.

use std::ffi::CStr;
use std::ptr::NonNull;

/// Returns the address of `name` in the program or a library that it has loaded with global visibility (`dlsym(3)` with
/// `RTLD_DEFAULT`); resolves indirect functions. Uses no heap of its own.
///
/// `None` if there is no such symbol.
#[inline]
pub fn global_symbol(name: &CStr) -> Option<NonNull<u8>> {
    // SAFETY: the name is a C string that outlives the call; the result is an address, which is not used here.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_libc_are_found() {
        let found = global_symbol(c"getpid").unwrap();
        assert_eq!(found.as_ptr().addr(), libc::getpid as *const () as usize);
        assert!(global_symbol(c"memcpy").is_some(), "an indirect function");
        assert!(global_symbol(c"no such symbol").is_none());
    }
}
