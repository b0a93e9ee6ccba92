//! Loads and stores.

use super::Step;
use crate::insn::{AluOp, AtomicOp, Register, Size, Width};
use crate::interp::FRAME;
use crate::map::{LOCK, TIMER, ValueAccess};
use crate::verify::fault::Fault;
use crate::verify::scalar::Scalar;
use crate::verify::state::{Area, Content, Unreadable, Value};
use crate::verify::{ContextAccess, ContextUse, Guard};

/// Whether an access must be aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alignment {
    Any,
    Natural,
}

/// Bytes of a stack, of which an access touches all, or some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) struct Span {
    /// Where they begin, from the end of the stack.
    pub(in crate::verify) offset: i64,
    /// How many there are.
    pub(in crate::verify) len: usize,
    pub(in crate::verify) touched: Touched,
}

/// How many bytes are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) enum Touched {
    All,
    /// As many as the access has, somewhere among them.
    Some,
}

impl Span {
    /// The bytes that `len` bytes at `place` may be. All of them are inside of the stack.
    pub(in crate::verify) fn of(place: Scalar, len: usize) -> Self {
        let (first, last) = (place.signed_min(), place.signed_max());
        let touched = if first == last { Touched::All } else { Touched::Some };
        Self { offset: first, len: len + (last - first) as usize, touched }
    }

    /// The fault if they cannot be read.
    pub(in crate::verify) const fn fault(self, unreadable: Unreadable) -> Fault {
        let Self { offset, len, .. } = self;
        match unreadable {
            Unreadable::Unset => Fault::StackUnset { offset, len },
            Unreadable::PartOfPointer => Fault::PartOfAddress { offset, len },
        }
    }
}

impl Step<'_> {
    /// Returns the memory that an access means: an area, and the bytes into it, which are all inside.
    fn place(&self, size: Size, base: Register, offset: i16, alignment: Alignment) -> Result<(Area, Scalar), Fault> {
        let (area, start) = match self.see(base)? {
            Value::Pointer(area, start) => (*area, start),
            Value::Maybe(..) => return Err(Fault::MaybeNull { register: base }),
            _ => return Err(Fault::NoAddress { register: base }),
        };
        let place = start.alu(Width::W64, AluOp::Add, &Scalar::constant(i64::from(offset) as u64));
        self.is_inside(area, place, size.bytes() as i64)?;
        let wanted = size.bytes();
        let is_aligned = area == Area::Context || wanted <= area.align().into();
        if alignment == Alignment::Natural && !(is_aligned && place.is_aligned(wanted as u64)) {
            return Err(Fault::Unaligned { align: wanted });
        }
        if alignment == Alignment::Natural && area == Area::Context {
            self.shared.context_use.set(ContextUse::Atomic);
        }
        Ok((area, place))
    }

    /// Whether `len` bytes at `place` are all inside.
    pub(in crate::verify) fn is_inside(&self, area: Area, place: Scalar, len: i64) -> Result<(), Fault> {
        let (min, end) = (place.signed_min(), place.signed_max().saturating_add(len));
        let map = |map: u32| self.shared.contract.maps[map as usize];
        let (what, room) = match area {
            Area::Context => {
                let len = self.shared.contract.context.map_or(0, |(len, _)| len);
                let is_inside = min >= 0 && end <= i64::from(len);
                return if is_inside { Ok(()) } else { Err(Fault::Context { min, end, len }) };
            }
            Area::Stack(_) if min < -(FRAME as i64) || end > 0 => return Err(Fault::Stack { min, end }),
            Area::Stack(_) => return Ok(()),
            Area::MapValue(number) | Area::Lockable { map: number, .. } => {
                let shape = map(number);
                let touches = |at: u32, bytes: u32| len > 0 && min < i64::from(at + bytes) && end > i64::from(at);
                if let Some(at) = shape.timer.filter(|at| touches(*at, TIMER)) {
                    return Err(Fault::TimerBytes { min, end, at });
                }
                if let Some(at) = shape.lock.filter(|at| touches(*at, LOCK)) {
                    return Err(Fault::LockBytes { min, end, at });
                }
                ("the value", shape.value_len)
            }
            Area::MapKey(number) => ("the key", map(number).key_len),
            Area::Inner(_) => ("the map", 0),
            Area::Object { .. } => ("the object", 0),
            Area::Slice { len, .. } => ("the slice", len),
            Area::Record { len, .. } => ("the record", len),
            Area::Argument { len, .. } => ("the memory that the function gets", len),
        };
        let is_inside = min >= 0 && end <= i64::from(room);
        if is_inside { Ok(()) } else { Err(Fault::Outside { what, min, end, len: room }) }
    }

    /// Whether an area belongs to a map inside a map, of which there may be several.
    pub(super) fn is_inner(&self, area: Area) -> bool {
        matches!(area, Area::MapValue(map) | Area::MapKey(map) if map as usize >= self.shared.contract.own_maps)
    }

    /// Whether an area may be written to.
    pub(in crate::verify) fn may_write(&self, area: Area) -> Result<(), Fault> {
        match area {
            Area::Context => match self.shared.contract.context {
                Some((_, ContextAccess::Write)) => Ok(()),
                _ => Err(Fault::ReadOnly),
            },
            Area::MapValue(map) | Area::Lockable { map, .. }
                if self.shared.contract.maps[map as usize].access == ValueAccess::Read =>
            {
                Err(Fault::ReadOnlyMap)
            }
            Area::MapKey(_) | Area::Inner(_) | Area::Object { .. } => Err(Fault::ReadOnlyMap),
            Area::Stack(_)
            | Area::MapValue(_)
            | Area::Lockable { .. }
            | Area::Slice { .. }
            | Area::Record { .. }
            | Area::Argument { .. } => Ok(()),
        }
    }

    /// Forgets dynptrs that bytes written to the stack may overlap.
    pub(in crate::verify) fn overwrite(&mut self, depth: usize, span: Span) -> Result<(), Fault> {
        let overwritten = self.state.frames[depth].overwrite(span.offset, span.len);
        overwritten.map_err(|dynptr| Fault::DynptrLost { slot: self.shared.code.slot(dynptr.id as usize) })
    }

    /// Returns what is loaded.
    pub(super) fn load(&self, size: Size, base: Register, offset: i16, alignment: Alignment) -> Result<Content, Fault> {
        let (area, place) = self.place(size, base, offset, alignment)?;
        let Area::Stack(depth) = area else { return Ok(Content::unknown(size)) };
        let (frame, span) = (&self.state.frames[depth], Span::of(place, size.bytes()));
        let loaded = match span.touched {
            Touched::All => frame.read(span.offset, size),
            Touched::Some => frame.read_all(span.offset, span.len).map(|()| Content::unknown(size)),
        };
        loaded.map_err(|unreadable| span.fault(unreadable))
    }

    pub(super) fn store(
        &mut self,
        size: Size,
        base: Register,
        offset: i16,
        (mut content, register): (Content, Option<Register>),
        alignment: Alignment,
    ) -> Result<(), Fault> {
        let value = content.value;
        let (area, place) = match self.place(size, base, offset, alignment) {
            Ok((area, place)) => (area, place),
            Err(fault) if alignment == Alignment::Any && !value.is_address() => return self.check_store(base, fault),
            Err(fault) => return Err(fault),
        };
        self.note_proven(area)?;
        if let (true, Some(register)) = (value.is_address(), register) {
            let is_whole = size == Size::Double && place.is_aligned(8);
            let outlives = match (area, value) {
                (Area::Stack(depth), Value::Pointer(Area::Stack(of), _)) => of <= depth,
                (Area::Stack(_), _) => true,
                _ => false,
            };
            if !is_whole || !outlives {
                return Err(Fault::StoredAddress { register });
            }
            let (min, max) = (place.signed_min(), place.signed_max());
            if min != max {
                return Err(Fault::VariableStack { min, max });
            }
        }
        self.may_write(area)?;
        let Area::Stack(depth) = area else { return Ok(()) };
        let span = Span::of(place, size.bytes());
        self.overwrite(depth, span)?;
        let was_number = self.state.frames[depth].read_all(span.offset, span.len).is_ok();
        match span.touched {
            Touched::All => {
                if let (Some(register), Size::Word | Size::Double) = (register, size) {
                    content.link = self.linked(register);
                }
                self.state.frames[depth].write(span.offset, size, content);
            }
            // Bytes that were not written before may still be so, and an address may be there in part.
            Touched::Some => self.state.frames[depth].write_some(span.offset, span.len, false),
        }
        if !was_number || value.is_address() {
            // A load in speculation may get the old contents: an address, or what another program has left.
            self.guard(Guard::Behind);
        }
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        op: AtomicOp,
        width: Width,
        base: Register,
        offset: i16,
        src: Register,
    ) -> Result<(), Fault> {
        let size = match width {
            Width::W32 => Size::Word,
            Width::W64 => Size::Double,
        };
        self.number(src)?;
        if op == AtomicOp::CompareExchange {
            self.number(Register::R0)?;
        }
        match self.load(size, base, offset, Alignment::Natural)?.value {
            Value::Scalar(_) => {}
            // The value that the program gets back would be an address.
            _ => return Err(Fault::PartOfAddress { offset: offset.into(), len: size.bytes() }),
        }
        let (area, place) = self.place(size, base, offset, Alignment::Natural)?;
        self.may_write(area)?;
        if let Area::Stack(depth) = area {
            // They were numbers, and are any.
            let span = Span::of(place, size.bytes());
            self.state.frames[depth].write_some(span.offset, span.len, false);
        }
        match op {
            AtomicOp::CompareExchange => self.set(Register::R0, Scalar::of_size(size)),
            op if op.fetches_to_source() => self.set(src, Scalar::of_size(size)),
            _ => {}
        }
        Ok(())
    }
}
