//! Which memory is frozen if it must pay, and what happens when everything is thawed. Counts decide, not times: the
//! numbers of forks are far from what is expected of this memory, whose freeze pays after about sixty.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::gathering::to_the_end;
use common::{Memory, freeze, in_child, page, play, skip};
use palimpsest_fork::{ExtentLen, Measure, Options, Pause, Pays, Report, Skip, Stage, guard};

const MIB: usize = 1 << 20;

/// Returns options under which nothing depends on measured forks.
fn within(forks: u32) -> Options {
    Options::new().pays(Pays::Within(forks)).measure(Measure::Nothing)
}

/// Returns the bytes left alone because they would not pay.
fn unpaid(report: &Report) -> usize {
    report.skipped.iter().filter(|range| range.reason == Skip::Unprofitable).map(|range| range.bytes).sum()
}

#[test]
fn what_does_not_pay_soon_enough_is_left_and_told() {
    play("what_does_not_pay_soon_enough_is_left_and_told", || {
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        let report = freeze(&within(5));
        assert_eq!((report.frozen_bytes(), palimpsest_fork::frozen_bytes(), memory.mappings()), (0, 0, 1), "{report}");
        assert!(unpaid(&report) >= 64 * MIB, "{report}");
        let after = report.left_worth.and_then(|worth| worth.pays_after()).expect("it pays some day");
        assert!((20..200).contains(&after), "{report}");
        assert!(report.to_string().contains("would not pay soon enough (about "), "{report}");
        assert!(report.to_string().contains(&format!("pays after {after} forks)")), "{report}");
        let report = freeze(&within(10_000));
        assert!(memory.is_frozen() && report.frozen_bytes() >= 64 * MIB, "{report}");
        assert!(memory.holds(0..memory.len, 1));
    });
}

#[test]
fn a_survey_tells_what_would_pay() {
    play("a_survey_tells_what_would_pay", || {
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        let [some, none] = [10_000, 5].map(|forks| palimpsest_fork::survey(&within(forks)).expect("can be frozen"));
        assert!(some.worth.is_some() && some.frozen_bytes() >= 64 * MIB, "{some}");
        assert_eq!((none.worth, none.frozen_bytes()), (None, 0), "{none}");
        assert!(!memory.is_frozen());
    });
}

/// Returns what this process has in huge pages, in kB, without using what is tested.
fn huge_kib() -> usize {
    let figures = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = figures.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

#[test]
fn huge_pages_are_left_beside_base_pages() {
    play("huge_pages_are_left_beside_base_pages", || {
        let (base, huge) = (Memory::apart(64 * MIB), Memory::apart(64 * MIB));
        // SAFETY: changes no contents.
        unsafe { libc::madvise(huge.at(0), huge.len, libc::MADV_HUGEPAGE) };
        base.fill(0..base.len, 1);
        huge.fill(0..huge.len, 2);
        if huge_kib() < huge.len / 10 * 9 / 1024 {
            skip("the kernel gives no huge pages");
        }
        let report = freeze(&within(300));
        assert!(base.is_frozen() && !huge.is_frozen(), "{report}");
        assert!(unpaid(&report) >= huge.len, "{report}");
        assert!(report.left_worth.and_then(|worth| worth.pays_after()).is_some_and(|forks| forks > 300), "{report}");
        freeze(&Options::new());
        assert!(huge.is_frozen() && huge.holds(0..huge.len, 2), "all that can be");
    });
}

#[test]
fn what_grows_until_it_pays_is_frozen_by_a_repair() {
    play("what_grows_until_it_pays_is_frozen_by_a_repair", || {
        what_grows_is_frozen(&Options::new().pays(Pays::Within(100)));
        let status = palimpsest_fork::status();
        assert!(status.extents <= 20, "as long as for so much memory: {status:?}");
    });
}

/// Fails on: a plan in which nothing pays, and after which no fork is accounted for.
#[test]
fn what_grows_until_it_pays_is_frozen_in_slices() {
    play("what_grows_until_it_pays_is_frozen_in_slices", || {
        what_grows_is_frozen(&Options::new().pays(Pays::Within(100)).pause(Pause::Within(Duration::from_millis(2))));
    });
}

fn what_grows_is_frozen(options: &Options) {
    let report = freeze(options);
    assert_eq!(report.frozen_bytes(), 0, "{report}");
    let memory = Memory::apart(128 * MIB);
    memory.fill(0..memory.len, 1);
    let mut forks = 0;
    while !memory.is_frozen() {
        assert_eq!(in_child(|| i32::from(!memory.holds(0..page(), 1))), 0);
        forks += 1;
        assert!(forks < 10_000, "{:?}", palimpsest_fork::status());
    }
    println!("frozen after {forks} forks: {:?}", palimpsest_fork::status());
    assert!(memory.holds(0..memory.len, 1));
}

/// Whether forks take long from now on.
static IS_SLOW: AtomicBool = AtomicBool::new(false);

/// Makes a fork take at least a tenth of a second of processor time, if forks are slow.
extern "C" fn before_fork() {
    let used = || {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        used.tv_sec * 1000 + used.tv_nsec / 1_000_000
    };
    let begun = used();
    while IS_SLOW.load(Ordering::Relaxed) && used() - begun <= 100 {
        std::hint::spin_loop();
    }
}

/// Calls `work` beside another thread, and waits until that is gone.
fn beside_a_thread(work: impl FnOnce()) {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let beside = std::thread::spawn(move || ended.recv());
    work();
    drop(end);
    assert!(beside.join().expect("no panic").is_err());
    while std::fs::read_dir("/proc/self/task").expect("/proc").count() > 1 {
        std::thread::yield_now();
    }
}

/// Fails on: forks before the first slice of which the ledger learns nothing; forks of a plan that was dropped, which
/// it compares with those after another freeze.
#[test]
fn forks_before_the_first_slice_tell_what_a_freeze_saves() {
    play("forks_before_the_first_slice_tell_what_a_freeze_saves", || {
        // SAFETY: the handler makes system calls only.
        assert_eq!(unsafe { libc::pthread_atfork(Some(before_fork), None, None) }, 0);
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        // Slices take long on an emulated processor.
        let options = within(1_000_000).pause(Pause::Within(Duration::ZERO));
        let worth = || {
            let survey = palimpsest_fork::survey(&options).expect("can be frozen");
            survey.worth.unwrap_or_else(|| panic!("nothing is worth it: {survey}")).per_fork
        };
        let forks = || (0..3).for_each(|_| assert_eq!(in_child(|| 0), 0));
        let learned = |plan: &dyn Fn()| {
            plan();
            assert_eq!(to_the_end(|_| {}).stage, Stage::Done);
            forks();
            guard::thaw_all().expect("it can be thawed");
            worth()
        };
        let at_first = worth();
        let slow = || {
            freeze(&options);
            // Each slice is refused.
            beside_a_thread(|| {
                IS_SLOW.store(true, Ordering::Relaxed);
                forks();
                IS_SLOW.store(false, Ordering::Relaxed);
            });
            assert!(memory.is_anonymous());
        };
        let again = learned(&|| {
            slow();
            freeze(&options);
        });
        assert!(again < at_first + at_first / 2, "{again:?}, and {at_first:?} at first");
        let told = learned(&slow);
        assert!(told > 2 * at_first, "{told:?}, and {at_first:?} at first");
    });
}

/// Returns the kilobytes that a child has copied when its fork returns, by the kernel's count.
fn copied(fork: impl FnOnce() -> libc::pid_t) -> usize {
    let child = fork();
    if child == 0 {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    // It waits in `pause` once it sleeps.
    let state = |text: String| text.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"));
    while !std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(state) {
        std::thread::yield_now();
    }
    let figures = std::fs::read_to_string(format!("/proc/{child}/smaps_rollup")).expect("the child is there");
    // SAFETY: a child that was not waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: no status is asked for.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    let line = figures.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).expect("Linux 4.14");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Fails on: a child that writes to its parent's account, or to the page that tells whose memory it is.
#[test]
fn where_nothing_is_frozen_a_child_copies_no_page_more_than_after_a_plain_fork() {
    play("where_nothing_is_frozen_a_child_copies_no_page_more_than_after_a_plain_fork", || {
        let report = freeze(&Options::new().pays(Pays::Within(1)));
        assert_eq!(report.frozen_bytes(), 0, "{report}");
        // SAFETY: one thread.
        let plain = || copied(|| unsafe { libc::fork() });
        let ours = || {
            copied(|| {
                // SAFETY: 1. one thread; 2. nothing is frozen.
                match unsafe { palimpsest_fork::fork() }.expect("forked") {
                    palimpsest_fork::Forked::Child => 0,
                    palimpsest_fork::Forked::Parent(child) => child.as_raw_nonzero().get(),
                }
            })
        };
        // A page that the parent writes to becomes the child's own, too: the parent writes down a fork that took
        // unusually long.
        let least = |copied: &dyn Fn() -> usize| (0..20).map(|_| copied()).min().expect("some");
        let (plain, ours) = (least(&plain), least(&ours));
        println!("{plain} kB after a plain fork, {ours} kB after ours");
        // The stack may be one page deeper.
        assert!(ours <= plain + page() / 1024, "{plain} {ours}");
    });
}

#[test]
fn after_a_thaw_all_is_as_before_the_freeze() {
    play("after_a_thaw_all_is_as_before_the_freeze", || {
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        memory.fill(0..3 * MIB, 2);
        assert_eq!(in_child(|| 0), 0);
        guard::thaw_all().expect("one thread");
        let whole = |memory: &Memory| memory.holds(0..3 * MIB, 2) && memory.holds(3 * MIB..memory.len, 1);
        assert!(memory.is_anonymous() && whole(&memory));
        let status = palimpsest_fork::status();
        assert_eq!((status.frozen_bytes, status.extents, status.debt), (0, 0, 0));
        let files = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        assert!(!files.contains("palimpsest-frozen"), "something is left: {files}");
        assert_eq!(in_child(|| i32::from(!whole(&memory))), 0);
        assert_eq!(palimpsest_fork::status().forks, status.forks, "there is nothing to account for");
        freeze(&Options::new());
        assert!(memory.is_frozen() && whole(&memory));
        assert_eq!(in_child(|| i32::from(!whole(&memory))), 0);
        assert_eq!(palimpsest_fork::status().forks, status.forks + 1);
    });
}

/// Fails on: a `thaw_all` that ends with the first piece that it cannot thaw, and lets the next repair freeze the rest.
#[test]
fn what_cannot_be_thawed_keeps_nothing_else_frozen() {
    play("what_cannot_be_thawed_keeps_nothing_else_frozen", || {
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().extent(ExtentLen::Bytes(8 * MIB)));
        // Its flags are unknown from here on.
        guard::changed(memory.at(0).addr()..memory.at(2 * MIB).addr());
        assert_eq!(guard::thaw_all(), Err(rustix::io::Errno::INVAL));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        // That piece.
        assert_eq!(maps.matches("palimpsest-frozen").count(), 1, "{maps}");
        let status = palimpsest_fork::status();
        memory.fill(0..memory.len, 2);
        for _ in 0..20 {
            assert_eq!(in_child(|| i32::from(!memory.holds(0..memory.len, 2))), 0);
        }
        let after = palimpsest_fork::status();
        assert_eq!((after.forks, after.repairs), (status.forks, status.repairs), "there is nothing to account for");
    });
}
