//! An active function: its registers, and what is around them.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::slot::Slot;
use super::{Area, Effort, Link, Sources, Value};
use crate::code::MOST_FRAMES;
use crate::insn::{Register, Size};
use crate::verify::scalar::Scalar;

/// What a register or a place on the stack holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) struct Content {
    pub(in crate::verify) value: Value,
    /// What a number was made of whose sources nobody has used yet.
    pub(in crate::verify) sources: Sources,
    /// What a number has in common with others.
    pub(in crate::verify) link: Link,
}

impl Content {
    /// A number of `size` bytes that depends on nothing.
    pub(in crate::verify) const fn unknown(size: Size) -> Self {
        Self::of(Value::Scalar(Scalar::of_size(size)))
    }

    /// What depends on no number, or only on numbers that were used.
    pub(in crate::verify) const fn of(value: Value) -> Self {
        Self { value, sources: Sources::NONE, link: Link::NONE }
    }

    /// Returns what includes both, and does not change again and again as `other` does; made as `other` was.
    pub(super) fn widened(&self, other: &Self) -> Self {
        Self { value: self.value.widened(&other.value), link: self.link.if_also(other.link), ..*other }
    }

    pub(in crate::verify) const fn number(&self) -> Option<Scalar> {
        match self.value {
            Value::Scalar(number) => Some(number),
            _ => None,
        }
    }
}

/// Registers that programs write: `r0` to `r9`.
pub(super) const WRITABLE: usize = 10;

/// What `r10` holds, by how many functions are around the active one.
static ENDS: [Content; MOST_FRAMES] = {
    let mut ends = [Content::of(Value::Unset); MOST_FRAMES];
    let mut depth = 0;
    while depth < MOST_FRAMES {
        ends[depth] = Content::of(Value::Pointer(Area::Stack(depth), Scalar::constant(0)));
        depth += 1;
    }
    ends
};

/// An active function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::verify) struct Frame {
    /// All but `r10`, which programs cannot write.
    pub(super) registers: [Content; WRITABLE],
    /// From the end of the stack downwards, as far as it was used.
    pub(super) slots: Vec<Slot>,
    /// What numbers in parts of slots were made of.
    pub(super) parts: Sources,
    /// The instruction where it goes on after the function that it called.
    pub(in crate::verify) next: u32,
    /// What a helper calls it for, if one does: apart, since few are, and many states are kept.
    pub(in crate::verify) callback: Option<Box<Callback>>,
    /// How many functions are around it.
    depth: u8,
    /// Whether its `may_goto`s were passed as often as they can be: from there on all of them jump.
    pub(in crate::verify) is_spent: bool,
    /// Which call of the function this is; all calls that a helper makes of it in a row are one.
    pub(in crate::verify) instance: u32,
    /// How often that call has passed a `may_goto`, and how often the helper has called it again.
    pub(in crate::verify) rounds: u32,
}

const _: () = assert!(size_of::<Frame>() <= (WRITABLE + Frame::BESIDE) * size_of::<Content>());
const _: () = assert!(size_of::<Callback>() <= Frame::CALLBACK * size_of::<Content>());

// States are copied at every branch, and glibc keeps freed chunks of at most 1032 bytes at hand (`MAX_TCACHE_SIZE` in
// its `malloc/malloc.c`, with 64-bit addresses).
const _: () = assert!(size_of::<Frame>() <= 1032);

/// A function that a helper calls again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) struct Callback {
    /// Its first instruction.
    pub(in crate::verify) entry: u32,
    /// The map for whose elements it is called; otherwise it gets the number of the call.
    pub(in crate::verify) map: Option<u32>,
    /// The instruction of the helper that calls it with a dynptr.
    pub(in crate::verify) sample: Option<u32>,
    /// What it gets unchanged.
    pub(in crate::verify) context: Value,
}

impl Frame {
    /// How many values take as much room as what is in it beside them, and as what a helper calls it for.
    const BESIDE: usize = 1;
    const CALLBACK: usize = 2;

    /// Returns how many values it has: what keeping it costs.
    pub(super) fn weight(&self) -> usize {
        let callback = if self.callback.is_some() { Self::CALLBACK } else { 0 };
        self.registers.len() + self.slots.len() + Self::BESIDE + callback
    }

    /// Makes the function with `depth` functions around it.
    pub(in crate::verify) fn new(depth: usize, instance: u32) -> Self {
        Self {
            registers: [Content::of(Value::Unset); WRITABLE],
            slots: Vec::new(),
            parts: Sources::NONE,
            next: 0,
            callback: None,
            depth: depth as u8,
            is_spent: false,
            instance,
            rounds: 0,
        }
    }

    pub(in crate::verify) fn get(&self, register: Register) -> &Value {
        &self.content(register).value
    }

    /// Sets a register to what depends on no number, or only on numbers whose [`sources`](Self::sources_of) were used.
    pub(in crate::verify) fn set(&mut self, register: Register, value: Value) {
        self.set_made(register, value, Sources::NONE);
    }

    /// Sets a register to what was made of numbers with these sources.
    pub(in crate::verify) fn set_made(&mut self, register: Register, value: Value, sources: Sources) {
        self.put(register, Content { value, sources, link: Link::NONE });
    }

    /// Returns what a register holds.
    pub(in crate::verify) fn content(&self, register: Register) -> &Content {
        let index = usize::from(register.number());
        self.registers.get(index).unwrap_or_else(|| &ENDS[usize::from(self.depth)])
    }

    /// The same of a register that is written.
    pub(super) fn content_mut(&mut self, register: Register) -> &mut Content {
        &mut self.registers[usize::from(register.number())]
    }

    /// Sets a register.
    pub(in crate::verify) fn put(&mut self, register: Register, content: Content) {
        *self.content_mut(register) = content;
    }

    /// Copies a register, with all that is known of it.
    pub(in crate::verify) fn copy(&mut self, dst: Register, src: Register) {
        *self.content_mut(dst) = *self.content(src);
    }

    /// Takes `r0` to `r5` away, as calls do: `r3` to `r5` are then `unset`.
    pub(in crate::verify) fn lose(&mut self, unset: Value) {
        for register in &Register::ALL[..3] {
            self.set(*register, Value::Unset);
        }
        for register in &Register::ALL[3..6] {
            self.set(*register, unset);
        }
    }

    /// Forgets what nobody looks at again: `live` has a bit for each register that is read.
    pub(super) fn forget_all_but(&mut self, live: u16) {
        for (number, content) in self.registers.iter_mut().enumerate() {
            if live & 1 << number == 0 {
                content.value = Value::Unset;
            }
        }
    }

    /// Iterates over the registers with something that another state may lack: what is not set includes everything.
    pub(super) fn set_registers(&self) -> impl Iterator<Item = usize> {
        (0..WRITABLE).filter(|index| self.registers[*index].value != Value::Unset)
    }

    /// Whether what is known here of a register includes what is known there.
    pub(super) fn includes_register(&self, other: &Self, index: usize) -> bool {
        self.registers[index].value.includes(&other.registers[index].value)
    }

    /// Whether everything known here includes what is known there; of numbers on the stack, those among `used`.
    pub(super) fn includes_with(&self, other: &Self, depth: usize, used: Sources, effort: &Effort) -> bool {
        self.is_function_of(other)
            && effort.all(self.set_registers().map(|index| self.includes_register(other, index)))
            && self.stack_includes(other, depth, used, effort)
    }

    /// Whether it is the same function, which goes on at the same place and leaves its loops in the same way.
    pub(super) fn is_function_of(&self, other: &Self) -> bool {
        self.next == other.next && self.callback == other.callback && self.is_spent == other.is_spent
    }

    pub(super) fn widened(&self, other: &Self) -> Self {
        let registers = core::array::from_fn(|index| self.registers[index].widened(&other.registers[index]));
        // What one of them lacks is unset.
        let slots = self.slots.iter().zip(&other.slots).map(|(slot, other)| slot.widened(other)).collect();
        // What is left of whole slots may be in parts.
        let parts = other.slots.iter().fold(other.parts, |all, slot| match slot {
            Slot::Whole(content) => all.and(content.sources),
            _ => all,
        });
        Self { registers, slots, parts, callback: other.callback.clone(), ..*other }
    }

    /// Replaces every value by what `change` makes of it.
    pub(super) fn change(&mut self, mut change: impl FnMut(Value) -> Value) {
        for content in &mut self.registers {
            content.value = change(content.value);
        }
        for slot in &mut self.slots {
            if let Slot::Whole(content) = slot {
                content.value = change(content.value);
            }
        }
    }
}
