//! The library for C: puts its files where they belong, and compiles programs against them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{Built, VERSION, copy, remove, write};
use crate::{process, step::StepError, workspace::Workspace};

/// Headers, with the folder of their crate or adapter.
const HEADERS: [(&str, &str); 5] = [
    ("crates/capi", "palimpsest.h"),
    ("crates/capi", "palimpsest_key.h"),
    ("adapters/llvm-orc", "palimpsest/orc.h"),
    ("adapters/llvm-orc", "palimpsest/orc_eh_frame.h"),
    ("adapters/asmjit", "palimpsest/asmjit.h"),
];

/// Returns the name with a version. As long as the major version is 0, each minor one may be incompatible.
fn soname() -> String {
    let mut parts = VERSION.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if major == "0" { format!("libpalimpsest.so.0.{minor}") } else { format!("libpalimpsest.so.{major}") }
}

/// Lays out both forms below `tree`, with headers, and files for pkg-config and CMake.
pub(super) fn lay_out(workspace: &Workspace, tree: &Path, built: Built) -> Result<(), StepError> {
    let soname = soname();
    let built = match built {
        Built::ToPublish => {
            let mut cargo = process::cargo(workspace);
            cargo.args(["rustc", "--release", "--package", "palimpsest-capi", "--lib", "--"]);
            // Signal handlers stay after `dlclose`, and so must the code.
            cargo.arg(format!("-Clink-arg=-Wl,-soname,{soname},-z,nodelete"));
            process::stream(&mut cargo)?;
            workspace.target.join("release")
        }
        // Built for the tests of palimpsest-capi, without that name.
        Built::ByTests => workspace.target.join("debug/deps"),
    };
    let library = tree.join("lib");
    copy(&built.join("libpalimpsest_capi.so"), &library.join(&soname))?;
    copy(&built.join("libpalimpsest_capi.a"), &library.join("libpalimpsest.a"))?;
    if process::is_runnable("strip") {
        let files = [library.join(&soname), library.join("libpalimpsest.a")];
        process::stream(process::program("strip", workspace).arg("--strip-debug").args(files))?;
    }
    let link = library.join("libpalimpsest.so");
    symlink(&soname, &link).map_err(|source| StepError::File { action: "make", path: link, source })?;
    for (folder, header) in HEADERS {
        let from = workspace.root.join(folder).join("include").join(header);
        copy(&from, &tree.join("include").join(header))?;
    }
    write(&library.join("pkgconfig/palimpsest.pc"), pkg_config().as_bytes())?;
    write(&library.join("cmake/palimpsest/palimpsest-config.cmake"), CMAKE.as_bytes())?;
    let version = CMAKE_VERSION.replace("VERSION_OF_THIS", VERSION);
    write(&library.join("cmake/palimpsest/palimpsest-config-version.cmake"), version.as_bytes())
}

/// Returns the file for pkg-config. Its paths start from its own, so that the tree can be put anywhere.
fn pkg_config() -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\nName: palimpsest\nDescription: memory that is rewritten while it is in use\n\
         Version: {VERSION}\nCflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib -lpalimpsest\n\
         Libs.private: -lpthread -ldl -lm\n"
    )
}

const CMAKE: &str = "get_filename_component(_prefix \"${CMAKE_CURRENT_LIST_DIR}/../../..\" ABSOLUTE)
if(NOT TARGET palimpsest::palimpsest)
  add_library(palimpsest::palimpsest SHARED IMPORTED)
  set_target_properties(palimpsest::palimpsest PROPERTIES
    IMPORTED_LOCATION \"${_prefix}/lib/libpalimpsest.so\"
    INTERFACE_INCLUDE_DIRECTORIES \"${_prefix}/include\")
endif()
unset(_prefix)
";

/// As in the soname: while the major version is 0, each minor one is another interface.
const CMAKE_VERSION: &str = r#"set(PACKAGE_VERSION VERSION_OF_THIS)
string(REGEX MATCH "^(0\\.[0-9]+|[0-9]+)" _have "${PACKAGE_VERSION}")
string(REGEX MATCH "^(0\\.[0-9]+|[0-9]+)" _want "${PACKAGE_FIND_VERSION}")
if(_have STREQUAL _want AND PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
unset(_have)
unset(_want)
"#;

/// Compiles programs in C (as C and as C++, each also with sanitizers) against the `tree`, with the flags of its own
/// file for pkg-config, and runs them.
pub(super) fn check(workspace: &Workspace, folder: &Path, tree: &Path) -> Result<(), StepError> {
    let programs = folder.join("programs");
    remove(&programs)?;
    fs::create_dir_all(&programs).map_err(|source| StepError::File {
        action: "make",
        path: programs.clone(),
        source,
    })?;
    let flags = flags(workspace, tree)?;
    for (folder, name, ways) in PROGRAMS {
        let source = workspace.root.join(folder).join(name).with_extension("c");
        // A process with AddressSanitizer's shadow memory is no example of a freeze or a snapshot.
        for (way, arguments) in WAYS.iter().take(ways).enumerate() {
            let program = programs.join(format!("{name}-{way}"));
            let mut compiler = process::program("cc", workspace);
            compiler.args(*arguments).arg(&source).args(["-x", "none"]).args(&flags).arg("-o").arg(&program);
            if arguments.contains(&"c++") {
                compiler.arg("-lstdc++");
            }
            process::stream(&mut compiler)?;
            process::stream(process::program(&program, workspace).env("LD_LIBRARY_PATH", tree.join("lib")))?;
        }
    }
    Ok(())
}

/// Programs, and in how many of the [`WAYS`] each is compiled.
const PROGRAMS: [(&str, &str, usize); 5] = [
    ("examples/c", "jit", 4),
    ("examples/c", "keys", 4),
    ("examples/c", "fork", 1),
    ("examples/c", "snapshot", 1),
    ("crates/capi/tests", "alloc", 2),
];

const WAYS: [&[&str]; 4] = [
    &["-O2", "-Wall", "-Wextra", "-Werror", "-x", "c", "-std=gnu99"],
    &["-O1", "-fsanitize=address", "-x", "c", "-std=gnu11"],
    &["-O2", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-x", "c++", "-std=gnu++20"],
    &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-x", "c++", "-std=gnu++20"],
];

fn flags(workspace: &Workspace, tree: &Path) -> Result<Vec<String>, StepError> {
    if !process::is_runnable("pkg-config") {
        println!("package: no pkg-config: its file is not tried");
        let (include, library): (PathBuf, PathBuf) = (tree.join("include"), tree.join("lib"));
        return Ok(vec![
            format!("-I{}", include.display()),
            format!("-L{}", library.display()),
            "-lpalimpsest".to_owned(),
        ]);
    }
    let mut ask = process::program("pkg-config", workspace);
    ask.env("PKG_CONFIG_PATH", tree.join("lib/pkgconfig")).args(["--cflags", "--libs", "palimpsest"]);
    Ok(process::capture(&mut ask)?.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_what_programs_can_be_linked_with() {
        assert!(soname().starts_with("libpalimpsest.so."), "{}", soname());
        assert!(pkg_config().contains(&format!("\nVersion: {VERSION}\n")));
    }
}
