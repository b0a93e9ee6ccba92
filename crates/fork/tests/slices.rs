//! A freeze in slices, with a budget of no time: each slice copies the least that it may, whatever the machine does
//! meanwhile, and the program does something between any two of them.

mod common;

use std::time::Duration;

use common::{Memory, freeze, guarded, in_child, page, play, slice, wait};
use palimpsest_fork::guard::Remap;
use palimpsest_fork::{Basis, FreezeError, Measure, Options, OtherThreads, Pause, Progress, Stage, guard, progress};
use palimpsest_sys::pages::vmas::{Detail, Label, Vma, Vmas};
use rustix::io::Errno;

const MIB: usize = 1 << 20;

fn in_slices() -> Options {
    Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO))
}

/// Takes slices to the end, calling `between` after each.
fn to_the_end(mut between: impl FnMut(u64)) -> Progress {
    for number in 0..1 << 14 {
        let progress = slice();
        if progress.stage != Stage::UnderWay {
            return progress;
        }
        between(number);
    }
    panic!("it does not end: {:?}", progress());
}

#[test]
fn slice_by_slice_all_is_frozen_and_what_is_written_between_stays() {
    play("slice_by_slice_all_is_frozen_and_what_is_written_between_stays", || {
        let memory = Memory::apart(16 * MIB + 33 * page());
        memory.fill(0..memory.len, 1);
        let mut report = freeze(&in_slices());
        let planned = report.progress.expect("it is one in slices");
        assert_eq!((planned.stage, planned.frozen_bytes, planned.slices), (Stage::UnderWay, 0, 0));
        assert!(memory.is_anonymous(), "a plan changes nothing");
        let mut salts = vec![1_u64; memory.len.div_ceil(page())];
        let done = to_the_end(|number| {
            // A page that is frozen, one that will be, and one that is being frozen just now.
            for index in [number as usize * 37, number as usize * 32, number as usize * 32 + 31] {
                let index = index % salts.len();
                salts[index] = number + 2;
                memory.fill(index * page()..(index + 1) * page(), number + 2);
            }
        });
        assert_eq!(done.stage, Stage::Done);
        assert!(done.slices >= 128, "{done:?}");
        assert!(memory.is_frozen());
        for (index, salt) in salts.iter().enumerate() {
            assert!(memory.holds(index * page()..(index + 1) * page(), *salt), "page {index}");
        }
        report.update();
        assert!(report.frozen_bytes() >= memory.len && report.to_string().contains("slices"), "{report}");
        let worth = report.worth.expect("forks are spared something");
        // Processor time, also of what comes before and behind a slice.
        let is_told = !worth.once.is_zero() && worth.once <= 2 * (done.looked + done.taken);
        assert!(is_told && report.basis == Basis::Taken, "what it took: {report}");
        assert_eq!(slice(), done, "nothing is left to do");
        let again = in_child(|| i32::from(!memory.holds(0..page(), salts[0])));
        assert_eq!(again, 0);
    });
}

#[test]
fn each_fork_takes_a_slice_and_its_child_has_what_the_parent_has() {
    play("each_fork_takes_a_slice_and_its_child_has_what_the_parent_has", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        for number in 1.. {
            memory.fill(number as usize % 1000 * page()..(number as usize % 1000 + 1) * page(), 1);
            let status = in_child(|| {
                let is_right = memory.holds(0..memory.len, 1);
                memory.fill(0..memory.len, 2);
                i32::from(!is_right || !memory.holds(0..memory.len, 2))
            });
            assert_eq!(status, 0);
            assert!(memory.holds(0..memory.len, 1), "a child's writes are its own");
            let now = progress();
            assert_eq!(now.slices, number, "one for each");
            if now.stage == Stage::Done {
                break;
            }
        }
        assert!(memory.is_frozen());
    });
}

#[test]
fn a_child_goes_on_for_itself() {
    play("a_child_goes_on_for_itself", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        slice();
        let status = in_child(|| {
            memory.fill(0..MIB, 2);
            let done = to_the_end(|_| {});
            let is_right = memory.holds(0..MIB, 2) && memory.holds(MIB..memory.len, 1);
            i32::from(done.stage != Stage::Done || !memory.is_frozen() || !is_right)
        });
        assert_eq!(status, 0);
        assert_eq!(progress().stage, Stage::UnderWay, "a child's slices are its own");
        assert!(memory.holds(0..memory.len, 1));
        to_the_end(|_| {});
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 1));
    });
}

#[test]
fn what_is_replaced_or_advised_between_slices_is_left_alone() {
    play("what_is_replaced_or_advised_between_slices_is_left_alone", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        slice();
        let part = |number: usize| memory.range().start + number * MIB..memory.range().start + (number + 1) * MIB;
        let at = |number: usize| memory.at(number * MIB);
        let advise = |number: usize, advice: i32| {
            // SAFETY: 1. nobody needs what is discarded.
            assert_eq!(unsafe { guard::madvise(part(number).start, MIB, advice) }, Ok(()));
        };
        let protect = |number: usize, rights: i32| {
            // SAFETY: the scenario's memory, which is used accordingly.
            assert_eq!(unsafe { libc::mprotect(at(number), MIB, rights) }, 0);
        };
        advise(3, libc::MADV_DONTFORK);
        advise(5, libc::MADV_WIPEONFORK);
        advise(7, libc::MADV_DONTNEED);
        protect(11, libc::PROT_READ);
        protect(12, libc::PROT_NONE);
        // SAFETY: the scenario's memory, which nobody needs any more.
        assert_eq!(unsafe { libc::munmap(at(9), MIB) }, 0);
        // SAFETY: the scenario's memory.
        assert_eq!(unsafe { libc::mlock(at(13), MIB) }, 0);
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED | libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: the scenario's memory, which nobody needs any more.
        assert_eq!(unsafe { libc::mmap(at(14), MIB, rights, kind, -1, 0) }, at(14));
        guard::replaced(part(14));
        // By a call that nobody sees.
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mmap(at(10), MIB, rights, kind, -1, 0) }, at(10));
        // So that there is something to freeze.
        memory.fill(10 * MIB..11 * MIB, 5);
        assert_eq!(to_the_end(|_| {}).stage, Stage::Done);
        let mut vmas = Vmas::with_capacity(10_000).expect("memory");
        vmas.read(Detail::Places).expect("/proc");
        let is_frozen = |number: usize| {
            let inside = |vma: &&Vma| vma.start < part(number).end && part(number).start < vma.end;
            let all: Vec<bool> = vmas.iter().filter(inside).map(|vma| vma.label == Label::Extent).collect();
            (!all.is_empty()).then(|| all.iter().all(|is_frozen| *is_frozen))
        };
        // Something else may lie by now where nothing was.
        let seen = [1, 2, 3, 5, 7, 10, 11, 12, 13, 14, 15].map(is_frozen);
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(seen, [yes, yes, no, no, no, no, yes, no, no, no, yes]);
        let status = in_child(|| {
            // What is not given to children is not there, and what is wiped is zero. SAFETY: asks whether a page is
            // mapped.
            let is_gone = unsafe { libc::madvise(at(3), page(), libc::MADV_WILLNEED) } != 0;
            i32::from(!is_gone || !memory.is_zero(5 * MIB..6 * MIB) || !memory.holds(11 * MIB..12 * MIB, 1))
        });
        assert_eq!(status, 0);
        assert!(memory.holds(0..7 * MIB, 1) && memory.is_zero(7 * MIB..8 * MIB) && memory.holds(15 * MIB..16 * MIB, 1));
        let status = in_child(|| {
            let is_there = memory.holds(10 * MIB..11 * MIB, 5);
            memory.fill(10 * MIB..11 * MIB, 6);
            i32::from(!is_there)
        });
        assert_eq!(status, 0);
        assert!(memory.holds(10 * MIB..11 * MIB, 6), "what is shared with children stays shared");
        // A frozen part keeps its present rights.
        let written = in_plain_child(|| memory.set(11 * MIB, 1));
        assert_eq!(written, 1000 + libc::SIGSEGV);
    });
}

/// Returns the status of a child that the library does not know of.
fn in_plain_child(play: impl FnOnce()) -> i32 {
    // SAFETY: the child writes memory and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        play();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    wait(child)
}

#[test]
fn threads_write_between_slices_and_are_held_in_them() {
    play("threads_write_between_slices_and_are_held_in_them", || {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        static ROUNDS: AtomicU64 = AtomicU64::new(0);
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 0);
        let (start, pages) = (memory.range().start, memory.len / page());
        let writer = std::thread::spawn(move || {
            let mut count = 0_u64;
            while !IS_OVER.load(Ordering::Relaxed) {
                for index in 0..pages {
                    let place = std::ptr::with_exposed_provenance_mut::<u64>(start + index * page() + 8);
                    // SAFETY: a word of the scenario's memory that this thread alone uses.
                    let was = unsafe { place.read_volatile() };
                    assert_eq!(was, count, "page {index}: a write is lost");
                    // SAFETY: as above.
                    unsafe { place.write_volatile(count + 1) };
                }
                count += 1;
                ROUNDS.store(count, Ordering::Relaxed);
            }
        });
        freeze(&in_slices().other_threads(OtherThreads::Stop));
        let done = to_the_end(|_| {
            let before = ROUNDS.load(Ordering::Relaxed);
            // A writer that has lost a write has ended.
            while ROUNDS.load(Ordering::Relaxed) == before && !writer.is_finished() {
                std::thread::yield_now();
            }
        });
        assert_eq!(done.stage, Stage::Done);
        IS_OVER.store(true, Ordering::Relaxed);
        writer.join().expect("no write is lost");
        assert!(memory.is_frozen());
    });
}

#[test]
fn a_thread_that_is_started_between_slices_refuses_them_and_ends_them_at_last() {
    play("a_thread_that_is_started_between_slices_refuses_them_and_ends_them_at_last", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        let mut report = freeze(&in_slices());
        slice();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv());
        let before = progress();
        let mut trials = 0;
        while progress().stage == Stage::UnderWay {
            // SAFETY: 1. the scenario keeps the contract of freezing.
            let refused = unsafe { palimpsest_fork::freeze_slice() };
            assert!(matches!(refused, Err(FreezeError::Threads { count: 2 })), "{refused:?}");
            trials += 1;
        }
        let after = progress();
        assert_eq!((after.stage, after.frozen_bytes), (Stage::Ended, before.frozen_bytes));
        assert!(trials > 10, "{trials}");
        report.update();
        assert!(report.stopped.as_ref().is_some_and(|reason| reason.contains("2 threads")), "{report}");
        drop(end);
        let _ = thread.join();
        assert!(memory.holds(0..memory.len, 1));
        freeze(&Options::new().measure(Measure::Nothing));
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 1), "another freeze takes the rest");
    });
}

#[test]
fn a_thaw_ends_it() {
    play("a_thaw_ends_it", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        guard::thaw_all().expect("nothing is frozen yet");
        assert_eq!(in_child(|| 0), 0);
        assert_eq!((slice().stage, memory.is_anonymous()), (Stage::Ended, true), "before the first slice, too");
        freeze(&in_slices());
        to_one_piece();
        guard::thaw_all().expect("thawed");
        assert!(memory.is_anonymous() && memory.holds(0..memory.len, 1));
        assert_eq!(slice().stage, Stage::Ended);
        assert!(memory.is_anonymous());
    });
}

fn to_one_piece() {
    while progress().frozen_bytes < 2 * MIB {
        slice();
    }
}

#[test]
fn no_child_gets_a_descriptor_or_a_way_to_write() {
    play("no_child_gets_a_descriptor_or_a_way_to_write", || {
        let count = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
        let before = count();
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        to_the_end(|_| {
            assert_eq!(count(), before);
            let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
            let shared = maps.lines().filter(|line| line.contains("palimpsest-frozen") && line.contains("s ")).count();
            let is_shared = maps.lines().any(|line| {
                line.contains("palimpsest-frozen") && line.split(' ').nth(1).is_some_and(|rights| rights.ends_with('s'))
            });
            assert!(!is_shared, "{shared}");
        });
    });
}

#[test]
fn a_userfaultfd_that_is_opened_between_slices_ends_them() {
    play("a_userfaultfd_that_is_opened_between_slices_ends_them", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        let mut report = freeze(&in_slices());
        slice();
        // SAFETY: makes a descriptor, which the scenario keeps. UFFD_USER_MODE_ONLY is allowed for everybody.
        if unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } < 0 {
            common::skip("no userfaultfd here");
        }
        let (before, after) = (progress().frozen_bytes, slice());
        assert_eq!((after.stage, after.frozen_bytes), (Stage::Ended, before));
        report.update();
        assert!(report.stopped.as_ref().is_some_and(|reason| reason.contains("userfaultfd")), "{report}");
        freeze(&Options::new().measure(Measure::Nothing));
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 1), "one in one go sees what is registered");
    });
}

/// Fails on: a slice at a fork, whose calls the filter forbids, since nothing was frozen when that was installed.
#[test]
fn after_a_filter_that_comes_before_the_first_slice_forks_take_none() {
    play("after_a_filter_that_comes_before_the_first_slice_forks_take_none", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        guard::confined();
        common::filter(libc::SYS_openat, libc::SECCOMP_RET_KILL_PROCESS);
        assert_eq!(in_child(|| i32::from(!memory.holds(0..memory.len, 1))), 0);
        assert_eq!(progress().slices, 0);
        assert!(memory.holds(0..memory.len, 1));
    });
}

#[test]
fn one_that_is_erased_between_slices_is_gone() {
    play("one_that_is_erased_between_slices_is_gone", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        to_one_piece();
        // The first page is frozen by now, whatever was planned before it.
        let start = memory.range().start;
        memory.set(0, 0);
        let is_frozen = || {
            let maps = palimpsest_sys::pages::maps::Maps::read().expect("/proc");
            maps.at(start).is_some_and(|mapping| mapping.path.is_some())
        };
        assert!(is_frozen());
        guard::forget(start..start + page()).expect("forgotten");
        assert!(!is_frozen(), "the extent that has held it is given up");
        let done = to_the_end(|_| {});
        assert_eq!(done.stage, Stage::Done);
        assert!(memory.holds(page()..memory.len, 1));
    });
}

/// Fails on: slices without an end, which overflow what guards answer from, so that they refuse everything.
#[test]
fn it_ends_before_there_are_more_extents_than_guards_have_room_for() {
    play("it_ends_before_there_are_more_extents_than_guards_have_room_for", || {
        // What has other rights than its neighbour goes to another extent.
        let (step, count) = (16 * page(), 3600);
        let memory = Memory::apart(count * step);
        memory.fill(0..memory.len, 1);
        for number in (0..count).step_by(2) {
            // SAFETY: the scenario's memory, which is read from here on.
            assert_eq!(unsafe { libc::mprotect(memory.at(number * step), step, libc::PROT_READ) }, 0);
        }
        let mut report = freeze(&in_slices().least(page()));
        // SAFETY: 1. the scenario keeps the contract of freezing. 2. the closure does nothing.
        let done = unsafe { palimpsest_fork::freeze_while(&mut || true) }.expect("slices");
        report.update();
        assert_eq!(done.stage, Stage::Ended, "{report}");
        assert!(report.stopped.as_ref().is_some_and(|reason| reason.contains("too many extents")), "{report}");
        assert!(report.extents > 2000, "{report}");
        let frozen = report.frozen.iter().find(|one| memory.range().contains(&one.range.start)).expect("some is");
        let (start, len) = (frozen.range.start, page());
        // SAFETY: 1. nobody needs what is discarded.
        assert_eq!(unsafe { guard::madvise(start, len, libc::MADV_DONTNEED) }, Ok(()));
        // SAFETY: the scenario's memory.
        assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u64>(start).read() }, 0);
    });
}

/// Fails on: a slice that comes to sealed memory and tries all of it in one hold.
#[test]
fn what_is_sealed_between_slices_is_passed_over() {
    play("what_is_sealed_between_slices_is_passed_over", || {
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        slice();
        const MSEAL: libc::c_long = 462;
        // SAFETY: forbids to change the scenario's mapping.
        if unsafe { libc::syscall(MSEAL, memory.at(4 * MIB), 2 * MIB, 0) } != 0 {
            common::skip("no mseal here");
        }
        let mut least = usize::MAX;
        let mut before = progress();
        let done = to_the_end(|_| {
            let now = progress();
            least = least.min(now.frozen_bytes - before.frozen_bytes);
            before = now;
        });
        assert_eq!(done.stage, Stage::Done);
        assert!(memory.holds(0..memory.len, 1));
        assert_eq!(least, 0, "a slice that has met sealed memory does no more");
        let maps = palimpsest_sys::pages::maps::Maps::read().expect("/proc");
        let frozen = [3, 4, 5, 6].map(|mib| maps.at(memory.range().start + mib * MIB).expect("mapped").path.is_some());
        assert_eq!(frozen, [true, false, false, true]);
    });
}

/// Fails on: long looks that nobody is told of, or that count for ever. The unit test of `Figures` says when slices
/// come again.
#[test]
fn with_very_many_descriptors_slices_are_hardly_taken_between_forks() {
    play("with_very_many_descriptors_slices_are_hardly_taken_between_forks", || {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const COUNT: u64 = 16_000;
        let limit = getrlimit(Resource::Nofile);
        let more = Rlimit { current: Some(COUNT + 100), maximum: limit.maximum };
        if limit.maximum.is_some_and(|most| most < COUNT + 100) || setrlimit(Resource::Nofile, more).is_err() {
            common::skip("there may not be so many descriptors");
        }
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        let file = std::fs::File::open("/dev/null").expect("it is there");
        // Walking over so many takes at least 0.1 µs of CPU time for each, on any machine.
        let mut many: Vec<_> = (0..COUNT).map(|_| file.try_clone().expect("below the limit")).collect();
        let report = freeze(&in_slices());
        assert!(report.notes.iter().any(|note| note.contains("hardly ever in between")), "{report}");
        assert_eq!(in_child(|| 0), 0);
        assert_eq!(progress().slices, 1);
        many.clear();
        assert_eq!(in_child(|| 0), 0);
        assert_eq!(progress().slices, 2);
        // The next fork has found out, or a later one: a slow machine takes long for the few that are left.
        let is_near = || palimpsest_fork::next_slice().is_some_and(|rest| rest < Duration::from_millis(500));
        let has_found_out = || is_near() || in_child(|| 0) != 0;
        if !(0..30).any(|_| has_found_out()) {
            common::skip("this machine takes a millisecond to look at a few descriptors");
        }
    });
}

#[test]
fn beside_an_older_userfaultfd_there_are_no_slices() {
    play("beside_an_older_userfaultfd_there_are_no_slices", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        // SAFETY: makes a descriptor, which the scenario keeps. UFFD_USER_MODE_ONLY is allowed for everybody.
        if unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } < 0 {
            common::skip("no userfaultfd here");
        }
        let report = freeze(&in_slices());
        assert!(report.stopped.as_ref().is_some_and(|reason| reason.contains("userfaultfd")), "{report}");
        assert_eq!((progress().stage, slice().stage), (Stage::Ended, Stage::Ended));
        assert!(memory.is_anonymous());
    });
}

/// Returns memory of which slices freeze at least 2 MiB, in several extents, and which is given up for an erasure.
fn given_up(len: usize) -> Memory {
    let memory = Memory::apart(len);
    memory.fill(0..memory.len, 1);
    freeze(&in_slices());
    while !is_shown_by_files(&memory, 0, 2 * MIB) {
        assert_eq!(slice().stage, Stage::UnderWay);
    }
    give_up(&memory);
    memory
}

fn is_shown_by_files(memory: &Memory, from: usize, to: usize) -> bool {
    Memory { start: memory.at(from).cast(), len: to - from }.is_frozen()
}

/// Gives up one extent after the other.
fn give_up(memory: &Memory) {
    guard::forget(memory.range()).expect("forgotten");
    assert!(memory.is_anonymous());
}

fn moved(memory: &Memory, to: usize, len: usize) -> Memory {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let remap = Remap { address: memory.at(0).addr(), len: memory.len, new_len: len, flags, new_address: to };
    assert_eq!(guarded::mremap(remap), Ok(to));
    Memory { start: std::ptr::with_exposed_provenance_mut(to), len }
}

/// Fails on: guards that forget what they have made anonymous, which the kernel does not join into one mapping again.
#[test]
fn what_was_given_up_is_resized_and_moved_as_one() {
    play("what_was_given_up_is_resized_and_moved_as_one", || {
        let memory = given_up(8 * MIB);
        let asked =
            |new_len, flags| Remap { address: memory.at(0).addr(), len: 8 * MIB, new_len, flags, new_address: 0 };
        // Inaccessible pages lie behind it.
        assert_eq!(guarded::mremap(asked(9 * MIB, 0)), Err(Errno::NOMEM));
        // SAFETY: nobody uses what lies behind.
        assert_eq!(unsafe { libc::munmap(memory.at(8 * MIB), 2 * MIB) }, 0);
        assert_eq!(guarded::mremap(asked(9 * MIB, 0)), Ok(memory.at(0).addr()), "in place");
        let grown = Memory { len: 9 * MIB, ..memory };
        assert!(grown.holds(0..8 * MIB, 1) && grown.is_zero(8 * MIB..9 * MIB));
        let there = Memory::apart(16 * MIB);
        let elsewhere = moved(&grown, there.at(0).addr(), 12 * MIB);
        assert!(elsewhere.holds(0..8 * MIB, 1) && elsewhere.is_zero(8 * MIB..12 * MIB));
        let again = moved(&elsewhere, memory.at(0).addr(), 8 * MIB);
        assert!(again.holds(0..8 * MIB, 1));
        // SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::munmap(again.at(4 * MIB), page()) }, 0);
        let asked = asked(12 * MIB, libc::MREMAP_MAYMOVE);
        assert_eq!(guarded::mremap(asked), Err(Errno::FAULT), "it has a hole");
    });
}

/// Fails on: one call for all of it, which the kernel refuses.
#[test]
fn what_was_given_up_moves_as_one_and_leaves_zeros() {
    play("what_was_given_up_moves_as_one_and_leaves_zeros", || {
        let (memory, plain) = (given_up(8 * MIB), Memory::apart(8 * MIB));
        let leave = |memory: &Memory| {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
            let address = memory.at(0).addr();
            guarded::mremap(Remap { address, len: 8 * MIB, new_len: 8 * MIB, flags, new_address: 0 })
        };
        if leave(&plain).is_err() {
            common::skip("a kernel before 5.7");
        }
        let at = leave(&memory).expect("as of a plain mapping");
        let moved = Memory { start: std::ptr::with_exposed_provenance_mut(at), len: 8 * MIB };
        assert!(moved.holds(0..8 * MIB, 1) && memory.is_zero(0..8 * MIB));
        moved.fill(0..8 * MIB, 2);
        memory.fill(0..8 * MIB, 3);
        let there = Memory::apart(8 * MIB);
        let again = self::moved(&moved, there.at(0).addr(), 8 * MIB);
        assert!(again.holds(0..8 * MIB, 2) && memory.holds(0..8 * MIB, 3));
    });
}

/// Fails on: a round that rewrites what guards answer from, without what was frozen before.
#[test]
fn what_was_given_up_is_one_after_another_freeze_and_in_children() {
    play("what_was_given_up_is_one_after_another_freeze_and_in_children", || {
        let memory = given_up(8 * MIB);
        // Inaccessible pages lie behind it.
        let grow = || {
            let address = memory.at(0).addr();
            guarded::mremap(Remap { address, len: 8 * MIB, new_len: 9 * MIB, flags: 0, new_address: 0 })
        };
        freeze(&Options::new().measure(Measure::Nothing).least(1 << 40));
        assert!(memory.is_anonymous(), "it is too short");
        assert_eq!(grow(), Err(Errno::NOMEM));
        freeze(&in_slices());
        assert_eq!(grow(), Err(Errno::NOMEM));
        assert_eq!(in_child(|| i32::from(grow() != Err(Errno::NOMEM))), 0);
        assert_eq!(to_the_end(|_| {}).stage, Stage::Done);
        give_up(&memory);
        let there = Memory::apart(8 * MIB);
        let status = in_child(|| {
            let is_refused = grow() == Err(Errno::NOMEM);
            // What a child writes divides it no further, but the kernel joins less than in its parent.
            memory.fill(0..MIB, 2);
            let moved = moved(&memory, there.at(0).addr(), 8 * MIB);
            i32::from(!is_refused || !moved.holds(0..MIB, 2) || !moved.holds(MIB..8 * MIB, 1))
        });
        assert_eq!(status, 0);
        assert_eq!(grow(), Err(Errno::NOMEM));
        assert!(memory.holds(0..memory.len, 1));
    });
}

/// Fails on: a discard that replaces parts of memory that is anonymous again.
#[test]
fn what_was_given_up_is_discarded_by_the_kernel() {
    play("what_was_given_up_is_discarded_by_the_kernel", || {
        let memory = given_up(8 * MIB);
        let before = memory.mappings();
        for index in 0..64 {
            assert_eq!(guarded::madvise(&memory, 2 * index * page(), page(), libc::MADV_DONTNEED), Ok(()));
        }
        let is_right = |index: usize| match index < 128 && index.is_multiple_of(2) {
            true => memory.is_zero(index * page()..(index + 1) * page()),
            false => memory.holds(index * page()..(index + 1) * page(), 1),
        };
        assert!((0..memory.len / page()).all(is_right));
        assert_eq!(memory.mappings(), before, "mappings are divided");
    });
}
