//! A program of memory operations: six bytes per operation, so that any list of bytes is a program, and stays one
//! without an operation.

use std::fmt;
use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;

/// Areas that a program can map, far enough apart that two never become one mapping.
pub(crate) const SLOTS: usize = 6;

/// Distance between two areas in bytes. Not a multiple of 2 MiB, so that some areas cross a border of a piece.
pub(crate) const STRIDE: usize = 43 << 17;

/// How long an area can become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Room {
    /// Less than a piece of 2 MiB: each page is looked at.
    #[default]
    Usual,
    /// Up to the next area, with one or two whole pieces.
    Wide,
}

impl Room {
    /// Returns the most bytes.
    pub(crate) const fn most(self) -> usize {
        match self {
            Self::Usual => 7 << 17,
            Self::Wide => STRIDE,
        }
    }
}

/// The last argument but one of a mapping that is [`Wide`](Room::Wide); seldom by chance.
pub(crate) const WIDE: u8 = 255;

/// One operation as bytes: what, area, and four arguments.
pub(crate) type Code = [u8; 6];

/// How much of an area an operation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it, as it was mapped.
    Whole,
    /// From and up to, in 256ths of the largest area; may reach past the mapped end.
    Part(u8, u8),
}

impl Extent {
    /// Returns the pages of an area that has `mapped` and could have `most`.
    pub(crate) fn pages(self, mapped: usize, most: usize) -> Range<usize> {
        match self {
            Self::Whole => 0..mapped,
            Self::Part(from, len) => {
                let first = usize::from(from) * most / 256;
                let len = (usize::from(len) * most / 256 / 4).max(1);
                first..(first + len).min(most)
            }
        }
    }
}

/// What a new mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Private and anonymous: what a freeze takes.
    Anonymous,
    /// Shared with children: no freeze may touch it.
    Shared,
    /// A private mapping of a file.
    File,
    /// Private and anonymous, refused if something is mapped there already.
    NoReplace,
}

/// When a child runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Before the parent goes on.
    First,
    /// After the parent has done this many more operations, which the child must not see.
    After(u8),
    /// Together with the parent.
    Beside,
}

/// How bytes get into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pen {
    /// The program stores whole pages.
    Pages,
    /// The program stores a few bytes in each page.
    Bytes,
    /// The kernel stores whole pages in a `pread`.
    Kernel,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Map {
        slot: usize,
        len: u8,
        prot: i32,
        kind: Kind,
        room: Room,
    },
    Unmap {
        slot: usize,
        extent: Extent,
    },
    Protect {
        slot: usize,
        extent: Extent,
        prot: i32,
    },
    /// `mremap` in place, without leave to move.
    Resize {
        slot: usize,
        len: u8,
    },
    /// `mremap` to another area, which it replaces.
    Move {
        slot: usize,
        to: usize,
        len: u8,
    },
    Advise {
        slot: usize,
        extent: Extent,
        advice: i32,
    },
    /// `madvise` at an address that does not begin a page.
    AdviseAskew {
        slot: usize,
        advice: i32,
    },
    Lock {
        slot: usize,
        extent: Extent,
    },
    Unlock {
        slot: usize,
        extent: Extent,
    },
    /// Moves the end of the data segment by this many pages.
    Break {
        pages: i8,
    },
    Write {
        slot: usize,
        extent: Extent,
        byte: u8,
        pen: Pen,
    },
    WriteBreak {
        byte: u8,
    },
    /// Allocates, grows, shrinks or frees one block of the C library's heap.
    Heap {
        block: usize,
        len: usize,
        byte: u8,
    },
    /// The next `body` operations are the child's.
    Fork {
        turn: Turn,
        body: usize,
    },
    /// Runs the rest of the program in a fresh image.
    Exec,
    Exit {
        code: u8,
    },
    /// Freezes the process, in the frozen run only.
    Freeze,
}

/// The advice that programs give. Linux does not know the last one.
const ADVICE: [i32; 27] = [
    libc::MADV_DONTNEED,
    libc::MADV_DONTNEED,
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_DONTFORK,
    libc::MADV_DOFORK,
    libc::MADV_DONTDUMP,
    libc::MADV_DODUMP,
    libc::MADV_WIPEONFORK,
    libc::MADV_KEEPONFORK,
    libc::MADV_MERGEABLE,
    libc::MADV_UNMERGEABLE,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
    MADV_GUARD_INSTALL,
    MADV_GUARD_REMOVE,
    1000,
];

/// `include/uapi/asm-generic/mman-common.h`, Linux 6.13.
pub(crate) const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

const PROTECTIONS: [i32; 8] = [
    libc::PROT_READ | libc::PROT_WRITE,
    libc::PROT_READ | libc::PROT_WRITE,
    libc::PROT_READ | libc::PROT_WRITE,
    libc::PROT_READ | libc::PROT_WRITE,
    libc::PROT_READ | libc::PROT_WRITE,
    libc::PROT_READ,
    libc::PROT_READ,
    libc::PROT_NONE,
];

const KINDS: [Kind; 7] =
    [Kind::Anonymous, Kind::Anonymous, Kind::Anonymous, Kind::Anonymous, Kind::Shared, Kind::File, Kind::NoReplace];

impl Op {
    /// Reads an operation. Every code is one; common operations have many codes.
    pub(crate) fn decode([what, slot, a, b, c, d]: Code) -> Self {
        let slot_of = |byte: u8| usize::from(byte) % SLOTS;
        let slot = slot_of(slot);
        let extent = if c % 3 == 0 { Extent::Whole } else { Extent::Part(a, b) };
        let prot = PROTECTIONS[usize::from(d) % PROTECTIONS.len()];
        let advice = ADVICE[usize::from(d) % ADVICE.len()];
        let pen = [Pen::Pages, Pen::Pages, Pen::Bytes, Pen::Kernel][usize::from(d) % 4];
        // Zero would look like fresh memory.
        let byte = d | 1;
        match what % 64 {
            0..8 => {
                let kind = KINDS[usize::from(b) % KINDS.len()];
                let room = if c == WIDE { Room::Wide } else { Room::Usual };
                Self::Map { slot, len: a, prot, kind, room }
            }
            8..11 => Self::Unmap { slot, extent },
            11..15 => Self::Protect { slot, extent, prot },
            15..18 => Self::Resize { slot, len: a },
            18..21 => Self::Move { slot, to: slot_of(b), len: a },
            21..31 => Self::Advise { slot, extent, advice },
            31 => Self::AdviseAskew { slot, advice },
            32 => Self::Lock { slot, extent },
            33 => Self::Unlock { slot, extent },
            34..36 => Self::Break { pages: a.cast_signed() },
            36..38 => Self::WriteBreak { byte },
            38..49 => Self::Write { slot, extent, byte, pen },
            49..53 => {
                Self::Heap { block: slot, len: usize::from(a) * [16, 257, 4096, 12_345][usize::from(b) % 4], byte }
            }
            53..59 => {
                let turn = [Turn::First, Turn::After(b % 8), Turn::After(b % 8), Turn::Beside][usize::from(a) % 4];
                Self::Fork { turn, body: usize::from(c) % 12 }
            }
            59 if a % 4 == 0 => Self::Exec,
            59 => Self::Exit { code: b % 64 },
            _ => Self::Freeze,
        }
    }
}

/// A program, as it is generated, shrunk, handed to the interpreter and printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Program(pub(crate) Vec<Code>);

impl Program {
    /// The operations.
    pub(crate) fn ops(&self) -> Vec<Op> {
        self.0.iter().copied().map(Op::decode).collect()
    }

    /// The form in which a program is handed on: hexadecimal, twelve digits per operation.
    pub(crate) fn to_hex(&self) -> String {
        to_hex(&self.0)
    }

    /// Reads what [`Program::to_hex`] wrote; `None` for anything else.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Vec<u8> = text.trim().as_bytes().chunks(2).map(byte).collect::<Option<_>>()?;
        let (codes, []) = bytes.as_chunks::<6>() else { return None };
        Some(Self(codes.to_vec()))
    }
}

/// As [`Program::to_hex`], of a part.
pub(crate) fn to_hex(codes: &[Code]) -> String {
    codes.iter().flatten().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a program of {} operations (PALIMPSEST_ORACLE_REPLAY={}):", self.0.len(), self.to_hex())?;
        self.ops().iter().enumerate().try_for_each(|(index, op)| writeln!(f, "  {index:3} {op:?}"))
    }
}

/// Areas with something in them, operations, a freeze, operations. `room` is an argument of `Map`: with [`WIDE`], most
/// areas have whole pieces of 2 MiB.
pub(crate) fn any_program(room: u8) -> impl Strategy<Value = Program> {
    // Private, anonymous, readable and writable, so that a freeze finds something.
    let area = (0..6_u8, any::<u8>(), any::<u8>())
        .prop_map(move |(slot, len, byte)| [[0, slot, len, 0, room, 0], [38, slot, 0, 0, 0, byte & !3]]);
    let parts = (vec(area, 1..5), vec(any::<Code>(), 0..8), vec(any::<Code>(), 0..30));
    parts.prop_map(|(areas, before, after)| {
        Program(areas.concat().into_iter().chain(before).chain([[63; 6]]).chain(after).collect())
    })
}

#[test]
fn programs_survive_being_handed_on() {
    let program = Program(vec![[0, 1, 2, 3, 4, 255], [255, 0, 9, 8, 7, 6]]);
    assert_eq!(Program::from_hex(&program.to_hex()), Some(program));
    assert_eq!(Program::from_hex("0"), None);
    assert_eq!(Program::from_hex("xy0102030405"), None);
}
