//! Addresses of host functions and data by name.

mod builtin;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;

use palimpsest_sys::global_symbol;

/// A caller's function that finds an address by name.
pub(crate) type Lookup = Box<dyn Fn(&str) -> Option<*const u8> + Send>;

/// The host's symbols, searched in this order: named ones, the caller's lookups (last added first), this crate's own
/// versions of Cranelift's library calls, and what the dynamic linker knows.
#[derive(Default)]
pub(crate) struct Symbols {
    named: HashMap<String, usize>,
    lookups: Vec<Lookup>,
    /// Answers of all sources except `named`: lookups may be slow, and a symbol should not move while code refers to
    /// it.
    found: RefCell<HashMap<String, usize>>,
}

impl Symbols {
    /// Gives `name` an address, which wins over every other source.
    pub(crate) fn name(&mut self, name: String, address: *const u8) {
        self.named.insert(name, address.expose_provenance());
    }

    /// Adds a lookup that is asked before those added earlier.
    pub(crate) fn lookup(&mut self, lookup: Lookup) {
        self.lookups.push(lookup);
    }

    /// Returns the address of `name`, or `None` if no source knows it.
    pub(crate) fn address(&self, name: &str) -> Option<usize> {
        if let Some(address) = self.named.get(name) {
            return Some(*address);
        }
        if let Some(address) = self.found.borrow().get(name) {
            return Some(*address);
        }
        let address = self
            .lookups
            .iter()
            .rev()
            .find_map(|lookup| lookup(name))
            .map(<*const u8>::expose_provenance)
            .or_else(|| builtin::address(name))
            .or_else(|| Some(global_symbol(&CString::new(name).ok()?)?.as_ptr().expose_provenance()))?;
        self.found.borrow_mut().insert(name.to_owned(), address);
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_asked_in_order() {
        let mut symbols = Symbols::default();
        let place = |n: usize| std::ptr::without_provenance::<u8>(n);
        symbols.lookup(Box::new(move |name| (name == "a" || name == "b").then(|| place(1))));
        symbols.lookup(Box::new(move |name| (name == "b" || name == "c").then(|| place(2))));
        symbols.name("c".to_owned(), place(3));
        assert_eq!(symbols.address("a"), Some(1));
        assert_eq!(symbols.address("b"), Some(2));
        assert_eq!(symbols.address("c"), Some(3));
        assert_eq!(symbols.address("no such symbol"), None);
    }

    #[test]
    fn the_process_is_the_last_resort() {
        let symbols = Symbols::default();
        assert_eq!(symbols.address("memcpy"), Some(libc::memcpy as *const () as usize));
        assert!(symbols.address("getpid").is_some());
        assert!(symbols.address("ceil").is_some());
    }
}
