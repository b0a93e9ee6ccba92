//! Snapshots of a piece of memory: what was written is gone after a restore, and other threads are refused.

use std::ptr;
use std::slice;

use palimpsest_sys::memory::own::Own;

use super::{Exactly, Input, Named, Step, elsewhere, expect};
use crate::result::palimpsest_result::{
    PALIMPSEST_INVALID, PALIMPSEST_NOT_FOUND, PALIMPSEST_OK, PALIMPSEST_REFUSED, PALIMPSEST_STALE,
};
use crate::snapshots::{
    palimpsest_abandon, palimpsest_body, palimpsest_range, palimpsest_restored, palimpsest_snapshot,
    palimpsest_snapshot_declare, palimpsest_snapshot_drop, palimpsest_snapshot_extent, palimpsest_snapshot_get_extent,
    palimpsest_snapshot_not_taken, palimpsest_snapshot_options, palimpsest_snapshot_restore,
    palimpsest_snapshot_rounds, palimpsest_snapshot_run, palimpsest_snapshot_take, palimpsest_target,
};

const PAGE: usize = 4096;
const PAGES: usize = 16;

/// The memory of a snapshot, in a mapping of its own.
type Memory = [u8; PAGE * PAGES];

/// The memory of one snapshot, and what was in it.
struct Taken {
    memory: Own<Memory>,
    bytes: Box<Memory>,
}

#[derive(Default)]
pub(super) struct Player {
    snapshots: Named<Taken>,
}

/// Snapshots at a time.
const MOST: usize = 4;

fn zeros() -> palimpsest_snapshot_options {
    palimpsest_snapshot_options {
        size: 0,
        ranges: ptr::null(),
        range_count: 0,
        except: ptr::null(),
        except_count: 0,
        resident: 0,
        sweep: 0,
        sweep_every: 0,
        trust_layout: 0,
        others_sleep: 1,
        restore_descriptors: 0,
        reserved: 0,
    }
}

impl Player {
    pub(super) fn step(&mut self, choice: u8, input: &mut Input<'_>) -> Step {
        match choice {
            0 | 1 if self.snapshots.live.len() < MOST => self.take(input),
            2..6 => self.write(input),
            6..9 => self.restore(input),
            9 => self.refused(input),
            10 => self.look(input),
            11 => self.declare(input),
            12 => self.run(input),
            15 => self.rounds(input),
            13 | 14 => self.drop_one(input),
            _ => Ok(()),
        }
    }

    fn take(&mut self, input: &mut Input<'_>) -> Step {
        let mut memory = Own::new([0; PAGE * PAGES]).map_err(|errno| format!("no memory: {errno}"))?;
        memory.iter_mut().step_by(64 + input.byte()).for_each(|byte| *byte = 7);
        let page = page_len();
        let start = memory.place().as_ptr().cast_const().cast::<u8>();
        // Mostly whole pages.
        let (first, len) = match input.byte() {
            0 => (1, page),
            1 => (0, page + 1),
            2 => (0, input.number()),
            _ => (0, size_of::<Memory>()),
        };
        let range = palimpsest_range { start: start.wrapping_add(first).cast(), len };
        let is_whole = first == 0 && len == size_of::<Memory>();
        let mut options = palimpsest_snapshot_options { ranges: &raw const range, range_count: 1, ..zeros() };
        let mut is_known = true;
        match input.byte() {
            0 => (options.sweep, is_known) = (4, false),
            1 => (options.sweep, is_known) = (3, false),
            2 => (options.sweep_every, is_known) = (1, false),
            3 => (options.reserved, is_known) = (-1, false),
            4 => (options.range_count, is_known) = (0, false),
            5 => (options.ranges, is_known) = (ptr::null(), false),
            6 => (options.except_count, is_known) = (1, false),
            7 => (options.except, options.except_count, is_known) = (&raw const range, usize::MAX, false),
            8 => options.sweep = 1,
            9 => (options.sweep, options.sweep_every) = (3, 1),
            10 => options.resident = 1,
            _ => {}
        }
        // A structure longer than the known one, with zeros at the end.
        let len = size_of::<palimpsest_snapshot_options>() + input.byte() % 3 * 8;
        let given = Exactly::of(options, len);
        let mut taken = palimpsest_snapshot { handle: 0 };
        // SAFETY: 1. as long as it says, with a range; or wrong, which is refused. 2. and 3. the memory is ours alone.
        let answer = unsafe { palimpsest_snapshot_take(given.as_ptr(), &raw mut taken) };
        match (is_whole, is_known) {
            (true, true) => {
                expect("take", answer, &[PALIMPSEST_OK])?;
                let bytes = Box::new(*memory);
                self.snapshots.add(taken.handle, Taken { memory, bytes })
            }
            (_, false) => expect("take", answer, &[PALIMPSEST_INVALID]),
            // A number of bytes that happens to be right: whole pages of this memory.
            (false, true) if answer == PALIMPSEST_OK => {
                expect("drop", palimpsest_snapshot_drop(taken), &[PALIMPSEST_OK])
            }
            (false, true) => expect("take", answer, &[PALIMPSEST_INVALID]),
        }
    }

    fn write(&mut self, input: &mut Input<'_>) -> Step {
        let Some(index) = input.pick(self.snapshots.live.len()) else { return Ok(()) };
        let memory = &mut self.snapshots.live[index].1.memory;
        for _ in 0..=input.byte() % 8 {
            let at = input.byte() % PAGES * PAGE + input.byte();
            memory[at] = input.byte() as u8;
        }
        Ok(())
    }

    /// Checks that the memory is as it was, or is not known to be a snapshot's.
    fn is_back(taken: Option<&Taken>) -> Step {
        match taken {
            Some(taken) if *taken.memory != *taken.bytes => Err("the bytes of before are not back".to_owned()),
            _ => Ok(()),
        }
    }

    fn restore(&mut self, input: &mut Input<'_>) -> Step {
        let handle = self.snapshots.any(input);
        let len = input.byte() % (2 * size_of::<palimpsest_restored>());
        let restored = Exactly::of(0_usize, len);
        // SAFETY: 1. as long as it says, and at least its first field. 2. and 3. the memory is ours alone.
        let answer = unsafe { palimpsest_snapshot_restore(palimpsest_snapshot { handle }, restored.as_ptr()) };
        let taken = self.snapshots.find(handle);
        if len < size_of::<usize>() {
            return expect("restore", answer, &[PALIMPSEST_INVALID]);
        }
        expect("restore", answer, &[if taken.is_some() { PALIMPSEST_OK } else { PALIMPSEST_STALE }])?;
        Self::is_back(taken)
    }

    /// Another thread can do nothing.
    fn refused(&self, input: &mut Input<'_>) -> Step {
        let handle = self.snapshots.any(input);
        let wanted = if self.snapshots.find(handle).is_some() { PALIMPSEST_REFUSED } else { PALIMPSEST_STALE };
        let named = palimpsest_snapshot { handle };
        // SAFETY: 1. null. 2. and 3. nothing is restored.
        let answer = elsewhere(|| unsafe { palimpsest_snapshot_restore(named, ptr::null_mut()) });
        expect("restore elsewhere", answer, &[wanted])?;
        expect("drop elsewhere", elsewhere(|| palimpsest_snapshot_drop(named)), &[wanted])
    }

    fn look(&self, input: &mut Input<'_>) -> Step {
        let handle = self.snapshots.any(input);
        let snapshot = palimpsest_snapshot { handle };
        let known = self.snapshots.find(handle).is_some();
        let extent = Exactly::of(0_usize, size_of::<palimpsest_snapshot_extent>());
        // SAFETY: 1. as long as it says.
        let answer = unsafe { palimpsest_snapshot_get_extent(snapshot, extent.as_ptr()) };
        expect("extent", answer, &[if known { PALIMPSEST_OK } else { PALIMPSEST_STALE }])?;
        let left = Exactly::of(0_usize, input.byte().max(size_of::<usize>()));
        // SAFETY: 1. as long as it says.
        let answer = unsafe { palimpsest_snapshot_not_taken(snapshot, input.number(), left.as_ptr()) };
        expect("not taken", answer, &[if known { PALIMPSEST_NOT_FOUND } else { PALIMPSEST_STALE }])?;
        // SAFETY: 1. null.
        let answer = unsafe { palimpsest_snapshot_get_extent(snapshot, ptr::null_mut()) };
        expect("extent to null", answer, &[PALIMPSEST_INVALID])
    }

    fn declare(&self, input: &mut Input<'_>) -> Step {
        let handle = self.snapshots.any(input);
        let start = self.snapshots.find(handle).map_or(0, |taken| taken.memory.place().addr().get());
        let start = ptr::without_provenance(start.wrapping_add(input.number()));
        let range = palimpsest_range { start, len: input.number() };
        let answer = palimpsest_snapshot_declare(palimpsest_snapshot { handle }, range);
        let wanted = match (range.start.addr().checked_add(range.len), self.snapshots.find(handle)) {
            (None, _) => PALIMPSEST_INVALID,
            (_, None) => PALIMPSEST_STALE,
            _ => PALIMPSEST_OK,
        };
        expect("declare", answer, &[wanted])
    }

    fn run(&self, input: &mut Input<'_>) -> Step {
        unsafe extern "C-unwind" fn gives_up(memory: *mut std::ffi::c_void) -> usize {
            // SAFETY: as in `fills`.
            unsafe { fills(memory) };
            // SAFETY: 1. nothing holds anything here.
            unsafe { palimpsest_abandon(5) }
        }
        unsafe extern "C-unwind" fn fills(memory: *mut std::ffi::c_void) -> usize {
            if memory.is_null() {
                return 1;
            }
            // SAFETY: this snapshot's memory, which nobody else uses while its target runs.
            unsafe { slice::from_raw_parts_mut(memory.cast::<u8>(), size_of::<Memory>()) }.fill(9);
            9
        }
        let handle = self.snapshots.any(input);
        let taken = self.snapshots.find(handle);
        let memory = taken.map_or(ptr::null_mut(), |taken| taken.memory.place().as_ptr());
        let (mut value, mut left) = (0, 2);
        let (target, ended): (palimpsest_target, _) = match input.byte() % 8 {
            0 => (None, (0, 2)),
            1..4 => (Some(gives_up), (5, 1)),
            _ => (Some(fills), (9, 0)),
        };
        // SAFETY: 1. locals, and no report; the memory is ours alone. 2. the function is for such memory, or null.
        let answer = unsafe {
            palimpsest_snapshot_run(
                palimpsest_snapshot { handle },
                1,
                target,
                memory.cast(),
                &raw mut value,
                &raw mut left,
                ptr::null_mut(),
            )
        };
        match (target, taken) {
            (None, _) => expect("run", answer, &[PALIMPSEST_INVALID]),
            (_, None) => expect("run", answer, &[PALIMPSEST_STALE]),
            _ if (value, left) != ended => Err(format!("run: {answer:?}, {value}, {left}")),
            _ => Self::is_back(taken),
        }
    }

    /// Rounds, each of which finds the memory as it was, until one returns.
    fn rounds(&self, input: &mut Input<'_>) -> Step {
        let memory = Own::new([7; PAGE * PAGES]).map_err(|errno| format!("no memory: {errno}"))?;
        let range = palimpsest_range { start: memory.place().as_ptr().cast_const().cast(), len: size_of::<Memory>() };
        let mut options = palimpsest_snapshot_options { ranges: &raw const range, range_count: 1, ..zeros() };
        let (is_known, body): (_, palimpsest_body) = match input.byte() % 8 {
            0 => (false, None),
            1 => {
                options.reserved = 1;
                (false, Some(round))
            }
            _ => (true, Some(round)),
        };
        let given = Exactly::of(options, size_of_val(&options));
        // Not what a round changes: the memory of the snapshot, and the stack below this call, are put back.
        let mut value = 0;
        let argument = memory.place().as_ptr().cast();
        if is_known && cfg!(fuzzing) {
            // AddressSanitizer takes copies of the stack, which hold what lies between variables, for stray accesses.
            return Ok(());
        }
        // SAFETY: 1. as long as they say, or refused; the memory is ours alone.
        let answer = unsafe { palimpsest_snapshot_rounds(given.as_ptr(), 1, body, argument, &raw mut value) };
        if !is_known {
            return expect("rounds", answer, &[PALIMPSEST_INVALID]);
        }
        expect("rounds", answer, &[PALIMPSEST_OK])?;
        // The last round has changed it, and nothing is put back.
        if (value, memory[0], memory[PAGE * PAGES - 1]) == (LAST as usize + 40, 9, 7) {
            Ok(())
        } else {
            Err(format!("rounds: {value}, {} {}", memory[0], memory[PAGE * PAGES - 1]))
        }
    }

    fn drop_one(&mut self, input: &mut Input<'_>) -> Step {
        let handle = self.snapshots.any(input);
        let wanted = if self.snapshots.take(handle).is_some() { PALIMPSEST_OK } else { PALIMPSEST_STALE };
        expect("drop", palimpsest_snapshot_drop(palimpsest_snapshot { handle }), &[wanted])
    }

    pub(super) fn end(mut self) -> Step {
        while let Some((handle, taken)) = self.snapshots.live.pop() {
            expect("drop", palimpsest_snapshot_drop(palimpsest_snapshot { handle }), &[PALIMPSEST_OK])?;
            drop(taken);
        }
        Ok(())
    }
}

/// The number of the round that returns.
const LAST: u64 = 3;

/// Changes memory, and gives up unless it is the last one.
unsafe extern "C-unwind" fn round(
    memory: *mut std::ffi::c_void,
    number: u64,
    value: usize,
    restored: *const palimpsest_restored,
) -> usize {
    // SAFETY: the first byte of the snapshot's memory, which nobody else uses meanwhile.
    let first = unsafe { &mut *memory.cast::<u8>() };
    let is_right = *first == 7 && restored.is_null() == (number == 0) && value == (if number == 0 { 0 } else { 6 });
    *first = 9;
    match (is_right, number) {
        (false, _) => 1,
        (true, LAST) => number as usize + 40,
        // SAFETY: 1. nothing holds anything here.
        _ => unsafe { palimpsest_abandon(6) },
    }
}

/// Returns the size of a page of this machine.
fn page_len() -> usize {
    // SAFETY: has no conditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE)
}
