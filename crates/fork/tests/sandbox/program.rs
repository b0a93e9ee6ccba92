//! A program of what sandboxes do: four bytes per operation, so that any list of bytes is a program, and stays one
//! without an operation.

use std::fmt;

/// One operation as bytes: what, and three arguments.
pub(crate) type Code = [u8; 4];

/// What a seccomp filter does to a call that it forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Punishment {
    /// The process ends by SIGSYS.
    Kill,
    /// The call fails with EPERM.
    Refuse,
}

/// The calls that a filter forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forbidden {
    /// Opening files.
    Opening,
    /// Making memory files.
    MemoryFiles,
    /// Reading and writing files at a place.
    AtPlaces,
    /// Asking for memory policies.
    Policies,
    /// Looking into other processes.
    Others,
}

/// A limit that is set to nothing, or nearly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// `RLIMIT_NOFILE` 0, as OpenSSH's sandbox has it.
    Descriptors,
    /// `RLIMIT_FSIZE` 0.
    FileSize,
    /// `RLIMIT_CORE` 0.
    Core,
}

/// What becomes of all signals at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signals {
    Default,
    Ignore,
    Block,
}

/// A namespace of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// For children: the next one is its process 1.
    Pid,
    Mount,
    /// Gives the process a user without a name.
    User,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Stores to some pages of the memory.
    Write {
        page: u8,
        pages: u8,
        byte: u8,
    },
    /// Erases the secret as a program does that wants it gone.
    Erase,
    /// `madvise(MADV_DONTNEED)` of some pages.
    Discard {
        page: u8,
        pages: u8,
    },
    /// `mremap` to another length, in place.
    Resize {
        pages: u8,
    },
    /// `chroot` to an empty folder, and `chdir` there.
    Jail,
    /// Another user, without groups.
    LeaveRoot,
    Filter {
        forbidden: Forbidden,
        punishment: Punishment,
    },
    Limit(Limit),
    Signals(Signals),
    /// An io_uring, with or without a buffer in the arena.
    Ring {
        pins: bool,
    },
    Unshare(Namespace),
    /// Closes all descriptors but the standard ones.
    CloseAll,
    /// Puts descriptors of the program's own at the numbers from 100 on.
    Crowd,
    /// Starts a thread that sleeps; does nothing if there is one.
    Thread,
    /// Freezes the process, in the frozen run only.
    Freeze,
    /// Freezes the arena, in the frozen run only.
    FreezeArena,
    /// The next `body` operations are the child's, which the parent waits for.
    Fork {
        body: u8,
    },
    /// Runs the rest of the program in a fresh image.
    Exec,
    /// Tries everything that a process may want and should not get.
    Probe,
}

impl Op {
    /// Reads an operation. Every code is one; common operations have many codes.
    pub(crate) fn decode([what, a, b, c]: Code) -> Self {
        match what % 32 {
            0..4 => Self::Write { page: a, pages: b % 32, byte: c | 1 },
            4..6 => Self::Erase,
            6..8 => Self::Discard { page: a, pages: b % 32 },
            8 => Self::Resize { pages: a },
            9 => Self::Jail,
            10 | 11 => Self::LeaveRoot,
            12..15 => Self::Filter {
                forbidden: [
                    Forbidden::Opening,
                    Forbidden::MemoryFiles,
                    Forbidden::AtPlaces,
                    Forbidden::Policies,
                    Forbidden::Others,
                ][usize::from(a) % 5],
                punishment: [Punishment::Kill, Punishment::Refuse][usize::from(b) % 2],
            },
            15 => {
                Self::Limit([Limit::Descriptors, Limit::Descriptors, Limit::FileSize, Limit::Core][usize::from(a) % 4])
            }
            16 => Self::Signals([Signals::Default, Signals::Ignore, Signals::Block][usize::from(a) % 3]),
            17 => Self::Ring { pins: a % 2 == 1 },
            18 => Self::Unshare([Namespace::Pid, Namespace::Mount, Namespace::User][usize::from(a) % 3]),
            19 => Self::CloseAll,
            20 => Self::Crowd,
            21 => Self::Thread,
            22..24 => Self::Freeze,
            24 => Self::FreezeArena,
            25..29 => Self::Fork { body: a % 8 },
            29 if a % 2 == 0 => Self::Exec,
            _ => Self::Probe,
        }
    }
}

/// A program, as it is generated, shrunk, handed to the interpreter and printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Program(pub(crate) Vec<Code>);

impl Program {
    /// The form in which a program is handed on: hexadecimal, eight digits per operation.
    pub(crate) fn to_hex(&self) -> String {
        to_hex(&self.0)
    }

    /// Reads what [`Program::to_hex`] wrote; `None` for anything else.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Vec<u8> = text.trim().as_bytes().chunks(2).map(byte).collect::<Option<_>>()?;
        let (codes, []) = bytes.as_chunks::<4>() else { return None };
        Some(Self(codes.to_vec()))
    }
}

/// As [`Program::to_hex`], of a part.
pub(crate) fn to_hex(codes: &[Code]) -> String {
    codes.iter().flatten().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a program of {} operations (PALIMPSEST_SANDBOX_REPLAY={}):", self.0.len(), self.to_hex())?;
        self.0.iter().enumerate().try_for_each(|(index, code)| writeln!(f, "  {index:3} {:?}", Op::decode(*code)))
    }
}

#[test]
fn programs_survive_being_handed_on() {
    let program = Program(vec![[0, 1, 2, 3], [255, 0, 9, 8]]);
    assert_eq!(Program::from_hex(&program.to_hex()), Some(program));
    assert_eq!(Program::from_hex("0"), None);
    assert_eq!(Program::from_hex("xy010203"), None);
}
