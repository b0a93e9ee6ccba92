//! Stores that are checked when the program runs, since the verifier could not prove them.

/// What a store is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Check {
    pub(super) bounds: Bounds,
    /// What the gauge becomes if it is outside.
    pub(super) ended: i64,
}

/// Memory that a store must not leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bounds {
    /// The context, whose address the program's own function keeps.
    Context {
        /// Bytes.
        len: u64,
    },
    Fixed {
        /// Where it begins.
        start: u64,
        /// Bytes.
        len: u64,
    },
}

impl Bounds {
    /// Returns the greatest offset at which `size` bytes are inside; `None` if they never are.
    pub(super) const fn last(self, size: usize) -> Option<u64> {
        let (Self::Context { len } | Self::Fixed { len, .. }) = self;
        len.checked_sub(size as u64)
    }
}
