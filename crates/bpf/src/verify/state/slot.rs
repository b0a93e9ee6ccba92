//! What is known of 8 bytes of the stack.

use super::written::Written;
use super::{Content, Value};

/// Bytes of a slot of the stack.
pub(super) const SLOT: usize = 8;

/// 8 aligned bytes of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// Numbers, of which some bytes were written.
    Bytes(Written),
    /// A register that was stored as a whole.
    Whole(Content),
    /// Half of a dynptr.
    Dynptr(Dynptr),
}

/// What a slot or a register takes in a state that is kept: the verifier's memory is bounded by their number.
const _: () = assert!(size_of::<Slot>() <= 96 && size_of::<Content>() <= 96);

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

    /// Whether every program that is right with what is known here is right with `other`, but for links.
    pub(super) fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(Written::NOTHING), _) => true,
            (Self::Bytes(written), Self::Bytes(other)) => written.includes(other),
            (Self::Bytes(written), Self::Whole(content)) => {
                content.number().is_some_and(|number| written.includes(&Written::of(number)))
            }
            (Self::Whole(content), Self::Whole(other)) => content.value.includes(&other.value),
            (Self::Dynptr(dynptr), Self::Dynptr(other)) => dynptr == other,
            _ => false,
        }
    }

    /// Whether all of it is numbers.
    pub(super) fn is_number(&self) -> bool {
        match self {
            Self::Bytes(written) => written.has(u8::MAX),
            Self::Whole(content) => content.number().is_some(),
            Self::Dynptr(_) => false,
        }
    }

    /// Returns what includes both, and does not change again and again as `other` does; made as `other` was.
    pub(super) fn widened(&self, other: &Self) -> Self {
        let of = |content: &Content| content.number().map(Written::of);
        match (self, other) {
            (Self::Whole(content), Self::Whole(other)) => match content.widened(other) {
                Content { value: Value::Unset, .. } => Self::UNSET,
                content => Self::Whole(content),
            },
            (Self::Bytes(written), Self::Bytes(other)) => Self::Bytes(written.widened(other)),
            (Self::Bytes(written), Self::Whole(other)) => {
                of(other).map_or(Self::UNSET, |other| Self::Bytes(written.widened(&other)))
            }
            (Self::Whole(content), Self::Bytes(other)) => {
                of(content).map_or(Self::UNSET, |written| Self::Bytes(written.widened(other)))
            }
            (kept, other) if kept.includes(other) => *kept,
            _ => Self::UNSET,
        }
    }
}
