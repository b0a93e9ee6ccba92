//! The calls, with right and wrong arguments, and what they must answer.

use std::boxed::Box;
use std::ffi::CStr;
use std::format;
use std::ptr;
use std::string::String;
use std::vec::Vec;

use super::kernel::{CALLBACKS, Kernel, Memory, PAGE};
use super::model::{Model, Values};
use super::walk::levels;
use super::{Input, Step};
use crate::machine::palimpsest_paging_machine;
use crate::pages::*;
use crate::result::palimpsest_paging_result::{self, *};
use crate::result::{palimpsest_paging_message, palimpsest_paging_version};
use crate::space::*;

/// Spaces at a time.
pub(super) const SPACES: usize = 4;

pub(super) const RW: u32 = PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_WRITE;

/// Memory for a space, and the space that the model has there.
pub(super) struct Slot {
    pub(super) memory: Memory,
    pub(super) model: Option<Model>,
}

/// A pointer to a space as a caller may pass it.
pub(super) struct Target {
    pub(super) pointer: *mut palimpsest_paging_space,
    /// Which of the slots it is, if it is one.
    pub(super) slot: Option<usize>,
    /// Memory that holds the copy of a space, or nonsense.
    _other: Option<Memory>,
}

pub(super) struct Player {
    /// They do not move: callbacks get their addresses.
    pub(super) kernels: [Box<Kernel>; 2],
    pub(super) slots: Vec<Slot>,
    pub(super) values: Values,
    ids: u64,
}

/// What a call may answer: [`PALIMPSEST_PAGING_OK`] if no mistake was made, and otherwise what names one of them.
#[derive(Clone, Default)]
pub(super) struct Expected(pub(super) Vec<palimpsest_paging_result>);

impl Expected {
    pub(super) fn mistake(&mut self, result: palimpsest_paging_result) {
        self.0.push(result);
    }

    /// Compares an answer. Returns whether the call was done. `refused` are results that memory which is refused
    /// explains.
    pub(super) fn check(
        &self,
        what: &str,
        answer: palimpsest_paging_result,
        refused: &[palimpsest_paging_result],
    ) -> Step<bool> {
        let is_right = match answer {
            PALIMPSEST_PAGING_OK => self.0.is_empty(),
            _ => self.0.contains(&answer) || refused.contains(&answer),
        };
        if is_right {
            return Ok(answer == PALIMPSEST_PAGING_OK);
        }
        Err(format!("{what}: {answer:?} ({}), and not one of {:?}", message(answer), self.0))
    }
}

fn message(result: palimpsest_paging_result) -> String {
    // SAFETY: never null, and a constant text.
    unsafe { CStr::from_ptr(palimpsest_paging_message(result as u32)) }.to_string_lossy().into_owned()
}

/// A structure for results of exactly `len` bytes, which says so.
pub(super) fn sized(len: usize) -> Memory {
    let made = Memory::new(len.max(8), 8);
    // SAFETY: a word at least, aligned as one.
    unsafe { made.at::<usize>(0).write(len) };
    made
}

/// Returns the length of a structure for results, which may be wrong: then it is a mistake.
pub(super) fn length(right: usize, input: &mut Input<'_>, expected: &mut Expected) -> usize {
    match input.byte() {
        0..220 => right,
        // Of a later header.
        220..236 => right + 8,
        _ => {
            expected.mistake(PALIMPSEST_PAGING_INVALID);
            input.one([0, 8, right - 1])
        }
    }
}

impl Player {
    pub(super) fn new() -> Self {
        let slot = || Slot { memory: Memory::new(size_of::<palimpsest_paging_space>(), 8), model: None };
        let mut slots = Vec::new();
        slots.resize_with(SPACES, slot);
        let kernels = [Box::new(Kernel::new(0)), Box::new(Kernel::new(1))];
        Self { kernels, slots, values: Values::default(), ids: 0 }
    }

    /// Drops every space: all that callbacks handed out comes back.
    pub(super) fn end(mut self) -> Step {
        for slot in 0..SPACES {
            if self.slots[slot].model.is_some() {
                self.drop_slot(slot)?;
            }
        }
        self.kernels.iter().try_for_each(|kernel| {
            kernel.complaint()?;
            match kernel.used() {
                0 => Ok(()),
                used => Err(format!("{used} frames were never given back")),
            }
        })
    }

    /// Mostly a space that lives; now and then a wrong pointer. What that is answered goes to `expected`.
    pub(super) fn target(&self, input: &mut Input<'_>, expected: &mut Expected) -> Target {
        let slot = input.byte() % SPACES;
        let at = |memory: &Memory, offset| memory.at::<palimpsest_paging_space>(offset);
        let (kind, place) = (input.byte(), &self.slots[slot].memory);
        let wrong = |pointer, other| Target { pointer, slot: None, _other: other };
        match kind {
            0..232 => {
                let live = (0..SPACES).map(|more| (slot + more) % SPACES);
                let mut live = live.filter(|&slot| self.slots[slot].model.is_some());
                // Of a slot without a space, if there is none at all or that is chosen.
                let slot = if kind < 224 { live.next().unwrap_or(slot) } else { slot };
                if self.slots[slot].model.is_none() {
                    expected.mistake(PALIMPSEST_PAGING_STALE);
                }
                Target { pointer: at(&self.slots[slot].memory, 0), slot: Some(slot), _other: None }
            }
            232..236 => {
                expected.mistake(PALIMPSEST_PAGING_INVALID);
                wrong(ptr::null_mut(), None)
            }
            236..242 => {
                expected.mistake(PALIMPSEST_PAGING_INVALID);
                wrong(at(place, 4), None)
            }
            _ => {
                // A copy elsewhere, or nonsense.
                expected.mistake(PALIMPSEST_PAGING_STALE);
                let other = Memory::new(size_of::<palimpsest_paging_space>(), 8);
                let len = size_of::<palimpsest_paging_space>();
                if kind < 250 {
                    // SAFETY: that many bytes on both sides.
                    unsafe { other.at::<u8>(0).copy_from_nonoverlapping(place.at(0), len) };
                } else {
                    // SAFETY: that many bytes.
                    unsafe { other.at::<u8>(0).write_bytes(kind as u8, len) };
                }
                wrong(other.at(0), Some(other))
            }
        }
    }

    /// Mostly memory without a space, in which one can be made.
    fn vacant(&self, input: &mut Input<'_>, expected: &mut Expected) -> Target {
        let slot = input.byte() % SPACES;
        let wrong = |pointer| Target { pointer, slot: None, _other: None };
        match input.byte() {
            0..4 => {
                expected.mistake(PALIMPSEST_PAGING_INVALID);
                wrong(ptr::null_mut())
            }
            4..8 => {
                expected.mistake(PALIMPSEST_PAGING_INVALID);
                wrong(self.slots[slot].memory.at(1))
            }
            kind => {
                let vacant = (0..SPACES).find(|&slot| self.slots[slot].model.is_none());
                let slot = vacant.filter(|_| kind >= 16).unwrap_or(slot);
                if self.slots[slot].model.is_some() {
                    expected.mistake(PALIMPSEST_PAGING_IN_USE);
                }
                Target { pointer: self.slots[slot].memory.at(0), slot: Some(slot), _other: None }
            }
        }
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub(super) fn make(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.vacant(input, &mut expected);
        let (kernel, mut format, mut id) = (input.byte() % 2, input.byte() as u32 % 6, self.next_id());
        let mut share = input.byte() as u32 % levels(format);
        let machine = self.kernels[kernel].machine();
        let known = size_of::<palimpsest_paging_machine>();
        // `known - 8` is the first header's.
        let len = if input.seldom() { input.one([0, 8, known - 16, known - 8, known + 8, 5000]) } else { known };
        let given = Memory::new(len.max(8), 8);
        // SAFETY: that many bytes on both sides.
        unsafe { given.at::<u8>(0).copy_from_nonoverlapping((&raw const machine).cast(), len.min(known)) };
        // SAFETY: a word at least.
        unsafe { given.at::<usize>(0).write(len) };
        if len < known - 8 || len > PAGE as usize {
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        } else if input.seldom() || (len > known && input.byte().is_multiple_of(2)) {
            Self::spoil(&given, len, format, input, &mut expected);
        }
        let mut pointer: *const palimpsest_paging_machine = given.at(0);
        if input.seldom() {
            expected.mistake(PALIMPSEST_PAGING_INVALID);
            match input.byte() % 5 {
                0 => format += 6,
                1 => id = u64::MAX,
                2 => share += levels(format),
                3 => pointer = ptr::null(),
                _ => pointer = given.at(4),
            }
        }
        // SAFETY: 1. null or memory of this player's. 2. null, not aligned, or that long; the kernels live as long.
        let answer = unsafe { palimpsest_paging_space_new(target.pointer, pointer, format, id, share) };
        if expected.check("space_new", answer, &[PALIMPSEST_PAGING_NO_MEMORY])? {
            let model = Model { id, format, kernel, areas: Vec::new(), is_unmarked: false };
            let Some(slot) = target.slot else { return Err("a space in no memory".into()) };
            self.slots[slot].model = Some(model);
        }
        Ok(())
    }

    /// Spoils a description of the machine, and notes whether that is a mistake.
    fn spoil(given: &Memory, len: usize, format: u32, input: &mut Input<'_>, expected: &mut Expected) {
        let known = size_of::<palimpsest_paging_machine>().min(len) / 8;
        let word = match input.byte() {
            // Bytes that only a later header knows.
            choice if len / 8 > known => known + choice % (len / 8 - known),
            0..40 => 2,
            40..80 => 3,
            choice => CALLBACKS + choice % (known - CALLBACKS),
        };
        let at = given.at::<usize>(word * 8);
        let callback = |number: usize| word == CALLBACKS + number;
        // In the header's order: free_tables, flush_here, relax, page_split and page_merge may be null, and are needed
        // by nobody here.
        let may_miss = callback(3) || callback(5) || callback(7) || callback(12) || callback(13);
        let is_aarch64 = matches!(format, PALIMPSEST_PAGING_AARCH64 | PALIMPSEST_PAGING_AARCH64_UPPER);
        // entries_made is for AArch64.
        let is_harmless = may_miss || (callback(6) && !is_aarch64);
        let value = if word < CALLBACKS || word >= known { 8 } else { 0 };
        // SAFETY: a word of the structure.
        let before = unsafe { at.read() };
        // SAFETY: as above.
        unsafe { at.write(if value == 0 { 0 } else { before.wrapping_add(value) }) };
        if !is_harmless {
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
    }

    pub(super) fn fork(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let parent = self.target(input, &mut expected);
        let child = self.vacant(input, &mut expected);
        let mut id = self.next_id();
        let of_parent = parent.slot.and_then(|slot| Some(self.slots[slot].model.as_ref()?.id));
        if input.seldom() {
            id = of_parent.filter(|_| input.byte().is_multiple_of(2)).unwrap_or(u64::MAX);
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
        // SAFETY: 1. and 2. null or memory of this player's.
        let answer = unsafe { palimpsest_paging_fork(parent.pointer, child.pointer, id) };
        // The kernel's private data is copied at once.
        if !expected.check("fork", answer, &[PALIMPSEST_PAGING_NO_MEMORY, PALIMPSEST_PAGING_NO_PAGE])? {
            return Ok(());
        }
        let (Some(parent), Some(child)) = (parent.slot, child.slot) else { return Err("a fork of nothing".into()) };
        let values = &mut self.values;
        let forked = self.slots[parent].model.as_ref().map(|model| model.forked(id, values));
        self.slots[child].model = forked;
        Ok(())
    }

    pub(super) fn drop_space(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        match target.slot.filter(|_| expected.0.is_empty()) {
            Some(slot) => self.drop_slot(slot),
            None => {
                // SAFETY: 1. null, not aligned, or without a space.
                let answer = unsafe { palimpsest_paging_space_drop(target.pointer) };
                expected.check("drop", answer, &[]).map(|_| ())
            }
        }
    }

    /// Drops a space that lives, and then once more.
    fn drop_slot(&mut self, slot: usize) -> Step {
        let place = self.slots[slot].memory.at(0);
        self.slots[slot].model = None;
        for wanted in [PALIMPSEST_PAGING_OK, PALIMPSEST_PAGING_STALE] {
            // SAFETY: 1. memory of this player's, whose space no other thread uses.
            let answer = unsafe { palimpsest_paging_space_drop(place) };
            if answer != wanted {
                return Err(format!("drop: {answer:?} and not {wanted:?}"));
            }
        }
        // The rest of the memory need not be zero for the next space, but callers are told to clear it.
        Ok(())
    }

    pub(super) fn others(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let len = length(size_of::<palimpsest_paging_stats>(), input, &mut expected);
        let out = sized(len);
        // SAFETY: 1. null or memory of this player's. 2. as long as it says.
        let answer = unsafe { palimpsest_paging_space_stats(target.pointer, out.at(0)) };
        if expected.check("stats", answer, &[])? {
            // SAFETY: written by the call, and long enough, or that had been a mistake.
            let stats = unsafe { out.at::<palimpsest_paging_stats>(0).read() };
            let flushed = self.kernels.iter().map(|kernel| kernel.flushes() as u64).sum();
            if stats.size != len || stats.tables < 0 || stats.flushes > flushed {
                return Err(format!("stats: {stats:?}, and {flushed} flushes"));
            }
        }
        let is_told = !message(answer).is_empty() && palimpsest_paging_version() != 0;
        if is_told { Ok(()) } else { Err("no message, or no version".into()) }
    }
}
