//! The calls for pages, and what programs then find.

use std::format;
use std::ptr;

use super::calls::{Expected, Player, RW, SPACES, length, sized};
use super::kernel::{DEVICE, Found, PAGE};
use super::model::{Area, Behind, Model};
use super::walk::reach;
use super::{Input, Step};
use crate::pages::*;
use crate::result::palimpsest_paging_result::{self, *};
use crate::space::palimpsest_paging_root;

/// Which of two functions changes what is mapped.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Unmap,
    Protect,
}

impl Player {
    pub(super) fn map(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let model = target.slot.and_then(|slot| self.slots[slot].model.as_ref());
        let (kernel, place) = (model.map_or(0, |model| model.kernel), input.byte());
        let mut start = model.map_or(1 << 21, |model| model.place(place));
        let kind = input.byte();
        let is_page = kind < 200;
        let extra = input.one([0, 0, PALIMPSEST_PAGING_SHARED, PALIMPSEST_PAGING_EXECUTE, PALIMPSEST_PAGING_KERNEL]);
        let mut attributes = RW | extra;
        let (mut len, mut sizes) = (PAGE, input.one([0, 0, 1, 2]));
        let (mut physical, mut page) = (DEVICE + (place as u64) * reach(2), None);
        if is_page {
            page = self.kernels[kernel].take();
            let Some(frame) = page else { return Ok(()) };
            physical = frame;
        } else {
            // Two megabytes or a few pages of a device, which forks never copy.
            attributes |= PALIMPSEST_PAGING_SHARED;
            (len, sizes) = input.one([(reach(2), 3), (reach(2), 1), (reach(2), 2), (reach(2), 0), (8 * PAGE, 1)]);
            start &= !(reach(2) - 1);
        }
        if input.seldom() {
            let (mistake, result) = (input.byte() % 12, PALIMPSEST_PAGING_INVALID);
            let result = match mistake {
                0 => (len = 0, PALIMPSEST_PAGING_RANGE).1,
                1 => (start += 1, PALIMPSEST_PAGING_RANGE).1,
                2 => (start = 0x0123_4567_89ab_0000, PALIMPSEST_PAGING_RANGE).1,
                3 => (len = u64::MAX - 4095, PALIMPSEST_PAGING_RANGE).1,
                4 => (physical += 8, PALIMPSEST_PAGING_PHYSICAL).1,
                5 => (physical = 0u64.wrapping_sub(PAGE), PALIMPSEST_PAGING_PHYSICAL).1,
                6 => (attributes &= !PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_ATTRIBUTES).1,
                7 => (attributes |= 255 * PALIMPSEST_PAGING_MEMORY_TYPE, PALIMPSEST_PAGING_ATTRIBUTES).1,
                8 => (attributes |= 64, result).1,
                9 => (attributes |= 1 << 30, result).1,
                10 => (sizes = 5 + mistake as u32, result).1,
                _ if is_page => (sizes = PALIMPSEST_PAGING_ONLY_2M, PALIMPSEST_PAGING_ALIGNMENT).1,
                _ => (sizes = u32::MAX, result).1,
            };
            expected.mistake(result);
        }
        if model.is_some_and(|model| model.meets(start, start.saturating_add(len))) {
            expected.mistake(PALIMPSEST_PAGING_MAPPED);
        }
        let value = (place as u64) << 32 | self.values.add(0) as u64;
        if let Some(word) = page.and_then(|page| self.kernels[kernel].word(page)) {
            // SAFETY: a frame that only this call has.
            unsafe { word.write(value) };
        }
        // SAFETY: 1. null or memory of this player's. 2. the page's one use, or a device. 3. no program runs there.
        let answer = unsafe { palimpsest_paging_map(target.pointer, start, physical, len, attributes, sizes) };
        if !expected.check("map", answer, &[PALIMPSEST_PAGING_NO_MEMORY])? {
            page.into_iter().for_each(|page| self.kernels[kernel].give_up(page));
            return Ok(());
        }
        let behind = if is_page { Behind::Page(self.values.add(value)) } else { Behind::Device(physical) };
        let model = target.slot.and_then(|slot| self.slots[slot].model.as_mut());
        model.into_iter().for_each(|model| model.areas.push(Area { start, len, attributes, behind }));
        Ok(())
    }

    pub(super) fn change(&mut self, input: &mut Input<'_>, change: Change) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let model = target.slot.and_then(|slot| self.slots[slot].model.as_ref());
        let (mut start, choice) = (1 << 21, input.byte());
        start = model.map_or(start, |model| model.place(choice));
        let mut len = input.one([PAGE, PAGE, 2 * PAGE, 5 * PAGE, reach(2), 3 * reach(2)]);
        let mut rights = input.one([0, PALIMPSEST_PAGING_READ, RW, RW | PALIMPSEST_PAGING_EXECUTE]);
        let mut whose = input.one([PALIMPSEST_PAGING_USERS_ONLY, PALIMPSEST_PAGING_ALSO_KERNEL]);
        if input.seldom() {
            let (range, invalid) = (PALIMPSEST_PAGING_RANGE, PALIMPSEST_PAGING_INVALID);
            let result = match input.byte() % 7 {
                0 => (len = 0, range).1,
                1 => (start += 8, range).1,
                2 => (start = 0x0123_4567_89ab_0000, range).1,
                3 => (len = u64::MAX - 4095, range).1,
                4 | 5 if matches!(change, Change::Protect) => {
                    (rights, _) = input.one([(8, ()), (9, ()), (u32::MAX, ()), (PALIMPSEST_PAGING_WRITE, ())]);
                    if rights == PALIMPSEST_PAGING_WRITE { PALIMPSEST_PAGING_ATTRIBUTES } else { invalid }
                }
                _ => (whose = input.one([2, u32::MAX]), invalid).1,
            };
            expected.mistake(result);
        }
        let end = start.saturating_add(len);
        if whose == PALIMPSEST_PAGING_USERS_ONLY && model.is_some_and(|model| model.has_kernels(start, end)) {
            expected.mistake(PALIMPSEST_PAGING_KERNELS);
        }
        let (what, answer) = match change {
            // SAFETY: 1. null or memory of this player's. 2. nobody runs in the space.
            Change::Unmap => ("unmap", unsafe { palimpsest_paging_unmap(target.pointer, start, len, whose) }),
            Change::Protect => {
                // SAFETY: as above.
                ("protect", unsafe { palimpsest_paging_protect(target.pointer, start, len, rights, whose) })
            }
        };
        if !expected.check(what, answer, &[PALIMPSEST_PAGING_NO_MEMORY])? {
            return Ok(());
        }
        if let Some(model) = target.slot.and_then(|slot| self.slots[slot].model.as_mut()) {
            model.change(start, end, |area| match change {
                Change::Unmap => None,
                Change::Protect => Some(Area { attributes: area.attributes & !7 | rights, ..area }),
            });
        }
        Ok(())
    }

    pub(super) fn query(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let model = target.slot.and_then(|slot| self.slots[slot].model.as_ref());
        let choice = input.byte();
        let place = model.map_or(PAGE, |model| model.place(choice));
        let address = if input.seldom() { 1 << 63 } else { place + choice as u64 };
        let len = length(size_of::<palimpsest_paging_mapping>(), input, &mut expected);
        let there = model.and_then(|model| model.at(address));
        if there.is_none() {
            expected.mistake(PALIMPSEST_PAGING_NOT_MAPPED);
        }
        let out = sized(len);
        let pointer: *mut palimpsest_paging_mapping = if input.seldom() { out.at(1) } else { out.at(0) };
        if !pointer.is_aligned() {
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
        // SAFETY: 1. null or memory of this player's. 2. as long as it says.
        let answer = unsafe { palimpsest_paging_query(target.pointer, address, pointer) };
        if !expected.check("query", answer, &[])? {
            return Ok(());
        }
        // SAFETY: written by the call, and long enough, or that had been a mistake.
        let found = unsafe { pointer.read() };
        let Some(area) = there else { return Err("query: nothing is there".into()) };
        let is_right = found.size == len
            && found.attributes == area.attributes
            && (found.start..found.start + found.len).contains(&address)
            && found.marks & !(PALIMPSEST_PAGING_ACCESSED | PALIMPSEST_PAGING_DIRTY) == 0;
        let physical = found.physical + (address - found.start);
        let is_there = match area.behind {
            Behind::Device(from) => physical == from + (address - area.start),
            Behind::Page(_) => found.len == PAGE && found.start == area.start,
        };
        if is_right && is_there { Ok(()) } else { Err(format!("query of {address:#x}: {found:x?}")) }
    }

    /// A fault that no CPU had, or that the kernel had itself.
    pub(super) fn fault(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let model = target.slot.and_then(|slot| self.slots[slot].model.as_ref());
        let choice = input.byte();
        let place = model.map_or(PAGE, |model| model.place(choice));
        let address = if input.seldom() { 1 << 63 } else { place + choice as u64 };
        let kind = input.one([PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_WRITE]);
        let by_kernel = input.byte().is_multiple_of(2);
        let mut access = if by_kernel { kind | PALIMPSEST_PAGING_KERNEL } else { kind };
        if input.seldom() {
            access = input.one([0, 3, 5, 8, 16, u32::MAX]);
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
        let len = length(size_of::<palimpsest_paging_resolution>(), input, &mut expected);
        match model.and_then(|model| model.at(address)) {
            None => expected.mistake(PALIMPSEST_PAGING_NOT_MAPPED),
            Some(area) if area.rights() & kind == 0 || (area.is_kernels() && !by_kernel) => {
                expected.mistake(PALIMPSEST_PAGING_DENIED);
            }
            Some(_) => {}
        }
        let out = sized(len);
        let refused = [PALIMPSEST_PAGING_NO_MEMORY, PALIMPSEST_PAGING_NO_PAGE];
        // SAFETY: 1. null or memory of this player's. 2. as long as it says.
        let answer = unsafe { palimpsest_paging_fault(target.pointer, address, access, out.at(0)) };
        expected.check("fault", answer, &refused).map(|_| ())
    }

    /// An access of a program, by a CPU that remembers what it has found before.
    pub(super) fn access(&mut self, input: &mut Input<'_>) -> Step {
        let (slot, choice) = (input.byte() % SPACES, input.byte());
        let Some(model) = &self.slots[slot].model else { return Ok(()) };
        let kernel = &self.kernels[model.kernel];
        let kind = input.one([PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_WRITE, PALIMPSEST_PAGING_WRITE]);
        let (address, area) = (model.place(choice), model.at(model.place(choice)));
        let mut expected = Expected::default();
        match area {
            None => expected.mistake(PALIMPSEST_PAGING_NOT_MAPPED),
            Some(area) if area.is_kernels() || area.rights() & kind == 0 => expected.mistake(PALIMPSEST_PAGING_DENIED),
            Some(_) => {}
        }
        let (answer, found) = self.touch(slot, model, address, kind)?;
        let refused = [PALIMPSEST_PAGING_NO_MEMORY, PALIMPSEST_PAGING_NO_PAGE];
        if !expected.check("access", answer, &refused)? {
            return Ok(());
        }
        let (Some(area), Some(found)) = (area, found) else { return Err("an access of nothing".into()) };
        let number = match area.behind {
            Behind::Device(from) if found.physical == from + (address - area.start) => return Ok(()),
            Behind::Page(number) => number,
            Behind::Device(_) => return Err(format!("{address:#x} is at {:#x}", found.physical)),
        };
        let Some(word) = kernel.word(found.physical) else {
            return Err(format!("{address:#x} is at {:#x}, which is no memory of its kernel", found.physical));
        };
        // SAFETY: a word of the kernel's memory, which no other thread uses.
        let value = unsafe { word.read() };
        if value != self.values.get(number) {
            return Err(format!("{address:#x} has {value:#x} and not {:#x}", self.values.get(number)));
        }
        if kind == PALIMPSEST_PAGING_WRITE {
            let stored = value.rotate_left(5) ^ choice as u64;
            // SAFETY: as above.
            unsafe { word.write(stored) };
            self.values.set(number, stored);
        }
        Ok(())
    }

    /// Makes an access, and has its faults resolved, until it passes or is refused.
    fn touch(
        &self,
        slot: usize,
        model: &Model,
        address: u64,
        kind: u32,
    ) -> Step<(palimpsest_paging_result, Option<Found>)> {
        let kernel = &self.kernels[model.kernel];
        for _ in 0..3 {
            let found = kernel.find(model.format, self.root(slot)?, Some(model.id), address);
            if let Some(found) = found.filter(|found| found.rights & kind != 0) {
                return Ok((PALIMPSEST_PAGING_OK, Some(found)));
            }
            kernel.forget(model.format, model.id, address);
            let space = self.slots[slot].memory.at(0);
            // SAFETY: 1. a space that lives. 2. null.
            let answer = unsafe { palimpsest_paging_fault(space, address, kind, ptr::null_mut()) };
            if answer != PALIMPSEST_PAGING_OK {
                return Ok((answer, None));
            }
        }
        Err(format!("a fault at {address:#x} was resolved, and comes again"))
    }

    pub(super) fn root(&self, slot: usize) -> Step<u64> {
        let mut root = 0;
        // SAFETY: 1. a space of this player's. 2. it can be written.
        match unsafe { palimpsest_paging_root(self.slots[slot].memory.at(0), &raw mut root) } {
            PALIMPSEST_PAGING_OK => Ok(root),
            answer => Err(format!("root: {answer:?}")),
        }
    }

    /// Compares what the tables of a space say with the model.
    pub(super) fn compare(&self, slot: usize) -> Step {
        let Some(model) = &self.slots[slot].model else { return Ok(()) };
        let (kernel, root) = (&self.kernels[model.kernel], self.root(slot)?);
        for choice in 0..54 {
            let address = model.place(choice);
            let found = kernel.find(model.format, root, None, address);
            let area = model.at(address);
            if found.is_none() && area.is_some() && model.is_unmarked {
                continue;
            }
            let (Some(found), Some(area)) = (found, area) else {
                // Without rights there may be no entry that a CPU takes for a page, and memory that is shared after a
                // fork may lack those to write.
                if found.is_some_and(|found| found.rights != 0) || area.is_some_and(|area| area.rights() != 0) {
                    return Err(format!("{address:#x}: the tables and the model differ on whether it is mapped"));
                }
                continue;
            };
            let may = if area.is_kernels() { 0 } else { area.rights() };
            if found.rights & !may != 0 || (may & !found.rights & !PALIMPSEST_PAGING_WRITE) != 0 {
                return Err(format!("{address:#x}: user mode may {:#x} and not {may:#x}", found.rights));
            }
            let is_right = match area.behind {
                Behind::Device(from) => found.physical == from + (address - area.start),
                Behind::Page(value) => kernel.word(found.physical).is_some_and(|word| {
                    // SAFETY: a word of the kernel's memory, which no other thread uses.
                    let there = unsafe { word.read() };
                    there == self.values.get(value)
                }),
            };
            if !is_right {
                return Err(format!("{address:#x} is at {:#x}, where something else is", found.physical));
            }
        }
        Ok(())
    }
}
