//! Calls of functions that were verified alone.

use super::scalar::Scalar;
use super::state::{Area, Value};
use super::step::{Next, Span, Step};
use crate::code::MOST_FRAMES;
use crate::function::{Null, Parameter};
use crate::insn::Register;

/// Bytes of a stack that a function may have written: which function's.
type Written = (usize, Span);

impl Step<'_> {
    /// Steps over the call of a function that was verified alone, if the arguments are of its type.
    pub(super) fn call_alone(&mut self, target: usize) -> Option<Next> {
        let called = self.shared.alone.get(target)?;
        let frames = self.state.frames.len() + called.frames.get();
        // Alone it was followed without a lock, and may take one.
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
        for (depth, span) in written.into_iter().flatten() {
            // They were written before.
            self.state.frames[depth].write_some(span.offset, span.len, false);
        }
        self.note_frames(frames);
        self.shared.count_unfollowed(self.at, self.state, called.steps.get());
        let unset = self.shared.unset;
        self.state.top_mut().lose(unset);
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
        let span = Span::of(start, len as usize);
        // What the function reads must have been written; addresses it must not see, and not overwrite.
        self.state.frames[depth].read_all(span.offset, span.len).ok()?;
        Some(Some((depth, span)))
    }
}
