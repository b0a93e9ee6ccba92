//! Code together with its data, released by address: for linkers of compilers.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Mutex;

use palimpsest_text::observe::Function;
use palimpsest_text::{
    AllocateError, Allocation, Ownership, Packs, Part, Parts, ReleaseError, ShrinkError, Size, Working,
};

use crate::handles;
use crate::input::{bytes, elements, text};
use crate::packs::palimpsest_packs;
use crate::programs::{finalize_failure, stage_failure};
use crate::result::palimpsest_result::{
    self, PALIMPSEST_FORKED, PALIMPSEST_INVALID, PALIMPSEST_NOT_FOUND, PALIMPSEST_REFUSED, PALIMPSEST_STALE,
};
use crate::result::{Failure, answer, at_once, optional, wanted};
use crate::versioned::{self, Versioned};

/// Places for code and data, and where their bytes are written, until the allocation is finalized or dropped.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_alloc {
    /// A number that only this library interprets.
    pub handle: u64,
}

/// The length of a part.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_alloc_part {
    /// Bytes; 0 for no such part.
    pub len: usize,
    /// A power of two, at most 4096.
    pub align: usize,
}

/// A request for an allocation. `size` is that of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_alloc_request {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// The code.
    pub code: palimpsest_alloc_part,
    /// Data that the code reads.
    pub read_only: palimpsest_alloc_part,
    /// Data that the code reads and writes.
    pub read_write: palimpsest_alloc_part,
    /// 0: you write to an image on the heap, which `palimpsest_alloc_finalize` copies into place. 1: you write in
    /// place, through the packs' second view (`write_view` 0); whoever jumps there at once runs what is written.
    pub in_place: c_int,
    /// Must be 0.
    pub reserved: c_int,
}

/// Where a part will be, and where its bytes are written meanwhile. Zeros if there is no such part.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_alloc_place {
    /// The final address.
    pub address: usize,
    /// Bytes.
    pub len: usize,
    /// `len` bytes to be written until the allocation is finalized or dropped; at first traps (code) or zeros. They do
    /// not move when the part shrinks, but the bytes behind its new length are no longer the caller's. If they are in
    /// place, children of `fork` must not use them.
    pub working: *mut c_void,
}

/// The places of an allocation. `size` is that of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_alloc_places {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// The code.
    pub code: palimpsest_alloc_place,
    /// The data that the code reads.
    pub read_only: palimpsest_alloc_place,
    /// The data that the code reads and writes.
    pub read_write: palimpsest_alloc_place,
}

/// A range of addresses.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_alloc_range {
    /// The first address.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// The allocation at an address. `size` is that of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_alloc_found {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// The part that contains the address: `PALIMPSEST_CODE`, `_READ_ONLY` or `_READ_WRITE`.
    pub part: c_int,
    /// 0: in place. 1: released, and not yet reclaimed.
    pub state: c_int,
    /// The code. Zeros if there is no such part, here and below.
    pub code: palimpsest_alloc_range,
    /// The data that the code reads.
    pub read_only: palimpsest_alloc_range,
    /// The data that the code reads and writes.
    pub read_write: palimpsest_alloc_range,
}

/// A function inside the code of an allocation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_function {
    /// Its name, with a zero at its end.
    pub name: *const c_char,
    /// Bytes from the code's first to the function's.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// The part that runs.
pub const PALIMPSEST_CODE: c_int = 0;
/// The part that the code reads.
pub const PALIMPSEST_READ_ONLY: c_int = 1;
/// The part that the code reads and writes.
pub const PALIMPSEST_READ_WRITE: c_int = 2;

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_alloc_request {}
// SAFETY: 1. numbers and pointers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_alloc_places {}
// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_alloc_found {}

type Slot = Mutex<Option<Allocation>>;

fn allocate_failure(error: &AllocateError) -> Failure {
    match error {
        AllocateError::Part { source, .. } => {
            let code = stage_failure(source).code();
            Failure::of(code, error)
        }
        AllocateError::InPlace { .. } => Failure::of(PALIMPSEST_REFUSED, error),
        _ => Failure::of(PALIMPSEST_INVALID, error),
    }
}

fn release_failure(error: &ReleaseError) -> Failure {
    let code = match error {
        ReleaseError::NotFound { .. } => PALIMPSEST_NOT_FOUND,
        ReleaseError::Released { .. } => PALIMPSEST_STALE,
        _ => PALIMPSEST_INVALID,
    };
    Failure::of(code, error)
}

/// Takes places for code, for data that it reads and for data that it writes, near each other: relative calls, loads
/// and stores reach from each part to each. Fills in `places` up to its field `size`.
///
/// # Safety
///
/// 1. `request` is null or valid for reading as many bytes as its first field says.
/// 2. `alloc` is null or valid for writing.
/// 3. `places` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_allocate(
    packs: palimpsest_packs,
    request: *const palimpsest_alloc_request,
    alloc: *mut palimpsest_alloc,
    places: *mut palimpsest_alloc_places,
) -> palimpsest_result {
    answer(|| {
        let (alloc, places) = (wanted(alloc)?, wanted(places)?);
        // SAFETY: 1. is contract 3.
        unsafe { versioned::wanted(places) }?;
        // SAFETY: 1. is contract 1.
        let request = unsafe { versioned::read(request) }?;
        let request: palimpsest_alloc_request = request.ok_or_else(|| Failure::invalid("the request is null"))?;
        let working = match (request.in_place, request.reserved) {
            (0, 0) => Working::Private,
            (1, 0) => Working::InPlace,
            (in_place, 0) => return Err(Failure::invalid(format_args!("in_place is {in_place}: 0 or 1 are known"))),
            (_, reserved) => return Err(Failure::invalid(format_args!("reserved is {reserved} and has to be 0"))),
        };
        let size = |part: palimpsest_alloc_part| Size { len: part.len, align: part.align };
        let sizes = Parts {
            code: size(request.code),
            read_only: size(request.read_only),
            read_write: size(request.read_write),
        };
        let packs = handles::get::<Packs>(packs.handle)?;
        let mut taken = packs.allocate(sizes, working).map_err(|error| allocate_failure(&error))?;
        let mut place = |part| {
            let range = taken.range(part);
            // The image is on the heap, and what is in place does not move, until the allocation is finalized or
            // dropped.
            let working = taken.working(part).map_err(|error| Failure::of(PALIMPSEST_FORKED, &error))?;
            let working = if working.is_empty() { ptr::null_mut() } else { working.as_mut_ptr().cast() };
            Ok::<_, Failure>(palimpsest_alloc_place { address: range.start, len: range.len(), working })
        };
        let told = palimpsest_alloc_places {
            size: 0,
            code: place(Part::Code)?,
            read_only: place(Part::ReadOnly)?,
            read_write: place(Part::ReadWrite)?,
        };
        // SAFETY: 1. is contract 3.
        unsafe { versioned::write(places, told) }?;
        let handle = handles::insert::<Slot>(Mutex::new(Some(taken)));
        // SAFETY: contract 2, and not null.
        unsafe { alloc.write(palimpsest_alloc { handle }) };
        Ok(())
    })
}

/// Calls `work` with an allocation that is not finalized meanwhile.
pub(crate) fn with_allocation<R>(
    alloc: palimpsest_alloc,
    work: impl FnOnce(&mut Allocation) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let found = handles::get::<Slot>(alloc.handle)?;
    let mut place = handles::alone(&found)?;
    work(place.as_mut().ok_or_else(handles::being_finalized)?)
}

/// Shortens a part to its first `len` bytes, at least 1, and gives back the whole chunks of 64 bytes behind them. The
/// `working` bytes behind them are no longer the caller's: others may get their places.
///
/// # Safety
///
/// 1. Nobody uses the part's `working` bytes meanwhile, nor those behind the first `len` later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_shrink(
    alloc: palimpsest_alloc,
    part: c_int,
    len: usize,
) -> palimpsest_result {
    answer(|| {
        let index = usize::try_from(part).ok();
        let part = index.and_then(|index| Part::ALL.get(index)).copied();
        let part = part.ok_or_else(|| Failure::invalid("the part is none of PALIMPSEST_CODE to _READ_WRITE"))?;
        with_allocation(alloc, |taken| {
            taken.shrink(part, len).map_err(|error| {
                let code = if matches!(error, ShrinkError::Forked(_)) { PALIMPSEST_FORKED } else { PALIMPSEST_INVALID };
                Failure::of(code, &error)
            })
        })
    })
}

/// Names the allocation, for observers and `palimpsest_lookup`.
///
/// # Safety
///
/// 1. `name` is null or a string with a zero at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_set_name(alloc: palimpsest_alloc, name: *const c_char) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        let name = unsafe { text(name) };
        with_allocation(alloc, |taken| {
            taken.set_name(&name);
            Ok(())
        })
    })
}

/// Gives the code unwind tables: the bytes of an `.eh_frame` section with absolute pointers to its final address.
///
/// # Safety
///
/// 1. `eh_frame` is null, or valid for reading `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_set_eh_frame(
    alloc: palimpsest_alloc,
    eh_frame: *const c_void,
    len: usize,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        let eh_frame = unsafe { bytes(eh_frame, len) }?.to_vec();
        with_allocation(alloc, |taken| {
            taken.set_eh_frame(eh_frame);
            Ok(())
        })
    })
}

/// Tells observers which functions the code consists of: perf, gdb and the like then name these instead of the whole.
/// Replaces what was told before. Without observers they are checked, and not kept.
///
/// # Safety
///
/// 1. `functions` is null or valid for reading `count` of them, and so are their names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_set_functions(
    alloc: palimpsest_alloc,
    functions: *const palimpsest_function,
    count: usize,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        let functions = unsafe { elements(functions, count) }?;
        let told = functions.iter().map(|function| {
            // SAFETY: 1. is contract 1.
            let name = unsafe { text(function.name) };
            Function { offset: function.offset, len: function.len, name: name.into() }
        });
        let told = told.collect::<Vec<_>>();
        with_allocation(alloc, |taken| {
            taken.set_functions(told).map_err(|error| Failure::of(PALIMPSEST_INVALID, &error))
        })
    })
}

/// Puts allocations in place, all with one core synchronisation if the machine needs it, and opens the write view once
/// (`write_view` 1). From then on they are known only by their addresses, and stay until `palimpsest_alloc_release`,
/// even when the packs are closed. After an error none is in place; the handles are gone, too, except after
/// `PALIMPSEST_INVALID` or `PALIMPSEST_STALE`. Returns `PALIMPSEST_BUSY` if another thread uses one of them.
///
/// # Safety
///
/// 1. `allocs` is null or valid for reading `count` handles.
/// 2. Nobody writes to their `working` bytes meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_finalize(
    packs: palimpsest_packs,
    allocs: *const palimpsest_alloc,
    count: usize,
) -> palimpsest_result {
    answer(|| {
        let packs = handles::get::<Packs>(packs.handle)?;
        // SAFETY: 1. is contract 1.
        let allocs = unsafe { elements(allocs, count) }?;
        if let [one] = allocs {
            // The usual case, without lists.
            let taken = handles::take::<Allocation>(one.handle)?;
            taken.finalize().map_err(|error| finalize_failure(&error))?.keep();
            return Ok(());
        }
        let taken = handles::take_all::<Allocation>(allocs.iter().map(|one| one.handle))?;
        let done = packs.finalize_allocations(taken).map_err(|error| finalize_failure(&error))?;
        for one in done {
            one.keep();
        }
        Ok(())
    })
}

/// Gives back the places of an allocation that is not finalized.
///
/// # Safety
///
/// 1. Nobody uses its `working` bytes meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_drop(alloc: palimpsest_alloc) -> palimpsest_result {
    answer(|| {
        let found = handles::remove::<Slot>(alloc.handle)?;
        let allocation = handles::alone(&found)?.take();
        drop(allocation);
        Ok(())
    })
}

/// Releases finalized allocations, each named by the first address of any of its parts. Their bytes stay as they are
/// until no pinned thread and no forked child can be inside. Returns `PALIMPSEST_NOT_FOUND` if nothing is at one of the
/// addresses, `PALIMPSEST_STALE` if it was released before, `PALIMPSEST_INVALID` if it is inside a part or belongs to a
/// program. Then the addresses before it in the list are released, and those after it are not. `released` gets the
/// number of released ones, and may be null.
///
/// # Safety
///
/// 1. `addresses` is null or valid for reading `count` addresses.
/// 2. `released` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_release(
    packs: palimpsest_packs,
    addresses: *const usize,
    count: usize,
    released: *mut usize,
) -> palimpsest_result {
    answer(|| {
        let released = optional(released)?;
        let packs = handles::get::<Packs>(packs.handle)?;
        // SAFETY: 1. is contract 1.
        let addresses = unsafe { elements(addresses, count) }?;
        let mut done = 0;
        let ended = addresses.iter().try_for_each(|&address| {
            packs.release(address).map_err(|error| release_failure(&error))?;
            done += 1;
            Ok(())
        });
        if !released.is_null() {
            // SAFETY: contract 2, and aligned.
            unsafe { released.write(done) };
        }
        ended
    })
}

/// Finds the allocation that contains `address`, also a released one as long as it may run. Signal handlers may call
/// this: it never waits, does not use the heap, and leaves no message. Returns `PALIMPSEST_NOT_FOUND` also for programs
/// and data that other functions have made, and `PALIMPSEST_BUSY` while another thread changes handles or forks.
///
/// # Safety
///
/// 1. `found` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_query(
    packs: palimpsest_packs,
    address: usize,
    found: *mut palimpsest_alloc_found,
) -> palimpsest_result {
    if found.is_null() {
        return PALIMPSEST_INVALID;
    }
    let look_up = |packs: &Packs| {
        let here = packs.lookup(address)?;
        let range = |range: &Range<usize>| palimpsest_alloc_range { start: range.start, len: range.len() };
        let parts = here.parts()?;
        Some(palimpsest_alloc_found {
            size: 0,
            part: match here.part() {
                Part::Code => PALIMPSEST_CODE,
                Part::ReadOnly => PALIMPSEST_READ_ONLY,
                Part::ReadWrite => PALIMPSEST_READ_WRITE,
            },
            state: c_int::from(here.ownership() == Ownership::Released),
            code: range(&parts.code),
            read_only: range(&parts.read_only),
            read_write: range(&parts.read_write),
        })
    };
    at_once(|| match handles::with_at_once(packs.handle, look_up) {
        Err(code) => code,
        Ok(None) => PALIMPSEST_NOT_FOUND,
        // A wrong `size` makes a message, on the heap: a mistake that shows before the call is ever made in a handler.
        // SAFETY: 1. is contract 1.
        Ok(Some(told)) => answer(|| unsafe { versioned::write(found, told) }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::palimpsest_result::{PALIMPSEST_BUSY, PALIMPSEST_OK};

    /// Another thread uses the last of them: none is put in place, and all handles are gone.
    #[test]
    fn a_busy_allocation_takes_the_others_with_it() {
        let packs = Packs::new().expect("packs open");
        let sizes = Parts { code: Size { len: 64, align: 1 }, ..Parts::default() };
        let opened = palimpsest_packs { handle: handles::insert(packs.clone()) };
        for count in [1, 3] {
            let allocate = || {
                let taken = packs.allocate(sizes, Working::Private).expect("there is room");
                palimpsest_alloc { handle: handles::insert::<Slot>(Mutex::new(Some(taken))) }
            };
            let allocs: Vec<_> = (0..count).map(|_| allocate()).collect();
            let last = handles::get::<Slot>(allocs[count - 1].handle).expect("it is there");
            let held = last.lock().expect("nobody panics");
            // SAFETY: 1. as many. 2. nobody writes.
            let answer = unsafe { palimpsest_alloc_finalize(opened, allocs.as_ptr(), count) };
            assert_eq!(answer, PALIMPSEST_BUSY, "{count}");
            drop(held);
            for alloc in allocs {
                // SAFETY: 1. nobody writes.
                assert_eq!(unsafe { palimpsest_alloc_drop(alloc) }, PALIMPSEST_STALE, "{count}");
            }
            drop(last);
            assert_eq!(packs.stats().programs, 0, "{count}");
        }
        assert_eq!(crate::packs::palimpsest_packs_close(opened), PALIMPSEST_OK);
    }
}
