//! Hot memory in huge pages: the bytes are right at every step, and nobody who wants none gets huge pages.

mod common;

use std::cell::Cell;
use std::time::Duration;

use common::gathering::{self, Child, expects_huge_pages, filled, plan, to_the_end};
use common::{Memory, freeze, guarded, in_child, page, play, skip, slice, wait};
use palimpsest_fork::{ExtentLen, Forked, Measure, Options, Pages, Pause, Pays, Stage, guard, status};
use palimpsest_sys::memory::calls::in_memory;
use palimpsest_sys::pages::vmas::{Detail, VmaFlags, Vmas};
use palimpsest_sys::proc::thp;

const PIECE: usize = 2 << 20;
const LEN: usize = 8 * PIECE;

/// Ends the scenario if no huge page can be had.
fn needs_huge_pages() {
    expects_huge_pages();
    let probe = Memory::unadvised(8 << 20);
    probe.fill(0..PIECE, 0);
    // SAFETY: a collapse keeps contents.
    let made = unsafe { libc::madvise(probe.at(0), PIECE, libc::MADV_COLLAPSE) } == 0;
    if !made || thp::enabled().is_ok_and(|when| when == thp::Anonymous::Never) {
        skip("no huge page can be had");
    }
}

/// Returns frozen memory in one extent.
fn frozen() -> Memory {
    let memory = Memory::unadvised(LEN);
    memory.fill(0..LEN, 1);
    freeze(&Options::new());
    assert!(memory.is_frozen());
    memory
}

/// Writes to a page in each 64 KiB of the pieces, so that huge pages are worth it.
fn write(memory: &Memory, pieces: std::ops::Range<usize>, value: u8) {
    for offset in (pieces.start * PIECE..pieces.end * PIECE).step_by(64 << 10) {
        memory.set(offset + 100, value);
    }
}

/// Whether the memory holds what [`frozen`] filled it with, and what was written since.
fn holds(memory: &Memory, pieces: std::ops::Range<usize>, value: u8) -> bool {
    let written = (pieces.start * PIECE..pieces.end * PIECE).step_by(64 << 10);
    memory.holds(0..memory.len, 1) && written.clone().all(|offset| memory.get(offset + 100) == value)
}

/// Forks until `is_done`, calling `before` each time. Returns after how many.
fn forks_until(mut before: impl FnMut(), is_done: impl Fn() -> bool) -> Option<usize> {
    (0..3000).find(|_| {
        before();
        assert_eq!(in_child(|| 0), 0);
        is_done()
    })
}

#[test]
fn what_is_written_to_becomes_huge_and_its_bytes_stay() {
    play("what_is_written_to_becomes_huge_and_its_bytes_stay", || {
        needs_huge_pages();
        let memory = frozen();
        let forks = forks_until(|| write(&memory, 1..4, 7), || memory.huge() == 3 * PIECE);
        assert!(forks.is_some(), "{} bytes are huge: {:?}", memory.huge(), status());
        assert!(holds(&memory, 1..4, 7));
        assert_eq!(status().hot_pieces, 3);
        // A child sees the same, and writes for itself.
        let child = || {
            let is_right = holds(&memory, 1..4, 7);
            write(&memory, 0..8, 9);
            i32::from(!(is_right && holds(&memory, 0..8, 9)))
        };
        assert_eq!(in_child(child), 0);
        assert!(holds(&memory, 1..4, 7));
        // Rights, advice and neighbours are as they were.
        memory.fill(0..LEN, 3);
        assert!(memory.holds(0..LEN, 3));
    });
}

/// Fails on: mending beside a child that still maps the pages; a huge page that is never looked at again.
#[test]
fn what_writes_beside_a_child_have_split_is_mended_once_the_child_is_gone() {
    play("what_writes_beside_a_child_have_split_is_mended_once_the_child_is_gone", || {
        needs_huge_pages();
        let memory = frozen();
        assert!(forks_until(|| write(&memory, 0..8, 7), || memory.huge() == LEN).is_some());
        let (told, teller) = std::io::pipe().expect("a pipe");
        // SAFETY: one thread, and nothing is discarded.
        let Forked::Parent(child) = (match unsafe { palimpsest_fork::fork() }.expect("forked") {
            Forked::Child => {
                drop(teller);
                let _ = std::io::Read::read(&mut &told, &mut [0]);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!holds(&memory, 0..8, 7))) }
            }
            parent => parent,
        }) else {
            unreachable!("children end above")
        };
        write(&memory, 0..8, 8);
        assert_eq!(memory.huge(), 0, "the kernel splits what is written beside a child");
        let present = memory.present();
        for _ in 0..300 {
            assert_eq!(in_child(|| 0), 0);
        }
        assert_eq!((memory.huge(), memory.present()), (0, present), "the child shows these pages, too");
        drop(teller);
        assert_eq!(wait(child.as_raw_nonzero().get()), 0, "the child sees what was when it was forked");
        // Where looks are dear, as on a busy machine, it may be cold before it is mended: then it is frozen again.
        let mended = forks_until(|| (), || memory.huge() == LEN || (status().hot_pieces == 0 && memory.is_frozen()));
        assert!(mended.is_some(), "{} bytes are huge: {:?}", memory.huge(), status());
        assert!(holds(&memory, 0..8, 8));
    });
}

/// Fails on: a huge page that rests for ever.
#[test]
fn what_has_become_cold_is_frozen_again() {
    play("what_has_become_cold_is_frozen_again", || {
        needs_huge_pages();
        // So little memory, and unmeasured, that the prices stay those of the table: a rest of 1893 forks on any
        // machine.
        let memory = Memory::unadvised(4 * PIECE);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().measure(Measure::Nothing));
        assert!(forks_until(|| write(&memory, 2..3, 7), || memory.huge() == PIECE).is_some());
        assert!(!memory.is_frozen());
        // Another freeze does not wait for debt, only for the end of the rest.
        let frozen = (0..100).find(|_| {
            (0..200).for_each(|_| assert_eq!(in_child(|| 0), 0));
            freeze(&Options::new().measure(Measure::Nothing));
            memory.is_frozen()
        });
        assert!(frozen.is_some_and(|turns| turns > 0), "{frozen:?}: {:?}", status());
        assert!(holds(&memory, 2..3, 7));
    });
}

/// Forks with writes to `memory`, of which nothing becomes huge: at least 300 times, and until some of it was repaired.
fn stays_in_base_pages(memory: &Memory) {
    let (turn, value) = (Cell::new(0_usize), Cell::new(0));
    let write_more = || {
        value.set(turn.get() as u8);
        write(memory, 0..8, value.get());
        turn.set(turn.get() + 1);
    };
    let is_done = || {
        assert_eq!(memory.huge(), 0);
        turn.get() >= 300 && status().repairs > 0
    };
    assert!(forks_until(write_more, is_done).is_some(), "{:?}", status());
    assert!(holds(memory, 0..8, value.get()));
}

#[test]
fn who_advises_against_huge_pages_gets_none() {
    play("who_advises_against_huge_pages_gets_none", || {
        // `apart` has the advice.
        let memory = Memory::apart(LEN);
        memory.fill(0..LEN, 1);
        freeze(&Options::new());
        stays_in_base_pages(&memory);
    });
}

#[test]
fn who_has_switched_huge_pages_off_gets_none() {
    play("who_has_switched_huge_pages_off_gets_none", || {
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
        stays_in_base_pages(&frozen());
    });
}

/// Fails on: a huge page for a piece that is a quarter populated.
#[test]
fn what_is_sparse_takes_no_more_memory() {
    play("what_is_sparse_takes_no_more_memory", || {
        if thp::enabled().is_ok_and(|when| when == thp::Anonymous::Always) {
            skip("the kernel itself makes huge pages of what is sparse (transparent_hugepage/enabled is always)");
        }
        let memory = Memory::unadvised(LEN);
        for piece in 0..8 {
            memory.fill(piece * PIECE..piece * PIECE + PIECE / 2, 1);
        }
        freeze(&Options::new());
        (0..300).for_each(|turn| {
            (0..LEN).step_by(PIECE).for_each(|start| {
                (0..PIECE / 2).step_by(64 << 10).for_each(|offset| memory.set(start + offset + 100, turn as u8));
            });
            assert_eq!(in_child(|| 0), 0);
            assert_eq!(memory.huge(), 0);
        });
        assert!(memory.present() <= LEN / 2 + 8 * page(), "{}", memory.present());
    });
}

/// Freezes in slices of no time, each of which does the least. Every twelfth ends an extent, so that one or two extents
/// show a piece: later slices come to the end of few extents in few forks.
fn frozen_in_slices() -> Memory {
    let memory = Memory::unadvised(LEN);
    memory.fill(0..LEN, 1);
    freeze(&Options::new().pause(Pause::Within(Duration::ZERO)).extent(ExtentLen::Bytes(PIECE)));
    while palimpsest_fork::progress().stage == Stage::UnderWay {
        let mut asked = 0;
        let mut is_idle = || {
            asked += 1;
            asked < 12
        };
        // SAFETY: 1. one thread, and nothing is discarded. 2. it counts.
        unsafe { palimpsest_fork::freeze_while(&mut is_idle) }.expect("slices are taken");
    }
    assert!(memory.is_frozen());
    memory
}

/// Who did what was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Slices,
    /// A repair, perhaps besides slices: measured times decide when one is due.
    Repairs,
}

/// Most slices per turn; each does nothing if none is wanted.
const MOST_SLICES: usize = 50;

/// Forks with slices after each, until `is_done`. Returns `None` if `forks` were not enough.
fn tended_until(forks: usize, mut between: impl FnMut(), is_done: impl Fn() -> bool) -> Option<By> {
    let repairs = status().repairs;
    let is_tended = (0..forks).any(|_| {
        assert_eq!(in_child(|| 0), 0);
        between();
        // Slices get a twentieth of the time between forks: at least one.
        std::thread::sleep(Duration::from_millis(20));
        // Not asked whether one is due: on a slow machine they are taken at forks only.
        for _ in 0..MOST_SLICES {
            slice();
        }
        is_done()
    });
    is_tended.then_some(if status().repairs == repairs { By::Slices } else { By::Repairs })
}

/// Skips a scenario of slices if repairs have done it.
fn needs_slices(tended: Option<By>) {
    if tended == Some(By::Repairs) {
        skip("forks were so slow that a repair was due before slices were done");
    }
}

/// Fails on: an extent whose map says that it still shows what has left it; a piece made beside a child that still maps
/// it; a slice that leaves part of a piece behind.
#[test]
fn between_forks_slices_make_huge_pages_and_mend_them() {
    play("between_forks_slices_make_huge_pages_and_mend_them", || {
        needs_huge_pages();
        let memory = frozen_in_slices();
        let frozen = status();
        let mut turn = 0;
        let mut writing = || {
            turn += 1;
            write(&memory, 2..6, turn);
        };
        let tended = tended_until(3000, &mut writing, || memory.huge() == 4 * PIECE);
        needs_slices(tended);
        assert_eq!(tended, Some(By::Slices), "{} bytes are huge", memory.huge());
        assert!(holds(&memory, 2..6, turn));
        let now = status();
        assert_eq!((now.frozen_bytes + 4 * PIECE, now.hot_pieces), (frozen.frozen_bytes, 4));
        assert!(now.extents < frozen.extents, "extents that show nothing are given up: {now:?}, {frozen:?}");
        // Discarded memory of a piece that has left its extent reads as zeros without a guard. SAFETY: the scenario's
        // own memory.
        assert_eq!(unsafe { libc::madvise(memory.at(3 * PIECE), PIECE, libc::MADV_DONTNEED) }, 0);
        assert!(memory.is_zero(3 * PIECE..4 * PIECE) && memory.holds(0..3 * PIECE, 1));
        memory.fill(3 * PIECE..4 * PIECE, 1);
        write(&memory, 2..6, turn);

        let (told, teller) = std::io::pipe().expect("a pipe");
        // SAFETY: one thread, and nothing is discarded.
        let child = match unsafe { palimpsest_fork::fork() }.expect("forked") {
            Forked::Child => {
                drop(teller);
                let _ = std::io::Read::read(&mut &told, &mut [0]);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!holds(&memory, 2..6, turn))) }
            }
            Forked::Parent(child) => child.as_raw_nonzero().get(),
        };
        write(&memory, 2..6, 200);
        assert_eq!(memory.huge(), 0, "the kernel splits what is written beside a child");
        assert_eq!(tended_until(10, || (), || memory.huge() > 0), None, "the child shows these pages");
        drop(teller);
        assert_eq!(wait(child), 0, "the child sees what was when it was forked");
        let mended = tended_until(3000, || write(&memory, 2..6, 201), || memory.huge() >= 3 * PIECE);
        assert!(mended.is_some(), "{} bytes are huge", memory.huge());
        assert!(holds(&memory, 2..6, 201));
        // A full round agrees with what slices have noted.
        freeze(&Options::new());
        assert!(holds(&memory, 2..6, 201));
    });
}

/// Fails on: a copy of what a child still shows, which takes memory that a plain fork does not.
#[test]
fn what_was_written_before_a_fork_waits_for_the_child() {
    play("what_was_written_before_a_fork_waits_for_the_child", || {
        needs_huge_pages();
        let memory = frozen_in_slices();
        // Let it see what a clean fork takes first.
        (0..3).for_each(|_| assert_eq!(in_child(|| 0), 0));
        write(&memory, 2..6, 7);
        // A twentieth of it is more than slices take that find nothing but a child.
        std::thread::sleep(Duration::from_secs(1));
        let child = Child::fork(|| holds(&memory, 2..6, 7));
        // By measured times a repair may be due already, in place of which this fork takes a slice.
        let before = (memory.huge(), memory.present());
        gathering::slices(MOST_SLICES);
        assert_eq!((memory.huge(), memory.present()), before, "the child shows these pages, too");
        child.end();
        let made = tended_until(3000, || (), || memory.huge() == 4 * PIECE || status().repairs > 0);
        assert!(made.is_some(), "{} bytes are huge: {:?}", memory.huge(), status());
        assert!(holds(&memory, 2..6, 7));
    });
}

/// Fails on: pieces that count twice as not frozen any more, since they were made in the slice that ends a pass.
#[test]
fn what_a_whole_pass_makes_in_one_slice_is_counted_once() {
    play("what_a_whole_pass_makes_in_one_slice_is_counted_once", || {
        needs_huge_pages();
        let memory = Memory::unadvised(LEN);
        memory.fill(0..LEN, 1);
        freeze(&Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::from_secs(100))));
        while slice().stage == Stage::UnderWay {}
        (0..4).for_each(|_| assert_eq!(in_child(|| 0), 0));
        let before = status().frozen_bytes;
        assert!(forks_until(|| write(&memory, 2..6, 7), || memory.huge() == 4 * PIECE).is_some(), "{:?}", status());
        assert_eq!(status().frozen_bytes, before - 4 * PIECE);
        assert!(holds(&memory, 2..6, 7));
    });
}

/// Fails on: a refused piece whose old mapping does not go back.
#[test]
fn a_refusal_leaves_everything_as_it_was() {
    play("a_refusal_leaves_everything_as_it_was", || {
        let memory = frozen_in_slices();
        // Slices do not ask again, so that the kernel is the one to refuse. SAFETY: takes numbers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
        let turn = Cell::new(0);
        let writing = || {
            turn.set(turn.get() + 1);
            write(&memory, 2..6, turn.get());
        };
        // Until a repair is made, in slices or in one go: what it freezes has mappings of its own.
        let is_made = || {
            assert!(memory.is_frozen() && holds(&memory, 2..6, turn.get()));
            memory.huge() > 0 || status().repairs > 0
        };
        let made = tended_until(40, writing, is_made);
        assert!(made != Some(By::Slices) && memory.huge() == 0, "{made:?}");
        assert!(memory.is_frozen() && holds(&memory, 2..6, turn.get()));
    });
}

/// Fails on: a due repair that does not make way.
#[test]
fn who_never_waits_gets_a_slice_at_each_fork_instead_of_a_repair() {
    play("who_never_waits_gets_a_slice_at_each_fork_instead_of_a_repair", || {
        needs_huge_pages();
        let memory = frozen_in_slices();
        // Let it see what a clean fork takes first.
        (0..3).for_each(|_| assert_eq!(in_child(|| 0), 0));
        let huge = Cell::new(0);
        let writing = || {
            write(&memory, 1..7, 7);
            huge.set(memory.huge());
        };
        // A slice of no time makes one piece.
        let is_done = || {
            assert!(memory.huge() <= huge.get() + PIECE, "more than one piece at a fork");
            memory.huge() == 6 * PIECE
        };
        assert!(forks_until(writing, is_done).is_some(), "{} bytes are huge: {:?}", memory.huge(), status());
        if status().repairs > 0 {
            skip("forks were so slow that a repair was due before slices were done");
        }
        assert!(holds(&memory, 1..7, 7));
    });
}

/// Fails on: taking flags of the last round for the present ones.
#[test]
fn advice_that_came_after_the_freeze_is_kept() {
    play("advice_that_came_after_the_freeze_is_kept", || {
        needs_huge_pages();
        let memory = frozen_in_slices();
        guarded::madvise(&memory, 3 * PIECE, PIECE, libc::MADV_DONTFORK).expect("given");
        guarded::madvise(&memory, 4 * PIECE, PIECE, libc::MADV_DONTDUMP).expect("given");
        let made = tended_until(3000, || write(&memory, 2..6, 7), || memory.huge() == 3 * PIECE);
        needs_slices(made);
        assert_eq!(made, Some(By::Slices), "{} bytes are huge", memory.huge());
        assert!(holds(&memory, 2..6, 7));
        let mut vmas = Vmas::with_capacity(1 << 14).expect("memory");
        vmas.read(Detail::Figures).expect("/proc");
        let flags = |piece: usize| {
            let place = memory.at(piece * PIECE).addr();
            vmas.iter().find(|vma| vma.range().contains(&place)).expect("mapped").flags
        };
        assert!(flags(3).intersects(VmaFlags::DONT_FORK) && flags(4).intersects(VmaFlags::DONT_DUMP));
        assert!(!flags(5).intersects(VmaFlags::DONT_FORK.union(VmaFlags::DONT_DUMP)));
        let third = memory.range().start + 3 * PIECE;
        assert_eq!(in_child(|| i32::from(in_memory((third..third + page()).into()).is_some())), 0);
    });
}

/// Fails on: huge pages in a mapping of another kind, which the program has put there since the plan.
#[test]
fn what_is_no_longer_private_is_not_gathered() {
    play("what_is_no_longer_private_is_not_gathered", || {
        gathering::needs_huge_pages();
        let memory = filled();
        let options = gathering::in_slices();
        // For as long as listing so little takes here: all is planned before anything is gathered.
        let begun = plan(&options.pause(Pause::Within(Duration::from_secs(1000)))).progress.expect("slices");
        assert!(!begun.looked.is_zero(), "{begun:?}");
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED | libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let place = memory.at(2 * PIECE);
        // SAFETY: the scenario's memory, which nobody needs any more.
        assert_eq!(unsafe { libc::mmap(place, 2 * PIECE, rights, kind, -1, 0) }, place);
        guard::replaced(memory.at(2 * PIECE).addr()..memory.at(4 * PIECE).addr());
        memory.fill(2 * PIECE..4 * PIECE, 1);
        to_the_end(|_| ());
        let mut vmas = Vmas::with_capacity(1 << 14).expect("memory");
        vmas.read(Detail::Figures).expect("/proc");
        let huge = vmas.iter().map(|vma| vma.huge).sum::<usize>() / PIECE;
        assert_eq!((memory.huge(), status().hot_pieces), (6 * PIECE, huge), "{:?}", status());
        let is_shared = in_child(|| {
            memory.fill(2 * PIECE..4 * PIECE, 2);
            0
        });
        assert_eq!(is_shared, 0);
        assert!(memory.holds(2 * PIECE..4 * PIECE, 2) && memory.holds(4 * PIECE..LEN, 1));
    });
}

/// Fails on: leaving it to kernels before 6.18, which make no huge page of a piece of which every page is shared or
/// write-protected, as after a fork.
#[test]
fn what_was_not_written_to_since_a_fork_is_gathered_too() {
    play("what_was_not_written_to_since_a_fork_is_gathered_too", || {
        needs_huge_pages();
        if thp::enabled().is_ok_and(|when| when == thp::Anonymous::Always) {
            skip("the kernel makes huge pages by itself (transparent_hugepage/enabled)");
        }
        let memory = Memory::unadvised(LEN);
        memory.fill(0..LEN, 1);
        assert_eq!(in_child(|| 0), 0, "its parent's pages are write-protected from here on");
        let pause = Pause::Within(Duration::ZERO);
        let options =
            Options::new().measure(Measure::Nothing).pages(Pages::Gather).pays(Pays::Within(1500)).pause(pause);
        freeze(&options);
        while palimpsest_fork::progress().stage == Stage::UnderWay {
            slice();
        }
        assert_eq!((memory.huge(), memory.holds(0..LEN, 1)), (LEN, true), "{:?}", palimpsest_fork::progress());
    });
}
