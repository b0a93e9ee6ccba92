//! The relocations of this object's constants, which `palimpsest run` leaves to the object itself (`palimpsest-defer`):
//! the dynamic linker would write to eight pages of constants in each program that is executed, and most use none.
//!
//! Until they are made, no constant may be used that holds an address: no trait object, no table of strings, no
//! formatted text; there are zeros in their place. What runs in a [dormant](crate::dormant) process, and before the
//! start, keeps to that once it is optimised, and the test `dormant` calls every function that the object defines.
//! Without optimisation, the compiler makes such constants of what needs none; and where nobody has tried it, it might.
//! So `build.rs` says whether relocations [wait](ARE_LATE) until a process wakes.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::system_call;

/// Where everything is, by addresses in the file; `palimpsest-defer` fills it in. All zeros if nothing was deferred.
#[repr(C)]
struct Table {
    /// This table.
    own: usize,
    /// Relocations, and how many.
    relocations: usize,
    count: usize,
    /// The end of what is no code, from the first byte on.
    constants_end: usize,
    /// Constants with addresses.
    relocated: usize,
    relocated_end: usize,
    /// How far behind this table the code of the start is, as the linker writes it.
    start: usize,
}

#[cfg(not(test))]
unsafe extern "C" {
    /// Defined by `start`.
    #[link_name = "palimpsest_deferred_table"]
    static TABLE: Table;
}

#[cfg(test)]
static TABLE: Table =
    Table { own: 0, relocations: 0, count: 0, constants_end: 0, relocated: 0, relocated_end: 0, start: 0 };

/// A relocation (`Elf64_Rela`), of which all here add an address to where the object is loaded.
#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    place: usize,
    kind: usize,
    addend: usize,
}

fn table() -> Table {
    // SAFETY: a constant, which the compiler may not take for what it sees here.
    unsafe { (&raw const TABLE).read_volatile() }
}

/// Whether relocations are made when the process wakes. If not, they are made at the start.
pub(crate) const ARE_LATE: bool = cfg!(relocates_late);

/// Whether relocations were deferred. Async-signal-safe.
pub(crate) fn is_any() -> bool {
    table().count != 0
}

/// Makes them, and takes rights away that nobody needs: as the dynamic linker would have done. Twice is as good as
/// once, also at the same time. Async-signal-safe, and leaves `errno` alone.
#[cold]
pub(crate) fn apply() {
    relocate();
    protect();
}

/// Makes them. Async-signal-safe.
#[cold]
pub(crate) fn relocate() {
    let table = table();
    let bias = (&raw const TABLE).expose_provenance() - table.own;
    let relocations = std::ptr::with_exposed_provenance::<Relocation>(bias + table.relocations);
    for number in 0..table.count {
        // SAFETY: the table says so; in this object's own file.
        let Relocation { place, addend, .. } = unsafe { relocations.wrapping_add(number).read() };
        let place = std::ptr::with_exposed_provenance::<AtomicUsize>(bias + place);
        // SAFETY: a word of this object's that can be written until the call below, and that nobody reads before.
        unsafe { &*place }.store(bias + addend, Ordering::Relaxed);
    }
}

fn protect() {
    let table = table();
    if table.count == 0 {
        return;
    }
    let (bias, page) = ((&raw const TABLE).expose_provenance() - table.own, rustix::param::page_size());
    for (start, end) in [(0, table.constants_end), (table.relocated, table.relocated_end)] {
        let (start, end) = ((bias + start) & !(page - 1), (bias + end) & !(page - 1));
        // If it is refused, these rights stay. SAFETY: from here on, nothing is written there, and nothing executed.
        unsafe { system_call(libc::SYS_mprotect, [start, end - start, libc::PROT_READ as usize, 0, 0, 0]) };
    }
}
