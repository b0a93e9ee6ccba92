//! The guest's kernel: Debian's, unpacked from its package and not installed.

use std::{fs, path::PathBuf};

use crate::{guest::Arch, install::PATIENT, process, step::StepError, workspace::Workspace};

/// Returns the name of the package that depends on the newest kernel's.
const fn meta_package(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "linux-image-cloud-amd64:amd64",
        Arch::Aarch64 => "linux-image-cloud-arm64:arm64",
    }
}

/// Returns the path of the kernel image, once fetched.
pub(crate) fn image(workspace: &Workspace, arch: Arch) -> PathBuf {
    folder(workspace, arch).join("vmlinuz")
}

/// Returns the folder of the kernel image, and of what a guest boots with it.
pub(super) fn folder(workspace: &Workspace, arch: Arch) -> PathBuf {
    workspace.separate_target("guest").join(arch.name())
}

/// Downloads the package and keeps its image. apt's package lists must include the architecture.
pub(crate) fn fetch(workspace: &Workspace, arch: Arch) -> Result<(), StepError> {
    let meta_package = meta_package(arch);
    let folder = folder(workspace, arch);
    let unpacked = folder.join("unpacked");
    let _absent = fs::remove_dir_all(&folder);
    fs::create_dir_all(&unpacked).map_err(|source| StepError::File {
        action: "create",
        path: unpacked.clone(),
        source,
    })?;
    let depends = process::capture(process::program("apt-cache", workspace).args(["depends", meta_package]))?;
    let package =
        kernel_package(&depends).ok_or(StepError::NoKernelPackage { package: meta_package, found: depends.clone() })?;
    let mut download = process::program("apt-get", workspace);
    process::stream_again(download.args(["download", "--quiet", package]).args(PATIENT).current_dir(&folder))?;
    let archive = file_in(&folder, |name| name.ends_with(".deb"))?;
    process::stream(process::program("dpkg-deb", workspace).arg("--extract").arg(archive).arg(&unpacked))?;
    let found = file_in(&unpacked.join("boot"), |name| name.starts_with("vmlinuz-"))?;
    let image = image(workspace, arch);
    fs::rename(found, &image).map_err(|source| StepError::File { action: "write", path: image, source })?;
    fs::remove_dir_all(&unpacked).map_err(|source| StepError::File { action: "remove", path: unpacked, source })
}

/// Returns the package that the meta package depends on, from the output of `apt-cache depends`.
fn kernel_package(depends: &str) -> Option<&str> {
    let dependencies = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    dependencies.map(str::trim).find(|name| name.starts_with("linux-image-") && name.contains("-cloud-"))
}

/// Returns the first file of `folder` whose name is `wanted`.
fn file_in(folder: &std::path::Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf, StepError> {
    let files =
        fs::read_dir(folder).map_err(|source| StepError::File { action: "list", path: folder.to_owned(), source })?;
    let found = files.flatten().find(|file| file.file_name().to_str().is_some_and(&wanted));
    found.map(|file| file.path()).ok_or(StepError::NoKernelImage { folder: folder.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_the_meta_packages_dependency() {
        let depends =
            "linux-image-cloud-arm64:arm64\n  Depends: linux-image-6.1.0-56-cloud-arm64:arm64\n  Suggests: x\n";
        assert_eq!(kernel_package(depends), Some("linux-image-6.1.0-56-cloud-arm64:arm64"));
        let native = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(kernel_package(native), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(kernel_package("N: unable to locate"), None);
    }
}
