//! What a freeze and a survey tell: ranges and text agree with the figures.

use std::ffi::CStr;
use std::ptr;

use super::{Exactly, Step, elsewhere, expect};
use crate::freeze::palimpsest_freeze_report;
use crate::reports::{
    PALIMPSEST_SKIP_NOT, PALIMPSEST_SKIP_UNPROFITABLE, palimpsest_report_get_range, palimpsest_report_range,
    palimpsest_report_text,
};
use crate::result::palimpsest_result::{PALIMPSEST_INVALID, PALIMPSEST_NOT_FOUND, PALIMPSEST_OK};

/// Returns this thread's last report in words.
fn text() -> String {
    // SAFETY: never null, and valid until this thread's next report.
    unsafe { CStr::from_ptr(palimpsest_report_text()) }.to_string_lossy().into_owned()
}

/// Checks what is told of the freeze or survey that this thread has just made, which has filled in `len` bytes of
/// `report`; if those are all figures.
pub(super) fn check(report: &Exactly, len: usize) -> Step {
    if len < size_of::<palimpsest_freeze_report>() {
        return Ok(());
    }
    // SAFETY: as long as that, and written.
    let report = unsafe { report.as_ptr::<palimpsest_freeze_report>().read() };
    let mut bytes = [0; 2];
    for index in 0.. {
        let told = Exactly::of(0_usize, size_of::<palimpsest_report_range>());
        // SAFETY: 1. as long as it says.
        let answer = unsafe { palimpsest_report_get_range(index, told.as_ptr()) };
        expect("range", answer, &[if index < report.ranges { PALIMPSEST_OK } else { PALIMPSEST_NOT_FOUND }])?;
        if answer != PALIMPSEST_OK {
            break;
        }
        // SAFETY: as long as that, and written.
        let told = unsafe { told.as_ptr::<palimpsest_report_range>().read() };
        let is_known = (PALIMPSEST_SKIP_NOT..=PALIMPSEST_SKIP_UNPROFITABLE).contains(&told.skip);
        if !is_known || told.len == 0 || told.start.checked_add(told.len).is_none() {
            return Err(format!("range {index} is {told:x?}"));
        }
        bytes[usize::from(told.skip != PALIMPSEST_SKIP_NOT)] += told.bytes;
    }
    if bytes != [report.frozen, report.skipped] || report.reserved != 0 {
        return Err(format!("ranges have {bytes:?} bytes: {report:?}"));
    }
    // SAFETY: 1. null.
    let answer = unsafe { palimpsest_report_get_range(0, ptr::null_mut()) };
    expect("range to null", answer, &[PALIMPSEST_INVALID])?;
    let others = elsewhere(text);
    if text().contains("kB") && others.is_empty() { Ok(()) } else { Err(format!("{:?}, {others:?}", text())) }
}
