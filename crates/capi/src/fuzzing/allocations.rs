//! Random calls for allocations. A model knows every byte and every address of them.

use std::ptr;
use std::slice;

use super::lines::{self, Owner};
use super::{Exactly, Input, Named, Step, elsewhere, expect, somewhere, twice};
use crate::allocations::{
    palimpsest_alloc, palimpsest_alloc_allocate, palimpsest_alloc_drop, palimpsest_alloc_finalize,
    palimpsest_alloc_found, palimpsest_alloc_part, palimpsest_alloc_places, palimpsest_alloc_query,
    palimpsest_alloc_range, palimpsest_alloc_release, palimpsest_alloc_request, palimpsest_alloc_set_eh_frame,
    palimpsest_alloc_set_functions, palimpsest_alloc_set_name, palimpsest_alloc_shrink, palimpsest_function,
};
use crate::packs::{
    PALIMPSEST_GDB, palimpsest_packs, palimpsest_packs_close, palimpsest_packs_open, palimpsest_packs_options,
    palimpsest_packs_reclaim,
};
use crate::result::palimpsest_result::{
    PALIMPSEST_BUSY, PALIMPSEST_INVALID, PALIMPSEST_NO_ROOM, PALIMPSEST_NOT_FOUND, PALIMPSEST_OK, PALIMPSEST_REFUSED,
    PALIMPSEST_STALE,
};

/// The most allocations at a time, in either state.
const MOST: usize = 30;
/// The most bytes that a play asks for.
const LONGEST: usize = 1 << 20;

/// A part: its address, the bytes that are or will be there, and where they are written before.
struct Part {
    address: usize,
    bytes: Vec<u8>,
    working: usize,
}

type Parts = [Part; 3];

#[derive(Default)]
pub(super) struct Player {
    packs: Option<palimpsest_packs>,
    drafts: Named<Parts>,
    kept: Vec<Parts>,
    /// Addresses of released allocations.
    gone: Vec<usize>,
}

impl Part {
    fn check(&self) -> Step {
        if self.bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the part is in place: it can be read, and nobody writes to it.
        let there =
            unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(self.address), self.bytes.len()) };
        if there == self.bytes { Ok(()) } else { Err(format!("other bytes are at {:#x}", self.address)) }
    }

    fn fill(&mut self, first: u8) {
        self.bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = first.wrapping_add(at as u8));
        let working = ptr::with_exposed_provenance_mut::<u8>(self.working);
        // SAFETY: a part that is not finalized has so many bytes there; if it has none, nothing is copied.
        unsafe { working.copy_from_nonoverlapping(self.bytes.as_ptr(), self.bytes.len()) };
    }

    fn covers(&self, address: usize) -> bool {
        (self.address..self.address + self.bytes.len()).contains(&address)
    }
}

impl Player {
    pub(super) fn step(&mut self, choice: u8, input: &mut Input<'_>) -> Step {
        match choice {
            0..4 => self.allocate(input),
            4..6 => self.change(input),
            6..9 => self.finalize(input),
            9 => self.drop_one(input),
            10..13 => self.release(input),
            13 => self.reclaim(input),
            _ => self.query(input),
        }
    }

    /// Opens the play's packs; half of the plays use a write view that is open only during copies.
    fn packs(&mut self, input: &mut Input<'_>) -> Result<palimpsest_packs, String> {
        if let Some(packs) = self.packs {
            return Ok(packs);
        }
        let mut options = palimpsest_packs_options { region_len: 64 << 20, ..Default::default() };
        options.write_view = (input.byte() % 2) as i32;
        // GDB is told of every second play's, with the tables as they are.
        options.observers = if input.byte().is_multiple_of(2) { PALIMPSEST_GDB } else { 0 };
        let given = Exactly::of(options, size_of::<palimpsest_packs_options>());
        let mut packs = palimpsest_packs { handle: 0 };
        // SAFETY: 1. as long as it says. 2. a local. 3. no unwinder.
        let answer = unsafe { palimpsest_packs_open(given.as_ptr(), &raw mut packs) };
        expect("open", answer, &[PALIMPSEST_OK])?;
        self.packs = Some(packs);
        Ok(packs)
    }

    fn allocate(&mut self, input: &mut Input<'_>) -> Step {
        let packs = self.packs(input)?;
        if self.drafts.live.len() >= MOST || self.kept.len() >= MOST {
            return Ok(());
        }
        let mut part = || palimpsest_alloc_part {
            len: if input.byte().is_multiple_of(3) { 0 } else { input.number() },
            align: if input.byte() == 0 { input.number() } else { 1 << (input.byte() % 13) },
        };
        let (code, read_only, read_write) = (part(), part(), part());
        let (in_place, reserved) = ((input.byte() % 9) as i32 / 4, i32::from(input.byte() == 1));
        let request = palimpsest_alloc_request { size: 0, code, read_only, read_write, in_place, reserved };
        let request = Exactly::of(request, size_of_val(&request) + input.byte() % 3 * 8);
        let places = Exactly::of(0_usize, size_of::<palimpsest_alloc_places>());
        let mut alloc = palimpsest_alloc { handle: 0 };
        // SAFETY: 1. as long as it says. 2. and 3. null.
        let answer = unsafe { palimpsest_alloc_allocate(packs, request.as_ptr(), ptr::null_mut(), ptr::null_mut()) };
        expect("allocate to null", answer, &[PALIMPSEST_INVALID])?;
        // SAFETY: 1. and 3. as long as they say. 2. a local.
        let answer = unsafe { palimpsest_alloc_allocate(packs, request.as_ptr(), &raw mut alloc, places.as_ptr()) };
        let sizes = [code, read_only, read_write];
        let is_possible = |size: &palimpsest_alloc_part| {
            size.len == 0 || (size.align.is_power_of_two() && size.align <= 4096 && size.len <= LONGEST)
        };
        let is_wrong = reserved != 0 || in_place > 1 || sizes.iter().all(|size| size.len == 0);
        let wanted: &[_] = match (is_wrong, sizes.iter().all(is_possible)) {
            (true, _) => &[PALIMPSEST_INVALID],
            (false, true) if in_place == 0 => &[PALIMPSEST_OK, PALIMPSEST_NO_ROOM],
            (false, true) => &[PALIMPSEST_OK, PALIMPSEST_NO_ROOM, PALIMPSEST_REFUSED],
            (false, false) => &[PALIMPSEST_OK, PALIMPSEST_NO_ROOM, PALIMPSEST_REFUSED, PALIMPSEST_INVALID],
        };
        expect("allocate", answer, wanted)?;
        if answer != PALIMPSEST_OK {
            return Ok(());
        }
        // SAFETY: as long as that, and written.
        let told = unsafe { places.as_ptr::<palimpsest_alloc_places>().read() };
        let mut parts = [told.code, told.read_only, told.read_write].map(|place| Part {
            address: place.address,
            bytes: vec![0; place.len],
            working: place.working.expose_provenance(),
        });
        for (part, size) in parts.iter_mut().zip(sizes) {
            if part.bytes.len() != size.len || (size.len > 0 && !part.address.is_multiple_of(size.align)) {
                return Err(format!("{} bytes at {:#x} instead of {size:?}", part.bytes.len(), part.address));
            }
            part.fill(input.byte() as u8);
        }
        self.drafts.add(alloc.handle, parts)
    }

    fn change(&mut self, input: &mut Input<'_>) -> Step {
        let alloc = palimpsest_alloc { handle: self.drafts.any(input) };
        let (which, len) = (input.byte() % 5, input.number());
        // SAFETY: 1. nobody uses them meanwhile, nor those that the model gives up below.
        let answer = somewhere(input, || unsafe { palimpsest_alloc_shrink(alloc, which as i32 - 1, len) });
        // SAFETY: 1. a string.
        let named = unsafe { palimpsest_alloc_set_name(alloc, c"linked".as_ptr()) };
        // SAFETY: 1. null.
        let described = unsafe { palimpsest_alloc_set_eh_frame(alloc, ptr::null(), len) };
        expect("eh_frame at null", described, &[PALIMPSEST_INVALID])?;
        // No unwinder sees these packs: any bytes will do.
        let table: Vec<u8> = (0..input.byte() % 64).map(|_| input.byte() as u8).collect();
        // SAFETY: 1. that many.
        let described = unsafe { palimpsest_alloc_set_eh_frame(alloc, table.as_ptr().cast(), table.len()) };
        let is_there = self.drafts.find(alloc.handle).is_some();
        expect("eh_frame", described, &[if is_there { PALIMPSEST_OK } else { PALIMPSEST_STALE }])?;
        let function = palimpsest_function { name: c"inside".as_ptr(), offset: input.number(), len: input.number() };
        // SAFETY: 1. one, with a string.
        let told = unsafe { palimpsest_alloc_set_functions(alloc, &raw const function, 1) };
        // After the shrinking above.
        let cut = |parts: &Parts| if which == 1 && answer == PALIMPSEST_OK { len } else { parts[0].bytes.len() };
        lines::tell(Owner::Alloc(alloc), self.drafts.find(alloc.handle).map(cut), input)?;
        let Some(parts) = self.drafts.find_mut(alloc.handle) else {
            expect("functions", told, &[PALIMPSEST_STALE])?;
            expect("name", named, &[PALIMPSEST_STALE])?;
            return expect("shrink", answer, &[PALIMPSEST_STALE, PALIMPSEST_INVALID]);
        };
        expect("name", named, &[PALIMPSEST_OK])?;
        let end = function.offset.checked_add(function.len);
        let is_inside = end.is_some_and(|end| end <= cut(parts));
        expect("functions", told, &[if is_inside { PALIMPSEST_OK } else { PALIMPSEST_INVALID }])?;
        let part = which.checked_sub(1).and_then(|index| parts.get_mut(index));
        match part {
            Some(part) if 0 < len && len <= part.bytes.len() => {
                expect("shrink", answer, &[PALIMPSEST_OK])?;
                part.bytes.truncate(len);
                part.fill(input.byte() as u8);
                Ok(())
            }
            _ => expect("shrink", answer, &[PALIMPSEST_INVALID]),
        }
    }

    fn finalize(&mut self, input: &mut Input<'_>) -> Step {
        let packs = self.packs(input)?;
        let allocs: Vec<_> =
            (0..input.byte() % 4).map(|_| palimpsest_alloc { handle: self.drafts.any(input) }).collect();
        let is_twice = allocs.iter().enumerate().any(|(at, one)| allocs[..at].contains(one));
        let is_there = allocs.iter().all(|one| self.drafts.find(one.handle).is_some());
        // SAFETY: 1. so many. 2. nobody writes.
        let answer = somewhere(input, || unsafe { palimpsest_alloc_finalize(packs, allocs.as_ptr(), allocs.len()) });
        let wanted = match (is_there, is_twice) {
            (false, _) => PALIMPSEST_STALE,
            (true, true) => PALIMPSEST_INVALID,
            (true, false) => PALIMPSEST_OK,
        };
        expect("finalize", answer, &[wanted])?;
        if answer == PALIMPSEST_OK {
            for one in allocs {
                let parts = self.drafts.take(one.handle).ok_or("what is finalized was allocated")?;
                parts.iter().try_for_each(Part::check)?;
                self.kept.push(parts);
            }
        }
        Ok(())
    }

    fn drop_one(&mut self, input: &mut Input<'_>) -> Step {
        let alloc = palimpsest_alloc { handle: self.drafts.any(input) };
        let is_there = self.drafts.take(alloc.handle).is_some();
        // SAFETY: 1. the model no longer writes to it.
        let answers = twice(|| unsafe { palimpsest_alloc_drop(alloc) });
        let done = answers.iter().filter(|&&answer| answer == PALIMPSEST_OK).count();
        let late = answers.iter().filter(|&&answer| matches!(answer, PALIMPSEST_STALE | PALIMPSEST_BUSY)).count();
        let is_right = done == usize::from(is_there) && done + late == 2;
        if is_right { Ok(()) } else { Err(format!("drop by two threads: {answers:?}")) }
    }

    /// Picks an address: mostly of an allocation that is in place, else of a released one, or any other.
    fn address(&self, input: &mut Input<'_>) -> usize {
        let inside = input.byte() % 3;
        let offset = if inside == 0 { input.number() % LONGEST } else { 0 };
        match input.byte() % 8 {
            0 => input.number(),
            1 => input.pick(self.gone.len()).map_or(8, |index| self.gone[index] + offset),
            which => input.pick(self.kept.len()).map_or(8, |index| self.kept[index][which % 3].address + offset),
        }
    }

    fn release(&mut self, input: &mut Input<'_>) -> Step {
        let packs = self.packs(input)?;
        let address = self.address(input);
        let kept = self.kept.iter().position(|parts| parts.iter().any(|part| part.covers(address)));
        let is_start = kept
            .is_some_and(|index| self.kept[index].iter().any(|part| part.covers(address) && part.address == address));
        let release = || {
            let mut released = 9;
            // SAFETY: 1. one. 2. a local.
            let answer = unsafe { palimpsest_alloc_release(packs, &raw const address, 1, &raw mut released) };
            if released == usize::from(answer == PALIMPSEST_OK) { answer } else { PALIMPSEST_BUSY }
        };
        if let (Some(index), true) = (kept, is_start) {
            let parts = self.kept.swap_remove(index);
            parts.iter().try_for_each(Part::check)?;
            self.gone.extend(parts.iter().map(|part| part.address).filter(|&address| address != 0));
            let answers = twice(release);
            let is_right = answers.contains(&PALIMPSEST_OK)
                && answers.iter().any(|answer| matches!(answer, PALIMPSEST_STALE | PALIMPSEST_NOT_FOUND));
            return if is_right { Ok(()) } else { Err(format!("release by two threads: {answers:?}")) };
        }
        let wanted: &[_] = match kept {
            Some(_) => &[PALIMPSEST_INVALID],
            // It may be retired still.
            None => &[PALIMPSEST_NOT_FOUND, PALIMPSEST_STALE, PALIMPSEST_INVALID],
        };
        expect("release", elsewhere(release), wanted)
    }

    fn reclaim(&mut self, input: &mut Input<'_>) -> Step {
        let packs = self.packs(input)?;
        // SAFETY: 1. null.
        let answer = unsafe { palimpsest_packs_reclaim(packs, ptr::null_mut()) };
        expect("reclaim", answer, &[PALIMPSEST_OK])?;
        self.kept.iter().flatten().try_for_each(Part::check)
    }

    fn query(&mut self, input: &mut Input<'_>) -> Step {
        let packs = self.packs(input)?;
        let address = self.address(input);
        let told = Exactly::of(0_usize, size_of::<palimpsest_alloc_found>() + input.byte() % 3 * 8);
        // SAFETY: 1. as long as it says.
        let answer = unsafe { palimpsest_alloc_query(packs, address, told.as_ptr()) };
        let Some(parts) = self.kept.iter().find(|parts| parts.iter().any(|part| part.covers(address))) else {
            return expect("query", answer, &[PALIMPSEST_NOT_FOUND, PALIMPSEST_OK]);
        };
        expect("query", answer, &[PALIMPSEST_OK])?;
        // SAFETY: as long as that, and written.
        let told = unsafe { told.as_ptr::<palimpsest_alloc_found>().read() };
        let range = |part: &Part| palimpsest_alloc_range { start: part.address, len: part.bytes.len() };
        let [code, read_only, read_write] = [0, 1, 2].map(|index| range(&parts[index]));
        let covered = parts.iter().position(|part| part.covers(address)).map_or(-1, |index| index as i32);
        let is_right = (told.part, told.state) == (covered, 0)
            && (told.code, told.read_only, told.read_write) == (code, read_only, read_write);
        if is_right { Ok(()) } else { Err(format!("{told:?} is said of {address:#x}")) }
    }

    /// Ends the play: checks what is left, and drops or releases it.
    pub(super) fn end(self) -> Step {
        let Some(packs) = self.packs else { return Ok(()) };
        for &(handle, _) in &self.drafts.live {
            // SAFETY: 1. the model does not use it again.
            let answer = unsafe { palimpsest_alloc_drop(palimpsest_alloc { handle }) };
            expect("drop", answer, &[PALIMPSEST_OK])?;
        }
        for parts in &self.kept {
            parts.iter().try_for_each(Part::check)?;
            let address = parts.iter().map(|part| part.address).find(|&address| address != 0).unwrap_or(0);
            // SAFETY: 1. one. 2. null.
            let answer = unsafe { palimpsest_alloc_release(packs, &raw const address, 1, ptr::null_mut()) };
            expect("release", answer, &[PALIMPSEST_OK])?;
        }
        expect("close", palimpsest_packs_close(packs), &[PALIMPSEST_OK])
    }
}
