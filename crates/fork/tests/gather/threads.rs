//! With other threads that must not be held still ([`OtherThreads::Refuse`]): what can be is gathered, since the kernel
//! keeps threads off by itself, and nothing is ever frozen.
//!
//! [`OtherThreads::Refuse`]: palimpsest_fork::OtherThreads::Refuse

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use palimpsest_fork::{
    FreezeError, Measure, Options, Pages, Pause, Pays, Stage, freeze, freeze_while, guard, progress, status,
};

use crate::common::gathering::{
    LEN, PIECE, about_to_wait, filled, in_slices, needs_huge_pages, plan, slices, to_the_end,
};
use crate::common::{Memory, in_child, patiently, play, wait};

/// Starts a thread that waits until it is dismissed.
pub(crate) fn waiter() -> (Sender<()>, JoinHandle<()>) {
    let (end, ended) = channel::<()>();
    (end, std::thread::spawn(move || assert!(ended.recv().is_err())))
}

pub(crate) fn dismiss((end, thread): (Sender<()>, JoinHandle<()>)) {
    drop(end);
    thread.join().expect("it ends");
}

/// Fails on: a refusal of all; a freeze of what cannot be gathered.
#[test]
fn beside_threads_what_can_be_is_gathered_and_nothing_frozen() {
    play("threads::beside_threads_what_can_be_is_gathered_and_nothing_frozen", || {
        needs_huge_pages();
        // `apart` has the advice against huge pages.
        let (unwanted, memory) = (Memory::apart(LEN), filled());
        unwanted.fill(0..LEN, 2);
        let other = waiter();
        let mut report = plan(&in_slices());
        let done = to_the_end(|_| ());
        assert_eq!((done.stage, done.frozen_bytes, memory.huge()), (Stage::Ended, 0, LEN), "{done:?}");
        assert!(memory.is_anonymous() && unwanted.is_anonymous());
        report.update();
        assert!(report.to_string().contains("`--threads stop`"), "the way out: {report}");
        assert_eq!(in_child(|| i32::from(!(memory.holds(0..LEN, 1) && unwanted.holds(0..LEN, 2)))), 0);
        assert_eq!(guard::thaw_all(), Ok(()), "there is nothing to hold threads for");
        dismiss(other);
    });
}

/// Fails on: an end at the first slice that would freeze; forks that never gather.
#[test]
fn who_forks_without_waiting_beside_threads_has_it_gathered_at_forks() {
    play("threads::who_forks_without_waiting_beside_threads_has_it_gathered_at_forks", || {
        needs_huge_pages();
        let memory = filled();
        let other = waiter();
        plan(&in_slices());
        let forks = (0..1 << 10).find(|_| {
            let before = memory.huge();
            assert_eq!(in_child(|| i32::from(!memory.holds(0..LEN, 1))), 0);
            assert!(memory.huge() <= before + PIECE, "more than one piece at a fork");
            memory.huge() == LEN
        });
        assert!(forks.is_some(), "{:?}", progress());
        assert_eq!((progress().frozen_bytes, status().frozen_bytes), (0, 0));
        dismiss(other);
    });
}

/// Fails on: a plan that stands although it was refused; a freeze beside threads for other reasons.
#[test]
fn what_would_be_frozen_and_not_gathered_is_refused_beside_threads() {
    play("threads::what_would_be_frozen_and_not_gathered_is_refused_beside_threads", || {
        let memory = filled();
        let other = waiter();
        let in_slices = Options::new().measure(Measure::Nothing).pause(Pause::Within(std::time::Duration::ZERO));
        let gather = in_slices.pages(Pages::Gather);
        let too_soon = gather.pays(Pays::Within(1_000_000));
        for options in [in_slices, in_slices.pays(Pays::Within(1500)), gather, too_soon] {
            // SAFETY: the scenario keeps the contract.
            let refused = unsafe { freeze(&options) };
            assert!(matches!(refused, Err(FreezeError::Threads { count: 2 })), "{options:?}: {refused:?}");
            assert_ne!(progress().stage, Stage::UnderWay);
            assert_eq!(in_child(|| 0), 0);
        }
        assert!(memory.is_anonymous() && memory.huge() == 0);
        dismiss(other);
    });
}

/// Fails on: a child of another thread that keeps files through which it sees its parent's mappings and page tables for
/// ever.
#[test]
fn a_child_of_another_thread_has_no_file_of_a_slice() {
    play("threads::a_child_of_another_thread_has_no_file_of_a_slice", || {
        needs_huge_pages();
        let _memory = filled();
        plan(&in_slices());
        let (in_slice, is_over) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                until(in_slice);
                let here = slice_files();
                let by_the_library = in_child(slice_files);
                // SAFETY: the scenario's other thread spins, and holds no lock that the child needs.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(slice_files()) };
                }
                let by_the_c_library = wait(child);
                is_over.store(true, Ordering::Relaxed);
                assert!(here >= 1, "the slice has the page tables open: {here}");
                assert_eq!((by_the_library, by_the_c_library), (0, 0));
            });
            let mut spin = || {
                in_slice.store(true, Ordering::Relaxed);
                until(is_over);
                false
            };
            // SAFETY: 1. the scenario keeps the contract. 2. it only spins.
            patiently(|| unsafe { freeze_while(&mut spin) });
        });
    });
}

fn until(is_so: &AtomicBool) {
    while !is_so.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Returns how many descriptors this process has that show mappings or page tables.
fn slice_files() -> i32 {
    let links = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    let shows = |link: &std::path::PathBuf| link.ends_with("maps") || link.ends_with("pagemap");
    links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).filter(shows).fold(0, |count, _| count + 1)
}

/// Fails on: slices between forks, or a new plan, that stop as soon as there are threads.
#[test]
fn what_comes_later_is_gathered_beside_threads() {
    play("threads::what_comes_later_is_gathered_beside_threads", || {
        needs_huge_pages();
        let memory = filled();
        plan(&in_slices());
        to_the_end(|_| ());
        assert_eq!(memory.huge(), LEN);
        let other = waiter();
        for takes_slices in [true, false] {
            let later = filled();
            let forks = (0..4_000).find(|_| {
                assert_eq!(in_child(|| 0), 0);
                if takes_slices {
                    slices(4)
                } else {
                    about_to_wait()
                }
                later.huge() == LEN
            });
            assert!(forks.is_some(), "{} bytes are huge: {:?}", later.huge(), status());
        }
        assert_eq!((memory.huge(), status().frozen_bytes, status().repairs), (LEN, 0, 0));
        dismiss(other);
    });
}
