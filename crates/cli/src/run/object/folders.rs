//! Which folders may hold the object, best first.

use std::ffi::OsString;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;

use rustix::process::Uid;

/// Folders to try.
#[derive(Clone, Debug)]
pub(crate) struct Folders(Vec<PathBuf>);

impl Folders {
    /// Returns those of `user`, by the environment variables that `look_up` knows.
    ///
    /// - The cache of the XDG base directory specification. The folder of a session (`$XDG_RUNTIME_DIR`) is removed
    ///   when the user leaves, while his programs run on.
    /// - Root's cache, unless it is named, is one that others can read: a server that gives up its rights executes
    ///   other programs later.
    /// - None below `/tmp`: `LD_PRELOAD` names the folder for as long as the program lives, and somebody who makes it
    ///   anew after it was cleaned away (`tmpfiles.d(5)`) would have his own object loaded.
    pub(crate) fn of(user: Uid, look_up: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let folder = |name: &str| look_up(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let shared = user.is_root().then(|| PathBuf::from("/var/cache"));
        let home = || Some(folder("HOME")?.join(".cache"));
        let cache = folder("XDG_CACHE_HOME").or(shared).or_else(home);
        Self(cache.into_iter().map(|above| above.join("palimpsest")).collect())
    }

    /// Returns them, best first.
    pub(crate) fn candidates(&self) -> &[PathBuf] {
        &self.0
    }

    /// Returns only these, for tests.
    #[cfg(test)]
    pub(super) fn only(folders: &[&Path]) -> Self {
        Self(folders.iter().map(|folder| folder.to_path_buf()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(user: u32, variables: &[(&str, &str)]) -> Vec<PathBuf> {
        let look_up = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Folders::of(Uid::from_raw(user), &look_up).0
    }

    #[test]
    fn a_user_has_a_cache_and_nothing_that_is_cleaned_away() {
        let variables = [("HOME", "/home/u"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        let expected = ["/home/u/.cache/palimpsest"];
        assert_eq!(of(7, &variables), expected.map(PathBuf::from));
        assert_eq!(of(7, &[("HOME", "/home/u"), ("XDG_CACHE_HOME", "/c")])[0], Path::new("/c/palimpsest"));
        assert_eq!(of(0, &variables)[0], Path::new("/var/cache/palimpsest"));
        assert_eq!(of(0, &[("XDG_CACHE_HOME", "/c")])[0], Path::new("/c/palimpsest"));
    }

    #[test]
    fn relative_and_empty_variables_are_left_out() {
        for value in ["", "cache", "../cache"] {
            let variables = [("XDG_CACHE_HOME", value), ("HOME", value), ("XDG_RUNTIME_DIR", value)];
            assert!(of(7, &variables).is_empty(), "{value:?}");
        }
    }
}
