//! Filters of classic BPF, as `tcpdump -dd` prints them, translated to eBPF.
//!
//! A [`Filter`] is checked when it is made: its jumps stay inside, its last instruction returns, and every operation is
//! known. [`Filter::translate`] makes eBPF of it, which the verifier accepts for the context of a [`Packets`] buffer.
//! The result is how many bytes of a packet to keep, 0 for none, as of libpcap's own interpreter.
//!
//! ```
//! use palimpsest_bpf::Code;
//! use palimpsest_bpf::classic::{Filter, Packets, contract};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // tcpdump -y EN10MB -ddd ip
//! let filter = Filter::parse("4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n")?;
//! let verified = contract().verify(Code::new(&filter.translate())?)?;
//! # #[cfg(feature = "std")]
//! # if palimpsest_bpf::jit::Target::NATIVE.is_some() {
//! let packs = palimpsest_bpf::Packs::new()?; // once per process, for all programs
//! let program = palimpsest_bpf::VerifiedProgram::load(&packs, &verified, &())?;
//! let mut packets = Packets::new();
//! let ip = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0x45];
//! assert_eq!(program.run_read_only(packets.context(&ip, 15, None))?, 262_144);
//! assert_eq!(program.run_read_only(packets.context(&ip[..13], 15, None))?, 0);
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! # What differs between interpreters
//!
//! Where Linux and libpcap differ, this follows libpcap: the address of a load by `X` does not wrap at 32 bits, a shift
//! by 32 or more gives 0, and jumps may go back, as those of `protochain` do. A filter that goes back 65 535 times
//! refuses the packet. Unwritten scratch memory is 0. Loads of Linux's ancillary data, which libpcap does not have for
//! files, read what [`Packets::context`] was given.

mod packet;
mod parse;
mod step;
mod translate;

use alloc::vec::Vec;

pub use packet::{Ancillary, LIMIT, Packets, contract};
pub use step::Insn;
use step::Step;

/// Most instructions of a filter (`BPF_MAXINSNS` of Linux, `include/uapi/linux/bpf_common.h`).
pub const MOST: usize = 4096;

/// A filter, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    steps: Vec<Step>,
}

/// Why something is not a filter. Instructions are counted from 0.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClassicError {
    /// It has too many instructions, or none.
    #[error("the filter has {len} instructions, and there must be 1 to {MOST}")]
    Len {
        /// How many.
        len: usize,
    },
    /// A line is not an instruction.
    #[error("line {line} is no instruction: `{{ 0x28, 0, 0, 0x0000000c }},` (tcpdump -dd) and `40 0 0 12` (-ddd) are")]
    Syntax {
        /// Line, from 1.
        line: usize,
    },
    /// The first line of `-ddd` gives another number.
    #[error("the first line says that there are {said} instructions, and there are {found}")]
    Count {
        /// What it says.
        said: usize,
        /// How many there are.
        found: usize,
    },
    /// An unknown operation.
    #[error("instruction {at}: the operation {code:#06x} is not known")]
    Unknown {
        /// Which.
        at: usize,
        /// Its code.
        code: u16,
    },
    /// A jump leaves the filter.
    #[error("instruction {at} jumps to {to}, and the filter has {len}")]
    Jump {
        /// Which.
        at: usize,
        /// Where to.
        to: i64,
        /// Instructions of the filter.
        len: usize,
    },
    /// The last instruction goes on.
    #[error("the last instruction, {at}, does not return")]
    End {
        /// Which.
        at: usize,
    },
    /// A division by a constant 0.
    #[error("instruction {at} divides by 0")]
    Division {
        /// Which.
        at: usize,
    },
    /// A shift by a constant of too many bits.
    #[error("instruction {at} shifts by {bits} bits, and numbers have 32")]
    Shift {
        /// Which.
        at: usize,
        /// Bits.
        bits: u32,
    },
    /// A word of scratch memory that does not exist.
    #[error("instruction {at} uses word {word} of the scratch memory, which has 16")]
    Scratch {
        /// Which.
        at: usize,
        /// The word.
        word: u32,
    },
    /// A load of something that only Linux has beside a packet, and packets here do not.
    #[error(
        "instruction {at} loads {name}, which only Linux's kernel has; compile the filter for a file (`tcpdump -y`)"
    )]
    Kernel {
        /// Which.
        at: usize,
        /// What.
        name: &'static str,
    },
}

impl Filter {
    /// Checks `instructions`.
    ///
    /// # Errors
    ///
    /// [`ClassicError`].
    pub fn new(instructions: &[Insn]) -> Result<Self, ClassicError> {
        let len = instructions.len();
        if len == 0 || len > MOST {
            return Err(ClassicError::Len { len });
        }
        let steps: Result<Vec<Step>, ClassicError> =
            instructions.iter().enumerate().map(|(at, insn)| step::decode(*insn, at, len)).collect();
        let steps = steps?;
        match steps.last() {
            Some(Step::Return(_)) => Ok(Self { steps }),
            _ => Err(ClassicError::End { at: len - 1 }),
        }
    }

    /// Reads what `tcpdump -dd` or `tcpdump -ddd` prints.
    ///
    /// # Errors
    ///
    /// [`ClassicError`].
    pub fn parse(text: &str) -> Result<Self, ClassicError> {
        Self::new(&parse::parse(text)?)
    }

    /// Returns how many instructions it has.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns false: a filter has at least one instruction.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the same filter as eBPF byte code, for the context of [`Packets`].
    pub fn translate(&self) -> Vec<u8> {
        translate::translate(&self.steps)
    }
}
