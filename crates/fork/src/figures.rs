//! What a process tells of its frozen and gathered memory to others who may read its memory, as `palimpsest top` does.
//!
//! No file is opened, nothing is sent or shared. The figures are words in the process's own memory, which the kernel
//! lets others read if they could attach a debugger (`ptrace(2)`, "Ptrace access mode checking").
//!
//! Readers find them by a note in each object that contains this library (`PT_NOTE`, owner [`NOTE_OWNER`], type
//! [`NOTE_TYPE`]). Its description is a [`Note`]: where a pointer to the process's tables is (null before the first
//! freeze), and where the words are in the tables. The words begin with a sign, the version and their number. New words
//! are added at the end; a new version means that old words changed. All times are CPU time but one, which is
//! wall-clock time.
//!
//! From the 64th on, forks that follow each other within a tenth of a second are told together, up to 32 at a time.
//!
//! A writer makes the word [`SEQUENCE`] odd, changes others, and makes it even again. A reader reads it, all words, and
//! it again, with one system call each; the words belong together if both values are the same and even.

use std::time::Duration;

use crate::worth::Worth;

/// The owner of the note.
pub const NOTE_OWNER: &str = "Palimpsest";
/// The type of the note.
pub const NOTE_TYPE: u32 = 0x4b52_4f46;
/// The version of the note and of the words.
pub const VERSION: u32 = 1;
/// Words of this version.
pub const WORDS: usize = Word::Beside as usize + 1;
/// Bytes per word.
pub const WORD: usize = size_of::<u64>();
/// The index of the sequence number.
pub const SEQUENCE: usize = Word::Sequence as usize;

/// `PALIFORK`, as bytes in memory on a little-endian machine.
const SIGN: u64 = u64::from_le_bytes(*b"PALIFORK");

/// What each word holds. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Word {
    Sign,
    /// The version in the upper half, the number of words in the lower.
    Layout,
    Sequence,
    /// The process id of the last writer, in its own namespace.
    Process,
    Rounds,
    /// 1 once everything was thawed.
    Over,
    FrozenBytes,
    Extents,
    HotPieces,
    Forks,
    Repairs,
    Debt,
    Clean,
    Price,
    Once,
    Repairing,
    PerFork,
    Saved,
    Lost,
    /// 1 while a freeze in slices is under way.
    UnderWay,
    Planned,
    Longest,
    GatheredBytes,
    Beside,
}

/// The first two words.
pub(crate) const HEAD: [(Word, u64); 2] =
    [(Word::Sign, SIGN), (Word::Layout, (VERSION as u64) << u32::BITS | WORDS as u64)];

/// The description of the note: how to find the words from its own address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// From the start of the description to the pointer, modulo 2⁶⁴.
    pub distance: i32,
    /// From the address in the pointer to the first word.
    pub offset: u32,
}

impl Note {
    /// Length of a description in bytes.
    pub const LEN: usize = 12;

    /// Parses a description, which may be anybody's.
    ///
    /// # Errors
    ///
    /// It is too short, or another version's.
    pub fn read(description: &[u8]) -> Result<Self, FiguresError> {
        let word = |index: usize| Some(u32::from_ne_bytes(description.get(index * 4..)?.first_chunk().copied()?));
        match (word(0), word(1), word(2)) {
            (Some(VERSION), Some(distance), Some(offset)) => Ok(Self { distance: distance.cast_signed(), offset }),
            (Some(version), ..) if version != VERSION => Err(FiguresError::Version { version }),
            _ => Err(FiguresError::Short { bytes: description.len() }),
        }
    }
}

/// Why figures cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FiguresError {
    /// They were overwritten, or are somewhere else.
    #[error("there are no figures where its note says")]
    Sign,
    /// Another version of this library wrote them.
    #[error("its figures are of version {version}, and this program knows {VERSION}: use the one that came with it")]
    Version {
        /// The version found.
        version: u32,
    },
    /// There are too few bytes.
    #[error("its figures have {bytes} bytes, which are too few")]
    Short {
        /// How many there are.
        bytes: usize,
    },
}

/// The figures of a process at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Figures {
    /// The process id of the last writer, in its own PID namespace: of the process, or of its parent before the fork.
    pub process: u64,
    /// Freezes and repairs, including those of the processes that it was forked from.
    pub rounds: u64,
    /// Whether everything was thawed since the last freeze.
    pub is_over: bool,
    /// Bytes of address space that show frozen memory, as of the last round.
    pub frozen_bytes: u64,
    /// Sealed files that are mapped.
    pub extents: u64,
    /// Pieces of up to 2 MiB that are written to all the time, and left alone for now.
    pub hot_pieces: u64,
    /// Forks since this process began, or froze first.
    pub forks: u64,
    /// Repairs in that time.
    pub repairs: u64,
    /// The time that forks took beyond a clean fork, since the last freeze or repair.
    pub debt: Duration,
    /// A fork when nothing was written; zero if there was none.
    pub clean: Duration,
    /// The debt at which a repair follows, or a look at what it would take.
    pub price: Duration,
    /// Time of freezes, and of gathering.
    pub once: Duration,
    /// Time of repairs, of looks whether one pays, and of slices between forks.
    pub repairing: Duration,
    /// What each fork is expected to save now, by what is frozen and what is in huge pages.
    pub per_fork: Duration,
    /// What forks have saved in all.
    pub saved: Duration,
    /// What forks have taken beyond what they would have without freezing, in all.
    pub lost: Duration,
    /// Whether a freeze in slices is under way.
    pub is_under_way: bool,
    /// Bytes that the last freeze in slices was to freeze.
    pub planned_bytes: u64,
    /// The longest of its slices in wall-clock time: how long the process was held up at most.
    pub longest: Duration,
    /// Bytes that were put into huge pages where they are, or were in some when they were to be, as far as known: some
    /// may be split or unmapped since.
    pub gathered_bytes: u64,
    /// The part of `once` and `repairing` that [deputies](crate::Errands::Deputy) took, while the process went on.
    pub beside: Duration,
}

impl Figures {
    /// Parses words that were read from a process; they may hold anything.
    ///
    /// # Errors
    ///
    /// See [`FiguresError`].
    pub fn read(bytes: &[u8]) -> Result<Self, FiguresError> {
        let of = |word: Word| {
            let start = word as usize * WORD;
            bytes.get(start..).and_then(|rest| rest.first_chunk()).map(|word| u64::from_ne_bytes(*word))
        };
        let short = || FiguresError::Short { bytes: bytes.len() };
        if of(Word::Sign).ok_or_else(short)? != SIGN {
            return Err(FiguresError::Sign);
        }
        let layout = of(Word::Layout).ok_or_else(short)?;
        // Upper and lower half.
        let (version, words) = ((layout >> u32::BITS) as u32, layout as u32 as usize);
        if version != VERSION {
            return Err(FiguresError::Version { version });
        }
        if words < WORDS {
            return Err(FiguresError::Short { bytes: words * WORD });
        }
        let number = |word| of(word).ok_or_else(short);
        let time = |word| number(word).map(Duration::from_nanos);
        Ok(Self {
            process: number(Word::Process)?,
            rounds: number(Word::Rounds)?,
            is_over: number(Word::Over)? != 0,
            frozen_bytes: number(Word::FrozenBytes)?,
            extents: number(Word::Extents)?,
            hot_pieces: number(Word::HotPieces)?,
            forks: number(Word::Forks)?,
            repairs: number(Word::Repairs)?,
            debt: time(Word::Debt)?,
            clean: time(Word::Clean)?,
            price: time(Word::Price)?,
            once: time(Word::Once)?,
            repairing: time(Word::Repairing)?,
            per_fork: time(Word::PerFork)?,
            saved: time(Word::Saved)?,
            lost: time(Word::Lost)?,
            is_under_way: number(Word::UnderWay)? != 0,
            planned_bytes: number(Word::Planned)?,
            longest: time(Word::Longest)?,
            gathered_bytes: number(Word::GatheredBytes)?,
            beside: time(Word::Beside)?,
        })
    }

    /// Returns what freezing and gathering took, and what each fork is expected to save.
    pub const fn worth(&self) -> Worth {
        Worth { once: self.once, per_fork: self.per_fork }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<u64> {
        let mut words = vec![0; WORDS];
        for (word, value) in HEAD {
            words[word as usize] = value;
        }
        words[Word::Forks as usize] = 7;
        words[Word::Lost as usize] = 9;
        words[Word::Longest as usize] = 8;
        words[Word::GatheredBytes as usize] = 6;
        words[Word::Beside as usize] = 5;
        words
    }

    fn read(words: &[u64]) -> Result<Figures, FiguresError> {
        Figures::read(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_read_and_later_ones_are_no_matter() {
        let expected = Figures {
            forks: 7,
            lost: Duration::from_nanos(9),
            longest: Duration::from_nanos(8),
            gathered_bytes: 6,
            beside: Duration::from_nanos(5),
            ..Figures::default()
        };
        assert_eq!(read(&words()), Ok(expected));
        let mut more = words();
        more.push(u64::MAX);
        more[Word::Layout as usize] += 1;
        assert_eq!(read(&more), Ok(expected));
    }

    #[test]
    fn anything_else_is_refused() {
        for length in 0..WORDS {
            assert_eq!(read(&words()[..length]), Err(FiguresError::Short { bytes: length * WORD }));
        }
        let changed = |word: Word, value: u64| {
            let mut words = words();
            words[word as usize] = value;
            read(&words)
        };
        assert_eq!(changed(Word::Sign, 0), Err(FiguresError::Sign));
        assert_eq!(changed(Word::Layout, 2 << 32 | 99), Err(FiguresError::Version { version: 2 }));
        assert!(matches!(changed(Word::Layout, 1 << 32), Err(FiguresError::Short { .. })));
        changed(Word::Once, u64::MAX).expect("any number of nanoseconds");
    }

    #[test]
    fn a_note_is_read_by_its_version() {
        let note = |words: &[u32]| Note::read(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>());
        assert_eq!(note(&[VERSION, (-8_i32).cast_unsigned(), 64]), Ok(Note { distance: -8, offset: 64 }));
        assert_eq!(note(&[VERSION, 0]), Err(FiguresError::Short { bytes: 8 }));
        assert_eq!(note(&[VERSION + 1]), Err(FiguresError::Version { version: VERSION + 1 }));
        assert_eq!(note(&[]), Err(FiguresError::Short { bytes: 0 }));
    }
}
