//! Functions that are verified alone, by the types of their arguments: Linux's global functions.
//!
//! Such a function is followed once, with all arguments that its [`FunctionType`] allows. A call with arguments of this
//! type is not followed: behind it `r0` is any number, and memory that was passed holds any bytes. So verifying a
//! program takes as long as verifying its functions one after the other, however they call each other. A call with
//! arguments that are not of this type is followed.
//!
//! How long a program runs is another matter: `n` calls of a function that makes `n` calls are `n * n`. If the contract
//! has fuel, which promises an end in time, each call counts against the budget as if it were followed, on all ways
//! through the function.
//!
//! Nothing here trusts the types, which may be hostile: a body that does more than its type allows is refused, and so
//! is the whole attempt ([`Contract::verify`](super::Contract::verify) follows all calls instead).

use alloc::vec::Vec;
use core::cell::Cell;

use super::scalar::Scalar;
use super::state::{Area, Frame, State, Value};
use crate::code::{Code, MOST_FRAMES};
use crate::function::{FunctionType, Null, Parameter};

/// A function to be verified alone.
pub(super) struct Alone<'a> {
    /// Its first instruction.
    pub(super) entry: usize,
    pub(super) takes: &'a FunctionType,
    /// Functions active at once in it, itself included, once it was followed.
    pub(super) frames: Cell<usize>,
    /// Instructions on all ways through it, once it was followed: a call runs no more without a jump back that pays.
    pub(super) steps: Cell<usize>,
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
            functions.all.push(Alone { entry, takes, frames: Cell::new(MOST_FRAMES + 1), steps: Cell::new(0) });
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

    /// The function that begins with this instruction.
    pub(super) fn get(&self, entry: usize) -> Option<&Alone<'a>> {
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
