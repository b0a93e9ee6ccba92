//! Freezing the process, so that it forks in constant time.

use std::ffi::c_int;
use std::time::Duration;

use palimpsest_fork::{
    Answer, Basis, Errands, ExtentLen, Forked, FreezeError, Measure, Options, OtherThreads, Pages, Pause, Pays, Report,
    Verdict,
};

use crate::reports;
use crate::result::palimpsest_result::{
    self, PALIMPSEST_BUSY, PALIMPSEST_NO_ROOM, PALIMPSEST_REFUSED, PALIMPSEST_SYSTEM,
};
use crate::result::{Failure, answer, like_libc, wanted};
use crate::versioned::{self, Versioned};

/// A runtime manages its memory by system calls of its own (Go, musl), and never gives memory back by discarding it.
pub const PALIMPSEST_RAW_ALLOCATOR: u32 = 1;
/// Whatever an io_uring holds on to is outside the memory that will be frozen.
pub const PALIMPSEST_IO_URING: u32 = 2;
/// All future mappings will be locked; freezing gains nothing, and memory is held twice.
pub const PALIMPSEST_LOCKED_MEMORY: u32 = 4;
/// No request of Linux AIO is under way, or its buffers are outside the memory that will be frozen.
pub const PALIMPSEST_LINUX_AIO: u32 = 8;

/// How to freeze. Zeros are the defaults; `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_freeze_options {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Leaves alone mappings with fewer populated bytes; 0 for 16 pages.
    pub least: usize,
    /// A sum of `PALIMPSEST_RAW_ALLOCATOR`, `_IO_URING`, `_LOCKED_MEMORY` and `_LINUX_AIO`: what the caller answers
    /// for.
    pub answers: u32,
    /// Freezes what is expected to pay within this many forks; 0 for all that can be frozen.
    pub pays_within: u32,
    /// Not 0: holds other threads still; 0: refuses a process with several threads.
    pub stop_threads: c_int,
    /// Not 0: asks for huge pages.
    pub collapse: c_int,
    /// Not 0: does not time forks before and after.
    pub no_measure: c_int,
    /// Must be 0.
    pub reserved: c_int,
    /// Not 0: `palimpsest_freeze` only plans; `palimpsest_fork` and `palimpsest_freeze_slice` freeze, and hold the
    /// process up for about as many nanoseconds at a time.
    pub pause_ns: u64,
    /// Bytes of an extent, rounded up to a power of two of at least 2 MiB; 0 for a part of what is frozen.
    pub extent: usize,
    /// Not 0: a freeze in slices first puts memory into huge pages where it is, and freezes only what cannot be put
    /// there; with `pause_ns` and `pays_within`. Not together with `collapse`.
    pub gather: c_int,
    /// Not 0: a process that borrows this one's memory asks for huge pages between forks, so that no thread of this one
    /// waits for them. See `palimpsest_dismiss_deputy`.
    pub deputy: c_int,
}

const _: () = assert!(size_of::<palimpsest_freeze_options>() == size_of::<([usize; 4], [c_int; 8])>());

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_freeze_options {}

/// What a freeze did, or would do. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_freeze_report {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Bytes that are frozen.
    pub frozen: usize,
    /// Populated bytes that are not.
    pub skipped: usize,
    /// Nanoseconds for which the process was held up, without measurements.
    pub taken_ns: u64,
    /// Nanoseconds of the shortest fork before; 0 if not measured.
    pub fork_before_ns: u64,
    /// Nanoseconds of the shortest fork afterwards; 0 if not measured.
    pub fork_after_ns: u64,
    /// Forks after which it has paid; 0 if unknown or never.
    pub pays_after: u64,
    /// 0: not measured. 1: forks are quicker. 2: they are not. 3: they were dearer, so that everything was thawed.
    pub verdict: c_int,
    /// Not 0: it ended early, for lack of room. What is frozen is right all the same.
    pub is_stopped: c_int,
    /// How many ranges `palimpsest_report_get_range` tells of.
    pub ranges: usize,
    /// Bytes of an extent.
    pub extent: usize,
    /// Extents made: sealed files.
    pub extents: usize,
    /// Pieces of 2 MiB that became huge pages.
    pub collapsed: usize,
    /// Bytes that were put into huge pages where they are (`gather`).
    pub gathered: usize,
    /// The most memory held twice at one time, in bytes.
    pub peak_extra: usize,
    /// Nanoseconds that it takes, once; 0 if unknown, as the next three.
    pub once_ns: u64,
    /// Nanoseconds that each fork saves.
    pub per_fork_ns: u64,
    /// Nanoseconds that freezing what would not pay would take (`PALIMPSEST_SKIP_UNPROFITABLE`).
    pub left_once_ns: u64,
    /// Nanoseconds that each fork would save then.
    pub left_per_fork_ns: u64,
    /// Of `once_ns` and `per_fork_ns`, 0: both are expected. 1: the first is measured. 2: both are.
    pub basis: c_int,
    /// 0.
    pub reserved: c_int,
}

const _: () =
    assert!(size_of::<palimpsest_freeze_report>() == size_of::<([usize; 3], [u64; 8], [usize; 6], [c_int; 4])>());

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_freeze_report {}

pub(crate) fn failure(error: &FreezeError) -> Failure {
    let code = match error {
        FreezeError::Busy => PALIMPSEST_BUSY,
        FreezeError::BorrowedMemory { .. }
        | FreezeError::Threads { .. }
        | FreezeError::ManyMappings { .. }
        | FreezeError::NotStopped(_)
        | FreezeError::NotKept(_)
        | FreezeError::RawAllocator { .. }
        | FreezeError::IoUring { .. }
        | FreezeError::LinuxAio { .. }
        | FreezeError::FutureLocked => PALIMPSEST_REFUSED,
        FreezeError::Tables(_) | FreezeError::TooMany(_) => PALIMPSEST_NO_ROOM,
        _ => PALIMPSEST_SYSTEM,
    };
    Failure::of(code, error)
}

/// # Safety
///
/// 1. `options` is null or valid for reading as many bytes as its first field says.
unsafe fn options_of(options: *const palimpsest_freeze_options) -> Result<Options, Failure> {
    // SAFETY: 1. is contract 1.
    let given: palimpsest_freeze_options = unsafe { versioned::read(options) }?.unwrap_or_default();
    let mut options = Options::new();
    if given.reserved != 0 {
        return Err(Failure::invalid(format_args!("reserved is {}: 0 is known", given.reserved)));
    }
    if given.least != 0 {
        options = options.least(given.least);
    }
    let answers = [
        (PALIMPSEST_RAW_ALLOCATOR, Answer::RawAllocator),
        (PALIMPSEST_IO_URING, Answer::IoUring),
        (PALIMPSEST_LOCKED_MEMORY, Answer::LockedMemory),
        (PALIMPSEST_LINUX_AIO, Answer::LinuxAio),
    ];
    let known = answers.iter().fold(0, |known, (bit, _)| known | bit);
    if given.answers & !known != 0 {
        return Err(Failure::invalid(format_args!("answers {:#x}: there are {known:#x}", given.answers)));
    }
    for (bit, answer) in answers {
        if given.answers & bit != 0 {
            options = options.answer_for(answer);
        }
    }
    if given.pays_within != 0 {
        options = options.pays(Pays::Within(given.pays_within));
    }
    if given.stop_threads != 0 {
        options = options.other_threads(OtherThreads::Stop);
    }
    options = match (given.collapse, given.gather) {
        (0, 0) => options,
        (_, 0) => options.pages(Pages::Collapse),
        (0, _) => options.pages(Pages::Gather),
        (collapse, gather) => {
            let message = format_args!("collapse is {collapse} and gather is {gather}: one of them has to be 0");
            return Err(Failure::invalid(message));
        }
    };
    if given.pause_ns != 0 {
        options = options.pause(Pause::Within(Duration::from_nanos(given.pause_ns)));
    }
    if given.extent != 0 {
        options = options.extent(ExtentLen::Bytes(given.extent));
    }
    if given.deputy != 0 {
        options = options.errands(Errands::Deputy);
    }
    if given.no_measure != 0 {
        options = options.measure(Measure::Nothing);
    }
    Ok(options)
}

fn told(report: &Report) -> palimpsest_freeze_report {
    let nanos = |time: Option<Duration>| time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    palimpsest_freeze_report {
        size: 0,
        frozen: report.frozen_bytes(),
        skipped: report.skipped_bytes(),
        taken_ns: nanos(Some(report.taken)),
        fork_before_ns: nanos(report.fork_before),
        fork_after_ns: nanos(report.fork_after),
        pays_after: report.worth.and_then(|worth| worth.pays_after()).unwrap_or(0),
        verdict: match report.verdict {
            Verdict::Quicker => 1,
            Verdict::NoBenefit { .. } => 2,
            Verdict::Thawed => 3,
            _ => 0,
        },
        is_stopped: c_int::from(report.stopped.is_some()),
        ranges: report.frozen.len() + report.skipped.len(),
        extent: report.extent,
        extents: report.extents,
        collapsed: report.collapsed,
        gathered: report.gathered_bytes(),
        peak_extra: report.peak_extra,
        once_ns: nanos(report.worth.map(|worth| worth.once)),
        per_fork_ns: nanos(report.worth.map(|worth| worth.per_fork)),
        left_once_ns: nanos(report.left_worth.map(|worth| worth.once)),
        left_per_fork_ns: nanos(report.left_worth.map(|worth| worth.per_fork)),
        basis: match report.basis {
            Basis::Taken => 1,
            Basis::Measured => 2,
            _ => 0,
        },
        reserved: 0,
    }
}

/// Replaces the private memory of this process by private mappings of sealed files with the same bytes, so that a fork
/// need not copy its page tables. A second freeze freezes what is new, and repairs what was written to since: that is
/// frozen again, or becomes ordinary memory in huge pages. With `pause_ns` it plans, and changes no memory
/// (`palimpsest_freeze_slice`). `options` may be null for the defaults, and `report` may be null:
/// `palimpsest_report_text` and `palimpsest_report_get_range` tell the rest.
///
/// # Safety
///
/// 1. `options` is null or valid for reading as many bytes as its first field says; `report` is null, or valid for
///    reading its first field and for writing as many bytes as that says.
/// 2. From now on nobody discards, resizes or moves frozen memory except through `palimpsest_madvise` and
///    `palimpsest_mremap`; who maps over it, or changes its rights, its protection key or its flags, uses
///    `palimpsest_replaced`, `palimpsest_mprotect`, `palimpsest_pkey_mprotect` and `palimpsest_changed`; no direct or
///    asynchronous I/O is under way on private memory; no other process shares or writes to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_freeze(
    options: *const palimpsest_freeze_options,
    report: *mut palimpsest_freeze_report,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        unsafe { versioned::wanted(report) }?;
        // SAFETY: 1. is contract 1.
        let options = unsafe { options_of(options) }?;
        // SAFETY: contract 2.
        let done = unsafe { palimpsest_fork::freeze(&options) }.map_err(|error| failure(&error))?;
        let told = told(&done);
        reports::keep(done);
        // SAFETY: 1. is contract 1.
        if report.is_null() { Ok(()) } else { unsafe { versioned::write(report, told) } }
    })
}

/// Tells what `palimpsest_freeze` would do. Changes nothing but this thread's last report.
///
/// # Safety
///
/// 1. As for `palimpsest_freeze`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_survey(
    options: *const palimpsest_freeze_options,
    report: *mut palimpsest_freeze_report,
) -> palimpsest_result {
    answer(|| {
        let report = wanted(report)?;
        // SAFETY: 1. is contract 1.
        unsafe { versioned::wanted(report) }?;
        // SAFETY: 1. is contract 1.
        let options = unsafe { options_of(options) }?;
        let found = palimpsest_fork::survey(&options).map_err(|error| failure(&error))?;
        let told = told(&found);
        reports::keep(found);
        // SAFETY: 1. is contract 1.
        unsafe { versioned::write(report, told) }
    })
}

/// `fork`, with an account of what forks take: repairs frozen memory that was written to when that pays. `child` is set
/// to 0 in the child, and to the child's process id in the parent.
///
/// # Safety
///
/// 1. `child` is null or valid for writing.
/// 2. As for `fork`: in the child of a process with several threads, only async-signal-safe functions are called.
/// 3. Contract 2 of `palimpsest_freeze`, if this process or one that it was forked from has frozen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_fork(child: *mut libc::pid_t) -> palimpsest_result {
    answer(|| {
        let child = wanted(child)?;
        // SAFETY: 1. and 2. are contracts 2 and 3.
        let forked = unsafe { palimpsest_fork::fork() }.map_err(|error| Failure::of(PALIMPSEST_SYSTEM, &error))?;
        let told = match forked {
            Forked::Parent(pid) => pid.as_raw_nonzero().get(),
            Forked::Child => 0,
        };
        // SAFETY: contract 1, and not null.
        unsafe { child.write(told) };
        Ok(())
    })
}

/// What this process knows of its frozen memory. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_fork_status {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Bytes that are frozen.
    pub frozen: usize,
    /// Sealed files that are mapped.
    pub extents: usize,
    /// Pieces of up to 2 MiB that are written to all the time, and left alone for now.
    pub hot_pieces: usize,
    /// Forks by `palimpsest_fork`; while nothing is frozen, only those that took unusually long or short. A child
    /// begins at 0.
    pub forks: u64,
    /// Repairs; a child begins at 0.
    pub repairs: u64,
    /// CPU nanoseconds that forks took beyond `clean_ns` since the last freeze or repair.
    pub debt_ns: u64,
    /// CPU nanoseconds of a fork when nothing was written since the last freeze or repair; 0 if there was none.
    pub clean_ns: u64,
    /// The debt at which a repair follows, or a look at what it would take.
    pub price_ns: u64,
}

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_fork_status {}

/// Tells what forks cost, and when a repair follows. All zero if nothing is frozen.
///
/// # Safety
///
/// 1. `status` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_get_fork_status(status: *mut palimpsest_fork_status) -> palimpsest_result {
    answer(|| {
        let status = wanted(status)?;
        let known = palimpsest_fork::status();
        let told = palimpsest_fork_status {
            size: 0,
            frozen: known.frozen_bytes,
            extents: known.extents,
            hot_pieces: known.hot_pieces,
            forks: known.forks,
            repairs: known.repairs,
            debt_ns: known.debt,
            clean_ns: known.clean,
            price_ns: known.price,
        };
        // SAFETY: 1. is contract 1.
        unsafe { versioned::write(status, told) }
    })
}

/// Returns how many bytes of this process are frozen.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_frozen_bytes() -> usize {
    like_libc(0, palimpsest_fork::frozen_bytes)
}
