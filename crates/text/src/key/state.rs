//! On and off.

use std::fmt;

/// A state of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Branches behave as if the key were `false`.
    Off,
    /// Branches behave as if the key were `true`.
    On,
}

impl State {
    /// Returns whether the state is [`State::On`].
    pub const fn is_on(self) -> bool {
        matches!(self, Self::On)
    }

    pub(super) const fn from_on(is_on: bool) -> Self {
        if is_on { Self::On } else { Self::Off }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "on" } else { "off" })
    }
}
