//! Where the workspace and its build products are.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The two folders that every step starts from.
pub(crate) struct Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder: `CARGO_TARGET_DIR`, or `target` below the root.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Returns the workspace that this program was built from, in whatever folder it runs.
    pub(crate) fn find() -> Workspace {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = package.parent().unwrap_or(package).to_owned();
        // A relative CARGO_TARGET_DIR starts from the folder that cargo was called in, which is still the current one.
        let target = env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |given| root.join(env::current_dir().unwrap_or_default().join(given)));
        Workspace { root, target }
    }

    /// Returns a target folder apart, for builds whose flags would evict the ordinary build products.
    pub(crate) fn separate_target(&self, name: &str) -> PathBuf {
        self.target.join(name)
    }

    /// Returns the names of the integration tests of the crate in `folder` below `crates`, in alphabetical order.
    pub(crate) fn integration_tests(&self, folder: &str) -> Vec<String> {
        let tests = fs::read_dir(self.root.join("crates").join(folder).join("tests")).into_iter().flatten().flatten();
        let name = |path: PathBuf| {
            let is_one = path.extension().is_some_and(|ending| ending == "rs") || path.join("main.rs").is_file();
            Some(path.file_stem()?.to_str()?.to_owned()).filter(|_| is_one)
        };
        let mut names: Vec<String> = tests.filter_map(|test| name(test.path())).collect();
        names.sort_unstable();
        names
    }
}
