//! Where the preload object is.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::run::is_one_entry;

/// Its file name.
const NAME: &str = "libpalimpsest_preload.so";

/// Why it cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    #[error(
        "{NAME} was not found: looked for {}; put it there (`cargo build --release --package palimpsest-preload` leaves it in target/release) or name it in PALIMPSEST_PRELOAD",
        list(looked)
    )]
    Missing { looked: Vec<PathBuf> },
    #[error(
        "the path {} has a colon or a blank, which end an entry of LD_PRELOAD; put the object elsewhere and name it in PALIMPSEST_PRELOAD",
        path.display()
    )]
    NotOneEntry { path: PathBuf },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

/// Finds it: where PALIMPSEST_PRELOAD says (`named`), beside `executable`, or in `../lib`.
///
/// # Errors
///
/// It is in none of these places, or where it is `LD_PRELOAD` cannot name it.
pub(crate) fn find(named: Option<&OsStr>, executable: &Path) -> Result<PathBuf, ObjectError> {
    let looked: Vec<PathBuf> = match named.filter(|named| !named.is_empty()) {
        // The program may be started in another folder than this.
        Some(named) => vec![std::path::absolute(named).unwrap_or_else(|_| named.into())],
        None => {
            let folder = executable.parent().unwrap_or(Path::new("/"));
            let above = folder.parent().unwrap_or(folder);
            vec![folder.join(NAME), above.join("lib").join(NAME)]
        }
    };
    let path = looked.iter().find(|path| path.is_file()).cloned().ok_or(ObjectError::Missing { looked })?;
    if is_one_entry(path.as_os_str()) { Ok(path) } else { Err(ObjectError::NotOneEntry { path }) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn it_is_found_beside_the_program_in_lib_or_where_it_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib"));
        fs::create_dir_all(&bin).expect("it can be made");
        fs::create_dir_all(&lib).expect("it can be made");
        let executable = bin.join("palimpsest");
        let missing = find(None, &executable).expect_err("there is none");
        assert!(missing.to_string().contains("PALIMPSEST_PRELOAD"), "{missing}");
        for place in [lib.join(NAME), bin.join(NAME), folder.path().join("other.so")] {
            fs::write(&place, "").expect("it can be written");
            let named = place.ends_with("other.so").then_some(place.as_os_str());
            assert_eq!(find(named, &executable).expect("it is there"), place);
        }
        let nowhere = folder.path().join("nowhere");
        assert!(matches!(find(Some(nowhere.as_os_str()), &executable), Err(ObjectError::Missing { .. })));
    }

    #[test]
    fn a_path_that_ends_an_entry_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["a b.so", "a:b.so"] {
            let path = folder.path().join(name);
            fs::write(&path, "").expect("it can be written");
            let refused = find(Some(path.as_os_str()), Path::new("/bin/x"));
            assert!(matches!(refused, Err(ObjectError::NotOneEntry { .. })), "{name}");
        }
    }
}
