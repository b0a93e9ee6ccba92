//! What one instruction makes of what is known, and when it is refused.

mod branch;
mod memory;

use alloc::collections::BTreeSet;
use core::cell::{Cell, RefCell};

use super::alone::Functions;
use super::fault::Fault;
use super::scalar::Scalar;
use super::state::{Area, Callback, Content, Effort, FIRST, Link, Sources, State, Value};
use super::stored::Stored;
use super::{ContextUse, Contract, Guard, Leftovers, Side, Trust};
use crate::code::{Code, MOST_FRAMES};
use crate::insn::{AluOp, Extension, Instruction, Operand, Register, Size, Wide, Width};
use crate::map::Kind;
use memory::Alignment;
pub(super) use memory::{Span, Touched};

/// Bytes that an address may be away from where its memory begins: `BPF_MAX_VAR_OFF` of Linux
/// (`include/linux/bpf_verifier.h`).
const MOST_FAR: i64 = 1 << 29;

/// Where a way goes on.
pub(super) enum Next {
    /// With this instruction.
    One(usize),
    /// With this instruction, and, in the other state, with that one.
    Two(usize, usize, State),
    /// With this instruction, and, again and again, in a function that a helper calls.
    Iterate {
        /// Behind the call.
        behind: usize,
        /// The first instruction of the function.
        enter: usize,
        /// The state in which it is entered.
        entered: State,
    },
    /// With this instruction; and, at another time, in a function that a timer calls.
    Later {
        /// Behind the call.
        behind: usize,
        /// What is called, of a map.
        callback: Callback,
    },
    /// Nowhere.
    Ended,
}

/// A call: its instruction, and where each function around it goes on.
pub(super) type Chain = [u32; MOST_FRAMES];

/// What all steps have in common.
pub(super) struct Shared<'a> {
    pub(super) code: &'a Code,
    pub(super) contract: &'a Contract,
    /// Functions whose calls need not be followed.
    pub(super) alone: &'a Functions<'a>,
    pub(super) context_use: Cell<ContextUse>,
    /// Calls of functions that were followed.
    pub(super) instances: Cell<u32>,
    /// Numbers that were copied.
    pub(super) bases: Cell<u32>,
    /// Most functions that were active at once since the latest root.
    pub(super) frames: Cell<usize>,
    /// Instructions that run in calls that are not followed, if that matters.
    pub(super) unfollowed: Cell<usize>,
    /// Those calls that were counted since the latest root, if each jump back pays.
    pub(super) counted: Option<RefCell<BTreeSet<Chain>>>,
    /// What comparing and copying states has cost.
    pub(super) effort: Effort,
    /// What `r3` to `r5` are where the program has put nothing.
    pub(super) unset: Value,
    /// What they hold there when the program runs.
    pub(super) leftovers: Cell<Leftovers>,
}

impl State {
    /// A call in the instruction `at` of the innermost function.
    fn chain(&self, at: usize) -> Chain {
        let mut chain = [0; MOST_FRAMES];
        let callers = &self.frames[..self.frames.len() - 1];
        let places = [at as u32].into_iter().chain(callers.iter().map(|caller| caller.next));
        chain.iter_mut().zip(places).for_each(|(slot, place)| *slot = place);
        chain
    }
}

impl Shared<'_> {
    /// Notes that the call in the instruction `at`, which is not followed, runs this many instructions. Without fuel
    /// nobody has promised how many that may be.
    ///
    /// If jumps back pay, it counts once for all ways: before the next payment a run comes to a call again only in
    /// another call of the function around it, since a circle within one has a jump back. So it is for that call, and a
    /// helper that calls a function again pays.
    pub(super) fn count_unfollowed(&self, at: usize, state: &State, steps: usize) {
        let is_new = |calls: &RefCell<BTreeSet<Chain>>| calls.borrow_mut().insert(state.chain(at));
        if self.contract.fuel.is_some() && self.counted.as_ref().is_none_or(is_new) {
            self.unfollowed.set(self.unfollowed.get().saturating_add(steps));
        }
    }

    /// Notes that what comes next is in no run with what came before.
    pub(super) fn begin_root(&self) {
        if let Some(counted) = &self.counted {
            counted.borrow_mut().clear();
        }
    }
}

/// What was seen of an instruction in all states in which it was followed.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Whether it is a load that may find nothing.
    pub(super) is_probe: Cell<bool>,
    /// If it is a store.
    pub(super) stored: Cell<Stored>,
    /// What guards it, if the program is not trusted.
    pub(super) guard: Cell<Option<Guard>>,
}

/// An instruction in a state.
pub(super) struct Step<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) at: usize,
    pub(super) state: &'a mut State,
    pub(super) seen: &'a Seen,
    /// What the numbers were made of that this instruction uses: on which depends whether it is right, and where the
    /// program goes on.
    pub(super) used: &'a Cell<Sources>,
}

impl Step<'_> {
    /// Follows the instruction. Inlined, since it is called at one place, and its many parts would be put together in
    /// memory for each instruction.
    #[inline(always)]
    pub(super) fn follow(mut self) -> Result<Next, Fault> {
        let behind = self.at + 1;
        match self.shared.code.instructions()[self.at] {
            Instruction::Alu { width, op: AluOp::Move, dst, operand: Operand::Register(src) } => {
                self.copy(width, dst, src)?;
            }
            Instruction::Alu { width, op, dst, operand } => self.alu(width, op, dst, operand)?,
            Instruction::Negate { width, dst } => self.remake(dst, |number| number.negated(width))?,
            Instruction::MoveSigned { width, from, dst, src } => self.extend(width, from, dst, src)?,
            Instruction::Swap { order, size, dst } => self.remake(dst, |number| number.swapped(order, size))?,
            Instruction::LoadWide { dst, value } => {
                let value = self.wide(value)?;
                self.state.top_mut().set(dst, value);
            }
            Instruction::Load { size, extension, dst, base, offset } => {
                let mut content = match self.load(size, base, offset, Alignment::Any) {
                    Err(_) if self.may_probe(base) => {
                        self.seen.is_probe.set(true);
                        Content::unknown(size)
                    }
                    result => result?,
                };
                if let (Extension::Sign, Some(number)) = (extension, content.number()) {
                    content.value = Value::Scalar(number.sign_extended(Width::W64, size));
                    // Of other sizes there is none.
                    content.link = content.link.of_signed_low(&number);
                }
                self.state.top_mut().put(dst, content);
            }
            Instruction::LoadAcquire { size, dst, base, offset } => {
                let content = self.load(size, base, offset, Alignment::Natural)?;
                self.state.top_mut().put(dst, content);
            }
            Instruction::Store { size, base, offset, value } => {
                let stored = match value {
                    Operand::Immediate(value) => (Content::of(Value::Scalar(Scalar::constant(value as u64))), None),
                    Operand::Register(src) => (*self.content(src)?, Some(src)),
                };
                self.store(size, base, offset, stored, Alignment::Any)?;
            }
            Instruction::StoreRelease { size, base, offset, src } => {
                let stored = (*self.content(src)?, Some(src));
                self.store(size, base, offset, stored, Alignment::Natural)?;
            }
            Instruction::Atomic { op, width, base, offset, src } => self.atomic(op, width, base, offset, src)?,
            Instruction::Jump { offset, .. } => return Ok(Next::One(self.target(offset))),
            Instruction::Branch { width, condition, dst, operand, offset } => {
                let target = self.target(offset.into());
                return self.branch(width, condition, dst, operand, target);
            }
            Instruction::MayGoto { offset } => {
                let target = self.target(offset.into());
                if let (Some(held), None) = (self.state.lock, self.shared.contract.fuel) {
                    // Nested ones go round for hours, while everybody waits for the lock.
                    return Err(Fault::CountsLocked { slot: self.shared.code.slot(held.at as usize) });
                }
                if self.state.top().is_spent {
                    self.guard(Guard::Edges);
                    return Ok(Next::One(target));
                }
                let mut spent = self.state.clone();
                spent.top_mut().is_spent = true;
                self.state.top_mut().rounds += 1;
                return Ok(Next::Two(behind, target, spent));
            }
            Instruction::Call(callee) => return self.call(callee),
            Instruction::Exit => return self.exit(),
            Instruction::Packet { .. } | Instruction::Cast { .. } => return Err(Fault::Unknown),
        }
        Ok(Next::One(behind))
    }

    /// Notes how many functions are active at once.
    pub(super) fn note_frames(&self, frames: usize) {
        self.shared.frames.set(self.shared.frames.get().max(frames));
    }

    /// Notes what guards the instruction. If different states need different masks, or one needs none, it waits.
    pub(super) fn guard(&self, guard: Guard) {
        if self.shared.contract.trust == Trust::Full {
            return;
        }
        let noted = &self.seen.guard;
        noted.set(match (noted.get(), guard) {
            (None, guard) => Some(guard),
            (Some(noted), guard) if noted == guard => Some(guard),
            (Some(Guard::Unmasked | Guard::Mask { .. } | Guard::Before), _) => Some(Guard::Before),
            (noted, _) => noted,
        });
    }

    /// Guards the sum of an address and `by`, which is in a register: in speculation it could be any number.
    fn guard_sum(&self, by: Scalar, number: Side) {
        // What is masked becomes 0, so that must be a distance that was checked, too: otherwise the CPU could reach
        // what lies before the place, say addresses on the stack. Greater ones are not accepted as distances.
        let most = by.signed_max().try_into().ok().filter(|most| by.signed_min() == 0 && *most < 1 << 31);
        self.guard(most.map_or(Guard::Before, |most| Guard::Mask { most, number }));
    }

    /// Notes that in this state the operation makes no address. Then a mask for another state must not change its
    /// result.
    fn note_plain_sum(&self, width: Width, op: AluOp, operand: Operand) {
        let may_be_masked = width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub);
        if let (true, Operand::Register(_)) = (may_be_masked, operand) {
            self.guard(Guard::Unmasked);
        }
    }

    pub(super) fn target(&self, distance: i32) -> usize {
        self.shared.code.target(self.at, distance).expect("targets were checked when the code was made")
    }

    fn set(&mut self, register: Register, number: Scalar) {
        self.state.top_mut().set(register, Value::Scalar(number));
    }

    /// Notes that the number of a register is used.
    fn use_number(&self, register: Register) {
        self.used.set(self.used.get().and(self.state.top().sources_of(register)));
    }

    /// Sets `dst` to what `make` makes of its number.
    fn remake(&mut self, dst: Register, make: impl FnOnce(Scalar) -> Scalar) -> Result<(), Fault> {
        let Value::Scalar(number) = self.look_at(dst)? else { return Err(Fault::Address { register: dst }) };
        let (value, sources) = (Value::Scalar(make(*number)), self.state.top().sources_of(dst));
        self.state.top_mut().set_made(dst, value, sources);
        Ok(())
    }

    /// Sets `dst` to the low `size` bytes of `src`, extended with their sign.
    fn extend(&mut self, width: Width, size: Size, dst: Register, src: Register) -> Result<(), Fault> {
        let mut content = *self.content(src)?;
        let Some(number) = content.number() else { return Err(Fault::Address { register: src }) };
        content.value = Value::Scalar(number.sign_extended(width, size));
        content.link = match (width, size) {
            (Width::W64, Size::Word) => self.linked(src).of_signed_low(&number),
            _ => Link::NONE,
        };
        self.state.top_mut().put(dst, content);
        Ok(())
    }

    /// Returns a register that has a value.
    pub(super) fn get(&self, register: Register) -> Result<Value, Fault> {
        self.see(register).copied()
    }

    /// Looks at a register that has a value, without a copy.
    fn see(&self, register: Register) -> Result<&Value, Fault> {
        self.use_number(register);
        self.look_at(register)
    }

    /// The same for those who use the number only to make others of it, whose sources they note.
    fn look_at(&self, register: Register) -> Result<&Value, Fault> {
        self.content(register).map(|content| &content.value)
    }

    /// The same for those who want all that is known.
    fn content(&self, register: Register) -> Result<&Content, Fault> {
        match self.state.top().content(register) {
            Content { value: Value::Unset | Value::Cleared, .. } => Err(Fault::Unset { register }),
            content => Ok(content),
        }
    }

    /// Returns a register that is a number.
    pub(super) fn number(&self, register: Register) -> Result<Scalar, Fault> {
        match self.see(register)? {
            Value::Scalar(number) => Ok(*number),
            _ => Err(Fault::Address { register }),
        }
    }

    fn wide(&self, value: Wide) -> Result<Value, Fault> {
        match value {
            Wide::Value(value) => Ok(Value::Scalar(Scalar::constant(value))),
            Wide::Function(distance) => Ok(Value::Function(self.target(distance) as u32)),
            Wide::MapByIndex(index) => Ok(Value::Map(self.map(index)?)),
            Wide::MapValueByIndex { map, offset } => {
                let number = self.map(map)?;
                let kind = self.shared.contract.maps[number as usize].kind;
                if kind != Kind::Array {
                    return Err(Fault::NoFirstValue { kind });
                }
                let (area, offset) = (self.found(number, FIRST), Scalar::constant(offset.into()));
                // At most its end.
                self.is_inside(area, offset, 0)?;
                Ok(Value::Pointer(area, offset))
            }
            Wide::MapByDescriptor(_) | Wide::MapValueByDescriptor { .. } | Wide::Variable(_) => Err(Fault::Unknown),
        }
    }

    /// The value of a map that was found in this way.
    pub(super) fn found(&self, map: u32, id: u32) -> Area {
        let has_lock = self.shared.contract.maps[map as usize].lock.is_some();
        if has_lock { Area::Lockable { map, id } } else { Area::MapValue(map) }
    }

    fn map(&self, index: i32) -> Result<u32, Fault> {
        let number = u32::try_from(index).map_err(|_| Fault::Map { index })?;
        // Numbers above those of the host's own maps stand for maps inside maps.
        let is_there = (number as usize) < self.shared.contract.own_maps;
        if is_there { Ok(number) } else { Err(Fault::Map { index }) }
    }

    /// Copies a register, as a whole or its lower half.
    fn copy(&mut self, width: Width, dst: Register, src: Register) -> Result<(), Fault> {
        self.look_at(src)?;
        let link = self.linked(src);
        if width == Width::W64 {
            self.state.top_mut().copy(dst, src);
            return Ok(());
        }
        let Content { value: Value::Scalar(number), sources, .. } = *self.state.top().content(src) else {
            return Err(Fault::Address { register: src });
        };
        let value = Value::Scalar(number.alu(width, AluOp::Move, &number));
        self.state.top_mut().put(dst, Content { value, sources, link: link.of_low(&number) });
        Ok(())
    }

    /// Returns the link of the number in a register of which there will be a copy. Constants need none.
    pub(super) fn linked(&mut self, register: Register) -> Link {
        let top = self.state.top_mut();
        let link = top.link_of(register);
        if !link.is_none() {
            return link;
        }
        let is_variable = matches!(top.get(register), Value::Scalar(number) if number.as_constant().is_none());
        let number = self.shared.bases.get();
        // Who follows as many instructions does without links from there on.
        if !is_variable || number >= Link::BASES {
            return Link::NONE;
        }
        self.shared.bases.set(number + 1);
        let link = Link::base(number + 1);
        top.link(register, link);
        link
    }

    /// Returns the link of the result, if a constant is added to the number in `dst`, or half of it shifted out.
    fn moved(&mut self, width: Width, op: AluOp, dst: Register, operand: Operand) -> Link {
        let link = self.state.top().link_of(dst);
        match (op, operand) {
            (AluOp::Add, Operand::Immediate(by)) => link.moved(width, by),
            (AluOp::Sub, Operand::Immediate(by)) => by.checked_neg().map_or(Link::NONE, |by| link.moved(width, by)),
            // Copies of what is shifted are extended in different ways.
            (AluOp::ShiftLeft, Operand::Immediate(32)) if width == Width::W64 => self.linked(dst).shifted(op),
            (AluOp::ShiftRight | AluOp::ShiftRightSigned, Operand::Immediate(32)) if width == Width::W64 => {
                link.shifted(op)
            }
            _ => Link::NONE,
        }
    }

    /// Sets `dst` to the result, which is no copy of a register.
    fn alu(&mut self, width: Width, op: AluOp, dst: Register, operand: Operand) -> Result<(), Fault> {
        let constant;
        let (right, sources) = match operand {
            Operand::Immediate(value) => {
                constant = Value::Scalar(Scalar::constant(value as u64));
                (&constant, Sources::NONE)
            }
            Operand::Register(src) => {
                let Content { value, sources, .. } = self.content(src)?;
                (value, *sources)
            }
        };
        if let (AluOp::Move, Value::Scalar(number)) = (op, right) {
            let value = Value::Scalar(number.alu(width, op, number));
            self.state.top_mut().set_made(dst, value, sources);
            return Ok(());
        }
        let Content { value: left, sources: also, .. } = self.content(dst)?;
        let sources = sources.and(*also);
        let register = if let Operand::Register(src) = operand { src } else { dst };
        if let (Value::Scalar(left), Value::Scalar(right)) = (left, right) {
            self.note_plain_sum(width, op, operand);
            let value = Value::Scalar(left.alu(width, op, right));
            let link = self.moved(width, op, dst, operand);
            self.state.top_mut().put(dst, Content { value, sources, link });
            return Ok(());
        }
        // An address depends on every number that it was made of.
        self.used.set(self.used.get().and(sources));
        let result = match (left, right, op, width) {
            (Value::Pointer(area, offset), Value::Scalar(by), AluOp::Add | AluOp::Sub, Width::W64)
            | (Value::Scalar(by), Value::Pointer(area, offset), AluOp::Add, Width::W64) => {
                let offset = offset.alu(width, op, by);
                let (min, max) = (offset.signed_min(), offset.signed_max());
                if (min < -MOST_FAR || max > MOST_FAR) && !self.may_be_far(*area) {
                    return Err(Fault::Far { register: dst, min, max });
                }
                match (left, operand) {
                    (Value::Scalar(_), _) => self.guard_sum(*by, Side::Left),
                    (_, Operand::Register(_)) => self.guard_sum(*by, Side::Right),
                    (_, Operand::Immediate(_)) => {}
                }
                Ok(Value::Pointer(*area, offset))
            }
            // Not inside maps of maps: the two addresses may be in different maps.
            (Value::Pointer(area, _), Value::Pointer(of, _), AluOp::Sub, Width::W64)
                if area == of && !self.is_inner(*area) =>
            {
                self.note_plain_sum(width, op, operand);
                Ok(Value::Scalar(Scalar::UNKNOWN))
            }
            (Value::Maybe(..), Value::Scalar(_), AluOp::Add | AluOp::Sub, _) => Err(Fault::MaybeNull { register: dst }),
            (Value::Scalar(_), ..) => Err(Fault::Address { register }),
            _ => Err(Fault::Address { register: dst }),
        };
        self.state.top_mut().set(dst, result?);
        Ok(())
    }
}
