//! Keeps this object's own calls apart from the program's.
//!
//! The object defines `mmap` and others for the program. Its own code calls functions of these names too: the engine,
//! when it does what a guard has decided, and the standard library. Those calls would come back to the definitions
//! here, without end. `--wrap` (ld, gold, lld, mold) makes all references, though not the definitions, use the symbol
//! `__wrap_…` instead, which `wrapped` defines to go straight to the kernel.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let memory = ["fork", "madvise", "mremap", "mmap", "mmap64", "mlock", "mlock2", "mlockall", "syscall"];
    let waits = ["epoll_wait", "epoll_pwait", "poll", "ppoll", "select", "pselect", "nanosleep", "clock_nanosleep"];
    for name in memory.into_iter().chain(waits) {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={name}");
    }
}
