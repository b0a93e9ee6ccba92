//! Freezing in slices, while the program runs: `pause_ns` in `palimpsest_freeze_options`.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use palimpsest_fork::{Progress, Stage};

use crate::freeze::failure;
use crate::result::palimpsest_result::{self, PALIMPSEST_INVALID, PALIMPSEST_NOT_FOUND, PALIMPSEST_OK};
use crate::result::{answer, at_once, like_libc, wanted};
use crate::versioned::{self, Versioned};

/// There was no freeze in slices.
pub const PALIMPSEST_STAGE_NONE: c_int = 0;
/// It is under way.
pub const PALIMPSEST_STAGE_UNDER_WAY: c_int = 1;
/// It is done.
pub const PALIMPSEST_STAGE_DONE: c_int = 2;
/// It ended early; what is frozen is right all the same.
pub const PALIMPSEST_STAGE_ENDED: c_int = 3;

/// How far a freeze in slices has come. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_freeze_progress {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Bytes that were populated when the freeze was planned, and will be frozen.
    pub planned: usize,
    /// Bytes frozen so far.
    pub frozen: usize,
    /// Bytes put into huge pages so far instead (`gather`).
    pub gathered: usize,
    /// Slices so far.
    pub slices: u64,
    /// Nanoseconds of the longest slice: how long the process was held up at most.
    pub longest_ns: u64,
    /// Nanoseconds of all slices together.
    pub taken_ns: u64,
    /// Nanoseconds of planning, before the first slice.
    pub looked_ns: u64,
    /// `PALIMPSEST_STAGE_NONE`, `_UNDER_WAY`, `_DONE` or `_ENDED`.
    pub stage: c_int,
    /// 0.
    pub reserved: c_int,
    /// CPU nanoseconds of deputies (`deputy`), while the process went on.
    pub beside_ns: u64,
}

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_freeze_progress {}

const _: () = assert!(size_of::<palimpsest_freeze_progress>() == size_of::<([usize; 4], [u64; 5], [c_int; 2])>());

/// Asked by `palimpsest_freeze_while` after each slice: not 0 if the program still has nothing to do.
#[expect(non_camel_case_types, reason = "the names that C sees")]
pub type palimpsest_is_idle = Option<unsafe extern "C" fn(argument: *mut c_void) -> c_int>;

fn told(progress: Progress) -> palimpsest_freeze_progress {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    palimpsest_freeze_progress {
        size: 0,
        planned: progress.planned_bytes,
        frozen: progress.frozen_bytes,
        gathered: progress.gathered_bytes,
        slices: progress.slices,
        longest_ns: nanos(progress.longest),
        taken_ns: nanos(progress.taken),
        looked_ns: nanos(progress.looked),
        stage: match progress.stage {
            Stage::UnderWay => PALIMPSEST_STAGE_UNDER_WAY,
            Stage::Done => PALIMPSEST_STAGE_DONE,
            Stage::Ended => PALIMPSEST_STAGE_ENDED,
            _ => PALIMPSEST_STAGE_NONE,
        },
        reserved: 0,
        beside_ns: nanos(progress.beside),
    }
}

/// Takes one slice of a freeze under way: call it when the program has nothing else to do. Does nothing if nothing is
/// left. `progress` may be null. After an error nothing was done, and a later call may succeed; after many in a row the
/// freeze ends.
///
/// # Safety
///
/// 1. `progress` is null, or valid for reading its first field and for writing as many bytes as that says.
/// 2. Contract 2 of `palimpsest_freeze`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_freeze_slice(progress: *mut palimpsest_freeze_progress) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        unsafe { versioned::wanted(progress) }?;
        // SAFETY: 1. is contract 2.
        let done = unsafe { palimpsest_fork::freeze_slice() }.map_err(|error| failure(&error))?;
        // SAFETY: 1. is contract 1.
        if progress.is_null() { Ok(()) } else { unsafe { versioned::write(progress, told(done)) } }
    })
}

/// As `palimpsest_freeze_slice`, but goes on while `is_idle` returns something other than 0 after a slice: cheaper than
/// as many calls. Where other threads must be held, it takes one slice, so that they can go on.
///
/// # Safety
///
/// 1. As for `palimpsest_freeze_slice`.
/// 2. `is_idle` is null or such a function, and may be called with `argument`. It makes no system calls that wait, does
///    not use the heap and changes no mappings: it runs while all signals are blocked. It returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_freeze_while(
    is_idle: palimpsest_is_idle,
    argument: *mut c_void,
    progress: *mut palimpsest_freeze_progress,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        unsafe { versioned::wanted(progress) }?;
        // SAFETY: contract 2.
        let mut asked = || is_idle.is_some_and(|is_idle| unsafe { is_idle(argument) } != 0);
        // SAFETY: 1. is contract 1. 2. is contract 2.
        let done = unsafe { palimpsest_fork::freeze_while(&mut asked) }.map_err(|error| failure(&error))?;
        // SAFETY: 1. is contract 1.
        if progress.is_null() { Ok(()) } else { unsafe { versioned::write(progress, told(done)) } }
    })
}

/// Tells how far a freeze in slices has come. Waits for nobody.
///
/// # Safety
///
/// 1. `progress` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_freeze_get_progress(
    progress: *mut palimpsest_freeze_progress,
) -> palimpsest_result {
    answer(|| {
        let progress = wanted(progress)?;
        // SAFETY: 1. is contract 1.
        unsafe { versioned::write(progress, told(palimpsest_fork::progress())) }
    })
}

/// Tells in how many nanoseconds a thread that is about to wait should take a slice. `PALIMPSEST_NOT_FOUND` if none is
/// due: the freeze is done, was another process's, or goes on at forks only. For event loops: waits for nobody, and
/// leaves no message.
///
/// # Safety
///
/// 1. `wait_ns` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_next_slice(wait_ns: *mut u64) -> palimpsest_result {
    at_once(|| {
        if wait_ns.is_null() || !wait_ns.is_aligned() {
            return PALIMPSEST_INVALID;
        }
        let Some(wait) = palimpsest_fork::next_slice() else { return PALIMPSEST_NOT_FOUND };
        // SAFETY: contract 1, not null, and aligned.
        unsafe { wait_ns.write(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)) };
        PALIMPSEST_OK
    })
}

/// Reports that the last slice kept somebody waiting for `taken_ns` nanoseconds: puts off the next one at a wait, so
/// that slices take at most a fifth of the time.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_put_off_slices(taken_ns: u64) {
    like_libc((), || palimpsest_fork::put_off_slices(Duration::from_nanos(taken_ns)));
}

/// Waits for a deputy (`deputy` in `palimpsest_freeze_options`) that is at work, for some milliseconds at most. Call it
/// before this process executes another program, which would have a child that it does not know, and before it installs
/// a seccomp filter. For signal handlers, too.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_dismiss_deputy() {
    like_libc((), palimpsest_fork::dismiss_deputy);
}

/// Waits for a deputy, too, if this process was refused a child or a thread (`EAGAIN`): the deputy counts for
/// `RLIMIT_NPROC` and `pids.max`. Returns 1 if there was one, so that another try is worth it, else 0. For signal
/// handlers, too.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_make_room() -> c_int {
    like_libc(0, || c_int::from(palimpsest_fork::make_room()))
}
