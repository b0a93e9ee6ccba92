//! Keeps this object's own calls apart from the program's.
//!
//! The object defines `mmap` and others for the program. Its own code calls functions of these names too: the engine,
//! when it does what a guard has decided, and the standard library. Those calls would come back to the definitions
//! here, without end. `--wrap` (ld, lld, mold) makes all references, though not the definitions, use the symbol
//! `__wrap_…` instead, which `wrapped` defines to go straight to the kernel. So no definition may be inlined, which
//! would come without the reference, and none may be called by another definition. Code of other crates that is inlined
//! into this one must not need the wrapping: GNU ld leaves references beside their definition alone. In the same way
//! the part of the C library that each object has of its own comes to call what only glibc has (`glibc`).

use std::error::Error;
use std::fs;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let memory = ["fork", "madvise", "mremap", "mmap", "mmap64", "mlock", "mlock2", "mlockall", "syscall"];
    let waits = ["epoll_wait", "epoll_pwait", "poll", "ppoll", "select", "pselect", "nanosleep", "clock_nanosleep"];
    let glibc = ["__register_atfork"];
    for name in memory.into_iter().chain(waits).chain(glibc) {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={name}");
    }
    // The C compiler's start and end of an object, for C++ before `.init_array` and transactions in memory, would cost
    // each program page faults in code that does nothing. What else is in there, `wrapped` defines.
    println!("cargo::rustc-link-arg-cdylib=-nostartfiles");
    // A page of file belongs to one mapping, and variables begin with a page: so what a program writes to before its
    // `main` is on as few pages as it can be. GNU ld, which does so by itself with constants, ignores it.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,separate-loadable-segments");
    // GNU ld makes an object need `libgcc_s` even though all that it uses of it is its own (`unwinder`): so it finds an
    // empty archive of that name.
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; is this run by cargo?")?);
    fs::write(folder.join("libgcc_s.a"), "!<arch>\n")?;
    println!("cargo::rustc-link-arg-cdylib=-L{}", folder.display());
    Ok(())
}
