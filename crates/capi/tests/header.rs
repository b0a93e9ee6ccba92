//! The header: compiles as C and C++, and says the same as the functions.

use std::ffi::c_void;
use std::mem::offset_of;
use std::process::Command;
use std::ptr;

use palimpsest_capi::arena;

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

#[test]
fn the_header_has_the_layout_of_the_structure() {
    // Not Cargo's folder, which a guest that runs this program does not have.
    let dir = std::env::temp_dir().join(format!("palimpsest-capi-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
    let (source, program) = (dir.join("header.c"), dir.join("header"));
    let code = "#include <palimpsest.h>\n#include <stdio.h>\n\
        #define AT(field) printf(\"%zu \", offsetof(struct palimpsest_arena_stats, field))\n\
        int main(void) { AT(size); AT(blocks); AT(bytes); AT(shared); AT(frozen); AT(anonymous); AT(free);\n\
        AT(segments); AT(refused);\n\
        printf(\"%zu\", sizeof(struct palimpsest_arena_stats)); return 0; }\n";
    std::fs::write(&source, code).expect("the temporary directory is writable");
    let flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-I", HEADER];
    let compiled = Command::new("cc").args(flags).arg("-std=c99").arg(&source).arg("-o").arg(&program).status();
    let Ok(compiled) = compiled else {
        println!("skipped: no C compiler `cc`");
        return;
    };
    assert!(compiled.success());
    let found = Command::new(&program).output().expect("runs").stdout;
    let expected = [
        offset_of!(arena::Stats, size),
        offset_of!(arena::Stats, blocks),
        offset_of!(arena::Stats, bytes),
        offset_of!(arena::Stats, shared),
        offset_of!(arena::Stats, frozen),
        offset_of!(arena::Stats, anonymous),
        offset_of!(arena::Stats, free),
        offset_of!(arena::Stats, segments),
        offset_of!(arena::Stats, refused),
        size_of::<arena::Stats>(),
    ];
    let expected = expected.map(|number| number.to_string()).join(" ");
    assert_eq!(String::from_utf8_lossy(&found), expected);
    let cpp = Command::new("cc").args(flags).args(["-x", "c++", "-fsyntax-only"]).arg(&source).status();
    assert!(cpp.is_ok_and(|status| status.success()));
    std::fs::remove_dir_all(&dir).expect("it is ours");
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
    };
    // SAFETY: as long as it says.
    assert_eq!(unsafe { arena::palimpsest_arena_stats(&mut stats) }, 0);
    assert!(stats.blocks >= 1 && stats.bytes >= 1 << 20 && stats.frozen > 0);
    assert_eq!(stats.refused, 0);
    // SAFETY: a block that is not used again.
    unsafe { arena::palimpsest_arena_free(block) };
    // SAFETY: null is allowed.
    unsafe { arena::palimpsest_arena_free(ptr::null_mut::<c_void>()) };
}
