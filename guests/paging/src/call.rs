//! What one CPU tells another.

/// Why a CPU interrupts another. The architecture adds the number to its first interrupt for calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// A flush is waiting.
    Flush,
    /// Drop fetched code.
    Synchronize,
    /// There is work.
    Wake,
}

impl Call {
    const ALL: [Self; 3] = [Self::Flush, Self::Synchronize, Self::Wake];

    pub(crate) const fn number(self) -> u32 {
        self as u32
    }

    /// Returns the call with the number `number`.
    pub(crate) fn of(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}
