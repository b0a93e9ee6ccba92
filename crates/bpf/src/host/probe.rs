//! Helpers that read what may not exist, at unproven addresses.

use super::call::{Call, failed};
use crate::interp::{Answer, HelperError};

const EFAULT: i64 = 14;
const E2BIG: i64 = 7;
/// Bytes of text read in one go: on every machine a page begins at a multiple of it.
const PART: usize = 64;

/// `bpf_probe_read`: all of the bytes, or zeros and an error.
pub(super) fn read(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let mut bytes = alloc::vec![0; call.len(0)?];
    let is_there = call.peek_at(call.number(2), &mut bytes) == bytes.len();
    if !is_there {
        bytes.fill(0);
    }
    call.write(0, &bytes)?;
    if is_there { Ok(Answer::Value(0)) } else { failed(EFAULT) }
}

/// `bpf_probe_read_str`: text up to its zero, or what fits and a zero. Returns the length including the zero. The rest
/// of the room is zeroed.
pub(super) fn text(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let mut bytes = alloc::vec![0; call.len(0)?];
    if bytes.is_empty() {
        return failed(E2BIG);
    }
    let found = text_at(call, call.number(2), &mut bytes);
    bytes[found.unwrap_or(0)..].fill(0);
    call.write(0, &bytes)?;
    found.map_or_else(|| failed(EFAULT), |len| Ok(Answer::Value(len as u64 + 1)))
}

/// Copies a text up to its zero, or as much as fits before a zero. Returns its length, or `None` if it runs into memory
/// that is not mapped.
pub(super) fn text_at(call: &Call<'_>, address: u64, bytes: &mut [u8]) -> Option<usize> {
    let most = bytes.len() - 1;
    let mut len = 0;
    loop {
        let part = (PART - (address as usize).wrapping_add(len) % PART).min(most - len);
        if part == 0 {
            // What does not fit is cut off.
            return Some(most);
        }
        let got = call.peek_at(address.wrapping_add(len as u64), &mut bytes[len..len + part]);
        if let Some(end) = bytes[len..len + got].iter().position(|byte| *byte == 0) {
            return Some(len + end);
        }
        if got < part {
            return None;
        }
        len += part;
    }
}
