//! One place in code, and what it is to become.

use core::fmt;
use core::ops::Range;

use super::arch;

/// The longest instruction of any ISA that is known here, in bytes.
pub const MAX_SITE: usize = 15;

/// Some bytes of code: a whole instruction, or a jump and the dead bytes after it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code {
    bytes: [u8; MAX_SITE],
    len: u8,
}

impl Code {
    /// At most [`MAX_SITE`] bytes, and not none.
    pub fn new(code: &[u8]) -> Option<Self> {
        if code.is_empty() {
            return None;
        }
        let mut bytes = [0; MAX_SITE];
        bytes.get_mut(..code.len())?.copy_from_slice(code);
        Some(Self { bytes, len: code.len() as u8 })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().enumerate().try_for_each(|(index, byte)| match index {
            0 => write!(f, "{byte:02x}"),
            _ => write!(f, " {byte:02x}"),
        })
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({self})")
    }
}

/// What a thread that runs into a site's trap does in the place of the new instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// Where it goes on if the condition holds.
    pub target: usize,
    /// Where it goes on if not.
    pub otherwise: usize,
    /// A condition of the ISA's flags; see `arch`.
    pub condition: u8,
}

/// A place in code, and what it is to become. Both versions have the same length and differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// Where the first byte runs.
    pub address: usize,
    /// What is there.
    pub old: Code,
    /// The bytes that will stand there.
    pub new: Code,
    /// What traps do; none if the new instruction cannot be emulated.
    pub action: Option<Action>,
}

impl Site {
    /// Length in bytes; never zero.
    pub fn size(&self) -> usize {
        usize::from(self.old.len)
    }

    /// The first address behind it.
    pub fn end(&self) -> usize {
        self.address + self.size()
    }

    /// Whether bytes but the first change.
    pub fn changes_tail(&self) -> bool {
        self.old.as_slice()[1..] != self.new.as_slice()[1..]
    }

    /// From the first byte that changes to the last, as offsets.
    pub fn changed(&self) -> Range<usize> {
        let (old, new) = (self.old.as_slice(), self.new.as_slice());
        let differs = |index: &usize| old[*index] != new[*index];
        let first = (0..self.size()).find(differs).unwrap_or(0);
        let last = (0..self.size()).rfind(differs).map_or(first, |last| last + 1);
        first..last
    }

    /// Where a part of the site lies, and its bytes; none if that part does not change.
    pub fn part(&self, part: Part) -> Option<(usize, &[u8])> {
        match part {
            Part::Interim(byte) => Some((self.address, byte)),
            Part::Tail => self.changes_tail().then(|| (self.address + 1, &self.new.as_slice()[1..])),
            Part::First => Some((self.address, &self.new.as_slice()[..1])),
            Part::OldFirst => Some((self.address, &self.old.as_slice()[..1])),
            Part::Stored => {
                let stored = arch::stored(self.size(), self.changed());
                Some((self.address + stored.start, &self.new.as_slice()[stored]))
            }
            Part::Whole => Some((self.address, self.new.as_slice())),
        }
    }
}

/// What is written in one round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// What stands in the place of the first byte meanwhile: a trap, or an instruction that lets threads through.
    Interim(&'static [u8]),
    /// All bytes but the first.
    Tail,
    /// The first byte.
    First,
    /// The first byte as it was, after a failure.
    OldFirst,
    /// What changes, by one store: the site fits one ([`arch::fits_single_store`]).
    Stored,
    /// All bytes, while nobody runs them.
    Whole,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_from_the_first_to_the_last_byte_that_differs() {
        let changed = |old: &[u8], new: &[u8]| {
            let code = |bytes| Code::new(bytes).unwrap();
            Site { address: 0, old: code(old), new: code(new), action: None }.changed()
        };
        assert_eq!(changed(&[1, 2, 3, 4], &[9, 2, 3, 4]), 0..1);
        assert_eq!(changed(&[1, 2, 3, 4], &[1, 2, 3, 9]), 3..4);
        assert_eq!(changed(&[1, 2, 3, 4], &[1, 9, 3, 9]), 1..4);
        assert_eq!(changed(&[1, 2], &[1, 2]), 0..0);
    }
}
