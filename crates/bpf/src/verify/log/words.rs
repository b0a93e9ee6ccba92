//! Says in words what the verifier knows.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::watch::Entry;
use super::{LogChange, Names};
use crate::code::Code;
use crate::insn::{Callee, Instruction, Size};
use crate::verify::Contract;
use crate::verify::scalar::Scalar;
use crate::verify::state::{Area, Backing, GENERATION, Known, Part, Place, Value};

/// Most places of a step that are named.
const MOST_CHANGES: usize = 16;

/// What the words depend on.
pub(super) struct Speaker<'a> {
    pub(super) code: &'a Code,
    pub(super) contract: &'a Contract,
    pub(super) names: &'a Names,
}

/// Names the function with `depth` around it for one with `here` around it.
fn whose(depth: usize, here: usize) -> String {
    match here.saturating_sub(depth) {
        0 => String::new(),
        1 => " of the caller".to_string(),
        up => format!(" of the function {up} calls up"),
    }
}

/// Says where `offset` bytes into something are.
fn at(what: &str, offset: &Scalar) -> String {
    match offset.as_constant().map(|offset| offset as i64) {
        Some(0) => what.to_string(),
        Some(offset) if offset < 0 => format!("{what} - {}", offset.unsigned_abs()),
        Some(offset) => format!("{what} + {offset}"),
        None => format!("{what} + ({offset})"),
    }
}

impl Speaker<'_> {
    fn slot(&self, index: usize) -> usize {
        self.code.slot(index)
    }

    /// The slot of the call that has returned what has this number: each instruction has several.
    fn slot_of(&self, id: u32) -> usize {
        self.slot((id % GENERATION) as usize)
    }

    fn map(&self, index: u32) -> String {
        if let Some(name) = self.names.maps.get(index as usize) {
            return format!("map `{name}`");
        }
        let outer = self.contract.maps.iter().position(|map| map.inner == Some(index));
        match outer.and_then(|outer| self.names.maps.get(outer)) {
            Some(outer) => format!("a map of `{outer}`"),
            None => format!("map {index}"),
        }
    }

    fn area(&self, area: Area, here: usize) -> String {
        match area {
            Area::Context => "context".to_string(),
            Area::Stack(depth) => format!("r10{}", whose(depth, here)),
            Area::MapValue(map) | Area::Lockable { map, .. } => format!("value of {}", self.map(map)),
            Area::MapKey(map) => format!("key of {}", self.map(map)),
            Area::Inner(map) => self.map(map),
            Area::Slice { id, len } => format!("{len} bytes of the dynptr from slot {}", self.slot_of(id)),
            Area::Record { id, len } => format!("record of {len} bytes from slot {}", self.slot_of(id)),
            Area::Object { id, .. } => format!("object from slot {}", self.slot_of(id)),
            Area::Argument { number, len, .. } => format!("the {len} bytes that r{number} was given"),
        }
    }

    fn value(&self, value: &Value, here: usize) -> String {
        match value {
            Value::Unset | Value::Cleared => "no value".to_string(),
            Value::Scalar(number) => number.to_string(),
            Value::Pointer(area, offset) => at(&self.area(*area, here), offset),
            Value::Maybe(area, _) => format!("{}, or 0", self.area(*area, here)),
            Value::Map(map) => self.map(*map),
            Value::Function(entry) => format!("function in slot {}", self.slot(*entry as usize)),
            Value::Sample(id) => format!("dynptr of the helper in slot {}", self.slot_of(*id)),
        }
    }

    /// Says what is known of a place; bytes of a slot by their distances from the end of the stack.
    fn known(&self, place: Place, known: &Known, here: usize) -> String {
        match known {
            Known::Value(value) => self.value(value, here),
            Known::Bytes(written, numbers) => {
                let Place::Slot(_, start) = place else { return String::new() };
                bytes(start, *written, numbers)
            }
            Known::Dynptr(id, of, part) => {
                let part = match part {
                    Part::Lower => "dynptr",
                    Part::Upper => "the rest of the dynptr",
                };
                let of = match of {
                    Backing::Value => "a value",
                    Backing::Record => "a record",
                };
                format!("{part} of {of} from slot {}", self.slot_of(*id))
            }
            Known::Records(records) if records.is_empty() => "nothing".to_string(),
            Known::Records(records) => {
                let from: Vec<String> = records.iter().map(|id| format!("slot {}", self.slot_of(*id))).collect();
                format!("from {}", from.join(", "))
            }
            Known::Lock(None) => "none".to_string(),
            Known::Lock(Some(held)) => {
                format!("of a value of {}, taken in slot {}", self.map(held.map), self.slot(held.at as usize))
            }
        }
    }

    /// Says what became known, in a step of a function with `here` around it. The first ones of very many, and how many
    /// more there are.
    pub(super) fn changes(&self, changes: &[(Place, Known)], here: usize) -> (Vec<LogChange>, usize) {
        let mut said: Vec<LogChange> = Vec::new();
        let is_lost = |place: &Place, known: &Known| matches!(place, Place::Register(..)) && known.is_nothing();
        for (place, known) in changes.iter().filter(|(place, known)| !is_lost(place, known)) {
            let value = self.known(*place, known, here);
            let place = match *place {
                Place::Register(depth, register) => format!("{register}{}", whose(depth, here)),
                Place::Slot(depth, start) => format!("r10 - {}{}", start.unsigned_abs(), whose(depth, here)),
                Place::Records => "to give back".to_string(),
                Place::Lock => "lock".to_string(),
            };
            said.push(LogChange { place, value });
        }
        // Together, since calls take five of them.
        let lost: Vec<String> = changes
            .iter()
            .filter_map(|(place, known)| match *place {
                Place::Register(depth, register) if known.is_nothing() => {
                    Some(format!("{register}{}", whose(depth, here)))
                }
                _ => None,
            })
            .collect();
        if !lost.is_empty() {
            said.push(LogChange { place: lost.join(", "), value: "no value".to_string() });
        }
        let more = said.len().saturating_sub(MOST_CHANGES);
        said.truncate(MOST_CHANGES);
        (said, more)
    }

    /// Says where a way went on, if the instruction does not tell.
    pub(super) fn turn(&self, entry: &Entry, next: &Entry) -> Option<String> {
        let certainly = if entry.is_fork { "" } else { "certainly " };
        let slot = self.slot(next.at);
        let is_inside = next.depth > entry.depth;
        match entry.instruction {
            Instruction::Branch { .. } if next.at == entry.at + 1 => Some(format!("{certainly}goes on")),
            Instruction::Branch { .. } => Some(format!("{certainly}jumps to slot {slot}")),
            Instruction::MayGoto { .. } if next.at == entry.at + 1 => Some("goes on".to_string()),
            Instruction::MayGoto { .. } => Some(format!("has run out, and jumps to slot {slot}")),
            Instruction::Call(Callee::Local(_)) if is_inside => Some(format!("enters the function in slot {slot}")),
            Instruction::Call(Callee::Local(_)) => Some("is not entered: verified alone".to_string()),
            Instruction::Call(_) if is_inside => Some(format!("calls the function in slot {slot}")),
            Instruction::Call(Callee::Kernel { id, .. }) => {
                let name = usize::try_from(id).ok().and_then(|index| self.names.functions.get(index))?;
                Some(format!("calls `{name}`"))
            }
            Instruction::Exit if next.depth < entry.depth => Some(format!("returns to slot {slot}")),
            Instruction::Exit => Some(format!("the helper calls the function in slot {slot} again")),
            _ => None,
        }
    }
}

/// Says what is known of 8 bytes that were written in parts.
fn bytes(start: i64, written: u8, numbers: &[(u8, Size, Scalar)]) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut rest = written;
    for (byte, size, number) in numbers {
        rest &= !((u8::MAX >> (8 - size.bytes())) << byte);
        said.push(format!("{} at -{}: {number}", letter(*size), (start + i64::from(*byte)).unsigned_abs()));
    }
    if rest == u8::MAX {
        return "8 bytes of any number".to_string();
    }
    let mut byte = 0;
    while byte < 8 {
        let len = (rest >> byte).trailing_ones().min(8 - byte);
        if len > 0 {
            let from = (start + i64::from(byte)).unsigned_abs();
            said.push(format!("{len} bytes at -{from} of any number"));
        }
        byte += len.max(1);
    }
    said.join(", ")
}

/// Names a size as instructions do.
const fn letter(size: Size) -> &'static str {
    match size {
        Size::Byte => "u8",
        Size::Half => "u16",
        Size::Word => "u32",
        Size::Double => "u64",
    }
}
