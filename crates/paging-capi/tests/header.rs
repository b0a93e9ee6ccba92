//! The header is made from the sources, and compiles as freestanding C and as C++.

#[path = "../../capi/tests/abi/versions.rs"]
mod versions;

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// `include/palimpsest_paging.h` is what cbindgen makes of the sources: no function, structure or comment differs.
#[test]
fn the_header_is_made_of_the_sources() {
    let mut config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).expect("a configuration");
    config.after_includes = Some(versions::macros("PALIMPSEST_PAGING", env!("CARGO_PKG_VERSION")));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in ["result", "machine", "space", "pages", "visits", "marks", "places"] {
        builder = builder.with_src(Path::new(CRATE).join(format!("src/{name}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().expect("cbindgen understands the sources").write(&mut made);
    let made = String::from_utf8(made).expect("sources are text");
    let header = Path::new(CRATE).join("include/palimpsest_paging.h");
    if env::var_os("PALIMPSEST_BLESS").is_some() {
        fs::write(&header, &made).expect("the header can be written");
    }
    let kept = fs::read_to_string(&header).expect("there is a header");
    assert!(kept == made, "the header is not what the sources make: PALIMPSEST_BLESS=1 writes it anew");
}

/// The header needs no C library: it compiles where there is none, with all warnings, as C99, C11 and C++.
#[test]
fn the_header_compiles_as_freestanding_c_and_c_plus_plus() {
    let dir = tempfile::tempdir().expect("the temporary directory is writable");
    let source = dir.path().join("header.c");
    fs::write(&source, "#include <palimpsest_paging.h>\n").expect("as above");
    for compiler in ["gcc", "clang"] {
        for language in [["-x", "c", "-std=c99"], ["-x", "c", "-std=c11"], ["-x", "c++", "-std=c++17"]] {
            let mut compile = Command::new(compiler);
            compile
                .args(["-ffreestanding", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
                .arg(format!("{CRATE}/include"));
            match compile.args(language).arg(&source).status() {
                Ok(status) => assert!(status.success(), "{compiler} {language:?}"),
                Err(error) => println!("skipped: {compiler}: {error}"),
            }
        }
    }
}
