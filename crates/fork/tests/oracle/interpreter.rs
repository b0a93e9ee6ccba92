//! Runs a program, and says after each operation what it returned and what the memory it named looks like.
//!
//! Lines that begin with `@` must be equal in two runs of a program, process by process; lines that begin with `#` may
//! differ.

use std::io::Write as _;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::calls::{Answer, World};
use crate::family::Family;
use crate::memory::Reader;
use crate::program::{self, Code, Extent, Kind, MADV_GUARD_INSTALL, Op, Pen, Room, SLOTS, STRIDE, Turn};

/// Where a program's areas are, in every run: below what the kernel hands out, even with 39 bits of address.
const REGION: usize = 0x20_0000_0000;

/// Most pages by which a program moves its break.
const MOST_BREAK: usize = 512;

/// Seconds after which a hanging process is ended.
const TIME_LIMIT: u32 = 1200;

/// One area.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Pages of the last mapping made there; some may be gone.
    pages: usize,
    room: Room,
    /// Nothing was done to part of it that could cut it into several mappings. `mremap` refuses to cross mappings, and
    /// where the kernel cuts is no promise, so that it is only tried while this holds.
    whole: bool,
    /// Seen by parent and child alike.
    shared: bool,
}

/// What a mapping shows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// Nothing yet, with these flags beside `MAP_FIXED`.
    Anonymous(i32),
    /// A private copy of this file.
    File(i32),
}

impl Content {
    /// Returns all flags of `mmap`, which maps over whatever is there, or only where nothing is
    /// (`MAP_FIXED_NOREPLACE` among the flags); and the file.
    pub(crate) fn arguments(self) -> (i32, i32) {
        let (flags, file) = match self {
            Self::Anonymous(flags) => (libc::MAP_ANONYMOUS | flags, -1),
            Self::File(file) => (libc::MAP_PRIVATE, file),
        };
        let fixed = if flags & libc::MAP_FIXED_NOREPLACE == 0 { libc::MAP_FIXED } else { 0 };
        (flags | fixed, file)
    }
}

/// A process that runs a program.
pub(crate) struct Interpreter {
    world: World,
    family: Family,
    page: usize,
    slots: [Slot; SLOTS],
    /// Guard pages kill whoever stores into them, so that from the first guard on stores go through the kernel.
    guards: bool,
    break_start: usize,
    break_pages: usize,
    blocks: [Vec<u8>; SLOTS],
    file: OwnedFd,
    reader: Reader,
}

impl Interpreter {
    pub(crate) fn new(world: World, path: String) -> Self {
        let page = rustix::param::page_size();
        // SAFETY: sets a timer of this process, which kills it.
        unsafe { libc::alarm(TIME_LIMIT) };
        keep_the_break();
        let break_start = current_break().next_multiple_of(page);
        set_break(break_start);
        Self {
            world,
            family: Family::new(path),
            page,
            slots: [Slot::default(); SLOTS],
            guards: false,
            break_start,
            break_pages: 0,
            blocks: [const { Vec::new() }; SLOTS],
            file: empty_file(),
            reader: Reader::new(page),
        }
    }

    /// Runs all of it and ends the process.
    pub(crate) fn run(mut self, codes: &[Code]) -> ! {
        let mut at = 0;
        let mut end = codes.len();
        while at < end {
            let op = Op::decode(codes[at]);
            at += 1;
            self.world.slice();
            match op {
                Op::Fork { turn, body } => {
                    let body = at..(at + body).min(end);
                    self.say(&op, 0, &[0, 1, 2, 3, 4, 5]);
                    // What two processes do to shared memory at the same time cannot be predicted.
                    let is_race = turn == Turn::Beside && self.slots.iter().any(|slot| slot.shared);
                    if self.family.fork(self.world, if is_race { Turn::First } else { turn }) {
                        // SAFETY: sets a timer of this process, which kills it.
                        unsafe { libc::alarm(TIME_LIMIT) };
                        self.file = empty_file();
                        self.say(&"born", 0, &[0, 1, 2, 3, 4, 5]);
                        (at, end) = (body.start, body.end);
                    } else {
                        at = body.end;
                    }
                }
                Op::Exec => {
                    self.say(&op, 0, &[]);
                    self.family.gather();
                    self.family.exec(self.world, &program::to_hex(&codes[at..end]))
                }
                Op::Exit { code } => self.exit(code),
                _ => self.step(op),
            }
            self.family.tick();
        }
        self.exit(0)
    }

    fn exit(mut self, code: u8) -> ! {
        self.family.gather();
        self.say(&"end", 0, &[0, 1, 2, 3, 4, 5]);
        // SAFETY: ends this process without the rest of the test harness, which the children have inherited.
        unsafe { libc::_exit(code.into()) }
    }

    fn step(&mut self, op: Op) {
        let (answer, named): (Answer, &[usize]) = match op {
            Op::Map { slot, len, prot, kind, room } => (self.map((slot, room), len, prot, kind), &[slot]),
            Op::Unmap { slot, extent } => {
                let range = self.touch(slot, extent);
                (self.world.unmap(range), &[slot])
            }
            Op::Protect { slot, extent, prot } => {
                let range = self.touch(slot, extent);
                (self.world.protect(range, prot), &[slot])
            }
            Op::Resize { slot, len } => (self.resize(slot, len), &[slot]),
            Op::Move { slot, to, len } => (self.move_to(slot, to, len), &[slot, to]),
            Op::Advise { slot, extent, advice } => (self.advise(slot, extent, advice), &[slot]),
            Op::AdviseAskew { slot, advice } => {
                let start = self.base(slot) + 1;
                (self.world.advise(start..start + self.page, advice), &[slot])
            }
            Op::Lock { slot, extent } => {
                let range = self.touch(slot, extent);
                (self.world.lock(range), &[slot])
            }
            Op::Unlock { slot, extent } => {
                let range = self.touch(slot, extent);
                (self.world.unlock(range), &[slot])
            }
            Op::Break { pages } => (self.move_break(pages), &[]),
            Op::Write { slot, extent, byte, pen } => {
                let range = self.range(slot, extent);
                (self.write(range, byte, pen), &[slot])
            }
            Op::WriteBreak { byte } => {
                let range = self.break_range();
                (self.write(range, byte, Pen::Pages), &[])
            }
            Op::Heap { block, len, byte } => (self.heap(block, len, byte), &[]),
            Op::Freeze => {
                self.world.freeze();
                (0, &[0, 1, 2, 3, 4, 5])
            }
            Op::Fork { .. } | Op::Exec | Op::Exit { .. } => unreachable!("handled by the caller"),
        };
        self.say(&op, answer, named);
    }

    /// Prints an operation, its answer and the areas it named; also the break and the heap if everything is looked at.
    fn say(&mut self, op: &dyn std::fmt::Debug, answer: Answer, named: &[usize]) {
        let mut line = format!("\n@{} {op:?} = {answer}", self.family.path());
        for &slot in named {
            let base = self.base(slot);
            line += &format!(" | {slot}:{}", self.reader.describe(base..base + STRIDE));
        }
        if named.len() != 1 {
            line += &format!(" | break:{}", self.reader.describe(self.break_range()));
        }
        if named.len() == SLOTS {
            for block in &self.blocks {
                line += &format!(" | {}", summary(block));
            }
        }
        line.push('\n');
        // One write, so that the lines of two processes do not mix.
        std::io::stdout().write_all(line.as_bytes()).expect("standard output is open");
    }

    fn base(&self, slot: usize) -> usize {
        REGION + slot * STRIDE
    }

    /// Returns the most pages of an area; its last two stay empty.
    fn most(&self, room: Room) -> usize {
        room.most() / self.page - 2
    }

    fn len(&self, room: Room, len: u8) -> usize {
        let (len, most) = (usize::from(len), self.most(room));
        match room {
            // Mostly short, since every page is looked at.
            Room::Usual => (len * len * most / (255 * 255)).max(1),
            Room::Wide => (len * most / 255).max(1),
        }
    }

    fn range(&self, slot: usize, extent: Extent) -> Range<usize> {
        let Slot { pages, room, .. } = self.slots[slot];
        let pages = extent.pages(pages, self.most(room));
        let base = self.base(slot);
        // Some calls refuse an empty range and others do not, which is of no interest.
        base + pages.start * self.page..base + pages.end.max(pages.start + 1) * self.page
    }

    /// Returns the range of an operation that may cut the mapping.
    fn touch(&mut self, slot: usize, extent: Extent) -> Range<usize> {
        if extent != Extent::Whole {
            self.slots[slot].whole = false;
        }
        self.range(slot, extent)
    }

    fn map(&mut self, (slot, room): (usize, Room), len: u8, prot: i32, kind: Kind) -> Answer {
        let base = self.base(slot);
        let pages = self.len(room, len);
        let range = base..base + pages * self.page;
        let content = match kind {
            Kind::Anonymous => Content::Anonymous(libc::MAP_PRIVATE),
            Kind::Shared => Content::Anonymous(libc::MAP_SHARED),
            Kind::NoReplace => Content::Anonymous(libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE),
            Kind::File => Content::File(self.file.as_raw_fd()),
        };
        if kind != Kind::NoReplace {
            // Leaves one kind of mapping in an area, and nothing behind its end.
            self.world.unmap(base..base + STRIDE);
        }
        let answer = self.world.map(range, prot, content);
        if answer == 0 {
            self.slots[slot] = Slot { pages, room, whole: kind != Kind::NoReplace, shared: kind == Kind::Shared };
        }
        answer
    }

    fn resize(&mut self, slot: usize, len: u8) -> Answer {
        let Slot { pages, room, whole: true, .. } = self.slots[slot] else { return -1000 };
        let base = self.base(slot);
        let len = self.len(room, len);
        let answer = self.world.remap(base..base + pages * self.page, len * self.page, None);
        if answer == 0 {
            self.slots[slot].pages = len;
        }
        answer
    }

    fn move_to(&mut self, slot: usize, to: usize, len: u8) -> Answer {
        let Slot { pages, room, whole: true, shared } = self.slots[slot] else { return -1000 };
        let (base, target) = (self.base(slot), self.base(to));
        let len = self.len(room, len);
        if slot != to {
            self.world.unmap(target..target + STRIDE);
            self.slots[to] = Slot::default();
        }
        let answer = self.world.remap(base..base + pages * self.page, len * self.page, Some(target));
        if answer == 0 {
            self.slots[slot] = Slot::default();
            self.slots[to] = Slot { pages: len, room, whole: true, shared };
        }
        answer
    }

    fn advise(&mut self, slot: usize, extent: Extent, advice: i32) -> Answer {
        let range = self.touch(slot, extent);
        self.guards |= advice == MADV_GUARD_INSTALL;
        if advice != libc::MADV_FREE {
            return self.world.advise(range, advice);
        }
        // Each page keeps its bytes or loses them, whenever the kernel likes: both are right, and nothing else is, also
        // before the place at which the kernel refuses. Then they are discarded for good, up to the same place.
        let before = self.reader.pages(range.clone());
        let answer = self.world.advise(range.clone(), advice);
        let after = self.reader.pages(range.clone());
        assert!(
            before.iter().zip(&after).all(|(before, after)| after.is_zero() || before == after),
            "MADV_FREE invents bytes"
        );
        self.world.advise(range, libc::MADV_DONTNEED);
        answer
    }

    fn write(&mut self, range: Range<usize>, byte: u8, pen: Pen) -> Answer {
        let mut written = 0;
        let writable = writable(&range);
        for (index, page) in range.step_by(self.page).enumerate() {
            // Pages differ from each other, so that one in another's place is noticed.
            let byte = byte.wrapping_add((index as u8 % 16) << 1);
            if pen == Pen::Kernel || self.guards {
                written += self.write_by_kernel(page, byte);
            } else if writable.iter().any(|range| range.contains(&page)) {
                let at = std::ptr::with_exposed_provenance_mut::<u8>(page);
                let (at, len) = if pen == Pen::Bytes { (at.wrapping_add(index % 4000), 8) } else { (at, self.page) };
                // SAFETY: the page is mapped for writing, has no guard, and is not memory that Rust knows of.
                unsafe { at.write_bytes(byte, len) };
                written += 1;
            }
        }
        written
    }

    fn write_by_kernel(&self, page: usize, byte: u8) -> Answer {
        // Behind what `Kind::File` shows.
        let at = (STRIDE * 2) as u64;
        rustix::io::pwrite(&self.file, &vec![byte; self.page], at).expect("memory for a page");
        let to = std::ptr::with_exposed_provenance_mut(page);
        // SAFETY: the page is in the region of the programs or above the first break, where nothing of Rust's is; if it
        // cannot be written, the call fails.
        let got = unsafe { libc::pread(self.file.as_raw_fd(), to, self.page, at.cast_signed()) };
        Answer::from(got == self.page.cast_signed())
    }

    fn break_range(&self) -> Range<usize> {
        self.break_start..self.break_start + self.break_pages * self.page
    }

    fn move_break(&mut self, pages: i8) -> Answer {
        let pages = self.break_pages.saturating_add_signed(isize::from(pages)).min(MOST_BREAK);
        assert_eq!(current_break(), self.break_range().end, "the C library has moved the break");
        set_break(self.break_start + pages * self.page);
        self.break_pages = pages;
        pages.cast_signed()
    }

    fn heap(&mut self, block: usize, len: usize, byte: u8) -> Answer {
        let block = &mut self.blocks[block];
        if byte % 4 == 1 {
            // Like `calloc`, whose zeros the C library takes from the kernel where it can.
            *block = vec![0; len];
            assert!(block.iter().step_by(61).all(|byte| *byte == 0), "calloc returns old bytes");
        } else {
            // Like `realloc`, which calls `mremap` within the C library, where no preloaded object sees it.
            block.resize(len, byte);
            block.shrink_to_fit();
        }
        block.len().cast_signed()
    }
}

/// Makes a file of zeros for [`Kind::File`], with room behind them for what the kernel copies from. Each process has
/// its own.
fn empty_file() -> OwnedFd {
    let file = memfd_create("oracle", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, STRIDE as u64).expect("room for a file");
    file
}

/// Returns the length, the ends and a digest of a block.
fn summary(block: &[u8]) -> String {
    let sum = block.iter().step_by(509).fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    format!("{}/{:?}/{:?}/{sum:x}", block.len(), block.first(), block.last())
}

fn writable(range: &Range<usize>) -> Vec<Range<usize>> {
    use palimpsest_sys::pages::maps::{Maps, Permissions};
    let maps = Maps::read().expect("/proc is mounted");
    let writable = |permissions: Permissions| permissions.contains(Permissions::READ_WRITE);
    maps.overlapping(range.clone()).filter(|entry| writable(entry.permissions)).map(|entry| entry.range()).collect()
}

/// Makes the C library's heap so large that it never moves the break again: from here on the break is the program's.
fn keep_the_break() {
    const ROOM: usize = 16 << 20;
    for (option, value) in
        [(libc::M_MMAP_THRESHOLD, 128 << 10), (libc::M_TOP_PAD, ROOM as i32), (libc::M_TRIM_THRESHOLD, i32::MAX)]
    {
        // SAFETY: options of the C library's allocator, with values it takes.
        unsafe { libc::mallopt(option, value) };
    }
    let before = current_break();
    let mut held = Vec::new();
    while current_break() - before < ROOM / 2 {
        held.push(vec![1_u8; 100 << 10]);
        assert!(held.len() < 1000, "the C library does not take its heap from the break");
    }
}

fn current_break() -> usize {
    // SAFETY: moves the break by nothing.
    unsafe { libc::sbrk(0) }.addr()
}

fn set_break(to: usize) {
    let by = to.wrapping_sub(current_break()).cast_signed();
    // SAFETY: the break moves above where it first was, which the C library's heap does not use.
    let done = unsafe { libc::sbrk(by) };
    assert_ne!(done.addr(), usize::MAX, "no memory above the break");
}
