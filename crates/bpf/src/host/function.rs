//! Functions of the host that programs call by name: in C, `extern … __ksym`.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::Entry;
use crate::verify::{Argument, MissingFunction, Returns, Signature};

/// What C says of a parameter, or of a result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// `void`.
    Nothing,
    /// A number of 64 bits at most.
    Number,
    /// An address.
    Address,
    /// Anything that no register holds.
    Other,
}

/// What C says of a function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Prototype {
    /// Its parameters.
    pub parameters: Vec<Shape>,
    /// What it returns.
    pub result: Shape,
}

impl Prototype {
    /// Whether a function with this signature is what the program was compiled for.
    pub(super) fn fits(&self, signature: &Signature) -> bool {
        let fits = |(shape, argument): (&Shape, &Argument)| match argument {
            Argument::Number | Argument::Size | Argument::RecordSize => *shape == Shape::Number,
            Argument::Anything => matches!(shape, Shape::Number | Shape::Address),
            _ => *shape == Shape::Address,
        };
        self.parameters.len() == signature.arguments().len()
            && self.parameters.iter().zip(signature.arguments()).all(fits)
            && match signature.returns {
                Returns::Object(..) => self.result == Shape::Address,
                _ => matches!(self.result, Shape::Nothing | Shape::Number),
            }
    }
}

/// A function that a program declares.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Declaration {
    /// Its name.
    pub name: String,
    /// What C says of it, if the object tells.
    pub prototype: Option<Prototype>,
}

/// A function that programs call by its index, or why they cannot.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) entry: Result<Entry, MissingFunction>,
}

/// What a closure does.
pub(super) struct Custom(pub(super) super::Function);

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Custom")
    }
}
