//! Making, forking and dropping spaces. A space lives in memory of C's, beside a name that says so.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use palimpsest_paging::format::{AArch64, AArch64Upper, Format, Sv39, Sv48, X86_64, X86_64La57};
use palimpsest_paging::{AddressSpace, Level, Node, ShareTables, SpaceId, SpaceOptions};

use crate::machine::{Hooks, palimpsest_paging_machine};
use crate::result::palimpsest_paging_result::{
    self, PALIMPSEST_PAGING_IN_USE, PALIMPSEST_PAGING_INVALID, PALIMPSEST_PAGING_NO_MEMORY, PALIMPSEST_PAGING_STALE,
};
use crate::result::{Answer, code, of_fork};

/// x86-64 with four levels.
pub const PALIMPSEST_PAGING_X86_64: u32 = 0;
/// x86-64 with five levels.
pub const PALIMPSEST_PAGING_X86_64_LA57: u32 = 1;
/// AArch64, TTBR0: four levels, pages of 4 KiB. TCR_EL1.HPDn must be clear.
pub const PALIMPSEST_PAGING_AARCH64: u32 = 2;
/// AArch64, TTBR1.
pub const PALIMPSEST_PAGING_AARCH64_UPPER: u32 = 3;
/// RISC-V with three levels.
pub const PALIMPSEST_PAGING_SV39: u32 = 4;
/// RISC-V with four levels.
pub const PALIMPSEST_PAGING_SV48: u32 = 5;

/// Forks copy all tables.
pub const PALIMPSEST_PAGING_SHARE_NONE: u32 = 0;
/// Forks share the tables of 4 KiB pages. Each number higher also shares the tables of one more level, up to the level
/// below the root: then forks cost less, and the first store to each region costs more.
pub const PALIMPSEST_PAGING_SHARE_LAST: u32 = 1;

/// An address space, in memory of yours: clear it before palimpsest_paging_space_new, and do not move it until
/// palimpsest_paging_space_drop, which clears its first word. A space at another address than that where it was made is
/// PALIMPSEST_PAGING_STALE.
#[repr(C)]
pub struct palimpsest_paging_space {
    /// Only for the library.
    private_words: [u64; 80],
}

/// What a space holds, and what calls for it have asked of the machine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct palimpsest_paging_stats {
    /// `sizeof(struct palimpsest_paging_stats)`, set by the caller.
    pub size: usize,
    /// How many tables it has. A table that several spaces share counts for the space that made it, until that space no
    /// longer uses it.
    pub tables: i64,
    /// How many pages its own tables map, in units of 4 KiB.
    pub pages: i64,
    /// How many tables calls for it have allocated. Those of a fork count for the parent.
    pub tables_allocated: u64,
    /// How many tables calls for it have freed.
    pub tables_freed: u64,
    /// How many flushes calls for it have asked for.
    pub flushes: u64,
}

/// The contents of C's memory.
#[repr(C)]
struct Live {
    /// `NAME ^ address` while there is a space, [`FREE`] before and after, [`CHANGING`] while it is made or dropped.
    name: AtomicU64,
    space: Space,
}

const FREE: u64 = 0;
const CHANGING: u64 = 1;
/// Random, and with a last bit pattern that no aligned address turns into [`FREE`] or [`CHANGING`].
const NAME: u64 = 0x9d7f_36c1_e80b_52a7;

const _: () = assert!(size_of::<Live>() <= size_of::<palimpsest_paging_space>());
const _: () = assert!(align_of::<Live>() <= align_of::<palimpsest_paging_space>());

/// A space of any format.
pub(crate) enum Space {
    X86_64(AddressSpace<X86_64, Hooks>),
    X86_64La57(AddressSpace<X86_64La57, Hooks>),
    AArch64(AddressSpace<AArch64, Hooks>),
    AArch64Upper(AddressSpace<AArch64Upper, Hooks>),
    Sv39(AddressSpace<Sv39, Hooks>),
    Sv48(AddressSpace<Sv48, Hooks>),
}

/// Evaluates the same expression with the space of whichever format.
macro_rules! each_format {
    ($space:expr, $named:ident => $done:expr) => {
        match $space {
            $crate::space::Space::X86_64($named) => $done,
            $crate::space::Space::X86_64La57($named) => $done,
            $crate::space::Space::AArch64($named) => $done,
            $crate::space::Space::AArch64Upper($named) => $done,
            $crate::space::Space::Sv39($named) => $done,
            $crate::space::Space::Sv48($named) => $done,
        }
    };
}
pub(crate) use each_format;

fn name_at(space: *const palimpsest_paging_space) -> u64 {
    NAME ^ space.addr() as u64
}

/// Returns the name in memory for a space.
///
/// # Safety
///
/// 1. `space` is null, or points to a [`palimpsest_paging_space`] that lives as long as `'a`.
unsafe fn name<'a>(space: *const palimpsest_paging_space) -> Answer<&'a AtomicU64> {
    if space.is_null() || !space.is_aligned() {
        return Err(PALIMPSEST_PAGING_INVALID);
    }
    // SAFETY: contract 1; the first word is only used as the name.
    Ok(unsafe { &*space.cast::<AtomicU64>() })
}

fn inside(space: *mut palimpsest_paging_space) -> *mut Space {
    space.cast::<u8>().wrapping_add(offset_of!(Live, space)).cast()
}

/// Returns the space that lives in C's memory.
///
/// # Safety
///
/// 1. As for [`name`].
/// 2. The space is not dropped as long as `'a`.
pub(crate) unsafe fn live<'a>(space: *const palimpsest_paging_space) -> Answer<&'a Space> {
    // SAFETY: contract 1.
    let name = unsafe { name(space) }?;
    // Acquire, partner: the Release in `Place::set_name`. Forbids reading the space as it was before it was made.
    if name.load(Ordering::Acquire) != name_at(space) {
        return Err(PALIMPSEST_PAGING_STALE);
    }
    // SAFETY: the name says that there is a space; contract 2.
    Ok(unsafe { &*inside(space.cast_mut()) })
}

/// C's memory, claimed for a new space. Dropping this marks the memory as free.
struct Place {
    space: *mut palimpsest_paging_space,
}

impl Place {
    /// Claims memory.
    ///
    /// # Safety
    ///
    /// 1. As for [`name`], and as long as this lives.
    unsafe fn claim(space: *mut palimpsest_paging_space) -> Answer<Self> {
        // SAFETY: contract 1.
        let name = unsafe { name(space) }?;
        // Acquire, partner: the Release in `Place::set_name`. Forbids writing the new space before the old one is gone.
        match name.compare_exchange(FREE, CHANGING, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Self { space }),
            Err(_) => Err(PALIMPSEST_PAGING_IN_USE),
        }
    }

    fn set_name(&self, to: u64) {
        // SAFETY: contract 1 of `claim`.
        if let Ok(name) = unsafe { name(self.space) } {
            // Release, partners: the Acquires in `live`, `claim` and `palimpsest_paging_space_drop`, which name what
            // they forbid.
            name.store(to, Ordering::Release);
        }
    }

    fn fill(self, with: Space) {
        // SAFETY: claimed: nobody else uses it.
        unsafe { inside(self.space).write(with) };
        self.set_name(name_at(self.space));
        core::mem::forget(self);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.set_name(FREE);
    }
}

/// Returns how tables are shared, if the format has that many levels.
fn share<F: Format>(share: u32) -> Answer<ShareTables> {
    match u8::try_from(share) {
        Ok(0) => Ok(ShareTables::None),
        Ok(level) if level < F::TOP.number() => Ok(ShareTables::UpTo(Level::new(level))),
        _ => Err(PALIMPSEST_PAGING_INVALID),
    }
}

/// Makes an empty space.
///
/// # Safety
///
/// 1. As for [`Hooks::read`], contracts 1 and 2.
unsafe fn make<F: Format>(
    machine: *const palimpsest_paging_machine,
    id: u64,
    shared: u32,
) -> Answer<AddressSpace<F, Hooks>> {
    let options = SpaceOptions::new().share(share::<F>(shared)?);
    // SAFETY: contract 1.
    let hooks = unsafe { Hooks::read(machine, F::PHYSICAL_END) }?;
    if F::BREAK_BEFORE_MAKE && !hooks.hears_of_entries() {
        return Err(PALIMPSEST_PAGING_INVALID);
    }
    AddressSpace::new(hooks, id_of(id)?, &[Node(0)], options).map_err(|_| PALIMPSEST_PAGING_NO_MEMORY)
}

fn id_of(id: u64) -> Answer<SpaceId> {
    // Tables without an owner have this id.
    if id == u64::MAX { Err(PALIMPSEST_PAGING_INVALID) } else { Ok(SpaceId(id)) }
}

/// Makes an empty space in `space`, whose memory must be zero. `format` is PALIMPSEST_PAGING_X86_64 and so on; `share`
/// is PALIMPSEST_PAGING_SHARE_NONE, _LAST or a higher number. Flushes name the space by `id`: any number but UINT64_MAX
/// that no other space has at the same time. Allocates one table, the root.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that nobody else uses, and that stays where it is until it is dropped.
/// 2. `machine` is null, or points to as many bytes as its `size` says; its callbacks keep their promises until the
///    last space that was made with it, or forked from one, is dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_space_new(
    space: *mut palimpsest_paging_space,
    machine: *const palimpsest_paging_machine,
    format: u32,
    id: u64,
    share: u32,
) -> palimpsest_paging_result {
    let made = || {
        // SAFETY: contract 1.
        let place = unsafe { Place::claim(space) }?;
        let made = match format {
            // SAFETY: contract 2.
            PALIMPSEST_PAGING_X86_64 => Space::X86_64(unsafe { make(machine, id, share) }?),
            // SAFETY: contract 2.
            PALIMPSEST_PAGING_X86_64_LA57 => Space::X86_64La57(unsafe { make(machine, id, share) }?),
            // SAFETY: contract 2.
            PALIMPSEST_PAGING_AARCH64 => Space::AArch64(unsafe { make(machine, id, share) }?),
            // SAFETY: contract 2.
            PALIMPSEST_PAGING_AARCH64_UPPER => Space::AArch64Upper(unsafe { make(machine, id, share) }?),
            // SAFETY: contract 2.
            PALIMPSEST_PAGING_SV39 => Space::Sv39(unsafe { make(machine, id, share) }?),
            // SAFETY: contract 2.
            PALIMPSEST_PAGING_SV48 => Space::Sv48(unsafe { make(machine, id, share) }?),
            _ => return Err(PALIMPSEST_PAGING_INVALID),
        };
        place.fill(made);
        Ok(())
    };
    code(made())
}

/// Makes a space in `child`, whose memory must be zero, that translates as `space` does now. The two share all pages,
/// and tables as the first space's `share` says. The first store to a private page faults, and palimpsest_paging_fault
/// copies the page. The kernel's own private data is copied at once, since its stores must not fault
/// (PALIMPSEST_PAGING_NO_PAGE if there is no memory for that). The cost depends on that and on the tables that are not
/// shared, not on what is mapped. Flushes `space` before it returns. `id` is the child's, as for
/// palimpsest_paging_space_new.
///
/// # Safety
///
/// 1. As for palimpsest_paging_space_new, contract 1, for `child`.
/// 2. `space` is null, or points to a structure that is not dropped during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_fork(
    space: *const palimpsest_paging_space,
    child: *mut palimpsest_paging_space,
    id: u64,
) -> palimpsest_paging_result {
    macro_rules! forked {
        ($parent:expr, $format:ident, $id:expr) => {{
            let (forked, flush) = $parent.fork($id).map_err(|error| of_fork(&error))?;
            flush.finish();
            Space::$format(forked)
        }};
    }
    let fork = || {
        // SAFETY: contract 2.
        let parent = unsafe { live(space) }?;
        let id = id_of(id)?;
        if each_format!(parent, parent => parent.id()) == id {
            return Err(PALIMPSEST_PAGING_INVALID);
        }
        // SAFETY: contract 1.
        let place = unsafe { Place::claim(child) }?;
        place.fill(match parent {
            Space::X86_64(parent) => forked!(parent, X86_64, id),
            Space::X86_64La57(parent) => forked!(parent, X86_64La57, id),
            Space::AArch64(parent) => forked!(parent, AArch64, id),
            Space::AArch64Upper(parent) => forked!(parent, AArch64Upper, id),
            Space::Sv39(parent) => forked!(parent, Sv39, id),
            Space::Sv48(parent) => forked!(parent, Sv48, id),
        });
        Ok(())
    };
    code(fork())
}

/// Drops a space, which no CPU may run: flushes all its addresses, gives back its tables and its references to pages,
/// and clears the memory's first word. The memory may then hold another space.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that nobody else uses during the call; no CPU has its root loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_space_drop(space: *mut palimpsest_paging_space) -> palimpsest_paging_result {
    let dropped = || {
        // SAFETY: contract 1.
        let name = unsafe { name(space) }?;
        // Acquire, partner: the Release in `Place::set_name`. Forbids dropping the space as it was before it was made.
        let claimed = name.compare_exchange(name_at(space), CHANGING, Ordering::Acquire, Ordering::Relaxed);
        claimed.map_err(|_| PALIMPSEST_PAGING_STALE)?;
        let place = Place { space };
        // SAFETY: there was a space, and only this call has replaced its name.
        unsafe { inside(space).drop_in_place() };
        drop(place);
        Ok(())
    };
    code(dropped())
}

/// Writes to `root` the physical address of the root table, to be loaded into CR3, TTBRn or satp.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `root` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_root(
    space: *const palimpsest_paging_space,
    root: *mut u64,
) -> palimpsest_paging_result {
    let found = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let root = out(root)?;
        let frame = each_format!(space, space => space.root(Node(0)));
        // SAFETY: contract 2; not null, and aligned.
        unsafe { root.write(frame.address()) };
        Ok(())
    };
    code(found())
}

/// Writes the space's counts to `stats`, whose `size` the caller has set. Other CPUs that use the space meanwhile may
/// be counted in part.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `stats` is null, or points to as many bytes as its `size` says, which can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_space_stats(
    space: *const palimpsest_paging_space,
    stats: *mut palimpsest_paging_stats,
) -> palimpsest_paging_result {
    let found = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        // SAFETY: contract 2.
        let size = unsafe { size_of_out(stats.cast(), size_of::<palimpsest_paging_stats>()) }?;
        let hooks = each_format!(space, space => space.machine());
        // Relaxed: counts, which publish nothing.
        let counts = palimpsest_paging_stats {
            size,
            tables: hooks.tables.load(Ordering::Relaxed),
            pages: hooks.pages.load(Ordering::Relaxed),
            tables_allocated: hooks.allocated.load(Ordering::Relaxed),
            tables_freed: hooks.freed.load(Ordering::Relaxed),
            flushes: hooks.flushes.load(Ordering::Relaxed),
        };
        // SAFETY: contract 2; aligned, and long enough.
        unsafe { stats.write(counts) };
        Ok(())
    };
    code(found())
}

/// Refuses a pointer for a result that is null or not aligned.
pub(crate) fn out<T>(out: *mut T) -> Answer<*mut T> {
    if out.is_null() || !out.is_aligned() { Err(PALIMPSEST_PAGING_INVALID) } else { Ok(out) }
}

/// Reads the size with which a structure for results begins, and returns it if it is `known` or more.
///
/// # Safety
///
/// 1. `out` is null, or points to as many bytes as the size there says, at least to the size itself.
pub(crate) unsafe fn size_of_out(out: *const usize, known: usize) -> Answer<usize> {
    if out.is_null() || !out.is_aligned() {
        return Err(PALIMPSEST_PAGING_INVALID);
    }
    // SAFETY: contract 1.
    let size = unsafe { out.read() };
    if size < known { Err(PALIMPSEST_PAGING_INVALID) } else { Ok(size) }
}
