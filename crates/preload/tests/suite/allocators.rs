//! Allocators that count on zeros from the kernel.

use std::fs;
use std::path::PathBuf;

use crate::common::{Way, object, run, scenarios};

/// Finds the first file called `name` in Debian's library folders.
fn library(name: &str) -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: {name} is not installed");
    }
    found
}

/// Runs the scenarios of `malloc` with an allocator, alone and after the object.
fn zeros_and_contents(name: &str, settings: &[(&str, &str)]) {
    let (Some(allocator), Some(program)) = (library(name), scenarios()) else { return };
    let (program, allocator) = (program.to_str().expect("UTF-8"), allocator.to_str().expect("UTF-8"));
    let both = format!("{}:{allocator}", object().display());
    for scenario in ["callocs", "reallocs", "fork_in_handler", "nested"] {
        let plain = run(&[program, scenario], Way { preload: allocator, variables: settings });
        let ran = run(&[program, scenario], Way { preload: &both, variables: settings });
        assert_eq!((&ran.stdout, ran.status), (&plain.stdout, Some(0)), "{scenario}: {}{}", ran.stderr, ran.report);
        if ran.stderr.is_empty() {
            assert!(ran.report.contains("froze process"), "{scenario}: {}", ran.report);
        } else {
            // Some have a thread of their own.
            assert!(ran.stderr.starts_with("palimpsest: not frozen: the process has"), "{}", ran.stderr);
        }
    }
}

#[test]
fn jemalloc() {
    zeros_and_contents("libjemalloc.so.2", &[]);
    // Gives memory back at once.
    zeros_and_contents("libjemalloc.so.2", &[("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")]);
}

#[test]
fn mimalloc() {
    zeros_and_contents("libmimalloc.so.2.0", &[]);
    zeros_and_contents("libmimalloc.so.2.0", &[("MIMALLOC_PURGE_DELAY", "0"), ("MIMALLOC_RESET_DELAY", "0")]);
}

#[test]
fn tcmalloc() {
    zeros_and_contents("libtcmalloc_minimal.so.4", &[]);
    zeros_and_contents("libtcmalloc_minimal.so.4", &[("TCMALLOC_RELEASE_RATE", "100")]);
}

#[test]
fn glibc_with_its_tunables() {
    for tunables in ["glibc.malloc.hugetlb=1", "glibc.malloc.mmap_threshold=4096", "glibc.malloc.trim_threshold=0"] {
        let Some(program) = scenarios() else { return };
        let (program, object) = (program.to_str().expect("UTF-8"), object());
        let variables = [("GLIBC_TUNABLES", tunables)];
        for scenario in ["callocs", "reallocs"] {
            let plain = run(&[program, scenario], Way { preload: "", variables: &variables });
            let way = Way { preload: object.to_str().expect("UTF-8"), variables: &variables };
            let ran = run(&[program, scenario], way);
            assert_eq!((ran.stdout, ran.status), (plain.stdout, Some(0)), "{scenario} {tunables}: {}", ran.stderr);
            assert!(ran.report.contains("froze process"), "{}", ran.stderr);
        }
    }
}
