//! A thread of a program: its memory, what that must hold, and what it does.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::calls::{World, pointer};
use crate::program::{Op, Part};
use crate::world::Answer;

/// Where the memory of the first thread is, in every run: below what the kernel hands out, even with 39 bits of
/// address.
const REGION: usize = 0x20_0000_0000;
/// Distance between the memory of two threads.
const STRIDE: usize = 32 << 20;
/// The first area, which has two pieces of 2 MiB; and behind a gap the second one, of one piece, and where that moves.
const FIRST: usize = 4 << 20;
const SECOND: usize = 2 << 20;
const HERE: usize = 8 << 20;
const THERE: usize = 16 << 20;

/// Counters that all threads share, each in a page of its own, in memory behind that of the threads.
const COUNTERS: usize = 16;
const COUNTERS_AT: usize = REGION + 8 * STRIDE;

/// The word of a page to which additions go.
const ADDED: usize = 128;

/// Most pages of a part.
const MOST: usize = 160;

/// How many turns one of an operation stands for: all together take as long as a slice in an unoptimised build.
const TURNS: u64 = 8;

/// Steps of all threads: whoever takes slices lets some step be made between two of them.
pub(crate) static STEPS: AtomicUsize = AtomicUsize::new(0);

/// What was added to each counter.
static COUNTED: AtomicU64 = AtomicU64::new(0);

fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// What a page must hold.
#[derive(Clone, Copy, Default)]
struct Page {
    /// 0 for zeros.
    salt: u64,
    added: u64,
    /// Whether children have no copy.
    is_kept: bool,
}

/// A thread.
#[derive(Clone)]
pub(crate) struct Worker {
    world: World,
    number: usize,
    page: usize,
    /// Whether the second area is there.
    has_moved: bool,
    pages: Vec<Page>,
    writes: u64,
}

fn word(index: usize, salt: u64) -> u64 {
    if salt == 0 { 0 } else { (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt }
}

fn read(address: usize) -> u64 {
    // SAFETY: memory of the program that can be read, and aligned; nobody but its thread writes to it.
    unsafe { pointer(address).cast::<u64>().read_volatile() }
}

fn write(address: usize, value: u64) {
    // SAFETY: memory of the program that can be written, and aligned; nobody else uses it.
    unsafe { pointer(address).cast::<u64>().write_volatile(value) };
}

/// Maps the counters.
pub(crate) fn map_counters(world: World) {
    assert_eq!(world.map(COUNTERS_AT..COUNTERS_AT + (2 << 20)), 0);
    // So that they are in a piece that is worth its huge page.
    (0..2 << 20).step_by(4096).for_each(|offset| write(COUNTERS_AT + offset + 64, 1));
}

fn counter(index: usize) -> &'static AtomicU64 {
    // SAFETY: mapped by `map_counters` and never unmapped, aligned, and only used so.
    unsafe { AtomicU64::from_ptr(pointer(COUNTERS_AT + index * (64 << 10)).cast()) }
}

/// Returns the sum of all counters, and what it should be.
pub(crate) fn counted() -> (u64, u64) {
    let sum = (0..COUNTERS).map(|index| counter(index).load(Ordering::Relaxed)).sum();
    (sum, COUNTED.load(Ordering::Relaxed) * COUNTERS as u64)
}

impl Worker {
    /// Maps and fills the memory of a thread.
    pub(crate) fn new(world: World, number: usize) -> Self {
        let page = rustix::param::page_size();
        let pages = vec![Page { salt: number as u64 + 1, ..Page::default() }; (FIRST + SECOND) / page];
        let new = Self { world, number, page, has_moved: false, pages, writes: 0 };
        for (offset, len) in [(0, FIRST), (HERE, SECOND)] {
            assert_eq!(world.map(new.base() + offset..new.base() + offset + len), 0);
        }
        (0..new.pages.len()).for_each(|index| write(new.at(index), word(index, new.pages[index].salt)));
        new
    }

    fn base(&self) -> usize {
        REGION + self.number * STRIDE
    }

    /// Returns the address of a page.
    fn at(&self, index: usize) -> usize {
        let first = FIRST / self.page;
        match index.checked_sub(first) {
            None => self.base() + index * self.page,
            Some(index) => self.base() + if self.has_moved { THERE } else { HERE } + index * self.page,
        }
    }

    /// Returns the pages of a part of all memory.
    fn anywhere(&self, part: Part) -> Range<usize> {
        Self::part(part, self.pages.len())
    }

    /// Returns the pages of a part of the first area.
    fn in_first(&self, part: Part) -> Range<usize> {
        Self::part(part, FIRST / self.page)
    }

    fn part(Part { from, pages }: Part, most: usize) -> Range<usize> {
        let from = usize::from(from) * most / 256;
        from..(from + 1 + usize::from(pages) * MOST / 256).min(most)
    }

    /// Returns the addresses of pages that follow each other: in one area, or in both.
    fn areas(&self, pages: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let first = FIRST / self.page;
        let parts = [pages.start..pages.end.min(first), pages.start.max(first)..pages.end];
        let of = |part: Range<usize>| self.at(part.start)..self.at(part.start) + part.len() * self.page;
        parts.into_iter().filter(|part| !part.is_empty()).map(of)
    }

    /// Does all of it.
    pub(crate) fn run(mut self, ops: &[Op]) {
        for (index, op) in ops.iter().enumerate() {
            let answer = self.step(*op);
            self.say(&format!("{index} {op:?} = {answer}"));
            step();
        }
        let is_right = self.is_right(|_| false);
        self.say(&format!("at the end it is right: {is_right}"));
    }

    /// Says a line about all that this thread has.
    fn say(&self, what: &str) {
        let digest = (0..self.pages.len()).fold(0xcbf2_9ce4_8422_2325_u64, |digest, index| {
            let words = read(self.at(index)) ^ read(self.at(index) + ADDED).rotate_left(32);
            (digest ^ words).wrapping_mul(0x100_0000_01b3).rotate_left(23)
        });
        let line = format!("\n@thread-{} {what} | {digest:x}\n", self.number);
        // Not by the standard library, whose lock a child would find taken for ever. SAFETY: bytes that live until the
        // call returns.
        let written = unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
        assert_eq!(written, line.len().cast_signed(), "standard output takes a line");
    }

    /// Whether memory holds what it must, except for pages that are left out.
    fn is_right(&self, is_left_out: impl Fn(&Page) -> bool) -> bool {
        self.pages.iter().enumerate().all(|(index, page)| {
            let at = self.at(index);
            is_left_out(page) || (read(at), read(at + ADDED)) == (word(index, page.salt), page.added)
        })
    }

    fn step(&mut self, op: Op) -> Answer {
        match op {
            Op::Write(part) => self.write(part),
            Op::Spin { part, turns } => self.spin(part, turns),
            Op::Discard(part) => {
                let pages = self.anywhere(part);
                let areas: Vec<_> = self.areas(pages.clone()).collect();
                let answer = areas.into_iter().map(|area| self.world.advise(area, libc::MADV_DONTNEED)).min();
                self.cleared(pages);
                answer.unwrap_or(0)
            }
            Op::Protect(part) => {
                let pages = self.in_first(part);
                let range = self.at(pages.start)..self.at(pages.start) + pages.len() * self.page;
                let answer = self.world.protect(range.clone(), libc::PROT_READ);
                let is_right = pages.clone().all(|index| read(self.at(index)) == word(index, self.pages[index].salt));
                step();
                answer.min(self.world.protect(range, libc::PROT_READ | libc::PROT_WRITE)) - Answer::from(!is_right)
            }
            Op::Move => {
                let from = self.at(FIRST / self.page);
                let to = self.base() + if self.has_moved { HERE } else { THERE };
                let answer = self.world.remap(from..from + SECOND, to);
                self.has_moved ^= answer == 0;
                answer
            }
            Op::Replace(part) => {
                let pages = self.in_first(part);
                let answer = self.world.map(self.at(pages.start)..self.at(pages.start) + pages.len() * self.page);
                self.cleared(pages);
                answer
            }
            Op::Keep { part, forked } => {
                let pages = self.in_first(part);
                let advice = if forked { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
                let range = self.at(pages.start)..self.at(pages.start) + pages.len() * self.page;
                self.pages[pages].iter_mut().for_each(|page| page.is_kept = !forked);
                self.world.advise(range, advice)
            }
            Op::Fork(part) => self.fork(part),
            Op::Start(part) => {
                let mut another = self.clone();
                // Its memory is not this thread's until it has ended.
                let ended = std::thread::spawn(move || {
                    another.write(part);
                    another
                });
                let Ok(another) = ended.join() else { return -1 };
                *self = another;
                0
            }
            Op::Count(times) => {
                let times = u64::from(times) + 1;
                COUNTED.fetch_add(times, Ordering::Relaxed);
                for _ in 0..times {
                    (0..COUNTERS).for_each(|index| {
                        counter(index).fetch_add(1, Ordering::Relaxed);
                    });
                    step();
                }
                0
            }
            Op::Check => Answer::from(self.is_right(|_| false)),
            Op::Slice => {
                self.world.slice();
                0
            }
        }
    }

    /// Notes that pages are fresh.
    fn cleared(&mut self, pages: Range<usize>) {
        self.pages[pages].iter_mut().for_each(|page| (page.salt, page.added) = (0, 0));
    }

    fn write(&mut self, part: Part) -> Answer {
        self.writes += 1;
        let salt = (self.writes << 8) | (self.number as u64 + 1);
        for index in self.anywhere(part) {
            write(self.at(index), word(index, salt));
            self.pages[index].salt = salt;
        }
        0
    }

    fn spin(&mut self, part: Part, turns: u8) -> Answer {
        let (pages, turns) = (self.anywhere(part), (u64::from(turns) + 1) * TURNS);
        let mut is_right = true;
        for turn in 0..turns {
            for index in pages.clone() {
                let at = self.at(index) + ADDED;
                is_right &= read(at) == self.pages[index].added + turn;
                write(at, self.pages[index].added + turn + 1);
            }
            step();
        }
        self.pages[pages].iter_mut().for_each(|page| page.added += turns);
        Answer::from(is_right)
    }

    /// Returns 0, or what was wrong in the child.
    fn fork(&mut self, part: Part) -> Answer {
        let pages = self.anywhere(part);
        let child = self.world.fork();
        if child == 0 {
            let is_kept = |page: &Page| page.is_kept;
            let is_right = self.is_right(is_kept);
            for index in pages {
                if self.pages[index].is_kept {
                    continue;
                }
                write(self.at(index), word(index, 77));
                self.pages[index].salt = 77;
            }
            let is_its_own = self.is_right(is_kept);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_right) + 2 * i32::from(!is_its_own)) };
        }
        if child < 0 {
            return -1;
        }
        let mut status = 0;
        loop {
            // SAFETY: a child of this process; the status goes to a local.
            match unsafe { libc::waitpid(child, &raw mut status, 0) } {
                waited if waited == child => return status as Answer,
                // A slice holds threads by a signal.
                _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                _ => return -2,
            }
        }
    }
}
