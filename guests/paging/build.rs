//! Names the linker script of the architecture.

fn main() {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
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
}
