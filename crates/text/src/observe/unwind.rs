//! Registration of call frame information with the unwinder of the process.

use std::{
    collections::{HashMap, hash_map::Entry as Slot},
    ffi::c_void,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

use palimpsest_sys::ForkDetector;

use super::{Loaded, ObserveError, Observer};
use crate::address::CodeAddress;

const OBSERVER: &str = "unwind-registry";

unsafe extern "C" {
    /// libgcc: `begin` is a section ended by a zero word. libunwind: `begin` is one FDE.
    fn __register_frame(begin: *const c_void);
    fn __deregister_frame(begin: *const c_void);
}

// A word that holds the address of a function that only LLVM's libunwind has, or zero: an undefined weak symbol
// resolves to zero. Unlike a search by `dlsym`, this also works in a statically linked executable, and costs nothing at
// run time.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.palimpsest_text_libunwind_marker,\"aw\",%progbits",
    ".p2align 3",
    ".weak __unw_add_dynamic_fde",
    ".hidden palimpsest_text_libunwind_marker",
    ".weak palimpsest_text_libunwind_marker",
    "palimpsest_text_libunwind_marker:",
    ".8byte __unw_add_dynamic_fde",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "palimpsest_text_libunwind_marker"]
    static LIBUNWIND_MARKER: usize;
}

/// What the process's unwinder takes as one registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    /// A whole section with a terminator (libgcc).
    Section,
    /// A single FDE (LLVM libunwind).
    Fde,
}

impl Unit {
    fn of_this_process() -> Self {
        // SAFETY: a word of this object file, written by the dynamic loader before any code of it runs and never after.
        let marker = unsafe { LIBUNWIND_MARKER };
        if marker == 0 { Unit::Section } else { Unit::Fde }
    }
}

/// Registers call frame information with the unwinder, so that backtraces and panics cross programs.
///
/// Programs without [`Loaded::eh_frame`] are not registered: an unwinder stops at them, and a panic that reaches one
/// aborts the process. For code that begins with the frame-pointer prologue,
/// [`frame_pointer_eh_frame`](super::frame_pointer_eh_frame) makes the information. For a panic to cross a program, the
/// host functions that the program calls and the type by which the host calls it must be `extern "C-unwind"`.
///
/// libgcc searches registered sections before those of the executable; each program adds one. Since GCC 13 they are in
/// a tree; before, in a list, of which each unwinding searches all once.
#[derive(Debug)]
pub struct UnwindRegistry {
    /// The tables, by the starts of their programs, each with the generation of the process that has registered it.
    /// Locked by threads that load or retire one.
    registered: Mutex<HashMap<usize, (u32, Registration)>>,
    process: ForkDetector,
}

impl UnwindRegistry {
    /// Creates a registry without programs. Dropping it withdraws the remaining ones.
    ///
    /// # Safety
    ///
    /// 1. Whatever is given to [`Staged::set_eh_frame`](crate::Staged::set_eh_frame) in packs with this observer
    ///    describes how the program staged there is unwound, and nothing else: the unwinder believes it.
    #[must_use]
    pub unsafe fn new() -> Self {
        UnwindRegistry { registered: Mutex::default(), process: ForkDetector::new() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, (u32, Registration)>> {
        // A registration is made before it is inserted and owns itself: a panic cannot leave the map wrong.
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for UnwindRegistry {
    fn loaded(&self, loaded: &Loaded<'_>) -> Result<(), ObserveError> {
        let Some(eh_frame) = loaded.eh_frame else {
            return Ok(());
        };
        let refuse = |error| ObserveError::new(OBSERVER, error);
        let section = Section::new(eh_frame).map_err(refuse)?;
        match self.lock().entry(loaded.address.get()) {
            Slot::Occupied(_) => Err(refuse(SectionError::AlreadyRegistered { address: loaded.address })),
            Slot::Vacant(slot) => {
                slot.insert((self.process.generation(), Registration::new(section, Unit::of_this_process())));
                Ok(())
            }
        }
    }

    fn unloaded(&self, address: CodeAddress, _len: usize) -> Result<(), ObserveError> {
        let registration = self.lock().remove(&address.get());
        // Not under the lock: withdrawing waits for the unwinder's own lock.
        drop(registration);
        Ok(())
    }

    fn omitted(&self, addresses: Range<usize>) -> Result<(), ObserveError> {
        let process = self.process.generation();
        let gone = |address: &usize, (registrar, _): &mut (u32, Registration)| {
            addresses.contains(address) && *registrar != process
        };
        let registrations: Vec<_> = self.lock().extract_if(gone).collect();
        // As above.
        drop(registrations);
        Ok(())
    }
}

/// Call frame information that cannot be registered.
#[derive(Debug, thiserror::Error)]
enum SectionError {
    #[error("the eh_frame section of {len} bytes breaks off in the record at byte {offset}; pass whole CIEs and FDEs")]
    Truncated { offset: usize, len: usize },
    #[error("the eh_frame section has a terminator at byte {offset} of {len}; pass it without")]
    Terminated { offset: usize, len: usize },
    #[error("the FDE at byte {offset} points {distance} bytes back to a CIE, before the section")]
    NoCie { offset: usize, distance: u32 },
    #[error("the eh_frame section of {len} bytes has no FDE; leave it out")]
    NoFde { len: usize },
    #[error("a program at {address} is registered already; attach only one UnwindRegistry to a pack")]
    AlreadyRegistered { address: CodeAddress },
}

/// A copy of an `.eh_frame` section, checked, aligned for pointers and ended by a zero word.
#[derive(Debug)]
struct Section {
    words: Box<[u64]>,
    /// Offsets of the FDEs in bytes.
    fdes: Vec<usize>,
}

impl Section {
    /// Copies `data`, which must consist of whole records: the unwinder trusts their lengths.
    fn new(data: &[u8]) -> Result<Self, SectionError> {
        let fdes = fde_offsets(data)?;
        // One word more than the data needs: the terminator.
        let mut words = vec![0_u64; data.len() / size_of::<u64>() + 1];
        if data.len() % size_of::<u64>() > size_of::<u32>() {
            words.push(0);
        }
        for (word, bytes) in words.iter_mut().zip(data.chunks(size_of::<u64>())) {
            let mut padded = [0; size_of::<u64>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(padded);
        }
        Ok(Section { words: words.into_boxed_slice(), fdes })
    }

    fn at(&self, offset: usize) -> *const c_void {
        self.words.as_ptr().cast::<u8>().wrapping_add(offset).cast()
    }
}

/// Returns the offsets of the FDEs in `data`, in bytes.
fn fde_offsets(data: &[u8]) -> Result<Vec<usize>, SectionError> {
    const WORD: usize = size_of::<u32>();

    let len = data.len();
    let mut fdes = Vec::new();
    let mut offset = 0;
    while offset < len {
        let truncated = SectionError::Truncated { offset, len };
        let word = |at: usize| {
            let bytes = data.get(at..at + WORD)?;
            bytes.try_into().ok().map(u32::from_ne_bytes)
        };
        let Some(record_len) = word(offset) else {
            return Err(truncated);
        };
        if record_len == 0 {
            return Err(SectionError::Terminated { offset, len });
        }
        // A length of ffffffff announces the 64-bit form; no section here is that long.
        let end = offset + WORD + record_len as usize;
        let Some(distance) = word(offset + WORD).filter(|_| end <= len) else {
            return Err(truncated);
        };
        // Zero marks a CIE; in an FDE it is the distance back to its CIE.
        if distance != 0 {
            if distance as usize > offset + WORD {
                return Err(SectionError::NoCie { offset, distance });
            }
            fdes.push(offset);
        }
        offset = end;
    }
    if fdes.is_empty() {
        return Err(SectionError::NoFde { len });
    }
    Ok(fdes)
}

/// Call frame information that the unwinder knows; dropping it withdraws it.
#[derive(Debug)]
struct Registration {
    /// # Invariants
    /// Registered by `unit`. Neither moved nor changed until it is withdrawn: the unwinder keeps pointers into it.
    section: Section,
    unit: Unit,
}

impl Registration {
    fn new(section: Section, unit: Unit) -> Self {
        match unit {
            // SAFETY: a checked section with a terminator, as libgcc takes it; it lives until `drop` withdraws it
            // (invariant of `section`).
            Unit::Section => unsafe { __register_frame(section.at(0)) },
            Unit::Fde => {
                for &fde in &section.fdes {
                    // SAFETY: `fde` starts an FDE whose CIE lies in the same section; it lives until `drop` withdraws
                    // it (invariant of `section`).
                    unsafe { __register_frame(section.at(fde)) };
                }
            }
        }
        Registration { section, unit }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        match self.unit {
            // SAFETY: registered by `new` with the same pointer, and withdrawn only here.
            Unit::Section => unsafe { __deregister_frame(self.section.at(0)) },
            Unit::Fde => {
                for &fde in &self.section.fdes {
                    // SAFETY: as above.
                    unsafe { __deregister_frame(self.section.at(fde)) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::frame_pointer_eh_frame;

    #[test]
    fn sections_are_copied_with_a_terminator() {
        let data = frame_pointer_eh_frame(CodeAddress::new(0x1000), 16);
        for cut in [0, 4] {
            // Padding within the last record may be dropped: it is DW_CFA_nop.
            let mut data = data.clone();
            data.truncate(data.len() - cut);
            let last = *fde_offsets(&frame_pointer_eh_frame(CodeAddress::new(0x1000), 16))
                .expect("whole")
                .last()
                .expect("one");
            let record_len = (data.len() - last - 4) as u32;
            data[last..last + 4].copy_from_slice(&record_len.to_ne_bytes());
            let section = Section::new(&data).expect("whole");
            let bytes: Vec<u8> = section.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(bytes[..data.len()], data);
            assert!(bytes.len() >= data.len() + 4);
            assert!(bytes[data.len()..].iter().all(|&byte| byte == 0));
            assert_eq!(section.fdes, [last]);
        }
    }

    #[test]
    fn broken_sections_are_refused() {
        let data = frame_pointer_eh_frame(CodeAddress::new(0x1000), 16);
        let cut = &data[..data.len() - 1];
        assert!(matches!(fde_offsets(cut), Err(SectionError::Truncated { .. })));
        let terminated = [&data[..], &[0; 4]].concat();
        assert!(matches!(fde_offsets(&terminated), Err(SectionError::Terminated { .. })));
        let fde = fde_offsets(&data).expect("whole")[0];
        assert!(matches!(fde_offsets(&data[..fde]), Err(SectionError::NoFde { .. })));
        assert!(matches!(fde_offsets(&data[fde..]), Err(SectionError::NoCie { offset: 0, .. })));
        assert!(matches!(fde_offsets(&[]), Err(SectionError::NoFde { len: 0 })));
    }

    #[test]
    fn a_registration_can_be_repeated_after_withdrawal() {
        // SAFETY: 1. the sections below describe memory that nobody runs.
        let registry = unsafe { UnwindRegistry::new() };
        let address = CodeAddress::new(0x7f00_0000_1000);
        let eh_frame = frame_pointer_eh_frame(address, 64);
        let loaded = Loaded {
            name: "repeated",
            address,
            code: &[0; 64],
            eh_frame: Some(&eh_frame),
            lines: None,
            functions: &[],
        };
        for _ in 0..3 {
            registry.loaded(&loaded).expect("loaded");
            registry.loaded(&loaded).expect_err("twice");
            registry.unloaded(address, 64).expect("unloaded");
        }
        registry.unloaded(address, 64).expect("unknown is fine");
    }

    unsafe extern "C" {
        /// Returns the frame description for an address, or null; `bases` has three words to be written.
        fn _Unwind_Find_FDE(pc: *const c_void, bases: *mut [usize; 3]) -> *const c_void;
    }

    fn is_known(address: CodeAddress) -> bool {
        // SAFETY: takes any address; the place for the bases is large enough.
        let fde = unsafe { _Unwind_Find_FDE(address.offset(8).as_ptr().cast(), &mut [0; 3]) };
        !fde.is_null()
    }

    /// Asks the unwinder itself: a dangling pointer would be in its own copy of the registrations.
    #[test]
    fn the_unwinder_forgets_what_is_unloaded() {
        // SAFETY: 1. the sections below describe memory that nobody runs.
        let registry = unsafe { UnwindRegistry::new() };
        let addresses = [0x7e00_0000_1000, 0x7e00_0000_2000].map(CodeAddress::new);
        assert_eq!(addresses.map(is_known), [false, false]);
        for address in addresses {
            let eh_frame = frame_pointer_eh_frame(address, 64);
            registry
                .loaded(&Loaded {
                    name: "known",
                    address,
                    code: &[0; 64],
                    eh_frame: Some(&eh_frame),
                    lines: None,
                    functions: &[],
                })
                .expect("loaded");
        }
        assert_eq!(addresses.map(is_known), [true, true]);
        registry.unloaded(addresses[0], 64).expect("unloaded");
        assert_eq!(addresses.map(is_known), [false, true]);
        drop(registry);
        assert_eq!(addresses.map(is_known), [false, false]);
    }
}
