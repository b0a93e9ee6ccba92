//! Lines of the source that code comes from, for debuggers and profilers.

use std::ffi::c_char;

use palimpsest_text::Part;
use palimpsest_text::observe::{SourceLine, SourceLines};

use crate::allocations::{palimpsest_alloc, with_allocation};
use crate::input::{elements, text};
use crate::programs::{palimpsest_staged, with_staged};
use crate::result::{Failure, answer, palimpsest_result};

/// A line of a source, which holds from its offset up to the next one's.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct palimpsest_line {
    /// The file, as its compiler named it, with a zero at its end. Null or empty if it has no name.
    pub file: *const c_char,
    /// Bytes from the program's first, or the code's, to the line's.
    pub offset: u32,
    /// The line, from 1; 0 for code that comes from no line.
    pub line: u32,
    /// The column, from 1; 0 if it is not known.
    pub column: u32,
    /// Must be 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<palimpsest_line>() == size_of::<*const c_char>() + 4 * size_of::<u32>());

/// Returns the `count` lines at `lines`, of code of `len` bytes.
///
/// # Safety
///
/// 1. `lines` is null or valid for reading `count` of them, and so are their files.
unsafe fn told(lines: *const palimpsest_line, count: usize, len: usize) -> Result<SourceLines, Failure> {
    // SAFETY: 1. is contract 1.
    let lines = unsafe { elements(lines, count) }?;
    let mut told = SourceLines::new();
    let mut last = 0;
    for (index, line) in lines.iter().enumerate() {
        let &palimpsest_line { file, offset, line, column, reserved } = line;
        if offset < last {
            let message = format_args!("line {index} of the list is at offset {offset}, behind one at {last}: sort it");
            return Err(Failure::invalid(message));
        }
        if offset as usize >= len {
            let message = format_args!("line {index} of the list is at offset {offset}: the code has {len} bytes");
            return Err(Failure::invalid(message));
        }
        if reserved != 0 {
            let message = format_args!("reserved of line {index} of the list is {reserved}: 0 is known");
            return Err(Failure::invalid(message));
        }
        // SAFETY: 1. is contract 1.
        let file = unsafe { text(file) };
        told.add(SourceLine { offset, file: &file, line, column });
        last = offset;
    }
    Ok(told)
}

/// Tells observers which lines of a source the program comes from, so that gdb and perf show them: sorted by offset,
/// each inside the program. Of two at the same offset the later one counts. Replaces what was told before. Without
/// observers that show lines (`PALIMPSEST_GDB`, `PALIMPSEST_JIT_DUMP`) they are checked, and forgotten.
///
/// # Safety
///
/// 1. `lines` is null or valid for reading `count` of them, and so are their files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_staged_set_lines(
    staged: palimpsest_staged,
    lines: *const palimpsest_line,
    count: usize,
) -> palimpsest_result {
    answer(|| {
        with_staged(staged, |staged| {
            // SAFETY: 1. is contract 1.
            let told = unsafe { told(lines, count, staged.len()) }?;
            staged.set_lines(told);
            Ok(())
        })
    })
}

/// As `palimpsest_staged_set_lines`, of the code of an allocation: before or after `palimpsest_alloc_set_functions`,
/// with offsets from the first byte of the code. Lines that a later `palimpsest_alloc_shrink` cuts off are left out.
///
/// # Safety
///
/// 1. `lines` is null or valid for reading `count` of them, and so are their files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_alloc_set_lines(
    alloc: palimpsest_alloc,
    lines: *const palimpsest_line,
    count: usize,
) -> palimpsest_result {
    answer(|| {
        with_allocation(alloc, |taken| {
            // SAFETY: 1. is contract 1.
            let told = unsafe { told(lines, count, taken.range(Part::Code).len()) }?;
            taken.set_lines(told);
            Ok(())
        })
    })
}
