//! The objects (program and libraries) that the dynamic linker has loaded, found by a note that they contain.
//!
//! Objects are described by their program headers, never by what a constructor has registered: unloaded objects are not
//! in the list, and copies of this library need not know of each other.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

/// A loaded object with a note of the kind that was searched for. It stays loaded while this lives.
#[derive(Debug)]
pub struct NotedObject {
    found: Found,
    #[expect(dead_code, reason = "its drop is its purpose")]
    pin: Pin,
}

impl NotedObject {
    /// Returns the file, as the dynamic linker names it; empty for the program itself.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(self.found.name.to_bytes()))
    }

    /// Returns where the note's description is mapped for reading. It is 4-byte aligned.
    pub fn description(&self) -> Range<usize> {
        self.found.description.clone()
    }
}

/// Returns the objects that contain a note of `owner` (without its final zero byte) and `kind`, in the order of
/// loading.
///
/// Each stays loaded while its [`NotedObject`] lives. Leaves out an object that is being unloaded at the same time, and
/// those in other namespaces (`dlmopen`).
///
/// Dropping the last hold of a library that was closed meanwhile runs that library's destructors. Do not call this
/// while holding a lock that a constructor or destructor of a library could take: both run under the loader's lock.
pub fn objects_with_note(owner: &str, kind: u32) -> Vec<NotedObject> {
    let first = walk(owner, kind);
    let pinned: Vec<(Found, Pin)> = first.into_iter().filter_map(|found| found.pin().map(|pin| (found, pin))).collect();
    // Between the walk and the hold an object may be unloaded; what is still at the same place now is held.
    let second = walk(owner, kind);
    pinned
        .into_iter()
        .filter(|(found, _)| second.contains(found))
        .map(|(found, pin)| NotedObject { found, pin })
        .collect()
}

/// The name of a loaded object, as far as it fits: needs no heap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ObjectName {
    /// Empty for the program itself.
    bytes: [u8; 63],
    len: u8,
}

impl ObjectName {
    fn of(name: &CStr) -> Self {
        let (mut bytes, name) = ([0; 63], name.to_bytes());
        let len = name.len().min(bytes.len());
        // The end says more than the beginning.
        bytes[..len].copy_from_slice(&name[name.len() - len..]);
        // At most 63.
        Self { bytes, len: len as u8 }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bytes[..usize::from(self.len)] {
            [] => f.write_str("the program"),
            name => name.utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid())),
        }
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the first object that contains a note of `owner` and `kind`, as in [`objects_with_note`]. Does not use the
/// heap.
pub fn holder_of_note(owner: &str, kind: u32) -> Option<ObjectName> {
    let mut holder = None;
    visit(&mut |object| {
        if holder.is_none() && object.noted(owner, kind).next().is_some() {
            holder = Some(ObjectName::of(object.name));
        }
    });
    holder
}

/// Keeps the object that holds `address` loaded until the process ends. Does nothing for the program itself.
///
/// For code that may be entered at any time, such as signal handlers. Callers must take the same care as with
/// [`objects_with_note`].
///
/// # Errors
///
/// [`NotLoaded`] if no object that can be held contains `address`.
pub fn keep_loaded(address: usize) -> Result<(), NotLoaded> {
    let mut holder = None;
    visit(&mut |object| {
        if object.loaded().any(|pages| pages.contains(&address)) {
            holder = Some((!object.is_program).then(|| object.name.to_owned()));
        }
    });
    match holder {
        Some(None) => Ok(()),
        Some(Some(name)) => {
            // SAFETY: the name is a C string; with RTLD_NOLOAD nothing is loaded and no constructor runs.
            let handle =
                unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NODELETE | libc::RTLD_LAZY) };
            if handle.is_null() { Err(NotLoaded { address }) } else { Ok(()) }
        }
        None => Err(NotLoaded { address }),
    }
}

/// Keeps the object with this copy of the crate loaded until the process ends: handlers of signals and what they call
/// are its code. Asks the dynamic linker once. Callers must take the same care as with [`objects_with_note`].
///
/// # Errors
///
/// See [`keep_loaded`].
pub fn stay_loaded() -> Result<(), NotLoaded> {
    static STAYS: AtomicBool = AtomicBool::new(false);
    // Relaxed, both: doing it twice is harmless.
    if !STAYS.load(Ordering::Relaxed) {
        keep_loaded(stay_loaded as *const () as usize)?;
        STAYS.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// A hold on a loaded object, which stays loaded while this lives.
///
/// Dropping the last hold of a library that was closed meanwhile runs that library's destructors: take the same care as
/// with [`objects_with_note`].
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "its drop is its purpose")] Pin);

/// Holds the object that is loaded at these addresses, all of them. Runs its constructors if they have not begun, as
/// may be in a constructor of another one, or in what that calls: `dl_open_worker` in glibc's `elf/dl-open.c` does so
/// for libraries that were loaded for others.
///
/// # Errors
///
/// [`NotLoaded`] if no object that can be held covers the addresses.
pub fn hold(addresses: Range<usize>) -> Result<Held, NotLoaded> {
    let failed = || NotLoaded { address: addresses.start };
    let find = || {
        let mut holder = None;
        visit(&mut |object| {
            let covered = object.covered();
            if covered.start <= addresses.start && addresses.end <= covered.end {
                holder = Some((object.name.to_owned(), object.is_program, object.base));
            }
        });
        holder
    };
    let (name, is_program, base) = find().ok_or_else(failed)?;
    let held = Held(pin(&name, is_program, base).ok_or_else(failed)?);
    // Between the look and the hold it may have been unloaded, and another object of this name loaded there.
    if find() == Some((name, is_program, base)) { Ok(held) } else { Err(failed()) }
}

/// How many objects the dynamic linker has loaded so far, also those that are unloaded by now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loads(u64);

impl Loads {
    /// Before the first one.
    pub const NONE: Self = Self(0);

    /// Returns the present number. Takes a lock of the dynamic linker for a moment.
    pub fn now() -> Self {
        let mut loads = 0;
        // Each object tells the same.
        visit_until(&mut |object| {
            loads = object.loads;
            ControlFlow::Break(())
        });
        Self(loads)
    }
}

/// Returns the addresses of objects that were loaded since, and that have at least `least` bytes which they do not
/// write. Some others may be among them.
pub(crate) fn loaded_since(since: Loads, least: usize) -> Vec<Range<usize>> {
    let (mut all, mut loads) = (Vec::new(), 0);
    visit(&mut |object| {
        loads = object.loads;
        let is_constant = |part: &&Segment| part.p_type == libc::PT_LOAD && part.p_flags & libc::PF_W == 0;
        let constant: usize = object.segments.iter().filter(is_constant).map(|part| object.range(part).len()).sum();
        all.push((object.covered(), constant));
    });
    // New ones are at the end of the list (`_dl_add_to_namespace_list` in glibc's `elf/dl-object.c`), fewer than were
    // loaded if some are gone, or in another namespace.
    let new = usize::try_from(loads.saturating_sub(since.0)).unwrap_or(usize::MAX);
    let old = all.len().saturating_sub(new);
    all.drain(..old);
    all.into_iter().filter(|(_, constant)| *constant >= least).map(|(covered, _)| covered).collect()
}

/// The build that an address belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Build {
    /// The identity that the linker gave the object (`--build-id`).
    pub(crate) id: Vec<u8>,
    /// Distance of the address from the object's load address, in bytes.
    pub(crate) offset: usize,
}

/// Returns the build of the loaded object that contains `address`; `None` if it has no build id.
pub(crate) fn build_of(address: usize) -> Option<Build> {
    /// `NT_GNU_BUILD_ID` (`elf.h`).
    const BUILD_ID: u32 = 3;
    let mut build = None;
    visit(&mut |object| {
        if !object.loaded().any(|pages| pages.contains(&address)) {
            return;
        }
        if let Some(description) = object.noted("GNU", BUILD_ID).next() {
            let start = ptr::with_exposed_provenance::<u8>(description.start);
            // SAFETY: part of a note that `noted` has just read, of an object that the dynamic linker keeps loaded
            // during `visit`.
            let id = unsafe { std::slice::from_raw_parts(start, description.len()) };
            build = Some(Build { id: id.to_vec(), offset: address.wrapping_sub(object.base) });
        }
    });
    build
}

/// Returns whether `address` is in the program itself, and not in a library.
pub fn in_program(address: usize) -> bool {
    let mut is_inside = false;
    visit(&mut |object| is_inside |= object.is_program && object.loaded().any(|pages| pages.contains(&address)));
    is_inside
}

/// An object at an address cannot be kept loaded.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the object at {address:#x} cannot be kept loaded: the dynamic linker does not know it by name in this namespace"
)]
pub struct NotLoaded {
    /// The address.
    pub address: usize,
}

/// Returns whether the process has more rights than its caller (`AT_SECURE`), so that the environment must not steer
/// it.
#[inline]
pub fn in_secure_execution() -> bool {
    // SAFETY: reads the vector that the kernel gave to the process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    name: CString,
    is_program: bool,
    base: usize,
    description: Range<usize>,
}

impl Found {
    fn pin(&self) -> Option<Pin> {
        pin(&self.name, self.is_program, self.base)
    }
}

/// A hold on an object.
#[derive(Debug)]
enum Pin {
    /// The program itself is never unloaded.
    Program,
    Library(#[expect(dead_code, reason = "its drop is its purpose")] Handle),
}

#[derive(Debug)]
struct Handle(NonNull<c_void>);

// SAFETY: a handle of the dynamic linker may be used by any thread.
unsafe impl Send for Handle {}
// SAFETY: nothing is done through a shared reference.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from `dlopen` and is closed once.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// The head of `struct link_map` (`link.h`); the ABI promises no more.
#[repr(C)]
struct LinkMap {
    base: usize,
}

fn pin(name: &CStr, is_program: bool, wanted: usize) -> Option<Pin> {
    if is_program {
        return Some(Pin::Program);
    }
    // SAFETY: the name is a C string; with RTLD_NOLOAD nothing is loaded and no constructor runs.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    let handle = Handle(NonNull::new(handle)?);
    let mut map: *const LinkMap = ptr::null();
    // SAFETY: the handle is open, and the request stores one pointer (dlinfo(3)).
    let answer = unsafe { libc::dlinfo(handle.0.as_ptr(), libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) };
    if answer != 0 || map.is_null() {
        return None;
    }
    // SAFETY: the dynamic linker's record of an open handle, whose head never changes once it is loaded.
    let base = unsafe { (*map).base };
    (base == wanted).then_some(Pin::Library(handle))
}

fn walk(owner: &str, kind: u32) -> Vec<Found> {
    let mut all = Vec::new();
    visit(&mut |object| {
        all.extend(object.noted(owner, kind).map(|description| Found {
            name: object.name.to_owned(),
            is_program: object.is_program,
            base: object.base,
            description,
        }));
    });
    all
}

/// Returns where the description of the first note of `owner` and `kind` is in `notes` (elf(5), "Notes").
fn find_note(notes: &[u8], owner: &[u8], kind: u32) -> Option<Range<usize>> {
    const HEADER: usize = 12;
    let mut at = 0_usize;
    loop {
        let word = |index: usize| {
            let start = at.checked_add(4 * index)?;
            Some(u32::from_ne_bytes(notes.get(start..start.checked_add(4)?)?.try_into().ok()?))
        };
        let (name_len, description_len, found_kind) = (word(0)? as usize, word(1)? as usize, word(2)?);
        let name = at + HEADER;
        let description = name.checked_add(name_len.checked_next_multiple_of(4)?)?;
        let end = description.checked_add(description_len)?;
        let found = notes.get(name..name.checked_add(name_len)?)?;
        if found_kind == kind && found.strip_suffix(&[0]) == Some(owner) {
            return (end <= notes.len()).then_some(description..end);
        }
        at = end.checked_next_multiple_of(4)?;
    }
}

struct Visited<'a> {
    name: &'a CStr,
    is_program: bool,
    base: usize,
    segments: &'a [Segment],
    /// How many objects were loaded so far.
    loads: u64,
}

type Segment = libc::Elf64_Phdr;

impl Visited<'_> {
    fn range(&self, segment: &Segment) -> Range<usize> {
        let start = self.base.wrapping_add(segment.p_vaddr as usize);
        start..start.saturating_add(segment.p_memsz as usize)
    }

    /// Returns the pages of each loaded segment. They are its own alone, but segments start anywhere in a page where
    /// lld or mold has linked it.
    fn loaded(&self) -> impl Iterator<Item = Range<usize>> {
        let page = rustix::param::page_size();
        let loads = self.segments.iter().filter(|part| part.p_type == libc::PT_LOAD).map(|part| self.range(part));
        loads.map(move |range| range.start & !(page - 1)..range.end.next_multiple_of(page))
    }

    /// Returns the whole pages from its first loaded segment to its last; nothing if it has none.
    fn covered(&self) -> Range<usize> {
        let start = self.loaded().map(|pages| pages.start).min().unwrap_or_default();
        start..self.loaded().map(|pages| pages.end).max().unwrap_or_default()
    }

    /// Returns where the descriptions of its notes of this owner and kind are.
    fn noted<'a>(&'a self, owner: &'a str, kind: u32) -> impl Iterator<Item = Range<usize>> + use<'a> {
        self.segments.iter().filter(|segment| segment.p_type == libc::PT_NOTE).filter_map(move |segment| {
            let range = self.range(segment);
            let is_loaded = self.segments.iter().any(|load| {
                let inside = self.range(load);
                let is_readable = load.p_flags & libc::PF_R != 0;
                load.p_type == libc::PT_LOAD && is_readable && inside.start <= range.start && range.end <= inside.end
            });
            if !is_loaded {
                return None;
            }
            // SAFETY: a loaded, readable segment that its object never writes to, of an object that the dynamic
            // linker keeps loaded during `visit`.
            let bytes =
                unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(range.start), range.len()) };
            let place = find_note(bytes, owner.as_bytes(), kind)?;
            Some(range.start + place.start..range.start + place.end)
        })
    }
}

/// Calls `f` for each object, while the dynamic linker keeps the list unchanged.
fn visit(f: &mut dyn FnMut(&Visited<'_>)) {
    visit_until(&mut |object| {
        f(object);
        ControlFlow::Continue(())
    });
}

/// Calls `f` for each object until it breaks.
fn visit_until(f: &mut dyn FnMut(&Visited<'_>) -> ControlFlow<()>) {
    struct State<'a> {
        index: usize,
        f: &'a mut dyn FnMut(&Visited<'_>) -> ControlFlow<()>,
    }
    unsafe extern "C" fn step(info: *mut libc::dl_phdr_info, _len: usize, state: *mut c_void) -> c_int {
        // SAFETY: `visit_until` passes its own state, which nobody else uses meanwhile.
        let state = unsafe { &mut *state.cast::<State<'_>>() };
        // SAFETY: the dynamic linker passes a record that is valid during the call.
        let info = unsafe { &*info };
        let name = if info.dlpi_name.is_null() {
            c""
        } else {
            // SAFETY: the object's name is a C string that lives as long as the object.
            unsafe { CStr::from_ptr(info.dlpi_name) }
        };
        let headers = if info.dlpi_phdr.is_null() {
            &[]
        } else {
            // SAFETY: the object's program headers, mapped as long as the object.
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
        };
        // The program comes first (dl_iterate_phdr(3)); but in a namespace of `dlmopen` its first library does. Only
        // the program has no name in glibc (elf/rtld.c); musl has no namespaces.
        let is_program = state.index == 0 && (name.is_empty() || !cfg!(target_env = "gnu"));
        let (base, loads) = (info.dlpi_addr as usize, info.dlpi_adds);
        state.index += 1;
        // Anything but 0 ends it (dl_iterate_phdr(3)).
        (state.f)(&Visited { name, is_program, base, segments: headers, loads }).is_break().into()
    }
    let mut state = State { index: 0, f };
    // SAFETY: `step` fits the type, does not unwind (lack of memory aborts), and gets the state that it expects.
    unsafe { libc::dl_iterate_phdr(Some(step), (&raw mut state).cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [owner.len() as u32 + 1, description.len() as u32, kind] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(owner);
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(description);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn notes_are_found_behind_others() {
        let notes = [note(b"GNU", 3, b"build id"), note(b"Mine", 7, b"12345678"), note(b"Mine", 8, b"abcd")].concat();
        assert_eq!(&notes[find_note(&notes, b"Mine", 7).unwrap()], b"12345678");
        assert_eq!(&notes[find_note(&notes, b"Mine", 8).unwrap()], b"abcd");
        assert_eq!(find_note(&notes, b"Mine", 9), None);
        assert_eq!(find_note(&notes, b"Min", 7), None);
    }

    #[test]
    fn cut_notes_are_not_read_past_their_end() {
        let notes = note(b"Mine", 7, b"12345678");
        for len in 0..notes.len() {
            assert_eq!(find_note(&notes[..len], b"Mine", 7), None, "{len}");
        }
        assert_eq!(find_note(&[0xFF; 64], b"Mine", 7), None);
    }

    #[test]
    fn the_c_library_is_pinned_by_its_build_id() {
        const NT_GNU_BUILD_ID: u32 = 3;
        let objects = objects_with_note("GNU", NT_GNU_BUILD_ID);
        let libc = objects.iter().find(|object| object.path().to_string_lossy().contains("libc.so"));
        assert!(libc.is_some_and(|libc| !libc.description().is_empty()), "{objects:?}");
        let first = objects[0].path().display().to_string();
        let name = holder_of_note("GNU", NT_GNU_BUILD_ID).unwrap().to_string();
        assert!(if first.is_empty() { name == "the program" } else { first.ends_with(&name) }, "{first} {name}");
        assert_eq!(holder_of_note("Nobody", NT_GNU_BUILD_ID), None);
    }

    /// Fails on: a mapping, which starts at a page, that belongs to no object since its segment starts later in it.
    #[test]
    fn pages_belong_to_the_segments_that_start_in_them() {
        let load = |start, len, kind| Segment {
            p_type: kind,
            p_flags: libc::PF_R,
            p_offset: start,
            p_vaddr: start,
            p_paddr: start,
            p_filesz: len,
            p_memsz: len,
            p_align: 0x10000,
        };
        let page = rustix::param::page_size();
        // As lld lays it out.
        let (second, base) = (0x11a_0000 + page as u64 / 4 * 3, 0x7000_0000_0000);
        let segments =
            [load(0, 10, libc::PT_LOAD), load(0x80_0000, 10, libc::PT_NOTE), load(second, 10, libc::PT_LOAD)];
        let object = Visited { name: c"", is_program: true, base, segments: &segments, loads: 1 };
        let loaded: Vec<_> = object.loaded().collect();
        let start = base + 0x11a_0000;
        assert_eq!(loaded, [base..base + page, start..start + page]);
        assert_eq!(object.covered(), base..start + page);
    }

    #[test]
    fn the_build_of_each_mapping_is_known_by_its_first_page() {
        let page = rustix::param::page_size();
        let mut starts = Vec::new();
        visit(&mut |object| {
            if object.noted("GNU", 3).next().is_some() {
                let executed = |part: &&Segment| part.p_type == libc::PT_LOAD && part.p_flags & libc::PF_X != 0;
                let ranges = object.segments.iter().filter(executed).map(|part| object.range(part).start & !(page - 1));
                starts.extend(ranges.map(|start| (object.name.to_owned(), start)));
            }
        });
        assert!(!starts.is_empty());
        for (name, start) in starts {
            assert!(build_of(start).is_some(), "{name:?} {start:#x}");
        }
    }

    #[test]
    fn the_program_and_libraries_can_be_kept() {
        keep_loaded(keep_loaded as *const () as usize).unwrap();
        keep_loaded(libc::getpid as *const () as usize).unwrap();
        assert_eq!(keep_loaded(8).unwrap_err().address, 8);
        assert!(in_program(keep_loaded as *const () as usize));
        let at = |place: usize| hold(place..place + 1);
        at(keep_loaded as *const () as usize).unwrap();
        at(libc::getpid as *const () as usize).unwrap();
        assert_eq!(at(8).unwrap_err().address, 8);
        // From one object into another.
        hold(keep_loaded as *const () as usize..libc::getpid as *const () as usize).unwrap_err();
        assert!(!in_program(libc::getpid as *const () as usize));
    }
}
