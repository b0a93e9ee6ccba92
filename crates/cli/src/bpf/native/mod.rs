//! Machine code as text; in a program without the feature `disassemblers`, as bytes.

#[cfg_attr(not(feature = "disassemblers"), path = "undecoded.rs")]
mod decoded;

use clap::ValueEnum;
use palimpsest_bpf::Code;
use palimpsest_bpf::host::{Host, Linked};
use palimpsest_bpf::jit::{CompileError, Compiled, Target};
use serde::Serialize;

/// A machine to compile for, which need not be this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Machine {
    #[value(name = "x86-64")]
    X86_64,
    Aarch64,
}

impl Machine {
    const fn target(self) -> Target {
        match self {
            Self::X86_64 => Target::X86_64,
            Self::Aarch64 => Target::Aarch64,
        }
    }
}

/// An instruction of a machine; without the feature `disassemblers`, some bytes.
#[derive(Serialize)]
pub(super) struct Native {
    /// Bytes from the beginning of the code.
    pub(super) offset: usize,
    pub(super) bytes: String,
    /// Empty without the feature `disassemblers`.
    pub(super) text: String,
}

/// What is missing in this build, if something is.
pub(super) const NOTE: Option<&str> = decoded::NOTE;

/// Returns what `machine` runs for each instruction of a program; for the first one also what the program begins with.
pub(super) fn compile(host: &Host, code: &Code, machine: Machine) -> Result<Vec<Vec<Native>>, CompileError> {
    Ok(parts(&host.compile_to_read(code, machine.target())?, machine))
}

/// Returns the same for a program that was verified: with all that its contract asks for.
pub(super) fn compile_verified(linked: &Linked, machine: Machine) -> Result<Vec<Vec<Native>>, CompileError> {
    /// Blinds constants: any number whose bits are mixed.
    const BLINDING: u64 = 0x9e37_79b9_7f4a_7c15;
    Ok(parts(&linked.compile_to_read(machine.target(), BLINDING)?, machine))
}

/// Takes code apart, by the instructions that it was made of.
fn parts(compiled: &Compiled, machine: Machine) -> Vec<Vec<Native>> {
    let mut starts: Vec<usize> = compiled.starts().iter().map(|start| *start as usize).collect();
    if let Some(first) = starts.first_mut() {
        *first = 0;
    }
    let ends = starts.iter().skip(1).copied().chain([compiled.code_len()]);
    let part = |(start, end): (&usize, usize)| {
        let bytes = &compiled.bytes()[*start..end];
        match machine {
            Machine::X86_64 => decoded::x86_64(*start, bytes),
            Machine::Aarch64 => decoded::aarch64(*start, bytes),
        }
    };
    starts.iter().zip(ends).map(part).collect()
}
