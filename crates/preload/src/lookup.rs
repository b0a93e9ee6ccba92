//! Finds functions of other objects without the dynamic linker's functions, which take locks: another thread may hold
//! one in a constructor that waits for this very call, and a child made by a bare `clone` finds it taken for ever.
//!
//! The objects that a program is started with are in the dynamic linker's list (`link.h`, `struct r_debug`) in the
//! order in which symbols are searched for, before its first constructor runs. They are never unloaded, and what is
//! loaded later comes behind them, so that their part of the list is read while others change the rest. Tables are
//! those of `elf(5)` and of the GNU hash section, as glibc reads them (`do_lookup_x` in `elf/dl-lookup.c`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use object::elf;

use crate::arch::weak_address;

/// What the dynamic linker tells debuggers (`struct r_debug`).
#[repr(C)]
struct Told {
    version: c_int,
    first: *const Object,
}

/// A loaded object (`struct link_map`).
#[repr(C)]
pub(crate) struct Object {
    /// What is added to the addresses in its file.
    bias: usize,
    name: *const c_char,
    dynamic: *const Entry,
    next: *const Self,
    previous: *const Self,
}

/// An entry of a dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: usize,
    value: usize,
}

/// A symbol.
#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// The last object that is looked at; null before this object's start. `Relaxed`: an address of what
/// stays as it is.
static LAST: AtomicPtr<Object> = AtomicPtr::new(ptr::null_mut());

/// Returns the dynamic linker's list; null if it is not glibc's.
fn first() -> *const Object {
    let told: *const Told = ptr::with_exposed_provenance(weak_address!("_r_debug"));
    if told.is_null() {
        return ptr::null();
    }
    // SAFETY: a variable of the dynamic linker's, which has filled it in before it runs other code.
    unsafe { (*told).first }
}

/// Notes up to where the list is looked at: to the C library and the dynamic linker. A constructor that has run before
/// may have loaded others, which can be unloaded. Returns false if [`next`] finds nothing here.
pub(crate) fn prepare() -> bool {
    let ends = [weak_address!("gnu_get_libc_release"), weak_address!("_r_debug")].map(start_of_holder);
    let is_end = |object: &&Object| ends.contains(&Some(object.bias));
    let last = Objects(first()).filter(is_end).last();
    LAST.store(last.map_or(ptr::null_mut(), |object| ptr::from_ref(object).cast_mut()), Ordering::Relaxed);
    // Another namespace has a list of its own (`dlmopen`).
    last.is_some() && Objects(first()).any(|object| object.bias == own_bias())
}

/// Whether functions can be found. Async-signal-safe.
pub(crate) fn is_possible() -> bool {
    !first().is_null()
}

/// Iterates over the objects from this one on.
struct Objects(*const Object);

impl Iterator for Objects {
    type Item = &'static Object;

    fn next(&mut self) -> Option<&'static Object> {
        // SAFETY: null, or in the list; objects of the start stay in it.
        let object = unsafe { self.0.as_ref() }?;
        let is_last = ptr::eq(object, LAST.load(Ordering::Relaxed));
        self.0 = if is_last { ptr::null() } else { object.next };
        Some(object)
    }
}

/// Returns the first definition of a function behind this object, as `dlsym` with `RTLD_NEXT`. Async-signal-safe.
#[cold]
#[unsafe(link_section = "palimpsest_start")]
pub(crate) fn next(name: &CStr) -> Option<*mut c_void> {
    let own = own_bias();
    let mut objects = Objects(first());
    objects.find(|object| object.bias == own)?;
    find(objects, name)
}

/// Returns the first definition of a variable or a function at all. Async-signal-safe.
pub(crate) fn any(name: &CStr) -> Option<*mut c_void> {
    find(Objects(first()), name)
}

fn find(mut objects: impl Iterator<Item = &'static Object>, name: &CStr) -> Option<*mut c_void> {
    let name = name.to_bytes();
    let hash = hash(name);
    objects.find_map(|object| object.tables()?.find(object.bias, name, hash))
}

/// Returns where the object that holds an address may lie: from its first byte to the address. What begins last before
/// it. Async-signal-safe.
pub(crate) fn start_of_holder(address: usize) -> Option<usize> {
    Objects(first()).map(|object| object.bias).filter(|&bias| bias != 0 && bias <= address).max()
}

/// The hash of the GNU section.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

/// Reads the element of a table in a loaded object.
///
/// # Safety
///
/// 1. There is one.
unsafe fn element<T: Copy>(table: usize, number: usize) -> T {
    let place = ptr::with_exposed_provenance::<T>(table).wrapping_add(number);
    // SAFETY: (1).
    unsafe { place.read() }
}

/// Where an object has what it defines.
#[derive(Default)]
struct Tables {
    symbols: usize,
    strings: usize,
    /// Zero if it has none.
    versions: usize,
    /// Zero if it has none.
    hashes: usize,
    /// The hash section of System V; zero if it has none.
    old_hashes: usize,
}

impl Object {
    /// Returns its tables; `None` if it lacks one that is needed.
    fn tables(&self) -> Option<Tables> {
        // glibc has added the bias where it can write to the section.
        let place = |value: usize| if value < self.bias { value + self.bias } else { value };
        let mut tables = Tables::default();
        for number in 0.. {
            // SAFETY: 1. the section ends with an entry for it.
            let entry: Entry = unsafe { element(self.dynamic.expose_provenance(), number) };
            match elf::DynamicTag(i64::try_from(entry.tag).ok()?) {
                elf::DT_NULL => break,
                elf::DT_SYMTAB => tables.symbols = place(entry.value),
                elf::DT_STRTAB => tables.strings = place(entry.value),
                elf::DT_VERSYM => tables.versions = place(entry.value),
                elf::DT_GNU_HASH => tables.hashes = place(entry.value),
                elf::DT_HASH => tables.old_hashes = place(entry.value),
                _ => {}
            }
        }
        (tables.symbols != 0 && tables.strings != 0).then_some(tables)
    }
}

impl Tables {
    /// Returns the address of the definition that is used by who names no version.
    fn find(&self, bias: usize, name: &[u8], hash: u32) -> Option<*mut c_void> {
        if self.hashes == 0 {
            return self.search(bias, name);
        }
        // SAFETY: 1. the section begins with four numbers.
        let number = |number| unsafe { element::<u32>(self.hashes, number) };
        let (buckets, first, words, shift) = (number(0) as usize, number(1) as usize, number(2) as usize, number(3));
        if buckets == 0 || words == 0 {
            return None;
        }
        let filter = self.hashes + 16;
        // SAFETY: 1. a filter of so many words, which is a power of two, follows.
        let word: usize = unsafe { element(filter, (hash as usize / 64) & (words - 1)) };
        if word >> (hash % 64) & word >> ((hash >> shift) % 64) & 1 == 0 {
            return None;
        }
        let heads = filter + words * size_of::<usize>();
        // SAFETY: 1. so many heads of chains follow.
        let mut at = unsafe { element::<u32>(heads, hash as usize % buckets) } as usize;
        if at < first {
            return None;
        }
        let chains = heads + buckets * size_of::<u32>();
        loop {
            // SAFETY: 1. then a hash for each symbol from the first on; the last of a chain is odd.
            let told: u32 = unsafe { element(chains, at - first) };
            if told | 1 == hash | 1
                && let Some(found) = self.at(at, bias, name)
            {
                return Some(found);
            }
            if told & 1 != 0 {
                return None;
            }
            at += 1;
        }
    }

    /// Does the same in an object without the GNU section: looks at all symbols, of which that of System V has the
    /// number.
    #[cold]
    fn search(&self, bias: usize, name: &[u8]) -> Option<*mut c_void> {
        if self.old_hashes == 0 {
            return None;
        }
        // SAFETY: 1. the section begins with two numbers; the second is that of symbols.
        let count: u32 = unsafe { element(self.old_hashes, 1) };
        (1..count as usize).find_map(|number| self.at(number, bias, name))
    }

    /// Returns the address of a symbol, if it has this name and is defined for all.
    fn at(&self, number: usize, bias: usize, name: &[u8]) -> Option<*mut c_void> {
        // SAFETY: 1. the number is one of the hash section.
        let symbol: Symbol = unsafe { element(self.symbols, number) };
        let string = ptr::with_exposed_provenance(self.strings + symbol.name as usize);
        // SAFETY: the name of a symbol is a C string of its object.
        let is_named = unsafe { CStr::from_ptr(string) }.to_bytes() == name;
        // A hidden version is for who was linked with it.
        // SAFETY: 1. there is a version for each symbol.
        let is_hidden = self.versions != 0 && unsafe { element::<u16>(self.versions, number) } & 0x8000 != 0;
        let is_plain = matches!(elf::SymbolType(symbol.info & 15), elf::STT_FUNC | elf::STT_OBJECT | elf::STT_NOTYPE);
        (is_named && !is_hidden && is_plain && symbol.section != elf::SHN_UNDEF.0 && symbol.value != 0)
            .then(|| ptr::with_exposed_provenance_mut(bias + symbol.value))
    }
}

/// Returns what is added to the addresses in this object's file.
fn own_bias() -> usize {
    unsafe extern "C" {
        /// Linkers define it where the file's first byte is loaded.
        static __ehdr_start: u8;
    }
    (&raw const __ehdr_start).expose_provenance()
}

/// Returns the range that the object at `start` takes, whose header is there.
///
/// # Safety
///
/// 1. An object of the list, whose file is loaded from its first byte on, begins there.
pub(crate) unsafe fn range_of(start: usize) -> Range<usize> {
    /// `e_phoff` and `e_phnum` in a header, and the words of a program header.
    const TABLE: usize = 32;
    const COUNT: usize = 56;
    // SAFETY: 1. (1).
    let table = unsafe { element::<usize>(start + TABLE, 0) };
    // SAFETY: 1. (1).
    let count = unsafe { element::<u16>(start + COUNT, 0) };
    let ends = (0..usize::from(count)).filter_map(|number| {
        let header = start + table + number * 56;
        // SAFETY: 1. (1).
        let kind: u32 = unsafe { element(header, 0) };
        // SAFETY: 1. (1); `p_vaddr` is the third word, and `p_memsz` the sixth.
        let word = |number| unsafe { element::<usize>(header, number) };
        (kind == elf::PT_LOAD.0).then(|| start + word(2) + word(5))
    });
    start..ends.max().unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a bias that is added twice or not; an older version of a function (glibc has two of `posix_spawn`); a
    /// function of this object instead of the next one's.
    #[test]
    fn definitions_are_those_that_the_dynamic_linker_finds() {
        assert!(is_possible());
        let names = [c"fork", c"posix_spawn", c"mmap", c"poll", c"environ", c"__libc_single_threaded", c"_r_debug"];
        for name in names {
            // SAFETY: a C string.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert!(!expected.is_null());
            assert_eq!((any(name), next(name)), (Some(expected), Some(expected)), "{name:?}");
        }
        for missing in [c"", c"palimpsest_no_such_function", c"main"] {
            assert_eq!(next(missing), None, "{missing:?}");
        }
    }

    #[test]
    fn an_object_is_found_by_what_is_in_it() {
        let inside = (libc::poll as *const c_void).addr();
        let start = start_of_holder(inside).expect("the C library");
        // SAFETY: 1. the C library, which is loaded from its first byte on.
        let range = unsafe { range_of(start) };
        assert!(range.contains(&inside) && range.contains(&(libc::malloc as *const c_void).addr()));
        assert!(!range.contains(&own_bias()));
    }
}
