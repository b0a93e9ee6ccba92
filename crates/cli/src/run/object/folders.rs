//! Which folders may hold the object, the best first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::process::Uid;

/// Folders to try.
#[derive(Clone, Debug)]
pub(crate) struct Folders(Vec<PathBuf>);

impl Folders {
    /// Those of `user`, by the environment variables that `look_up` knows.
    ///
    /// - Those of the XDG base directory specification: the cache, then the folder of the session.
    /// - Root's cache, if it is not named, is one that others can read: a server that gives its rights up executes other
    ///   programs later.
    /// - `/tmp` has a name that another user can take first; then it is refused, and nothing worse.
    pub(crate) fn of(user: Uid, look_up: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let folder = |name: &str| look_up(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let shared = user.is_root().then(|| PathBuf::from("/var/cache"));
        let home = || Some(folder("HOME")?.join(".cache"));
        let cache = folder("XDG_CACHE_HOME").or(shared).or_else(home);
        let mut folders: Vec<PathBuf> =
            cache.into_iter().chain(folder("XDG_RUNTIME_DIR")).map(|above| above.join("palimpsest")).collect();
        folders.push(Path::new("/tmp").join(format!("palimpsest-{}", user.as_raw())));
        Self(folders)
    }

    /// The best first.
    pub(crate) fn candidates(&self) -> &[PathBuf] {
        &self.0
    }

    /// These alone, for tests.
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
    fn a_user_has_a_cache_a_session_and_a_name_in_tmp() {
        let variables = [("HOME", "/home/u"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        let expected = ["/home/u/.cache/palimpsest", "/run/user/7/palimpsest", "/tmp/palimpsest-7"];
        assert_eq!(of(7, &variables), expected.map(PathBuf::from));
        assert_eq!(of(7, &[("HOME", "/home/u"), ("XDG_CACHE_HOME", "/c")])[0], Path::new("/c/palimpsest"));
        assert_eq!(of(0, &variables)[0], Path::new("/var/cache/palimpsest"));
        assert_eq!(of(0, &[("XDG_CACHE_HOME", "/c")])[0], Path::new("/c/palimpsest"));
    }

    #[test]
    fn relative_and_empty_variables_are_left_out() {
        for value in ["", "cache", "../cache"] {
            let variables = [("XDG_CACHE_HOME", value), ("HOME", value), ("XDG_RUNTIME_DIR", value)];
            assert_eq!(of(7, &variables), [Path::new("/tmp/palimpsest-7")], "{value:?}");
        }
    }
}
