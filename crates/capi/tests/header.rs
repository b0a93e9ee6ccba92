//! The header is made from the sources, compiles as C and C++, and names what the library exports.

mod declared;
#[path = "abi/versions.rs"]
mod versions;

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, ptr};

use object::{Object, ObjectSymbol};
use palimpsest_capi::arena;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// `include/palimpsest.h` is what cbindgen makes of the sources: no function, structure or comment differs.
#[test]
fn the_header_is_made_of_the_sources() {
    let mut config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).expect("a configuration");
    let macros = versions::macros("PALIMPSEST", env!("CARGO_PKG_VERSION"));
    config.after_includes.get_or_insert_default().push_str(&format!("\n{macros}"));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in [
        "result",
        "packs",
        "programs",
        "data",
        "allocations",
        "lines",
        "pins",
        "poke",
        "keys",
        "freeze",
        "reports",
        "slices",
        "snapshots",
        "guards",
        "arena",
    ] {
        builder = builder.with_src(Path::new(CRATE).join(format!("src/{name}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().expect("cbindgen understands the sources").write(&mut made);
    let made = String::from_utf8(made).expect("sources are text");
    let header = Path::new(CRATE).join("include/palimpsest.h");
    if env::var_os("PALIMPSEST_BLESS").is_some() {
        fs::write(&header, &made).expect("the header can be written");
    }
    let kept = fs::read_to_string(&header).expect("there is a header");
    assert!(kept == made, "the header is not what the sources make: PALIMPSEST_BLESS=1 writes it anew");
}

/// The header declares exactly the functions that the library exports, and the library exports no other name of ours.
#[test]
fn the_library_exports_what_the_header_declares() {
    let file = fs::read(built("libpalimpsest_capi.so")).expect("it can be read");
    let file = object::File::parse(&*file).expect("an ELF file");
    let exported: BTreeSet<String> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| name.starts_with("palimpsest"))
        .map(str::to_owned)
        .collect();
    assert_eq!(declared::functions(), exported);
}

/// What random calls leave to the C program `packs.c`: AddressSanitizer answers for the kernel here, or other random
/// calls would have to know what became of the memory.
const LEFT_TO_C: [&str; 4] =
    ["palimpsest_changed", "palimpsest_may_be_frozen", "palimpsest_mlock", "palimpsest_mlockall"];

/// The random calls of the fuzz target call each function, and a program in C calls the rest.
#[test]
fn random_calls_reach_each_function() {
    let sources = fs::read_dir(Path::new(CRATE).join("src/fuzzing")).expect("there are sources");
    let sources: String = sources
        .map(|entry| fs::read_to_string(entry.expect("it can be listed").path()).expect("it can be read"))
        .collect();
    let program = fs::read_to_string(Path::new(CRATE).join("tests/packs.c")).expect("it can be read");
    let is_called = |name: &String| {
        let calls = if LEFT_TO_C.contains(&name.as_str()) { &program } else { &sources };
        calls.contains(&format!("{name}("))
    };
    let missing: Vec<_> = declared::functions().into_iter().filter(|name| !is_called(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Returns a file that Cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let own = env::current_exe().expect("a test has a path");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("Cargo builds {name} for this test"))
}

/// The header compiles by itself, with all warnings, as C99, C11 and C++, with each compiler found here.
#[test]
fn the_header_compiles_as_c_and_c_plus_plus() {
    // Not Cargo's folder, which a guest that runs this program does not have.
    let dir = tempfile::tempdir().expect("the temporary directory is writable");
    let source = dir.path().join("header.c");
    fs::write(&source, "#include <palimpsest.h>\nint main(void) { return 0; }\n").expect("as above");
    for compiler in ["gcc", "clang"] {
        for language in [["-x", "c", "-std=c99"], ["-x", "c", "-std=c11"], ["-x", "c++", "-std=c++17"]] {
            let mut compile = Command::new(compiler);
            compile
                .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
                .arg(format!("{CRATE}/include"));
            match compile.args(language).arg(&source).status() {
                Ok(status) => assert!(status.success(), "{compiler} {language:?}"),
                Err(error) => println!("skipped: {compiler}: {error}"),
            }
        }
    }
}

#[test]
fn the_functions_follow_the_c_library() {
    let errno = || std::io::Error::last_os_error().raw_os_error();
    assert!(arena::palimpsest_arena_calloc(usize::MAX, 2).is_null());
    assert_eq!(errno(), Some(libc::ENOMEM));
    assert!(arena::palimpsest_arena_aligned_alloc(24, 1).is_null());
    assert_eq!(errno(), Some(libc::EINVAL));
    let block = arena::palimpsest_arena_aligned_alloc(2 << 20, 10);
    assert!(!block.is_null() && block.addr().is_multiple_of(2 << 20));
    // SAFETY: a block that is not freed.
    assert!(unsafe { arena::palimpsest_arena_usable_size(block) } >= 10);
    // SAFETY: as above.
    let block = unsafe { arena::palimpsest_arena_realloc(block, 1 << 20) };
    assert!(!block.is_null());
    assert_eq!(arena::palimpsest_arena_freeze(), 0);
    let mut stats = arena::Stats {
        size: size_of::<arena::Stats>(),
        blocks: 0,
        bytes: 0,
        shared: 1,
        frozen: 0,
        anonymous: 0,
        free: 0,
        segments: 0,
        refused: -1,
        reserved: -1,
        longest_free: 0,
        freezes: 0,
        unsealed: 1,
        aside: 1,
    };
    // SAFETY: as long as it says.
    assert_eq!(unsafe { arena::palimpsest_arena_stats(&mut stats) }, 0);
    assert!(stats.blocks >= 1 && stats.bytes >= 1 << 20 && stats.frozen > 0);
    assert_eq!((stats.refused, stats.reserved, stats.unsealed, stats.aside), (0, 0, 0, 0));
    assert!(stats.freezes >= 1 && stats.longest_free <= stats.free);
    // SAFETY: a block that is not used again.
    unsafe { arena::palimpsest_arena_free(block) };
    // SAFETY: null is allowed.
    unsafe { arena::palimpsest_arena_free(ptr::null_mut::<c_void>()) };
}
