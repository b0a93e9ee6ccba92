//! Memory that is discarded, moved, protected, frozen in one go and in slices, thawed, and forked: it holds what the
//! model says. Freezing concerns the whole process, so each play of that is in a child process.
//!
//! A fuzzer sees nothing of what a child covers, so a child goes on with steps drawn from what the input says.

use std::ffi::{c_int, c_void};
use std::io::{Error, Read, Write};
use std::ops::Range;
use std::ptr;

use palimpsest_sys::pages::maps::{Maps, Permissions};

use super::{Exactly, Input, Step, expect, reports};
use crate::freeze::{
    PALIMPSEST_IO_URING, PALIMPSEST_LINUX_AIO, PALIMPSEST_LOCKED_MEMORY, PALIMPSEST_RAW_ALLOCATOR, palimpsest_fork,
    palimpsest_fork_status, palimpsest_freeze, palimpsest_freeze_options, palimpsest_freeze_report,
    palimpsest_frozen_bytes, palimpsest_get_fork_status, palimpsest_survey,
};
use crate::guards::{
    palimpsest_confined, palimpsest_forget, palimpsest_madvise, palimpsest_mprotect, palimpsest_mremap,
    palimpsest_pkey_mprotect, palimpsest_replaced, palimpsest_thaw, palimpsest_thaw_all,
};
use crate::result::palimpsest_result::{
    PALIMPSEST_BUSY, PALIMPSEST_INVALID, PALIMPSEST_NO_ROOM, PALIMPSEST_NOT_FOUND, PALIMPSEST_OK, PALIMPSEST_REFUSED,
};
use crate::result::{palimpsest_error_message, palimpsest_version};
use crate::slices::{
    PALIMPSEST_STAGE_ENDED, PALIMPSEST_STAGE_NONE, palimpsest_dismiss_deputy, palimpsest_freeze_get_progress,
    palimpsest_freeze_progress, palimpsest_freeze_slice, palimpsest_freeze_while, palimpsest_make_room,
    palimpsest_next_slice, palimpsest_put_off_slices,
};

/// Pages of an area at first, and at most.
const PAGES: usize = 1024;
const MOST_PAGES: usize = 2048;
/// Areas of a child.
const AREAS: usize = 2;
/// Steps of a child, and forks among them.
const STEPS: usize = 32;
const FORKS: usize = 6;
/// Whatever has fewer bytes is left alone: what a sanitizer maps while a child plays.
const LEAST: usize = 3 << 20;

/// A page: the byte with which it begins and ends, and whether it can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    fill: u8,
    is_writable: bool,
}

const EMPTY: Page = Page { fill: 0, is_writable: true };

/// Memory of the play's own.
struct Area {
    start: usize,
    pages: Vec<Page>,
    /// Whether the kernel may have it as several mappings, which nobody moves together.
    is_mixed: bool,
}

/// Where memory is played with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// In this process, which never freezes.
    Here,
    /// In a child that has frozen.
    Child,
    /// In such a child that has reported a seccomp filter.
    Confined,
}

pub(super) struct Player {
    areas: Vec<Area>,
    place: Where,
    /// Whether guards know too little of some memory to thaw it.
    is_unsure: bool,
    forks: usize,
}

impl Default for Player {
    fn default() -> Self {
        Self { areas: Vec::new(), place: Where::Here, is_unsure: false, forks: 0 }
    }
}

fn page_len() -> usize {
    rustix::param::page_size()
}

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

fn errno() -> c_int {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Area {
    fn new(pages: usize) -> Result<Self, String> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: makes a mapping, and replaces none.
        let made = unsafe { libc::mmap(ptr::null_mut(), pages * page_len(), rights, kind, -1, 0) };
        if made == libc::MAP_FAILED {
            return Err(format!("no memory: {}", Error::last_os_error()));
        }
        palimpsest_replaced(made, pages * page_len());
        Ok(Self { start: made.expose_provenance(), pages: vec![EMPTY; pages], is_mixed: false })
    }

    fn len(&self) -> usize {
        self.pages.len() * page_len()
    }

    fn at(&self, page: usize) -> usize {
        self.start + page * page_len()
    }

    fn ends(&self, page: usize) -> [usize; 2] {
        [self.at(page), self.at(page + 1) - 1]
    }

    fn store(&mut self, page: usize, fill: u8) {
        if self.pages[page].is_writable {
            for at in self.ends(page) {
                // SAFETY: a byte of this play's own, which can be written.
                unsafe { pointer(at).cast::<u8>().write_volatile(fill) };
            }
            self.pages[page].fill = fill;
        }
    }

    fn check(&self) -> Step {
        for (index, page) in self.pages.iter().enumerate() {
            for at in self.ends(index) {
                // SAFETY: a byte of this play's own, which can be read.
                let there = unsafe { pointer(at).cast::<u8>().read_volatile() };
                if there != page.fill {
                    return Err(format!("{there:#x} is at {at:#x}, page {index}, and not {page:x?}"));
                }
            }
        }
        Ok(())
    }

    fn range(&self, input: &mut Input<'_>) -> Range<usize> {
        let start = (input.byte() * 13) % self.pages.len();
        start..(start + 1 + input.byte() * 3).min(self.pages.len())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: this play's own, which nobody uses any more.
        unsafe { libc::munmap(pointer(self.start), self.len()) };
    }
}

impl Player {
    pub(super) fn step(&mut self, choice: u8, input: &mut Input<'_>) -> Step {
        if choice == 15 {
            return in_child(input);
        }
        self.play(choice, input)
    }

    /// Plays a step on memory.
    fn play(&mut self, choice: u8, input: &mut Input<'_>) -> Step {
        if self.areas.is_empty() {
            self.areas.push(Area::new(8)?);
        }
        let index = input.byte() % self.areas.len();
        match choice {
            0..4 => {
                let area = &mut self.areas[index];
                let (range, step) = (area.range(input), 1 + input.byte() % 16);
                let fill = input.byte() as u8;
                range.step_by(step).for_each(|page| area.store(page, fill));
                Ok(())
            }
            4 | 5 => self.discard(index, input),
            6 => self.resize(index, input),
            7 | 8 => self.protect(index, input),
            9 => self.replace(index, input),
            10 => self.wrong(index),
            11 => self.thaw(index, input),
            _ => self.look(),
        }?;
        self.areas.iter().try_for_each(Area::check)
    }

    fn discard(&mut self, index: usize, input: &mut Input<'_>) -> Step {
        let area = &mut self.areas[index];
        let range = area.range(input);
        // SAFETY: 1. this play's own.
        let done =
            unsafe { palimpsest_madvise(pointer(area.at(range.start)), range.len() * page_len(), libc::MADV_DONTNEED) };
        if done != 0 {
            return Err(format!("discard: {}", Error::last_os_error()));
        }
        area.pages[range].iter_mut().for_each(|page| page.fill = 0);
        Ok(())
    }

    fn resize(&mut self, index: usize, input: &mut Input<'_>) -> Step {
        let area = &mut self.areas[index];
        let first = area.pages[0];
        if area.is_mixed || area.pages.iter().any(|page| page.is_writable != first.is_writable) {
            return Ok(());
        }
        let most = if self.place == Where::Here { 64 } else { MOST_PAGES };
        let pages = 1 + input.byte() * 17 % most;
        // SAFETY: 1. this play's own.
        let moved = unsafe {
            palimpsest_mremap(
                pointer(area.start),
                area.len(),
                pages * page_len(),
                libc::MREMAP_MAYMOVE,
                ptr::null_mut(),
            )
        };
        if moved == libc::MAP_FAILED {
            return Err(format!("resize to {pages} pages: {}", Error::last_os_error()));
        }
        area.start = moved.expose_provenance();
        area.pages.resize(pages, Page { fill: 0, ..first });
        Ok(())
    }

    fn protect(&mut self, index: usize, input: &mut Input<'_>) -> Step {
        let area = &mut self.areas[index];
        let (range, is_writable) = (area.range(input), input.byte().is_multiple_of(2));
        let rights = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let (start, len) = (pointer(area.at(range.start)), range.len() * page_len());
        let done = match input.byte() % 4 {
            // Leaves the key as it is. SAFETY: 1. this play's own, to which the model no longer writes if it must not.
            0 => unsafe { palimpsest_pkey_mprotect(start, len, rights, -1) },
            // SAFETY: as above.
            _ => unsafe { palimpsest_mprotect(start, len, rights) },
        };
        if done != 0 {
            return Err(format!("protect: {}", Error::last_os_error()));
        }
        area.is_mixed |= range.len() < area.pages.len();
        area.pages[range].iter_mut().for_each(|page| page.is_writable = is_writable);
        Ok(())
    }

    /// Maps over memory, as a program does that knows of the freeze.
    fn replace(&mut self, index: usize, input: &mut Input<'_>) -> Step {
        let area = &mut self.areas[index];
        let range = area.range(input);
        let (start, len) = (pointer(area.at(range.start)), range.len() * page_len());
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: replaces what is this play's own.
        let made = unsafe { libc::mmap(start, len, rights, kind | libc::MAP_FIXED, -1, 0) };
        if made != start {
            return Err(format!("map over: {}", Error::last_os_error()));
        }
        palimpsest_replaced(start, len);
        area.is_mixed = true;
        area.pages[range].fill(EMPTY);
        Ok(())
    }

    /// Calls that the kernel refuses.
    fn wrong(&mut self, index: usize) -> Step {
        let area = &mut self.areas[index];
        let (start, page) = (area.start, page_len());
        // SAFETY: 1. there is no such advice.
        let advised = unsafe { palimpsest_madvise(pointer(start), page, -1) };
        let mut found = vec![(advised, errno())];
        // SAFETY: 1. not the start of a page: refused.
        let advised = unsafe { palimpsest_madvise(pointer(start + 1), page, libc::MADV_DONTNEED) };
        found.push((advised, errno()));
        // SAFETY: 1. not the start of a page: refused.
        let moved = unsafe { palimpsest_mremap(pointer(start + 1), page, page, 0, ptr::null_mut()) };
        found.push((if moved == libc::MAP_FAILED { -1 } else { 0 }, errno()));
        // SAFETY: 1. there is no such right.
        let protected = unsafe { palimpsest_mprotect(pointer(start), page, 1 << 30) };
        found.push((protected, errno()));
        // SAFETY: 1. there is no such key.
        let protected = unsafe { palimpsest_pkey_mprotect(pointer(start), page, libc::PROT_READ, 1 << 20) };
        found.push((protected, errno()));
        area.is_mixed = true;
        self.is_unsure = true;
        if found.iter().all(|answer| *answer == (-1, libc::EINVAL)) { Ok(()) } else { Err(format!("{found:?}")) }
    }

    fn thaw(&mut self, index: usize, input: &mut Input<'_>) -> Step {
        let area = &mut self.areas[index];
        let range = area.range(input);
        let (start, len) = (area.at(range.start), range.len() * page_len());
        let mut wanted = vec![PALIMPSEST_OK];
        if self.place == Where::Confined {
            wanted.push(PALIMPSEST_BUSY);
        }
        if self.is_unsure {
            wanted.extend([PALIMPSEST_NO_ROOM, PALIMPSEST_REFUSED]);
        }
        match input.byte() % 4 {
            0 => {
                range.for_each(|page| area.store(page, 0));
                expect("forget", palimpsest_forget(pointer(start), len), &wanted)
            }
            1 => {
                let answer = palimpsest_thaw_all();
                expect("thaw all", answer, &wanted)?;
                let left = palimpsest_frozen_bytes();
                let is_right = answer != PALIMPSEST_OK || left == 0 || self.place == Where::Confined;
                if is_right { Ok(()) } else { Err(format!("{left} bytes are frozen after all was thawed")) }
            }
            _ => expect("thaw", palimpsest_thaw(pointer(start), len), &wanted),
        }
    }

    /// Asks for what is known, which changes nothing.
    fn look(&self) -> Step {
        let status = Exactly::of(0_usize, size_of::<palimpsest_fork_status>());
        // SAFETY: 1. as long as it says.
        expect("status", unsafe { palimpsest_get_fork_status(status.as_ptr()) }, &[PALIMPSEST_OK])?;
        // SAFETY: as long as that, and written.
        let status = unsafe { status.as_ptr::<palimpsest_fork_status>().read() };
        let frozen = palimpsest_frozen_bytes();
        let progress = progress()?;
        let mut wait = 0;
        // SAFETY: 1. a local.
        let next = unsafe { palimpsest_next_slice(&raw mut wait) };
        expect("next slice", next, &[PALIMPSEST_OK, PALIMPSEST_NOT_FOUND])?;
        // SAFETY: 1. null.
        expect("next slice to null", unsafe { palimpsest_next_slice(ptr::null_mut()) }, &[PALIMPSEST_INVALID])?;
        let is_known = (PALIMPSEST_STAGE_NONE..=PALIMPSEST_STAGE_ENDED).contains(&progress.stage);
        let is_plain = frozen == 0 && progress.stage == PALIMPSEST_STAGE_NONE && next == PALIMPSEST_NOT_FOUND;
        let is_right = is_known && [0, frozen].contains(&status.frozen) && (is_plain || self.place != Where::Here);
        if !is_right {
            return Err(format!("{frozen} frozen, {next:?} in {wait}: {status:?}, {progress:?}"));
        }
        palimpsest_dismiss_deputy();
        if palimpsest_make_room() != 0 {
            return Err("a deputy is there after it was dismissed".to_owned());
        }
        if palimpsest_version() >> 24 != 0 || palimpsest_error_message().is_null() {
            return Err(format!("version {:#x}", palimpsest_version()));
        }
        Ok(())
    }

    /// Plays in a child that freezes.
    fn play_frozen(&mut self, input: &mut Input<'_>, tell: &dyn Fn(String)) -> Step {
        // A sanitizer's shadow is written to by the code that freezes, and its heap has parts that nobody may read.
        if !leave_others_alone()? && cfg!(fuzzing) {
            return Ok(());
        }
        for _ in 0..AREAS {
            let mut area = Area::new(PAGES)?;
            (0..PAGES).for_each(|page| area.store(page, page as u8 | 1));
            self.areas.push(area);
        }
        self.freeze(input)?;
        for step in 0..STEPS {
            let choice = input.byte() as u8 % 32;
            tell(format!("step {step}, {choice}\n"));
            match choice {
                16..19 if self.place == Where::Child => self.freeze(input)?,
                19..23 if self.place == Where::Child => self.slice(input)?,
                23 if self.place == Where::Child => self.survey(input)?,
                24..28 => self.fork(input)?,
                28 if step > STEPS / 2 => {
                    palimpsest_confined();
                    self.place = Where::Confined;
                }
                choice => self.play(choice % 16, input)?,
            }
            self.areas.iter().try_for_each(Area::check)?;
        }
        self.look()
    }

    fn freeze(&mut self, input: &mut Input<'_>) -> Step {
        let mut options = options();
        let mut is_known = true;
        match input.byte() % 16 {
            0 => (options.answers, is_known) = (1 << 20, false),
            1 => (options.reserved, is_known) = (1, false),
            2 => (options.collapse, options.gather, is_known) = (1, 1, false),
            3 => options.collapse = 1,
            4 => options.pays_within = 1 + input.byte() as u32,
            5..9 => options.pause_ns = 20_000 + (input.byte() as u64) * 4000,
            9 => (options.pause_ns, options.pays_within, options.gather) = (100_000, 1000, 1),
            10 => (options.pause_ns, options.pays_within, options.gather, options.deputy) = (100_000, 1000, 1, 1),
            11 => options.stop_threads = 1,
            12 => options.extent = input.number(),
            _ => {}
        }
        let given = Exactly::of(options, size_of_val(&options) + input.byte() % 3 * 8);
        let len = input.byte() % (2 * size_of::<palimpsest_freeze_report>());
        let report = Exactly::of(0_usize, len);
        let told = if input.byte().is_multiple_of(3) { ptr::null_mut() } else { report.as_ptr() };
        // SAFETY: 1. as long as they say. 2. this child has one thread, and discards by these functions.
        let answer = unsafe { palimpsest_freeze(given.as_ptr(), told) };
        let is_refused = !is_known || (len < size_of::<usize>() && !told.is_null());
        expect("freeze", answer, &[if is_refused { PALIMPSEST_INVALID } else { PALIMPSEST_OK }])?;
        if is_refused || told.is_null() { Ok(()) } else { reports::check(&report, len) }
    }

    fn survey(&self, input: &mut Input<'_>) -> Step {
        let before = palimpsest_frozen_bytes();
        let given = Exactly::of(options(), size_of::<palimpsest_freeze_options>());
        let len = input.byte() % (2 * size_of::<palimpsest_freeze_report>());
        let report = Exactly::of(0_usize, len);
        // SAFETY: 1. null.
        expect("survey to null", unsafe { palimpsest_survey(given.as_ptr(), ptr::null_mut()) }, &[PALIMPSEST_INVALID])?;
        // SAFETY: 1. as long as they say.
        let answer = unsafe { palimpsest_survey(given.as_ptr(), report.as_ptr()) };
        let is_known = len >= size_of::<usize>();
        expect("survey", answer, &[if is_known { PALIMPSEST_OK } else { PALIMPSEST_INVALID }])?;
        if is_known {
            reports::check(&report, len)?;
        }
        let after = palimpsest_frozen_bytes();
        if after == before { Ok(()) } else { Err(format!("a survey makes {before} frozen bytes {after}")) }
    }

    fn slice(&mut self, input: &mut Input<'_>) -> Step {
        unsafe extern "C" fn has_time(left: *mut c_void) -> c_int {
            // SAFETY: a counter of the caller's.
            let left = unsafe { &mut *left.cast::<c_int>() };
            *left -= 1;
            c_int::from(*left > 0)
        }
        let len = input.byte() % (2 * size_of::<palimpsest_freeze_progress>());
        let progress = Exactly::of(0_usize, len);
        let told = if input.byte().is_multiple_of(3) { ptr::null_mut() } else { progress.as_ptr() };
        let mut left = (input.byte() % 8) as c_int;
        let answer = match input.byte() % 4 {
            0 => {
                palimpsest_put_off_slices(input.number() as u64);
                PALIMPSEST_OK
            }
            // SAFETY: 1. as long as it says. 2. as of the freeze.
            1 => unsafe { palimpsest_freeze_slice(told) },
            // SAFETY: 1. as above. 2. null.
            2 => unsafe { palimpsest_freeze_while(None, ptr::null_mut(), told) },
            // SAFETY: 1. as above. 2. counts.
            _ => unsafe { palimpsest_freeze_while(Some(has_time), (&raw mut left).cast(), told) },
        };
        let is_refused = len < size_of::<usize>() && !told.is_null();
        let wanted: &[_] = if is_refused { &[PALIMPSEST_INVALID, PALIMPSEST_OK] } else { &[PALIMPSEST_OK] };
        expect("slice", answer, wanted)
    }

    /// A child finds everything, and changes it for itself only.
    fn fork(&mut self, input: &mut Input<'_>) -> Step {
        self.forks += 1;
        if self.forks > FORKS {
            return Ok(());
        }
        // SAFETY: 1. null. 2. and 3. refused.
        expect("fork to null", unsafe { palimpsest_fork(ptr::null_mut()) }, &[PALIMPSEST_INVALID])?;
        let mut child = -1;
        // SAFETY: 1. a local. 2. one thread. 3. as of the freeze.
        expect("fork", unsafe { palimpsest_fork(&raw mut child) }, &[PALIMPSEST_OK])?;
        if child == 0 {
            let ended = self.areas.iter().try_for_each(Area::check);
            let ended = ended.and_then(|()| self.discard(input.byte() % self.areas.len(), input));
            self.areas
                .iter_mut()
                .for_each(|area| (0..area.pages.len()).step_by(7).for_each(|page| area.store(page, 3)));
            let ended = ended.and_then(|()| self.areas.iter().try_for_each(Area::check));
            if let Err(reason) = &ended {
                let _ = writeln!(std::io::stderr(), "a child of a frozen process: {reason}");
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(ended.is_err())) };
        }
        let mut status = -1;
        // SAFETY: a place for the status; the child is this process's.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        if status == 0 { Ok(()) } else { Err(format!("a child ended with wait status {status:#x}")) }
    }
}

/// Gives all memory that is there a policy for NUMA nodes, local allocation: a freeze leaves it alone. Returns false if
/// the kernel does not allow that.
fn leave_others_alone() -> Result<bool, String> {
    const PREFERRED: c_int = 1;
    let maps = Maps::read().map_err(|error| error.to_string())?;
    let private = maps.iter().filter(|mapping| {
        mapping.permissions.contains(Permissions::WRITE) && !mapping.permissions.contains(Permissions::SHARED)
    });
    for mapping in private {
        let nodes = ptr::null::<c_void>();
        // SAFETY: changes where pages come from, and no contents.
        let done = unsafe {
            libc::syscall(libc::SYS_mbind, mapping.start, mapping.end - mapping.start, PREFERRED, nodes, 0, 0)
        };
        if done != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn options() -> palimpsest_freeze_options {
    palimpsest_freeze_options {
        least: LEAST,
        answers: PALIMPSEST_RAW_ALLOCATOR | PALIMPSEST_IO_URING | PALIMPSEST_LINUX_AIO | PALIMPSEST_LOCKED_MEMORY,
        no_measure: 1,
        ..Default::default()
    }
}

fn progress() -> Result<palimpsest_freeze_progress, String> {
    let progress = Exactly::of(0_usize, size_of::<palimpsest_freeze_progress>());
    // SAFETY: 1. as long as it says.
    expect("progress", unsafe { palimpsest_freeze_get_progress(progress.as_ptr()) }, &[PALIMPSEST_OK])?;
    // SAFETY: as long as that, and written.
    Ok(unsafe { progress.as_ptr::<palimpsest_freeze_progress>().read() })
}

/// Plays in a child process, which tells what was wrong.
fn in_child(input: &mut Input<'_>) -> Step {
    // What the child plays follows from these.
    let seed = [input.byte(), input.byte(), input.byte(), input.byte()].map(|byte| byte as u8);
    let (mut told, mut teller) = std::io::pipe().map_err(|error| error.to_string())?;
    let mut child = -1;
    // SAFETY: 1. a local. 2. the child allocates only as the C library lets children do, and leaves by `_exit`. 3. this
    // process has not frozen.
    expect("fork", unsafe { palimpsest_fork(&raw mut child) }, &[PALIMPSEST_OK])?;
    if child == 0 {
        drop(told);
        let steps = drawn(u32::from_le_bytes(seed));
        let mut player = Player { place: Where::Child, ..Player::default() };
        // A pipe has room for all lines; if the child dies, the last one names the step.
        let tell = |line: String| drop((&teller).write_all(line.as_bytes()));
        let ended = player.play_frozen(&mut Input(&steps), &tell);
        if let Err(reason) = &ended {
            let _ = teller.write_all(reason.as_bytes());
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(c_int::from(ended.is_err())) };
    }
    drop(teller);
    let mut reason = String::new();
    let _ = told.read_to_string(&mut reason);
    let mut status = -1;
    // SAFETY: a place for the status; the child is this process's.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if status == 0 { Ok(()) } else { Err(format!("a child with seed {seed:?}: wait status {status:#x}: {reason}")) }
}

/// Returns bytes that follow from `seed`: xorshift.
fn drawn(seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(STEPS * 32).collect()
}
