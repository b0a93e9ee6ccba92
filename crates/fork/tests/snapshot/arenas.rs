//! Snapshots of memory that an arena allocates.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use palimpsest_fork::arena::{Arena, Backing};

use super::*;

/// Fills a block with one byte, and notes it; fails if it overlaps another.
fn allocate(arena: &Arena, len: usize, blocks: &mut BTreeMap<usize, (usize, u8)>) {
    let block = arena.allocate(len, 16);
    assert!(!block.is_null());
    let fill = u8::try_from(blocks.len() % 251).unwrap();
    // SAFETY: a block of `len` bytes, made just now.
    unsafe { block.write_bytes(fill, len) };
    let before = blocks.range(..block.addr() + len).next_back();
    assert!(before.is_none_or(|(start, (len, _))| start + len <= block.addr()), "{block:p} is in another block");
    blocks.insert(block.addr(), (len, fill));
}

/// Looks at a byte of each line of the CPU's cache: all of them take an emulated CPU minutes.
fn assert_whole(blocks: &BTreeMap<usize, (usize, u8)>) {
    const LINE: usize = 64;
    for (start, (len, fill)) in blocks {
        // SAFETY: a block that was not freed.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(*start), *len) };
        let is_whole = bytes.iter().step_by(LINE).chain(bytes.last()).all(|byte| byte == fill);
        assert!(is_whole, "the block at {start:#x} changed");
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Forks a child that looks at all blocks.
fn fork_and_look(blocks: &BTreeMap<usize, (usize, u8)>) {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        assert_whole(blocks);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}

/// Allocates before the snapshot, in rounds, and after the last one.
fn come_back(arena: &Arena, options: &SnapshotOptions) {
    let mut blocks = BTreeMap::new();
    (0..10).for_each(|_| allocate(arena, 48, &mut blocks));
    allocate(arena, 5 << 20, &mut blocks);
    fork_and_look(&blocks);
    let mut snapshot = take(options);
    assert_eq!(arena.stats().aside, 0, "a restored record would unmap what others have there by then");
    let mut open = None;
    for _ in 0..3 {
        let mut more = blocks.clone();
        // One slab is not enough, and one segment is not.
        (0..3000).for_each(|_| allocate(arena, 48, &mut more));
        (0..2).for_each(|_| allocate(arena, 9 << 20, &mut more));
        assert_whole(&more);
        // The map of this round is in the heap, which comes back.
        std::mem::forget(more);
        restore(&mut snapshot);
        assert_whole(&blocks);
        let now = descriptors();
        assert_eq!(*open.get_or_insert(now), now, "a round leaves descriptors");
    }
    (0..3000).for_each(|_| allocate(arena, 48, &mut blocks));
    assert_whole(&blocks);
    // The child has memory from before the snapshot and from after it.
    fork_and_look(&blocks);
    drop(snapshot);
    allocate(arena, 20 << 20, &mut blocks);
    assert_whole(&blocks);
}

#[test]
fn an_arena_comes_back_whole() {
    play("arenas::an_arena_comes_back_whole", || {
        let arena = Arena::new();
        come_back(&arena, &whole());
        let other = Arena::new();
        allocate(&other, 100, &mut BTreeMap::new());
        let has_files = other.stats().memory.shared > 0;
        assert_eq!(arena.stats().memory.shared > 0, has_files, "there are files again once the snapshot is gone");
    });
}

#[test]
fn a_frozen_arena_comes_back_whole() {
    play("arenas::a_frozen_arena_comes_back_whole", || {
        let arena = Arena::new();
        assert!(!arena.allocate(1, 1).is_null());
        arena.freeze().unwrap();
        come_back(&arena, &whole().descriptors(Descriptors::Restore));
    });
}

#[test]
fn an_arena_of_a_round_leaves_nothing() {
    play("arenas::an_arena_of_a_round_leaves_nothing", || {
        let mut snapshot = take(&whole());
        let before = descriptors();
        for _ in 0..3 {
            let arena = Arena::new();
            allocate(&arena, 9 << 20, &mut BTreeMap::new());
            std::mem::forget(arena);
            restore(&mut snapshot);
        }
        assert_eq!(descriptors(), before);
    });
}

#[test]
fn a_snapshot_that_would_hold_half_of_an_arena_is_refused() {
    play("arenas::a_snapshot_that_would_hold_half_of_an_arena_is_refused", || {
        let arena = Arena::new();
        allocate(&arena, 100, &mut BTreeMap::new());
        let open = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let is_arenas = |path: &std::path::PathBuf| {
            std::fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("palimpsest-arena"))
        };
        let arenas: Vec<_> = open.filter(is_arenas).collect();
        if arenas.is_empty() {
            return println!("skipped: arenas have no files here");
        }
        for path in arenas {
            let number = path.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap();
            // SAFETY: what a program does that closes descriptors which it does not know.
            assert_eq!(unsafe { libc::close(number) }, 0);
        }
        // SAFETY: as in `take`.
        let refused = unsafe { Snapshot::take(&whole()) }.unwrap_err();
        assert!(matches!(&refused, TakeError::Arena(stranded) if stranded.bytes > 0), "{refused}");
    });
}

/// Zeros that an arena gets from a discard would be the bytes of the snapshot.
#[test]
fn memory_of_an_arena_in_a_snapshot_is_not_taken_for_zeros() {
    play("arenas::memory_of_an_arena_in_a_snapshot_is_not_taken_for_zeros", || {
        const LEN: usize = 8 << 20;
        for backing in [Backing::Anonymous, Backing::Memfd] {
            let arena = Arena::with_backing(backing);
            let block = arena.allocate(LEN, 1 << 16);
            // SAFETY: a block of this length.
            unsafe { block.write_bytes(7, LEN) };
            for options in [ranges([range(block, LEN / page())]), whole()] {
                if backing == Backing::Memfd {
                    arena.freeze().unwrap();
                }
                let _snapshot = take(&options);
                // SAFETY: allocated above, or below in the last turn.
                unsafe { arena.release(NonNull::new(block).unwrap()) };
                let again = arena.allocate_zeroed(LEN, 1 << 16);
                assert_eq!(again, block, "the test means this memory");
                // SAFETY: a block of this length.
                let bytes = unsafe { std::slice::from_raw_parts(again, LEN) };
                assert!(bytes.iter().step_by(64).all(|byte| *byte == 0), "{backing:?}");
                // SAFETY: as above.
                unsafe { block.write_bytes(7, LEN) };
            }
        }
    });
}
