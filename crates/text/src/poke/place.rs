//! Like memcpy and memset, for executable memory that nobody runs at the time.

use palimpsest_sys::arch::INSTRUCTION_ALIGN;
use palimpsest_sys::{Piece, Within, stay_loaded};

use super::domain::Domain;
use super::error::{PlaceError, PokeError};
use super::machine::store_bytes;
use crate::pack::{OutsideProgram, Program};

/// Bytes written at a time: the smallest page.
const CUT: usize = 4096;

/// Copies `bytes` to offset `offset` of a program, where nobody runs meanwhile. Returns when every core would run the
/// new code.
///
/// # Safety
///
/// 1. No thread runs the range, or is stopped in it, from now until the call returns.
/// 2. All threads that run the program afterwards work with the new code.
///
/// # Errors
///
/// See [`PlaceError`].
pub unsafe fn copy(program: &Program, offset: usize, bytes: &[u8]) -> Result<(), PlaceError> {
    check(program, offset, bytes.len())?;
    // SAFETY: in the program; 1 and 2 by the caller.
    unsafe { write(program, offset, bytes.chunks(CUT)) }
}

/// Fills `len` bytes at offset `offset` of a program, where nobody runs meanwhile, with repetitions of an instruction.
/// Returns when every core would run the new code.
///
/// # Safety
///
/// As for [`copy`].
///
/// # Errors
///
/// See [`PlaceError`].
pub unsafe fn fill(program: &Program, offset: usize, len: usize, instruction: &[u8]) -> Result<(), PlaceError> {
    check(program, offset, len)?;
    if instruction.is_empty() || !len.is_multiple_of(instruction.len()) {
        return Err(PlaceError::Pattern { len, instruction: instruction.len() });
    }
    if len == 0 {
        return Ok(());
    }
    let chunk = instruction.repeat(CUT.min(len).div_ceil(instruction.len()));
    let whole = std::iter::repeat_n(&chunk[..], len / chunk.len());
    let rest = &chunk[..len % chunk.len()];
    // SAFETY: in the program; 1 and 2 by the caller.
    unsafe { write(program, offset, whole.chain([rest])) }
}

fn check(program: &Program, offset: usize, len: usize) -> Result<(), PlaceError> {
    let outside = || OutsideProgram { offset, len: program.len(), address: program.address() };
    offset.checked_add(len).filter(|&end| end <= program.len()).ok_or_else(outside)?;
    let address = program.address().get() + offset;
    if !address.is_multiple_of(INSTRUCTION_ALIGN) || !len.is_multiple_of(INSTRUCTION_ALIGN) {
        return Err(PlaceError::Misaligned { address, len });
    }
    match program.is_of_this_process() {
        true => Ok(()),
        false => Err(PokeError::Inherited { address: program.address() }.into()),
    }
}

/// Writes the chunks one after the other.
///
/// # Safety
///
/// 1. The range lies in the program, which this process has loaded.
/// 2. The caller's contract in [`copy`].
unsafe fn write<'b>(
    program: &Program,
    offset: usize,
    chunks: impl Iterator<Item = &'b [u8]>,
) -> Result<(), PlaceError> {
    // Without the lock, as in `Batch::apply`.
    stay_loaded().map_err(PokeError::from)?;
    // Batches read and write whole words around their sites.
    let mut state = Domain::own()?.lock();
    let opened = program.open().map_err(PokeError::from)?;
    let mut next = offset;
    for chunk in chunks.filter(|chunk| !chunk.is_empty()) {
        if let Some(alias) = program.alias(next) {
            // SAFETY: in a view of the program (1), which is writable while open, and which nobody runs (2).
            unsafe { store_bytes(alias, chunk) };
        } else {
            let start = program.address().get();
            let piece = Piece { address: start + next, bytes: chunk, within: Within::Program(start) };
            // SAFETY: 1. mapped, and code has no references; 2. nobody runs it.
            unsafe { state.text.write([piece].into_iter()) }.map_err(PokeError::from)?;
        }
        next += chunk.len();
    }
    opened.close().map_err(PokeError::from)?;
    program.flush(offset, next - offset);
    state.sync_cores().map_err(|error| PokeError::Unsynced(Box::new(error.into())))?;
    Ok(())
}
