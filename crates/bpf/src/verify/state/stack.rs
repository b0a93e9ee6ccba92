//! The stack of an active function: 8 aligned bytes at a time, downwards from its end.

use super::slot::{DYNPTR, Dynptr, Half, SLOT, Slot};
use super::written::Written;
use super::{Backing, Content, Frame, Link, Value};
use crate::insn::Size;
use crate::interp::FRAME;
use crate::verify::scalar::Scalar;

/// Why bytes of the stack cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) enum Unreadable {
    /// Nothing was written there.
    Unset,
    /// They are part of a pointer.
    PartOfPointer,
}

impl Frame {
    /// Iterates over the slots of the `len` bytes at `offset`, with a bit for each of their bytes that is among these.
    /// `offset` is negative and inside the frame, and so is the end.
    fn slots_of(offset: i64, len: usize) -> impl Iterator<Item = (usize, u8)> {
        let start = (FRAME as i64 + offset) as usize;
        let end = start + len;
        (start / SLOT..end.div_ceil(SLOT)).filter(move |_| len > 0).map(move |slot| {
            let bottom = slot * SLOT;
            let (first, behind) = (start.max(bottom) - bottom, end.min(bottom + SLOT) - bottom);
            (FRAME / SLOT - 1 - slot, (u8::MAX << first) & (u8::MAX >> (SLOT - behind)))
        })
    }

    fn slot_mut(&mut self, index: usize) -> &mut Slot {
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot::UNSET);
        }
        &mut self.slots[index]
    }

    /// Returns the slot that an access covers, if it covers one exactly.
    fn whole(offset: i64, size: Size) -> Option<usize> {
        let is_whole = size == Size::Double && offset % SLOT as i64 == 0;
        is_whole.then(|| ((-offset) as usize) / SLOT - 1)
    }

    /// Notes that something is written at `offset`; a pointer only as a whole slot.
    pub(in crate::verify) fn write(&mut self, offset: i64, size: Size, content: Content) {
        if let Some(index) = Self::whole(offset, size) {
            *self.slot_mut(index) = Slot::Whole(content);
            return;
        }
        self.write_some(offset, size.bytes(), true);
        if let (Some((index, at)), Some(number)) = (Self::part(offset, size), content.number()) {
            self.parts = self.parts.and(content.sources);
            if let Slot::Bytes(written) = self.slot_mut(index) {
                written.put(at, size, number);
                if size == Size::Word {
                    written.set_link(at, content.link.of_low(&number));
                }
            }
        }
    }

    /// Returns the slot of an aligned access to part of one, and at which of its bytes it begins.
    fn part(offset: i64, size: Size) -> Option<(usize, u8)> {
        let is_part = size != Size::Double && offset % size.bytes() as i64 == 0;
        is_part.then(|| (((-offset - 1) as usize) / SLOT, offset.rem_euclid(SLOT as i64) as u8))
    }

    /// Notes that up to `len` bytes of numbers are written at `offset`; all of them if that is `certain`.
    pub(in crate::verify) fn write_some(&mut self, offset: i64, len: usize, certain: bool) {
        for (index, bytes) in Self::slots_of(offset, len) {
            let mut parts = self.parts;
            let slot = self.slot_mut(index);
            let mut written = match slot {
                Slot::Bytes(written) => *written,
                Slot::Whole(Content { value: Value::Scalar(number), sources, .. }) => {
                    parts = parts.and(*sources);
                    Written::of(*number)
                }
                Slot::Whole(_) | Slot::Dynptr(_) => Written::NOTHING,
            };
            written.overwrite(bytes, certain);
            *slot = Slot::Bytes(written);
            self.parts = parts;
        }
    }

    /// Whether `len` bytes at `offset` are numbers.
    pub(in crate::verify) fn read_all(&self, offset: i64, len: usize) -> Result<(), Unreadable> {
        for (index, bytes) in Self::slots_of(offset, len) {
            match self.slots.get(index).unwrap_or(&Slot::UNSET) {
                Slot::Bytes(written) if written.has(bytes) => {}
                Slot::Bytes(_) | Slot::Whole(Content { value: Value::Unset, .. }) => return Err(Unreadable::Unset),
                Slot::Whole(Content { value: Value::Scalar(_), .. }) => {}
                Slot::Whole(_) | Slot::Dynptr(_) => return Err(Unreadable::PartOfPointer),
            }
        }
        Ok(())
    }

    /// Returns the slots of the dynptr at `offset`, if that can be a place for one: the low half first.
    fn halves(offset: i64) -> Option<[usize; 2]> {
        let is_place = offset % SLOT as i64 == 0 && (-(FRAME as i64)..=-DYNPTR).contains(&offset);
        // Slots count downwards from the end.
        is_place.then(|| (-offset) as usize / SLOT - 1).map(|low| [low, low - 1])
    }

    /// Whether there can be a dynptr at `offset`.
    pub(in crate::verify) fn has_place(offset: i64) -> bool {
        Self::halves(offset).is_some()
    }

    /// Returns the dynptr that begins at `offset`.
    pub(in crate::verify) fn dynptr(&self, offset: i64) -> Option<Dynptr> {
        match self.slots.get(Self::halves(offset)?[0]) {
            Some(Slot::Dynptr(dynptr)) if dynptr.half == Half::Low => Some(*dynptr),
            _ => None,
        }
    }

    /// Notes that there is a dynptr at `offset`, which is a [place](Self::has_place) for one.
    pub(in crate::verify) fn put_dynptr(&mut self, offset: i64, id: u32, of: Backing) {
        for (index, half) in Self::halves(offset).into_iter().flatten().zip([Half::Low, Half::High]) {
            *self.slot_mut(index) = Slot::Dynptr(Dynptr { id, of, half });
        }
    }

    /// Forgets dynptrs that overlap the `len` bytes at `offset`; an error if one of them must be given back.
    pub(in crate::verify) fn overwrite(&mut self, offset: i64, len: usize) -> Result<(), Dynptr> {
        for (index, _) in Self::slots_of(offset, len) {
            let Some(Slot::Dynptr(dynptr)) = self.slots.get(index).copied() else { continue };
            if dynptr.of == Backing::Record {
                return Err(dynptr);
            }
            let other = if dynptr.half == Half::Low { index - 1 } else { index + 1 };
            (self.slots[index], self.slots[other]) = (Slot::UNSET, Slot::UNSET);
        }
        Ok(())
    }

    /// Forgets the dynptrs of this instruction.
    pub(super) fn forget_dynptrs(&mut self, id: u32) {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Dynptr(dynptr) if dynptr.id == id) {
                *slot = Slot::UNSET;
            }
        }
    }

    /// Returns what is read at `offset`.
    pub(in crate::verify) fn read(&self, offset: i64, size: Size) -> Result<Content, Unreadable> {
        let slot = |index: usize| self.slots.get(index).unwrap_or(&Slot::UNSET);
        if let Some(Slot::Whole(content)) = Self::whole(offset, size).map(slot) {
            return Ok(*content);
        }
        self.read_all(offset, size.bytes())?;
        let Some((index, at)) = Self::part(offset, size) else { return Ok(Content::unknown(size)) };
        Ok(match slot(index) {
            Slot::Bytes(written) => {
                let link = if size == Size::Word { written.link(at) } else { Link::NONE };
                match written.get(at, size) {
                    // Whatever other numbers there are, it is this.
                    None if link.is_none() => Content::unknown(size),
                    number => {
                        let value = Value::Scalar(number.unwrap_or(Scalar::of_size(size)));
                        Content { value, sources: self.parts, link }
                    }
                }
            }
            Slot::Whole(Content { value: Value::Scalar(number), sources, link }) => {
                let link = if (at, size) == (0, Size::Word) { link.of_low(number) } else { Link::NONE };
                Content { value: Value::Scalar(number.part(at, size)), sources: *sources, link }
            }
            Slot::Whole(_) | Slot::Dynptr(_) => Content::unknown(size),
        })
    }
}
