//! Compares guards with the kernel: what they do to frozen memory, and what the kernel does to ordinary memory beside
//! it, for the fuzz targets (feature `fuzzing`).
//!
//! The memory is made twice with the same contents. One copy is frozen and used through the guards, as an interposed
//! `madvise` would. The other, which is marked as not for children and so never frozen, is used by system calls. After
//! each step both show the same bytes, and the results were the same.

use std::ptr;

use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::{Maps, Permissions};
use rustix::io::Errno;

use super::{Remap, madvise, mremap, protected, replaced, thaw, touches};
use crate::options::{Answer, ExtentLen, Measure, Options};
use crate::report::Report;

/// The unit of steps, a quarter of a piece.
const CELL: usize = 512 << 10;
/// Cells at first.
const CELLS: usize = 12;
/// The most areas, and the most cells in one.
const MOST: usize = 8;
const LONGEST: usize = 16;

/// Two places with the same contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Twin {
    frozen: usize,
    plain: usize,
    cells: usize,
}

/// How many steps to play.
const STEPS: usize = 64;

/// Plays a program, three bytes for each step, in a child process. Steps after the end of the program are random,
/// seeded by the program: a fuzzer sees nothing of what a child covers, and would try short programs for long.
///
/// # Errors
///
/// The step and how the two differ; or how the child died.
pub fn play(program: &[u8]) -> Result<(), String> {
    let (mut told, teller) = std::io::pipe().map_err(|error| error.to_string())?;
    // SAFETY: the child has one thread; it allocates only as the C library lets children do, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(told);
        // A pipe has room for all lines; if the child dies, the last line tells the step.
        let tell = |line: String| drop(std::io::Write::write_all(&mut &teller, line.as_bytes()));
        let result = Mirror::new().and_then(|mut mirror| mirror.play(program, tell));
        if let Err(reason) = &result {
            tell(reason.clone());
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    drop(teller);
    let mut reason = String::new();
    let _ = std::io::Read::read_to_string(&mut told, &mut reason);
    let mut status = 0;
    // SAFETY: a place for the status; the child is this process's.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if status == 0 { Ok(()) } else { Err(format!("{reason} (wait status {status:#x})")) }
}

/// AddressSanitizer keeps frames on its heap to find those used after they are left; they would be frozen while in use.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const libc::c_char {
    c"detect_stack_use_after_return=0".as_ptr()
}

struct Mirror {
    twins: Vec<Twin>,
    salt: u64,
}

impl Mirror {
    fn new() -> Result<Self, String> {
        let [frozen, plain] = [place(CELLS)?, place(CELLS)?];
        let mirror = Self { twins: vec![Twin { frozen, plain, cells: CELLS }], salt: 0 };
        for start in [frozen, plain] {
            let span = Span::new(start, start + CELLS * CELL);
            // SAFETY: 1. this mirror's own.
            unsafe { calls::protect(span, Permissions::READ_WRITE) }.map_err(|errno| errno.to_string())?;
            span.range().step_by(rustix::param::page_size()).for_each(|at| store(at, (at - start) as u64 + 1));
        }
        // SAFETY: 1. as above.
        unsafe { calls::advise(Span::new(plain, plain + CELLS * CELL), libc::MADV_DONTFORK) }
            .map_err(|errno| errno.to_string())?;
        let report = freeze()?;
        if !touches(frozen..frozen + CELLS * CELL) || touches(plain..plain + CELLS * CELL) {
            return Err(format!("{frozen:#x} is to be frozen, and {plain:#x} not: {report:#x?}"));
        }
        Ok(mirror)
    }

    fn play(&mut self, program: &[u8], tell: impl Fn(String)) -> Result<(), String> {
        let (given, _) = program.as_chunks::<3>();
        let mut seed = program
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let drawn = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let [.., first, second, third] = seed.to_le_bytes();
            [first, second, third]
        });
        for (number, step) in given.iter().copied().chain(drawn).take(STEPS).enumerate() {
            tell(format!("step {number}, {step:?}: "));
            let done = self.step(step)?;
            tell(format!("{done}\n"));
            self.compare()?;
        }
        Ok(())
    }

    /// Plays one step: what, in which area and cells, how many.
    fn step(&mut self, [what, first, second]: [u8; 3]) -> Result<&'static str, String> {
        let index = usize::from(first >> 4) % self.twins.len();
        let twin = self.twins[index];
        let cell = usize::from(first & 15) % twin.cells;
        let count = 1 + usize::from(second & 15) % (twin.cells - cell);
        let (offset, len) = (cell * CELL, count * CELL);
        let (frozen, plain) = (twin.frozen + offset, twin.plain + offset);
        match what % 8 {
            0 => {
                self.salt += 1;
                let page = usize::from(second >> 4) * rustix::param::page_size();
                if is_writable(frozen + page) && is_writable(plain + page) {
                    store(frozen + page, self.salt << 32 | 7);
                    store(plain + page, self.salt << 32 | 7);
                }
                Ok("store")
            }
            1 => {
                let len = if second & 16 == 0 { len } else { 3 * rustix::param::page_size() };
                // SAFETY: 1. this mirror's own.
                let guarded = unsafe { madvise(frozen, len, libc::MADV_DONTNEED) };
                same(guarded, raw_discard(plain, len)).map(|()| "discard")
            }
            2 if self.twins.len() < MOST => self.resize(index, 1 + usize::from(second) % LONGEST),
            3 if self.twins.len() + 2 < MOST => self.take_out(index, cell, count),
            4 if self.twins.len() < MOST => self.leave_empty(index),
            5 => {
                let permissions = if second & 16 == 0 { Permissions::READ } else { Permissions::READ_WRITE };
                for at in [frozen, plain] {
                    // SAFETY: 1. this mirror's own.
                    unsafe { calls::protect(Span::new(at, at + len), permissions) }
                        .map_err(|errno| errno.to_string())?;
                }
                protected(frozen..frozen + len, Ok(permissions));
                Ok("protect")
            }
            6 => freeze().map(|_| "freeze"),
            7 => thaw(frozen..frozen + len).map(|()| "thaw").map_err(|errno| format!("thaw: {errno}")),
            _ => Ok("nothing"),
        }
    }

    /// Resizes a whole area with `mremap`, wherever there is room.
    fn resize(&mut self, index: usize, cells: usize) -> Result<&'static str, String> {
        let Twin { frozen, plain, cells: before } = self.twins[index];
        let asked = |address| Remap {
            address,
            len: before * CELL,
            new_len: cells * CELL,
            flags: libc::MREMAP_MAYMOVE,
            new_address: 0,
        };
        if mappings(plain, before * CELL)? > 1 {
            return Ok("nothing: several mappings");
        }
        match (guarded(asked(frozen)), raw(asked(plain))) {
            (Ok(frozen), Ok(plain)) => self.twins[index] = Twin { frozen, plain, cells },
            (Err(errno), Err(other)) if errno == other => {}
            (one, other) => return Err(format!("resized to {cells}: {one:x?}, and {other:x?} by the kernel")),
        }
        Ok("resize")
    }

    /// Moves cells from the middle of an area to a given address.
    fn take_out(&mut self, index: usize, cell: usize, count: usize) -> Result<&'static str, String> {
        let Twin { frozen, plain, cells } = self.twins[index];
        let asked = |from: usize, new_address| Remap {
            address: from + cell * CELL,
            len: count * CELL,
            new_len: count * CELL,
            flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            new_address,
        };
        if mappings(plain + cell * CELL, count * CELL)? > 1 {
            return Ok("nothing: several mappings");
        }
        match (guarded(asked(frozen, place(count)?)), raw(asked(plain, place(count)?))) {
            (Ok(at), Ok(other)) => {
                let rest = cell + count;
                let right = Twin { frozen: frozen + rest * CELL, plain: plain + rest * CELL, cells: cells - rest };
                let parts =
                    [Twin { frozen, plain, cells: cell }, right, Twin { frozen: at, plain: other, cells: count }];
                self.twins.swap_remove(index);
                self.twins.extend(parts.into_iter().filter(|part| part.cells > 0));
            }
            (Err(errno), Err(other)) if errno == other => {}
            (one, other) => return Err(format!("{one:x?}, and {other:x?} by the kernel")),
        }
        Ok("take out")
    }

    /// Plays `MREMAP_DONTUNMAP`: the old place is empty afterwards.
    fn leave_empty(&mut self, index: usize) -> Result<&'static str, String> {
        let Twin { frozen, plain, cells } = self.twins[index];
        let len = cells * CELL;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let asked = |address| Remap { address, len, new_len: len, flags, new_address: 0 };
        if mappings(plain, len)? > 1 {
            return Ok("nothing: several mappings");
        }
        match (guarded(asked(frozen)), raw(asked(plain))) {
            (Ok(frozen), Ok(plain)) => self.twins.push(Twin { frozen, plain, cells }),
            (Err(errno), Err(other)) if errno == other => {}
            (one, other) => return Err(format!("{one:x?}, and {other:x?} by the kernel")),
        }
        Ok("leave empty")
    }

    fn compare(&self) -> Result<(), String> {
        let page = rustix::param::page_size();
        for Twin { frozen, plain, cells } in &self.twins {
            for offset in (0..cells * CELL).step_by(CELL) {
                for at in [0, page, 3 * page, CELL - page].map(|within| offset + within) {
                    let (one, other) = (load(frozen + at), load(plain + at));
                    if one != other {
                        return Err(format!("{one:#x} at {:#x}, which is {other:#x}", frozen + at));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns how many mappings the memory has. Since Linux 6.17 the kernel moves several in some cases, and before in
/// none; guards move what is one to the program.
fn mappings(start: usize, len: usize) -> Result<usize, String> {
    let maps = Maps::read().map_err(|error| error.to_string())?;
    Ok(maps.overlapping(start..start + len).count())
}

fn same(one: Result<(), Errno>, other: Result<(), Errno>) -> Result<(), String> {
    if one == other { Ok(()) } else { Err(format!("{one:?}, and {other:?} by the kernel")) }
}

/// Freezes memory about as long as the mirrored memory: anything smaller would be a sanitizer's, which refuses to have
/// its own memory replaced.
fn freeze() -> Result<Report, String> {
    let options = Options::new().measure(Measure::Nothing).extent(ExtentLen::Bytes(2 << 20)).least(CELLS * CELL / 2);
    let options = options.answer_for(Answer::RawAllocator);
    // SAFETY: 1. to 4. one thread, which discards through guards, and nothing of the kernel's is under way.
    let report = unsafe { crate::freeze(&options) }.map_err(|error| error.to_string())?;
    report.stopped.as_ref().map_or(Ok(()), |reason| Err(reason.clone()))?;
    Ok(report)
}

/// Returns inaccessible memory of this mirror, apart from other memory, at a multiple of 8 MiB.
fn place(cells: usize) -> Result<usize, String> {
    const APART: usize = 8 << 20;
    let none = Permissions::default();
    let start = calls::map(cells * CELL + 2 * APART, none, calls::Commit::Uncounted);
    let start = start.map_err(|errno| errno.to_string())?.start;
    replaced(start..start + cells * CELL + 2 * APART);
    Ok((start + 1).next_multiple_of(APART))
}

fn guarded(asked: Remap) -> Result<usize, Errno> {
    // SAFETY: 1. this mirror's own.
    unsafe { mremap(asked) }
}

fn raw(Remap { address, len, new_len, flags, new_address }: Remap) -> Result<usize, Errno> {
    // SAFETY: 1. this mirror's own.
    unsafe { calls::remap(Span::new(address, address + len), new_len, flags, new_address) }
}

fn raw_discard(address: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: 1. this mirror's own.
    unsafe { calls::advise(Span::new(address, address + len), libc::MADV_DONTNEED) }
}

fn is_writable(address: usize) -> bool {
    let page = rustix::param::page_size();
    let at = address & !(page - 1);
    // Populates it for writing, which changes no contents.
    // SAFETY: 1. this mirror's own.
    unsafe { calls::advise(Span::new(at, at + page), libc::MADV_POPULATE_WRITE) }.is_ok()
}

fn store(address: usize, word: u64) {
    // SAFETY: a word of this mirror's own, aligned, which can be written.
    unsafe { ptr::with_exposed_provenance_mut::<u64>(address).write_volatile(word) };
}

fn load(address: usize) -> u64 {
    // SAFETY: a word of this mirror's own, aligned, which can be read.
    unsafe { ptr::with_exposed_provenance::<u64>(address).read_volatile() }
}
