//! A program of what threads do: five bytes per operation, so that any list of bytes is a program, and stays one
//! without an operation. Each operation belongs to one of the threads, which does its own in order.

use std::fmt;

/// Threads of a program, besides the one that takes slices.
pub(crate) const THREADS: usize = 3;

/// One operation as bytes: whose, what, and three arguments.
pub(crate) type Code = [u8; 5];

/// A part of a thread's memory: where it begins, in 256ths, and how many pages it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) from: u8,
    pub(crate) pages: u8,
}

/// An operation of a thread on memory that no other thread uses, except for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Writes a word to each page.
    Write(Part),
    /// Adds one to a word of each page, so many times one after the other, and looks each time whether the last
    /// addition is there.
    Spin { part: Part, turns: u8 },
    /// `madvise(MADV_DONTNEED)`.
    Discard(Part),
    /// Takes the right to write away, reads, and gives it back.
    Protect(Part),
    /// Moves the second area: there, or back (`mremap`).
    Move,
    /// Maps fresh memory over a part of the first area.
    Replace(Part),
    /// Advises that children get no copy of a part of the first area, or that they do.
    Keep { part: Part, forked: bool },
    /// A child looks at all memory of the thread, writes to some of it, and looks again.
    Fork(Part),
    /// Another thread writes to a part, and ends.
    Start(Part),
    /// Adds to each of the counters that all threads share.
    Count(u8),
    /// Looks at all memory of the thread.
    Check,
    /// Takes a slice, as whoever waits does.
    Slice,
}

impl Op {
    /// Reads an operation. Every code is one; common operations have many codes.
    pub(crate) fn decode([_, what, from, pages, more]: Code) -> Self {
        let part = Part { from, pages };
        match what % 32 {
            0..5 => Self::Write(part),
            5..11 => Self::Spin { part, turns: more },
            11..14 => Self::Discard(part),
            14..16 => Self::Protect(part),
            16..18 => Self::Move,
            18..20 => Self::Replace(part),
            20 => Self::Keep { part, forked: more % 2 == 0 },
            21..25 => Self::Fork(part),
            25 | 26 => Self::Start(part),
            27 | 28 => Self::Count(more),
            29 | 30 => Self::Check,
            _ => Self::Slice,
        }
    }
}

/// A program, as it is generated, shrunk, handed to the interpreter and printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Program(pub(crate) Vec<Code>);

impl Program {
    /// Returns the operations of a thread.
    pub(crate) fn of(codes: &[Code], thread: usize) -> Vec<Op> {
        codes.iter().filter(|code| usize::from(code[0]) % THREADS == thread).copied().map(Op::decode).collect()
    }

    /// The form in which a program is handed on: hexadecimal, ten digits per operation.
    pub(crate) fn to_hex(&self) -> String {
        self.0.iter().flatten().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`Program::to_hex`] wrote; `None` for anything else.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Vec<u8> = text.trim().as_bytes().chunks(2).map(byte).collect::<Option<_>>()?;
        let (codes, []) = bytes.as_chunks::<5>() else { return None };
        Some(Self(codes.to_vec()))
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a program of {} operations (PALIMPSEST_THREADS_REPLAY={}):", self.0.len(), self.to_hex())?;
        (0..THREADS).try_for_each(|thread| {
            let ops = Self::of(&self.0, thread);
            ops.iter().enumerate().try_for_each(|(index, op)| writeln!(f, "  thread {thread}, {index:3} {op:?}"))
        })
    }
}

#[test]
fn programs_survive_being_handed_on() {
    let program = Program(vec![[0, 1, 2, 3, 4], [255, 0, 9, 8, 7]]);
    assert_eq!(Program::from_hex(&program.to_hex()), Some(program));
    assert_eq!(Program::from_hex("0"), None);
    assert_eq!(Program::from_hex("xy01020304"), None);
}
