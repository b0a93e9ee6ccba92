//! Memory of tests, and what all writable memory of the process looks like.

use std::ops::Range;

use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Detail, Label, Vma, Vmas};
use palimpsest_sys::threads::rseq;

pub(crate) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps `pages` pages of private memory, which the process keeps.
pub(crate) fn map(pages: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel picks.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), pages * page(), READ_WRITE, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

pub(crate) fn page() -> usize {
    rustix::param::page_size()
}

/// The addresses of memory made by [`map`].
pub(crate) fn range(memory: *mut u8, pages: usize) -> Range<usize> {
    memory.expose_provenance()..memory.addr() + pages * page()
}

pub(crate) fn write(address: *mut u8, value: u8) {
    // SAFETY: memory that the scenario has mapped writable.
    unsafe { address.write_volatile(value) }
}

pub(crate) fn read(address: *const u8) -> u8 {
    // SAFETY: memory that the scenario has mapped readable.
    unsafe { address.read_volatile() }
}

/// The private writable memory of the process at one time, byte for byte, except what snapshots do not reach.
pub(crate) struct Picture {
    before: Vmas,
    then: Vmas,
    now: Vmas,
    copy: Range<usize>,
    rseq: Range<usize>,
}

impl Picture {
    /// Lists the mappings. Ignores what is mapped later, such as the snapshot's own memory.
    pub(crate) fn new() -> Self {
        let copy = map(1 << 16);
        let [before, then, now] = [(); 3].map(|()| Vmas::with_capacity(1 << 12).unwrap());
        let mut picture = Self { before, then, now, copy: range(copy, 1 << 16), rseq: rseq::area() };
        picture.before.read(Detail::Figures).unwrap();
        picture
    }

    /// Returns what snapshots must leave alone.
    pub(crate) fn own_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let lists = [&self.before, &self.then, &self.now];
        lists.into_iter().flat_map(Vmas::own_ranges).chain([self.copy.clone()])
    }

    /// Copies the memory.
    pub(crate) fn take(&mut self) {
        let mut to = self.copy.start;
        self.each(&mut |range| {
            let (from, len) = (std::ptr::with_exposed_provenance::<u8>(range.start), range.len());
            assert!(to + len <= self.copy.end, "more memory than there is room for");
            // SAFETY: the range is mapped readable, and the copy has room for it.
            unsafe { from.copy_to_nonoverlapping(std::ptr::with_exposed_provenance_mut(to), len) };
            to += len;
        });
        self.then.read(Detail::Places).unwrap();
    }

    /// Returns the first address whose byte or mapping is not what it was in the picture.
    pub(crate) fn difference(&mut self) -> Option<usize> {
        self.now.read(Detail::Places).unwrap();
        let mut first = layout_difference(&self.then, &self.now);
        if first.is_some() {
            return first;
        }
        let mut saved = self.copy.start;
        self.each(&mut |range| {
            let (now, then) = (std::ptr::with_exposed_provenance::<u8>(range.start), saved);
            saved += range.len();
            // SAFETY: both are mapped readable.
            let order =
                unsafe { libc::memcmp(now.cast(), std::ptr::with_exposed_provenance::<u8>(then).cast(), range.len()) };
            if order != 0 && first.is_none() {
                let differs = |at: &usize| {
                    read(now.wrapping_add(*at)) != read(std::ptr::with_exposed_provenance::<u8>(then + at))
                };
                first = (0..range.len()).find(differs).map(|at| range.start + at);
            }
        });
        first
    }

    /// Calls `look` with all private writable memory that was there at first, except the stack, this picture, and the
    /// words that the kernel writes.
    fn each(&self, look: &mut dyn FnMut(Range<usize>)) {
        let here = (&raw const look).addr();
        for vma in self.before.iter() {
            let taken = vma.permissions.contains(Permissions::READ_WRITE)
                && !vma.permissions.contains(Permissions::SHARED)
                && vma.label != Label::Stack
                && !vma.flags.intersects(palimpsest_sys::pages::vmas::VmaFlags::WIPE_ON_FORK);
            let own = self.own_ranges().any(|range| vma.start < range.end && range.start < vma.end);
            if !taken || own {
                continue;
            }
            let mut range = vma.range();
            if range.contains(&here) {
                // The stack of this thread; above it are its variables, from the page after the one that the thread's
                // handle is on. SAFETY: gives the calling thread's handle.
                let handle = unsafe { libc::pthread_self() } as usize;
                range.start = (handle + 1).next_multiple_of(page()).min(range.end);
            }
            let words = self.rseq.start.clamp(range.start, range.end)..self.rseq.end.clamp(range.start, range.end);
            look(range.start..words.start);
            look(words.end..range.end);
        }
    }
}

/// Returns the first address at which the lists differ in rights or in what is mapped.
fn layout_difference(then: &[Vma], now: &[Vma]) -> Option<usize> {
    let shows = |list: &[Vma], address: usize| {
        let at = list.partition_point(|vma| vma.end <= address);
        list.get(at).filter(|vma| vma.start <= address && vma.label != Label::Stack).map(|vma| {
            let place = if vma.inode == 0 { 0 } else { vma.offset + (address - vma.start) as u64 };
            (vma.permissions, vma.inode, place)
        })
    };
    let edges = then.iter().chain(now).flat_map(|vma| [vma.start, vma.end]);
    edges.filter(|edge| shows(then, *edge) != shows(now, *edge)).min()
}
