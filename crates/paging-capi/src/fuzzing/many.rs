//! The calls that move pages, go through many of them, and clear their marks.

use std::ffi::{c_int, c_void};
use std::format;
use std::ptr;
use std::vec::Vec;

use super::calls::{Expected, Player, RW, Target};
use super::kernel::PAGE;
use super::model::{Area, Behind, Model};
use super::walk::reach;
use super::{Input, Step};
use crate::marks::{palimpsest_paging_count_marked, palimpsest_paging_take_marks};
use crate::pages::*;
use crate::places::{palimpsest_paging_merge, palimpsest_paging_move, palimpsest_paging_split};
use crate::result::palimpsest_paging_result::*;
use crate::space::{
    PALIMPSEST_PAGING_AARCH64, PALIMPSEST_PAGING_AARCH64_UPPER, PALIMPSEST_PAGING_X86_64, PALIMPSEST_PAGING_X86_64_LA57,
};
use crate::visits::*;

/// What a visitor saw, and decided.
#[derive(Default)]
struct Seen {
    pages: Vec<(palimpsest_paging_mapping, u32)>,
    /// Which decision comes for which page.
    salt: u64,
    /// After how many pages to stop.
    most: usize,
}

unsafe extern "C" fn sees(seen: *mut c_void, mapping: *const palimpsest_paging_mapping) -> c_int {
    // SAFETY: the caller's record, which nobody else uses meanwhile.
    let seen = unsafe { &mut *seen.cast::<Seen>() };
    // SAFETY: valid during the call.
    seen.pages.push((unsafe { mapping.read() }, 0));
    c_int::from(seen.pages.len() >= seen.most)
}

unsafe extern "C" fn decides(seen: *mut c_void, mapping: *const palimpsest_paging_mapping) -> u32 {
    // SAFETY: the caller's record, which nobody else uses meanwhile.
    let seen = unsafe { &mut *seen.cast::<Seen>() };
    // SAFETY: valid during the call.
    let page = unsafe { mapping.read() };
    let decision = match (page.start / PAGE).wrapping_mul(5).wrapping_add(seen.salt) % 16 {
        _ if seen.pages.len() >= seen.most => PALIMPSEST_PAGING_STOP,
        0..6 => PALIMPSEST_PAGING_TAKE,
        6..9 => PALIMPSEST_PAGING_PROTECT + PALIMPSEST_PAGING_READ,
        9..12 => PALIMPSEST_PAGING_PROTECT + RW,
        12 if seen.salt.is_multiple_of(7) => PALIMPSEST_PAGING_PROTECT + PALIMPSEST_PAGING_WRITE,
        13 if seen.salt.is_multiple_of(5) => 3,
        _ => PALIMPSEST_PAGING_KEEP,
    };
    seen.pages.push((page, decision));
    decision
}

unsafe extern "C" fn counts(count: *mut c_void, _: u64) {
    // SAFETY: the caller's counter, which nobody else uses meanwhile.
    let count = unsafe { &mut *count.cast::<u64>() };
    *count += 1;
}

impl Player {
    fn model_of(&self, target: &Target) -> Option<&Model> {
        target.slot.and_then(|slot| self.slots[slot].model.as_ref())
    }

    /// Mostly a range of a few pages or tables; else a wrong one.
    fn range(model: Option<&Model>, input: &mut Input<'_>, expected: &mut Expected) -> (u64, u64) {
        let place = input.byte();
        let mut start = model.map_or(1 << 21, |model| model.place(place));
        let mut len = input.one([PAGE, 2 * PAGE, 5 * PAGE, reach(2), 3 * reach(2)]);
        if input.seldom() {
            match input.byte() % 4 {
                0 => len = 0,
                1 => start += 8,
                2 => start = 0x0123_4567_89ab_0000,
                _ => len = u64::MAX - 4095,
            }
            expected.mistake(PALIMPSEST_PAGING_RANGE);
        }
        (start, len)
    }

    pub(super) fn many(&mut self, input: &mut Input<'_>) -> Step {
        match input.byte() % 8 {
            0 | 1 => self.move_pages(input),
            2 => self.divide(input),
            3 => self.marks(input),
            4 => self.walk(input),
            5 | 6 => self.edit(input),
            _ => self.map_pages(input),
        }
    }

    fn move_pages(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let model = self.model_of(&target);
        let (from, len) = Self::range(model, input, &mut expected);
        let choice = input.byte();
        let mut to = model.map_or(1 << 22, |model| model.place(choice));
        if input.byte().is_multiple_of(2) {
            // Large pages stay aligned.
            to = (to & !(reach(2) - 1)) + (from & (reach(2) - 1));
        }
        let whose = input.one([PALIMPSEST_PAGING_USERS_ONLY, PALIMPSEST_PAGING_ALSO_KERNEL]);
        let (end, to_end) = (from.saturating_add(len), to.saturating_add(len));
        if to < end && from < to_end {
            expected.mistake(PALIMPSEST_PAGING_RANGE);
        }
        if model.is_some_and(|model| model.meets(to, to_end)) {
            expected.mistake(PALIMPSEST_PAGING_MAPPED);
        }
        if whose == PALIMPSEST_PAGING_USERS_ONLY && model.is_some_and(|model| model.has_kernels(from, end)) {
            expected.mistake(PALIMPSEST_PAGING_KERNELS);
        }
        // SAFETY: 1. null or memory of this player's. 2. nobody runs in the space.
        let answer = unsafe { palimpsest_paging_move(target.pointer, from, len, to, whose) };
        // A device's pages may be large.
        let is_apart = !(from ^ to).is_multiple_of(reach(2));
        let misaligned = if is_apart { PALIMPSEST_PAGING_ALIGNMENT } else { PALIMPSEST_PAGING_NO_MEMORY };
        if !expected.check("move", answer, &[PALIMPSEST_PAGING_NO_MEMORY, misaligned])? {
            return Ok(());
        }
        if let Some(model) = target.slot.and_then(|slot| self.slots[slot].model.as_mut()) {
            model.change(from, end, |area| Some(Area { start: area.start - from + to, ..area }));
        }
        Ok(())
    }

    /// Splits and merges, which changes no translation.
    fn divide(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let model = self.model_of(&target);
        let (start, len) = Self::range(model, input, &mut expected);
        let format = model.map_or(0, |model| model.format);
        if input.byte().is_multiple_of(2) {
            let is_aarch64 = matches!(format, PALIMPSEST_PAGING_AARCH64 | PALIMPSEST_PAGING_AARCH64_UPPER);
            if is_aarch64 && model.is_some_and(|model| model.has_kernels(start, start.saturating_add(len))) {
                expected.mistake(PALIMPSEST_PAGING_KERNELS);
            }
            // SAFETY: 1. null or memory of this player's.
            let answer = unsafe { palimpsest_paging_split(target.pointer, start, len) };
            return expected.check("split", answer, &[PALIMPSEST_PAGING_NO_MEMORY]).map(drop);
        }
        let mut expected = Expected(expected.0.into_iter().filter(|wrong| *wrong != PALIMPSEST_PAGING_RANGE).collect());
        let address = if input.seldom() { start + 8 } else { start & !(reach(2) - 1) };
        // Not canonical in any format.
        if !address.is_multiple_of(PAGE) || address >> 48 == 0x0123 {
            expected.mistake(PALIMPSEST_PAGING_RANGE);
        }
        let mut size = PALIMPSEST_PAGING_ONLY_2M;
        if input.seldom() {
            size = input.one([PALIMPSEST_PAGING_4K, PALIMPSEST_PAGING_UP_TO_2M, 5, u32::MAX]);
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
        let mut merged = 9;
        // SAFETY: 1. null or memory of this player's. 2. a local.
        let answer = unsafe { palimpsest_paging_merge(target.pointer, address, size, &raw mut merged) };
        if !expected.check("merge", answer, &[PALIMPSEST_PAGING_NO_MEMORY])? {
            return Ok(());
        }
        // What lies behind an address, if it is a device: its pages may be adjacent.
        let behind = |address: u64| match self.model_of(&target)?.at(address)? {
            Area { behind: Behind::Device(from), start, attributes, .. } => {
                Some((from + (address - start), attributes))
            }
            Area { behind: Behind::Page(_), .. } => None,
        };
        let first = behind(address);
        let follows =
            |offset| first.is_some_and(|(from, like)| behind(address + offset) == Some((from + offset, like)));
        let may_be = (0..reach(2)).step_by(PAGE as usize).all(follows);
        let is_right = merged == 0 || (merged == 1 && may_be);
        if is_right { Ok(()) } else { Err(format!("merge at {address:#x}: {merged}")) }
    }

    fn marks(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let (start, len) = Self::range(self.model_of(&target), input, &mut expected);
        let mut mark = input.one([PALIMPSEST_PAGING_ACCESSED, PALIMPSEST_PAGING_DIRTY]);
        if input.seldom() {
            mark = input.one([0, 3, 4, u32::MAX]);
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
        let count = || {
            let mut count = 99;
            // SAFETY: 1. null or memory of this player's. 2. a local.
            let answer = unsafe { palimpsest_paging_count_marked(target.pointer, start, len, mark, &raw mut count) };
            expected.check("count marked", answer, &[]).map(|_| count)
        };
        let (before, mut taken) = (count()?, 0_u64);
        let model = self.model_of(&target);
        let are_walkers =
            model.is_some_and(|model| matches!(model.format, PALIMPSEST_PAGING_X86_64 | PALIMPSEST_PAGING_X86_64_LA57));
        let mut taking = expected.clone();
        if !are_walkers && model.is_some_and(|model| model.has_kernels(start, start.saturating_add(len))) {
            taking.mistake(PALIMPSEST_PAGING_KERNELS);
        }
        let on_page: crate::marks::palimpsest_paging_on_page =
            if input.byte().is_multiple_of(4) { None } else { Some(counts) };
        // SAFETY: 1. null or memory of this player's. 2. null, or counts.
        let answer =
            unsafe { palimpsest_paging_take_marks(target.pointer, start, len, mark, on_page, (&raw mut taken).cast()) };
        if !taking.check("take marks", answer, &[PALIMPSEST_PAGING_NO_MEMORY])? {
            return if taken == 0 { Ok(()) } else { Err("marks were taken by a call that was refused".into()) };
        }
        if let Some(model) = target.slot.and_then(|slot| self.slots[slot].model.as_mut()) {
            model.is_unmarked |= mark == PALIMPSEST_PAGING_ACCESSED;
        }
        let after = count()?;
        let is_right = after == 0 && (on_page.is_none() || taken == before);
        if is_right { Ok(()) } else { Err(format!("{before} marks, of which {taken} were taken: {after} are left")) }
    }

    fn walk(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let (start, len) = Self::range(self.model_of(&target), input, &mut expected);
        let mut seen = Seen { most: 1 + input.byte() * 8, ..Seen::default() };
        let mut visit: palimpsest_paging_visit = Some(sees);
        if input.seldom() {
            visit = None;
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
        // SAFETY: 1. null or memory of this player's. 2. null, or records.
        let answer = unsafe { palimpsest_paging_walk(target.pointer, start, len, visit, (&raw mut seen).cast()) };
        if !expected.check("walk", answer, &[])? {
            return Ok(());
        }
        let Some(model) = self.model_of(&target) else { return Err("walk: no space is there".into()) };
        let (mut at, end) = (start, start + len);
        for (page, _) in &seen.pages {
            let area = model.at(page.start.max(at)).filter(|area| area.attributes == page.attributes);
            // Nothing is left out before it, and it is mapped as the model says.
            let is_next = page.start + page.len > at && page.start < end;
            if area.is_none() || !is_next || (page.start > at && model.meets(at, page.start)) {
                return Err(format!("walk: {page:x?} comes after {at:#x}"));
            }
            at = page.start + page.len;
        }
        if seen.pages.len() < seen.most && at < end && model.meets(at, end) {
            return Err(format!("walk: something is mapped behind {at:#x}, and was not shown"));
        }
        Ok(())
    }

    fn edit(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let model = self.model_of(&target);
        let (start, len) = Self::range(model, input, &mut expected);
        let mut whose = input.one([PALIMPSEST_PAGING_USERS_ONLY, PALIMPSEST_PAGING_ALSO_KERNEL]);
        let mut seen = Seen { salt: input.byte() as u64, most: 1 + input.byte() * 4, ..Seen::default() };
        let mut decide: palimpsest_paging_decide = Some(decides);
        if input.seldom() {
            match input.byte() % 2 {
                0 => decide = None,
                _ => whose = 2,
            }
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
        let end = start.saturating_add(len);
        if whose == PALIMPSEST_PAGING_USERS_ONLY && model.is_some_and(|model| model.has_kernels(start, end)) {
            expected.mistake(PALIMPSEST_PAGING_KERNELS);
        }
        // SAFETY: 1. null or memory of this player's. 2. null, or decides. 3. nobody runs in the space.
        let answer =
            unsafe { palimpsest_paging_edit(target.pointer, start, len, decide, (&raw mut seen).cast(), whose) };
        match seen.pages.last() {
            Some((_, 3)) => expected.mistake(PALIMPSEST_PAGING_INVALID),
            Some((_, wrong)) if *wrong == PALIMPSEST_PAGING_PROTECT + PALIMPSEST_PAGING_WRITE => {
                expected.mistake(PALIMPSEST_PAGING_ATTRIBUTES);
            }
            _ => {}
        }
        let is_done = expected.check("edit", answer, &[PALIMPSEST_PAGING_NO_MEMORY])?;
        // What the last decision was about has not changed after an error.
        let count = if is_done { seen.pages.len() } else { seen.pages.len().saturating_sub(1) };
        let Some(model) = target.slot.and_then(|slot| self.slots[slot].model.as_mut()) else { return Ok(()) };
        let mut at = start;
        for (page, decision) in &seen.pages[..count] {
            let from = page.start.max(at);
            let is_whole = from == page.start && page.start + page.len <= end;
            at = if is_whole { page.start + page.len } else { from + PAGE };
            match *decision {
                // A large page is passed as a whole.
                PALIMPSEST_PAGING_KEEP => at = page.start + page.len,
                PALIMPSEST_PAGING_STOP => {}
                PALIMPSEST_PAGING_TAKE => model.change(from, at, |_| None),
                protect => {
                    let rights = protect - PALIMPSEST_PAGING_PROTECT;
                    model.change(from, at, |area| Some(Area { attributes: area.attributes & !7 | rights, ..area }));
                }
            }
        }
        Ok(())
    }

    fn map_pages(&mut self, input: &mut Input<'_>) -> Step {
        let mut expected = Expected::default();
        let target = self.target(input, &mut expected);
        let model = self.model_of(&target);
        let (kernel, place) = (model.map_or(0, |model| model.kernel), input.byte());
        let mut start = model.map_or(1 << 21, |model| model.place(place));
        let wanted = 1 + input.byte() % 5;
        let taken: Vec<u64> = (0..wanted).filter_map(|_| self.kernels[kernel].take()).collect();
        if taken.is_empty() {
            return Ok(());
        }
        let extra = input.one([0, 0, PALIMPSEST_PAGING_SHARED, PALIMPSEST_PAGING_EXECUTE, PALIMPSEST_PAGING_KERNEL]);
        let (mut pages, mut count, mut attributes) = (taken.clone(), taken.len() as u64, RW | extra);
        if input.seldom() {
            let last = pages.len() - 1;
            let result = match input.byte() % 7 {
                0 => (count = 0, PALIMPSEST_PAGING_RANGE).1,
                1 => (count = u64::MAX / 2, PALIMPSEST_PAGING_RANGE).1,
                2 => (start += 1, PALIMPSEST_PAGING_RANGE).1,
                3 => (pages[last] += 8, PALIMPSEST_PAGING_PHYSICAL).1,
                4 => (pages[last] = 0_u64.wrapping_sub(PAGE), PALIMPSEST_PAGING_PHYSICAL).1,
                5 => (attributes &= !PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_ATTRIBUTES).1,
                _ => (attributes |= 64, PALIMPSEST_PAGING_INVALID).1,
            };
            expected.mistake(result);
        }
        let is_null = input.seldom();
        if is_null {
            expected.mistake(PALIMPSEST_PAGING_INVALID);
        }
        let end = start.saturating_add(pages.len() as u64 * PAGE);
        if model.is_some_and(|model| model.meets(start, end)) {
            expected.mistake(PALIMPSEST_PAGING_MAPPED);
        }
        let values: Vec<u64> = (0..taken.len() as u64).map(|at| (place as u64) << 40 | at << 32 | 7).collect();
        for (page, value) in taken.iter().zip(&values) {
            if let Some(word) = self.kernels[kernel].word(*page) {
                // SAFETY: a frame that only this call has.
                unsafe { word.write(*value) };
            }
        }
        let list = if is_null { ptr::null() } else { pages.as_ptr() };
        // SAFETY: 1. null or memory of this player's. 2. null, or that many, or refused. 3. each has one use.
        let answer = unsafe { palimpsest_paging_map_pages(target.pointer, start, list, count, attributes) };
        if !expected.check("map pages", answer, &[PALIMPSEST_PAGING_NO_MEMORY])? {
            taken.into_iter().for_each(|page| self.kernels[kernel].give_up(page));
            return Ok(());
        }
        for (at, value) in values.into_iter().enumerate() {
            let (behind, start) = (Behind::Page(self.values.add(value)), start + at as u64 * PAGE);
            let model = target.slot.and_then(|slot| self.slots[slot].model.as_mut());
            model.into_iter().for_each(|model| model.areas.push(Area { start, len: PAGE, attributes, behind }));
        }
        Ok(())
    }
}
