//! Where the workspace and its build products are.

use std::{
    env,
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
}
