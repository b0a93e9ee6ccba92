//! Random programs of memory operations; after each of them every byte and every mapping is as before.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use palimpsest_fork::snapshot::{Scope, SnapshotOptions, Sweep};

use crate::memory::{Picture, READ_WRITE, map, page, write};

/// Programs to run; the environment may ask for fewer, for a quick look.
const ROUNDS: u64 = 10_000;
/// Pages of the region whose mappings are changed.
const PAGES: usize = 64;
/// Pages that nothing was written to.
const HOLES: usize = 800;
/// Pages of memory with huge pages: two of 2 MiB.
const HUGE: usize = 1024;

static DATA: [AtomicU8; 9000] = [const { AtomicU8::new(3) }; 9000];
static ZEROS: [AtomicU8; 9000] = [const { AtomicU8::new(0) }; 9000];

thread_local! {
    static LOCAL: [AtomicU8; 300] = const { [const { AtomicU8::new(4) }; 300] };
}

/// A generator of numbers that lives on the stack (xorshift of Marsaglia, 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or(0) % limit
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PageState {
    Writable,
    Closed,
    Gone,
}

/// What the programs work on, made before the snapshot is taken.
struct World {
    region: *mut u8,
    huge: *mut u8,
    holes: *mut u8,
    blocks: [*mut libc::c_void; 16],
}

impl World {
    fn new() -> Self {
        let region = map(PAGES);
        (0..PAGES).step_by(2).for_each(|index| write(region.wrapping_add(index * page() + index), 5));
        let huge = map(2 * HUGE);
        let huge = huge.wrapping_add(huge.align_offset(HUGE * page()));
        // SAFETY: the test's own memory; the advice changes no contents, and is refused where there are no huge pages.
        unsafe { libc::madvise(huge.cast(), HUGE / 2 * page(), libc::MADV_HUGEPAGE) };
        (0..HUGE / 2).for_each(|index| write(huge.wrapping_add(index * page()), 6));
        let blocks = std::array::from_fn(|index| {
            // SAFETY: asks for memory.
            let block = unsafe { libc::malloc(index * index * 900 + 24) };
            write(block.cast(), 7);
            block
        });
        Self { region, huge, holes: map(HOLES), blocks }
    }

    /// Plays one program, drawn from `random`.
    fn play(&self, random: &mut Random) {
        let mut pages = [PageState::Writable; PAGES];
        let mut blocks = self.blocks;
        for _ in 0..random.below(40) {
            match random.below(14) {
                0..3 => {
                    let index = random.below(PAGES);
                    if pages[index] == PageState::Writable {
                        write(self.region.wrapping_add(index * page() + random.below(page())), 200);
                    }
                }
                3 => write(self.huge.wrapping_add(random.below(HUGE / 2 * page())), 201),
                4 => write(self.holes.wrapping_add(random.below(HOLES * page())), 202),
                5 => {
                    DATA[random.below(DATA.len())].store(203, Relaxed);
                    ZEROS[random.below(ZEROS.len())].store(203, Relaxed);
                    LOCAL.with(|local| local[random.below(local.len())].store(203, Relaxed));
                }
                6 | 7 => {
                    // A block is freed, or another takes its place; the restore forgets what is in it at the end.
                    let block = &mut blocks[random.below(16)];
                    // SAFETY: from malloc, in this program or before; null is allowed.
                    unsafe { libc::free(*block) };
                    let len = [50, 3000, 70_000, 400_000][random.below(4)];
                    // SAFETY: asks for memory.
                    *block = unsafe { libc::malloc(len + random.below(1000)) };
                    write(block.cast::<u8>().wrapping_add(random.below(len)), 204);
                }
                8 => self.change_region(random, &mut pages),
                9 => {
                    let new = map(1 + random.below(8));
                    write(new, 205);
                }
                10 => {
                    let step = [0x1000, -0x1000, 0x5_0000, -0x800][random.below(4)];
                    // SAFETY: moving it down again would be safe only as far as it went up; further down is malloc's
                    // memory. So only upwards from here.
                    unsafe { libc::sbrk(isize::max(step, 0)) };
                }
                11 => {
                    let start = self.huge.wrapping_add(random.below(HUGE / 4) * page());
                    // SAFETY: paging out changes no contents.
                    unsafe { libc::madvise(start.cast(), 64 * page(), libc::MADV_PAGEOUT) };
                }
                12 => {
                    let mut text = String::new();
                    (0..random.below(100)).for_each(|index| text.push_str(&index.to_string()));
                    std::hint::black_box(&text);
                }
                _ => {
                    // SAFETY: tells where this thread's variable is.
                    let errno = unsafe { libc::__errno_location() };
                    // SAFETY: the variable is this thread's own.
                    unsafe { errno.write(77) };
                }
            }
        }
    }

    /// Unmaps, closes, replaces or moves pages of the region.
    fn change_region(&self, random: &mut Random, pages: &mut [PageState; PAGES]) {
        let index = random.below(PAGES);
        let len = 1 + random.below(PAGES - index);
        let start = self.region.wrapping_add(index * page()).cast();
        let there = pages[index..index + len].iter().all(|state| *state != PageState::Gone);
        let bytes = len * page();
        let state = match random.below(5) {
            // SAFETY: the test's own memory, not used while it is gone.
            0 if unsafe { libc::munmap(start, bytes) } == 0 => PageState::Gone,
            // SAFETY: as above.
            1 if there && unsafe { libc::mprotect(start, bytes, libc::PROT_READ) } == 0 => PageState::Closed,
            // SAFETY: as above.
            2 if there && unsafe { libc::mprotect(start, bytes, libc::PROT_NONE) } == 0 => PageState::Closed,
            3 => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                // SAFETY: the test's own addresses.
                assert_eq!(unsafe { libc::mmap(start, bytes, READ_WRITE, flags, -1, 0) }, start);
                write(start.cast(), 206);
                PageState::Writable
            }
            4 if pages[index..index + len].iter().all(|state| *state == PageState::Writable) => {
                // SAFETY: the test's own memory, where nobody looks for it any more. Over several mappings the kernel
                // may refuse.
                let moved =
                    unsafe { libc::mremap(start, bytes, bytes, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, self.holes) };
                if moved == libc::MAP_FAILED { return } else { PageState::Gone }
            }
            _ => return,
        };
        pages[index..index + len].fill(state);
    }
}

fn play(sweep: Sweep, share: u64) {
    let rounds = std::env::var("PALIMPSEST_SNAPSHOT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let world = World::new();
    let mut picture = Picture::new();
    let options = SnapshotOptions::new(Scope::Whole).sweep(sweep).resident(100 * page());
    let options = picture.own_ranges().fold(options, SnapshotOptions::except);
    let mut snapshot = crate::take(&options);
    picture.take();
    for round in 0..rounds / share {
        let seed = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        world.play(&mut Random(seed));
        let restored = crate::restore(&mut snapshot);
        let difference = picture.difference();
        assert_eq!(difference, None, "after program {round} ({sweep:?}): {restored:?}");
    }
}

#[test]
fn programs_leave_no_trace() {
    crate::play("programs::programs_leave_no_trace", || play(Sweep::OnFaults, 1));
}

#[test]
fn programs_leave_no_trace_where_each_restore_sweeps() {
    crate::play("programs::programs_leave_no_trace_where_each_restore_sweeps", || play(Sweep::Always, 5));
}
