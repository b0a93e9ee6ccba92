//! The machine that C describes: where tables lie, and callbacks; and how `palimpsest_paging` uses them.

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, offset_of};
use core::ptr;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use palimpsest_paging::{
    Charge, FlushDepth, FlushRanges, FlushRequest, Frame, Machine, Node, PAGE, Page, SpaceId, Table, TableMeta,
};

use crate::result::{Answer, palimpsest_paging_result::PALIMPSEST_PAGING_INVALID};

/// The library's own data about a table. You keep one for each frame that can be a table, and need not clear it.
#[repr(C)]
pub struct palimpsest_paging_meta {
    /// Only for the library.
    private_words: [u64; 8],
}

// Physical addresses have 64 bits; so the virtual addresses of tables, computed from them, need 64, too.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());
const _: () = assert!(size_of::<TableMeta>() <= size_of::<palimpsest_paging_meta>());
const _: () = assert!(align_of::<TableMeta>() <= align_of::<palimpsest_paging_meta>());

/// Virtual addresses from `start` to before `end`: whole pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct palimpsest_paging_range {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
}

/// Translations that must leave the TLBs of every CPU that runs a space.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct palimpsest_paging_flush {
    /// The space's id.
    pub space: u64,
    /// The ranges of addresses, which may overlap; null for all addresses.
    pub ranges: *const palimpsest_paging_range,
    /// The number of ranges; 0 for all addresses.
    pub count: usize,
    /// 1 if entries that lead to tables have changed; 0 if only entries of pages have. With 0, AArch64 may use `tlbi
    /// vale1is`, and RISC-V `sfence.vma` with an address.
    pub tables: u32,
    /// Zero.
    pub reserved: u32,
}

/// What a space needs from your kernel. Making a space copies this structure, which you may then free, but not what
/// `context` points to. Optional callbacks may be null.
///
/// The library calls callbacks on the CPUs that call it, also while it holds the lock of a space.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct palimpsest_paging_machine {
    /// `sizeof(struct palimpsest_paging_machine)`.
    pub size: usize,
    /// Passed to each callback.
    pub context: *mut c_void,
    /// The virtual address of physical address 0, modulo 2^64. There, CPUs that call this library can read and write
    /// all tables. A multiple of 4096.
    pub physical_offset: u64,
    /// The first physical address that the CPUs do not have (x86-64: 2 to the power of CPUID 80000008H EAX, bits 7 to
    /// 0); 0 if they have all that the format's entries can hold.
    pub physical_end: u64,
    /// Returns the physical address of 4096 bytes that nobody else uses, or 0 if there are none. They need not be zero.
    /// Any function may call this.
    pub allocate_table: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// Takes back a table from `allocate_table`. No CPU can reach it as a table any more.
    pub free_table: Option<unsafe extern "C" fn(context: *mut c_void, table: u64)>,
    /// Returns the library's data about a table: always the same while the table is allocated, and different for each.
    pub meta: Option<unsafe extern "C" fn(context: *mut c_void, table: u64) -> *mut palimpsest_paging_meta>,
    /// Optional. Returns about how many tables could be allocated now. A call that needs many more then fails before it
    /// takes any.
    pub free_tables: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// Removes translations from the TLBs of all CPUs that run the space, including the calling one, and returns when
    /// none of them holds one. An interrupt handler that does this must not call the library for the same space.
    pub flush: Option<unsafe extern "C" fn(context: *mut c_void, request: *const palimpsest_paging_flush)>,
    /// Optional. Like `flush`, but on the calling CPU only: called after a fault that found nothing to do. If this is
    /// null, `flush` is called.
    pub flush_here: Option<unsafe extern "C" fn(context: *mut c_void, request: *const palimpsest_paging_flush)>,
    /// Optional, except on AArch64. Called after entries have become valid: runs `dsb ishst; isb` on AArch64.
    pub entries_made: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Optional. Called while the CPU waits for the lock of a space: if interrupts are off, it serves those that flush.
    pub relax: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Counts one more reference to the page of `len` bytes at `page`.
    ///
    /// Give all four callbacks for pages (this one to `page_copy`), or none. Without them, pages are not counted, and
    /// the first store to a private page after a fork is PALIMPSEST_PAGING_NO_PAGE, as is a fork with private data of
    /// the kernel. Callbacks recognise memory that you do not count, like device registers, by its address, and do
    /// nothing.
    pub page_retain: Option<unsafe extern "C" fn(context: *mut c_void, page: u64, len: u64)>,
    /// Counts one reference less: no CPU reaches the page through it any more. Decrements the count with release order.
    pub page_release: Option<unsafe extern "C" fn(context: *mut c_void, page: u64, len: u64)>,
    /// Returns 1 if there is exactly one reference to the page, else 0; always 0 for memory that you do not count.
    /// Reads the count with acquire order.
    pub page_is_exclusive: Option<unsafe extern "C" fn(context: *mut c_void, page: u64, len: u64) -> c_int>,
    /// Returns the physical address of a new page with the same bytes and one reference, aligned to `len`, or 0 if
    /// there is no memory. After 0, a fault splits a large page and copies only the part that it needs; a fork, which
    /// copies private pages of the kernel that can be written, fails (`PALIMPSEST_PAGING_NO_PAGE`). So map the memory
    /// of devices as shared.
    pub page_copy: Option<unsafe extern "C" fn(context: *mut c_void, page: u64, len: u64) -> u64>,
    /// Optional. Turns the one reference to a page of 2 MiB or 1 GiB into one to each of its 512 parts. Not needed if
    /// you count frames of 4 KiB.
    pub page_split: Option<unsafe extern "C" fn(context: *mut c_void, page: u64, len: u64)>,
    /// Optional. Turns the references to all 512 parts of a page of 2 MiB or 1 GiB into one to the whole, and returns
    /// 1; or returns 0 if that is impossible. Not needed if you count frames of 4 KiB; without it, and with
    /// `page_split`, palimpsest_paging_merge joins nothing.
    pub page_merge: Option<unsafe extern "C" fn(context: *mut c_void, page: u64, len: u64) -> c_int>,
}

/// Bytes of the structure in the first header. Callers with that one have none of the later callbacks.
const FIRST: usize = offset_of!(palimpsest_paging_machine, page_merge);

type Flush = unsafe extern "C" fn(*mut c_void, *const palimpsest_paging_flush);
type OnPage = unsafe extern "C" fn(*mut c_void, u64, u64);

/// The callbacks for counted pages.
#[derive(Clone, Copy)]
struct Counted {
    retain: OnPage,
    release: OnPage,
    is_exclusive: unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int,
    copy: unsafe extern "C" fn(*mut c_void, u64, u64) -> u64,
    split: Option<OnPage>,
    merge: Option<unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int>,
}

/// The callbacks, checked.
///
/// # Invariants
///
/// 1. They keep the promises of [`palimpsest_paging_machine`]: contract 2 of [`Hooks::read`].
#[derive(Clone, Copy)]
struct Callbacks {
    context: *mut c_void,
    physical_offset: u64,
    physical_end: u64,
    allocate_table: unsafe extern "C" fn(*mut c_void) -> u64,
    free_table: unsafe extern "C" fn(*mut c_void, u64),
    meta: unsafe extern "C" fn(*mut c_void, u64) -> *mut palimpsest_paging_meta,
    free_tables: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    flush: Flush,
    flush_here: Flush,
    entries_made: Option<unsafe extern "C" fn(*mut c_void)>,
    relax: Option<unsafe extern "C" fn(*mut c_void)>,
    counted: Option<Counted>,
}

/// The machine of one space.
pub(crate) struct Hooks {
    callbacks: Callbacks,
    /// What the space is charged with.
    pub(crate) tables: AtomicI64,
    pub(crate) pages: AtomicI64,
    /// How often calls for the space have allocated, freed and flushed.
    pub(crate) allocated: AtomicU64,
    pub(crate) freed: AtomicU64,
    pub(crate) flushes: AtomicU64,
}

impl Hooks {
    fn new(callbacks: Callbacks) -> Self {
        let (tables, pages) = (AtomicI64::new(0), AtomicI64::new(0));
        let (allocated, freed, flushes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { callbacks, tables, pages, allocated, freed, flushes }
    }

    /// Reads what C has described, for a format whose entries can hold addresses up to `physical_end`.
    ///
    /// # Safety
    ///
    /// 1. `machine` is null, or points to as many bytes as its `size` says.
    /// 2. Its callbacks do what [`palimpsest_paging_machine`] says, until the last space with them is dropped.
    pub(crate) unsafe fn read(machine: *const palimpsest_paging_machine, physical_end: u64) -> Answer<Self> {
        const KNOWN: usize = size_of::<palimpsest_paging_machine>();
        if machine.is_null() || !machine.is_aligned() {
            return Err(PALIMPSEST_PAGING_INVALID);
        }
        // SAFETY: contract 1: there is a `size` at least, which comes first.
        let size = unsafe { machine.cast::<usize>().read() };
        // A larger structure is that of a later header; none will be larger than a page.
        if !(FIRST..=PAGE as usize).contains(&size) {
            return Err(PALIMPSEST_PAGING_INVALID);
        }
        for at in KNOWN..size {
            // SAFETY: contract 1.
            if unsafe { machine.cast::<u8>().wrapping_add(at).read() } != 0 {
                return Err(PALIMPSEST_PAGING_INVALID);
            }
        }
        let mut given = MaybeUninit::<palimpsest_paging_machine>::zeroed();
        let len = size.min(KNOWN);
        // SAFETY: `len` bytes on both sides, by contract 1 and by the type.
        unsafe { ptr::copy_nonoverlapping(machine.cast::<u8>(), given.as_mut_ptr().cast(), len) };
        // SAFETY: zeros and the caller's bytes, every value of which is one of the structure's.
        let given = unsafe { given.assume_init() };
        given.checked(physical_end).map(Self::new).ok_or(PALIMPSEST_PAGING_INVALID)
    }

    /// Returns whether C is told when entries have become valid.
    pub(crate) fn hears_of_entries(&self) -> bool {
        self.callbacks.entries_made.is_some()
    }

    /// Returns where the CPU finds what lies at a physical address.
    fn at<T>(&self, frame: Frame) -> *mut T {
        // The address comes from C: an integer.
        ptr::with_exposed_provenance_mut(self.callbacks.physical_offset.wrapping_add(frame.address()) as usize)
    }

    fn meta_of(&self, table: Frame) -> *mut TableMeta {
        // SAFETY: invariant 1 of `Callbacks`.
        let meta = unsafe { (self.callbacks.meta)(self.callbacks.context, table.address()) };
        assert!(!meta.is_null() && meta.is_aligned(), "the callback `meta` returned {meta:p} for the table at {table}");
        meta.cast()
    }

    fn send(&self, request: FlushRequest<'_>, flush: Flush) {
        const MOST: usize = 16;
        self.flushes.fetch_add(1, Relaxed);
        let tables = u32::from(request.depth == FlushDepth::Tables);
        let mut to_c =
            palimpsest_paging_flush { space: request.space.0, ranges: ptr::null(), count: 0, tables, reserved: 0 };
        let FlushRanges::Some(ranges) = request.what else {
            // SAFETY: invariant 1 of `Callbacks`; it reads the request during the call.
            return unsafe { flush(self.callbacks.context, &raw const to_c) };
        };
        for some in ranges.chunks(MOST) {
            let mut list = [palimpsest_paging_range::default(); MOST];
            for (to, from) in list.iter_mut().zip(some) {
                *to = palimpsest_paging_range { start: from.start.0, end: from.end.0 };
            }
            (to_c.ranges, to_c.count) = (list.as_ptr(), some.len());
            // SAFETY: as above; it reads the list during the call, too.
            unsafe { flush(self.callbacks.context, &raw const to_c) };
        }
    }
}

impl palimpsest_paging_machine {
    /// Returns the callbacks, if none is missing and the numbers are valid.
    fn checked(&self, physical_end: u64) -> Option<Callbacks> {
        if !self.physical_offset.is_multiple_of(PAGE) || !self.physical_end.is_multiple_of(PAGE) {
            return None;
        }
        let counted = match (self.page_retain, self.page_release, self.page_is_exclusive, self.page_copy) {
            (Some(retain), Some(release), Some(is_exclusive), Some(copy)) => {
                let (split, merge) = (self.page_split, self.page_merge);
                Some(Counted { retain, release, is_exclusive, copy, split, merge })
            }
            (None, None, None, None) if self.page_split.is_none() && self.page_merge.is_none() => None,
            _ => return None,
        };
        let flush = self.flush?;
        Some(Callbacks {
            context: self.context,
            physical_offset: self.physical_offset,
            physical_end: if self.physical_end == 0 { physical_end } else { physical_end.min(self.physical_end) },
            allocate_table: self.allocate_table?,
            free_table: self.free_table?,
            meta: self.meta?,
            free_tables: self.free_tables,
            flush,
            flush_here: self.flush_here.unwrap_or(flush),
            entries_made: self.entries_made,
            relax: self.relax,
            counted,
        })
    }
}

impl Clone for Hooks {
    /// Makes a child's machine, whose counts begin at zero.
    fn clone(&self) -> Self {
        Self::new(self.callbacks)
    }
}

// SAFETY: by what C promises in `palimpsest_paging_machine` (invariant 1 of `Callbacks`): 1. tables are cleared here,
// and their meta data written. 2. addresses are computed from the frame alone, and `meta` returns the same for the same
// table. 3. `flush` returns when no CPU holds a translation. 4. `page_copy` promises it. 5. there are no replicas:
// spaces have one node. 6. `page_release` and `page_is_exclusive` promise it.
unsafe impl Machine for Hooks {
    type Pending = ();

    fn allocate_table(&self, _: Node) -> Option<Frame> {
        // SAFETY: invariant 1 of `Callbacks`.
        let address = unsafe { (self.callbacks.allocate_table)(self.callbacks.context) };
        if address == 0 {
            return None;
        }
        // Entries cannot hold other addresses: their last bits would be taken for flags.
        let table = Frame::new(address).filter(|_| address < self.callbacks.physical_end);
        let Some(table) = table else { panic!("the callback `allocate_table` returned {address:#x}") };
        let words: *mut Table = self.at(table);
        assert!(!words.is_null(), "the callback `allocate_table` returned {table}, which lies at the address 0");
        // SAFETY: nobody else uses the 4096 bytes at this address, which is aligned to them.
        unsafe { words.write_bytes(0, 1) };
        // SAFETY: the table's own data, which nobody else uses either; `meta_of` has checked its alignment.
        unsafe { self.meta_of(table).write(TableMeta::new()) };
        self.allocated.fetch_add(1, Relaxed);
        Some(table)
    }

    fn free_tables(&self) -> usize {
        let Some(free_tables) = self.callbacks.free_tables else { return usize::MAX };
        // SAFETY: invariant 1 of `Callbacks`.
        let free = unsafe { free_tables(self.callbacks.context) };
        usize::try_from(free).unwrap_or(usize::MAX)
    }

    unsafe fn free_table(&self, table: Frame) {
        self.freed.fetch_add(1, Relaxed);
        // SAFETY: invariant 1 of `Callbacks`; contract 1.
        unsafe { (self.callbacks.free_table)(self.callbacks.context, table.address()) };
    }

    unsafe fn table(&self, table: Frame) -> &Table {
        // SAFETY: contract 1; `allocate_table` has checked the address, and cleared the table.
        unsafe { &*self.at(table) }
    }

    unsafe fn meta(&self, table: Frame) -> &TableMeta {
        // SAFETY: contract 1; `allocate_table` has written it.
        unsafe { &*self.meta_of(table) }
    }

    fn retain(&self, page: Page) {
        if let Some(counted) = self.callbacks.counted {
            // SAFETY: invariant 1 of `Callbacks`.
            unsafe { (counted.retain)(self.callbacks.context, page.frame.address(), page.size.bytes()) };
        }
    }

    fn release(&self, page: Page) {
        if let Some(counted) = self.callbacks.counted {
            // SAFETY: invariant 1 of `Callbacks`.
            unsafe { (counted.release)(self.callbacks.context, page.frame.address(), page.size.bytes()) };
        }
    }

    fn is_exclusive(&self, page: Page) -> bool {
        let Some(counted) = self.callbacks.counted else { return false };
        // SAFETY: invariant 1 of `Callbacks`.
        unsafe { (counted.is_exclusive)(self.callbacks.context, page.frame.address(), page.size.bytes()) != 0 }
    }

    fn copy(&self, page: Page, _: Node) -> Option<Frame> {
        let counted = self.callbacks.counted?;
        // SAFETY: invariant 1 of `Callbacks`.
        let address = unsafe { (counted.copy)(self.callbacks.context, page.frame.address(), page.size.bytes()) };
        if address == 0 {
            return None;
        }
        let fits = |copy: &Frame| {
            copy.is_aligned(page.size)
                && address.checked_add(page.size.bytes()).is_some_and(|end| end <= self.callbacks.physical_end)
        };
        let copy = Frame::new(address).filter(fits);
        assert!(copy.is_some(), "the callback `page_copy` returned {address:#x} for the page at {}", page.frame);
        copy
    }

    fn pin(&self, _: Page) {}

    fn unpin(&self, _: Page) {}

    fn is_pinned(&self, _: Page) -> bool {
        false
    }

    fn split(&self, page: Page) {
        if let Some(split) = self.callbacks.counted.and_then(|counted| counted.split) {
            // SAFETY: invariant 1 of `Callbacks`.
            unsafe { split(self.callbacks.context, page.frame.address(), page.size.bytes()) };
        }
    }

    fn merge(&self, page: Page) -> bool {
        let Some(counted) = self.callbacks.counted else { return true };
        let Some(merge) = counted.merge else { return counted.split.is_none() };
        // SAFETY: invariant 1 of `Callbacks`.
        unsafe { merge(self.callbacks.context, page.frame.address(), page.size.bytes()) != 0 }
    }

    fn dispatch(&self, request: FlushRequest<'_>) {
        self.send(request, self.callbacks.flush);
    }

    /// Does nothing: the callback `flush` has waited.
    fn wait(&self, (): ()) {}

    fn flush_here(&self, request: FlushRequest<'_>) {
        self.send(request, self.callbacks.flush_here);
    }

    fn entries_made(&self) {
        if let Some(entries_made) = self.callbacks.entries_made {
            // SAFETY: invariant 1 of `Callbacks`.
            unsafe { entries_made(self.callbacks.context) };
        }
    }

    fn physical_end(&self) -> u64 {
        self.callbacks.physical_end
    }

    fn charge(&self, _: SpaceId, charge: Charge) {
        self.tables.fetch_add(charge.tables, Relaxed);
        self.pages.fetch_add(charge.pages, Relaxed);
    }

    fn relax(&self) {
        match self.callbacks.relax {
            // SAFETY: invariant 1 of `Callbacks`.
            Some(relax) => unsafe { relax(self.callbacks.context) },
            None => core::hint::spin_loop(),
        }
    }
}
