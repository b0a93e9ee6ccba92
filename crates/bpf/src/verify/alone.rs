//! Functions that are verified alone, by the types of their arguments: Linux's global functions.
//!
//! Such a function is followed once, with all arguments that its [`FunctionType`] allows. A call with arguments of this
//! type is not followed: behind it `r0` is any number, and memory that was passed holds any bytes. So verifying a
//! program takes as long as verifying its functions one after the other, however they call each other. A call with
//! arguments that are not of this type is followed.
//!
//! Nothing here trusts the types, which may be hostile: a body that does more than its type allows is refused, and so
//! is the whole attempt ([`Contract::verify`](super::Contract::verify) follows all calls instead).

use alloc::vec::Vec;
use core::cell::Cell;

use super::scalar::Scalar;
use super::state::{Area, Frame, State, Value};
use super::step::{Next, Step};
use crate::code::{Code, MOST_FRAMES};
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
    fn registers(&self) -> impl Iterator<Item = (Register, Parameter)> {
        Register::ALL[1..].iter().copied().zip(self.0.iter().copied())
    }
}

/// A function to be verified alone.
pub(super) struct Alone<'a> {
    /// Its first instruction.
    pub(super) entry: usize,
    takes: &'a FunctionType,
    /// Functions active at once in it, itself included, once it was followed.
    pub(super) frames: Cell<usize>,
}

/// The functions of a program that are to be verified alone.
#[derive(Default)]
pub(super) struct Functions<'a> {
    /// By their first instruction.
    all: Vec<Alone<'a>>,
    /// Each behind those that it calls.
    order: Vec<usize>,
}

impl<'a> Functions<'a> {
    /// Finds the functions of `code` that have types.
    pub(super) fn of(code: &'a Code) -> Self {
        let mut functions = Self::default();
        if code.types().next().is_none() {
            return functions;
        }
        let heights = code.heights();
        let mut order = Vec::new();
        for (entry, takes) in code.types() {
            // The program itself is not called.
            let Some(number) = code.function_number(entry).filter(|number| *number > 0) else { continue };
            order.push((heights[number], functions.all.len()));
            // Too deep until it is known.
            functions.all.push(Alone { entry, takes, frames: Cell::new(MOST_FRAMES + 1) });
        }
        order.sort_unstable();
        functions.order = order.into_iter().map(|(_, place)| place).collect();
        functions
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Iterates over them, each behind those that it calls.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &Alone<'a>> {
        self.order.iter().map(|place| &self.all[*place])
    }

    fn get(&self, entry: usize) -> Option<&Alone<'a>> {
        let place = self.all.binary_search_by_key(&entry, |alone| alone.entry).ok()?;
        self.all.get(place)
    }
}

impl Alone<'_> {
    /// In the function, called with anything that it may be called with.
    pub(super) fn state(&self, instance: u32) -> State {
        let mut frame = Frame::new(0, instance);
        for (register, parameter) in self.takes.registers() {
            let start = Scalar::constant(0);
            frame.set(
                register,
                match parameter {
                    Parameter::Number => Value::Scalar(Scalar::UNKNOWN),
                    Parameter::Context => Value::Pointer(Area::Context, start),
                    Parameter::Memory { len, align, null } => {
                        let number = register.number();
                        let area = Area::Argument { number, len, align };
                        match null {
                            Null::Excluded => Value::Pointer(area, start),
                            // No instruction has this number.
                            Null::Possible => Value::Maybe(area, u32::MAX - u32::from(number)),
                        }
                    }
                },
            );
        }
        State { frames: Vec::from([frame]), records: Vec::new(), lock: None }
    }
}

/// Bytes of a stack that a function may have written.
type Written = (usize, i64, usize);

impl Step<'_> {
    /// Steps over the call of a function that was verified alone, if the arguments are of its type.
    pub(super) fn call_alone(&mut self, target: usize) -> Option<Next> {
        let called = self.alone.get(target)?;
        let frames = self.state.frames.len() + called.frames.get();
        // It was followed without a lock held, and may take one.
        if frames > MOST_FRAMES || self.state.lock.is_some() {
            return None;
        }
        let mut written: [Option<Written>; 5] = [None; 5];
        for ((register, parameter), written) in called.takes.registers().zip(&mut written) {
            match parameter {
                Parameter::Number => drop(self.number(register).ok()?),
                Parameter::Context => {
                    let start = Value::Pointer(Area::Context, Scalar::constant(0));
                    self.get(register).ok().filter(|value| *value == start)?;
                }
                Parameter::Memory { len, align, null } => *written = self.memory(register, len, align, null)?,
            }
        }
        for (depth, offset, len) in written.into_iter().flatten() {
            self.state.frames[depth].write_some(offset, len, true);
        }
        self.note_frames(frames);
        for register in &Register::ALL[1..6] {
            self.state.top_mut().set(*register, Value::Unset);
        }
        self.state.top_mut().set(Register::R0, Value::Scalar(Scalar::UNKNOWN));
        Some(Next::One(self.at + 1))
    }

    /// Checks an address of memory that is passed. Returns which bytes of a stack that is.
    fn memory(&self, register: Register, len: u32, align: u8, null: Null) -> Option<Option<Written>> {
        let (area, start) = match self.get(register).ok()? {
            Value::Pointer(area, start) => (area, start),
            Value::Maybe(area, _) if null == Null::Possible => (area, Scalar::constant(0)),
            Value::Scalar(number) if null == Null::Possible && number.as_constant() == Some(0) => return Some(None),
            _ => return None,
        };
        self.is_inside(area, start, len.into()).ok()?;
        self.may_write(area).ok()?;
        if align > area.align() || !start.is_aligned(align.into()) {
            return None;
        }
        let Area::Stack(depth) = area else { return Some(None) };
        let (offset, len) = (start.signed_min(), len as usize);
        // What the function reads must have been written; addresses it must not see, and not overwrite.
        self.state.frames[depth].read_all(offset, len).ok()?;
        Some(Some((depth, offset, len)))
    }
}
