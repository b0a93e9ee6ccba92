//! Frozen memory behaves like anonymous memory: rows 1-3, 6-9, 11, 16, 18 and 19 of the hazards in
//! `docs/src/numbered.md`, and what an `mprotect` leaves that fails.

mod common;

use std::os::fd::AsRawFd;
use std::time::Duration;

use common::guarded::{madvise, mremap};
use common::{Memory, freeze, in_child, page, play, skip, slice, wait};
use palimpsest_fork::guard::{self, Protect, Remap};
use palimpsest_fork::{ExtentLen, Measure, Options, Pause, Skip, Stage};
use palimpsest_sys::pages::maps::{Maps, Permissions};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: usize = 1 << 20;

fn frozen(len: usize) -> Memory {
    let memory = Memory::apart(len);
    memory.fill(0..len, 1);
    freeze(&Options::new());
    assert!(memory.is_frozen());
    memory
}

#[test]
fn h01_discarded_memory_is_zero() {
    play("h01_discarded_memory_is_zero", || {
        let memory = frozen(16 * MIB);
        // Without a guard the snapshot comes back. SAFETY: the scenario's own memory.
        unsafe { libc::madvise(memory.at(0), page(), libc::MADV_DONTNEED) };
        assert!(memory.holds(0..page(), 1), "without the guard the frozen bytes come back");
        for (index, advice) in [libc::MADV_DONTNEED, libc::MADV_FREE].into_iter().enumerate() {
            let offset = index * 4 * MIB + MIB;
            assert_eq!(madvise(&memory, offset, 3 * MIB + page(), advice), Ok(()));
            assert!(memory.is_zero(offset..offset + 3 * MIB + page()), "{advice}");
            assert!(memory.holds(offset + 3 * MIB + page()..offset + 4 * MIB, 1));
        }
        assert!(memory.holds(0..MIB, 1));
        assert_eq!(in_child(|| i32::from(!memory.is_zero(MIB..4 * MIB))), 0);
        memory.fill(MIB..2 * MIB, 5);
        assert!(memory.holds(MIB..2 * MIB, 5), "and can be used again");
    });
}

#[test]
fn h01_many_small_discards_do_not_use_up_the_mappings() {
    play("h01_many_small_discards_do_not_use_up_the_mappings", || {
        // The environment may ask for less, but enough to exceed the limit: without PROCMAP_QUERY (Linux 6.11) each
        // discard reads the list of mappings.
        let mib = std::env::var("PALIMPSEST_DISCARDED_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(64);
        let memory = frozen(mib * MIB);
        let discards = memory.len / (2 * page());
        assert!(2 * discards > 4000, "{discards} discards are too few to tell");
        for offset in (0..memory.len).step_by(2 * page()) {
            assert_eq!(madvise(&memory, offset, page(), libc::MADV_DONTNEED), Ok(()));
        }
        let mappings = memory.mappings();
        assert!(mappings < 4000, "{mappings} mappings");
        for offset in (0..memory.len).step_by(2 * page()) {
            assert_eq!(memory.get(offset), 0);
            assert!(memory.holds(offset + page()..offset + 2 * page(), 1));
        }
    });
}

#[test]
fn h02_remove_is_refused_as_for_anonymous_memory() {
    play("h02_remove_is_refused_as_for_anonymous_memory", || {
        let memory = frozen(4 * MIB);
        assert_eq!(madvise(&memory, 0, page(), libc::MADV_REMOVE), Err(Errno::INVAL));
        assert!(memory.holds(0..memory.len, 1));
        // What comes first is refused, by its error: that of a private file is another.
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        let (rights, kind) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: the scenario's own memory.
        let at = unsafe { libc::mmap(memory.at(2 * MIB), page(), rights, kind, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        guard::replaced(memory.at(2 * MIB).addr()..memory.at(2 * MIB + page()).addr());
        assert_eq!(madvise(&memory, MIB, 2 * MIB, libc::MADV_REMOVE), Err(Errno::INVAL));
        assert_eq!(madvise(&memory, 2 * MIB, MIB, libc::MADV_REMOVE), Err(Errno::ACCESS));
    });
}

#[test]
fn h03_grown_memory_reads_zeros_even_past_the_guard() {
    play("h03_grown_memory_reads_zeros_even_past_the_guard", || {
        // As the C library's realloc does: the call itself, which nobody sees.
        let memory = Memory::apart(2 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        // SAFETY: the scenario's own memory.
        let at = unsafe { libc::mremap(memory.at(0), 2 * MIB, 8 * MIB, libc::MREMAP_MAYMOVE) };
        assert_ne!(at, libc::MAP_FAILED);
        let grown = Memory { start: at.cast(), len: 8 * MIB };
        assert!(grown.holds(0..2 * MIB, 1) && grown.is_zero(2 * MIB..8 * MIB));
        grown.fill(2 * MIB..8 * MIB, 2);
        assert!(grown.holds(2 * MIB..8 * MIB, 2));
        // What moved unseen is still known by its file.
        freeze(&Options::new());
        assert!(grown.holds(0..2 * MIB, 1) && grown.holds(2 * MIB..8 * MIB, 2));
    });
}

#[test]
fn h03a_shrunk_and_grown_memory_reads_zeros() {
    play("h03a_shrunk_and_grown_memory_reads_zeros", || {
        let memory = frozen(8 * MIB);
        let remap = |len, new_len| Remap {
            address: memory.at(0).addr(),
            len,
            new_len,
            flags: libc::MREMAP_MAYMOVE,
            new_address: 0,
        };
        assert_eq!(mremap(remap(8 * MIB, MIB)), Ok(memory.at(0).addr()));
        let at = mremap(remap(MIB, 8 * MIB)).expect("grown");
        let grown = Memory { start: std::ptr::with_exposed_provenance_mut(at), len: 8 * MIB };
        assert!(grown.holds(0..MIB, 1));
        assert!(grown.is_zero(MIB..8 * MIB));
    });
}

#[test]
fn h03b_several_mappings_move_as_one() {
    play("h03b_several_mappings_move_as_one", || {
        let memory = Memory::apart(12 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().extent(ExtentLen::Bytes(2 * MIB)));
        assert_eq!(madvise(&memory, 5 * MIB, MIB, libc::MADV_DONTNEED), Ok(()));
        assert!(memory.mappings() > 5);
        let remap = Remap {
            address: memory.at(0).addr(),
            len: memory.len,
            new_len: 20 * MIB,
            flags: libc::MREMAP_MAYMOVE,
            new_address: 0,
        };
        let at = mremap(remap).expect("moved");
        assert_ne!(at, memory.at(0).addr(), "an inaccessible mapping is in the way");
        let moved = Memory { start: std::ptr::with_exposed_provenance_mut(at), len: 20 * MIB };
        assert!(moved.holds(0..5 * MIB, 1) && moved.is_zero(5 * MIB..6 * MIB));
        assert!(moved.holds(6 * MIB..12 * MIB, 1) && moved.is_zero(12 * MIB..20 * MIB));
        assert_eq!(memory.mappings(), 0, "nothing is left at the old place");
        // The guards know it at the new place.
        assert_eq!(madvise(&moved, 0, MIB, libc::MADV_DONTNEED), Ok(()));
        assert!(moved.is_zero(0..MIB));
        // In place there is no room.
        let stuck = Remap { address: at, len: 20 * MIB, new_len: 1 << 46, flags: 0, new_address: 0 };
        assert_eq!(mremap(stuck), Err(Errno::NOMEM));
        assert!(moved.holds(MIB..5 * MIB, 1));
    });
}

#[test]
fn h07_flags_are_restored_or_the_mapping_is_skipped() {
    play("h07_flags_are_restored_or_the_mapping_is_skipped", || {
        use palimpsest_sys::pages::vmas::{Detail, VmaFlags, Vmas};
        let memory: Vec<_> = (0..5).map(|_| Memory::apart(4 * MIB)).collect();
        let advise = |index: usize, advice| {
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { libc::madvise(memory[index].at(0), 4 * MIB, advice) }, 0);
        };
        advise(0, libc::MADV_DONTDUMP);
        advise(1, libc::MADV_HUGEPAGE);
        advise(2, libc::MADV_DONTFORK);
        advise(3, libc::MADV_WIPEONFORK);
        memory.iter().for_each(|memory| memory.fill(0..4 * MIB, 1));
        // SAFETY: the scenario's own memory.
        let locked = unsafe { libc::mlock(memory[4].at(0), page()) } == 0;
        let report = freeze(&Options::new());
        let mut vmas = Vmas::with_capacity(10_000).expect("memory");
        vmas.read(Detail::Figures).expect("/proc");
        let has = |index: usize, flag| {
            vmas.iter().filter(|vma| memory[index].range().contains(&vma.start)).all(|vma| vma.flags.intersects(flag))
        };
        assert!(memory[0].is_frozen() && has(0, VmaFlags::DONT_DUMP));
        assert!(memory[1].is_frozen() && has(1, VmaFlags::HUGE_PAGE));
        assert!(has(0, VmaFlags::NO_HUGE_PAGE));
        let why = |index: usize| {
            report.skipped.iter().find(|range| memory[index].range().contains(&range.range.start)).map(|one| one.reason)
        };
        assert_eq!((why(2), why(3)), (Some(Skip::NotForked), Some(Skip::WipedOnFork)));
        assert!(has(2, VmaFlags::DONT_FORK) && has(3, VmaFlags::WIPE_ON_FORK));
        if locked {
            assert_eq!(why(4), Some(Skip::Locked));
        }
        memory.iter().for_each(|memory| assert!(memory.holds(0..4 * MIB, 1)));
    });
}

#[test]
fn h08_memory_that_is_to_be_wiped_is_thawed() {
    play("h08_memory_that_is_to_be_wiped_is_thawed", || {
        let memory = frozen(8 * MIB);
        memory.fill(MIB..2 * MIB, 2);
        assert_eq!(madvise(&memory, 0, 4 * MIB, libc::MADV_WIPEONFORK), Ok(()));
        assert!(memory.holds(0..MIB, 1) && memory.holds(MIB..2 * MIB, 2) && memory.holds(2 * MIB..8 * MIB, 1));
        assert_eq!(in_child(|| i32::from(!memory.is_zero(0..4 * MIB) || !memory.holds(4 * MIB..8 * MIB, 1))), 0);
    });
}

#[test]
fn h09_locking_thaws_and_holds_memory_once() {
    play("h09_locking_thaws_and_holds_memory_once", || {
        let memory = frozen(4 * MIB);
        guard::before_mlock(memory.range()).expect("thawed");
        assert!(memory.holds(0..memory.len, 1));
        assert!(!memory.is_frozen());
        assert_eq!(memory.mappings(), 1, "one anonymous mapping again");
        guard::before_mlockall().expect("thawed");
    });
}

const GUARD_INSTALL: i32 = 102;

/// Returns memory with a guard region at 3 MiB. Ends the scenario if the kernel has none.
fn guarded() -> Memory {
    let memory = Memory::apart(8 * MIB);
    memory.fill(0..memory.len, 1);
    // SAFETY: the scenario's own memory.
    if unsafe { libc::madvise(memory.at(3 * MIB), page(), GUARD_INSTALL) } != 0 {
        skip("the kernel has no guard regions (before Linux 6.13)");
    }
    memory
}

/// Returns the status of a child that reads a byte.
fn touches(memory: &Memory, offset: usize) -> i32 {
    // SAFETY: the child touches its own memory, and may die of it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        memory.get(offset);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    wait(child)
}

#[test]
fn h11_guard_regions_stay() {
    play("h11_guard_regions_stay", || {
        let memory = guarded();
        let report = freeze(&Options::new());
        let guarded: usize =
            report.skipped.iter().filter(|range| range.reason == Skip::Guarded).map(|range| range.bytes).sum();
        assert_eq!(guarded, 2 * MIB - page(), "one piece is left: {report}");
        assert!(memory.holds(0..3 * MIB, 1) && memory.holds(3 * MIB + page()..memory.len, 1));
        assert_eq!(touches(&memory, 3 * MIB), 1000 + libc::SIGSEGV, "the guard is there");
        assert_eq!(touches(&memory, 0), 0);
        // Guards put into frozen memory and removed again leave zeros.
        assert_eq!(madvise(&memory, 6 * MIB, page(), GUARD_INSTALL), Ok(()));
        assert_eq!(touches(&memory, 6 * MIB), 1000 + libc::SIGSEGV);
        assert_eq!(madvise(&memory, 6 * MIB, page(), GUARD_INSTALL + 1), Ok(()));
        assert_eq!(memory.get(6 * MIB), 0);
    });
}

/// Fails on: a slice that copies what lies around a guard, and shows zeros in its place: a stack that overflows would
/// go on into them.
#[test]
fn h11_guard_regions_stay_in_slices() {
    play("h11_guard_regions_stay_in_slices", || {
        let memory = guarded();
        freeze(&Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO)));
        slice();
        // As by a call inside the C library, which nobody sees. SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::madvise(memory.at(5 * MIB), page(), GUARD_INSTALL) }, 0);
        while slice().stage == Stage::UnderWay {}
        for mib in [3, 5] {
            assert_eq!(touches(&memory, mib * MIB), 1000 + libc::SIGSEGV, "the guard at {mib} MiB is there");
        }
        let parts = [0..3, 3..5, 5..8].map(|mibs| mibs.start * MIB + page()..mibs.end * MIB);
        assert!(parts.into_iter().all(|part| memory.holds(part, 1)));
        // What is taken at once is 128 KiB: all but two of these.
        let shown = Maps::read().expect("/proc");
        let frozen = shown.overlapping(memory.range()).filter(|entry| entry.path.is_some());
        assert_eq!(frozen.map(|entry| entry.end - entry.start).sum::<usize>(), memory.len - 2 * (128 << 10));
    });
}

#[test]
fn h06_h19_children_never_see_what_the_parent_freezes_later() {
    play("h06_h19_children_never_see_what_the_parent_freezes_later", || {
        let memory = frozen(16 * MIB);
        let (mut to_child, mut from_parent) = ([0; 2], [0; 1]);
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(to_child.as_mut_ptr()) }, 0);
        // SAFETY: one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: one byte of room.
            unsafe { libc::read(to_child[0], from_parent.as_mut_ptr().cast(), 1) };
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!memory.holds(0..memory.len, 1))) };
        }
        memory.fill(0..8 * MIB, 2);
        freeze(&Options::new());
        memory.fill(4 * MIB..12 * MIB, 3);
        freeze(&Options::new());
        // SAFETY: one byte.
        assert_eq!(unsafe { libc::write(to_child[1], [1_u8].as_ptr().cast(), 1) }, 1);
        assert_eq!(wait(child), 0);
        assert!(
            memory.holds(0..4 * MIB, 2) && memory.holds(4 * MIB..12 * MIB, 3) && memory.holds(12 * MIB..16 * MIB, 1)
        );
    });
}

#[test]
fn h16_the_program_break_moves_as_before() {
    play("h16_the_program_break_moves_as_before", || {
        // SAFETY: the C library's heap grows only by its own calls, and only this scenario makes some meanwhile.
        let sbrk = |by| unsafe { libc::sbrk(by) };
        let start = sbrk(8 << 20).addr();
        let memory =
            Memory { start: std::ptr::with_exposed_provenance_mut(start.next_multiple_of(page())), len: 7 * MIB };
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        assert!(memory.is_frozen());
        sbrk(-(4 << 20));
        assert!(memory.holds(0..3 * MIB, 1));
        sbrk(16 << 20);
        assert!(memory.holds(0..3 * MIB, 1));
        assert!(memory.is_zero(4 * MIB + page()..memory.len));
        memory.fill(0..memory.len, 2);
        assert!(memory.holds(0..memory.len, 2));
    });
}

#[test]
fn mprotect_works_on_parts() {
    play("mprotect_works_on_parts", || {
        let memory = frozen(8 * MIB);
        // SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::mprotect(memory.at(MIB), MIB, libc::PROT_READ) }, 0);
        freeze(&Options::new());
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(memory.at(MIB), MIB, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        memory.fill(MIB..2 * MIB, 2);
        assert!(memory.holds(0..MIB, 1) && memory.holds(MIB..2 * MIB, 2) && memory.holds(2 * MIB..8 * MIB, 1));
    });
}

#[test]
fn h25_pages_that_were_asked_out_are_not_lost() {
    play("h25_pages_that_were_asked_out_are_not_lost", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        // Without swap, nothing may happen; with swap, the pages are no longer present. SAFETY: changes no contents.
        unsafe { libc::madvise(memory.at(0), 8 * MIB, libc::MADV_PAGEOUT) };
        freeze(&Options::new());
        memory.fill(4 * MIB..8 * MIB, 2);
        // SAFETY: changes no contents.
        unsafe { libc::madvise(memory.at(0), 16 * MIB, libc::MADV_PAGEOUT) };
        freeze(&Options::new());
        assert!(memory.holds(0..4 * MIB, 1) && memory.holds(4 * MIB..8 * MIB, 2) && memory.holds(8 * MIB..16 * MIB, 1));
    });
}

#[test]
fn advice_given_after_the_freeze_outlives_replacements() {
    play("advice_given_after_the_freeze_outlives_replacements", || {
        // The memory must be absent in the child.
        let is_absent = |memory: Memory| in_child(|| i32::from(memory.mappings() > 0));
        let whole = frozen(4 * MIB);
        madvise(&whole, 0, whole.len, libc::MADV_DONTFORK).expect("allowed");
        madvise(&whole, 0, whole.len, libc::MADV_DONTNEED).expect("allowed");
        assert_eq!(is_absent(whole), 0);
        let locked = frozen(4 * MIB);
        madvise(&locked, 0, locked.len, libc::MADV_DONTFORK).expect("allowed");
        guard::before_mlock(locked.range()).expect("allowed");
        assert!(locked.holds(0..locked.len, 1));
        assert_eq!(is_absent(locked), 0);
        let secret = frozen(4 * MIB);
        madvise(&secret, 0, page(), libc::MADV_DONTDUMP).expect("allowed");
        madvise(&secret, 0, page(), libc::MADV_DONTNEED).expect("allowed");
        let is_dumped = |offset: usize| {
            let mut vmas = palimpsest_sys::pages::vmas::Vmas::with_capacity(10_000).expect("memory");
            vmas.read(palimpsest_sys::pages::vmas::Detail::Figures).expect("/proc");
            let at = secret.at(offset).addr();
            let vma = vmas.iter().find(|vma| vma.range().contains(&at)).expect("mapped");
            !vma.flags.intersects(palimpsest_sys::pages::vmas::VmaFlags::DONT_DUMP)
        };
        assert!(!is_dumped(0) && is_dumped(page()));
    });
}

#[test]
fn inaccessible_memory_is_thawed_and_passed_over() {
    play("inaccessible_memory_is_thawed_and_passed_over", || {
        let memory = frozen(8 * MIB);
        memory.fill(0..MIB, 2);
        let protect = |rights: i32| {
            // SAFETY: the scenario's own memory, which is not used meanwhile.
            assert_eq!(unsafe { libc::mprotect(memory.at(0), 4 * MIB, rights) }, 0);
        };
        protect(libc::PROT_NONE);
        let behind = Memory::apart(4 * MIB);
        behind.fill(0..behind.len, 3);
        assert_eq!(freeze(&Options::new()).stopped, None);
        assert!(behind.is_frozen(), "what comes later is not held up");
        guard::thaw(memory.range()).expect("thawed");
        assert!(memory.is_anonymous());
        let rights = Maps::read().expect("/proc");
        assert!(rights.at(memory.start.addr()).is_some_and(|entry| entry.permissions.to_string() == "---p"));
        protect(libc::PROT_READ | libc::PROT_WRITE);
        assert!(memory.holds(0..MIB, 2) && memory.holds(MIB..memory.len, 1));
    });
}

#[test]
fn memory_of_a_snapshot_is_discarded_to_zeros_and_put_back() {
    play("memory_of_a_snapshot_is_discarded_to_zeros_and_put_back", || {
        use palimpsest_fork::snapshot::{Scope, Snapshot, SnapshotOptions};
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 1);
        assert!(!guard::touches(memory.range()));
        let options = SnapshotOptions::new(Scope::Ranges(vec![memory.range()]));
        // SAFETY: one thread, and memory that is used through raw pointers alone.
        let mut snapshot = unsafe { Snapshot::take(&options) }.expect("taken");
        assert!(guard::touches(memory.range()) && !guard::touches(0x1000..0x2000));
        assert_eq!(palimpsest_fork::status(), palimpsest_fork::Status::default());
        for round in 0..3 {
            memory.fill(0..MIB, 2);
            // What happens without the guard. SAFETY: the scenario's own memory.
            assert_eq!(unsafe { libc::madvise(memory.at(0), page(), libc::MADV_DONTNEED) }, 0);
            assert!(memory.holds(0..page(), 1), "the bytes of the snapshot come back");
            for advice in [libc::MADV_DONTNEED, libc::MADV_FREE] {
                let (from, to) = (MIB / 2, 7 * MIB);
                memory.fill(from..to, 5);
                madvise(&memory, from, to - from, advice).expect("allowed");
                assert!(memory.is_zero(from..to) && memory.holds(to..memory.len, 1));
            }
            if round == 1 {
                freeze(&Options::new());
                assert!(guard::touches(memory.range()), "a freeze keeps what it did not freeze itself");
            }
            // SAFETY: as above.
            unsafe { snapshot.restore() }.expect("restored");
            assert!(memory.holds(0..memory.len, 1), "round {round}");
        }
    });
}

/// Fails on: rights that nobody knows after an `mprotect` that has failed at a hole, where no file may be opened to
/// find out; rights from before in what a discard leaves.
#[test]
fn after_rights_have_changed_up_to_a_hole_memory_is_discarded_as_before() {
    play("after_rights_have_changed_up_to_a_hole_memory_is_discarded_as_before", || {
        let memory = frozen(8 * MIB);
        // SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::munmap(memory.at(5 * MIB), MIB) }, 0);
        let tries = || {
            let (address, rights) = (memory.at(MIB).addr(), libc::PROT_READ);
            let asked = Protect { address, len: memory.len - MIB, rights, key: -1 };
            // SAFETY: 1. the scenario's own memory, which is only read from here on, but for its first part.
            assert_eq!(unsafe { guard::mprotect(asked) }, Err(Errno::NOMEM));
            for offset in [0, 2 * MIB, 7 * MIB] {
                madvise(&memory, offset, MIB, libc::MADV_DONTNEED).expect("allowed");
                assert!(memory.is_zero(offset..offset + MIB));
            }
            assert!(memory.holds(MIB..2 * MIB, 1) && memory.holds(3 * MIB..5 * MIB, 1));
            assert!(memory.holds(6 * MIB..7 * MIB, 1));
            memory.fill(0..MIB, 2);
            memory.fill(7 * MIB..memory.len, 2);
            0
        };
        assert_eq!(in_child(tries), 0, "in a child");
        guard::confined();
        tries();
        let maps = Maps::read().expect("/proc");
        let is_writable = |mib: usize| {
            let mapping = maps.at(memory.at(mib * MIB).addr());
            mapping.map(|mapping| mapping.permissions.contains(Permissions::WRITE))
        };
        let found = [0, 1, 2, 4, 5, 6, 7].map(is_writable);
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(found, [yes, no, no, no, None, yes, yes], "{maps:?}");
    });
}

/// Fails on: finding out what has changed by shorter calls, which the kernel grants where it has refused the whole.
#[test]
fn what_a_limit_has_refused_stays_refused() {
    play("what_a_limit_has_refused_stays_refused", || {
        let memory = frozen(4 * MIB);
        // As a reserve that nobody has touched.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the scenario's own memory.
        let at = unsafe { libc::mmap(memory.at(2 * MIB), 2 * MIB, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        guard::replaced(memory.at(2 * MIB).addr()..memory.range().end);
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
        let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("a line");
        let kilobytes: u64 = data.trim().trim_end_matches(" kB").parse().expect("a number");
        let most = Some((kilobytes << 10) + MIB as u64);
        let limit = Rlimit { current: most, maximum: None };
        setrlimit(Resource::Data, limit).expect("lower than before");
        let tries = || {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let asked = Protect { address: memory.at(0).addr(), len: memory.len, rights, key: -1 };
            // SAFETY: 1. the scenario's own memory.
            assert_eq!(unsafe { guard::mprotect(asked) }, Err(Errno::NOMEM));
            let maps = Maps::read().expect("/proc");
            let reserve = maps.at(memory.at(2 * MIB).addr()).expect("mapped");
            assert_eq!((reserve.permissions.to_string(), reserve.range().len() >= 2 * MIB), ("---p".to_owned(), true));
            madvise(&memory, 0, MIB, libc::MADV_DONTNEED).expect("allowed");
            assert!(memory.is_zero(0..MIB) && memory.holds(MIB..2 * MIB, 1));
            0
        };
        assert_eq!(in_child(tries), 0, "in a child");
        tries();
    });
}
