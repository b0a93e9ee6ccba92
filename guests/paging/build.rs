//! Names the linker script of the architecture, and compiles the modules that the guest loads while it runs.

use std::env;
use std::path::Path;
use std::process::Command;

/// The modules, in `modules/`.
const MODULES: [&str; 2] = ["caller", "counter"];

fn main() {
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    let root = variable("CARGO_MANIFEST_DIR");
    let script = format!("{root}/src/arch/{arch}/link.ld");
    println!("cargo::rustc-link-arg-bins=-T{script}");
    println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
    if arch == "aarch64" {
        // This target's programs are linked where they are; and pointers in its `core` are among constants.
        println!("cargo::rustc-link-arg-bins=-pie");
        println!("cargo::rustc-link-arg-bins=--no-dynamic-linker");
        println!("cargo::rustc-link-arg-bins=-znotext");
    }
    println!("cargo::rerun-if-changed={script}");
    for module in MODULES {
        compile(module, &root, &variable);
    }
    println!("cargo::rerun-if-changed={root}/modules");
    println!("cargo::rerun-if-changed={root}/src/arch/{arch}/key.rs");
}

/// Compiles a module to a relocatable object, as the kernel is compiled.
fn compile(module: &str, root: &str, variable: &dyn Fn(&str) -> String) {
    let object = Path::new(&variable("OUT_DIR")).join(format!("{module}.o"));
    let mut command = Command::new(variable("RUSTC"));
    command
        .args(["--edition", "2024", "--crate-type", "lib", "--crate-name", module, "--target", &variable("TARGET")])
        .args(["-Copt-level=2", "-Cpanic=abort", "-Ccodegen-units=1", "-Crelocation-model=pic"])
        // Nothing unwinds here, and nobody reads names of what is not exported.
        .args(["-Cforce-unwind-tables=no", "-Cdebuginfo=0"])
        .arg(format!("--emit=obj={}", object.display()))
        .arg(format!("{root}/modules/{module}.rs"));
    if variable("CARGO_CFG_TARGET_ARCH") == "aarch64" {
        command.arg("-Ctarget-feature=+lse");
    }
    match command.status() {
        Ok(status) if status.success() => {}
        failed => panic!("module {module} is not compiled: {failed:?}"),
    }
}
