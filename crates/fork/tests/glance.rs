//! Plans of freezes in slices whose memory is so large that only samples are looked at.

mod common;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Memory, freeze, guarded, in_child, page, play, skip, slice};
use palimpsest_fork::{Measure, Options, OtherThreads, Pause, Report, Skip, Stage};
use palimpsest_sys::memory::calls;
use palimpsest_sys::pages::vmas::{Detail, Vma, VmaFlags, Vmas};

const MIB: usize = 1 << 20;

fn in_slices() -> Options {
    Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO))
}

/// Whether only samples were looked at.
fn is_by_samples(report: &Report) -> bool {
    report.notes.iter().any(|note| note.contains("samples"))
}

/// Refuses to go on where the kernel does not tell of one mapping alone.
fn needs_samples() {
    if common::kernels::is_old() {
        skip("before Linux 6.11 everything is looked at");
    }
}

fn bytes_skipped(report: &Report, within: Range<usize>, reason: Skip) -> usize {
    let inside = |range: &&palimpsest_fork::SkippedRange| {
        within.start <= range.range.start && range.range.end <= within.end && range.reason == reason
    };
    report.skipped.iter().filter(inside).map(|range| range.bytes).sum()
}

fn advise(memory: &Memory, advice: i32) {
    // SAFETY: 1. the scenario's memory; the advice changes no contents.
    unsafe { calls::advise(memory.range().into(), advice) }.expect("madvise");
}

fn to_the_end() {
    while slice().stage == Stage::UnderWay {}
    assert_eq!(slice().stage, Stage::Done);
}

/// Fails on: flags that are guessed; memory of another kind than the plan says; a look at everything.
#[test]
fn large_memory_is_planned_by_samples_with_the_flags_that_it_has() {
    play("large_memory_is_planned_by_samples_with_the_flags_that_it_has", || {
        needs_samples();
        let [plain, unforked, wiped] = [96, 64, 32].map(|mib| Memory::apart(mib * MIB));
        for memory in [plain, unforked, wiped] {
            memory.fill(0..memory.len, 1);
        }
        advise(&unforked, libc::MADV_DONTFORK);
        advise(&wiped, libc::MADV_WIPEONFORK);
        let report = freeze(&in_slices());
        assert!(is_by_samples(&report), "{report}");
        assert!([plain, unforked, wiped].iter().all(|memory| memory.mappings() == 1), "each is whole again");
        assert_eq!(report.progress.expect("in slices").planned_bytes, plain.len, "{report}");
        assert!(report.skipped.iter().any(|range| range.reason == Skip::File), "libraries' own pages: {report}");
        assert_eq!(bytes_skipped(&report, unforked.range(), Skip::NotForked), unforked.len, "{report}");
        assert_eq!(bytes_skipped(&report, wiped.range(), Skip::WipedOnFork), wiped.len, "{report}");
        to_the_end();
        assert!(plain.is_frozen() && unforked.is_anonymous() && wiped.is_anonymous());
        for memory in [plain, unforked, wiped] {
            assert!(memory.holds(0..memory.len, 1));
        }
        let status = in_child(|| {
            let is_wiped = wiped.is_zero(0..wiped.len);
            i32::from(calls::is_all_mapped(unforked.range().into()) || !is_wiped || !plain.holds(0..plain.len, 1))
        });
        assert_eq!(status, 0);
    });
}

/// Fails on: a look at everything because something is frozen; frozen memory that is planned again, or whose advice is
/// forgotten.
#[test]
fn new_memory_beside_frozen_memory_is_planned_by_samples() {
    play("new_memory_beside_frozen_memory_is_planned_by_samples", || {
        needs_samples();
        let old = Memory::apart(96 * MIB);
        old.fill(0..old.len, 1);
        freeze(&in_slices());
        to_the_end();
        guarded::madvise(&old, 0, 32 * MIB, libc::MADV_DONTDUMP).expect("advice");
        let new = Memory::apart(96 * MIB);
        new.fill(0..new.len, 2);
        let report = freeze(&in_slices());
        assert!(is_by_samples(&report), "{report}");
        assert_eq!(report.progress.expect("in slices").planned_bytes, new.len, "{report}");
        to_the_end();
        assert!(old.is_frozen() && new.is_frozen() && old.holds(0..old.len, 1) && new.holds(0..new.len, 2));
        // A page that is written makes a round replace what is around it.
        old.set(8, 7);
        freeze(&Options::new());
        let mut list = Vmas::with_capacity(1 << 14).expect("memory");
        list.read(Detail::Figures).expect("/proc");
        let start = old.range().start;
        let advised = |vma: &&Vma| vma.flags.intersects(VmaFlags::DONT_DUMP) && old.range().contains(&vma.start);
        let bytes: usize = list.iter().filter(advised).map(|vma| vma.range().len()).sum();
        assert_eq!(bytes, 32 * MIB);
        let first = list.iter().find(|vma| vma.start == start).expect("mapped");
        assert!(first.anonymous == 0 && first.flags.intersects(VmaFlags::DONT_DUMP), "{first:?}");
    });
}

/// Fails on: mappings whose flags nobody has asked for, planned or forgotten.
#[test]
fn memory_in_many_mappings_is_looked_at_as_a_whole() {
    play("memory_in_many_mappings_is_looked_at_as_a_whole", || {
        let memories: Vec<Memory> = (0..24).map(|_| Memory::apart(4 * MIB)).collect();
        memories.iter().for_each(|memory| memory.fill(0..memory.len, 1));
        let report = freeze(&in_slices());
        assert!(!is_by_samples(&report), "{report}");
        to_the_end();
        assert!(memories.iter().all(|memory| memory.is_frozen() && memory.holds(0..memory.len, 1)));
    });
}

/// Fails on: samples that stand for memory which they do not show.
#[test]
fn memory_that_samples_miss_is_looked_at_as_a_whole() {
    play("memory_that_samples_miss_is_looked_at_as_a_whole", || {
        const PIECE: usize = 2 * MIB;
        let sparse = Memory::apart(2 << 30);
        let pieces = sparse.len / PIECE;
        // However many of the samples this memory gets, beside what else there is.
        let is_seen = |piece: usize| {
            (40..=48).any(|samples| (0..samples).any(|number| number * (pieces - 1) / (samples - 1) == piece))
        };
        let parts: Vec<_> = (0..pieces).filter(|piece| !is_seen(*piece)).take(100).collect();
        let part = |piece: usize| piece * PIECE..(piece + 1) * PIECE;
        parts.iter().for_each(|piece| sparse.fill(part(*piece), 1));
        let report = freeze(&in_slices());
        assert!(!is_by_samples(&report), "{report}");
        to_the_end();
        assert!(report.progress.expect("in slices").planned_bytes >= 200 * MIB, "{report}");
        assert!(parts.iter().all(|piece| sparse.holds(part(*piece), 1)));
    });
}

/// Fails on: a page taken out of a huge one, which divides it for good.
#[test]
fn huge_pages_stay_whole() {
    play("huge_pages_stay_whole", || {
        needs_samples();
        let huge = Memory::unadvised(4 * MIB);
        advise(&huge, libc::MADV_HUGEPAGE);
        huge.fill(0..huge.len, 1);
        if huge.huge() < huge.len {
            skip("there are no huge pages here");
        }
        let plain = Memory::apart(256 * MIB);
        plain.fill(0..plain.len, 1);
        let before = huge.huge();
        let report = freeze(&in_slices());
        assert!(is_by_samples(&report), "{report}");
        assert_eq!(huge.huge(), before);
    });
}

/// Fails on: a filter's answer to the move of a page that ends the plan.
#[test]
fn where_no_page_may_be_moved_everything_is_looked_at() {
    play("where_no_page_may_be_moved_everything_is_looked_at", || {
        let memory = Memory::apart(96 * MIB);
        memory.fill(0..memory.len, 1);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        common::kernels::refuse(libc::SYS_mremap, 3, flags as usize, libc::EPERM);
        let report = freeze(&in_slices());
        assert!(!is_by_samples(&report), "{report}");
        to_the_end();
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 1));
    });
}

/// Fails on: a page that is away while another thread writes to it.
#[test]
fn other_threads_find_every_page_where_it_was() {
    play("other_threads_find_every_page_where_it_was", || {
        needs_samples();
        let memory = Memory::apart(96 * MIB);
        memory.fill(0..memory.len, 1);
        // Relaxed everywhere: the counters are one thread's, and these two only tell when to begin and to end.
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = memory.start.addr();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let counter = |number: usize| std::ptr::with_exposed_provenance_mut::<u64>(start + number * page() + 8);
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    for number in 0..64 {
                        // SAFETY: of the scenario's memory; only this thread uses these words.
                        let seen = unsafe { counter(number).read_volatile() };
                        assert_eq!(seen, round, "page {number} was elsewhere");
                        // SAFETY: as above.
                        unsafe { counter(number).write_volatile(round + 1) };
                    }
                    round += 1;
                    rounds.store(round, Ordering::Relaxed);
                }
            });
            let mut sampled = 0;
            for _ in 0..20 {
                let seen = rounds.load(Ordering::Relaxed);
                while rounds.load(Ordering::Relaxed) < seen + 20 && !writer.is_finished() {
                    std::thread::yield_now();
                }
                sampled += usize::from(is_by_samples(&freeze(&in_slices().other_threads(OtherThreads::Stop))));
            }
            stop.store(true, Ordering::Relaxed);
            writer.join().expect("no store was lost");
            assert_eq!(sampled, 20);
        });
        assert!(memory.is_anonymous() && memory.holds(0..memory.len, 1));
        assert_eq!(memory.mappings(), 1, "it is whole again");
    });
}

/// Registers memory with a userfaultfd that only a child has open from then on. Returns the child; `None` where there
/// is no userfaultfd.
fn watched_by_a_child(memory: &Memory) -> Option<libc::pid_t> {
    const USER_MODE_ONLY: i32 = 1;
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    // SAFETY: takes numbers.
    let watcher = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) } as i32;
    if watcher < 0 {
        return None;
    }
    let mut api = [0xaa_u64, 0, 0];
    // SAFETY: the kernel reads and writes a structure of three numbers.
    assert_eq!(unsafe { libc::ioctl(watcher, UFFDIO_API, &raw mut api) }, 0);
    // Of missing pages.
    let mut range = [memory.start.addr() as u64, memory.len as u64, 1, 0];
    // SAFETY: as above, of four numbers.
    assert_eq!(unsafe { libc::ioctl(watcher, UFFDIO_REGISTER, &raw mut range) }, 0);
    // SAFETY: the child only waits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes numbers: it ends with the scenario, or when that ends it.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            // SAFETY: takes nothing.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: made above, and not used any more.
    unsafe { libc::close(watcher) };
    Some(child)
}

/// Fails on: memory that another process fills page by page, taken for ordinary memory: the flag is not told of a page
/// that was moved.
#[test]
fn memory_that_another_process_watches_is_left_alone() {
    play("memory_that_another_process_watches_is_left_alone", || {
        let memory = Memory::apart(96 * MIB);
        memory.fill(0..memory.len, 1);
        let Some(child) = watched_by_a_child(&memory) else { skip("no userfaultfd here") };
        let report = freeze(&in_slices());
        assert!(!is_by_samples(&report), "{report}");
        assert!(bytes_skipped(&report, memory.range(), Skip::Userfault) >= memory.len - page(), "{report}");
        assert!(memory.is_anonymous() && memory.holds(0..memory.len, 1));
        // SAFETY: the child made above.
        unsafe { libc::kill(child, libc::SIGKILL) };
        common::wait(child);
    });
}

/// Fails on: what samples count twice in one mapping, and so hides what they miss in another.
#[test]
fn what_samples_overrate_hides_nothing() {
    play("what_samples_overrate_hides_nothing", || {
        let reserved = Memory::apart(16 << 30);
        reserved.fill(0..360 * MIB, 1);
        let late = Memory::apart(160 * MIB);
        late.fill(4 * MIB..late.len, 1);
        let report = freeze(&in_slices().pause(Pause::Within(Duration::from_millis(50))));
        to_the_end();
        assert!(late.holds(4 * MIB..late.len, 1) && reserved.holds(0..360 * MIB, 1));
        let frozen = palimpsest_fork::progress().frozen_bytes;
        assert!(frozen >= 516 * MIB, "{frozen}: {report}");
    });
}

/// Fails on: base pages between huge ones, which no sample shows alone and no plan has.
#[test]
fn base_pages_between_huge_ones_are_frozen() {
    play("base_pages_between_huge_ones_are_frozen", || {
        let mixed = Memory::unadvised(400 * MIB);
        for start in (0..mixed.len).step_by(4 * MIB) {
            let huge = Memory { start: mixed.at(start).cast(), len: 2 * MIB };
            advise(&huge, libc::MADV_HUGEPAGE);
            let base = Memory { start: mixed.at(start + 2 * MIB).cast(), len: 2 * MIB };
            advise(&base, libc::MADV_NOHUGEPAGE);
        }
        mixed.fill(0..mixed.len, 1);
        advise(&mixed, libc::MADV_NOHUGEPAGE);
        let plain = Memory::apart(96 * MIB);
        plain.fill(0..plain.len, 1);
        let report = freeze(&in_slices().pause(Pause::Within(Duration::from_millis(50))));
        to_the_end();
        assert!(mixed.holds(0..mixed.len, 1) && plain.is_frozen());
        let frozen = palimpsest_fork::progress().frozen_bytes;
        assert!(frozen >= 496 * MIB, "{frozen}: {report}");
    });
}

/// Fails on: a page that is moved while a device may use it.
#[test]
fn beside_a_device_everything_is_looked_at() {
    play("beside_a_device_everything_is_looked_at", || {
        let Ok(_device) = std::fs::File::open("/dev/kmsg") else { skip("/dev/kmsg cannot be opened") };
        let memory = Memory::apart(96 * MIB);
        memory.fill(0..memory.len, 1);
        let report = freeze(&in_slices());
        assert!(!is_by_samples(&report), "{report}");
        assert!(report.progress.expect("in slices").planned_bytes >= memory.len, "{report}");
    });
}

/// Fails on: threads that are held for samples which nobody may look at.
#[test]
fn nobody_is_held_where_no_samples_are_looked_at() {
    play("nobody_is_held_where_no_samples_are_looked_at", || {
        let memory = Memory::apart(96 * MIB);
        memory.fill(0..memory.len, 1);
        let (stop, interrupted) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed everywhere: a flag and a figure.
                while !stop.load(Ordering::Relaxed) {
                    let pause = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
                    // SAFETY: reads the time.
                    if unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) } != 0 {
                        interrupted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            let device = std::fs::File::open("/dev/kmsg");
            if device.is_ok() {
                (0..10).for_each(|_| drop(freeze(&in_slices().other_threads(OtherThreads::Stop))));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(interrupted.load(Ordering::Relaxed), 0, "a signal has held it");
    });
}
