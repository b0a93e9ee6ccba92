//! Builds the Debian package.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::{Built, VERSION, committed, copy, list, remove, write};
use crate::{process, step::StepError, workspace::Workspace};

/// Packs the files of `tree` for `/usr`.
pub(super) fn build(workspace: &Workspace, folder: &Path, tree: &Path, built: Built) -> Result<PathBuf, StepError> {
    let root = folder.join("debian");
    remove(&root)?;
    let usr = root.join("usr");
    process::stream(process::program("cp", workspace).arg("--archive").arg("-T").arg(tree).arg(made(&usr)?))?;
    let notes = usr.join("share/doc/palimpsest");
    // Files that Debian wants under other names.
    copy(&workspace.root.join("LICENSE-MIT"), &notes.join("copyright"))?;
    let man = usr.join("share/man/man1");
    let pages = list(&man)?.into_iter().map(|page| man.join(page));
    for file in pages.chain([notes.join("CHANGELOG.md")]) {
        process::stream(process::program("gzip", workspace).args(["--best", "--no-name"]).arg(file))?;
    }
    let files = ["bin/palimpsest", "lib/palimpsest/libpalimpsest_preload.so", "lib/libpalimpsest.so"];
    let programs = files.map(|file| usr.join(file));
    write(&root.join("DEBIAN/control"), control(glibc(&programs)?).as_bytes())?;
    let deb = folder.join(format!("palimpsest_{VERSION}_{}.deb", architecture()));
    let mut pack = process::program("dpkg-deb", workspace);
    pack.env("SOURCE_DATE_EPOCH", committed(workspace)?);
    if built == Built::ByTests {
        pack.arg("-Znone");
    }
    process::stream(pack.args(["--root-owner-group", "--build"]).arg(&root).arg(&deb))?;
    Ok(deb)
}

fn made(folder: &Path) -> Result<&Path, StepError> {
    fs::create_dir_all(folder).map_err(|source| StepError::File { action: "make", path: folder.into(), source })?;
    Ok(folder)
}

/// Returns Debian's name of this architecture.
fn architecture() -> &'static str {
    if env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" }
}

fn control(glibc: u32) -> String {
    format!(
        "Package: palimpsest\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: The Palimpsest developers\nSection: \
         utils\nPriority: optional\nDepends: libc6 (>= 2.{glibc}), libgcc-s1\nSuggests: redis-server, python3\n\
         Description: rewrite memory while it is in use\n Unmodified programs that fork in constant time (palimpsest \
         run), what this\n machine allows (palimpsest doctor), eBPF programs (palimpsest bpf), and a\n library for C \
         (palimpsest.h).\n",
        architecture()
    )
}

/// Returns the minor version of the newest glibc whose symbols the files need.
fn glibc(files: &[PathBuf]) -> Result<u32, StepError> {
    let mut newest = 0;
    for file in files {
        let bytes = fs::read(file).map_err(|source| StepError::File { action: "read", path: file.clone(), source })?;
        newest = newest.max(newest_symbol(&bytes));
    }
    Ok(newest)
}

fn newest_symbol(bytes: &[u8]) -> u32 {
    const NAME: &[u8] = b"GLIBC_2.";
    let places = (0..bytes.len()).filter(|&place| bytes[place..].starts_with(NAME));
    let number = |place: usize| {
        let digits = bytes[place + NAME.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number: u32, digit| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
    };
    places.map(number).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_decides_what_the_package_depends_on() {
        assert_eq!(newest_symbol(b"GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.17\0"), 34);
        assert_eq!(newest_symbol(b""), 0);
        assert!(control(34).contains("\nDepends: libc6 (>= 2.34), "));
    }
}
