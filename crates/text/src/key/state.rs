//! On and off.

use std::fmt;

/// What a key can be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Branches are passed as if the key were `false`.
    Off,
    /// Branches are passed as if the key were `true`.
    On,
}

impl State {
    /// Whether it is [`State::On`].
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
