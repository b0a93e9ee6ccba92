//! Lines of programs and allocations: any list, and what is right.

use std::ffi::CStr;
use std::ptr;

use super::{Input, Step, expect};
use crate::allocations::palimpsest_alloc;
use crate::lines::{palimpsest_alloc_set_lines, palimpsest_line, palimpsest_staged_set_lines};
use crate::programs::palimpsest_staged;
use crate::result::palimpsest_result::{PALIMPSEST_INVALID, PALIMPSEST_OK, PALIMPSEST_STALE};

/// Whose lines they are.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    Staged(palimpsest_staged),
    Alloc(palimpsest_alloc),
}

static FILES: [&CStr; 4] = [c"made.src", c"", c"other.src", c"\xff"];

fn any(input: &mut Input<'_>) -> Vec<palimpsest_line> {
    let (count, step) = (input.byte() % 6, input.byte() as u32 % 8);
    let mut offset = 0;
    let line = |_| {
        offset = if input.byte() == 0 { input.number() as u32 } else { offset + step };
        let file = match input.byte() % 64 {
            0 => FILES[3].as_ptr(),
            1 => ptr::null(),
            which => FILES[which % 3].as_ptr(),
        };
        let (line, column) = (input.number() as u32, input.byte() as u32);
        palimpsest_line { file, offset, line, column, reserved: u32::from(input.byte() == 1) }
    };
    (0..count).map(line).collect()
}

/// Tells any lines of code that has `len` bytes; of none if the handle names nothing.
pub(super) fn tell(owner: Owner, len: Option<usize>, input: &mut Input<'_>) -> Step {
    let set = |lines: *const palimpsest_line, count| match owner {
        // SAFETY: 1. null, or so many, whose files are strings.
        Owner::Staged(staged) => unsafe { palimpsest_staged_set_lines(staged, lines, count) },
        // SAFETY: 1. as above.
        Owner::Alloc(alloc) => unsafe { palimpsest_alloc_set_lines(alloc, lines, count) },
    };
    let there = |answer| if len.is_some() { answer } else { PALIMPSEST_STALE };
    expect("lines at null", set(ptr::null(), 1 + input.byte()), &[there(PALIMPSEST_INVALID)])?;
    let lines = any(input);
    let is_sorted = lines.is_sorted_by_key(|line| line.offset);
    let is_right = |line: &palimpsest_line| line.reserved == 0 && (line.offset as usize) < len.unwrap_or(0);
    let wanted = if is_sorted && lines.iter().all(is_right) { PALIMPSEST_OK } else { PALIMPSEST_INVALID };
    expect("lines", set(lines.as_ptr(), lines.len()), &[there(wanted)])
}
