//! Packs: many programs in executable huge pages.

use std::ffi::{c_char, c_int, c_void};

use palimpsest_text::observe::{GdbJit, JitDump, PerfMap, UnwindRegistry};
use palimpsest_text::{Backing, ForkPolicy, OpenError, Packs, ReclaimPolicy, WriteView};

use crate::handles;
use crate::result::palimpsest_result::{
    self, PALIMPSEST_INVALID, PALIMPSEST_NO_ROOM, PALIMPSEST_NOT_FOUND, PALIMPSEST_SYSTEM,
};
use crate::result::{Failure, answer, at_once, optional, wanted};
use crate::versioned::{self, Versioned};

/// Open packs. 0 names none, as with every handle.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_packs {
    /// Not to be computed with.
    pub handle: u64,
}

/// How to open packs. Zeros are the defaults; `size` is the size of this structure, and tells which fields there are.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_packs_options {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Bytes of address space for all packs; 0 for the default.
    pub region_len: usize,
    /// An address that the packs should be near, such as that of functions which programs call; 0 for anywhere.
    pub near: usize,
    /// Bytes of released programs after which their memory is reclaimed; 0 for the default, `SIZE_MAX` for only by
    /// `palimpsest_packs_reclaim`.
    pub reclaim_bytes: usize,
    /// `PALIMPSEST_BACKING_BEST`, or another one that is taken, or refused.
    pub backing: c_int,
    /// `PALIMPSEST_WRITE_VIEW_STANDING`, `_DURING_COPIES` or `_NONE`.
    pub write_view: c_int,
    /// `PALIMPSEST_FORK_INHERIT` or `_OMIT`.
    pub fork: c_int,
    /// A sum of `PALIMPSEST_PERF_MAP`, `_JIT_DUMP`, `_GDB` and `_UNWIND`: who learns of programs.
    pub observers: u32,
}

/// The best memory that works here.
pub const PALIMPSEST_BACKING_BEST: c_int = 0;
/// A memory file in huge pages, put together by the kernel.
pub const PALIMPSEST_BACKING_COLLAPSED: c_int = 1;
/// A memory file in huge pages of the reserved pool.
pub const PALIMPSEST_BACKING_HUGETLB: c_int = 2;
/// A memory file in base pages.
pub const PALIMPSEST_BACKING_SMALL: c_int = 3;
/// Private memory, written through `/proc/self/mem`: debuggers can set breakpoints there.
pub const PALIMPSEST_BACKING_PRIVATE: c_int = 4;

/// A second view of the memory that can always be written.
pub const PALIMPSEST_WRITE_VIEW_STANDING: c_int = 0;
/// A second view that can be written during copies only.
pub const PALIMPSEST_WRITE_VIEW_DURING_COPIES: c_int = 1;
/// No second view: for `PALIMPSEST_BACKING_PRIVATE`.
pub const PALIMPSEST_WRITE_VIEW_NONE: c_int = 2;

/// Forked children run the programs that they inherit.
pub const PALIMPSEST_FORK_INHERIT: c_int = 0;
/// Forked children have none of the programs.
pub const PALIMPSEST_FORK_OMIT: c_int = 1;

/// `/tmp/perf-PID.map`, for perf.
pub const PALIMPSEST_PERF_MAP: u32 = 1;
/// `jit-PID.dump`, for `perf inject`, with code.
pub const PALIMPSEST_JIT_DUMP: u32 = 2;
/// GDB's interface for compilers.
pub const PALIMPSEST_GDB: u32 = 4;
/// The unwinder of this process, for programs with `.eh_frame` (`palimpsest_staged_set_eh_frame`), which it trusts.
pub const PALIMPSEST_UNWIND: u32 = 8;

/// Counters. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_packs_stats {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// As in `palimpsest_packs_options`, never 0.
    pub backing: c_int,
    /// As in `palimpsest_packs_options`.
    pub write_view: c_int,
    /// Packs, of 2 MiB each.
    pub packs: usize,
    /// Programs and data, in place or released and not yet reclaimed.
    pub programs: usize,
    /// Bytes of packs that programs take.
    pub used_bytes: usize,
    /// Bytes of packs.
    pub reserved_bytes: usize,
    /// Bytes of released programs not reclaimed yet.
    pub retired_bytes: usize,
    /// Bytes of the longest run of free memory in one pack.
    pub largest_free_run: usize,
    /// Mappings of this process used by the packs.
    pub mappings: usize,
    /// Programs and data ever put in place.
    pub loads: u64,
    /// Programs and data ever reclaimed.
    pub frees: u64,
    /// Core synchronisations.
    pub core_syncs: u64,
    /// How often an observer failed.
    pub observer_errors: u64,
    /// Threads of this process that are pinned (`palimpsest_pin`).
    pub pinned_threads: usize,
}

/// What was found at an address.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_found {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Where the program starts.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Where to go on if the instruction at the address faults; 0 if the program does not say.
    pub landing: usize,
    /// The program's name, cut to fit, with a zero at its end.
    pub name: [c_char; 64],
}

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_packs_options {}
// SAFETY: 1. as above.
unsafe impl Versioned for palimpsest_packs_stats {}
// SAFETY: 1. as above.
unsafe impl Versioned for palimpsest_found {}

fn open_failure(error: &OpenError) -> Failure {
    let code = match error {
        OpenError::RegionLength { .. } => PALIMPSEST_INVALID,
        OpenError::Reserve { .. } => PALIMPSEST_NO_ROOM,
        _ => PALIMPSEST_SYSTEM,
    };
    Failure::of(code, error)
}

/// Opens packs. `options` may be null for the defaults.
///
/// # Safety
///
/// 1. `options` is null or valid for reading as many bytes as its first field says.
/// 2. `packs` is null or valid for writing.
/// 3. With `PALIMPSEST_UNWIND`: what is given to `palimpsest_staged_set_eh_frame` and `palimpsest_alloc_set_eh_frame`
///    correctly describes how to unwind the code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_packs_open(
    options: *const palimpsest_packs_options,
    packs: *mut palimpsest_packs,
) -> palimpsest_result {
    answer(|| {
        let packs = wanted(packs)?;
        // SAFETY: 1. is contract 1.
        let options: palimpsest_packs_options = unsafe { versioned::read(options) }?.unwrap_or_default();
        let mut builder = Packs::builder();
        if options.region_len != 0 {
            builder = builder.region_len(options.region_len);
        }
        if options.near != 0 {
            builder = builder.near(options.near);
        }
        builder = match options.reclaim_bytes {
            0 => builder,
            usize::MAX => builder.reclaim(ReclaimPolicy::Manual),
            retired_bytes => builder.reclaim(ReclaimPolicy::Automatic { retired_bytes }),
        };
        if options.backing != PALIMPSEST_BACKING_BEST {
            let mut backings = Backing::ALL.into_iter();
            let backing = backings.find(|backing| number_of(*backing) == options.backing);
            builder = builder
                .backing(backing.ok_or_else(|| unknown("backing", options.backing, PALIMPSEST_BACKING_PRIVATE))?);
        }
        builder = builder.write_view(match options.write_view {
            PALIMPSEST_WRITE_VIEW_STANDING => WriteView::Standing,
            PALIMPSEST_WRITE_VIEW_DURING_COPIES => WriteView::DuringCopies,
            PALIMPSEST_WRITE_VIEW_NONE => WriteView::None,
            other => return Err(unknown("write_view", other, PALIMPSEST_WRITE_VIEW_NONE)),
        });
        builder = builder.fork(match options.fork {
            PALIMPSEST_FORK_INHERIT => ForkPolicy::Inherit,
            PALIMPSEST_FORK_OMIT => ForkPolicy::Omit,
            other => return Err(unknown("fork", other, PALIMPSEST_FORK_OMIT)),
        });
        let known = PALIMPSEST_PERF_MAP | PALIMPSEST_JIT_DUMP | PALIMPSEST_GDB | PALIMPSEST_UNWIND;
        if options.observers & !known != 0 {
            return Err(Failure::invalid(format_args!("observers {:#x}: there are {known:#x}", options.observers)));
        }
        if options.observers & PALIMPSEST_PERF_MAP != 0 {
            builder = builder.observer(PerfMap::new());
        }
        if options.observers & PALIMPSEST_JIT_DUMP != 0 {
            builder = builder.observer(JitDump::new());
        }
        if options.observers & PALIMPSEST_GDB != 0 {
            builder = builder.observer(GdbJit::new());
        }
        if options.observers & PALIMPSEST_UNWIND != 0 {
            // SAFETY: 1. is contract 3.
            builder = builder.observer(unsafe { UnwindRegistry::new() });
        }
        let opened = builder.open().map_err(|error| open_failure(&error))?;
        // SAFETY: contract 2, and not null.
        unsafe { packs.write(palimpsest_packs { handle: handles::insert(opened) }) };
        Ok(())
    })
}

/// Returns the number of a backing in the header.
const fn number_of(backing: Backing) -> c_int {
    match backing {
        Backing::CollapsedMemfd => PALIMPSEST_BACKING_COLLAPSED,
        Backing::HugetlbMemfd => PALIMPSEST_BACKING_HUGETLB,
        Backing::SmallMemfd => PALIMPSEST_BACKING_SMALL,
        Backing::ProcMem => PALIMPSEST_BACKING_PRIVATE,
    }
}

fn unknown(field: &str, value: c_int, last: c_int) -> Failure {
    Failure::invalid(format_args!("{field} is {value}: 0 to {last} are known"))
}

/// Gives the handle up. Programs, and what is staged, stay; the memory goes with the last of them.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_packs_close(packs: palimpsest_packs) -> palimpsest_result {
    answer(|| handles::remove::<Packs>(packs.handle).map(drop))
}

/// Fills in as much of `stats` as its field `size` says it has.
///
/// # Safety
///
/// 1. `stats` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_packs_get_stats(
    packs: palimpsest_packs,
    stats: *mut palimpsest_packs_stats,
) -> palimpsest_result {
    answer(|| {
        let stats = wanted(stats)?;
        let packs = handles::get::<Packs>(packs.handle)?;
        let found = packs.stats();
        let told = palimpsest_packs_stats {
            size: 0,
            backing: number_of(found.backing),
            write_view: match found.write_view {
                WriteView::Standing => PALIMPSEST_WRITE_VIEW_STANDING,
                WriteView::DuringCopies => PALIMPSEST_WRITE_VIEW_DURING_COPIES,
                WriteView::None => PALIMPSEST_WRITE_VIEW_NONE,
            },
            packs: found.packs,
            programs: found.programs,
            used_bytes: found.used_bytes,
            reserved_bytes: found.reserved_bytes,
            retired_bytes: found.retired_bytes,
            largest_free_run: found.largest_free_run,
            mappings: found.mappings,
            loads: found.loads,
            frees: found.frees,
            core_syncs: found.core_syncs,
            observer_errors: found.observer_errors,
            pinned_threads: found.pinned_threads,
        };
        // SAFETY: 1. is contract 1.
        unsafe { versioned::write(stats, told) }
    })
}

/// Reclaims released programs that nobody can be inside of, and tells how many bytes. `bytes` may be null.
///
/// # Safety
///
/// 1. `bytes` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_packs_reclaim(packs: palimpsest_packs, bytes: *mut usize) -> palimpsest_result {
    answer(|| {
        let bytes = optional(bytes)?;
        let packs = handles::get::<Packs>(packs.handle)?;
        let reclaimed = packs.reclaim().map_err(|error| Failure::of(PALIMPSEST_SYSTEM, &error))?;
        if !bytes.is_null() {
            // SAFETY: contract 1, and aligned.
            unsafe { bytes.write(reclaimed.bytes) };
        }
        Ok(())
    })
}

/// Finds the program that covers `address`, including released ones as long as they may run. For signal handlers, too:
/// waits for nobody, takes nothing from the heap, and leaves no message. `PALIMPSEST_BUSY` if another thread is
/// changing handles, or forking, just then.
///
/// # Safety
///
/// 1. `found` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_lookup(
    packs: palimpsest_packs,
    address: *const c_void,
    found: *mut palimpsest_found,
) -> palimpsest_result {
    if found.is_null() {
        return PALIMPSEST_INVALID;
    }
    let look_up = |packs: &Packs| {
        packs.lookup(address.addr()).map(|here| {
            let mut name = [0; 64];
            for (to, from) in name[..63].iter_mut().zip(here.name().bytes()) {
                *to = from as c_char;
            }
            palimpsest_found {
                size: 0,
                start: here.address().get(),
                len: here.len(),
                landing: here.landing().map_or(0, |landing| landing.get()),
                name,
            }
        })
    };
    at_once(|| match handles::with_at_once(packs.handle, look_up) {
        Err(code) => code,
        Ok(None) => PALIMPSEST_NOT_FOUND,
        // A failure makes a message, on the heap: a wrong `size` does not happen only in handlers. SAFETY: 1. is
        // contract 1.
        Ok(Some(told)) => answer(|| unsafe { versioned::write(found, told) }),
    })
}
