//! Reads the fields of call frame information.

const WORD: usize = size_of::<u32>();
const POINTER: usize = size_of::<usize>();

/// Reads from the start of `data`; `None` at its end.
pub(super) struct Cursor<'a> {
    pub(super) data: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.data.split_at_checked(len)?;
        self.data = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        let bytes = self.take(WORD)?;
        bytes.try_into().ok().map(u32::from_ne_bytes)
    }

    pub(super) fn pointer(&mut self) -> Option<usize> {
        let bytes = self.take(POINTER)?;
        bytes.try_into().ok().map(usize::from_ne_bytes)
    }

    /// Returns the text up to the next zero byte.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.data.iter().position(|&byte| byte == 0)?;
        let text = self.take(len)?;
        self.take(1)?;
        Some(text)
    }

    /// Returns the length of the LEB128 number that comes next: all bytes but its last have the highest bit set.
    pub(super) fn leb128_len(&self) -> Option<usize> {
        Some(self.data.iter().position(|byte| byte & 0x80 == 0)? + 1)
    }

    pub(super) fn leb128(&mut self) -> Option<usize> {
        let bytes = self.take(self.leb128_len()?)?;
        bytes.iter().rev().try_fold(0_usize, |value, byte| Some(value.checked_mul(0x80)? | usize::from(byte & 0x7f)))
    }
    /// Returns the LEB128 number that comes next, and stays before it.
    pub(super) fn peek_leb128(&self) -> Option<usize> {
        Cursor { data: self.data }.leb128()
    }
}
