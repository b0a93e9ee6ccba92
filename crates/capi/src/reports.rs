//! What a freeze did, range by range and in words: this thread's last.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::ops::Range;

use palimpsest_fork::{FrozenRange, Report, Skip, SkippedRange};

use crate::result::palimpsest_result::{self, PALIMPSEST_NOT_FOUND};
use crate::result::{Failure, answer, wanted};
use crate::versioned::{self, Versioned};

/// It is frozen, or would be.
pub const PALIMPSEST_SKIP_NOT: c_int = 0;
/// Fewer populated bytes than `least` in `palimpsest_freeze_options`.
pub const PALIMPSEST_SKIP_SMALL: c_int = 1;
/// A private mapping of a file with pages of its own, such as a library's data.
pub const PALIMPSEST_SKIP_FILE: c_int = 2;
/// A stack.
pub const PALIMPSEST_SKIP_STACK: c_int = 3;
/// Made by the kernel.
pub const PALIMPSEST_SKIP_KERNEL: c_int = 4;
/// Shared with other processes.
pub const PALIMPSEST_SKIP_SHARED: c_int = 5;
/// Memory of a device.
pub const PALIMPSEST_SKIP_DEVICE: c_int = 6;
/// Pages of hugetlbfs.
pub const PALIMPSEST_SKIP_HUGETLB: c_int = 7;
/// Not given to children (`MADV_DONTFORK`), so that it costs a fork nothing.
pub const PALIMPSEST_SKIP_NOT_FORKED: c_int = 8;
/// Children get zeros (`MADV_WIPEONFORK`).
pub const PALIMPSEST_SKIP_WIPED_ON_FORK: c_int = 9;
/// Locked in memory.
pub const PALIMPSEST_SKIP_LOCKED: c_int = 10;
/// Watched by a userfaultfd.
pub const PALIMPSEST_SKIP_USERFAULT: c_int = 11;
/// It has guard regions or other pages that cannot be read.
pub const PALIMPSEST_SKIP_GUARDED: c_int = 12;
/// Sealed against changes (`mseal`).
pub const PALIMPSEST_SKIP_SEALED: c_int = 13;
/// Its pages carry tags (AArch64 memory tagging).
pub const PALIMPSEST_SKIP_TAGGED: c_int = 14;
/// The kernel may drop its pages.
pub const PALIMPSEST_SKIP_DROPPABLE: c_int = 15;
/// It has a memory protection key.
pub const PALIMPSEST_SKIP_PROTECTION_KEY: c_int = 16;
/// It has a policy for NUMA nodes.
pub const PALIMPSEST_SKIP_MEMORY_POLICY: c_int = 17;
/// Executable.
pub const PALIMPSEST_SKIP_EXECUTABLE: c_int = 18;
/// Without the right to read.
pub const PALIMPSEST_SKIP_INACCESSIBLE: c_int = 19;
/// The calling thread's own: its stack, its thread-local storage, and the library's tables.
pub const PALIMPSEST_SKIP_IN_USE: c_int = 20;
/// Written to after each of the last freezes, so that freezing it does not pay for now.
pub const PALIMPSEST_SKIP_HOT: c_int = 21;
/// Not expected to pay within `pays_within` forks.
pub const PALIMPSEST_SKIP_UNPROFITABLE: c_int = 22;
/// Another reason, which this version of the header does not name.
pub const PALIMPSEST_SKIP_OTHER: c_int = 255;

/// Memory of which a report tells. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_report_range {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// The first address.
    pub start: usize,
    /// Bytes of addresses.
    pub len: usize,
    /// Populated bytes. Of frozen memory in a survey: those of the whole mapping that the range is part of.
    pub bytes: usize,
    /// `PALIMPSEST_SKIP_NOT` if it is frozen, or would be; else why it is not: `PALIMPSEST_SKIP_SMALL` and the others.
    pub skip: c_int,
    /// Not 0: it is frozen, and had a name (`PR_SET_VMA_ANON_NAME`), which is lost.
    pub lost_name: c_int,
}

const _: () = assert!(size_of::<palimpsest_report_range>() == size_of::<([usize; 4], [c_int; 2])>());

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_report_range {}

/// A report, and its text.
struct Kept {
    report: Report,
    text: CString,
}

thread_local! {
    static LAST: RefCell<Option<Kept>> = RefCell::default();
}

/// Keeps a report for this thread.
pub(crate) fn keep(report: Report) {
    // No text of ours has a zero, but a note may name a file.
    let text = CString::new(report.to_string().replace('\0', " ")).unwrap_or_default();
    // A thread that is ending keeps none.
    let _ = LAST.try_with(|last| last.replace(Some(Kept { report, text })));
}

const fn number_of(skip: Skip) -> c_int {
    match skip {
        Skip::Small => PALIMPSEST_SKIP_SMALL,
        Skip::File => PALIMPSEST_SKIP_FILE,
        Skip::Stack => PALIMPSEST_SKIP_STACK,
        Skip::Kernel => PALIMPSEST_SKIP_KERNEL,
        Skip::Shared => PALIMPSEST_SKIP_SHARED,
        Skip::Device => PALIMPSEST_SKIP_DEVICE,
        Skip::Hugetlb => PALIMPSEST_SKIP_HUGETLB,
        Skip::NotForked => PALIMPSEST_SKIP_NOT_FORKED,
        Skip::WipedOnFork => PALIMPSEST_SKIP_WIPED_ON_FORK,
        Skip::Locked => PALIMPSEST_SKIP_LOCKED,
        Skip::Userfault => PALIMPSEST_SKIP_USERFAULT,
        Skip::Guarded => PALIMPSEST_SKIP_GUARDED,
        Skip::Sealed => PALIMPSEST_SKIP_SEALED,
        Skip::Tagged => PALIMPSEST_SKIP_TAGGED,
        Skip::Droppable => PALIMPSEST_SKIP_DROPPABLE,
        Skip::ProtectionKey => PALIMPSEST_SKIP_PROTECTION_KEY,
        Skip::MemoryPolicy => PALIMPSEST_SKIP_MEMORY_POLICY,
        Skip::Executable => PALIMPSEST_SKIP_EXECUTABLE,
        Skip::Inaccessible => PALIMPSEST_SKIP_INACCESSIBLE,
        Skip::InUse => PALIMPSEST_SKIP_IN_USE,
        Skip::Hot => PALIMPSEST_SKIP_HOT,
        Skip::Unprofitable => PALIMPSEST_SKIP_UNPROFITABLE,
        _ => PALIMPSEST_SKIP_OTHER,
    }
}

fn told(range: &Range<usize>, bytes: usize) -> palimpsest_report_range {
    palimpsest_report_range { start: range.start, len: range.len(), bytes, ..Default::default() }
}

fn frozen(found: &FrozenRange) -> palimpsest_report_range {
    palimpsest_report_range { lost_name: c_int::from(found.lost_name), ..told(&found.range, found.bytes) }
}

fn skipped(found: &SkippedRange) -> palimpsest_report_range {
    palimpsest_report_range { skip: number_of(found.reason), ..told(&found.range, found.bytes) }
}

/// Returns the `index`th range of this thread's last freeze or survey: those that are frozen, or would be, and then the
/// others that have populated pages, with the reason. There are `ranges` in `palimpsest_freeze_report`;
/// `PALIMPSEST_NOT_FOUND` behind the last.
///
/// # Safety
///
/// 1. `range` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_report_get_range(
    index: usize,
    range: *mut palimpsest_report_range,
) -> palimpsest_result {
    answer(|| {
        let range = wanted(range)?;
        let found = LAST.try_with(|last| {
            let last = last.borrow();
            let report = &last.as_ref()?.report;
            let behind = index.checked_sub(report.frozen.len());
            behind.map_or_else(|| report.frozen.get(index).map(frozen), |index| report.skipped.get(index).map(skipped))
        });
        let nothing =
            || Failure::new(PALIMPSEST_NOT_FOUND, format_args!("this thread's last report has no range {index}"));
        let told = found.ok().flatten().ok_or_else(nothing)?;
        // SAFETY: 1. is contract 1.
        unsafe { versioned::write(range, told) }
    })
}

/// Tells of this thread's last freeze or survey in words, in several lines: what is frozen, what is not and why, what
/// it takes and saves, why it ended early if it did, and notes on what changed in the process. An empty string before
/// the first. Valid until this thread's next freeze or survey. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_report_text() -> *const c_char {
    // Cannot panic: a handler that interrupts `keep` finds the report taken.
    let found = LAST.try_with(|last| Some(last.try_borrow().ok()?.as_ref()?.text.as_ptr()));
    found.ok().flatten().unwrap_or(c"".as_ptr())
}
