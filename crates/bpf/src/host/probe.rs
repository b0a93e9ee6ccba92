//! Helpers that read what may not exist, at unproven addresses.

use super::call::{Call, failed};
use crate::interp::{Answer, HelperError};

const EFAULT: i64 = 14;
const E2BIG: i64 = 7;
/// Bytes read in one go.
const AT_ONCE: usize = 512;
/// Bytes of text read in one go: on every machine a page begins at a multiple of it.
const PART: usize = 64;

/// `bpf_probe_read`: all of the bytes, or zeros and an error.
pub(super) fn read(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let (len, address) = (call.len(0)?, call.number(2));
    let mut piece = [0; AT_ONCE];
    let mut is_there = true;
    for at in (0..len).step_by(AT_ONCE) {
        let piece = &mut piece[..AT_ONCE.min(len - at)];
        is_there = is_there && call.peek_at(address.wrapping_add(at as u64), piece) == piece.len();
        if !is_there {
            break;
        }
        call.write_at(0, at, piece)?;
    }
    if is_there {
        return Ok(Answer::Value(0));
    }
    call.zero_from(0, 0)?;
    failed(EFAULT)
}

/// `bpf_probe_read_str`: text up to its zero, or what fits and a zero. Returns the length including the zero. The rest
/// of the room is zeroed.
pub(super) fn text(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let (len, address) = (call.len(0)?, call.number(2));
    let Some(most) = len.checked_sub(1) else { return failed(E2BIG) };
    let found = text_at(call, address, most, &mut |call, at, piece| call.write_at(0, at, piece))?;
    call.zero_from(0, found.unwrap_or(0))?;
    found.map_or_else(|| failed(EFAULT), |len| Ok(Answer::Value(len as u64 + 1)))
}

/// What gets a text piece by piece, each with its offset.
type Take<'a, 'c> = dyn FnMut(&mut Call<'c>, usize, &[u8]) -> Result<(), HelperError> + 'a;

/// Passes a text up to its zero, at most `most` bytes of it, piece by piece to `take`, each with its offset. Returns
/// its length, or `None` if it runs into memory that is not mapped.
pub(super) fn text_at<'c>(
    call: &mut Call<'c>,
    address: u64,
    most: usize,
    take: &mut Take<'_, 'c>,
) -> Result<Option<usize>, HelperError> {
    let mut piece = [0; PART];
    let mut len = 0;
    loop {
        let from = address.wrapping_add(len as u64);
        let part = (PART - from as usize % PART).min(most - len);
        if part == 0 {
            // What does not fit is cut off.
            return Ok(Some(most));
        }
        let piece = &mut piece[..part];
        let got = call.peek_at(from, piece);
        if let Some(end) = piece[..got].iter().position(|byte| *byte == 0) {
            take(call, len, &piece[..end])?;
            return Ok(Some(len + end));
        }
        if got < part {
            return Ok(None);
        }
        take(call, len, piece)?;
        len += part;
    }
}
