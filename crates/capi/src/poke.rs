//! Changing code that runs.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use palimpsest_text::Program;
use palimpsest_text::poke::{AddError, Batch, Mode, PokeError};

use crate::handles;
use crate::input::{bytes, elements};
use crate::mapped::first_without_code;
use crate::programs::palimpsest_program;
use crate::result::palimpsest_result::{
    self, PALIMPSEST_CHANGED, PALIMPSEST_FORKED, PALIMPSEST_INVALID, PALIMPSEST_PARTLY, PALIMPSEST_REFUSED,
    PALIMPSEST_SYSTEM,
};
use crate::result::{Failure, answer};
use crate::versioned::{self, Versioned};

/// One instruction to be replaced by another of the same length.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_site {
    /// The program that the instruction is in; handle 0 for the text of the running program or of a library.
    pub program: palimpsest_program,
    /// Where the instruction begins.
    pub address: *const c_void,
    /// The present bytes.
    pub old_code: *const c_void,
    /// The new bytes.
    pub new_code: *const c_void,
    /// Bytes of each, 1 to 15.
    pub len: usize,
}

/// What a batch did. `size` is the size of this structure, set by the caller.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct palimpsest_applied {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Sites that changed; the others were as wanted before.
    pub sites: usize,
    /// Core synchronisations.
    pub syncs: u64,
    /// How: 0: with one store each. 1: with detours. 2: while every other thread was held. 3: with traps.
    pub mode: c_int,
    /// 0.
    pub reserved: c_int,
}

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for palimpsest_applied {}

/// Returns what an error of a batch is for C.
pub(crate) fn code_of(error: &PokeError) -> palimpsest_result {
    match error {
        PokeError::Overlap { .. } | PokeError::TooMany { .. } => PALIMPSEST_INVALID,
        PokeError::Mismatch { .. } => PALIMPSEST_CHANGED,
        PokeError::Inherited { .. } => PALIMPSEST_FORKED,
        PokeError::Partial { .. } | PokeError::Unsynced(_) | PokeError::Stuck(Some(_)) => PALIMPSEST_PARTLY,
        PokeError::NotEmulated { .. }
        | PokeError::NotSingleStore { .. }
        | PokeError::Hold(_)
        | PokeError::Stuck(None) => PALIMPSEST_REFUSED,
        _ => PALIMPSEST_SYSTEM,
    }
}

/// Refuses sites in the program's own text that are no code.
fn are_code(sites: &[palimpsest_site]) -> Result<(), Failure> {
    let texts = sites.iter().filter(|site| site.program.handle == 0).map(|site| {
        let start = site.address.addr();
        let beyond = || Failure::invalid(format_args!("{} bytes from {start:#x} lead beyond all addresses", site.len));
        Ok(start..start.checked_add(site.len).ok_or_else(beyond)?)
    });
    let texts = texts.collect::<Result<Vec<_>, Failure>>()?;
    // Without such sites no file is opened.
    let wrong = if texts.is_empty() { None } else { first_without_code(&texts) };
    let Some(wrong) = wrong else { return Ok(()) };
    let (start, len) = (wrong.start, wrong.len());
    let message = format_args!("{len} bytes at {start:#x} are not mapped as code that can be read");
    Err(Failure::invalid(message))
}

/// Changes all sites, 262143 at most, with as few core synchronisations as possible. When it returns `PALIMPSEST_OK`
/// every core runs the new code. After `PALIMPSEST_PARTLY` some sites are new, or all are and some core may still run
/// old code for a while: the message says which. After any other error but `PALIMPSEST_PANIC` everything is as it was.
/// `applied` may be null. Not for signal handlers. Returns `PALIMPSEST_INVALID` for a site without a program that is
/// not in mapped code that can be read, as far as the kernel tells (`/proc/self/maps`).
///
/// # Safety
///
/// 1. `sites` is null or valid for reading `count` of them, and so are their bytes; the addresses of sites without a
///    program are in mapped, readable code that stays loaded.
/// 2. The old bytes of a site are one instruction, and so are the new ones; no jump leads between them; and all threads
///    that run the code work with either.
/// 3. `applied` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_poke(
    sites: *const palimpsest_site,
    count: usize,
    applied: *mut palimpsest_applied,
) -> palimpsest_result {
    answer(|| {
        // SAFETY: 1. is contract 3.
        unsafe { versioned::wanted(applied) }?;
        // SAFETY: 1. is contract 1.
        let sites = unsafe { elements(sites, count) }?;
        let mut programs: Vec<Option<Arc<Program>>> = Vec::with_capacity(count);
        for site in sites {
            let is_text = site.program.handle == 0;
            programs.push(if is_text { None } else { Some(handles::get(site.program.handle)?) });
        }
        are_code(sites)?;
        let mut batch = Batch::new();
        for (site, program) in sites.iter().zip(&programs) {
            // SAFETY: 1. is contract 1.
            let old = unsafe { bytes(site.old_code, site.len) }?;
            // SAFETY: 1. is contract 1.
            let new = unsafe { bytes(site.new_code, site.len) }?;
            let address = site.address.addr();
            let added = match program {
                Some(program) => {
                    let start = program.address().get();
                    let before = || Failure::invalid(format_args!("{address:#x} is before its program, at {start:#x}"));
                    let offset = address.checked_sub(start).ok_or_else(before)?;
                    // SAFETY: 1. and 2. are contract 2.
                    unsafe { batch.add(program, offset, old, new) }
                }
                // SAFETY: 1. and 4. are contract 1; 2. and 3. are contract 2.
                None => unsafe { batch.add_text(address, old, new) },
            };
            added.map_err(|error: AddError| Failure::of(PALIMPSEST_INVALID, &error))?;
        }
        let done = batch.apply().map_err(|error| Failure::of(code_of(&error), &error))?;
        if applied.is_null() {
            return Ok(());
        }
        let mode = match done.mode {
            Mode::SingleStore => 0,
            Mode::Detour => 1,
            Mode::Held => 2,
            Mode::Trap => 3,
        };
        // SAFETY: 1. is contract 3.
        unsafe {
            versioned::write(
                applied,
                palimpsest_applied { size: 0, sites: done.sites, syncs: done.syncs, mode, reserved: 0 },
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Box<PokeError> {
        Box::new(PokeError::NoTraps)
    }

    /// Fails on: a change that is half done, and looks to C like one that was not begun.
    #[test]
    fn what_is_changed_in_part_has_a_code_of_its_own() {
        for partly in [
            PokeError::Partial { changed: 1, sites: 2, source: refused() },
            PokeError::Unsynced(refused()),
            PokeError::Stuck(Some(refused())),
        ] {
            assert_eq!(code_of(&partly), PALIMPSEST_PARTLY, "{partly:?}");
        }
        assert_eq!(code_of(&PokeError::Stuck(None)), PALIMPSEST_REFUSED);
        assert_eq!(code_of(&PokeError::TooMany { sites: 2, max: 1 }), PALIMPSEST_INVALID);
        assert_eq!(code_of(&refused()), PALIMPSEST_SYSTEM);
    }
}
