//! What is known of 8 bytes of the stack.

use super::Value;
use super::written::Written;

/// Bytes of a slot of the stack.
pub(super) const SLOT: usize = 8;

/// 8 aligned bytes of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// Numbers, of which some bytes were written.
    Bytes(Written),
    /// A register that was stored as a whole.
    Whole(Value),
    /// Half of a dynptr.
    Dynptr(Dynptr),
}

/// A dynptr: memory whose accesses a helper checks when the program runs. Two slots that nobody else writes or reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) struct Dynptr {
    /// The instruction that made it.
    pub(in crate::verify) id: u32,
    pub(in crate::verify) of: Backing,
    pub(super) half: Half,
}

/// What memory a dynptr stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Backing {
    /// Part of a value of a map, which lives as long as the map.
    Value,
    /// A record; or nothing, if there was no room. Given back in both cases.
    Record,
}

/// Which of its two slots it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    Low,
    High,
}

/// Bytes of a dynptr.
pub(in crate::verify) const DYNPTR: i64 = 16;

impl Slot {
    pub(super) const UNSET: Self = Self::Bytes(Written::NOTHING);

    pub(super) fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(Written::NOTHING), _) => true,
            (Self::Bytes(written), Self::Bytes(other)) => written.includes(other),
            (Self::Bytes(written), Self::Whole(Value::Scalar(number))) => written.includes(&Written::of(*number)),
            (Self::Whole(value), Self::Whole(other)) => value.includes(other),
            (Self::Dynptr(dynptr), Self::Dynptr(other)) => dynptr == other,
            _ => false,
        }
    }

    pub(super) fn widened(&self, other: &Self) -> Self {
        match (self, other) {
            (kept, other) if kept.includes(other) => *kept,
            (Self::Whole(value), Self::Whole(other)) => match value.widened(other) {
                Value::Unset => Self::UNSET,
                value => Self::Whole(value),
            },
            (Self::Bytes(written), Self::Bytes(other)) => Self::Bytes(written.widened(other)),
            (Self::Bytes(written), Self::Whole(Value::Scalar(number))) => {
                Self::Bytes(written.widened(&Written::of(*number)))
            }
            _ => Self::UNSET,
        }
    }
}
