//! What functions of a program take: types by which the [verifier](crate::verify) follows them alone.

use alloc::vec::Vec;

use crate::insn::Register;

/// Whether an address may be 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Null {
    /// It may be 0: the function must compare it with 0 first.
    Possible,
    /// It is never 0 (libbpf: `__arg_nonnull`).
    Excluded,
}

/// What a function of a program takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Parameter {
    /// A number.
    Number,
    /// The context, as the program got it (libbpf: `__arg_ctx`).
    Context,
    /// The address of memory to read and to write.
    Memory {
        /// Its bytes.
        len: u32,
        /// Its alignment in bytes: a power of 2, at most 8.
        align: u8,
        /// Whether the address may be 0.
        null: Null,
    },
}

/// The type of a function that returns a number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FunctionType(Vec<Parameter>);

impl FunctionType {
    /// Makes the type of a function with these parameters; `None` for more than there are registers, and for memory
    /// aligned to anything but 1, 2, 4 or 8 bytes.
    pub fn new(parameters: impl Into<Vec<Parameter>>) -> Option<Self> {
        let parameters = parameters.into();
        let is_valid = |parameter: &Parameter| match parameter {
            Parameter::Memory { align, .. } => matches!(align, 1 | 2 | 4 | 8),
            Parameter::Number | Parameter::Context => true,
        };
        (parameters.len() <= 5 && parameters.iter().all(is_valid)).then_some(Self(parameters))
    }

    /// Its parameters, with their registers.
    pub(crate) fn registers(&self) -> impl Iterator<Item = (Register, Parameter)> {
        Register::ALL[1..].iter().copied().zip(self.0.iter().copied())
    }
}
