//! The library that tests link with.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the library as a C program gets it, without features, and returns it. Those beside the test will not do: they
/// are of all builds so far, with other features too, and their names do not tell which is which.
pub(crate) fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is a folder in the target folder");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    cargo.args(["build", "--quiet", "--locked", "--lib", "--package", "palimpsest-paging-capi", "--target-dir"]);
    // For another target, it would lie in a folder of that target's name.
    cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("CARGO_BUILD_TARGET");
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    if profile == "release" {
        cargo.arg("--release");
    }
    let built = cargo.output().expect("Cargo runs, since it started this test");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join(profile).join("libpalimpsest_paging_capi.a")
}
