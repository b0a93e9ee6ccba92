//! `cargo xtask package`: makes a tarball and a Debian package of the program, its object, the library for C, man
//! pages, completions and the book; and the step that runs the package's programs where nothing else is.

mod chroot;
mod crates;
mod debian;
mod installed;
mod library;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use crate::{
    book, process, programs,
    step::{LeftOut, StepError},
    workspace::Workspace,
};

pub(crate) use chroot::step;
pub(crate) use crates::{release as check_release, step as crates_step};

/// Name below the target folder.
const FOLDER: &str = "package";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What was made.
pub(crate) struct Made {
    pub(crate) tarball: PathBuf,
    /// The files, as they belong below `/usr`.
    tree: PathBuf,
    /// The Debian package; absent where there is no `dpkg-deb`.
    pub(crate) deb: Option<PathBuf>,
    /// What was left out, and why.
    pub(crate) remarks: Vec<String>,
}

/// Where the program and the library for C come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Built {
    /// They are built with optimisation, to be published.
    ToPublish,
    /// They are what the step `test` builds, to be tried.
    ByTests,
}

impl Built {
    /// Returns what [`Self::ToPublish`] has for `--list`.
    pub(crate) const LEFT_OUT: &[LeftOut] = &[LeftOut {
        what: "optimisation, compression, and the versioned name of the library for C",
        reason: "the whole tree would be compiled once more; what is packed is what `test` has built and tested",
    }];

    /// Builds the program, and returns the folder with it.
    fn program(self, workspace: &Workspace) -> Result<PathBuf, StepError> {
        match self {
            Self::ToPublish => {
                let mut cargo = process::cargo(workspace);
                cargo.args(["build", "--release", "--package", "palimpsest-live-cli"]);
                cargo.args(["--features", "documents,disassemblers"]);
                process::stream(&mut cargo)?;
                Ok(workspace.target.join("release"))
            }
            Self::ByTests => {
                programs::build(&mut programs::everything(workspace))?;
                Ok(workspace.target.join("debug"))
            }
        }
    }
}

/// Packs the program with everything that belongs to it.
pub(crate) fn build(workspace: &Workspace, built: Built) -> Result<Made, StepError> {
    let folder = workspace.separate_target(FOLDER);
    let name = format!("palimpsest-{VERSION}-{}-linux", env::consts::ARCH);
    let tree = folder.join(&name);
    let remarks = lay_out(workspace, &folder, &tree, built)?;
    let tarball = folder.join(format!("{name}.tar.gz"));
    let mut tar = process::program("tar", workspace);
    tar.arg("--create").arg("--gzip").arg("--file").arg(&tarball).arg("--directory").arg(&folder);
    // The same bytes from the same sources, whoever builds them.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", committed(workspace)?)).arg(&name);
    process::stream(&mut tar)?;
    let deb =
        if process::is_runnable("dpkg-deb") { Some(debian::build(workspace, &folder, &tree, built)?) } else { None };
    Ok(Made { tarball, tree, deb, remarks })
}

/// Returns the time of the last commit, in seconds.
fn committed(workspace: &Workspace) -> Result<String, StepError> {
    let mut git = process::program("git", workspace);
    Ok(process::capture(git.args(["log", "--max-count=1", "--format=%ct"]))?.trim().to_owned())
}

/// Lays out the files as they belong below `/usr`, in an empty folder. Returns remarks on what was left out.
fn lay_out(workspace: &Workspace, folder: &Path, tree: &Path, built: Built) -> Result<Vec<String>, StepError> {
    let program = built.program(workspace)?.join("palimpsest");
    let documents = folder.join("documents");
    for old in [tree, &documents] {
        remove(old)?;
    }
    process::stream(process::program(&program, workspace).arg("documents").arg(&documents))?;
    copy(&program, &tree.join("bin/palimpsest"))?;
    let strip = Path::new("strip");
    if process::is_runnable("strip") {
        process::stream(process::program(strip, workspace).arg("--strip-debug").arg(tree.join("bin/palimpsest")))?;
    }
    let remark = library::lay_out(workspace, tree, built)?;
    for entry in list(&documents)? {
        if let Some(place) = place_of(&entry) {
            copy(&documents.join(&entry), &tree.join(place))?;
        }
    }
    let notes = tree.join("share/doc/palimpsest");
    for name in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&workspace.root.join(name), &notes.join(name))?;
    }
    book::build(workspace, &notes.join("html"), Some(&program))?;
    Ok(remark.into_iter().collect())
}

/// Returns the path for a file of `palimpsest documents`.
fn place_of(name: &str) -> Option<String> {
    Some(match name.rsplit_once('.') {
        Some((_, "1")) => format!("share/man/man1/{name}"),
        Some((_, "bash")) => "share/bash-completion/completions/palimpsest".to_owned(),
        Some((_, "fish")) => format!("share/fish/vendor_completions.d/{name}"),
        Some((_, "so")) => format!("lib/palimpsest/{name}"),
        None if name.starts_with('_') => format!("share/zsh/vendor-completions/{name}"),
        _ => return None,
    })
}

fn list(folder: &Path) -> Result<Vec<String>, StepError> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = entries.map_err(|source| StepError::File { action: "list", path: folder.into(), source })?;
    let mut names: Vec<String> = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Removes a file, or a folder and its contents, if it exists.
fn remove(path: &Path) -> Result<(), StepError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StepError::File { action: "remove", path: path.into(), source: error })
        }
        _ => Ok(()),
    }
}

/// Copies a file with its permissions, and creates the folders above it.
fn copy(from: &Path, to: &Path) -> Result<(), StepError> {
    let failed = |source| StepError::File { action: "copy to", path: to.into(), source };
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(failed)?;
    fs::copy(from, to).map(drop).map_err(|source| {
        let path = from.to_path_buf();
        StepError::File { action: "copy", path, source }
    })
}

fn write(path: &Path, text: &[u8]) -> Result<(), StepError> {
    let failed = |source| StepError::File { action: "write", path: path.into(), source };
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(failed)?;
    fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_document_has_its_place() {
        for (name, place) in [
            ("palimpsest-run.1", Some("share/man/man1/palimpsest-run.1")),
            ("palimpsest.bash", Some("share/bash-completion/completions/palimpsest")),
            ("_palimpsest", Some("share/zsh/vendor-completions/_palimpsest")),
            ("palimpsest.fish", Some("share/fish/vendor_completions.d/palimpsest.fish")),
            ("libpalimpsest_preload.so", Some("lib/palimpsest/libpalimpsest_preload.so")),
            ("other.txt", None),
        ] {
            assert_eq!(place_of(name).as_deref(), place);
        }
    }
}
