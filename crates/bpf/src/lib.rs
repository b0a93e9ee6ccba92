//! eBPF programs: decoded, checked in their structure, verified, interpreted, and compiled into packs.
//!
//! ```
//! use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
//! use palimpsest_bpf::{Code, asm};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let code = Code::new(&asm::assemble("r0 = r1\n r0 *= 2\n exit")?)?;
//! let answer = Interpreter::default().run(&code, [21, 0, 0, 0, 0], &mut Memory::new(), &mut NoHelpers)?;
//! assert_eq!(answer, 42);
//! # Ok(())
//! # }
//! ```
//!
//! [`verify`] finds out which programs can do no harm; these run compiled, without `unsafe`, as [`VerifiedProgram`]s.
//!
//! Instructions are those of RFC 9669 in all its conformance groups, and what Linux has added since.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod asm;
pub mod classic;
mod code;
#[cfg(feature = "dwarf")]
pub mod dwarf;
pub mod elf;
mod function;
mod holding;
#[cfg(feature = "std")]
pub mod hook;
pub mod host;
pub mod insn;
pub mod interp;
pub mod jit;
pub mod layout;
pub mod map;
mod process;
#[cfg(feature = "std")]
mod program;
#[cfg(feature = "std")]
mod random;
mod source;
#[cfg(feature = "std")]
pub mod timer;
pub mod verify;

pub use code::{Code, MOST_FRAMES, MOST_SLOTS, StructureError};
/// Where compiled programs live.
#[cfg(feature = "std")]
pub use palimpsest_text::{OpenError, Packs};
#[cfg(feature = "std")]
pub use program::{ContextError, LoadError, Program, Typed, TypedReadOnly, VerifiedError, VerifiedProgram};
pub use source::Source;

/// For the macro of [`hook`].
#[cfg(feature = "std")]
#[doc(hidden)]
pub use palimpsest_text as __text;
