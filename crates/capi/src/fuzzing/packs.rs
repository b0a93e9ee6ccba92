//! Packs, programs, data, pins and sites; each byte that programs have is known.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::slice;

use palimpsest_text::CodeAddress;
use palimpsest_text::observe::frame_pointer_eh_frame;

use super::lines::{self, Owner};
use super::{Exactly, Input, Named, Step, elsewhere, expect, somewhere, twice};
use crate::data::{
    palimpsest_data, palimpsest_data_release, palimpsest_finalize_data, palimpsest_stage_data, palimpsest_staged_data,
    palimpsest_staged_data_drop,
};
use crate::packs::{
    PALIMPSEST_BACKING_COLLAPSED, PALIMPSEST_BACKING_PRIVATE, PALIMPSEST_GDB, PALIMPSEST_JIT_DUMP, PALIMPSEST_PERF_MAP,
    PALIMPSEST_UNWIND, PALIMPSEST_WRITE_VIEW_NONE, palimpsest_found, palimpsest_lookup, palimpsest_packs,
    palimpsest_packs_close, palimpsest_packs_get_stats, palimpsest_packs_open, palimpsest_packs_options,
    palimpsest_packs_reclaim, palimpsest_packs_stats,
};
use crate::pins::{palimpsest_pin, palimpsest_unpin};
use crate::poke::{palimpsest_applied, palimpsest_poke, palimpsest_site};
use crate::programs::{
    palimpsest_fault, palimpsest_finalize, palimpsest_load, palimpsest_program, palimpsest_program_at,
    palimpsest_program_entry, palimpsest_program_release, palimpsest_stage, palimpsest_staged, palimpsest_staged_drop,
    palimpsest_staged_set_eh_frame, palimpsest_staged_set_faults, palimpsest_staged_set_name,
};
use crate::result::palimpsest_result::{
    self, PALIMPSEST_BUSY, PALIMPSEST_CHANGED, PALIMPSEST_INVALID, PALIMPSEST_NO_ROOM, PALIMPSEST_NOT_FOUND,
    PALIMPSEST_OK, PALIMPSEST_REFUSED, PALIMPSEST_STALE, PALIMPSEST_SYSTEM,
};

/// A place, and the bytes that are there or will be.
struct Place {
    address: usize,
    bytes: Vec<u8>,
}

/// What is staged: its image is written when it is finalized.
struct Staged {
    place: Place,
    image: usize,
}

#[derive(Default)]
pub(super) struct Player {
    packs: Named<()>,
    staged: Named<Staged>,
    programs: Named<Place>,
    staged_data: Named<Staged>,
    data: Named<Place>,
    /// Packs in which this thread is pinned, once for each pin.
    pins: Vec<u64>,
    /// Whether an unwinder believes what it is told of programs.
    is_unwound: bool,
}

/// Most packs, and most things of each other kind, at a time.
const MOST_PACKS: usize = 4;
const MOST: usize = 40;
/// The longest that a test asks for and gets.
const LONGEST: usize = 1 << 20;

impl Place {
    fn check(&self) -> Step {
        // SAFETY: a program or data that is not released: readable, and nobody writes to it meanwhile.
        let there =
            unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(self.address), self.bytes.len()) };
        if there == self.bytes {
            Ok(())
        } else {
            Err(format!("the bytes at {:#x} are not those put there", self.address))
        }
    }
}

impl Staged {
    fn fill(&mut self, input: &mut Input<'_>) {
        let first = input.byte() as u8;
        self.place.bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = first.wrapping_add(at as u8));
        let image = ptr::with_exposed_provenance_mut::<u8>(self.image);
        // SAFETY: what is staged has an image of its length, until it is finalized.
        unsafe { image.copy_from_nonoverlapping(self.place.bytes.as_ptr(), self.place.bytes.len()) };
    }
}

/// Returns the answer to a handle that exists, or does not.
fn there(is_there: bool) -> palimpsest_result {
    if is_there { PALIMPSEST_OK } else { PALIMPSEST_STALE }
}

/// Checks that of two threads that do the same once, one has done it and the other came too late.
fn once(what: &str, answers: [palimpsest_result; 2], is_there: bool) -> Step {
    let done = answers.iter().filter(|&&answer| answer == PALIMPSEST_OK).count();
    let late = answers.iter().filter(|&&answer| matches!(answer, PALIMPSEST_STALE | PALIMPSEST_BUSY)).count();
    let is_right = done == usize::from(is_there) && done + late == 2;
    if is_right { Ok(()) } else { Err(format!("{what} by two threads: {answers:?}")) }
}

impl Player {
    pub(super) fn step(&mut self, choice: u8, input: &mut Input<'_>) -> Step {
        match choice {
            0 => self.open(input),
            1 => self.close(input),
            2 => self.stage(input),
            3 => self.describe(input),
            4 => self.finalize(input),
            5 => self.drop_staged(input),
            6 | 7 => self.load(input),
            8 => self.look(input),
            9 => self.release(input),
            10 => self.stage_data(input),
            11 => self.finalize_data(input),
            12 => self.release_data(input),
            13 => self.pin(input),
            14 => self.poke(input),
            _ => self.counters(input),
        }
    }

    fn open(&mut self, input: &mut Input<'_>) -> Step {
        let mut options = palimpsest_packs_options { region_len: 64 << 20, ..Default::default() };
        let mut is_known = true;
        match input.byte() % 16 {
            0 => (options.backing, is_known) = (5, false),
            1 => (options.backing, is_known) = (-1, false),
            2 => (options.write_view, is_known) = (3, false),
            3 => (options.fork, is_known) = (2, false),
            4 => (options.observers, is_known) = (16, false),
            5 => options.write_view = 1,
            6 => options.reclaim_bytes = 1,
            7 => options.reclaim_bytes = usize::MAX,
            8 => options.fork = 1,
            9 => options.backing = PALIMPSEST_BACKING_COLLAPSED + (input.byte() % 4) as i32,
            10 => (options.backing, options.write_view) = (PALIMPSEST_BACKING_PRIVATE, PALIMPSEST_WRITE_VIEW_NONE),
            11 => options.write_view = PALIMPSEST_WRITE_VIEW_NONE,
            12 => options.observers = PALIMPSEST_GDB | PALIMPSEST_UNWIND,
            13 => options.observers = self.recorders(input),
            14 => options.near = ptr::from_ref(self).addr(),
            _ => {}
        }
        let len = size_of::<palimpsest_packs_options>() + input.byte() % 3 * 8;
        let given = Exactly::of(options, len);
        let mut opened = palimpsest_packs { handle: 0 };
        if self.packs.live.len() >= MOST_PACKS {
            return Ok(());
        }
        self.is_unwound |= options.observers & PALIMPSEST_UNWIND != 0;
        // SAFETY: 1. as long as it says. 2. a local. 3. from now on tables are right (`eh_frame`).
        let answer = unsafe { palimpsest_packs_open(given.as_ptr(), &raw mut opened) };
        if !is_known {
            return expect("open", answer, &[PALIMPSEST_INVALID]);
        }
        // What this machine does not have: a pool of huge pages, collapsing, or packs without a second view.
        let is_special = options.backing != 0 || options.write_view == PALIMPSEST_WRITE_VIEW_NONE;
        let wanted: &[_] = if is_special { &[PALIMPSEST_OK, PALIMPSEST_SYSTEM] } else { &[PALIMPSEST_OK] };
        expect("open", answer, wanted)?;
        if answer != PALIMPSEST_OK {
            return Ok(());
        }
        self.packs.add(opened.handle, ())
    }

    fn close(&mut self, input: &mut Input<'_>) -> Step {
        let handle = self.packs.any(input);
        let is_there = self.packs.take(handle).is_some();
        let close = || palimpsest_packs_close(palimpsest_packs { handle });
        if input.byte().is_multiple_of(2) {
            return once("close", twice(close), is_there);
        }
        expect("close", somewhere(input, close), &[there(is_there)])
    }

    /// Returns the answers allowed for a place of `len` bytes.
    fn placed(&self, packs: u64, len: usize, align: usize) -> Vec<palimpsest_result> {
        if self.packs.find(packs).is_none() {
            return vec![PALIMPSEST_STALE];
        }
        if len == 0 || !align.is_power_of_two() || align > LONGEST || len > LONGEST {
            return vec![PALIMPSEST_INVALID, PALIMPSEST_NO_ROOM, PALIMPSEST_OK];
        }
        vec![PALIMPSEST_OK, PALIMPSEST_NO_ROOM]
    }

    fn stage(&mut self, input: &mut Input<'_>) -> Step {
        let (handle, len, align) = (self.packs.any(input), input.number(), 1 << (input.byte() % 8));
        let align = if input.byte() == 0 { input.number() } else { align };
        let packs = palimpsest_packs { handle };
        // SAFETY: 1. null.
        let answer = unsafe { palimpsest_stage(packs, len, align, ptr::null_mut(), ptr::null_mut(), ptr::null_mut()) };
        expect("stage to null", answer, &[PALIMPSEST_INVALID])?;
        if self.staged.live.len() >= MOST {
            return Ok(());
        }
        let (answer, handed, address, image) = somewhere(input, || {
            let (mut staged, mut address, mut image) = (palimpsest_staged { handle: 0 }, 0, ptr::null_mut());
            // SAFETY: 1. locals.
            let answer =
                unsafe { palimpsest_stage(packs, len, align, &raw mut staged, &raw mut address, &raw mut image) };
            (answer, staged.handle, address, image.expose_provenance())
        });
        expect("stage", answer, &self.placed(handle, len, align))?;
        if answer != PALIMPSEST_OK {
            return Ok(());
        }
        if !address.is_multiple_of(align) {
            return Err(format!("{address:#x} is not aligned to {align}"));
        }
        let mut staged = Staged { place: Place { address, bytes: vec![0; len] }, image };
        staged.fill(input);
        self.staged.add(handed, staged)
    }

    fn describe(&mut self, input: &mut Input<'_>) -> Step {
        const NAMES: [&CStr; 3] = [c"name", c"", c"\xff\xfe"];
        let handle = self.staged.any(input);
        let (staged, is_there) = (palimpsest_staged { handle }, self.staged.find(handle).is_some());
        let name = NAMES[input.byte() % 3];
        // SAFETY: 1. a string.
        let answer = unsafe { palimpsest_staged_set_name(staged, name.as_ptr()) };
        expect("name", answer, &[there(is_there)])?;
        let faults: Vec<_> = (0..input.byte() % 4)
            .map(|_| palimpsest_fault { offset: input.number() as u32, landing: input.number() as u32 })
            .collect();
        // SAFETY: 1. that many.
        let answer = unsafe { palimpsest_staged_set_faults(staged, faults.as_ptr(), faults.len()) };
        let wanted = if is_there { [PALIMPSEST_OK, PALIMPSEST_INVALID] } else { [PALIMPSEST_STALE; 2] };
        expect("faults", answer, &wanted)?;
        // SAFETY: 1. null, and too long for anything.
        let answer = unsafe { palimpsest_staged_set_faults(staged, ptr::null(), input.byte().max(1)) };
        expect("faults at null", answer, &[PALIMPSEST_INVALID])?;
        // SAFETY: 1. null.
        let answer = unsafe { palimpsest_staged_set_eh_frame(staged, ptr::null(), input.number()) };
        expect("eh_frame at null", answer, &[PALIMPSEST_INVALID])?;
        let table = self.eh_frame(handle, input);
        // SAFETY: 1. that many.
        let answer = unsafe { palimpsest_staged_set_eh_frame(staged, table.as_ptr().cast(), table.len()) };
        expect("eh_frame", answer, &[there(is_there)])?;
        let Some(found) = self.staged.find_mut(handle) else {
            return lines::tell(Owner::Staged(staged), None, input);
        };
        found.fill(input);
        lines::tell(Owner::Staged(staged), Some(found.place.bytes.len()), input)
    }

    /// Returns observers that write files. Few plays have them, since the files grow.
    fn recorders(&self, input: &mut Input<'_>) -> u32 {
        match input.byte() {
            0..4 => PALIMPSEST_PERF_MAP | PALIMPSEST_JIT_DUMP,
            4..32 => PALIMPSEST_PERF_MAP,
            _ => PALIMPSEST_GDB,
        }
    }

    /// Returns a table for the unwinder: right for what is staged, or, if nobody believes it, anything.
    fn eh_frame(&self, handle: u64, input: &mut Input<'_>) -> Vec<u8> {
        match self.staged.find(handle) {
            Some(staged) if self.is_unwound || input.byte().is_multiple_of(2) => {
                frame_pointer_eh_frame(CodeAddress::new(staged.place.address), staged.place.bytes.len())
            }
            _ => (0..input.byte()).map(|_| input.byte() as u8).collect(),
        }
    }

    fn finalize(&mut self, input: &mut Input<'_>) -> Step {
        let packs = palimpsest_packs { handle: self.packs.any(input) };
        let staged: Vec<_> =
            (0..input.byte() % 4).map(|_| palimpsest_staged { handle: self.staged.any(input) }).collect();
        let is_twice = staged.iter().enumerate().any(|(at, one)| staged[..at].contains(one));
        let is_there = staged.iter().all(|one| self.staged.find(one.handle).is_some());
        let (answer, programs) = somewhere(input, || {
            let mut programs = vec![palimpsest_program { handle: 0 }; staged.len().max(1)];
            // SAFETY: 1. that many. 2. this thread is waited for.
            let answer = unsafe { palimpsest_finalize(packs, staged.as_ptr(), staged.len(), programs.as_mut_ptr()) };
            (answer, programs)
        });
        let wanted = match (self.packs.find(packs.handle), is_there, is_twice) {
            (None, ..) | (_, false, _) => PALIMPSEST_STALE,
            (_, _, true) => PALIMPSEST_INVALID,
            _ => PALIMPSEST_OK,
        };
        expect("finalize", answer, &[wanted])?;
        if answer == PALIMPSEST_OK {
            for (one, program) in staged.iter().zip(programs) {
                let place = self.staged.take(one.handle).ok_or("what is finalized was staged")?.place;
                place.check()?;
                self.programs.add(program.handle, place)?;
            }
        }
        Ok(())
    }

    fn drop_staged(&mut self, input: &mut Input<'_>) -> Step {
        let handle = self.staged.any(input);
        let is_there = self.staged.take(handle).is_some();
        let drop = || palimpsest_staged_drop(palimpsest_staged { handle });
        if input.byte().is_multiple_of(2) {
            return once("drop", twice(drop), is_there);
        }
        expect("drop", somewhere(input, drop), &[there(is_there)])
    }

    fn load(&mut self, input: &mut Input<'_>) -> Step {
        let (handle, first) = (self.packs.any(input), input.byte() as u8);
        let bytes: Vec<u8> = (0..input.number().min(8192)).map(|at| first.wrapping_add(at as u8)).collect();
        let packs = palimpsest_packs { handle };
        let mut program = palimpsest_program { handle: 0 };
        // SAFETY: 1. and 2. null. 3. a local.
        let answer = unsafe { palimpsest_load(packs, ptr::null(), ptr::null(), input.number(), 16, &raw mut program) };
        let is_open = self.packs.find(handle).is_some();
        expect("load from null", answer, &[if is_open { PALIMPSEST_INVALID } else { PALIMPSEST_STALE }])?;
        if self.programs.live.len() >= MOST {
            return Ok(());
        }
        let code = bytes.as_ptr().expose_provenance();
        let (answer, program) = somewhere(input, || {
            let mut program = palimpsest_program { handle: 0 };
            let code = ptr::with_exposed_provenance::<c_void>(code);
            // SAFETY: 1. a string. 2. the bytes, which live until this is done. 3. a local.
            let answer = unsafe { palimpsest_load(packs, c"loaded".as_ptr(), code, bytes.len(), 16, &raw mut program) };
            (answer, program)
        });
        expect("load", answer, &self.placed(handle, bytes.len(), 16))?;
        if answer != PALIMPSEST_OK {
            return Ok(());
        }
        let (address, len) = Self::entry(program)?;
        let place = Place { address, bytes };
        if len != place.bytes.len() {
            return Err(format!("a program of {} bytes has {len}", place.bytes.len()));
        }
        place.check()?;
        self.programs.add(program.handle, place)
    }

    fn entry(program: palimpsest_program) -> Result<(usize, usize), String> {
        let (mut entry, mut len) = (ptr::null(), 0);
        // SAFETY: 1. locals.
        let answer = unsafe { palimpsest_program_entry(program, &raw mut entry, &raw mut len) };
        expect("entry", answer, &[PALIMPSEST_OK])?;
        Ok((entry.expose_provenance(), len))
    }

    fn look(&self, input: &mut Input<'_>) -> Step {
        let handle = self.programs.any(input);
        let packs = palimpsest_packs { handle: self.packs.any(input) };
        let is_open = self.packs.find(packs.handle).is_some();
        let Some(place) = self.programs.find(handle) else {
            // SAFETY: 1. null.
            let answer =
                unsafe { palimpsest_program_entry(palimpsest_program { handle }, ptr::null_mut(), ptr::null_mut()) };
            return expect("entry", answer, &[PALIMPSEST_STALE]);
        };
        place.check()?;
        let mut found = palimpsest_program { handle: 0 };
        let start = ptr::without_provenance(place.address);
        // SAFETY: 1. a local.
        let answer = unsafe { palimpsest_program_at(start, &raw mut found) };
        expect("program at", answer, &[PALIMPSEST_OK])?;
        if found.handle != handle {
            return Err(format!("{:#x} is said to begin where {handle:#x} does", found.handle));
        }
        let told = Exactly::of(0_usize, size_of::<palimpsest_found>() - input.byte() % 72);
        let inside = ptr::without_provenance(place.address + input.byte() % place.bytes.len());
        // SAFETY: 1. as long as it says.
        let answer = unsafe { palimpsest_lookup(packs, inside, told.as_ptr()) };
        // It may belong to another.
        let wanted: &[_] = if is_open { &[PALIMPSEST_OK, PALIMPSEST_NOT_FOUND] } else { &[PALIMPSEST_STALE] };
        expect("lookup", answer, wanted)?;
        if answer == PALIMPSEST_OK {
            // SAFETY: three words at least, which were written.
            let [_, start, len] = unsafe { told.as_ptr::<[usize; 3]>().read() };
            if (start, len) != (place.address, place.bytes.len()) {
                return Err(format!("a program of {len} bytes is said to be at {start:#x}"));
            }
        }
        // SAFETY: 1. null.
        let answer = unsafe { palimpsest_lookup(packs, inside, ptr::null_mut()) };
        expect("lookup to null", answer, &[PALIMPSEST_INVALID])
    }

    fn release(&mut self, input: &mut Input<'_>) -> Step {
        let handle = self.programs.any(input);
        let place = self.programs.take(handle);
        if let Some(place) = &place {
            place.check()?;
        }
        let release = || palimpsest_program_release(palimpsest_program { handle });
        if input.byte().is_multiple_of(2) {
            return once("release", twice(release), place.is_some());
        }
        expect("release", somewhere(input, release), &[there(place.is_some())])
    }

    fn stage_data(&mut self, input: &mut Input<'_>) -> Step {
        let (handle, len, align) = (self.packs.any(input), input.number(), 1 << (input.byte() % 8));
        if self.staged_data.live.len() >= MOST {
            return Ok(());
        }
        let (mut staged, mut address, mut image) = (palimpsest_staged_data { handle: 0 }, 0, ptr::null_mut());
        let is_writable = i32::from(input.byte().is_multiple_of(2));
        let packs = palimpsest_packs { handle };
        // SAFETY: 1. locals.
        let answer = unsafe {
            palimpsest_stage_data(packs, is_writable, len, align, &raw mut staged, &raw mut address, &raw mut image)
        };
        expect("stage data", answer, &self.placed(handle, len, align))?;
        if answer != PALIMPSEST_OK {
            return Ok(());
        }
        let place = Place { address, bytes: vec![0; len] };
        let mut made = Staged { place, image: image.expose_provenance() };
        made.fill(input);
        self.staged_data.add(staged.handle, made)
    }

    fn finalize_data(&mut self, input: &mut Input<'_>) -> Step {
        let staged = palimpsest_staged_data { handle: self.staged_data.any(input) };
        if input.byte().is_multiple_of(3) {
            let is_there = self.staged_data.take(staged.handle).is_some();
            return once("drop data", twice(|| palimpsest_staged_data_drop(staged)), is_there);
        }
        // SAFETY: 1. null. 2. nobody writes.
        let answer = unsafe { palimpsest_finalize_data(staged, ptr::null_mut()) };
        expect("finalize data to null", answer, &[PALIMPSEST_INVALID])?;
        let mut data = palimpsest_data { handle: 0 };
        // SAFETY: 1. a local. 2. nobody writes.
        let answer = unsafe { palimpsest_finalize_data(staged, &raw mut data) };
        let Some(made) = self.staged_data.take(staged.handle) else {
            return expect("finalize data", answer, &[PALIMPSEST_STALE]);
        };
        expect("finalize data", answer, &[PALIMPSEST_OK])?;
        made.place.check()?;
        self.data.add(data.handle, made.place)
    }

    fn release_data(&mut self, input: &mut Input<'_>) -> Step {
        let handle = self.data.any(input);
        let place = self.data.take(handle);
        if let Some(place) = &place {
            place.check()?;
        }
        let release = || palimpsest_data_release(palimpsest_data { handle });
        expect("release data", somewhere(input, release), &[there(place.is_some())])
    }

    fn pin(&mut self, input: &mut Input<'_>) -> Step {
        let handle = self.packs.any(input);
        let packs = palimpsest_packs { handle };
        if input.byte().is_multiple_of(2) {
            expect("pin", palimpsest_pin(packs), &[there(self.packs.find(handle).is_some())])?;
            if self.packs.find(handle).is_some() {
                self.pins.push(handle);
            }
            return Ok(());
        }
        // Pins belong to a thread, and those of closed packs are taken back, too.
        expect("unpin elsewhere", elsewhere(|| palimpsest_unpin(packs)), &[PALIMPSEST_NOT_FOUND])?;
        let found = self.pins.iter().position(|pinned| *pinned == handle);
        let wanted = if found.is_some() { PALIMPSEST_OK } else { PALIMPSEST_NOT_FOUND };
        expect("unpin", palimpsest_unpin(packs), &[wanted])?;
        if let Some(index) = found {
            self.pins.swap_remove(index);
        }
        Ok(())
    }

    fn poke(&mut self, input: &mut Input<'_>) -> Step {
        let handle = self.programs.any(input);
        let applied = Exactly::of(0_usize, input.byte() % (2 * size_of::<palimpsest_applied>()));
        // SAFETY: a word at least.
        let is_refused = unsafe { applied.as_ptr::<usize>().read() } < size_of::<usize>();
        let (offset, len, xor) = (input.byte(), input.byte() % 18, input.byte() as u8);
        let found = self.programs.find(handle);
        let (start, there) = found.map_or((0, &[][..]), |place| (place.address, &*place.bytes));
        // The present bytes, or others.
        let mut old: Vec<u8> = there.iter().skip(offset).take(len).copied().collect();
        old.resize(len, 0);
        let is_inside = offset + len <= there.len();
        let is_wrong = input.byte().is_multiple_of(4) && len > 0;
        if is_wrong {
            old[0] ^= 1;
        }
        let new: Vec<u8> = old.iter().map(|byte| byte ^ xor).collect();
        let site = palimpsest_site {
            // Handle 0 would mean the text of this program.
            program: palimpsest_program { handle: if handle == 0 { u64::MAX } else { handle } },
            address: ptr::without_provenance(start + offset),
            old_code: old.as_ptr().cast(),
            new_code: new.as_ptr().cast(),
            len,
        };
        // SAFETY: 1. one, with its bytes. 2. nobody runs the program. 3. as long as it says.
        let answer = unsafe { palimpsest_poke(&raw const site, 1, applied.as_ptr()) };
        let wanted: &[_] = match found {
            _ if is_refused => &[PALIMPSEST_INVALID],
            None => &[PALIMPSEST_STALE],
            Some(_) if !is_inside || len == 0 || len > 16 => &[PALIMPSEST_INVALID],
            // What is not an instruction of this machine is refused, in one step or another.
            Some(_) if is_wrong => &[PALIMPSEST_CHANGED, PALIMPSEST_INVALID, PALIMPSEST_REFUSED],
            Some(_) => &[PALIMPSEST_OK, PALIMPSEST_INVALID, PALIMPSEST_REFUSED, PALIMPSEST_SYSTEM],
        };
        expect("poke", answer, wanted)?;
        let Some(place) = self.programs.find_mut(handle) else { return Ok(()) };
        if answer == PALIMPSEST_OK {
            place.bytes[offset..offset + len].copy_from_slice(&new);
        }
        place.check()
    }

    fn counters(&self, input: &mut Input<'_>) -> Step {
        let packs = palimpsest_packs { handle: self.packs.any(input) };
        let is_there = self.packs.find(packs.handle).is_some();
        let len = input.byte() % (2 * size_of::<palimpsest_packs_stats>());
        let stats = Exactly::of(0_usize, len);
        // SAFETY: 1. as long as it says, and at least its first field.
        let answer = unsafe { palimpsest_packs_get_stats(packs, stats.as_ptr()) };
        let wanted = match is_there {
            false => PALIMPSEST_STALE,
            true if len < size_of::<usize>() => PALIMPSEST_INVALID,
            true => PALIMPSEST_OK,
        };
        expect("stats", answer, &[wanted])?;
        let mut bytes = 0;
        // SAFETY: 1. a local.
        let answer = unsafe { palimpsest_packs_reclaim(packs, &raw mut bytes) };
        expect("reclaim", answer, &[there(is_there)])
    }

    /// Checks that what is left has its bytes, and ends it.
    pub(super) fn end(mut self) -> Step {
        let mut places = self.programs.live.iter().chain(&self.data.live);
        places.try_for_each(|(_, place)| place.check())?;
        for handle in self.pins.drain(..) {
            expect("unpin", palimpsest_unpin(palimpsest_packs { handle }), &[PALIMPSEST_OK])?;
        }
        let programs = self.programs.live.iter();
        let programs = programs.map(|&(handle, _)| palimpsest_program_release(palimpsest_program { handle }));
        let data = self.data.live.iter().map(|&(handle, _)| palimpsest_data_release(palimpsest_data { handle }));
        let staged = self.staged.live.iter();
        let staged = staged.map(|&(handle, _)| palimpsest_staged_drop(palimpsest_staged { handle }));
        let images = self.staged_data.live.iter();
        let images = images.map(|&(handle, _)| palimpsest_staged_data_drop(palimpsest_staged_data { handle }));
        let packs = self.packs.live.iter().map(|&(handle, ())| palimpsest_packs_close(palimpsest_packs { handle }));
        let mut answers = programs.chain(data).chain(staged).chain(images).chain(packs);
        answers.try_for_each(|answer| expect("at the end", answer, &[PALIMPSEST_OK]))
    }
}
