//! Comparisons, and what they tell.

use super::{Next, Step};
use crate::insn::{Condition, Operand, Register, Width};
use crate::verify::Guard;
use crate::verify::fault::Fault;
use crate::verify::scalar::Scalar;
use crate::verify::state::{Content, Effort, Sources, State, Value};

impl Step<'_> {
    /// Compares an address with 0.
    fn null_check(self, condition: Condition, address: Value, target: usize) -> Next {
        self.guard(Guard::Edges);
        let behind = self.at + 1;
        let (if_null, if_not) = if condition == Condition::Equal { (target, behind) } else { (behind, target) };
        let (area, id) = match address {
            Value::Maybe(area, id) => (area, id),
            // Outside its memory it can be any number, also 0: who knows where the memory lies can see to that.
            Value::Pointer(area, offset) if self.is_inside(area, offset, 0).is_err() => {
                return Next::Two(if_not, if_null, self.state.clone());
            }
            // Memory does not begin at 0, nor end there; and so are maps and functions known to programs.
            _ => return Next::One(if_not),
        };
        let mut null = self.state.clone();
        null.resolve(id, None, &self.shared.effort);
        self.state.resolve(id, Some(area), &self.shared.effort);
        Next::Two(if_not, if_null, null)
    }

    pub(super) fn branch(
        self,
        width: Width,
        condition: Condition,
        dst: Register,
        operand: Operand,
        target: usize,
    ) -> Result<Next, Fault> {
        let behind = self.at + 1;
        let Content { value: left, sources, .. } = *self.content(dst)?;
        let (right, sources) = match operand {
            Operand::Immediate(value) => (Value::Scalar(Scalar::constant(value as u64)), sources),
            Operand::Register(src) => {
                let Content { value: right, sources: also, .. } = *self.content(src)?;
                (right, sources.and(also))
            }
        };
        let use_both = || self.used.set(self.used.get().and(sources));
        if !matches!((left, right), (Value::Scalar(_), Value::Scalar(_))) {
            use_both();
        }
        let is_zero = |value: Value| matches!(value, Value::Scalar(number) if number.as_constant() == Some(0));
        let is_equality = matches!(condition, Condition::Equal | Condition::NotEqual) && width == Width::W64;
        let (left, right) = match (left, right) {
            (Value::Scalar(left), Value::Scalar(right)) => (left, right),
            (address, number) | (number, address) if is_equality && address.is_address() && is_zero(number) => {
                return Ok(self.null_check(condition, address, target));
            }
            // Which of two addresses is higher does not tell where they are, if their memory is the same: nothing is
            // learned. Values of inner maps may be of different maps, whose distance nobody is to know.
            (Value::Pointer(area, _), Value::Pointer(of, _))
                if area == of && width == Width::W64 && !self.is_inner(area) =>
            {
                return Ok(Next::Two(behind, target, self.state.clone()));
            }
            (Value::Scalar(_), _) => {
                let Operand::Register(register) = operand else { return Err(Fault::Unknown) };
                return Err(Fault::Address { register });
            }
            _ => return Err(Fault::Address { register: dst }),
        };
        let taken = left.assume(width, condition, right, true);
        let passed = left.assume(width, condition, right, false);
        let other = match operand {
            // A register is compared with itself; what was learned is in it already.
            Operand::Register(src) if src != dst => Some(src),
            Operand::Register(_) | Operand::Immediate(_) => None,
        };
        let compared = Compared { dst, other, sources };
        if passed.is_none() || taken.is_none() {
            // Only one way is followed: with other numbers it could be the other one.
            use_both();
            // The CPU may follow the other in speculation.
            self.guard(Guard::Edges);
        }
        let effort = &self.shared.effort;
        match (passed, taken) {
            (Some(passed), Some(taken)) => {
                let mut other = self.state.clone();
                compared.learn(&mut other, taken, effort);
                compared.learn(self.state, passed, effort);
                Ok(Next::Two(behind, target, other))
            }
            (Some(passed), None) => {
                compared.learn(self.state, passed, effort);
                Ok(Next::One(behind))
            }
            (None, Some(taken)) => {
                compared.learn(self.state, taken, effort);
                Ok(Next::One(target))
            }
            // Neither way is possible: what is known contradicts itself, which never happens.
            (None, None) => Ok(Next::Two(behind, target, self.state.clone())),
        }
    }
}

/// Numbers that were compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Compared {
    dst: Register,
    /// The other one, if it is in another register.
    other: Option<Register>,
    /// What both were made of: what is learned of one depends on the other.
    sources: Sources,
}

impl Compared {
    /// Notes what the result tells of both, and of their copies.
    fn learn(self, state: &mut State, (left, right): (Scalar, Scalar), effort: &Effort) {
        let Self { dst, other, sources } = self;
        state.top_mut().narrow(dst, left, sources);
        if let Some(other) = other {
            state.top_mut().narrow(other, right, sources);
        }
        for register in [Some(dst), other].into_iter().flatten() {
            // It may be linked with the other one, and have learned again.
            let link = state.top().link_of(register);
            if !link.is_none()
                && let Value::Scalar(number) = *state.top().get(register)
            {
                state.tell(link, number, sources, effort);
            }
        }
    }
}
