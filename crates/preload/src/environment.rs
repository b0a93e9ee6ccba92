//! The environment: reads it without the heap before `main`, and removes this object from `LD_PRELOAD`, so that
//! programs which this one executes run without it; and what programs are executed with.

use std::ffi::{CStr, c_char};
use std::ptr;

use palimpsest_sys::memory::readable::Readable;

/// The file name under which this object is installed.
pub(crate) const OBJECT: &[u8] = b"libpalimpsest_preload.so";

/// The variable with the objects to load first.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

const VARIABLE: &[u8] = b"LD_PRELOAD=";

/// The strings of an environment.
pub(crate) struct Strings {
    /// # Invariants
    ///
    /// Null, or in a null-terminated array of C strings that nobody changes meanwhile.
    place: *mut *mut c_char,
}

impl Strings {
    /// # Safety
    ///
    /// 1. `environment` must be null or a null-terminated array of C strings, which nobody may change while this is
    ///    used.
    pub(crate) unsafe fn of(environment: *mut *mut c_char) -> Self {
        Self { place: environment }
    }
}

impl Iterator for Strings {
    type Item = *const c_char;

    #[inline]
    fn next(&mut self) -> Option<*const c_char> {
        if self.place.is_null() {
            return None;
        }
        // SAFETY: in the array, by the invariant.
        let string = unsafe { self.place.read() };
        if string.is_null() {
            return None;
        }
        // SAFETY: the array goes on up to a null, which this was not.
        self.place = unsafe { self.place.add(1) };
        Some(string)
    }
}

/// What the names of all variables that a start asks for begin with.
const BEGINNINGS: [&[u8]; 3] = [b"PALIMPSEST_", b"LD_PRELOAD", b"__AFL_"];

/// How many variables are [`Noted`]; `palimpsest run` sets fewer.
const MOST: usize = 32;

/// The variables that a start may ask for, found in one walk: it asks for twenty, among dozens of others. Nothing is
/// copied: `std::env` would copy to a heap that programs without a fork never need.
pub(crate) struct Noted {
    /// # Invariants
    ///
    /// The first `count` are of the environment, in its order.
    strings: [*const c_char; MOST],
    /// More than [`MOST`] if there are more.
    count: usize,
    /// Where to look if there are more.
    environment: *mut *mut c_char,
}

impl Noted {
    /// Walks through the environment.
    ///
    /// # Safety
    ///
    /// 1. Nobody may change the environment meanwhile.
    #[inline]
    pub(crate) unsafe fn now() -> Self {
        // SAFETY: 1. the C library's array; contract 1.
        unsafe { Self::of(present()) }
    }

    /// Walks through an environment.
    ///
    /// # Safety
    ///
    /// 1. It must be null or a null-terminated array of C strings, and nobody may change it meanwhile.
    #[unsafe(link_section = "palimpsest_start")]
    unsafe fn of(environment: *mut *mut c_char) -> Self {
        let mut noted = Self { strings: [ptr::null(); MOST], count: 0, environment };
        // SAFETY: 1. is this function's.
        for string in unsafe { Strings::of(environment) } {
            // SAFETY: 1. a string of the environment; contract 1.
            if BEGINNINGS.iter().any(|beginning| unsafe { behind(beginning, string) }.is_some()) {
                if let Some(place) = noted.strings.get_mut(noted.count) {
                    *place = string;
                }
                noted.count += 1;
            }
        }
        noted
    }

    /// Returns the value of a variable whose name has one of the [`BEGINNINGS`]: the first one of this name.
    ///
    /// # Safety
    ///
    /// 1. Nobody may have changed a string with this name since the walk, or change the environment while the value is
    ///    used.
    // Once for all callers, and beside them.
    #[inline(never)]
    #[unsafe(link_section = "palimpsest_start")]
    pub(crate) unsafe fn value<'a>(&self, name: &str) -> Option<&'a [u8]> {
        debug_assert!(BEGINNINGS.iter().any(|&beginning| name.as_bytes().starts_with(beginning)), "{name}");
        // SAFETY: 1. a string of the environment; contract 1.
        let value = |string| unsafe { value_of(name.as_bytes(), string) };
        match self.strings.get(..self.count) {
            Some(strings) => strings.iter().copied().find_map(value),
            // SAFETY: 1. the array that was walked through; contract 1.
            None => unsafe { Strings::of(self.environment) }.find_map(value),
        }
    }
}

/// Returns the value in a string `NAME=value`, if that is its name.
///
/// # Safety
///
/// 1. `string` must be a C string that nobody changes while the value is used.
#[inline]
unsafe fn value_of<'a>(name: &[u8], string: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: 1. is this function's.
    let behind_name = unsafe { behind(name, string) }?;
    // SAFETY: 1. the rest of the same string.
    let value = unsafe { behind(b"=", behind_name) }?;
    // SAFETY: contract 1; within the string.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// Returns what follows `beginning` in a string, if it begins so.
///
/// # Safety
///
/// 1. `string` must be a C string that nobody changes meanwhile.
#[inline]
unsafe fn behind(beginning: &[u8], string: *const c_char) -> Option<*const c_char> {
    let mut at = string;
    // Byte by byte: most strings differ in the first.
    for &wanted in beginning {
        // SAFETY: contract 1; no byte before this one was the null, which is in no beginning.
        if unsafe { at.cast::<u8>().read() } != wanted {
            return None;
        }
        // SAFETY: the byte was not the null, so that another follows.
        at = unsafe { at.add(1) };
    }
    Some(at)
}

/// Returns the value of a variable of this program's.
///
/// # Safety
///
/// 1. Nobody may change the environment while the value is used.
pub(crate) unsafe fn own<'a>(name: &[u8]) -> Option<&'a [u8]> {
    // SAFETY: 1. the C library's array; contract 1.
    let mut strings = unsafe { Strings::of(present()) };
    // SAFETY: 1. a string of the environment; contract 1.
    strings.find_map(|string| unsafe { value_of(name, string) })
}

/// Whether this is an array of fewer than `most` strings, all of which can be read: if not, the kernel says what is
/// wrong. Async-signal-safe.
///
/// # Safety
///
/// 1. As far as it can be read, nobody may change it meanwhile.
pub(crate) unsafe fn is_readable(environment: *mut *mut c_char, most: usize) -> bool {
    /// As much as the kernel takes (`MAX_ARG_STRLEN` in `include/uapi/linux/binfmts.h`), of the smallest pages.
    const LONGEST: usize = 32 * 4096;
    let mut readable = Readable::default();
    let mut place = environment;
    for _ in 0..most {
        // A place of its alignment is in one page.
        if !place.is_aligned() || !readable.has(place.addr()) {
            return false;
        }
        // SAFETY: aligned, and can be read; nobody changes it (1).
        let string = unsafe { place.read() };
        if string.is_null() {
            return true;
        }
        // SAFETY: 1. is (1).
        if !unsafe { readable.has_string(string, LONGEST) } {
            return false;
        }
        // Nothing may be there.
        place = place.wrapping_add(1);
    }
    false
}

/// Whether one of these strings loads this object, and nothing else is loaded; and a program that never forks would be
/// served by nothing that they say.
///
/// # Safety
///
/// 1. `environment` must be null or a null-terminated array of C strings, and nobody may change it meanwhile.
pub(crate) unsafe fn loads_only_this(environment: *mut *mut c_char) -> bool {
    /// Its text in copies, all large mappings in huge pages, and a signal, which would end a program that does not
    /// expect it.
    const SERVED: [&[u8]; 3] = [b"PALIMPSEST_TEXT=", b"PALIMPSEST_HUGE=gather", b"PALIMPSEST_FREEZE=signal"];
    let mut is_loaded = false;
    // SAFETY: 1. is this function's.
    for string in unsafe { Strings::of(environment) } {
        // SAFETY: 1. a string of the environment; contract 1.
        let is_served = SERVED.iter().any(|beginning| unsafe { behind(beginning, string) }.is_some());
        if is_served {
            return false;
        }
        // SAFETY: 1. as before.
        if let Some(value) = unsafe { value_of(PRELOAD.as_bytes(), string) } {
            if is_loaded || !entries(value).all(is_object) {
                return false;
            }
            is_loaded = entries(value).next().is_some();
        }
    }
    is_loaded
}

/// Whether a string says what to load first.
///
/// # Safety
///
/// 1. `string` must be a C string that nobody changes meanwhile.
pub(crate) unsafe fn is_preload(string: *const c_char) -> bool {
    // SAFETY: 1. is this function's.
    unsafe { behind(VARIABLE, string) }.is_some()
}

/// Whether an entry of `LD_PRELOAD` is this object.
fn is_object(entry: &[u8]) -> bool {
    entry.rsplit(|&byte| byte == b'/').next() == Some(OBJECT)
}

/// Removes every entry for this object from the variable, as [`leave`] does.
///
/// # Safety
///
/// 1. `environment` must be null or a null-terminated array of C strings, all writable.
/// 2. No other thread may use the environment.
pub(crate) unsafe fn leave_preload(environment: *mut *mut c_char) {
    // SAFETY: contracts 1 and 2 are the caller's.
    unsafe { leave(environment, &is_object) }
}

/// Removes every entry for which `is_gone` returns true from the variable, and the variable if nothing else is in it.
///
/// Strings are changed in place, because the C library's functions would allocate before the program's `main`.
///
/// # Safety
///
/// 1. `environment` must be null or a null-terminated array of C strings, all writable.
/// 2. No other thread may use the environment.
pub(crate) unsafe fn leave(environment: *mut *mut c_char, is_gone: &dyn Fn(&[u8]) -> bool) {
    // SAFETY: contracts 1 and 2 are the caller's.
    unsafe { leave_array(environment, is_gone) };
    let present = present();
    if present != environment {
        // SAFETY: 1. the C library's own array; its strings that name this object came from the kernel or are copies
        // made by `setenv`; 2. is the caller's.
        unsafe { leave_array(present, is_gone) };
    }
}

/// Returns the environment of executed programs: it differs from the array that constructors are given once a
/// constructor before ours has called `setenv`.
pub(crate) fn present() -> *mut *mut c_char {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: a variable of the C library's; `leave` is called where no other thread uses the environment.
    unsafe { environ }
}

/// Does the work of [`leave`] for one array.
///
/// # Safety
///
/// 1. and 2. As for [`leave`].
unsafe fn leave_array(environment: *mut *mut c_char, is_gone: &dyn Fn(&[u8]) -> bool) {
    if environment.is_null() {
        return;
    }
    let mut place = environment;
    loop {
        // SAFETY: contract 1; the walk stops at the null.
        let string = unsafe { place.read() };
        if string.is_null() {
            return;
        }
        // SAFETY: contract 1.
        let text = unsafe { CStr::from_ptr(string) }.to_bytes();
        if let Some(value) = text.strip_prefix(VARIABLE) {
            let rest = without(value, is_gone);
            if rest.is_empty() {
                // SAFETY: contracts 1 and 2; what follows, up to the null, moves forward by one.
                unsafe { remove(place) };
                continue;
            }
            if rest.len() < value.len() {
                // SAFETY: the value starts within the string.
                let target = unsafe { string.add(VARIABLE.len()) };
                // SAFETY: contracts 1 and 2; the rest and its end are shorter than what was there.
                unsafe { target.cast::<u8>().copy_from_nonoverlapping(rest.as_ptr(), rest.len()) };
                // SAFETY: as before.
                let end = unsafe { target.add(rest.len()) };
                // SAFETY: as before.
                unsafe { end.write(0) };
            }
        }
        // SAFETY: the array goes on up to a null, which this was not.
        place = unsafe { place.add(1) };
    }
}

/// Returns `value` without the entries that are gone. Colons or blanks separate entries (`ld.so(8)`).
fn without(value: &[u8], is_gone: &dyn Fn(&[u8]) -> bool) -> Vec<u8> {
    entries(value).filter(|entry| !is_gone(entry)).collect::<Vec<_>>().join(&b':')
}

/// Iterates over the entries of `LD_PRELOAD`.
pub(crate) fn entries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| b": ".contains(byte)).filter(|entry| !entry.is_empty())
}

/// Moves the entries after `place` forward by one.
///
/// # Safety
///
/// 1. `place` must be in a null-terminated array, and not at its null.
unsafe fn remove(mut place: *mut *mut c_char) {
    loop {
        // SAFETY: contract 1; the entry after one that is not null exists.
        let after = unsafe { place.add(1) };
        // SAFETY: as before.
        let next = unsafe { after.read() };
        // SAFETY: as before.
        unsafe { place.write(next) };
        if next.is_null() {
            return;
        }
        place = after;
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    fn left(variables: &[&str]) -> Vec<String> {
        let mut array: Vec<*mut c_char> =
            variables.iter().map(|text| CString::new(*text).expect("no zero byte").into_raw()).collect();
        array.push(ptr::null_mut());
        // SAFETY: the array ends with a null, its strings are writable, and no other thread knows of it.
        unsafe { leave_preload(array.as_mut_ptr()) };
        let rest = array.iter().take_while(|string| !string.is_null());
        // SAFETY: each is a C string still.
        rest.map(|string| unsafe { CStr::from_ptr(*string) }.to_str().expect("text").to_owned()).collect()
    }

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        let value = |string: &CStr| {
            // SAFETY: 1. a C string that nobody changes.
            unsafe { value_of(b"PALIMPSEST_HUGE", string.as_ptr()) }.map(<[u8]>::to_vec)
        };
        assert_eq!(value(c"PALIMPSEST_HUGE=a=b"), Some(b"a=b".to_vec()));
        assert_eq!(value(c"PALIMPSEST_HUGE="), Some(Vec::new()));
        for other in [c"", c"PALIMPSEST_HUGE", c"PALIMPSEST_HUG=1", c"PALIMPSEST_HUGER=1", c"XPALIMPSEST_HUGE=1"] {
            assert_eq!(value(other), None, "{other:?}");
        }
    }

    /// Fails on: a variable that is not noted, or comes after another of its name; more than are noted, among which one
    /// is not found.
    #[test]
    fn what_a_start_may_ask_for_is_noted_in_one_walk() {
        let noted = |strings: &[&CStr]| {
            let mut array: Vec<*mut c_char> = strings.iter().map(|string| string.as_ptr().cast_mut()).collect();
            array.push(ptr::null_mut());
            // SAFETY: 1. the array ends with a null, and nobody changes it: it stays for ever.
            unsafe { Noted::of(array.leak().as_mut_ptr()) }
        };
        let few =
            noted(&[c"HOME=/", c"PALIMPSEST_HUGE=a", c"P", c"__AFL_SHM_ID=7", c"PALIMPSEST_HUGE=b", c"LD_PRELOAD="]);
        assert_eq!(few.count, 4);
        for (name, value) in [("PALIMPSEST_HUGE", "a"), ("__AFL_SHM_ID", "7"), ("LD_PRELOAD", "")] {
            // SAFETY: 1. constants.
            assert_eq!(unsafe { few.value(name) }, Some(value.as_bytes()));
        }
        // SAFETY: 1. as before.
        assert_eq!(unsafe { few.value("PALIMPSEST_HUG") }, None);
        // As many as are noted, and more: then the environment itself is asked.
        for count in [MOST, MOST + 1] {
            let mut strings = vec![c"PALIMPSEST_OTHER="; count];
            strings[count - 1] = c"PALIMPSEST_LAST=c";
            let many = noted(&strings);
            // SAFETY: 1. constants.
            let value = |name| unsafe { many.value(name) };
            assert_eq!([value("PALIMPSEST_LAST"), value("PALIMPSEST_NONE")], [Some(&b"c"[..]), None], "{count}");
        }
        // SAFETY: 1. null is allowed.
        assert_eq!(unsafe { Noted::of(ptr::null_mut()) }.count, 0);
    }

    #[test]
    fn the_entry_goes_and_others_stay() {
        assert_eq!(
            left(&["A=1", "LD_PRELOAD=/a/b.so:/x/libpalimpsest_preload.so c.so", "B=2"]),
            ["A=1", "LD_PRELOAD=/a/b.so:c.so", "B=2"]
        );
        assert_eq!(left(&["LD_PRELOAD=libpalimpsest_preload.so", "B=2"]), ["B=2"]);
        assert_eq!(left(&["A=1", "LD_PRELOAD=x/libpalimpsest_preload.so"]), ["A=1"]);
    }

    #[test]
    fn other_variables_and_similar_names_are_left_alone() {
        let variables = ["XLD_PRELOAD=libpalimpsest_preload.so", "LD_PRELOAD=/a/libpalimpsest_preload.so.bak", "C"];
        assert_eq!(left(&variables), variables);
        assert!(left(&[]).is_empty());
        // SAFETY: null is allowed.
        unsafe { leave_preload(ptr::null_mut()) };
    }
}
