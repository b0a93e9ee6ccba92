//! The preload object: contained in this program, and put where the dynamic linker can open it.
//!
//! `LD_PRELOAD` takes a path, which must hold for as long as the program executes others. So the object is a file:
//! installed beside this program, or else in a cache folder ([`cache`]). If no folder will do, the last choice is a
//! descriptor of a memory file: programs that are executed later do not have it, and run without the object.

mod cache;
mod folders;
mod old;
mod place;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use palimpsest_sys::{CreateError, memory};

pub(crate) use folders::Folders;
use place::Refused;

use crate::run::is_one_entry;

/// Its file name, by which it removes itself from `LD_PRELOAD`.
pub(crate) const NAME: &str = "libpalimpsest_preload.so";
/// Its bytes, from where `build.rs` says; none if its sources were not there.
pub(crate) const BYTES: &[u8] = include_bytes!(env!("PALIMPSEST_OBJECT"));

/// Why it cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    #[error(
        "PALIMPSEST_PRELOAD names {}, which is no file; leave the variable out to use the object inside this program",
        path.display()
    )]
    Missing { path: PathBuf },
    #[error(
        "the path {} has a colon, a blank or a dollar sign, which LD_PRELOAD does not take literally; put the object \
         elsewhere",
        path.display()
    )]
    NotOneEntry { path: PathBuf },
    #[error(
        "this program was built without {NAME}, which is not installed at {} either; build it from the source tree \
         (`cargo install --path crates/cli`), or name one in PALIMPSEST_PRELOAD",
        installed.display()
    )]
    NotInside { installed: PathBuf },
    #[error("no place for {NAME}: {}; set XDG_CACHE_HOME to a folder of your own", list(tried))]
    NoPlace {
        tried: Vec<Tried>,
        #[source]
        source: CreateError,
    },
}

/// A folder that will not do.
#[derive(Debug)]
pub(crate) struct Tried {
    folder: PathBuf,
    reason: Refused,
}

fn list(tried: &[Tried]) -> String {
    if tried.is_empty() {
        return "neither XDG_CACHE_HOME nor HOME names one".to_owned();
    }
    let each = tried.iter().map(|Tried { folder, reason }| format!("{} {reason}", folder.display()));
    each.collect::<Vec<_>>().join("; ")
}

/// The object, ready to be loaded.
#[derive(Debug)]
pub(crate) struct Object {
    /// The entry for `LD_PRELOAD`.
    pub(crate) entry: OsString,
    /// Why no folder would do, if it is a memory file.
    pub(crate) shortcoming: Option<String>,
    /// Open until the program is executed; the object then closes it.
    _memory: Option<OwnedFd>,
}

impl Object {
    fn at(path: PathBuf) -> Result<Self, ObjectError> {
        if is_one_entry(path.as_os_str()) {
            Ok(Self { entry: path.into(), shortcoming: None, _memory: None })
        } else {
            Err(ObjectError::NotOneEntry { path })
        }
    }
}

/// Finds it, or puts it somewhere: where PALIMPSEST_PRELOAD says (`named`), as installed with `executable`, in a cache
/// folder, in memory.
///
/// # Errors
///
/// None of these will do.
pub(crate) fn find(named: Option<&OsStr>, executable: &Path, folders: &Folders) -> Result<Object, ObjectError> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        // The program may be started in another folder than this.
        let path = std::path::absolute(named).unwrap_or_else(|_| named.into());
        return if path.is_file() { Object::at(path) } else { Err(ObjectError::Missing { path }) };
    }
    let installed = installed(executable);
    if let Some(path) = &installed
        && is_ours(path, BYTES)
    {
        return Object::at(path.clone());
    }
    if BYTES.is_empty() {
        return Err(ObjectError::NotInside { installed: installed.unwrap_or_else(|| Path::new("../lib").join(NAME)) });
    }
    put(BYTES, folders)
}

/// Returns where a package puts it: beside the folder of the program.
fn installed(executable: &Path) -> Option<PathBuf> {
    let prefix = executable.parent()?.parent()?;
    Some(prefix.join("lib/palimpsest").join(NAME))
}

/// Whether the file at `path` has these bytes (or any, if there are none to compare with), and nobody but root and this
/// user could have put it there.
fn is_ours(path: &Path, bytes: &[u8]) -> bool {
    let safe = path.parent().is_some_and(|folder| place::check_path(folder).is_ok());
    safe && is_one_entry(path.as_os_str())
        && place::file_is_safe(path)
        && (bytes.is_empty() || fs::read(path).is_ok_and(|found| found == bytes))
}

/// Returns a name for the folder of these bytes, which are compared when they are used.
fn id(bytes: &[u8]) -> String {
    // Not `DefaultHasher`, which takes a tenth of a second for a megabyte without optimisation. The factor is odd, so
    // that no bit is lost.
    let (words, _) = bytes.as_chunks::<8>();
    let mix = |hash: u64, word: &[u8; 8]| {
        (hash.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95)
    };
    format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), words.iter().fold(bytes.len() as u64, mix))
}

fn put(bytes: &[u8], folders: &Folders) -> Result<Object, ObjectError> {
    let mut tried = Vec::new();
    let id = id(bytes);
    for folder in folders.candidates() {
        match cache::put(folder, &id, NAME, bytes) {
            Ok(path) => return Object::at(path),
            Err(reason) => tried.push(Tried { folder: folder.clone(), reason }),
        }
    }
    match memory::hand_over(NAME, bytes) {
        Ok(memory) => Ok(Object {
            entry: format!("/proc/self/fd/{}", memory.as_raw_fd()).into(),
            shortcoming: Some(list(&tried)),
            _memory: Some(memory),
        }),
        Err(source) => Err(ObjectError::NoPlace { tried, source }),
    }
}

#[cfg(test)]
mod tests;
