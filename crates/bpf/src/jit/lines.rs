//! Lines of code: a CPU fetches and predicts line by line.
//!
//! On x86-64 (an EPYC of family 26) a loop of 32 bytes that lies across two lines takes up to 1.5 times as long as one
//! that lies in one (`docs/records/2026-11-23-bpf-speed`).

/// How an architecture's code lies in lines.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    /// Bytes of a line: a power of 2.
    pub(super) len: u32,
    /// Fills room with instructions that do nothing, as few as possible.
    pub(super) idle: fn(&mut [u8]),
}

impl Lines {
    /// Returns the most bytes that can be missing to the next line, if lines start where they may.
    pub(super) const fn room(self) -> u32 {
        self.len - 1
    }

    /// Returns how many bytes to leave free at `place`, so that a loop of `len` bytes that comes next lies in one line:
    /// none if it is longer than a line.
    pub(super) const fn wanted(self, place: u32, len: u32) -> u32 {
        let used = place % self.len;
        if len > self.len || used + len <= self.len { 0 } else { self.len - used }
    }
}
