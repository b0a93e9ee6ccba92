//! The step `package`: unpacks the Debian package in a root with nothing but a shell, Python, Redis and the libraries
//! that they need; there, it shows the tour and runs these programs frozen.
//!
//! The root has copied programs and is no Debian made by debootstrap: that needs no network, takes a second, and lacks
//! more. What is missing in a clean Debian is missing here.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Built, FOLDER, Made, build, copy, installed, remove};
use crate::{
    process,
    step::{Depth, Done, StepError},
    workspace::Workspace,
};

/// What a root needs to run the trials.
const TOOLS: [&str; 4] = ["sh", "cat", "sleep", "ls"];

/// A script to run in the root.
struct Trial {
    name: &'static str,
    /// Programs without which it is left out.
    programs: &'static [&'static str],
    script: &'static str,
    /// Text that its standard error must then contain.
    says: &'static str,
}

/// What the object prints in a report.
const FROZE: &str = "froze process";

/// The trials. Each must end with status 0.
const TRIALS: [Trial; 4] = [
    Trial { name: "tour", programs: &[], script: include_str!("tour.sh"), says: "Next: " },
    Trial { name: "sh", programs: &[], script: include_str!("shell.sh"), says: FROZE },
    Trial { name: "python3", programs: &["python3"], script: include_str!("python.sh"), says: FROZE },
    Trial {
        name: "redis-server",
        programs: &["redis-server", "redis-cli"],
        script: include_str!("redis.sh"),
        says: FROZE,
    },
];

pub(crate) fn step(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let built = if depth == Depth::Exhaustive { Built::ToPublish } else { Built::ByTests };
    let Made { deb, tree, mut remarks, .. } = build(workspace, built)?;
    let folder = workspace.separate_target(FOLDER);
    let Some(deb) = deb else {
        installed::check(workspace, &folder, &tree, depth)?;
        return Ok(Done::Skipped("no dpkg-deb: Debian package dpkg".to_owned()));
    };
    let root = folder.join("root");
    remove(&root)?;
    process::stream(process::program("dpkg-deb", workspace).arg("--extract").arg(&deb).arg(&root))?;
    remarks.extend(installed::check(workspace, &folder, &root.join("usr"), depth)?);
    // Its dependencies, as apt would install them.
    copy_libraries(workspace, &root, &root.join("usr/bin/palimpsest"))?;
    for name in TOOLS {
        install(workspace, &root, name)?;
    }
    for folder in ["proc", "dev", "tmp"] {
        let path = root.join(folder);
        fs::create_dir_all(&path).map_err(|source| StepError::File { action: "make", path, source })?;
    }
    super::write(&root.join("dev/null"), b"")?;
    if !inside(workspace, &root, "exit 0").output().is_ok_and(|output| output.status.success()) {
        return Ok(Done::Skipped("no user namespace, or no unshare and chroot, to run the package in".to_owned()));
    }
    let (mut ran, mut left_out) = (Vec::new(), Vec::new());
    for trial in TRIALS {
        if trial.programs.iter().all(|name| found(name).is_some()) {
            trial.programs.iter().try_for_each(|name| install(workspace, &root, name))?;
            play(workspace, &root, &trial)?;
            ran.push(trial.name);
        } else {
            left_out.push(trial.name);
        }
    }
    // The installed object is used: nothing was put into a cache.
    let cache = root.join("var/cache/palimpsest");
    if cache.exists() {
        return Err(StepError::Packaged { trial: "all", said: format!("{} was made", cache.display()) });
    }
    let played = format!("{} in a root of their own", ran.join(", "));
    if !left_out.is_empty() {
        remarks.insert(0, format!("not installed: {}", left_out.join(", ")));
    }
    remarks.insert(0, played);
    Ok(Done::with(&remarks))
}

/// Runs a trial; it must succeed and print its text.
fn play(workspace: &Workspace, root: &Path, trial: &Trial) -> Result<(), StepError> {
    let mut command = inside(workspace, root, trial.script);
    println!("--- {} in {}", trial.name, root.display());
    let output = process::output_within(&mut command, process::LIMIT)?;
    let said = String::from_utf8_lossy(&output.stderr);
    print!("{}{said}", String::from_utf8_lossy(&output.stdout));
    if output.status.success() && said.contains(trial.says) {
        return Ok(());
    }
    let said = said.lines().next().unwrap_or("it said nothing").to_owned();
    Err(StepError::Packaged { trial: trial.name, said })
}

/// Returns a command for `script`, run by the root's shell, with nothing of this system but `/proc` of its own and
/// `/dev/null`.
fn inside(workspace: &Workspace, root: &Path, script: &str) -> Command {
    const ENTER: &str = "mount -t proc proc \"$0/proc\" && mount --bind /dev/null \"$0/dev/null\" && \
                         exec chroot \"$0\" /bin/sh -c \"$1\"";
    let mut command = process::program("unshare", workspace);
    command.args(["--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER]);
    command.arg(root).arg(script);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Returns the system's program of this name, and not one of a version manager in a home folder.
fn found(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// Copies a program into the root, as `/bin/NAME` or to its own path, with its libraries, and Python with its modules.
fn install(workspace: &Workspace, root: &Path, name: &str) -> Result<(), StepError> {
    let Some(path) = found(name) else {
        return Err(StepError::Packaged { trial: "all", said: format!("this system has no {name}") });
    };
    copy(&path, &below(root, &Path::new("/bin").join(name)))?;
    copy_libraries(workspace, root, &path)?;
    if name == "python3" {
        let mut python = process::program(&path, workspace);
        let modules = process::capture(python.args(["-I", "-c", "import os; print(os.path.dirname(os.__file__))"]))?;
        let modules = Path::new(modules.trim());
        let target = below(root, modules);
        let above = target.parent().unwrap_or(root);
        fs::create_dir_all(above).map_err(|source| StepError::File {
            action: "make",
            path: above.to_path_buf(),
            source,
        })?;
        process::stream(process::program("cp", workspace).arg("--archive").arg(modules).arg(above))?;
    }
    Ok(())
}

/// Copies the libraries that a program is linked with.
fn copy_libraries(workspace: &Workspace, root: &Path, program: &Path) -> Result<(), StepError> {
    let listing = process::capture(process::program("ldd", workspace).arg(program))?;
    libraries(&listing).try_for_each(|library| copy(Path::new(library), &below(root, Path::new(library))))
}

/// Returns an absolute path of this system as a path in the root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the files in a listing of `ldd`: `name => path (address)` and `path (address)`.
fn libraries(listing: &str) -> impl Iterator<Item = &str> {
    listing.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_a_listing() {
        let listing = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld.so.2 (0x7f)\n";
        assert_eq!(libraries(listing).collect::<Vec<_>>(), ["/lib/libc.so.6", "/lib64/ld.so.2"]);
        assert_eq!(below(Path::new("/r"), Path::new("/lib/x")), Path::new("/r/lib/x"));
    }
}
