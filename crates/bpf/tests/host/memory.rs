//! Maps for which there is no memory: an error that says so, and nothing is kept.
//!
//! Mutants that are caught: values that are kept when there is no room for keys, an allocation that aborts.
#![expect(unsafe_code, reason = "processes are forked, and their address space is limited")]

use palimpsest_bpf::map::{MOST_BYTES, MapError};

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn maps_are_not_larger_than_maps_can_be() {
    let large = Definition::new("large", Kind::Array, 4, 1 << 26, 65);
    let Err(MapError::Large { name, bytes }) = Map::new(large) else { panic!("more than 4 GiB") };
    assert!(name == "large" && bytes > MOST_BYTES, "{bytes}");
}

/// A map of each kind with at least 128 MiB; arrays and hash maps also with timers.
fn larger() -> Vec<Definition> {
    let mut all: Vec<Definition> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let (key, value, entries) = match kind {
                Kind::RingBuffer | Kind::UserRingBuffer => (0, 0, 1 << 28),
                Kind::Queue | Kind::Stack => (0, 4096, 1 << 15),
                Kind::BloomFilter => (0, 8, 1 << 28),
                Kind::Programs | Kind::ArrayOfMaps => (4, 4, 1 << 26),
                Kind::HashOfMaps => (4, 4, 1 << 24),
                _ => (if kind == Kind::LpmTrie { 8 } else { 4 }, 4096, 1 << 15),
            };
            let inner = kind.has_maps().then(|| Box::new(Definition::new("inner", Kind::Array, 4, 8, 1)));
            Definition { inner, ..Definition::new("larger", kind, key, value, entries) }
        })
        .collect();
    all.extend(
        [Kind::Array, Kind::Hash]
            .map(|kind| Definition { timer: Some(0), ..Definition::new("larger", kind, 4, 16, 1 << 23) }),
    );
    all
}

/// What a child finds: 0 if all is right, otherwise which check failed; [`NO_LIMIT`] if there is more memory than there
/// may be.
fn child() -> u8 {
    let Ok(sizes) = std::fs::read_to_string("/proc/self/statm") else { return NO_LIMIT };
    let Some(pages) = sizes.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()) else { return NO_LIMIT };
    // SAFETY: it reads a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let most = pages * page + 64 * MIB;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: `limit` is there to be read.
    if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } != 0 {
        return NO_LIMIT;
    }
    if Vec::<u8>::new().try_reserve_exact(128 << 20).is_ok() {
        return NO_LIMIT;
    }
    let refused = |definition| matches!(Map::new(definition), Err(MapError::Memory { .. }));
    for (number, definition) in (1..).zip(larger()) {
        if !refused(definition) {
            return number;
        }
    }
    // The values of 34 MiB find room, each time; then the keys of 68 MiB do not. No arena of the C library has so much,
    // and what it has does not last for four rounds if values are kept.
    for round in 0..4 {
        let parts = Definition::new("parts", Kind::Hash, 512, 256, 136 << 10);
        match Map::new(parts) {
            Err(MapError::Memory { bytes, .. }) if bytes == 68 * MIB => {}
            _ => return 100 + round,
        }
    }
    if Map::new(Definition::new("enough", Kind::Array, 4, 1152, 1 << 15)).is_err() {
        return 110;
    }
    0
}

const NO_LIMIT: u8 = 120;

#[test]
fn no_memory_is_an_error_and_keeps_none() {
    // SAFETY: the child makes maps, and leaves; the allocator of the C library may be used in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "a child");
    if pid == 0 {
        let found = child();
        // SAFETY: nothing of the parent's is run any more.
        unsafe { libc::_exit(found.into()) };
    }
    let mut status = 0;
    // SAFETY: `status` is there to be written.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    match libc::WEXITSTATUS(status) as u8 {
        NO_LIMIT => println!("skipped: the address space of this process cannot be limited"),
        found => assert_eq!(found, 0, "which check failed"),
    }
}
