//! The GDB JIT interface: a list that the debugger reads, with an object file in memory for every program.
//!
//! gdb and lldb set a breakpoint in `__jit_debug_register_code` and read `__jit_debug_descriptor` when it is hit;
//! attaching later, they walk the whole list (gdb manual, "JIT Compilation Interface"). Both look the two symbols up by
//! name, so an executable stripped of its symbol table shows them nothing.
//!
//! The interface has no lock of its own. All writers of this crate share the one here. Another code generator in the
//! same process may use the interface without it, which is a limit of the interface.

mod dwarf;
mod elf_image;

use std::{
    collections::{HashMap, hash_map::Entry as Slot},
    ops::Range,
    ptr,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

use palimpsest_sys::ForkDetector;

use super::{Loaded, ObserveError, Observer};
use crate::address::CodeAddress;

const OBSERVER: &str = "gdb-jit";

/// `jit_actions_t`: nothing has changed.
const NO_ACTION: u32 = 0;
/// `jit_actions_t`: the relevant entry was added.
const REGISTER: u32 = 1;
/// `jit_actions_t`: the relevant entry is about to be removed.
const UNREGISTER: u32 = 2;

/// `jit_code_entry` of the interface.
#[repr(C)]
struct CodeEntry {
    next: *mut CodeEntry,
    previous: *mut CodeEntry,
    image: *const u8,
    image_bytes: u64,
}

/// `jit_descriptor` of the interface.
#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut CodeEntry,
    first: *mut CodeEntry,
}

// The two symbols of the interface. They are weak, so that a library that defines them too wins and both use its list;
// defined in assembly, because Rust has no weak definitions. The function must exist as an instruction of its own, for
// a breakpoint: `ret` has this name on x86-64, AArch64 and RISC-V. The section flags keep both through `--gc-sections`;
// the references in `publish` make the linker take this object from an archive.
std::arch::global_asm!(
    ".pushsection .text.__jit_debug_register_code,\"ax\",%progbits",
    ".p2align 4",
    ".weak __jit_debug_register_code",
    ".type __jit_debug_register_code, STT_FUNC",
    "__jit_debug_register_code:",
    "ret",
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
    ".pushsection .data.__jit_debug_descriptor,\"aw\",%progbits",
    ".p2align 4",
    ".weak __jit_debug_descriptor",
    ".type __jit_debug_descriptor, STT_OBJECT",
    "__jit_debug_descriptor:",
    // The interface's version; the rest is: no action, no relevant entry, an empty list.
    ".4byte 1",
    ".zero {rest}",
    ".size __jit_debug_descriptor, . - __jit_debug_descriptor",
    ".popsection",
    rest = const size_of::<Descriptor>() - size_of::<u32>(),
);

unsafe extern "C" {
    static mut __jit_debug_descriptor: Descriptor;
    fn __jit_debug_register_code();
}

/// Registers programs with an attached debugger, now or later.
///
/// A program appears in backtraces by its name. With call frame information in [`Loaded::eh_frame`] the debugger
/// unwinds through it from any instruction; without, it guesses from the prologue, which works for frame-pointer code.
///
/// Each load makes an ELF image of about 600 bytes and takes a process-wide lock; with a debugger attached, each
/// program also stops the whole process twice. So use this observer only where programs are debugged.
#[derive(Clone, Copy, Default, Debug)]
pub struct GdbJit {
    _private: (),
}

impl GdbJit {
    /// Creates an observer. All observers share one list, since a process has only one.
    #[must_use]
    pub fn new() -> Self {
        GdbJit::default()
    }
}

impl Observer for GdbJit {
    fn loaded(&self, loaded: &Loaded<'_>) -> Result<(), ObserveError> {
        let image = elf_image::write(loaded).map_err(|error| ObserveError::new(OBSERVER, error))?;
        let mut list = list();
        let process = list.process.generation();
        match list.entries.entry(loaded.address.get()) {
            Slot::Vacant(slot) => slot.insert(Registered::publish(image, process)),
            // Two packs cannot hold the same address; keeps the list whole if a caller claims it.
            Slot::Occupied(_) => {
                return Err(ObserveError::new(OBSERVER, AlreadyRegistered { address: loaded.address }));
            }
        };
        Ok(())
    }

    fn unloaded(&self, address: CodeAddress, _len: usize) -> Result<(), ObserveError> {
        let mut list = list();
        if let Some(registered) = list.entries.remove(&address.get()) {
            registered.withdraw();
        }
        Ok(())
    }

    fn omitted(&self, addresses: Range<usize>) -> Result<(), ObserveError> {
        let mut list = list();
        let process = list.process.generation();
        let gone =
            |address: &usize, registered: &mut Registered| addresses.contains(address) && registered.process != process;
        list.entries.extract_if(gone).for_each(|(_, registered)| registered.withdraw());
        Ok(())
    }
}

/// A program was announced twice.
#[derive(Debug, thiserror::Error)]
#[error("a program at {address} is registered already; attach only one GdbJit to a pack")]
struct AlreadyRegistered {
    address: CodeAddress,
}

/// The programs of this process, by start address.
struct List {
    entries: HashMap<usize, Registered>,
    process: ForkDetector,
}

/// Locks the list, and with it the descriptor. A panic of an earlier holder cannot have left it half changed: nothing
/// between the stores of `publish` and `withdraw` panics.
fn list() -> MutexGuard<'static, List> {
    static LIST: LazyLock<Mutex<List>> = LazyLock::new(|| {
        let (entries, process) = Default::default();
        Mutex::new(List { entries, process })
    });
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program in the debugger's list.
struct Registered {
    /// # Invariants
    /// Made by `Box::into_raw`, linked into the descriptor's list, freed by `withdraw` only. Read by the debugger and
    /// changed under the lock of `list`.
    entry: *mut CodeEntry,
    /// # Invariants
    /// Made by `Box::into_raw`, pointed to by `entry`, freed by `withdraw` only.
    image: *mut [u8],
    /// The generation of the process that has registered it.
    process: u32,
}

// SAFETY: the pointers own their targets (invariants of the fields), which have no thread affinity.
unsafe impl Send for Registered {}

impl Registered {
    /// Puts `image` at the head of the list and tells the debugger. The caller holds the lock of `list`.
    fn publish(image: Vec<u8>, process: u32) -> Self {
        let image_bytes = image.len() as u64;
        let image = Box::into_raw(image.into_boxed_slice());
        let descriptor = &raw mut __jit_debug_descriptor;
        // SAFETY: the descriptor is a live static, and the lock of `list` keeps other threads from it.
        let next = unsafe { (*descriptor).first };
        let entry =
            Box::into_raw(Box::new(CodeEntry { next, previous: ptr::null_mut(), image: image.cast(), image_bytes }));
        if !next.is_null() {
            // SAFETY: a linked entry is live, and the lock gives exclusive access.
            unsafe { (*next).previous = entry };
        }
        // SAFETY: as for the load of `first`.
        unsafe { (*descriptor).first = entry };
        notify(REGISTER, entry);
        Registered { entry, image, process }
    }

    /// Removes the program from the list, tells the debugger, and frees it. The caller holds the lock of `list`.
    fn withdraw(self) {
        let descriptor = &raw mut __jit_debug_descriptor;
        // SAFETY: a linked entry is live, and the lock gives exclusive access.
        let CodeEntry { next, previous, .. } = unsafe { self.entry.read() };
        if previous.is_null() {
            // SAFETY: the descriptor is a live static, and the lock keeps other threads from it.
            unsafe { (*descriptor).first = next };
        } else {
            // SAFETY: neighbours in the list are live; the lock gives exclusive access.
            unsafe { (*previous).next = next };
        }
        if !next.is_null() {
            // SAFETY: as for `previous`.
            unsafe { (*next).previous = previous };
        }
        notify(UNREGISTER, self.entry);
        // SAFETY: made by `Box::into_raw` in `publish`; unlinked above, and the descriptor no longer mentions it.
        drop(unsafe { Box::from_raw(self.entry) });
        // SAFETY: made by `Box::into_raw` in `publish`; only `entry` pointed to it.
        drop(unsafe { Box::from_raw(self.image) });
    }
}

/// Lets a debugger stop with `action` and `entry` in the descriptor, then clears both. The caller holds the lock of
/// `list`.
fn notify(action: u32, entry: *mut CodeEntry) {
    let descriptor = &raw mut __jit_debug_descriptor;
    // Volatile: the debugger reads these words from outside the program when it stops in the function below.
    // SAFETY: the descriptor is a live static, and the lock keeps other threads from it.
    let action_word = unsafe { &raw mut (*descriptor).action };
    // SAFETY: as above.
    let relevant_word = unsafe { &raw mut (*descriptor).relevant };
    // SAFETY: as above.
    unsafe { relevant_word.write_volatile(entry) };
    // SAFETY: as above.
    unsafe { action_word.write_volatile(action) };
    // SAFETY: takes no arguments and returns at once, in this crate's definition and in any other of this interface.
    unsafe { __jit_debug_register_code() };
    // SAFETY: as above.
    unsafe { action_word.write_volatile(NO_ACTION) };
    // SAFETY: as above.
    unsafe { relevant_word.write_volatile(ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(address: usize) -> Loaded<'static> {
        Loaded {
            name: "listed",
            address: CodeAddress::new(address),
            code: &[0xc3; 8],
            eh_frame: None,
            lines: None,
            functions: &[],
        }
    }

    /// Returns the images in the debugger's list, first to last, and checks the links back.
    fn images() -> Vec<usize> {
        let descriptor = &raw const __jit_debug_descriptor;
        let mut found = Vec::new();
        let mut previous = ptr::null_mut();
        // SAFETY: the caller holds no guard, but the test below is the only user of the interface in this binary.
        let mut entry = unsafe { (*descriptor).first };
        while !entry.is_null() {
            // SAFETY: linked entries are live.
            let read = unsafe { entry.read() };
            assert_eq!(read.previous, previous);
            found.push(read.image as usize);
            previous = entry;
            entry = read.next;
        }
        found
    }

    #[test]
    fn the_list_follows_loads_and_unloads() {
        let observer = GdbJit::new();
        for address in [0x1000, 0x2000, 0x3000] {
            observer.loaded(&loaded(address)).expect("loaded");
        }
        let all = images();
        assert_eq!(all.len(), 3);
        let doubled = observer.loaded(&loaded(0x2000)).expect_err("registered");
        assert!(doubled.to_string().contains("0x2000"), "{doubled}");

        let forget = |address| observer.unloaded(CodeAddress::new(address), 8).expect("unloaded");
        // The newest is at the head, so 0x2000 is the middle one.
        forget(0x2000);
        assert_eq!(images(), [all[0], all[2]]);
        forget(0x3000);
        assert_eq!(images(), [all[2]]);
        forget(0x1000);
        assert_eq!(images(), []);
        forget(0x1000);
    }

    #[test]
    fn the_descriptor_has_the_layout_of_the_interface() {
        assert_eq!(size_of::<Descriptor>(), 8 + 2 * size_of::<usize>());
        assert_eq!(std::mem::offset_of!(CodeEntry, image_bytes), 3 * size_of::<usize>());
        let descriptor = &raw const __jit_debug_descriptor;
        // SAFETY: the version never changes.
        assert_eq!(unsafe { (*descriptor).version }, 1);
    }
}
