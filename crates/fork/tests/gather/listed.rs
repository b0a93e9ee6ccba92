//! Where the kernel tells of no mapping alone (before Linux 6.11), each slice lists all mappings, and nobody is held
//! while they change.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use palimpsest_fork::{FreezeError, Options, Pause, Stage, freeze, freeze_while, progress};
use palimpsest_sys::pages::pagemap::{Pagemap, Wanted};

use crate::common::gathering::{LEN, PIECE, by_deputies, filled, in_slices, needs_huge_pages, plan, to_the_end};
use crate::common::kernels::before_6_11;
use crate::common::notified::{self, Call};
use crate::common::{Memory, in_child, page, patiently, play, slice};
use crate::oracle;
use crate::threads::{dismiss, waiter};

/// A slice that is long enough for everything.
const LONG: Duration = Duration::from_secs(1000);

/// Fails on: gathering nothing; gathering by a list that nobody reads.
#[test]
fn by_a_list_it_is_gathered_beside_threads_and_what_comes_later_too() {
    play("listed::by_a_list_it_is_gathered_beside_threads_and_what_comes_later_too", || {
        before_6_11();
        needs_huge_pages();
        let (memory, other) = (filled(), waiter());
        for options in [in_slices(), by_deputies()] {
            let later = filled();
            plan(&options);
            let done = to_the_end(|_| palimpsest_fork::dismiss_deputy());
            assert_eq!((done.stage, done.frozen_bytes), (Stage::Done, 0), "{done:?}");
            assert_eq!((memory.huge(), later.huge()), (LEN, LEN));
            assert_eq!(in_child(|| i32::from(!(memory.holds(0..LEN, 1) && later.holds(0..LEN, 1)))), 0);
        }
        dismiss(other);
    });
}

/// An oracle, as where the kernel tells of one mapping.
#[test]
fn whatever_is_done_between_slices_that_list_memory_is_what_it_would_be() {
    play("listed::whatever_is_done_between_slices_that_list_memory_is_what_it_would_be", || {
        before_6_11();
        oracle::play(&in_slices(), 160);
    });
}

/// What becomes of memory once the list is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// Nothing is mapped there any more.
    Unmapped,
    /// It is mapped anew, and only its first page is written to.
    Sparse,
    /// Other processes show it, too, and it is all written to.
    Shared,
    /// It wants no huge pages.
    Unwanted,
    /// It is locked.
    Locked,
}

/// What changes: neither the first piece nor the last.
const CHANGED: std::ops::Range<usize> = 2 * PIECE..5 * PIECE;

impl Change {
    const ALL: [Self; 5] = [Self::Unmapped, Self::Sparse, Self::Shared, Self::Unwanted, Self::Locked];

    fn make(self, memory: Memory) {
        let (start, len) = (memory.at(CHANGED.start), CHANGED.len());
        let map = |kind| {
            let (kind, rights) = (kind | libc::MAP_FIXED | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { libc::mmap(start, len, rights, kind, -1, 0) }, start);
        };
        match self {
            // SAFETY: the scenario's own memory, which nobody uses any more.
            Self::Unmapped => assert_eq!(unsafe { libc::munmap(start, len) }, 0),
            Self::Sparse => {
                map(libc::MAP_PRIVATE);
                CHANGED.step_by(PIECE).for_each(|piece| memory.fill(piece..piece + page(), 2));
            }
            Self::Shared => {
                map(libc::MAP_SHARED);
                memory.fill(CHANGED, 2);
            }
            // SAFETY: changes no contents.
            Self::Unwanted => assert_eq!(unsafe { libc::madvise(start, len, libc::MADV_NOHUGEPAGE) }, 0),
            // SAFETY: as above.
            Self::Locked => assert_eq!(unsafe { libc::mlock(start, len) }, 0),
        }
    }

    /// Whether memory is what this has made of it, and no more of it is there.
    fn is_right(self, memory: Memory) -> bool {
        let is_right = match self {
            Self::Unmapped => true,
            Self::Sparse => {
                let mut pieces = CHANGED.step_by(PIECE);
                let is_there = pieces.all(|piece| memory.holds(piece..piece + page(), 2));
                is_there && bytes(memory, Wanted::Present) == 3 * page()
            }
            Self::Shared => memory.holds(CHANGED, 2),
            Self::Unwanted | Self::Locked => memory.holds(CHANGED, 1),
        };
        let is_huge = bytes(memory, Wanted::Huge) > 0;
        is_right && !is_huge && memory.holds(0..CHANGED.start, 1) && memory.holds(CHANGED.end..LEN, 1)
    }
}

/// Returns the bytes of such pages in what was changed.
fn bytes(memory: Memory, wanted: Wanted) -> usize {
    let (start, mut bytes) = (memory.start.addr(), 0);
    let range = start + CHANGED.start..start + CHANGED.end;
    let pagemap = Pagemap::open().expect("/proc");
    let scanned = pagemap.scan(range, wanted, &mut |run| {
        bytes += run.len();
        std::ops::ControlFlow::Continue(())
    });
    scanned.expect("told");
    bytes
}

/// Fails on: memory that is asked for because it was there when the slice began: filled up, or taken although others
/// show it or it says no; a slice that ends at what is gone.
#[test]
fn what_changes_once_the_list_is_read_is_what_the_program_has_made_of_it() {
    play("listed::what_changes_once_the_list_is_read_is_what_the_program_has_made_of_it", || {
        before_6_11();
        needs_huge_pages();
        let may_lock = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let may_lock = may_lock.is_none_or(|most| most >= CHANGED.len() as u64);
        let changes = Change::ALL.into_iter().filter(|change| may_lock || *change != Change::Locked);
        changes.for_each(changed_behind_the_list);
    });
}

/// How far a program and whoever watches it have come.
const IN_SLICES: u32 = 1;
const CHANGE: u32 = 2;
const CHANGED_BY_NOW: u32 = 3;

/// Has another thread make a change while a slice looks at the first piece, after its list: a filter holds the slice
/// where it asks for the policy of that.
fn changed_behind_the_list(change: Change) {
    // Memory of both processes. All orders are those of the calls in between.
    let stage = shared_number();
    let looks = [Call { number: libc::SYS_get_mempolicy, third: None }];
    let (child, listener) = notified::start(&looks, || gather_while_it_changes(change, stage));
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        let Some(asked) = listener.next() else { continue };
        if stage.load(Ordering::SeqCst) == IN_SLICES {
            stage.store(CHANGE, Ordering::SeqCst);
            while stage.load(Ordering::SeqCst) != CHANGED_BY_NOW {
                std::thread::yield_now();
            }
        }
        listener.let_go(asked);
    }
    assert_eq!((status, stage.load(Ordering::SeqCst)), (0, CHANGED_BY_NOW), "{change:?}");
}

fn gather_while_it_changes(change: Change, stage: &'static AtomicU32) -> ! {
    let memory = filled();
    let address = memory.start.expose_provenance();
    std::thread::spawn(move || {
        while stage.load(Ordering::SeqCst) != CHANGE {
            std::thread::yield_now();
        }
        change.make(Memory { start: ptr::with_exposed_provenance_mut(address), len: LEN });
        stage.store(CHANGED_BY_NOW, Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    });
    plan(&in_slices().pause(Pause::Within(LONG)));
    stage.store(IN_SLICES, Ordering::SeqCst);
    to_the_end(|_| ());
    assert!(change.is_right(memory), "{change:?}");
    assert_eq!(memory.huge(), LEN - CHANGED.len(), "{change:?}: the rest is gathered");
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

/// Returns a number that children share.
pub(crate) fn shared_number() -> &'static AtomicU32 {
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping replaces nothing.
    let place = unsafe { libc::mmap(ptr::null_mut(), page(), rights, kind, -1, 0) };
    assert_ne!(place, libc::MAP_FAILED);
    // SAFETY: zeroed, aligned, and never unmapped.
    unsafe { AtomicU32::from_ptr(place.cast()) }
}

/// Fails on: slices that follow each other by the list of the first.
#[test]
fn each_slice_lists_anew_also_where_nobody_waits() {
    play("listed::each_slice_lists_anew_also_where_nobody_waits", || {
        before_6_11();
        needs_huge_pages();
        let memory = Memory::unadvised(2 * LEN);
        memory.fill(0..LEN, 1);
        let later = Memory { start: memory.at(LEN).cast(), len: LEN };
        let address = later.start.expose_provenance();
        // Not unmapped, or somebody else would be there. SAFETY: the scenario's own memory, which nobody uses.
        assert_eq!(unsafe { libc::mprotect(later.at(0), LEN, libc::PROT_NONE) }, 0);
        plan(&in_slices());
        let (in_slice, is_open) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                until(in_slice);
                let later = Memory { start: ptr::with_exposed_provenance_mut(address), len: LEN };
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: the scenario's own memory.
                assert_eq!(unsafe { libc::mprotect(later.at(0), LEN, rights) }, 0);
                later.fill(0..LEN, 2);
                is_open.store(true, Ordering::SeqCst);
            });
            let mut is_idle = || {
                in_slice.store(true, Ordering::SeqCst);
                until(is_open);
                true
            };
            // SAFETY: 1. the scenario keeps the contract. 2. it only spins.
            patiently(|| unsafe { freeze_while(&mut is_idle) });
        });
        assert_eq!(memory.huge(), 2 * LEN, "{:?}", progress());
        assert!(memory.holds(0..LEN, 1) && later.holds(0..LEN, 2));
    });
}

fn until(is_so: &AtomicBool) {
    while !is_so.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
}

/// More mappings than a slice of no time lists.
const MANY: usize = 1200;

/// Fails on: a stop as long as such a list takes, at each slice; an end without a reason; a program with one thread to
/// which nothing is done.
#[test]
fn too_many_mappings_are_not_listed_in_each_slice() {
    play("listed::too_many_mappings_are_not_listed_in_each_slice", || {
        before_6_11();
        needs_huge_pages();
        let memory = filled();
        let many = Memory::map(MANY * page());
        let protect = |rights| {
            (0..MANY).step_by(2).for_each(|index| {
                // SAFETY: the scenario's own memory, which nobody uses.
                assert_eq!(unsafe { libc::mprotect(many.at(index * page()), page(), rights) }, 0);
            });
        };
        let try_freeze = |options: &Options| {
            // SAFETY: the scenario keeps the contract.
            unsafe { freeze(options) }
        };
        let other = waiter();
        let mut report = plan(&in_slices());
        slice();
        assert_eq!(memory.huge(), PIECE);
        protect(libc::PROT_READ);
        let done = to_the_end(|_| ());
        assert_eq!((done.stage, memory.huge()), (Stage::Ended, PIECE), "{done:?}");
        report.update();
        assert!(report.to_string().contains("6.11"), "a reason: {report}");
        let refused = try_freeze(&in_slices());
        assert!(matches!(refused, Err(FreezeError::ManyMappings { count: 2, most: 1000 })), "{refused:?}");
        assert_ne!(progress().stage, Stage::UnderWay);
        // The way out.
        plan(&in_slices().pause(Pause::Within(LONG)));
        to_the_end(|_| ());
        assert_eq!(memory.huge(), LEN);
        dismiss(other);
        let later = filled();
        let report = try_freeze(&in_slices()).expect("alone");
        assert!(report.to_string().contains("6.11"), "a reason: {report}");
        to_the_end(|_| ());
        assert_eq!((later.huge(), later.is_frozen()), (0, true), "{:?}", progress());
        protect(libc::PROT_READ | libc::PROT_WRITE);
        assert!(memory.holds(0..LEN, 1) && later.holds(0..LEN, 1));
    });
}
