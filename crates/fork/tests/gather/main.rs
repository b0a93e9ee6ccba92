//! Gathering: pieces are put into huge pages where they are, on request, since that pays sooner than freezing. The
//! bytes are right at every step, and what cannot be gathered is frozen. With a budget of no time, so that each slice
//! makes one piece, whatever the machine does meanwhile.

#[path = "../common/mod.rs"]
mod common;
mod listed;
mod oracle;
mod remembered;
mod threads;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::gathering::{
    Child, LEN, PIECE, about_to_wait, by_deputies, children, filled, in_slices, needs_huge_pages, plan,
    says_what_it_took, slices, to_the_end,
};
use common::notified::{Call, kill_for};
use common::{Memory, in_child, page, play, slice, status_kb};
use palimpsest_fork::{OtherThreads, Pause, Pays, Stage, progress, status};

/// Fails on: a slice that makes more than fits; a piece that is copied elsewhere; one that is frozen as well.
#[test]
fn piece_by_piece_memory_becomes_huge_where_it_is_and_what_is_written_between_stays() {
    play("piece_by_piece_memory_becomes_huge_where_it_is_and_what_is_written_between_stays", piece_by_piece);
}

pub(crate) fn piece_by_piece() {
    needs_huge_pages();
    let memory = filled();
    let mappings = memory.mappings();
    let mut report = plan(&in_slices());
    let mut salts = vec![1_u64; LEN / page()];
    let mut huge = 0;
    let done = to_the_end(|number| {
        let now = memory.huge();
        assert!(now <= huge + PIECE, "more than one piece in a slice");
        huge = now;
        for index in [number * 37, number * 512, number * 512 + 511] {
            let index = index % salts.len();
            salts[index] = number as u64 + 2;
            memory.fill(index * page()..(index + 1) * page(), salts[index]);
        }
    });
    assert_eq!((done.stage, memory.huge(), memory.mappings()), (Stage::Done, LEN, mappings));
    assert!(memory.is_anonymous() && done.gathered_bytes >= LEN, "{done:?}");
    assert!(status().hot_pieces >= LEN / PIECE, "{:?}", status());
    let is_right = || {
        let mut pages = salts.iter().enumerate();
        pages.all(|(index, salt)| memory.holds(index * page()..(index + 1) * page(), *salt))
    };
    assert!(is_right());
    assert_eq!(in_child(|| i32::from(!is_right())), 0);
    report.update();
    says_what_it_took(&report, done);
    // It is the program's memory as ever: discarded by an unguarded call, it reads as zeros. SAFETY: the scenario's
    // own memory.
    assert_eq!(unsafe { libc::madvise(memory.at(3 * PIECE), PIECE, libc::MADV_DONTNEED) }, 0);
    assert!(memory.is_zero(3 * PIECE..4 * PIECE));
}

/// Fails on: making huge pages at each fork of a program that never waits; taking the time before the first fork for a
/// time without waits.
#[test]
fn who_forks_again_and_again_without_waiting_has_all_frozen() {
    play("who_forks_again_and_again_without_waiting_has_all_frozen", || {
        needs_huge_pages();
        let memory = filled();
        plan(&in_slices());
        assert_eq!(in_child(|| 0), 0);
        assert_eq!((memory.huge(), memory.is_anonymous()), (0, true), "the fork at which it is planned takes no slice");
        for _ in 0..3 {
            about_to_wait();
            assert_eq!(in_child(|| 0), 0);
        }
        let gathered = memory.huge();
        assert!((1..=3).contains(&(gathered / PIECE)), "a piece at each fork of who waits in between: {gathered}");
        let forks = (0..1 << 10).find(|_| {
            assert_eq!(in_child(|| i32::from(!memory.holds(0..LEN, 1))), 0);
            progress().stage == Stage::Done
        });
        assert!(forks.is_some() && memory.holds(0..LEN, 1), "{:?}", progress());
        assert_eq!((memory.huge(), progress().frozen_bytes >= LEN - gathered), (gathered, true), "{:?}", progress());
    });
}

/// Fails on: copying pages that a child still maps; waiting for a child in vain for ever.
#[test]
fn what_a_child_shows_waits_until_it_is_gone() {
    play("what_a_child_shows_waits_until_it_is_gone", beside_a_child);
}

pub(crate) fn beside_a_child() {
    needs_huge_pages();
    let memory = filled();
    plan(&in_slices());
    let child = Child::fork(|| memory.holds(0..LEN, 1));
    let before = memory.huge();
    let rss = status_kb("RssAnon");
    slices(40);
    assert_eq!(memory.huge(), before, "the child shows these pages, too");
    assert!(status_kb("RssAnon") <= rss + 1024 && memory.is_anonymous());
    // Looked at again if others had the CPU for the rest; on a slow machine slices come at forks only.
    let is_put_off = |_| {
        slice();
        palimpsest_fork::next_slice().is_none_or(|rest| !rest.is_zero())
    };
    assert!((0..300).any(is_put_off), "it is waited for ever more seldom");
    child.end();
    let done = to_the_end(|_| ());
    assert_eq!((done.stage, memory.huge()), (Stage::Done, LEN));
    assert!(memory.holds(0..LEN, 1));
}

/// Fails on: forks beside a child that stays, which find nothing to do for ever.
#[test]
fn what_a_child_shows_from_fork_to_fork_is_frozen() {
    play("what_a_child_shows_from_fork_to_fork_is_frozen", || {
        needs_huge_pages();
        let memory = filled();
        plan(&in_slices());
        let child = Child::fork(|| memory.holds(0..LEN, 1));
        let forks = (0..1 << 10).find(|_| {
            assert_eq!(in_child(|| i32::from(!memory.holds(0..LEN, 1))), 0);
            progress().stage == Stage::Done
        });
        assert!(forks.is_some() && memory.holds(0..LEN, 1), "{:?}", progress());
        assert!(progress().frozen_bytes > 0, "{:?}", progress());
        child.end();
    });
}

/// Fails on: waiting for one child after the other, and gathering a piece in between; freezing what is written to.
#[test]
fn what_is_gathered_too_slowly_beside_children_is_frozen_unless_it_is_written_to() {
    play("what_is_gathered_too_slowly_beside_children_is_frozen_unless_it_is_written_to", unless_it_is_written_to);
}

pub(crate) fn unless_it_is_written_to() {
    needs_huge_pages();
    for writes in [true, false] {
        let memory = filled();
        plan(&in_slices());
        for _ in 0..5 {
            let child = Child::fork(|| memory.holds(0..LEN, 1));
            let before = memory.huge();
            if writes {
                (0..LEN).step_by(PIECE).for_each(|start| memory.fill(start..start + page(), 1));
            }
            slices(20);
            child.end();
            assert!(memory.huge() <= before || !memory.is_anonymous(), "the child shows these pages, too");
            slice();
        }
        assert_eq!(memory.is_anonymous(), writes, "{:?}", progress());
        let done = to_the_end(|_| ());
        assert_eq!((done.frozen_bytes >= LEN / 2, memory.huge() == LEN), (!writes, writes), "{done:?}");
        assert!(memory.holds(0..LEN, 1));
        // SAFETY: the scenario's own memory, which nobody uses any more.
        assert_eq!(unsafe { libc::munmap(memory.at(0), memory.len) }, 0);
    }
}

/// Fails on: filling up a sparse piece; freezing a huge page with what is left.
#[test]
fn what_cannot_be_gathered_is_frozen() {
    play("what_cannot_be_gathered_is_frozen", || {
        needs_huge_pages();
        // `apart` has the advice against huge pages.
        let (unwanted, sparse, whole) = (Memory::apart(LEN), Memory::unadvised(LEN), filled());
        unwanted.fill(0..LEN, 1);
        (0..LEN).step_by(PIECE).for_each(|start| sparse.fill(start..start + PIECE / 2, 2));
        let present = unwanted.present() + sparse.present();
        plan(&in_slices());
        let done = to_the_end(|_| ());
        assert_eq!((done.stage, unwanted.huge(), sparse.huge()), (Stage::Done, 0, 0));
        assert!(unwanted.is_frozen() && !sparse.is_anonymous(), "{done:?}");
        assert!(unwanted.present() + sparse.present() <= present + PIECE);
        assert!(unwanted.holds(0..LEN, 1) && whole.holds(0..LEN, 1));
        assert_eq!((whole.huge(), whole.is_anonymous()), (LEN, true), "{done:?}");
        assert!((0..LEN).step_by(PIECE).all(|start| sparse.holds(start..start + PIECE / 2, 2)));
    });
}

/// Fails on: leaving huge pages that would pay once frozen.
#[test]
fn who_forks_often_enough_has_all_frozen() {
    play("who_forks_often_enough_has_all_frozen", || {
        needs_huge_pages();
        for pays in [Pays::Anyway, Pays::Within(1_000_000)] {
            let memory = filled();
            plan(&in_slices().pays(pays));
            let done = to_the_end(|_| ());
            assert_eq!((done.stage, done.gathered_bytes), (Stage::Done, 0));
            assert!(memory.is_frozen() && memory.holds(0..LEN, 1), "{pays:?}");
        }
    });
}

/// Fails on: a pass that finds a split piece only by luck, or never comes to the second one; a slice that mends all;
/// mending beside a child.
#[test]
fn what_a_child_has_split_is_whole_before_the_next_fork_without_a_repair() {
    play("what_a_child_has_split_is_whole_before_the_next_fork_without_a_repair", without_a_repair);
}

pub(crate) fn without_a_repair() {
    needs_huge_pages();
    let memory = filled();
    plan(&in_slices());
    let is_slow = palimpsest_fork::next_slice().is_none();
    to_the_end(|_| ());
    assert_eq!(in_child(|| 0), 0);
    // A twentieth of it is more than slices take that find nothing but a child.
    std::thread::sleep(Duration::from_secs(2));
    for turn in 2..6 {
        let child = Child::fork(|| memory.holds(0..page(), turn - 1));
        (0..LEN).step_by(PIECE).for_each(|start| memory.fill(start..start + page(), turn));
        if turn == 2 {
            slices(3);
            assert!(palimpsest_fork::next_slice().is_some() || is_slow, "the child is waited for");
        }
        assert_eq!(memory.huge(), 0, "the kernel splits what is written beside a child");
        // Slices get a part of the time between forks.
        std::thread::sleep(Duration::from_millis(40));
        slices(20);
        assert_eq!(memory.huge(), 0, "the child shows these pages");
        child.end();
        let huge = mend_one_by_one(&memory);
        // Nobody forks meanwhile. On a slow machine slices are taken at forks only, or their time is over.
        let has_time = turn == 2 && palimpsest_fork::next_slice().is_some();
        assert!(!has_time || huge == LEN, "slices go round in circles: {huge} bytes are huge");
        // On a slow machine, slices may need another fork for as much time as that takes.
        let forks = (0..3000).find(|_| {
            // Not asked whether one is due: on a slow machine they are taken at forks only.
            slices(50);
            let is_whole = memory.huge() == LEN;
            if !is_whole {
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(in_child(|| 0), 0);
            }
            is_whole
        });
        assert!(forks.is_some(), "{} bytes are huge: {:?}", memory.huge(), status());
        assert!((0..LEN).step_by(PIECE).all(|start| memory.holds(start..start + page(), turn)));
    }
    // By measured times a repair may be due before slices have done their work.
    println!("{} repairs", status().repairs);
    assert_eq!(status().frozen_bytes, 0, "{:?}", status());
}

/// Takes more slices than a few passes over the memory need. Each mends one piece at most. Returns what is huge then.
fn mend_one_by_one(memory: &Memory) -> usize {
    (0..8 * LEN / PIECE).fold(memory.huge(), |before, _| {
        slice();
        let now = memory.huge();
        assert!(now <= before + PIECE, "more than one piece in a slice");
        now
    })
}

/// Fails on: a slice of a new plan that mends as many gathered pieces as it finds, or counts them a second time.
#[test]
fn what_was_split_since_is_mended_piece_by_piece_by_a_new_plan_too() {
    play("what_was_split_since_is_mended_piece_by_piece_by_a_new_plan_too", || {
        needs_huge_pages();
        let memory = filled();
        plan(&in_slices());
        to_the_end(|_| ());
        let child = Child::fork(|| memory.holds(0..page(), 1));
        (0..LEN).step_by(PIECE).for_each(|start| memory.fill(start..start + page(), 2));
        assert_eq!(memory.huge(), 0, "the kernel splits what is written beside a child");
        child.end();
        plan(&in_slices());
        let mut huge = 0;
        let done = to_the_end(|_| {
            let now = memory.huge();
            assert!(now <= huge + PIECE, "more than one piece in a slice");
            huge = now;
        });
        assert!(huge + PIECE >= LEN, "more than one piece in the last slice");
        assert_eq!((done.stage, memory.huge()), (Stage::Done, LEN));
        assert!(done.gathered_bytes < LEN, "nothing is new: {done:?}");
    });
}

/// Fails on: a thread that asks itself; an errand of which nobody learns; a deputy that is left behind; one that is
/// sent beside a child.
#[test]
fn deputies_gather_and_mend_while_the_thread_goes_on() {
    play("deputies_gather_and_mend_while_the_thread_goes_on", while_the_thread_goes_on);
}

pub(crate) fn while_the_thread_goes_on() {
    needs_huge_pages();
    let memory = filled();
    let mut report = plan(&by_deputies());
    // In the interval before its first fork nothing is known of how the program waits.
    slice();
    // Whether it has ended or not, nobody has waited for it.
    assert_eq!(children(), 1, "one deputy at work");
    slice();
    assert_eq!(in_child(|| i32::from(children() > 0 || !memory.holds(0..LEN, 1))), 0, "its parent's deputy");
    palimpsest_fork::dismiss_deputy();
    assert_eq!(children(), 0);
    let done = to_the_end(|_| palimpsest_fork::dismiss_deputy());
    assert_eq!((done.stage, memory.huge(), done.gathered_bytes >= LEN), (Stage::Done, LEN, true), "{done:?}");
    assert!(memory.is_anonymous() && memory.holds(0..LEN, 1));
    report.update();
    says_what_it_took(&report, done);
    assert!(!done.beside.is_zero() && report.to_string().contains("; deputies took "), "{report}");
    std::thread::sleep(Duration::from_millis(200));
    let child = Child::fork(|| memory.holds(0..page(), 1));
    (0..LEN).step_by(PIECE).for_each(|start| memory.fill(start..start + page(), 2));
    slices(20);
    assert_eq!((memory.huge(), children()), (0, 1), "nothing is mended beside a child");
    child.end();
    let turns = (0..3000).find(|_| {
        slices(50);
        palimpsest_fork::dismiss_deputy();
        let is_whole = memory.huge() == LEN;
        if !is_whole {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(in_child(|| 0), 0);
        }
        is_whole
    });
    assert!(turns.is_some(), "{} bytes are huge: {:?}", memory.huge(), status());
    assert!((0..LEN).step_by(PIECE).all(|start| memory.holds(start..start + page(), 2)));
    assert_eq!((children(), status().frozen_bytes), (0, 0), "{:?}", status());
}

/// Fails on: a fork that leaves all to slices at waits, and the program has time for none of them.
#[test]
fn who_is_never_idle_is_mended_at_forks() {
    play("who_is_never_idle_is_mended_at_forks", || {
        needs_huge_pages();
        let memory = filled();
        plan(&by_deputies());
        to_the_end(|_| palimpsest_fork::dismiss_deputy());
        let child = Child::fork(|| memory.holds(0..page(), 1));
        (0..LEN).step_by(PIECE).for_each(|start| memory.fill(start..start + page(), 2));
        child.end();
        assert_eq!(memory.huge(), 0, "the kernel splits what is written beside a child");
        let forks = (0..10_000).find(|_| {
            about_to_wait();
            assert_eq!(in_child(|| 0), 0);
            memory.huge() > 0
        });
        assert!(forks.is_some(), "{:?}", status());
    });
}

/// Fails on: an errand for each split piece between whole ones.
#[test]
fn one_errand_reaches_over_what_is_whole() {
    play("one_errand_reaches_over_what_is_whole", one_errand);
}

pub(crate) fn one_errand() {
    needs_huge_pages();
    let memory = filled();
    // Eight pieces take a deputy less than this.
    plan(&by_deputies().pause(Pause::Within(Duration::from_secs(1))));
    to_the_end(|_| palimpsest_fork::dismiss_deputy());
    // A deputy may fail, and a pass may begin in the middle: one turn of many is enough.
    let turn = (2..300).find(|turn| {
        // So that there is time for slices before the next fork.
        std::thread::sleep(Duration::from_millis(50));
        let child = Child::fork(|| memory.holds(0..page(), *turn - 1));
        (0..LEN).step_by(2 * PIECE).for_each(|start| memory.fill(start..start + page(), *turn));
        child.end();
        let before = memory.huge();
        let mut steps = (0..50).map(|_| {
            slice();
            palimpsest_fork::dismiss_deputy();
            memory.huge()
        });
        let first = steps.find(|huge| *huge != before);
        before == LEN / 2 && first == Some(LEN)
    });
    assert!(turn.is_some(), "{:?}", status());
}

/// Fails on: a write that is lost because its thread was not held.
#[test]
fn threads_write_on_while_their_memory_is_gathered_and_mended() {
    play("threads_write_on_while_their_memory_is_gathered_and_mended", || {
        needs_huge_pages();
        let memory = filled();
        let (is_over, address) = (AtomicBool::new(false), memory.start.expose_provenance());
        let is_over = &is_over;
        std::thread::scope(|scope| {
            let write = move |thread: usize| {
                let mut turn = 0_u64;
                while !is_over.load(Ordering::Relaxed) || turn < 4 {
                    for offset in (thread * 128..LEN).step_by(page()) {
                        let place = std::ptr::with_exposed_provenance_mut::<u64>(address + offset + 64);
                        // SAFETY: inside the scenario's memory, aligned, and this thread's own word.
                        let before = unsafe { place.read_volatile() };
                        assert_eq!(before, turn, "thread {thread} at {offset:#x}");
                        // SAFETY: as above.
                        unsafe { place.write_volatile(turn + 1) };
                    }
                    turn += 1;
                }
            };
            let threads: Vec<_> = (0..2).map(|thread| scope.spawn(move || write(thread))).collect();
            plan(&in_slices().other_threads(OtherThreads::Stop));
            to_the_end(|_| std::thread::yield_now());
            assert_eq!(memory.huge(), LEN);
            for _ in 0..3 {
                Child::fork(|| true).end();
                slices(50);
            }
            is_over.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().expect("each finds what it has written"));
        });
        assert!(memory.holds(0..LEN, 1));
    });
}

/// An oracle: whatever the program does between slices, its memory and its children's is what a list of all pages says.
#[test]
fn whatever_is_done_between_slices_memory_is_what_it_would_be() {
    play("whatever_is_done_between_slices_memory_is_what_it_would_be", || oracle::play(&in_slices(), 160));
}

/// The same while deputies are at work or done, as it comes.
#[test]
fn whatever_is_done_beside_deputies_memory_is_what_it_would_be() {
    play("whatever_is_done_beside_deputies_memory_is_what_it_would_be", || oracle::play(&by_deputies(), 160));
}

/// Fails on: a repair in one go for memory that came later; memory that nobody ever gathers.
#[test]
fn memory_that_comes_later_is_gathered_in_slices_too() {
    play("memory_that_comes_later_is_gathered_in_slices_too", later);
}

pub(crate) fn later() {
    needs_huge_pages();
    let memory = filled();
    plan(&in_slices());
    to_the_end(|_| ());
    (0..3).for_each(|_| assert_eq!(in_child(|| 0), 0));
    let later = Memory::unadvised(2 * LEN);
    later.fill(0..later.len, 3);
    let forks = (0..20_000).find(|_| {
        let before = later.huge();
        about_to_wait();
        assert_eq!(in_child(|| 0), 0);
        assert!(later.huge() <= before + PIECE, "more than one piece at a fork");
        later.huge() == later.len
    });
    assert!(forks.is_some(), "{} bytes are huge: {:?}", later.huge(), status());
    assert_eq!((status().repairs, memory.huge()), (0, LEN));
    assert!(memory.holds(0..LEN, 1) && later.holds(0..later.len, 3));
}

/// Fails on: a look at every page at the first fork, however many there are; a look that is never taken.
#[test]
fn mappings_are_listed_once_there_are_few_pages_to_look_at_unless_that_fits_into_a_slice() {
    play("mappings_are_listed_once_there_are_few_pages_to_look_at_unless_that_fits_into_a_slice", || {
        needs_huge_pages();
        let memory = filled();
        // `apart` has the advice against huge pages.
        let unwanted = Memory::apart(LEN);
        unwanted.fill(0..LEN, 1);
        let begun = plan(&in_slices()).progress.expect("slices");
        assert!(begun.looked.is_zero() && begun.planned_bytes >= LEN, "{begun:?}");
        let done = to_the_end(|_| {
            let now = progress();
            assert!(now.looked.is_zero() || memory.huge() == LEN, "{now:?}");
        });
        assert!(!done.looked.is_zero(), "{done:?}");
        let later = filled();
        // For as long as listing so little takes here.
        let begun = plan(&in_slices().pause(Pause::Within(Duration::from_secs(1000)))).progress.expect("slices");
        assert!(!begun.looked.is_zero(), "{begun:?}");
        let done = to_the_end(|_| ());
        assert_eq!((done.stage, memory.huge(), later.huge()), (Stage::Done, LEN, LEN));
        assert!(memory.holds(0..LEN, 1) && later.holds(0..LEN, 1));
    });
}

/// Fails on: a look at every page for the little that is left; a plan that found nothing to do and is made anew for
/// ever, at no price.
#[test]
fn for_little_nothing_is_listed_and_plans_in_vain_get_dearer() {
    play("for_little_nothing_is_listed_and_plans_in_vain_get_dearer", || {
        needs_huge_pages();
        let memory = filled();
        let mut prices = Vec::new();
        for turn in 0..3 {
            plan(&in_slices());
            let done = to_the_end(|_| ());
            assert_eq!((done.stage, memory.huge()), (Stage::Done, LEN), "{done:?}");
            assert!(done.looked.is_zero() && (done.gathered_bytes > 0) == (turn == 0), "{done:?}");
            prices.push(status().price);
        }
        assert!(prices[0] >= 100_000 && prices.windows(2).all(|pair| pair[1] >= 2 * pair[0]), "{prices:?}");
    });
}

/// Fails on: a fork that lists every page although the program waits; one that waits for a wait for ever.
#[test]
fn a_long_look_is_left_to_a_wait_for_some_forks() {
    play("a_long_look_is_left_to_a_wait_for_some_forks", || {
        needs_huge_pages();
        for waits in [true, false] {
            // `apart` has the advice against huge pages.
            let (memory, unwanted) = (filled(), Memory::apart(2 * LEN));
            unwanted.fill(0..2 * LEN, 1);
            plan(&in_slices());
            let mut forks = 0;
            for _ in 0..1 << 10 {
                if !progress().looked.is_zero() || waits && forks == 8 {
                    break;
                }
                about_to_wait();
                assert_eq!(in_child(|| 0), 0);
                forks += usize::from(memory.huge() == LEN);
            }
            if waits {
                slice();
            }
            assert!(!progress().looked.is_zero(), "{:?}", progress());
            assert!(waits || forks > 16, "after {forks} forks");
            to_the_end(|_| ());
            assert!(memory.holds(0..LEN, 1) && unwanted.holds(0..2 * LEN, 1));
        }
    });
}

/// Fails on: a fork that takes a slice although others come at waits; one that never takes any again.
#[test]
fn a_fork_takes_no_slice_where_the_last_one_was_at_a_wait() {
    play("a_fork_takes_no_slice_where_the_last_one_was_at_a_wait", || {
        needs_huge_pages();
        let memory = filled();
        plan(&in_slices());
        let gathered = || progress().gathered_bytes;
        for _ in 0..2 {
            slice();
            let before = gathered();
            assert_eq!(in_child(|| 0), 0);
            assert_eq!(gathered(), before);
            about_to_wait();
            assert_eq!(in_child(|| 0), 0);
            assert!(gathered() > before, "{:?}", progress());
        }
        assert!(memory.holds(0..LEN, 1));
    });
}

/// Fails on: a gathering that is refused because nothing may be frozen; a freeze of the rest, which would end the
/// process; a report that does not say so.
#[test]
fn where_making_files_kills_memory_is_gathered_and_nothing_is_frozen() {
    play("where_making_files_kills_memory_is_gathered_and_nothing_is_frozen", || {
        needs_huge_pages();
        let memory = filled();
        kill_for(&[Call { number: libc::SYS_memfd_create, third: None }]);
        let report = plan(&in_slices());
        let told = "a seccomp filter would end the program for memfd_create: nothing is frozen";
        assert!(report.notes.iter().any(|note| note == told), "{report}");
        let done = to_the_end(|_| {});
        assert_eq!((memory.huge(), done.frozen_bytes), (LEN, 0), "{done:?}");
        assert!(memory.holds(0..LEN, 1) && memory.is_anonymous());
    });
}

/// Fails on: an end of the gathering at the fork at which another program would have the rest frozen.
#[test]
fn where_making_files_kills_who_forks_again_and_again_without_waiting_has_memory_gathered() {
    play("where_making_files_kills_who_forks_again_and_again_without_waiting_has_memory_gathered", || {
        needs_huge_pages();
        let memory = filled();
        kill_for(&[Call { number: libc::SYS_memfd_create, third: None }]);
        plan(&in_slices());
        let forks = (0..1 << 10).find(|_| {
            assert_eq!(in_child(|| i32::from(!memory.holds(0..LEN, 1))), 0);
            progress().stage != Stage::UnderWay
        });
        assert!(forks.is_some() && memory.is_anonymous(), "{:?}", progress());
        assert_eq!((memory.huge(), progress().frozen_bytes), (LEN, 0), "{:?}", progress());
    });
}
