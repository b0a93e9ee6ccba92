//! Finds loaded objects that may discard memory by `madvise` and count on zeros afterwards, as jemalloc and mimalloc
//! do: frozen memory would show the bytes of the freeze again. The object of `palimpsest run` corrects such calls; this
//! package is loaded too late for that, since calls are bound when objects are loaded.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol};
use palimpsest_sys::pages::maps::{Maps, Permissions};
use palimpsest_sys::proc::ProcError;

/// Objects that import `madvise` and do no harm with it: the beginnings of their files' names, each with the reason.
const HARMLESS: [(&str, &str); 8] = [
    ("ld-linux", "the dynamic linker"),
    ("libc.so", "the C library: what it discards it does not take for zeros (`calloc` clears such memory)"),
    ("libcrypto", "OpenSSL keeps secrets out of core dumps"),
    ("libpython", "CPython: its `mmap` objects when a program says so, and mimalloc, for which the caller looks"),
    ("python", "as above"),
    ("mmap.", "the module `mmap`: memory that the program itself has mapped, when it says so"),
    ("_multiarray_umath", "numpy asks for huge pages"),
    ("_native.abi3", "this module"),
];

/// The object of `palimpsest run`, in a file or in memory: what it leaves alone, it hands on.
const PRELOAD: &str = "libpalimpsest_preload.so";

/// Returns the files that are mapped executable: all loaded objects, and the program.
fn objects() -> Result<BTreeSet<PathBuf>, ProcError> {
    let executable = Maps::read()?.into_iter().filter(|map| map.line.permissions.contains(Permissions::EXECUTE));
    Ok(executable.filter_map(|map| map.path).filter(|path| path.is_absolute()).collect())
}

/// Returns the objects that could do harm, among them those that cannot be read: nothing is known of them.
pub(crate) fn loaded() -> Result<Vec<PathBuf>, ProcError> {
    let is_harmless = |path: &Path| {
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        name.contains(PRELOAD) || HARMLESS.iter().any(|(beginning, _)| name.starts_with(beginning))
    };
    let suspects = objects()?.into_iter().filter(|path| !is_harmless(path));
    Ok(suspects.filter(|path| fs::read(path).map_or(true, |file| imports_madvise(&file))).collect())
}

/// Returns whether `file` is an object that imports `madvise`. A file that is no object at all is no loaded one.
fn imports_madvise(file: &[u8]) -> bool {
    let Ok(file) = object::File::parse(file) else { return false };
    let mut imported = file.dynamic_symbols().filter(|symbol| symbol.is_undefined());
    imported.any(|symbol| matches!(symbol.name(), Ok("madvise" | "process_madvise")))
}
