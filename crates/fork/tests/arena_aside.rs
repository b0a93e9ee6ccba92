//! What a fork that freezes an arena leaves for later.

mod arena_process;
mod arena_support;

use arena_process::{descriptors, pin, turn, with_descriptors};
use arena_support::{Filled, forked};
use palimpsest_fork::arena::Arena;

/// Whether the kernel moves the page tables of a file's mapping (Linux 5.13), and there is room for them.
fn has_mirrors() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|at: char| !at.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let moves = numbers.next().zip(numbers.next()) >= Some((5, 13));
    if !moves {
        println!("skipped: Linux {release} unmaps at once what a fork freezes, from 5.13 on it is left for later");
    }
    let has_room = rustix::process::getrlimit(rustix::process::Resource::As).current.is_none();
    if !has_room {
        println!("skipped: address space is limited, so that a fork unmaps at once what it freezes");
    }
    moves && has_room
}

/// Fails on: a fork that waits until filled memory is unmapped; former mappings that nobody unmaps, or all in one go;
/// files that stay open; a seal that is left out.
#[test]
fn what_a_fork_freezes_is_unmapped_later_and_little_by_little() {
    let _turn = turn();
    if !has_mirrors() {
        return;
    }
    let arena = Arena::new();
    let block = Filled::zeroed(&arena, 33 << 20, 16, 1).expect("memory");
    let others: Vec<Filled> = (0..3).map(|seed| Filled::new(&arena, 1 << 20, 16, seed).expect("memory")).collect();
    let pinned = pin(block.bytes().as_ptr());
    assert_eq!(forked(|| block.is_right() && arena.stats().aside == 0, || {}), 0);
    let aside = arena.stats().aside;
    assert!(aside >= 33 << 20 && !descriptors().is_empty(), "{aside}");
    assert_eq!(arena.stats().unsealed, 0, "none could be sealed yet");
    assert_eq!(forked(|| block.is_right(), || {}), 0);
    assert_eq!(arena.stats().aside, aside, "a fork does not wait for it");
    let mut left = vec![aside];
    for mut other in others {
        assert!(other.resize(&arena, 3 << 19));
        other.free(&arena);
        left.push(arena.stats().aside);
    }
    assert!(left.is_sorted_by(|before, after| before > after), "{left:?}");
    while let Some(aside @ 1..) = left.last().copied() {
        assert!(Filled::new(&arena, 1 << 20, 16, 2).is_some());
        left.push(arena.stats().aside);
        assert!(aside > left[left.len() - 1], "{left:?}");
        assert!(aside - left[left.len() - 1] <= 8 << 20, "{left:?}");
    }
    assert!(block.is_right());
    // The new memory has files, which are open until they are frozen.
    arena.freeze().expect("the files are open");
    assert!(descriptors().is_empty());
    assert_eq!(arena.stats().unsealed, 1);
    drop(pinned);
}

/// Fails on: former mappings that outlive a call which says that nothing is left for later.
#[test]
fn freezing_trimming_and_freezing_again_leave_nothing_for_later() {
    let _turn = turn();
    if !has_mirrors() {
        return;
    }
    let calls: [fn(&Arena); 3] = [
        |arena| drop(arena.freeze()),
        |arena| assert!(arena.trim() < 9 << 20),
        // SAFETY: 1. the arena is this thread's alone.
        |arena| drop(unsafe { arena.refreeze() }),
    ];
    for call in calls {
        let arena = Arena::new();
        let block = Filled::new(&arena, 9 << 20, 16, 1).expect("memory");
        assert_eq!(forked(|| true, || {}), 0);
        assert!(arena.stats().aside > 0);
        call(&arena);
        assert_eq!((arena.stats().aside, descriptors()), (0, vec![]));
        assert!(block.is_right());
    }
}

/// Fails on: a child that does not reserve its holes in the mirror, or has no mirror; one that unmaps its parent's
/// places there.
#[test]
fn children_have_mirrors_of_their_own() {
    let _turn = turn();
    if !has_mirrors() {
        return;
    }
    let arena = Arena::new();
    let block = Filled::new(&arena, 9 << 20, 16, 1).expect("memory");
    let child = || {
        // Wherever these are put, they are not in the mirror.
        let others: Vec<Vec<u8>> = (0..64).map(|number| vec![number; 3 << 20]).collect();
        let more = Filled::new(&arena, 9 << 20, 16, 2).expect("memory");
        let grandchild = || block.is_right() && more.is_right();
        let is_right = forked(grandchild, || {}) == 0 && arena.stats().aside > 0;
        Filled::new(&arena, 9 << 20, 16, 3).expect("memory").free(&arena);
        arena.trim();
        is_right && grandchild() && (0..).zip(&others).all(|(number, other)| other.iter().all(|byte| *byte == number))
    };
    assert_eq!(forked(child, || {}), 0);
    assert!(block.is_right());
}

/// Fails on: descriptors that former mappings hold while new memory is refused for want of one.
#[test]
fn former_mappings_make_room_for_new_memory() {
    let _turn = turn();
    if !has_mirrors() {
        return;
    }
    let arena = Arena::new();
    let others: Vec<Arena> = (0..12).map(|_| Arena::new()).collect();
    let stats = with_descriptors(64, || {
        let _block = Filled::new(&arena, 15 << 20, 16, 1).expect("memory");
        assert_eq!(forked(|| true, || {}), 0);
        let _others: Vec<Filled> =
            others.iter().map(|arena| Filled::new(arena, 100, 16, 1).expect("memory of either kind")).collect();
        // All but one or two descriptors of arenas are in use now, and this takes several.
        let _more = Filled::new(&arena, 10 << 20, 16, 2).expect("memory");
        arena.stats()
    });
    assert_eq!((stats.refused, stats.memory.anonymous), (None, 0), "{stats}");
}

/// Fails on: descriptors of an arena that nobody uses, which leave others none.
#[test]
fn idle_arenas_leave_descriptors_to_others() {
    let _turn = turn();
    if !has_mirrors() {
        return;
    }
    let arenas: Vec<Arena> = (0..25).map(|_| Arena::new()).collect();
    let (idle, busy) = arenas.split_at(14);
    with_descriptors(64, || {
        let fill = |arenas: &[Arena]| -> Vec<Filled> {
            arenas.iter().map(|arena| Filled::new(arena, 3 << 19, 16, 1).expect("memory")).collect()
        };
        let _idle = fill(idle);
        assert_eq!(forked(|| true, || {}), 0);
        let _busy = fill(busy);
        assert!(busy.iter().all(|arena| arena.stats().refused.is_none()), "{}", busy[10].stats());
    });
}

fn page_faults() -> i64 {
    // SAFETY: all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills in the structure.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
    usage.ru_minflt
}

/// Fails on: memory whose descriptor the program has closed, moved and moved back at each fork, and so mapped anew page
/// by page.
#[test]
fn memory_that_cannot_be_frozen_stays_mapped_at_a_fork() {
    let _turn = turn();
    let arena = Arena::new();
    let mut block = Filled::new(&arena, 33 << 20, 16, 1).expect("memory");
    for descriptor in descriptors() {
        // SAFETY: daemons do this to descriptors that they do not know; the arena must cope.
        unsafe { libc::close(descriptor) };
    }
    assert_eq!(forked(|| true, || {}), 0);
    let before = page_faults();
    block.refill(2);
    let faults = page_faults() - before;
    assert!(faults < 1000, "{faults} page faults for {} pages", block.bytes().len() / 4096);
}
