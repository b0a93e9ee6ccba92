//! Data beside code, within reach of its pc-relative addressing.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use palimpsest_text::{Data, DataAccess, Packs, StagedData};

use crate::handles;
use crate::packs::palimpsest_packs;
use crate::programs::{finalize_failure, stage_failure};
use crate::result::{answer, palimpsest_result, wanted};

/// A place for data, and an image of what it will hold.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_staged_data {
    /// Not to be computed with.
    pub handle: u64,
}

/// Data that is in place, until it is released.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_data {
    /// Not to be computed with.
    pub handle: u64,
}

/// Takes a place for `len` bytes of data at a multiple of `align`, in the region of the programs: never executable, and
/// writable by programs if `is_writable` is not 0. `address` and `image` are as in `palimpsest_stage`; the image starts
/// as zeros.
///
/// # Safety
///
/// 1. `staged`, `address` and `image` are null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_stage_data(
    packs: palimpsest_packs,
    is_writable: c_int,
    len: usize,
    align: usize,
    staged: *mut palimpsest_staged_data,
    address: *mut usize,
    image: *mut *mut c_void,
) -> palimpsest_result {
    answer(|| {
        let (staged, address, image) = (wanted(staged)?, wanted(address)?, wanted(image)?);
        let packs = handles::get::<Packs>(packs.handle)?;
        let access = if is_writable == 0 { DataAccess::ReadOnly } else { DataAccess::ReadWrite };
        let mut place = packs.stage_data(access, len, align).map_err(|error| stage_failure(&error))?;
        // SAFETY: contract 1, and not null.
        unsafe { address.write(place.address()) };
        // The image is on the heap, and stays until it is finalized or dropped. SAFETY: as above.
        unsafe { image.write(place.image().as_mut_ptr().cast()) };
        let handle = handles::insert(Mutex::new(Some(place)));
        // SAFETY: as above.
        unsafe { staged.write(palimpsest_staged_data { handle }) };
        Ok(())
    })
}

/// Copies what is staged into place. The staged handle is gone after an error, too, unless that is
/// `PALIMPSEST_INVALID`.
///
/// # Safety
///
/// 1. `data` is null or valid for writing.
/// 2. Nobody writes to the image meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_finalize_data(
    staged: palimpsest_staged_data,
    data: *mut palimpsest_data,
) -> palimpsest_result {
    answer(|| {
        let data = wanted(data)?;
        let done = handles::take::<StagedData>(staged.handle)?.finalize().map_err(|error| finalize_failure(&error))?;
        // SAFETY: contract 1, and not null.
        unsafe { data.write(palimpsest_data { handle: handles::insert(done) }) };
        Ok(())
    })
}

/// Gives back the place of what is staged.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_staged_data_drop(staged: palimpsest_staged_data) -> palimpsest_result {
    answer(|| handles::take::<StagedData>(staged.handle).map(drop))
}

/// Releases data. As with programs, it stays as it is until nobody can be in a program that uses it.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_data_release(data: palimpsest_data) -> palimpsest_result {
    answer(|| handles::remove::<Data>(data.handle).map(drop))
}
