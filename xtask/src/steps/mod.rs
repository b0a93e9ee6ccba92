//! The steps, in the order in which they begin: first the cheap ones that find much, then the long before the short
//! (by `target/steps/record.json`), so that both lanes end together.

mod adapters;
mod fuzz;
pub(crate) mod python;
mod sanitizers;
mod style;
mod supply;
mod tests;

use crate::{
    aarch64, architecture,
    cmake::{self, CC, CXX},
    guest,
    need::{Need, Toolchain},
    package,
    step::{Check, LeftOut, Pace, Step},
    ubpf,
};

const RUSTFMT: Need = Need::Component { toolchain: Toolchain::Active, component: "rustfmt", file: "bin/cargo-fmt" };
const CLIPPY: Need = Need::Component { toolchain: Toolchain::Active, component: "clippy", file: "bin/cargo-clippy" };
const NIGHTLY: Need = Need::Component { toolchain: Toolchain::Nightly, component: "rustc", file: "bin/rustc" };
const STD_SOURCE: Need = Need::Component {
    toolchain: Toolchain::Nightly,
    component: "rust-src",
    file: "lib/rustlib/src/rust/library/std/Cargo.toml",
};
const GDB: Need = Need::Program { program: "gdb", package: "gdb" };
const STRACE: Need = Need::Program { program: "strace", package: "strace" };
const PERF: Need = Need::Program { program: "perf", package: "linux-perf" };
const MUSL: Need = Need::Program { program: "musl-gcc", package: "musl-tools" };
const REDIS: Need = Need::Program { program: "redis-server", package: "redis-server" };
const REDIS_CLI: Need = Need::Program { program: "redis-cli", package: "redis-tools" };
const RUBY: Need = Need::Program { program: "ruby", package: "ruby" };
const PYTHON: Need = Need::Program { program: "python3", package: "python3" };
const SQLITE: Need = Need::Program { program: "sqlite3", package: "sqlite3" };
const NODE: Need = Need::Program { program: "node", package: "nodejs" };
const GUNICORN: Need = Need::Program { program: "gunicorn", package: "gunicorn" };
const UVICORN: Need = Need::Program { program: "uvicorn", package: "uvicorn" };
const DPKG: Need = Need::Program { program: "dpkg-deb", package: "dpkg" };
const AFL: Need = Need::Program { program: "afl-fuzz", package: "afl++" };
const AFL_CLANG: Need = Need::Program { program: "afl-clang-fast", package: "afl++" };
const AFL_SHOWMAP: Need = Need::Program { program: "afl-showmap", package: "afl++" };
const CLANG: Need = Need::Program { program: "clang", package: "clang" };
const JEMALLOC: Need = Need::File { path: "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", package: "libjemalloc2" };
const MIMALLOC: Need = Need::File { path: "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", package: "libmimalloc2.0" };
const TCMALLOC: Need =
    Need::File { path: "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", package: "libtcmalloc-minimal4" };
const AARCH64_LINKER: Need = Need::Program { program: aarch64::LINKER, package: "gcc-aarch64-linux-gnu" };
const AARCH64_LIBC: Need = Need::File { path: "/usr/aarch64-linux-gnu/lib/crt1.o", package: "libc6-dev-arm64-cross" };
const QEMU_SYSTEM: Need = Need::Program { program: "qemu-system-aarch64", package: "qemu-system-arm" };
/// What the guest with a kernel of its own needs.
const AARCH64_SYSTEM: &[Need] =
    &[Need::Aarch64Std, AARCH64_LINKER, AARCH64_LIBC, QEMU_SYSTEM, Need::GuestKernel(guest::Arch::Aarch64)];

/// Returns every step there is.
pub(crate) fn all() -> Vec<Step> {
    let mut steps = vec![
        Step {
            name: "fmt",
            about: "the sources are formatted, the guest's too",
            pace: Pace::Quick,
            needs: &[RUSTFMT],
            wants: &[],
            scratch: None,
            left_out: &[],
            run: Check::Always(style::fmt),
        },
        Step {
            name: "architecture",
            about: "operating-system and architecture code, lines, files and modules are as ARCHITECTURE.md says",
            pace: Pace::Quick,
            needs: &[],
            wants: &[],
            scratch: None,
            left_out: &[],
            run: Check::Always(architecture::step),
        },
        Step {
            name: "crates",
            about: "each crate that can be published has its readme, licences and metadata, and no file from outside",
            pace: Pace::Quick,
            needs: &[],
            wants: &[],
            scratch: None,
            left_out: &[],
            run: Check::Always(package::crates_step),
        },
        Step {
            name: "clippy",
            about: "no lint fires, in any target with every feature, nor in the guest on either architecture",
            pace: Pace::Quick,
            needs: &[CLIPPY],
            wants: &guest::TARGETS,
            scratch: None,
            left_out: &[],
            run: Check::Always(style::clippy),
        },
        Step {
            name: "doc",
            about: "the documentation builds without a warning",
            pace: Pace::Quick,
            needs: &[],
            wants: &[],
            scratch: None,
            left_out: &[],
            run: Check::Always(style::doc),
        },
        Step {
            name: "no-std",
            about: "paging, its functions for C, and the cores of text and bpf build for a target without std",
            pace: Pace::Quick,
            needs: &[],
            wants: &[tests::BARE_TARGET],
            scratch: None,
            left_out: &[],
            run: Check::Always(tests::no_std),
        },
        Step {
            name: "test",
            about: "every test of the workspace passes",
            pace: Pace::Quick,
            needs: &[],
            wants: &[
                GDB, STRACE, PERF, CC, MUSL, REDIS, REDIS_CLI, RUBY, PYTHON, GUNICORN, SQLITE, NODE, AFL, CLANG,
                JEMALLOC, MIMALLOC, TCMALLOC,
            ],
            scratch: None,
            left_out: tests::LEFT_OUT,
            run: Check::ByDepth(tests::test),
        },
        Step {
            name: "aarch64-build",
            about: "the library and its tests build for AArch64",
            pace: Pace::Slow,
            needs: &[Need::Aarch64Std, AARCH64_LINKER, AARCH64_LIBC],
            wants: &[],
            scratch: Some(aarch64::build::FOLDER),
            left_out: aarch64::build::LEFT_OUT,
            run: Check::ByDepth(aarch64::build::step),
        },
        Step {
            name: "aarch64-capi",
            about: "programs in C over the library for C run on AArch64, in a guest with a kernel of its own",
            pace: Pace::Slow,
            needs: AARCH64_SYSTEM,
            wants: &[],
            scratch: Some(aarch64::build::FOLDER),
            left_out: aarch64::capi::LEFT_OUT,
            run: Check::Exhaustive(&aarch64::capi::step),
        },
        Step {
            name: "aarch64-system",
            about: "every AArch64 test passes in a guest with a kernel of its own",
            pace: Pace::Slow,
            needs: AARCH64_SYSTEM,
            wants: &[],
            scratch: Some(aarch64::build::FOLDER),
            left_out: aarch64::left_out::LEFT_OUT,
            run: Check::ByDepth(aarch64::system::step),
        },
        Step {
            name: "fuzz",
            about: "each fuzz target survives a short run",
            pace: Pace::Slow,
            // libFuzzer itself is C++.
            needs: &[NIGHTLY, CXX],
            wants: &[],
            scratch: Some(fuzz::FOLDER),
            left_out: fuzz::LEFT_OUT,
            run: Check::ByDepth(fuzz::fuzz),
        },
        Step {
            name: "tsan",
            about: "ThreadSanitizer finds no data race, with std instrumented as well",
            pace: Pace::Slow,
            needs: &[NIGHTLY, STD_SOURCE],
            wants: &[],
            scratch: Some(sanitizers::THREAD),
            left_out: &[],
            run: Check::Always(sanitizers::thread),
        },
        Step {
            name: "loom",
            about: "the lock-free parts hold in every interleaving that loom explores",
            pace: Pace::Slow,
            needs: &[],
            wants: &[],
            scratch: Some(tests::LOOM),
            left_out: &[],
            run: Check::Always(tests::loom),
        },
        Step {
            name: "asan",
            about: "AddressSanitizer finds no stray access and no leak",
            pace: Pace::Slow,
            needs: &[NIGHTLY],
            wants: &[],
            scratch: Some(sanitizers::ADDRESS),
            left_out: sanitizers::LEFT_OUT,
            run: Check::ByDepth(sanitizers::address),
        },
        Step {
            name: "numa-aarch64",
            about: "copies of data and text are on their nodes, in a guest with four of them",
            pace: Pace::Slow,
            needs: guest::numa::AARCH64_NEEDS,
            wants: &[],
            scratch: Some(aarch64::build::FOLDER),
            left_out: &[],
            run: Check::Always(guest::numa::aarch64),
        },
        Step {
            name: "atomic-keys",
            about: "static keys keep their promises where nothing can be patched",
            pace: Pace::Slow,
            needs: &[],
            wants: &[],
            scratch: Some(tests::ATOMIC_KEYS),
            left_out: &[],
            run: Check::Always(tests::atomic_keys),
        },
        Step {
            name: "afl",
            about: "targets of AFL++ cover the same plain, frozen and reset",
            pace: Pace::Slow,
            needs: &[AFL, AFL_CLANG, AFL_SHOWMAP, CLANG],
            wants: &[],
            scratch: None,
            left_out: &[],
            run: Check::Always(tests::afl),
        },
        Step {
            name: "ubpf",
            about: "random eBPF programs mean the same to another engine, uBPF",
            pace: Pace::Slow,
            needs: &ubpf::NEEDS,
            wants: &[],
            scratch: Some(ubpf::FOLDER),
            left_out: ubpf::LEFT_OUT,
            run: Check::Exhaustive(&ubpf::step),
        },
        Step {
            name: "python",
            about: "the Python package freezes, forks and serves multiprocessing, gunicorn and uvicorn",
            pace: Pace::Slow,
            needs: &[PYTHON, CC],
            wants: &[GUNICORN, UVICORN],
            scratch: Some(python::FOLDER),
            left_out: python::LEFT_OUT,
            run: Check::ByDepth(python::python),
        },
        Step {
            name: "guest-c",
            about: "a kernel in C finds on page walkers what it asked palimpsest_paging.h for",
            pace: Pace::Slow,
            needs: &[],
            wants: &guest::c::WANTS,
            scratch: None,
            left_out: &[],
            run: Check::Always(guest::c::step),
        },
        Step {
            name: "guest-x86_64",
            about: "page tables and code patching hold on x86-64's page walkers",
            pace: Pace::Slow,
            needs: guest::Arch::X86_64.needs(),
            wants: &[],
            scratch: None,
            left_out: &[],
            run: Check::Always(guest::x86_64),
        },
        Step {
            name: "guest-aarch64",
            about: "page tables and code patching hold on AArch64's page walkers",
            pace: Pace::Slow,
            needs: guest::Arch::Aarch64.needs(),
            wants: &[],
            scratch: None,
            left_out: &[],
            run: Check::Always(guest::aarch64),
        },
        Step {
            name: "package",
            about: "programs in C and C++ use the Debian package; its own run where nothing else is, some frozen",
            pace: Pace::Slow,
            needs: &[DPKG],
            wants: &[CC, CXX, cmake::CMAKE, PYTHON, REDIS, REDIS_CLI],
            scratch: None,
            left_out: package::Built::LEFT_OUT,
            run: Check::ByDepth(package::step),
        },
        Step {
            name: "deny",
            about: "licences, sources and advisories of the dependencies are in order",
            pace: Pace::Slow,
            needs: &[supply::CARGO_DENY],
            wants: &[supply::CARGO_AUDIT],
            scratch: None,
            left_out: &[],
            run: Check::Always(supply::deny),
        },
        Step {
            name: "numa-x86_64",
            about: "the same on x86-64",
            pace: Pace::Slow,
            needs: guest::numa::X86_64_NEEDS,
            wants: &[],
            scratch: None,
            left_out: &[LeftOut {
                what: "all of it",
                reason: "numa-aarch64 runs the same tests in less time, but for the command and protection keys",
            }],
            run: Check::Exhaustive(&guest::numa::x86_64),
        },
    ];
    steps.extend(adapters::steps());
    steps
}
