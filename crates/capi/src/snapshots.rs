//! Snapshots of memory, restored in the same process.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use palimpsest_fork::snapshot::{
    self, Descriptors, Ended, EnterError, Layout, RestoreError, Restored, Round, Scope, SignalMask, Snapshot,
    SnapshotOptions, Sweep, TakeError, Threads,
};

use crate::input::elements;
use crate::kept;
use crate::result::palimpsest_result::{
    self, PALIMPSEST_INVALID, PALIMPSEST_NO_ROOM, PALIMPSEST_NOT_FOUND, PALIMPSEST_REFUSED, PALIMPSEST_SYSTEM,
};
use crate::result::{Failure, answer, optional, wanted};
use crate::versioned::{self, Versioned};

/// A state of memory that the thread that took it can restore any number of times.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_snapshot {
    /// Not to be computed with.
    pub handle: u64,
}

/// Addresses.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_range {
    /// The first.
    pub start: *const c_void,
    /// How many bytes.
    pub len: usize,
}

/// What a snapshot holds, and how it is restored. Zeros are the defaults; `size` is the size of this structure, set by
/// the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_snapshot_options {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Ranges of whole pages in private writable mappings that stay where they are. Null for the whole process: all
    /// private writable memory except the running stack, and where everything is mapped.
    pub ranges: *const palimpsest_range,
    /// How many ranges.
    pub range_count: usize,
    /// Memory to leave alone, in whole pages; may be null.
    pub except: *const palimpsest_range,
    /// How many of these.
    pub except_count: usize,
    /// Bytes of written pages that are restored by copying and stay resident; 0 for 64 MiB, 1 for none.
    pub resident: usize,
    /// When to search page tables for written pages. 0: if there was a page fault. 1: in each restore. 2: never; only
    /// what was declared is restored. 3: in the first restore and every `sweep_every`th after it.
    pub sweep: c_int,
    /// See `sweep`.
    pub sweep_every: u32,
    /// Not 0: does not compare mappings; the caller knows that none has changed.
    pub trust_layout: c_int,
    /// Not 0: allows other threads; the caller knows that they sleep whenever a snapshot is taken or restored.
    pub others_sleep: c_int,
    /// Not 0: closes descriptors opened since, and restores those closed since.
    pub restore_descriptors: c_int,
    /// Must be 0.
    pub reserved: c_int,
}

/// What a restore did. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_restored {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Pages restored.
    pub pages: usize,
    /// How many of them were copied and stay resident; the others were dropped.
    pub copied_pages: usize,
    /// Bytes of mappings made since, which are gone now.
    pub unmapped: usize,
    /// Bytes of mappings removed or replaced since, which are back.
    pub remade: usize,
    /// Bytes of mappings that have their rights back.
    pub protected_bytes: usize,
    /// Descriptors opened since and closed now.
    pub closed: usize,
    /// Descriptors closed or replaced since and open again.
    pub reopened: usize,
    /// Descriptors closed or replaced since that cannot be restored.
    pub lost: usize,
    /// Not 0: page tables were searched.
    pub is_swept: c_int,
    /// 0.
    pub reserved: c_int,
}

/// How much a snapshot holds, and what it leaves out. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_snapshot_extent {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Bytes of addresses.
    pub addresses: usize,
    /// How many of them had contents.
    pub saved: usize,
    /// Ranges of writable memory that it does not hold (`palimpsest_snapshot_not_taken`).
    pub not_taken: usize,
}

/// Memory that a snapshot does not hold. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_not_taken {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// The first address.
    pub start: usize,
    /// How many bytes.
    pub len: usize,
    /// Why, in words, with a zero at the end.
    pub reason: [c_char; 64],
}

const _: () = assert!(size_of::<palimpsest_snapshot_options>() == 6 * size_of::<usize>() + 6 * size_of::<c_int>());
const _: () = assert!(size_of::<palimpsest_restored>() == 9 * size_of::<usize>() + 2 * size_of::<c_int>());

// SAFETY: 1. numbers and pointers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_snapshot_options {}
// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_restored {}
// SAFETY: 1. as above.
unsafe impl Versioned for palimpsest_snapshot_extent {}
// SAFETY: 1. as above.
unsafe impl Versioned for palimpsest_not_taken {}

/// A target of `palimpsest_snapshot_run`.
#[expect(non_camel_case_types, reason = "the names that C sees")]
pub type palimpsest_target = Option<unsafe extern "C-unwind" fn(argument: *mut c_void) -> usize>;

/// A round of `palimpsest_snapshot_rounds`: its number from 0, the value with which the last one was abandoned, and
/// what was restored before this one (null in the first).
#[expect(non_camel_case_types, reason = "the names that C sees")]
pub type palimpsest_body = Option<
    unsafe extern "C-unwind" fn(
        argument: *mut c_void,
        number: u64,
        value: usize,
        restored: *const palimpsest_restored,
    ) -> usize,
>;

fn take_failure(error: &TakeError) -> Failure {
    let code = match error {
        TakeError::Range { .. } => PALIMPSEST_INVALID,
        TakeError::Threads { .. } | TakeError::Another | TakeError::ForeignStack { .. } | TakeError::FileSize => {
            PALIMPSEST_REFUSED
        }
        TakeError::Map(_) | TakeError::Full(_) | TakeError::Extent(_) => PALIMPSEST_NO_ROOM,
        _ => PALIMPSEST_SYSTEM,
    };
    Failure::of(code, error)
}

fn restore_failure(error: &RestoreError) -> Failure {
    let code = match error {
        RestoreError::ForeignStack { .. } => PALIMPSEST_REFUSED,
        RestoreError::Full(_) => PALIMPSEST_NO_ROOM,
        _ => PALIMPSEST_SYSTEM,
    };
    Failure::of(code, error)
}

/// # Safety
///
/// 1. `first` is null, or valid for reading `count` of them.
unsafe fn ranges_of(first: *const palimpsest_range, count: usize) -> Result<Vec<Range<usize>>, Failure> {
    // SAFETY: 1. is contract 1.
    let given = unsafe { elements(first, count) }?;
    let range = |range: &palimpsest_range| {
        let start = range.start.addr();
        let beyond = || Failure::invalid(format_args!("{} bytes from {start:#x} lead beyond all addresses", range.len));
        Ok(start..start.checked_add(range.len).ok_or_else(beyond)?)
    };
    given.iter().map(range).collect()
}

/// # Safety
///
/// 1. `options` is null or valid for reading as many bytes as its first field says, and so are the ranges it names.
unsafe fn options_of(options: *const palimpsest_snapshot_options) -> Result<SnapshotOptions, Failure> {
    // SAFETY: 1. is contract 1.
    let Some(given) = (unsafe { versioned::read(options) })? else {
        return Ok(SnapshotOptions::new(Scope::Whole).except(kept::pages()?));
    };
    if given.reserved != 0 {
        return Err(Failure::invalid(format_args!("reserved is {}: 0 is known", given.reserved)));
    }
    let scope = match (given.ranges.is_null(), given.range_count) {
        (true, 0) => Scope::Whole,
        (false, 0) => return Err(Failure::invalid("there are no ranges: null is for the whole process")),
        // SAFETY: 1. is contract 1.
        (_, count) => Scope::Ranges(unsafe { ranges_of(given.ranges, count) }?),
    };
    let mut options = SnapshotOptions::new(scope).except(kept::pages()?);
    // SAFETY: 1. is contract 1.
    for range in unsafe { ranges_of(given.except, given.except_count) }? {
        options = options.except(range);
    }
    if given.resident != 0 {
        options = options.resident(given.resident);
    }
    options = options.sweep(match (given.sweep, given.sweep_every) {
        (0, 0) => Sweep::OnFaults,
        (1, 0) => Sweep::Always,
        (2, 0) => Sweep::Never,
        (3, every @ 1..) => Sweep::Every(every),
        (sweep @ 0..=3, every) => {
            let message = format_args!("sweep_every is {every} with sweep {sweep}: with 3 it is not 0, else it is 0");
            return Err(Failure::invalid(message));
        }
        (sweep, _) => return Err(Failure::invalid(format_args!("sweep is {sweep}: 0 to 3 are known"))),
    });
    if given.trust_layout != 0 {
        options = options.layout(Layout::Trust);
    }
    if given.others_sleep != 0 {
        options = options.threads(Threads::Asleep);
    }
    if given.restore_descriptors != 0 {
        options = options.descriptors(Descriptors::Restore);
    }
    Ok(options)
}

fn told(restored: &Restored) -> palimpsest_restored {
    palimpsest_restored {
        size: size_of::<palimpsest_restored>(),
        pages: restored.pages,
        copied_pages: restored.by_memcpy,
        unmapped: restored.unmapped,
        remade: restored.remade,
        protected_bytes: restored.protected,
        closed: restored.closed,
        reopened: restored.reopened,
        lost: restored.lost,
        is_swept: c_int::from(restored.swept),
        reserved: 0,
    }
}

fn mask(keep_mask: c_int) -> SignalMask {
    if keep_mask == 0 { SignalMask::Restore } else { SignalMask::Leave }
}

/// Takes a snapshot. `options` may be null for the whole process. The running stack goes on, so that variables in
/// frames keep their values when it is restored. There can be 64 at a time, and one of the whole process.
///
/// # Safety
///
/// 1. `options` is null or valid for reading as many bytes as its first field says, and so are the ranges it names;
///    `snapshot` is null or valid for writing.
/// 2. Nobody but the calling thread uses the memory meanwhile: no thread, process, device or asynchronous I/O.
/// 3. From now on nobody expects zeros after discarding that memory (`MADV_DONTNEED`, `MADV_FREE`), and nobody closes
///    a descriptor that it did not open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_snapshot_take(
    options: *const palimpsest_snapshot_options,
    snapshot: *mut palimpsest_snapshot,
) -> palimpsest_result {
    answer(|| {
        let snapshot = wanted(snapshot)?;
        // SAFETY: 1. is contract 1.
        let options = unsafe { options_of(options) }?;
        let place = kept::reserve()?;
        // Written first: in memory that is restored, the handle must be part of what is.
        let handle = snapshot.cast::<MaybeUninit<palimpsest_snapshot>>();
        // SAFETY: contract 1, and not null; what nobody has written may be read as that.
        let before = unsafe { handle.read() };
        // SAFETY: contract 1, and not null.
        unsafe { snapshot.write(palimpsest_snapshot { handle: place.handle() }) };
        // SAFETY: 1. to 3. are contracts 2 and 3.
        match unsafe { Snapshot::take(&options) } {
            Ok(taken) => {
                place.keep(taken);
                Ok(())
            }
            Err(error) => {
                // SAFETY: contract 1, and not null.
                unsafe { handle.write(before) };
                Err(take_failure(&error))
            }
        }
    })
}

/// Restores everything. `restored` may be null. Only for the thread that took the snapshot (`PALIMPSEST_REFUSED`), and
/// not from a target of the same one (`PALIMPSEST_BUSY`). After `PALIMPSEST_SYSTEM` or `PALIMPSEST_NO_ROOM` memory may
/// be restored in part.
///
/// # Safety
///
/// 1. `restored` is null, or valid for reading its first field and for writing as many bytes as that says.
/// 2. Contracts 2 and 3 of `palimpsest_snapshot_take`, and what `palimpsest_snapshot_options` says that the caller
///    knows.
/// 3. Pointers in live frames are not followed to memory that no longer exists, such as what was allocated since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_snapshot_restore(
    snapshot: palimpsest_snapshot,
    restored: *mut palimpsest_restored,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        unsafe { versioned::wanted(restored) }?;
        let mut held = kept::held(snapshot.handle)?;
        // SAFETY: 1. to 3. are contracts 2 and 3.
        let done = unsafe { held.snapshot()?.restore() }.map_err(|error| restore_failure(&error))?;
        // SAFETY: 1. is contract 1.
        if restored.is_null() { Ok(()) } else { unsafe { versioned::write(restored, told(&done)) } }
    })
}

/// Calls `target` with `argument` and restores everything, whether the target returns or leaves by
/// `palimpsest_abandon`. `value` gets what it returned, or was abandoned with; `is_abandoned` tells which of the two;
/// both may be null, and so may `restored`. What the target needs in its next round must not be restored: keep it on
/// the caller's stack. The set of blocked signals is restored after `palimpsest_abandon`, unless `keep_mask` is not 0.
///
/// # Safety
///
/// 1. As for `palimpsest_snapshot_restore`; `value` and `is_abandoned` are null or valid for writing.
/// 2. `target` is null or such a function, and may be called. No exception leaves it, nor `longjmp`, nor the end of the
///    thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_snapshot_run(
    snapshot: palimpsest_snapshot,
    keep_mask: c_int,
    target: palimpsest_target,
    argument: *mut c_void,
    value: *mut usize,
    is_abandoned: *mut c_int,
    restored: *mut palimpsest_restored,
) -> palimpsest_result {
    answer(|| {
        let target = target.ok_or_else(|| Failure::invalid("the target is null"))?;
        let (value, is_abandoned) = (optional(value)?, optional(is_abandoned)?);
        // SAFETY: 1. is contract 1.
        unsafe { versioned::wanted(restored) }?;
        let mut held = kept::held(snapshot.handle)?;
        // SAFETY: contract 2.
        let call = || unsafe { target(argument) };
        // SAFETY: contract 1.
        let done = unsafe { held.snapshot()?.run(mask(keep_mask), call) };
        let (ended, done) = done.map_err(|error| restore_failure(&error))?;
        let (left, told_value) = match ended {
            Ended::Returned(value) => (0, value),
            Ended::Abandoned(value) => (1, value),
        };
        if !value.is_null() {
            // SAFETY: contract 1, and aligned.
            unsafe { value.write(told_value) };
        }
        if !is_abandoned.is_null() {
            // SAFETY: contract 1, and aligned.
            unsafe { is_abandoned.write(left) };
        }
        // SAFETY: 1. is contract 1.
        if restored.is_null() { Ok(()) } else { unsafe { versioned::write(restored, told(&done)) } }
    })
}

/// Takes a snapshot with the stack, and calls `body`. Whenever `body` leaves by `palimpsest_abandon`, everything is
/// restored, including the stack below this call, and `body` is called anew. When `body` returns, so does this
/// function, with its answer in `value`, which may be null; then nothing is restored, and the snapshot is gone.
/// `keep_mask` is as for `palimpsest_snapshot_run`.
///
/// # Safety
///
/// 1. As for `palimpsest_snapshot_take` and `palimpsest_snapshot_run`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_snapshot_rounds(
    options: *const palimpsest_snapshot_options,
    keep_mask: c_int,
    body: palimpsest_body,
    argument: *mut c_void,
    value: *mut usize,
) -> palimpsest_result {
    answer(|| {
        let body = body.ok_or_else(|| Failure::invalid("the body is null"))?;
        let value = optional(value)?;
        // SAFETY: 1. is contract 1.
        let options = unsafe { options_of(options) }?;
        let round = |round: Round| {
            let before = round.restored.map(|restored| told(&restored));
            let before = before.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: contract 1.
            unsafe { body(argument, round.number, round.value, before) }
        };
        // SAFETY: 1. and 2. are contract 1.
        let done = unsafe { snapshot::take_and_enter(&options, mask(keep_mask), round) };
        let done = done.map_err(|error| match &error {
            EnterError::Take(take) => take_failure(take),
            EnterError::Restore { source, .. } => restore_failure(source),
        })?;
        if !value.is_null() {
            // SAFETY: contract 1, and aligned.
            unsafe { value.write(done) };
        }
        Ok(())
    })
}

/// Leaves this thread's innermost `palimpsest_snapshot_run` or `_rounds` from anywhere inside: from signal handlers,
/// too, on whatever stack. Ends the process if there is none.
///
/// # Safety
///
/// 1. Nobody needs what the frames in between would have done on their way out, or the restore undoes it: no lock
///    outside restored memory is held. C++ destructors do not run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_abandon(value: usize) -> ! {
    // Without a guard: whoever calls this has no place to go back to, and a panic ends the process, as it says of
    // another failure. SAFETY: 1. is looked at there; 2. is contract 1.
    unsafe { snapshot::abandon(value) }
}

/// Says that `range` is written in every round, so that restores without a search restore it, too. Skips what the
/// snapshot does not hold.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_snapshot_declare(
    snapshot: palimpsest_snapshot,
    range: palimpsest_range,
) -> palimpsest_result {
    answer(|| {
        let start = range.start.addr();
        let beyond = || Failure::invalid(format_args!("{} bytes from {start:#x} lead beyond all addresses", range.len));
        let end = start.checked_add(range.len).ok_or_else(beyond)?;
        let mut held = kept::held(snapshot.handle)?;
        held.snapshot()?.declare(start..end).map_err(|error| restore_failure(&error))
    })
}

/// Tells how much the snapshot holds.
///
/// # Safety
///
/// 1. `extent` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_snapshot_get_extent(
    snapshot: palimpsest_snapshot,
    extent: *mut palimpsest_snapshot_extent,
) -> palimpsest_result {
    answer(|| {
        let extent = wanted(extent)?;
        let mut held = kept::held(snapshot.handle)?;
        let found = held.snapshot()?;
        let (addresses, saved) = found.bytes();
        let not_taken = found.not_taken().len();
        // SAFETY: 1. is contract 1.
        unsafe { versioned::write(extent, palimpsest_snapshot_extent { size: 0, addresses, saved, not_taken }) }
    })
}

/// Returns the `index`th range of writable memory that the snapshot does not hold, and why. `PALIMPSEST_NOT_FOUND`
/// behind the last.
///
/// # Safety
///
/// 1. `left` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_snapshot_not_taken(
    snapshot: palimpsest_snapshot,
    index: usize,
    left: *mut palimpsest_not_taken,
) -> palimpsest_result {
    answer(|| {
        let left = wanted(left)?;
        let mut held = kept::held(snapshot.handle)?;
        let found = held.snapshot()?.not_taken();
        let behind = || Failure::new(PALIMPSEST_NOT_FOUND, format_args!("{index}: there are {} of them", found.len()));
        let found = found.get(index).ok_or_else(behind)?;
        let mut reason = [0; 64];
        for (to, from) in reason[..63].iter_mut().zip(found.reason.to_string().bytes()) {
            *to = from as c_char;
        }
        let (start, len) = (found.start, found.end - found.start);
        // SAFETY: 1. is contract 1.
        unsafe { versioned::write(left, palimpsest_not_taken { size: 0, start, len, reason }) }
    })
}

/// Ends a snapshot. Memory stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_snapshot_drop(snapshot: palimpsest_snapshot) -> palimpsest_result {
    answer(|| kept::held(snapshot.handle).map(kept::Held::end))
}
