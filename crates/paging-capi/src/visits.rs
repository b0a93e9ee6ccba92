//! Going through pages one by one, with the space's lock held, so that nothing changes in between.

use core::ffi::{c_int, c_void};
use core::ops::{ControlFlow, Range};
use core::slice;

use palimpsest_paging::format::Format;
use palimpsest_paging::{
    AddressSpace, Attributes, CursorMapError, CursorMut, Frame, Machine, Mapping, PAGE, Page, PageSize, VirtAddr,
};

use crate::machine::Hooks;
use crate::pages::{Reach, attributes_of, mapping_of, palimpsest_paging_mapping, range_of, reach_of, rights_of};
use crate::result::palimpsest_paging_result::{
    self, PALIMPSEST_PAGING_INVALID, PALIMPSEST_PAGING_PHYSICAL, PALIMPSEST_PAGING_RANGE,
};
use crate::result::{Answer, code, of_change, of_map};
use crate::space::{each_format, live, palimpsest_paging_space};

/// Sees a page, and returns 0 to go on, another number to end the visit. Runs while the library holds the space's lock:
/// it must not call functions for the same space.
#[expect(non_camel_case_types, reason = "the names that C sees")]
pub type palimpsest_paging_visit =
    Option<unsafe extern "C" fn(argument: *mut c_void, mapping: *const palimpsest_paging_mapping) -> c_int>;

/// Sees a page, and returns what is to become of it: PALIMPSEST_PAGING_KEEP, _TAKE or _STOP, or
/// PALIMPSEST_PAGING_PROTECT plus rights. Runs while the library holds the space's lock: it must not call functions for
/// the same space.
#[expect(non_camel_case_types, reason = "the names that C sees")]
pub type palimpsest_paging_decide =
    Option<unsafe extern "C" fn(argument: *mut c_void, mapping: *const palimpsest_paging_mapping) -> u32>;

/// The page stays as it is.
pub const PALIMPSEST_PAGING_KEEP: u32 = 0;
/// The page stays as it is, and so do all behind it.
pub const PALIMPSEST_PAGING_STOP: u32 = 8;
/// The page is unmapped, and its reference given back.
pub const PALIMPSEST_PAGING_TAKE: u32 = 16;
/// The page gets the rights that are added to this: PALIMPSEST_PAGING_READ, _WRITE and _EXECUTE.
pub const PALIMPSEST_PAGING_PROTECT: u32 = 32;

/// Shows `visit` every page that shares an address with `start` to before `start + len`, by ascending address.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `visit` is null or such a function, and may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_walk(
    space: *const palimpsest_paging_space,
    start: u64,
    len: u64,
    visit: palimpsest_paging_visit,
    argument: *mut c_void,
) -> palimpsest_paging_result {
    let walked = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let (range, visit) = (range_of(start, len)?, visit.ok_or(PALIMPSEST_PAGING_INVALID)?);
        let show = |mapping: Mapping| {
            let told = mapping_of(&mapping, size_of::<palimpsest_paging_mapping>());
            // SAFETY: contract 2.
            let is_over = unsafe { visit(argument, &raw const told) } != 0;
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        each_format!(space, space => space.walk(range, show)).map_err(|_| PALIMPSEST_PAGING_RANGE)
    };
    code(walked())
}

/// Asks `decide` about every page from `start` to before `start + len`, by ascending address, does what it says, and
/// flushes once at the end. Of a large page that lies only partly in the range, `decide` is first shown the whole:
/// PALIMPSEST_PAGING_KEEP passes all of it; PALIMPSEST_PAGING_TAKE and _PROTECT split off the largest page that lies in
/// the range, from its first address in the range on, change that, and `decide` is asked about what follows. `reach` is
/// as for palimpsest_paging_unmap.
///
/// After an error, pages that were decided on before stay changed, and are flushed.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `decide` is null or such a function, and may be called with `argument`.
/// 3. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses pages of the kernel that are taken
///    or restricted no longer: not as code, stack or data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_edit(
    space: *const palimpsest_paging_space,
    start: u64,
    len: u64,
    decide: palimpsest_paging_decide,
    argument: *mut c_void,
    reach: u32,
) -> palimpsest_paging_result {
    let edited = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let (range, reach) = (range_of(start, len)?, reach_of(reach)?);
        let decide = decide.ok_or(PALIMPSEST_PAGING_INVALID)?;
        let ask = |mapping: &Mapping| {
            let told = mapping_of(mapping, size_of::<palimpsest_paging_mapping>());
            // SAFETY: contract 2.
            unsafe { decide(argument, &raw const told) }
        };
        each_format!(space, space => {
            let cursor = match reach {
                Reach::UsersOnly => space.cursor_mut(range),
                // SAFETY: contract 3.
                Reach::AlsoKernel => unsafe { space.cursor_mut_kernel(range) },
            };
            let mut cursor = cursor.map_err(|error| of_change(&error))?;
            let done = edit(&mut cursor, ask);
            cursor.finish().finish();
            done
        })
    };
    code(edited())
}

fn edit<F: Format>(cursor: &mut CursorMut<'_, F, Hooks>, ask: impl Fn(&Mapping) -> u32) -> Answer {
    while let Some(page) = cursor.find() {
        match ask(&page) {
            PALIMPSEST_PAGING_KEEP => cursor.skip_next(),
            PALIMPSEST_PAGING_STOP => return Ok(()),
            PALIMPSEST_PAGING_TAKE => cursor.take_next().map_err(|error| of_change(&error))?,
            decision => {
                let rights = decision.checked_sub(PALIMPSEST_PAGING_PROTECT).ok_or(PALIMPSEST_PAGING_INVALID)?;
                cursor.protect_next(rights_of(rights)?).map_err(|error| of_change(&error))?
            }
        };
    }
    Ok(())
}

/// Maps `count` pages of 4 KiB, which need not be adjacent in physical memory, at the addresses from `start` on:
/// `pages` are their physical addresses. Nothing may be mapped there. `attributes` are as for palimpsest_paging_map,
/// and so are references: you hand over one to each page, unless there is an error; then none is mapped.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `pages` is null, or points to `count` addresses.
/// 3. Contracts 2 and 3 of palimpsest_paging_map, for each page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_map_pages(
    space: *const palimpsest_paging_space,
    start: u64,
    pages: *const u64,
    count: u64,
    attributes: u32,
) -> palimpsest_paging_result {
    let mapped = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let attributes = attributes_of(attributes)?;
        let len = count.checked_mul(PAGE).ok_or(PALIMPSEST_PAGING_RANGE)?;
        let range = range_of(start, len)?;
        if pages.is_null() || !pages.is_aligned() {
            return Err(PALIMPSEST_PAGING_INVALID);
        }
        let count = usize::try_from(count).map_err(|_| PALIMPSEST_PAGING_RANGE)?;
        if isize::try_from(len).is_err() {
            return Err(PALIMPSEST_PAGING_RANGE);
        }
        // SAFETY: contract 2; aligned, not null, and not longer than there can be.
        let pages = unsafe { slice::from_raw_parts(pages, count) };
        // SAFETY: 1. is contract 3.
        each_format!(space, space => unsafe { map_all(space, range, pages, attributes) })
    };
    code(mapped())
}

/// Maps all pages, or none.
///
/// # Safety
///
/// 1. Contracts 2 and 3 of `palimpsest_paging_map`, for each page.
unsafe fn map_all<F: Format>(
    space: &AddressSpace<F, Hooks>,
    range: Range<VirtAddr>,
    pages: &[u64],
    attributes: Attributes,
) -> Answer {
    // SAFETY: 1. changes no page that was mapped before, neither the kernel's nor others.
    let cursor = unsafe { space.cursor_mut_kernel(range.clone()) };
    let mut cursor = cursor.map_err(|error| of_change(&error))?;
    let mut done = 0;
    let mapped = pages.iter().try_for_each(|&physical| {
        let frame = Frame::new(physical).ok_or(PALIMPSEST_PAGING_PHYSICAL)?;
        // SAFETY: 1. and 2. are contract 1.
        let mapped = unsafe { cursor.map(frame, PageSize::Small, attributes) };
        mapped.map_err(|error| match error {
            CursorMapError::Map(error) => of_map(&error),
            CursorMapError::Seek(_) => PALIMPSEST_PAGING_RANGE,
        })?;
        done += 1;
        Ok(())
    });
    if mapped.is_err() && cursor.seek(range.start).is_ok() {
        for _ in 0..done {
            // What is taken out gives back a reference, which is still the caller's.
            let Ok(Some(taken)) = cursor.take_next() else { unreachable!("it was mapped under the same lock") };
            space.machine().retain(Page { frame: taken.leaf.frame, size: taken.size });
        }
    }
    cursor.finish().finish();
    mapped
}
