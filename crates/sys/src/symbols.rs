//! Addresses by name, from the dynamic linker.

use std::ffi::CString;
use std::ptr::NonNull;

/// Returns the address of `name` in the program or a library that it has loaded with global visibility (`dlsym(3)` with
/// `RTLD_DEFAULT`); resolves indirect functions.
///
/// `None` if there is no such symbol, or if `name` contains a zero byte.
pub fn global_symbol(name: &str) -> Option<NonNull<u8>> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a C string that outlives the call; the result is an address, which is not used here.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_libc_are_found() {
        let found = global_symbol("getpid").unwrap();
        assert_eq!(found.as_ptr().addr(), libc::getpid as *const () as usize);
        assert!(global_symbol("memcpy").is_some(), "an indirect function");
        assert!(global_symbol("no such symbol").is_none());
        assert!(global_symbol("get\0pid").is_none());
    }
}
