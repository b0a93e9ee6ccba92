//! Numbers that are copies of each other, or copies with a constant added: what a comparison tells of one, it tells of
//! all.
//!
//! That two numbers are linked is knowledge of a state as bounds are: a state is known only if one was followed whose
//! links it has. But only if a number that was used has learned by a link: [`Sources::LINKS`] notes that.

use alloc::vec::Vec;

use super::slot::Slot;
use super::{Content, Effort, Frame, Sources, State, Value};
use crate::insn::{AluOp, Register, Size, Width};
use crate::verify::scalar::Scalar;

/// What a number has in common with others: all are made of one number, their base, by adding a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) struct Link {
    /// The number of the base, and in the lowest bits which [`Sum`] it is; 0 if there is none. No two bases that a
    /// program has on its way have the same number.
    base: u32,
    /// What is added.
    by: i32,
}

/// What is made of the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sum {
    /// The sum in 64 bits.
    Whole,
    /// The sum in 32 bits of its lower half, extended with zeros.
    Low,
    /// The same, extended with its sign.
    Signed,
    /// The same, shifted left by 32 bits.
    Shifted,
}

impl Sum {
    const ALL: [Self; 4] = [Self::Whole, Self::Low, Self::Signed, Self::Shifted];
    /// Bits of a [`Link::base`] that tell which one it is.
    const BITS: u32 = 2;
}

impl Link {
    pub(in crate::verify) const NONE: Self = Self { base: 0, by: 0 };
    /// Numbers of bases.
    pub(in crate::verify) const BASES: u32 = u32::MAX >> Sum::BITS;

    /// The base with this number, from 1 to [`BASES`](Self::BASES), itself.
    pub(in crate::verify) const fn base(number: u32) -> Self {
        Self { base: number << Sum::BITS, by: 0 }
    }

    pub(in crate::verify) const fn is_none(self) -> bool {
        self.base == 0
    }

    const fn number(self) -> u32 {
        self.base >> Sum::BITS
    }

    const fn sum(self) -> Sum {
        Sum::ALL[(self.base & ((1 << Sum::BITS) - 1)) as usize]
    }

    /// The same base and constant, of whose sum something else is made.
    const fn made(self, sum: Sum) -> Self {
        if self.is_none() { self } else { Self { base: self.number() << Sum::BITS | sum as u32, ..self } }
    }

    /// The link of the number to which `by` is added in `width` bits.
    pub(in crate::verify) const fn moved(self, width: Width, by: i32) -> Self {
        match (width, self.sum()) {
            (_, Sum::Shifted) => Self::NONE,
            _ if self.is_none() => self,
            (Width::W32, _) => Self { by: self.by.wrapping_add(by), ..self }.made(Sum::Low),
            // It may leave the lower half.
            (Width::W64, Sum::Low | Sum::Signed) => Self::NONE,
            (Width::W64, Sum::Whole) => match self.by.checked_add(by) {
                Some(by) => Self { by, ..self },
                None => Self::NONE,
            },
        }
    }

    /// The link of the number that is shifted by 32 bits, as programs do that extend its lower half.
    pub(in crate::verify) const fn shifted(self, op: AluOp) -> Self {
        match (op, self.sum()) {
            (AluOp::ShiftRight, Sum::Shifted) => self.made(Sum::Low),
            (AluOp::ShiftRightSigned, Sum::Shifted) => self.made(Sum::Signed),
            (AluOp::ShiftLeft, Sum::Whole | Sum::Low | Sum::Signed) => self.made(Sum::Shifted),
            _ => Self::NONE,
        }
    }

    /// The link of the lower half of `number`, which has this one, extended with zeros.
    pub(in crate::verify) const fn of_low(self, number: &Scalar) -> Self {
        match self.sum() {
            _ if number.is_low() => self,
            Sum::Shifted => Self::NONE,
            _ => self.made(Sum::Low),
        }
    }

    /// The same, extended with its sign.
    pub(in crate::verify) const fn of_signed_low(self, number: &Scalar) -> Self {
        match self.sum() {
            _ if number.is_signed_low() => self,
            Sum::Shifted => Self::NONE,
            _ => self.made(Sum::Signed),
        }
    }

    /// The link of a number that has this one on one way, and `other` on another.
    pub(super) fn if_also(self, other: Self) -> Self {
        if self == other { self } else { Self::NONE }
    }

    /// What is left of `number`, which has the link `to`, if `known` is a number with this one.
    fn tell(self, known: Scalar, to: Self, number: Scalar) -> Option<Scalar> {
        if self == to {
            return if number == known { Some(number) } else { number.both(known) };
        }
        if (self.sum(), to.sum()) == (Sum::Whole, Sum::Whole) {
            let by = i64::from(to.by) - i64::from(self.by);
            return number.both(known.alu(Width::W64, AluOp::Add, &Scalar::constant(by as u64)));
        }
        let half_bits = Scalar::constant(32);
        let half = match self.sum() {
            Sum::Shifted => known.alu(Width::W64, AluOp::ShiftRight, &half_bits),
            Sum::Whole | Sum::Low | Sum::Signed => known,
        };
        let by = to.by.wrapping_sub(self.by) as u32;
        let half = half.alu(Width::W32, AluOp::Add, &Scalar::constant(by.into()));
        match to.sum() {
            Sum::Whole => number.with_low(half),
            Sum::Low => number.both(half),
            Sum::Signed => number.both(half.sign_extended(Width::W64, Size::Word)),
            Sum::Shifted => number.both(half.alu(Width::W64, AluOp::ShiftLeft, &half_bits)),
        }
    }
}

impl Frame {
    /// Returns the link of the number in a register.
    pub(in crate::verify) fn link_of(&self, register: Register) -> Link {
        self.content(register).link
    }

    /// Sets the link of the number in a register.
    pub(in crate::verify) fn link(&mut self, register: Register, link: Link) {
        self.content_mut(register).link = link;
    }

    /// Notes what was learned of the number in a register, which stays the same number.
    pub(in crate::verify) fn narrow(&mut self, register: Register, number: Scalar, sources: Sources) {
        let content = self.content_mut(register);
        (content.value, content.sources) = (Value::Scalar(number), sources);
    }

    /// Tells its numbers what is known of the number with `link`, by comparing numbers made of `sources`.
    fn tell(&mut self, link: Link, known: Scalar, sources: Sources) {
        let sources = sources.and(Sources::LINKS);
        let told = |to: Link, number: Scalar| {
            let told = if to.number() == link.number() { link.tell(known, to, number) } else { None };
            told.filter(|told| *told != number)
        };
        let tell = |content: &mut Content| {
            if let Some(told) = content.number().and_then(|number| told(content.link, number)) {
                (content.value, content.sources) = (Value::Scalar(told), content.sources.and(sources));
            }
        };
        self.registers.iter_mut().for_each(tell);
        for slot in &mut self.slots {
            match slot {
                Slot::Whole(content) => tell(content),
                Slot::Bytes(written) => {
                    for half in [0, 4] {
                        let number = written.get(half, Size::Word).unwrap_or(Scalar::of_size(Size::Word));
                        if let Some(told) = told(written.link(half), number) {
                            written.narrow(half, told);
                            self.parts = self.parts.and(sources);
                        }
                    }
                }
                Slot::Dynptr(_) => {}
            }
        }
    }

    /// The links of its numbers.
    fn links(&self) -> impl Iterator<Item = (Place, Link)> {
        let in_registers = self.registers.iter().enumerate().filter_map(|(index, content)| {
            content.number().is_some().then_some((Place::Register(index), content.link))
        });
        let in_slots = self.slots.iter().enumerate().flat_map(|(index, slot)| {
            let found = match slot {
                Slot::Whole(content) if content.number().is_some() => [Some((Place::Slot(index), content.link)), None],
                Slot::Bytes(written) => [0, 4].map(|half| Some((Place::Half(index, half), written.link(half)))),
                _ => [None; 2],
            };
            found.into_iter().flatten()
        });
        in_registers.chain(in_slots).filter(|(_, link)| !link.is_none())
    }

    /// The link at a place, and the number if it is there as a whole.
    fn at(&self, place: Place) -> (Link, Option<Scalar>) {
        match place {
            Place::Register(index) => {
                let content = &self.registers[index];
                content.number().map_or((Link::NONE, None), |number| (content.link, Some(number)))
            }
            Place::Slot(index) => match self.slots.get(index) {
                Some(Slot::Whole(content)) => (content.link, content.number()),
                _ => (Link::NONE, None),
            },
            Place::Half(index, half) => match self.slots.get(index) {
                Some(Slot::Bytes(written)) => (written.link(half), None),
                Some(Slot::Whole(content)) if half == 0 => {
                    (content.number().map_or(Link::NONE, |number| content.link.of_low(&number)), None)
                }
                _ => (Link::NONE, None),
            },
        }
    }
}

/// Where a number is in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Register(usize),
    Slot(usize),
    /// Half of a slot, which begins with this byte.
    Half(usize, u8),
}

/// A number as a sum: of a base, or of 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Term {
    /// The number of the base; 0 for 0.
    base: u32,
    by: i64,
}

impl Term {
    /// Returns the sum for a number with this link; `None` if it is not one of the same kind as that with the link
    /// `like`.
    fn of((link, number): (Link, Option<Scalar>), like: Link) -> Option<Self> {
        if !link.is_none() {
            return (link.sum() == like.sum()).then_some(Self { base: link.number(), by: link.by.into() });
        }
        let number = number?;
        let is_sum = match like.sum() {
            Sum::Whole => true,
            Sum::Low => number.is_low(),
            Sum::Signed => number.is_signed_low(),
            Sum::Shifted => false,
        };
        is_sum.then_some(Self { base: 0, by: number.as_constant()? as i64 })
    }
}

impl State {
    /// Tells all numbers what is known of the number with `link`, by comparing numbers made of `sources`.
    pub(in crate::verify) fn tell(&mut self, link: Link, known: Scalar, sources: Sources, effort: &Effort) {
        effort.add(self.weight());
        for frame in &mut self.frames {
            frame.tell(link, known, sources);
        }
    }

    /// Returns which of its numbers are linked with others.
    pub(in crate::verify) fn links(&self, effort: &Effort) -> Links {
        effort.add(self.weight());
        // Without memory, which few states need: bits of bases that were seen, and seen again.
        let bit = |link: Link| 1_u64 << (link.number() % 64);
        let (mut seen, mut again) = (0, 0);
        self.frames.iter().flat_map(Frame::links).for_each(|(_, link)| {
            again |= seen & bit(link);
            seen |= bit(link);
        });
        if again == 0 {
            return Links(Vec::new());
        }
        let mut all = Vec::new();
        for (depth, frame) in self.frames.iter().enumerate() {
            let may_be_shared = frame.links().filter(|(_, link)| again & bit(*link) != 0);
            all.extend(may_be_shared.map(|(place, link)| Linked { depth, place, link }));
        }
        all.sort_unstable_by_key(|linked| linked.link.number());
        let shared = all.chunk_by(Linked::has_base_of).filter(|of_one| of_one.len() > 1);
        Links(shared.flatten().copied().collect())
    }
}

/// A number with a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Linked {
    /// The functions around the one that has it.
    depth: usize,
    place: Place,
    link: Link,
}

const _: () = assert!(size_of::<Linked>() <= size_of::<Content>());

impl Linked {
    fn has_base_of(&self, other: &Self) -> bool {
        self.link.number() == other.link.number()
    }

    /// Whether it is among `used`, if `innermost` is the depth of the innermost function; of the others, all registers
    /// are.
    fn is_among(&self, used: Sources, innermost: usize) -> bool {
        match self.place {
            Place::Register(index) => self.depth < innermost || used.has_register(index),
            Place::Slot(index) => used.has_slot(self.depth, index),
            Place::Half(..) => used.has_parts(),
        }
    }
}

/// The numbers of a state that are linked with others, base by base: found once, and compared with many states.
#[derive(Debug)]
pub(in crate::verify) struct Links(Vec<Linked>);

impl Links {
    /// How many there are: none takes more room than a value.
    pub(in crate::verify) fn weight(&self) -> usize {
        self.0.len()
    }

    /// Whether those that are among `used` are linked in `other`, too, which has as many functions active.
    pub(super) fn are_in(&self, other: &State, used: Sources, effort: &Effort) -> bool {
        effort.add(self.0.len());
        self.0.chunk_by(Linked::has_base_of).all(|of_one| {
            let mut all = of_one.iter().filter(|linked| linked.is_among(used, other.frames.len() - 1));
            let term = |linked: &Linked| Term::of(other.frames[linked.depth].at(linked.place), linked.link);
            let Some(first) = all.next() else { return true };
            let first_term = term(first);
            all.all(|linked| {
                let (Some(first_term), Some(term)) = (first_term, term(linked)) else { return false };
                let apart = i64::from(linked.link.by) - i64::from(first.link.by);
                first_term.base == term.base && term.by.wrapping_sub(first_term.by) == apart
            })
        })
    }
}
