//! A kernel with some physical memory and a CPU that remembers translations. It notices what the library does against
//! its word: a frame that is freed twice, or while the CPU can still reach it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::format;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::string::String;
use std::vec::Vec;

use super::walk::{ALL, Entry, decode, index, levels, reach};
use crate::machine::{palimpsest_paging_flush, palimpsest_paging_machine, palimpsest_paging_meta};
use crate::space::{PALIMPSEST_PAGING_X86_64, PALIMPSEST_PAGING_X86_64_LA57};

pub(super) const PAGE: u64 = 4096;
/// Frames of a kernel.
const FRAMES: usize = 320;
/// Memory that nobody counts.
pub(super) const DEVICE: u64 = 1 << 40;

/// Zeroed memory of the heap, at addresses that integers may name.
pub(super) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    pub(super) fn new(len: usize, align: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), align).unwrap_or(Layout::new::<u64>());
        // SAFETY: 1. not of length 0.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        start.as_ptr().expose_provenance();
        Self { start, layout }
    }

    /// Returns the address of `offset`, which is inside.
    pub(super) fn at<T>(&self, offset: usize) -> *mut T {
        self.start.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: 1. and 2. allocated with this layout, and not used again.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A translation that the CPU remembers.
struct Cached {
    space: u64,
    start: u64,
    len: u64,
    physical: u64,
    rights: u32,
}

/// A table that the CPU remembers for the addresses that it covers.
struct CachedTable {
    space: u64,
    start: u64,
    level: u32,
    table: u64,
    rights: u32,
}

/// What may be done at an address.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) physical: u64,
    pub(super) rights: u32,
}

#[derive(Default)]
struct State {
    uses: Vec<u32>,
    is_table: Vec<bool>,
    /// How many frames may still be handed out.
    left: usize,
    /// How many of them callbacks may hand out before they say that there is no memory.
    budget: usize,
    pages: Vec<Cached>,
    tables: Vec<CachedTable>,
    complaint: Option<String>,
    flushes: usize,
}

pub(super) struct Kernel {
    memory: Memory,
    metas: Memory,
    /// The physical address of the memory; kernels have different ones.
    base: u64,
    state: RefCell<State>,
}

impl Kernel {
    pub(super) fn new(number: u64) -> Self {
        let frame = PAGE as usize;
        let state = State {
            uses: std::vec![0; FRAMES],
            is_table: std::vec![false; FRAMES],
            left: FRAMES,
            budget: usize::MAX,
            ..State::default()
        };
        Self {
            memory: Memory::new(FRAMES * frame, frame),
            metas: Memory::new(FRAMES * size_of::<palimpsest_paging_meta>(), align_of::<palimpsest_paging_meta>()),
            base: 0x1_4000_0000 + number * 0x1000_0000,
            state: RefCell::new(state),
        }
    }

    /// Returns what C would write into the structure. The kernel must not move from then on.
    pub(super) fn machine(&self) -> palimpsest_paging_machine {
        palimpsest_paging_machine {
            size: size_of::<palimpsest_paging_machine>(),
            context: ptr::from_ref(self).cast_mut().cast(),
            physical_offset: (self.memory.at::<u8>(0).addr() as u64).wrapping_sub(self.base),
            physical_end: 0,
            allocate_table: Some(allocate_table),
            free_table: Some(free_table),
            meta: Some(meta),
            free_tables: Some(free_tables),
            flush: Some(flush),
            flush_here: None,
            entries_made: Some(entries_made),
            relax: None,
            page_retain: Some(page_retain),
            page_release: Some(page_release),
            page_is_exclusive: Some(page_is_exclusive),
            page_copy: Some(page_copy),
            page_split: None,
            page_merge: None,
        }
    }

    /// Returns the first thing that the library did against its word.
    pub(super) fn complaint(&self) -> Result<(), String> {
        self.state.borrow_mut().complaint.take().map_or(Ok(()), Err)
    }

    fn complain(&self, what: String) {
        self.state.borrow_mut().complaint.get_or_insert(what);
    }

    /// Lets callbacks hand out that many frames from here on.
    pub(super) fn allow(&self, frames: usize) {
        self.state.borrow_mut().budget = frames;
    }

    pub(super) fn used(&self) -> usize {
        FRAMES - self.state.borrow().left
    }

    pub(super) fn flushes(&self) -> usize {
        self.state.borrow().flushes
    }

    fn number(&self, physical: u64) -> Option<usize> {
        let number = usize::try_from(physical.checked_sub(self.base)? / PAGE).ok()?;
        (number < FRAMES).then_some(number)
    }

    /// Takes a frame with one use, for a page of the model's.
    pub(super) fn take(&self) -> Option<u64> {
        let mut state = self.state.borrow_mut();
        let number = state.uses.iter().position(|&uses| uses == 0)?;
        state.uses[number] = 1;
        state.left -= 1;
        drop(state);
        // Not zero, as the header allows.
        // SAFETY: a frame that nobody uses.
        unsafe { self.memory.at::<u8>(number * PAGE as usize).write_bytes(0xa5, PAGE as usize) };
        Some(self.base + number as u64 * PAGE)
    }

    /// Gives up one use of a frame. Whoever still reads a frame without uses finds nonsense.
    pub(super) fn give_up(&self, physical: u64) {
        let Some(number) = self.number(physical) else { return };
        let mut state = self.state.borrow_mut();
        let Some(uses) = state.uses[number].checked_sub(1) else {
            drop(state);
            return self.complain(format!("the frame {physical:#x} is given back once too often"));
        };
        state.uses[number] = uses;
        if uses != 0 {
            return;
        }
        state.left += 1;
        let is_reached = state.pages.iter().any(|page| (page.physical..page.physical + page.len).contains(&physical));
        let is_walked = state.tables.iter().any(|cached| cached.table == physical);
        drop(state);
        // SAFETY: a frame that nobody uses.
        unsafe { self.memory.at::<u8>(number * PAGE as usize).write_bytes(0x5a, PAGE as usize) };
        if is_reached || is_walked {
            self.complain(format!("the frame {physical:#x} is freed, and the CPU still remembers it"));
        }
    }

    /// Returns the word at a physical address; `None` if that is no memory of this kernel.
    pub(super) fn word(&self, physical: u64) -> Option<*mut u64> {
        let number = self.number(physical)?;
        Some(self.memory.at(number * PAGE as usize + (physical % PAGE / 8 * 8) as usize))
    }

    /// Finds what user mode may do at an address. With `space`, as a CPU does that remembers tables and pages of that
    /// space; without, by the tables alone.
    pub(super) fn find(&self, format: u32, root: u64, space: Option<u64>, address: u64) -> Option<Found> {
        let mut state = self.state.borrow_mut();
        if let Some(page) = space.and_then(|space| state.pages.iter().find(|page| page.covers(space, address))) {
            return Some(Found { physical: page.physical + (address - page.start), rights: page.rights });
        }
        let (mut level, mut table, mut rights) = (levels(format), root, ALL);
        if let Some(space) = space {
            let known = state.tables.iter().filter(|cached| cached.covers(space, address));
            if let Some(lowest) = known.min_by_key(|cached| cached.level) {
                (level, table, rights) = (lowest.level, lowest.table, lowest.rights);
            }
        }
        loop {
            let at = table + 8 * index(address, level) as u64;
            let is_table = self.number(at).is_some_and(|number| state.is_table[number]);
            let Some(word) = self.word(at).filter(|_| is_table) else {
                let what = format!("a walk for {address:#x} comes to {table:#x}, which is no table");
                state.complaint.get_or_insert(what);
                return None;
            };
            // SAFETY: a word of this kernel's memory, which no other thread uses.
            let entry = unsafe { word.read() };
            match decode(format, level, entry) {
                Entry::Empty => return None,
                Entry::Table(below, left) => {
                    (table, level, rights) = (below, level - 1, rights & left);
                    let start = address & !(reach(level + 1) - 1);
                    if let Some(space) = space {
                        state.tables.push(CachedTable { space, start, level, table, rights });
                    }
                }
                Entry::Page(physical, left) => {
                    let (len, rights) = (reach(level), rights & left);
                    let start = address & !(len - 1);
                    if let Some(space) = space {
                        state.pages.push(Cached { space, start, len, physical, rights });
                    }
                    return Some(Found { physical: physical + (address - start), rights });
                }
            }
        }
    }

    /// Forgets one page: a CPU does that when an access faults on it. x86-64 also forgets the tables on the way (Intel
    /// SDM volume 3, 5.10.4.1).
    pub(super) fn forget(&self, format: u32, space: u64, address: u64) {
        let mut state = self.state.borrow_mut();
        state.pages.retain(|page| !page.covers(space, address));
        if matches!(format, PALIMPSEST_PAGING_X86_64 | PALIMPSEST_PAGING_X86_64_LA57) {
            state.tables.retain(|table| !table.covers(space, address));
        }
    }

    /// Hands out a frame to the library.
    fn hand_out(&self) -> Option<u64> {
        let mut state = self.state.borrow_mut();
        state.budget = state.budget.checked_sub(1)?;
        drop(state);
        self.take()
    }
}

impl Cached {
    fn covers(&self, space: u64, address: u64) -> bool {
        self.space == space && (self.start..=self.start + (self.len - 1)).contains(&address)
    }
}

impl CachedTable {
    fn last(&self) -> u64 {
        self.start + (reach(self.level + 1) - 1)
    }

    fn covers(&self, space: u64, address: u64) -> bool {
        self.space == space && (self.start..=self.last()).contains(&address)
    }
}

/// Returns the kernel that a callback is for.
///
/// # Safety
///
/// 1. `context` is that of [`Kernel::machine`], and the kernel is where it was.
unsafe fn kernel<'a>(context: *mut c_void) -> &'a Kernel {
    // SAFETY: contract 1.
    unsafe { &*context.cast::<Kernel>() }
}

unsafe extern "C" fn allocate_table(context: *mut c_void) -> u64 {
    // SAFETY: 1. the library passes on the context.
    let kernel = unsafe { kernel(context) };
    let Some(frame) = kernel.hand_out() else { return 0 };
    if let Some(number) = kernel.number(frame) {
        kernel.state.borrow_mut().is_table[number] = true;
    }
    frame
}

unsafe extern "C" fn free_table(context: *mut c_void, table: u64) {
    // SAFETY: 1. the library passes on the context.
    let kernel = unsafe { kernel(context) };
    let number = kernel.number(table).filter(|_| table.is_multiple_of(PAGE));
    match number {
        Some(number) if kernel.state.borrow().is_table[number] => {
            kernel.state.borrow_mut().is_table[number] = false;
            kernel.give_up(table);
        }
        _ => kernel.complain(format!("{table:#x} is freed as a table, and is none")),
    }
}

unsafe extern "C" fn meta(context: *mut c_void, table: u64) -> *mut palimpsest_paging_meta {
    // SAFETY: 1. the library passes on the context.
    let kernel = unsafe { kernel(context) };
    match kernel.number(table) {
        Some(number) => kernel.metas.at(number * size_of::<palimpsest_paging_meta>()),
        None => ptr::null_mut(),
    }
}

unsafe extern "C" fn free_tables(context: *mut c_void) -> u64 {
    // SAFETY: 1. the library passes on the context.
    let state = unsafe { kernel(context) }.state.borrow();
    state.left.min(state.budget) as u64
}

unsafe extern "C" fn flush(context: *mut c_void, request: *const palimpsest_paging_flush) {
    // SAFETY: 1. the library passes on the context.
    let kernel = unsafe { kernel(context) };
    // SAFETY: valid during the call.
    let request = unsafe { request.read() };
    let ranges = match NonNull::new(request.ranges.cast_mut()) {
        None => std::vec![(0, u64::MAX)],
        Some(ranges) => (0..request.count)
            .map(|at| {
                let range = ranges.as_ptr().wrapping_add(at);
                // SAFETY: there are that many ranges, during the call.
                let range = unsafe { range.read() };
                // An empty one at 0 is complained of below.
                (range.start, range.end.wrapping_sub(1))
            })
            .collect(),
    };
    if (request.count == 0) != request.ranges.is_null() || ranges.iter().any(|(first, last)| first > last) {
        kernel.complain(format!("a flush with {} ranges, of which one is empty or missing", request.count));
    }
    let meets = |first: u64, last: u64| ranges.iter().any(|&(from, to)| first <= to && from <= last);
    let mut state = kernel.state.borrow_mut();
    state.flushes += 1;
    state.pages.retain(|page| page.space != request.space || !meets(page.start, page.start + (page.len - 1)));
    if request.tables != 0 {
        state.tables.retain(|table| table.space != request.space || !meets(table.start, table.last()));
    }
}

unsafe extern "C" fn entries_made(_: *mut c_void) {}

unsafe extern "C" fn page_retain(context: *mut c_void, page: u64, len: u64) {
    // SAFETY: 1. the library passes on the context.
    let kernel = unsafe { kernel(context) };
    let mut state = kernel.state.borrow_mut();
    for number in (page..page + len).step_by(PAGE as usize).filter_map(|frame| kernel.number(frame)) {
        state.uses[number] += 1;
    }
}

unsafe extern "C" fn page_release(context: *mut c_void, page: u64, len: u64) {
    // SAFETY: 1. the library passes on the context.
    let kernel = unsafe { kernel(context) };
    (page..page + len).step_by(PAGE as usize).for_each(|frame| kernel.give_up(frame));
}

unsafe extern "C" fn page_is_exclusive(context: *mut c_void, page: u64, _: u64) -> c_int {
    // SAFETY: 1. the library passes on the context.
    let kernel = unsafe { kernel(context) };
    c_int::from(kernel.number(page).is_some_and(|number| kernel.state.borrow().uses[number] == 1))
}

unsafe extern "C" fn page_copy(context: *mut c_void, page: u64, len: u64) -> u64 {
    // SAFETY: 1. the library passes on the context.
    let kernel = unsafe { kernel(context) };
    let Some(from) = kernel.word(page).filter(|_| len == PAGE) else { return 0 };
    let Some(made) = kernel.hand_out() else { return 0 };
    if let Some(to) = kernel.word(made) {
        // SAFETY: two frames of this kernel's memory.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.cast(), PAGE as usize) };
    }
    made
}

/// Where the callbacks begin in the structure for C, and how many words they are.
pub(super) const CALLBACKS: usize = offset_of!(palimpsest_paging_machine, allocate_table) / 8;
