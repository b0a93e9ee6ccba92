//! A place in code, and its change.

use core::fmt;
use core::ops::Range;

use super::arch;

/// The longest instruction of any ISA supported here, in bytes.
pub const MAX_SITE: usize = 15;

/// Some bytes of code: a whole instruction, or a jump and the dead bytes after it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code {
    bytes: [u8; MAX_SITE],
    len: u8,
}

impl Code {
    /// Copies `code`; none if it is empty or longer than [`MAX_SITE`].
    pub fn new(code: &[u8]) -> Option<Self> {
        if code.is_empty() {
            return None;
        }
        let mut bytes = [0; MAX_SITE];
        bytes.get_mut(..code.len())?.copy_from_slice(code);
        Some(Self { bytes, len: code.len() as u8 })
    }

    /// Returns the bytes.
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

/// What a thread that runs into a site's trap does instead of the new instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// Where it continues if the condition holds.
    pub target: usize,
    /// Where it continues if not.
    pub otherwise: usize,
    /// A condition of the ISA's flags; see `arch`.
    pub condition: u8,
}

/// A place in code, and its change. Both versions have the same length and differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// The address of the first byte.
    pub address: usize,
    /// The bytes before.
    pub old: Code,
    /// The bytes after.
    pub new: Code,
    /// What traps do; `None` if the new instruction cannot be emulated.
    pub action: Option<Action>,
}

impl Site {
    /// Returns the change back, which no trap stands for.
    pub fn reversed(&self) -> Self {
        Self { old: self.new, new: self.old, action: None, ..*self }
    }

    /// Returns the length in bytes; never zero.
    pub fn size(&self) -> usize {
        usize::from(self.old.len)
    }

    /// Returns the first address behind the site.
    pub fn end(&self) -> usize {
        self.address + self.size()
    }

    /// Returns whether bytes other than the first change.
    pub fn changes_tail(&self) -> bool {
        self.old.as_slice()[1..] != self.new.as_slice()[1..]
    }

    /// Returns the offsets from the first byte that changes to the last.
    pub fn changed(&self) -> Range<usize> {
        let (old, new) = (self.old.as_slice(), self.new.as_slice());
        let differs = |index: &usize| old[*index] != new[*index];
        let first = (0..self.size()).find(differs).unwrap_or(0);
        let last = (0..self.size()).rfind(differs).map_or(first, |last| last + 1);
        first..last
    }

    /// Returns the address of a part of the site, and its bytes; `None` if that part does not change.
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

/// The part of each site that is written in one round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The first byte, by something else meanwhile: a trap, or an instruction that lets threads through.
    Interim(&'static [u8]),
    /// All bytes but the first.
    Tail,
    /// The first byte.
    First,
    /// The first byte as it was, after a failure.
    OldFirst,
    /// The bytes that change, by one store: the site fits one ([`arch::fits_single_store`]).
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
