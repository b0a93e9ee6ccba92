//! What tests of gathering share: options, memory, slices, and children that look at it.

use std::sync::OnceLock;
use std::time::Duration;

use palimpsest_fork::{
    Basis, Errands, Forked, Measure, Options, Pages, Pause, Pays, Progress, Report, Stage, progress,
};
use palimpsest_sys::proc::thp;

use super::{Memory, freeze, skip, slice, wait};

pub(crate) const PIECE: usize = 2 << 20;
pub(crate) const LEN: usize = 8 * PIECE;

/// Returns options with many forks, since a test's memory is small; and few enough that freezing what is huge would not
/// pay.
pub(crate) fn in_slices() -> Options {
    let pays = Pays::Within(1500);
    Options::new().measure(Measure::Nothing).pages(Pages::Gather).pays(pays).pause(Pause::Within(Duration::ZERO))
}

/// The same, by deputies. A slice may make more than one piece then.
pub(crate) fn by_deputies() -> Options {
    in_slices().errands(Errands::Deputy)
}

/// Returns how many children this process has, whoever knows of them.
pub(crate) fn children() -> usize {
    let told = std::fs::read_to_string("/proc/thread-self/children").expect("told");
    told.split_whitespace().count()
}

/// How often the kernel had refused a huge page when a scenario began that needs some.
static REFUSED: OnceLock<u64> = OnceLock::new();

/// Whether the kernel has had no huge page for somebody since this scenario has said that it needs some. Then nothing
/// follows from how many there are.
pub(crate) fn was_refused() -> bool {
    REFUSED.get().is_some_and(|before| refusals() > *before)
}

/// Returns how often the kernel has had no huge page to collapse into, for any process.
fn refusals() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let counts = text.lines().filter_map(|line| line.strip_prefix("thp_collapse_alloc_failed "));
    counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum()
}

/// Notes that the scenario needs huge pages: if it fails, and the kernel has had none meanwhile, it ends as skipped.
pub(crate) fn expects_huge_pages() {
    REFUSED.get_or_init(refusals);
}

/// Ends the scenario if nothing can be gathered.
pub(crate) fn needs_huge_pages() {
    expects_huge_pages();
    let probe = Memory::unadvised(8 << 20);
    probe.fill(0..PIECE, 0);
    // SAFETY: a collapse keeps contents.
    let made = unsafe { libc::madvise(probe.at(0), PIECE, libc::MADV_COLLAPSE) } == 0;
    // SAFETY: the scenario's own memory, which nobody uses any more.
    assert_eq!(unsafe { libc::munmap(probe.at(0), probe.len) }, 0);
    match thp::enabled() {
        Ok(thp::Anonymous::Madvise) if made => {}
        Ok(thp::Anonymous::Always) => skip("the kernel makes huge pages by itself (transparent_hugepage/enabled)"),
        _ => skip("no huge page can be had"),
    }
}

/// Plans. Ends the scenario if nothing pays.
pub(crate) fn plan(options: &Options) -> Report {
    let report = freeze(options);
    let stage = report.progress.map(|progress| progress.stage);
    if stage == Some(Stage::Done) && report.left_worth.is_some() {
        skip("by what slices have taken before, nothing pays on this machine any more");
    }
    assert_eq!(stage, Some(Stage::UnderWay), "{report}");
    report
}

pub(crate) fn filled() -> Memory {
    let memory = Memory::unadvised(LEN);
    memory.fill(0..LEN, 1);
    memory
}

/// Asks what a program asks when it is about to wait, without a slice.
pub(crate) fn about_to_wait() {
    if palimpsest_fork::next_slice().is_none() && progress().stage == Stage::UnderWay {
        skip("this machine takes a millisecond to look at a few descriptors");
    }
}

pub(crate) fn slices(count: usize) {
    for _ in 0..count {
        slice();
    }
}

/// Takes slices to the end, calling `before` before each.
pub(crate) fn to_the_end(mut before: impl FnMut(usize)) -> Progress {
    for number in 0..1 << 12 {
        before(number);
        let progress = slice();
        if progress.stage != Stage::UnderWay {
            return progress;
        }
    }
    panic!("it does not end: {:?}", progress());
}

/// A child of the library's fork that waits for the end of a pipe, and then tells whether it sees what was there.
pub(crate) struct Child {
    pub(crate) pid: i32,
    teller: std::io::PipeWriter,
}

impl Child {
    pub(crate) fn fork(is_right: impl Fn() -> bool) -> Self {
        let (mut told, teller) = std::io::pipe().expect("a pipe");
        // SAFETY: the scenario keeps the contract of freezing, and its child uses no lock of another thread.
        match unsafe { palimpsest_fork::fork() }.expect("forked") {
            Forked::Child => {
                drop(teller);
                let _ = std::io::Read::read(&mut told, &mut [0]);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!is_right())) }
            }
            Forked::Parent(child) => Self { pid: child.as_raw_nonzero().get(), teller },
        }
    }

    pub(crate) fn end(self) {
        drop(self.teller);
        assert_eq!(wait(self.pid), 0, "the child sees what was when it was forked");
    }
}

pub(crate) fn end(child: &mut Option<Child>) {
    if let Some(child) = child.take() {
        child.end();
    }
}

/// Fails on: a report of nothing, or of a freeze; one that tells what was expected as what was measured; or time by the
/// clock beside savings in processor time.
pub(crate) fn says_what_it_took(report: &Report, done: Progress) {
    let text = report.to_string();
    assert!(text.starts_with("huge ") && !text.contains("\nfrozen "), "{text}");
    let worth = report.worth.expect("forks are spared something");
    // Processor time, also of what comes before and behind a slice.
    let most = 2 * (done.looked + done.taken) + done.beside;
    assert!(worth.once > done.beside && worth.once <= most, "{done:?} {text}");
    assert_eq!((report.basis, worth.per_fork.is_zero()), (Basis::Taken, false), "{text}");
    assert!(text.contains(" ms once, about ") && text.contains(": pays after about "), "{text}");
}
