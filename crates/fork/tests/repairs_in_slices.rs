//! Repairs of frozen memory in slices of no time, each of which does the least that it may. The kernel's list with the
//! figures of all mappings, which takes long, is out of reach meanwhile.

mod common;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use common::{Memory, freeze, guarded, in_child, kernels, page, play, skip, slice};
use palimpsest_fork::{ExtentLen, Measure, Options, Pause, Stage, guard, status};
use palimpsest_sys::memory::calls;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::{Pagemap, Wanted};
use palimpsest_sys::pages::vmas::{Detail, Label, VmaFlags, Vmas};

const MIB: usize = 1 << 20;
/// What a slice copies at most, if it has no time.
const PART: usize = 256 << 10;

fn in_slices() -> Options {
    Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO))
}

/// Returns frozen memory in extents of 4 MiB, which slices repair from now on.
fn frozen(len: usize) -> Memory {
    if kernels::is_old() {
        skip("before Linux 6.11 all mappings are listed");
    }
    let memory = Memory::apart(len);
    memory.fill(0..len, 1);
    freeze(&Options::new().measure(Measure::Nothing).extent(ExtentLen::Bytes(4 * MIB)));
    freeze(&in_slices());
    while slice().stage == Stage::UnderWay {}
    assert!(memory.is_frozen());
    // All entries are there, so that a write makes the next forks dear.
    assert!(memory.holds(0..len, 1));
    (0..4).for_each(|_| assert_eq!(in_child(|| 0), 0));
    memory
}

/// Puts an empty file in the place of the list with figures.
fn hide_figures() {
    const LIST: &CStr = c"/proc/thread-self/smaps";
    let mount = |source: &CStr, target: &CStr, flags| {
        // SAFETY: paths and numbers.
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), c"none".as_ptr(), flags, std::ptr::null()) == 0 }
    };
    // SAFETY: a number; the scenario has a process of its own.
    let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
    let is_private = is_apart && mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE);
    if !(is_private && mount(c"/dev/null", LIST, libc::MS_BIND)) {
        skip("mounting takes rights");
    }
    assert_eq!(std::fs::read("/proc/thread-self/smaps").expect("a file"), [0_u8; 0]);
}

/// Returns the numbers of the extents that are mapped in a range.
fn extents(range: Range<usize>) -> BTreeSet<u64> {
    let mut list = Vmas::with_capacity(1 << 12).expect("memory");
    list.read(Detail::Places).expect("/proc");
    let inside = list.iter().filter(|vma| vma.start < range.end && vma.end > range.start && vma.label == Label::Extent);
    inside.map(|vma| vma.inode).collect()
}

/// Returns the bytes written since they were frozen.
fn written(memory: &Memory) -> usize {
    let mut bytes = 0;
    let mut add = |run: Range<usize>| {
        bytes += run.len();
        ControlFlow::Continue(())
    };
    Pagemap::open_briefly().expect("/proc").scan(memory.range(), Wanted::Written, &mut add).expect("a scan");
    bytes
}

/// Forks until `is_done`, and calls `between` after each.
fn forks_until(mut between: impl FnMut(), is_done: impl Fn() -> bool) {
    let is_done_at_last = (0..20_000).any(|_| {
        assert_eq!(in_child(|| 0), 0);
        between();
        is_done()
    });
    assert!(is_done_at_last, "{:?}", status());
}

/// Fails on: a repair that looks at all mappings, or makes more than one part at a fork; bytes, advice or rights that
/// are lost; a map that does not know what was frozen again.
#[test]
fn what_is_written_is_frozen_again_part_by_part() {
    play("what_is_written_is_frozen_again_part_by_part", || {
        let memory = frozen(24 * MIB);
        guarded::madvise(&memory, 8 * MIB, 8 * MIB, libc::MADV_DONTDUMP).expect("advice");
        hide_figures();
        let mut salts = vec![1_u64; memory.len / page()];
        // Single pages, all of some parts, and nothing.
        let chosen = (0..salts.len()).filter(|index| index % 700 == 3 || (2000..2200).contains(index));
        for index in chosen {
            salts[index] = 2;
            memory.fill(index * page()..(index + 1) * page(), 2);
        }
        let holds = |salts: &[u64]| {
            let is_right = |(index, salt): (usize, &u64)| {
                let range = index * page()..(index + 1) * page();
                if *salt == 0 { memory.is_zero(range) } else { memory.holds(range, *salt) }
            };
            salts.iter().enumerate().all(is_right)
        };
        let mut before = written(&memory);
        assert_eq!(before, salts.iter().filter(|salt| **salt == 2).count() * page());
        let one_part = || {
            let now = written(&memory);
            assert!(before.saturating_sub(now) <= PART, "{before} to {now} bytes at one fork");
            before = now;
        };
        forks_until(one_part, || status().repairs > 0 && written(&memory) == 0);
        assert_eq!(in_child(|| i32::from(!holds(&salts))), 0);
        assert!(memory.is_frozen() && holds(&salts));
        // The next repair leaves alone what is shown as a whole.
        let rest = || extents(memory.range().start..memory.range().end - 4 * MIB);
        let before = rest();
        let last = salts.len() - 1;
        memory.fill(last * page()..(last + 1) * page(), 2);
        forks_until(|| (), || status().repairs > 1 && written(&memory) == 0);
        assert_eq!(rest(), before);
        salts[last] = 2;
        // What was there before is in files still: only the map tells guards to replace it.
        let gone = 1999 * page()..2101 * page();
        guarded::madvise(&memory, gone.start, gone.len(), libc::MADV_DONTNEED).expect("advice");
        assert!(memory.is_zero(gone.clone()));
        salts[1999..2101].fill(0);
        assert!(holds(&salts));
        // What is erased is in no file, whichever it was frozen in last.
        let secret = memory.range().start + 2150 * page();
        guard::forget(secret..secret + page()).expect("forgotten");
        assert!(extents(secret..secret + page()).is_empty() && holds(&salts));
        // SAFETY: the scenario's process has one thread; a path.
        assert_eq!(unsafe { libc::umount(c"/proc/thread-self/smaps".as_ptr()) }, 0);
        let mut list = Vmas::with_capacity(1 << 12).expect("memory");
        list.read(Detail::Figures).expect("/proc");
        let range = memory.range();
        for vma in list.iter().filter(|vma| vma.start < range.end && vma.end > range.start) {
            let is_advised = vma.flags.intersects(VmaFlags::DONT_DUMP);
            let should_be = (8 * MIB..16 * MIB).contains(&(vma.start.max(range.start) - range.start));
            assert_eq!(is_advised, should_be, "{vma:?}");
        }
    });
}

/// Fails on: memory of files that no mapping shows any more, and that stays with what they still show.
#[test]
fn files_that_are_hardly_shown_go_away() {
    play("files_that_are_hardly_shown_go_away", || {
        let memory = frozen(16 * MIB);
        hide_figures();
        let before = extents(memory.range());
        assert_eq!(before.len(), 4);
        for start in (0..memory.len).step_by(4 * MIB) {
            memory.fill(start..start + 5 * MIB / 2, 2);
        }
        // A page that is written each time keeps repairs due.
        let turn = Cell::new(2);
        let write = || {
            turn.set(turn.get() + 1);
            memory.fill(0..page(), turn.get());
        };
        forks_until(write, || extents(memory.range()).is_disjoint(&before));
        assert_eq!(status().extents, extents(0..usize::MAX).len(), "and nothing is known of them");
        let is_right = |start: usize| {
            memory.holds((start + page())..start + 5 * MIB / 2, 2)
                && memory.holds(start + 5 * MIB / 2..start + 4 * MIB, 1)
        };
        assert!((0..memory.len).step_by(4 * MIB).all(is_right));
    });
}

/// Fails on: memory that is frozen again and again although it is written to all the time; a part of it that is lost.
#[test]
fn what_is_written_all_the_time_is_left_alone() {
    play("what_is_written_all_the_time_is_left_alone", || {
        let memory = frozen(16 * MIB);
        hide_figures();
        let mut turn = 1;
        let write = || {
            turn += 1;
            memory.fill(5 * MIB..6 * MIB, turn);
        };
        forks_until(write, || status().hot_pieces > 0);
        assert!(memory.holds(5 * MIB..6 * MIB, turn));
        assert!(memory.holds(0..5 * MIB, 1) && memory.holds(6 * MIB..memory.len, 1));
        // It is one mapping to the program, whatever the kernel has made of it.
        guarded::madvise(&memory, 0, memory.len, libc::MADV_DONTNEED).expect("advice");
        assert!(memory.is_zero(0..memory.len));
    });
}

/// Takes the right to write to a range, and gives it back, as an interposer does.
fn toggle(range: &Range<usize>) {
    for rights in [Permissions::READ, Permissions::READ_WRITE] {
        guard::in_turn(range.clone(), || {
            // SAFETY: 1. the scenario's memory, which nobody writes to now.
            unsafe { calls::protect(range.clone().into(), rights) }.expect("mprotect");
            guard::protected(range.clone(), Ok(rights));
        });
    }
}

/// Fails on: slices that may not make files as long as an extent; a mapping that the map knows in several entries, and
/// that is left alone for ever.
#[test]
fn neither_a_limit_nor_rights_that_came_back_keep_anything_from_being_repaired() {
    play("neither_a_limit_nor_rights_that_came_back_keep_anything_from_being_repaired", || {
        let memory = frozen(8 * MIB);
        let start = memory.range().start + MIB;
        toggle(&(start..start + 16 * page()));
        hide_figures();
        let limit = libc::rlimit { rlim_cur: 1 << 30, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a number.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
        memory.fill(0..memory.len, 2);
        forks_until(|| (), || written(&memory) == 0);
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 2));
    });
}

/// Fails on: a pass that ends at a mapping which cannot be replaced, and begins anew; extents that are filled for it
/// again and again, and stay known.
#[test]
fn what_lies_above_sealed_memory_is_repaired() {
    play("what_lies_above_sealed_memory_is_repaired", || {
        const MSEAL: libc::c_long = 462;
        let memory = frozen(16 * MIB);
        // SAFETY: takes rights away from the scenario's memory.
        if unsafe { libc::syscall(MSEAL, memory.range().start, 4 * MIB, 0) } != 0 {
            skip("this kernel seals no memory");
        }
        memory.fill(0..memory.len, 2);
        forks_until(|| (), || written(&memory) == 4 * MIB && status().price > 0);
        assert!(memory.holds(0..memory.len, 2));
        forks_until(|| (), || status().extents == extents(0..usize::MAX).len());
    });
}

/// Fails on: advice that is forgotten as the map is written anew, so that a repair gives children what they must not
/// have.
#[test]
fn a_full_map_loses_no_advice() {
    play("a_full_map_loses_no_advice", || {
        let memory = frozen(64 * MIB);
        let secret = Memory { start: memory.at(60 * MIB).cast(), len: 4 * MIB };
        guarded::madvise(&secret, 0, secret.len, libc::MADV_DONTFORK).expect("advice");
        for index in 0..6200 {
            let start = memory.range().start + (2 * index + 1) * page();
            toggle(&(start..start + page()));
        }
        memory.fill(0..4 * MIB, 2);
        secret.fill(0..secret.len, 2);
        let rest = Memory { len: 60 * MIB, ..memory };
        let is_kept = || assert_eq!(in_child(|| i32::from(secret.get(5) == 0)), 1000 + libc::SIGSEGV);
        forks_until(is_kept, || written(&rest) == 0);
        is_kept();
    });
}

/// Fails on: a repair that is begun in slices, cannot go on in them, and makes each fork look at everything.
#[test]
fn a_userfaultfd_ends_a_pass_that_has_begun() {
    play("a_userfaultfd_ends_a_pass_that_has_begun", || {
        let memory = frozen(16 * MIB);
        memory.fill(0..memory.len, 2);
        forks_until(|| (), || status().price == 0);
        // SAFETY: a number.
        let watcher = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if watcher < 0 {
            skip("no userfaultfd can be had");
        }
        forks_until(|| (), || status().price > 0);
        forks_until(|| (), || written(&memory) == 0);
        assert!(memory.holds(0..memory.len, 2));
    });
}

/// Fails on: extents that stay known though the program has unmapped them.
#[test]
fn what_was_unmapped_is_forgotten() {
    play("what_was_unmapped_is_forgotten", || {
        let memory = frozen(20 * MIB);
        hide_figures();
        let before = status().frozen_bytes;
        // SAFETY: the scenario's memory, which is not used any more; nobody is told.
        assert_eq!(unsafe { libc::munmap(memory.at(0), 16 * MIB) }, 0);
        let rest = Memory { start: memory.at(16 * MIB).cast(), len: 4 * MIB };
        rest.fill(0..MIB, 2);
        forks_until(|| (), || written(&rest) == 0 && status().price > 0);
        assert_eq!(status().frozen_bytes, before - 16 * MIB);
        assert_eq!(status().extents, extents(0..usize::MAX).len());
    });
}

/// Fails on: new memory that waits until nothing is written to frozen memory any more.
#[test]
fn new_memory_is_frozen_though_old_memory_is_written_to() {
    play("new_memory_is_frozen_though_old_memory_is_written_to", || {
        let memory = frozen(16 * MIB);
        let later = Memory::apart(8 * MIB);
        later.fill(0..later.len, 3);
        let turn = Cell::new(0);
        let write = || {
            for _ in 0..4 {
                turn.set(turn.get() + 1);
                memory.set(turn.get() * 104_729 * page() % memory.len, 5);
            }
        };
        forks_until(write, || later.is_frozen());
        assert!(later.holds(0..later.len, 3));
    });
}
