//! Programs: staged, finalized, released.

use std::ffi::{c_char, c_void};
use std::sync::Mutex;

use palimpsest_text::{Fault, FinalizeError, LoadError, Packs, Program, StageError, Staged};

use crate::handles;
use crate::input::{bytes, elements, text};
use crate::packs::palimpsest_packs;
use crate::result::palimpsest_result::{
    self, PALIMPSEST_FORKED, PALIMPSEST_INVALID, PALIMPSEST_NO_ROOM, PALIMPSEST_NOT_FOUND, PALIMPSEST_SYSTEM,
};
use crate::result::{Failure, answer, optional, wanted};

/// A place in the packs, and an image of what it will hold.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_staged {
    /// Not to be computed with.
    pub handle: u64,
}

/// Code that may run, until it is released.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_program {
    /// Not to be computed with.
    pub handle: u64,
}

pub(crate) fn stage_failure(error: &StageError) -> Failure {
    let code = match error {
        StageError::Empty | StageError::Align { .. } | StageError::TooLong { .. } => PALIMPSEST_INVALID,
        StageError::Full { .. } => PALIMPSEST_NO_ROOM,
        _ => PALIMPSEST_SYSTEM,
    };
    Failure::of(code, error)
}

pub(crate) fn finalize_failure(error: &FinalizeError) -> Failure {
    let code = if matches!(error, FinalizeError::Forked { .. }) { PALIMPSEST_FORKED } else { PALIMPSEST_SYSTEM };
    Failure::of(code, error)
}

/// Loads code that runs at any address, at a multiple of `align` bytes. `name`, for observers, may be null.
///
/// # Safety
///
/// 1. `name` is null or a string with a zero at its end.
/// 2. `code` is null, or valid for reading `len` bytes.
/// 3. `program` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_load(
    packs: palimpsest_packs,
    name: *const c_char,
    code: *const c_void,
    len: usize,
    align: usize,
    program: *mut palimpsest_program,
) -> palimpsest_result {
    answer(|| {
        let program = wanted(program)?;
        let packs = handles::get::<Packs>(packs.handle)?;
        // SAFETY: 1. is contract 1.
        let name = unsafe { text(name) };
        // SAFETY: 1. is contract 2.
        let code = unsafe { bytes(code, len) }?;
        let loaded = packs.load_named(&name, code, align).map_err(|error| match error {
            LoadError::Stage(error) => stage_failure(&error),
            LoadError::Finalize(error) => finalize_failure(&error),
        })?;
        // SAFETY: contract 3, and not null.
        unsafe { program.write(palimpsest_program { handle: handles::insert(loaded) }) };
        Ok(())
    })
}

/// Takes a place for a program of `len` bytes at a multiple of `align`. `address` is where it will run, `image` where
/// to write its bytes until it is finalized: at first `len` bytes of traps.
///
/// # Safety
///
/// 1. `staged`, `address` and `image` are null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_stage(
    packs: palimpsest_packs,
    len: usize,
    align: usize,
    staged: *mut palimpsest_staged,
    address: *mut usize,
    image: *mut *mut c_void,
) -> palimpsest_result {
    answer(|| {
        let (staged, address, image) = (wanted(staged)?, wanted(address)?, wanted(image)?);
        let packs = handles::get::<Packs>(packs.handle)?;
        let mut place = packs.stage(len, align).map_err(|error| stage_failure(&error))?;
        // SAFETY: contract 1, and not null.
        unsafe { address.write(place.address().get()) };
        // The image is on the heap, and stays until it is finalized or dropped. SAFETY: as above.
        unsafe { image.write(place.image().as_mut_ptr().cast()) };
        let handle = handles::insert(Mutex::new(Some(place)));
        // SAFETY: as above.
        unsafe { staged.write(palimpsest_staged { handle }) };
        Ok(())
    })
}

/// Does something with what is staged, which is not finalized meanwhile.
pub(crate) fn with_staged<R>(
    staged: palimpsest_staged,
    work: impl FnOnce(&mut Staged) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let found = handles::get::<Mutex<Option<Staged>>>(staged.handle)?;
    let mut place = handles::alone(&found)?;
    work(place.as_mut().ok_or_else(handles::being_finalized)?)
}

/// Names what is staged, for observers and `palimpsest_lookup`.
///
/// # Safety
///
/// 1. `name` is null or a string with a zero at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_staged_set_name(
    staged: palimpsest_staged,
    name: *const c_char,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        let name = unsafe { text(name) };
        with_staged(staged, |staged| {
            staged.set_name(&name);
            Ok(())
        })
    })
}

/// Gives the program unwind tables: the bytes of an `.eh_frame` section with absolute pointers to its final address.
///
/// # Safety
///
/// 1. `eh_frame` is null, or valid for reading `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_staged_set_eh_frame(
    staged: palimpsest_staged,
    eh_frame: *const c_void,
    len: usize,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        let eh_frame = unsafe { bytes(eh_frame, len) }?.to_vec();
        with_staged(staged, |staged| {
            staged.set_eh_frame(eh_frame);
            Ok(())
        })
    })
}

/// Where a program goes on when one of its instructions faults: both in bytes from its start.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_fault {
    /// The instruction.
    pub offset: u32,
    /// Where to go on.
    pub landing: u32,
}

/// Says where to go on after faults, for the handler that calls `palimpsest_lookup`.
///
/// # Safety
///
/// 1. `faults` is null, or valid for reading `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_staged_set_faults(
    staged: palimpsest_staged,
    faults: *const palimpsest_fault,
    count: usize,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 1.
        let faults = unsafe { elements(faults, count) }?;
        let faults = faults.iter().map(|fault| Fault { offset: fault.offset, landing: fault.landing }).collect();
        with_staged(staged, |staged| staged.set_faults(faults).map_err(|error| Failure::of(PALIMPSEST_INVALID, &error)))
    })
}

/// Copies what is staged into the packs, all with one core synchronisation if the machine needs it. `programs` gets as
/// many handles, in the same order. After an error none is in place; the staged handles are gone, too, except after
/// `PALIMPSEST_INVALID` or `PALIMPSEST_STALE`. Returns `PALIMPSEST_BUSY` if another thread uses one of them.
///
/// # Safety
///
/// 1. `staged` is null or valid for reading `count` handles, `programs` null or valid for writing as many.
/// 2. Nobody writes to the images meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_finalize(
    packs: palimpsest_packs,
    staged: *const palimpsest_staged,
    count: usize,
    programs: *mut palimpsest_program,
) -> palimpsest_result {
    answer(|| {
        let programs = wanted(programs)?;
        let packs = handles::get::<Packs>(packs.handle)?;
        // SAFETY: 1. is contract 1.
        let staged = unsafe { elements(staged, count) }?;
        let places = handles::take_all::<Staged>(staged.iter().map(|one| one.handle))?;
        let done = packs.finalize_all(places).map_err(|error| finalize_failure(&error))?;
        for (index, program) in done.into_iter().enumerate() {
            // SAFETY: contract 1: there are `count`.
            let place = unsafe { programs.add(index) };
            // SAFETY: as above.
            unsafe { place.write(palimpsest_program { handle: handles::insert(program) }) };
        }
        Ok(())
    })
}

/// Gives back the place of what is staged.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_staged_drop(staged: palimpsest_staged) -> palimpsest_result {
    answer(|| {
        let found = handles::remove::<Mutex<Option<Staged>>>(staged.handle)?;
        let place = handles::alone(&found)?.take();
        drop(place);
        Ok(())
    })
}

/// Tells where a program begins, as a function pointer to call, and its length in bytes. Either may be null.
///
/// # Safety
///
/// 1. `entry` and `len` are null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_program_entry(
    program: palimpsest_program,
    entry: *mut *const c_void,
    len: *mut usize,
) -> palimpsest_result {
    answer(|| {
        let (entry, len) = (optional(entry)?, optional(len)?);
        let program = handles::get::<Program>(program.handle)?;
        if !entry.is_null() {
            // SAFETY: contract 1, and aligned.
            unsafe { entry.write(program.entry().cast()) };
        }
        if !len.is_null() {
            // SAFETY: contract 1, and aligned.
            unsafe { len.write(program.len()) };
        }
        Ok(())
    })
}

/// Finds the handle of the program that begins at `address` and is not released. Looks at all of them: for callers that
/// keep only addresses, and not for frequent use.
///
/// # Safety
///
/// 1. `program` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_program_at(
    address: *const c_void,
    program: *mut palimpsest_program,
) -> palimpsest_result {
    answer(|| {
        let program = wanted(program)?;
        let found = handles::find::<Program>(|program| program.address().get() == address.addr());
        let nothing = || Failure::new(PALIMPSEST_NOT_FOUND, format_args!("no program begins at {address:p}"));
        // SAFETY: contract 1, and not null.
        unsafe { program.write(palimpsest_program { handle: found.ok_or_else(nothing)? }) };
        Ok(())
    })
}

/// Releases a program. Its bytes stay as they are until no pinned thread and no forked child can be inside.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_program_release(program: palimpsest_program) -> palimpsest_result {
    answer(|| handles::remove::<Program>(program.handle).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::palimpsest_result::{PALIMPSEST_BUSY, PALIMPSEST_OK, PALIMPSEST_STALE};

    /// Another thread uses the second of them: none is put in place, and all handles are gone.
    #[test]
    fn what_is_staged_and_in_use_takes_the_others_with_it() {
        let packs = Packs::new().expect("packs open");
        let opened = palimpsest_packs { handle: handles::insert(packs.clone()) };
        for count in [1, 3] {
            let stage = || {
                let place = packs.stage(64, 1).expect("there is room");
                palimpsest_staged { handle: handles::insert(Mutex::new(Some(place))) }
            };
            let staged: Vec<_> = (0..count).map(|_| stage()).collect();
            let used = handles::get::<Mutex<Option<Staged>>>(staged[count / 2].handle).expect("it is there");
            let held = used.lock().expect("nobody panics");
            let mut programs = vec![palimpsest_program { handle: 0 }; count];
            // SAFETY: 1. as many. 2. nobody writes.
            let answer = unsafe { palimpsest_finalize(opened, staged.as_ptr(), count, programs.as_mut_ptr()) };
            assert_eq!(answer, PALIMPSEST_BUSY, "{count}");
            drop(held);
            for one in staged {
                assert_eq!(palimpsest_staged_drop(one), PALIMPSEST_STALE, "{count}");
            }
            drop(used);
            assert_eq!(packs.stats().programs, 0, "{count}");
        }
        assert_eq!(crate::packs::palimpsest_packs_close(opened), PALIMPSEST_OK);
    }
}
