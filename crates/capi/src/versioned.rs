//! Structures whose first field is their length, so that callers older and newer than the library fit.

use std::mem::MaybeUninit;
use std::ptr;

use crate::result::Failure;

/// A structure that grows at its end.
///
/// # Safety
///
/// 1. `repr(C)`, the first field is a `usize`, and any bytes are valid for every field.
pub(crate) unsafe trait Versioned: Copy {}

/// No version's structure is longer: a greater length was never set.
const MOST: usize = 4096;

/// Returns the length that the caller gave.
///
/// # Safety
///
/// 1. `structure` is not null, and valid for reading its first field.
unsafe fn size_of_callers<T: Versioned>(structure: *const T) -> Result<usize, Failure> {
    const { assert!(size_of::<T>() <= MOST) };
    if !structure.is_aligned() {
        return Err(Failure::invalid(format_args!("{structure:p} is not aligned as the structure is")));
    }
    // SAFETY: contract 1; the first field is a `usize`.
    let size = unsafe { structure.cast::<usize>().read() };
    if !(size_of::<usize>()..=MOST).contains(&size) {
        return Err(Failure::invalid(format_args!("the field `size` is {size}: set it to the structure's sizeof")));
    }
    Ok(size)
}

/// Reads what the caller gave, with zeros in fields that an older caller does not know; `None` for null. A newer caller
/// may have fields that this library does not know, as long as they are zero.
///
/// # Safety
///
/// 1. `structure` is null, or valid for reading its first field and as many bytes as that says.
pub(crate) unsafe fn read<T: Versioned>(structure: *const T) -> Result<Option<T>, Failure> {
    if structure.is_null() {
        return Ok(None);
    }
    // SAFETY: 1. is contract 1.
    let size = unsafe { size_of_callers(structure) }?;
    let mut read = MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are valid on both sides, by contract 1 and by the type.
    unsafe { ptr::copy_nonoverlapping(structure.cast::<u8>(), read.as_mut_ptr().cast(), known) };
    for offset in known..size {
        // SAFETY: contract 1: inside the structure.
        let byte = unsafe { structure.cast::<u8>().add(offset) };
        // SAFETY: as above.
        if unsafe { byte.read() } != 0 {
            let message = format_args!("byte {offset} of the structure is set, which this version does not know");
            return Err(Failure::invalid(message));
        }
    }
    // SAFETY: zeros and the caller's bytes, any of which are valid.
    Ok(Some(unsafe { read.assume_init() }))
}

/// Refuses a `structure` that [`write`] would refuse, before anything is done. Null is accepted.
///
/// # Safety
///
/// 1. `structure` is null, or valid for reading its first field.
pub(crate) unsafe fn wanted<T: Versioned>(structure: *const T) -> Result<(), Failure> {
    if structure.is_null() {
        return Ok(());
    }
    // SAFETY: 1. is contract 1.
    unsafe { size_of_callers(structure) }.map(drop)
}

/// Fills in as much of `structure` as the caller knows, and leaves its length as it is.
///
/// # Safety
///
/// 1. `structure` is valid for reading its first field and for writing as many bytes as that says.
pub(crate) unsafe fn write<T: Versioned>(structure: *mut T, told: T) -> Result<(), Failure> {
    // SAFETY: 1. is contract 1.
    let size = unsafe { size_of_callers(structure) }?;
    let known = size.min(size_of::<T>()) - size_of::<usize>();
    // SAFETY: behind the first field; the structure is longer.
    let to = unsafe { structure.cast::<u8>().add(size_of::<usize>()) };
    // SAFETY: as above.
    let from = unsafe { (&raw const told).cast::<u8>().add(size_of::<usize>()) };
    // SAFETY: `known` bytes are valid on both sides, by contract 1 and by the type.
    unsafe { ptr::copy_nonoverlapping(from, to, known) };
    Ok(())
}
