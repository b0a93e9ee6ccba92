//! Names the linker script of the architecture.

fn main() {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let script = format!("{root}/src/arch/{arch}/link.ld");
    println!("cargo::rustc-link-arg-bins=-T{script}");
    println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
    println!("cargo::rerun-if-changed={script}");
}
