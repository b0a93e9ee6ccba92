//! The sections of an object: its keys and its sites. See "The sections" in the module above.

use std::mem;
use std::ptr::{self, NonNull};

use super::arch::{self, Code};
use super::key::Key;
use super::note::Note;
use super::state::State;

/// Flag of a site: the branch falls through while the key is on.
const FLAG_FALLS_WHEN_ON: u32 = 1;
/// Flag of a site: it is the entry of a static call.
pub const FLAG_CALL: u32 = 2;

/// An entry in `palimpsest_sites`: distances, each from its own field. An entry of zeros is empty.
#[repr(C)]
struct Entry {
    site: i32,
    target: i32,
    key: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Entry>() == 16 && size_of::<Key>() == 64, "as in the assembly of `note`");

/// The assembly that describes the site `2:` with the operands `target`, `key` and `flags`.
///
/// `o` ties the entry to the section of the site's function, so that the linker keeps or drops them together; that
/// section has no known name, but a symbol in it is enough. The assembler distinguishes sections of one name by a
/// number. It is counted here over the whole input, since nobody knows in advance how often a function is inlined or
/// instantiated.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_site_entry {
    () => {
        ::core::concat!(
            ".ifndef .Lpalimpsest_sites\n",
            ".set .Lpalimpsest_sites, 0\n",
            ".endif\n",
            ".set .Lpalimpsest_sites, .Lpalimpsest_sites + 1\n",
            ".set .Lpalimpsest_here, 2b\n",
            ".pushsection palimpsest_sites,\"ao\",@progbits,.Lpalimpsest_here,unique,.Lpalimpsest_sites\n",
            ".balign 4\n",
            ".long 2b - .\n",
            ".long {target} - .\n",
            ".long {key} - .\n",
            ".long {flags}\n",
            ".popsection",
        )
    };
}

/// An instruction that is rewritten when its key is switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    /// The address of the key or static call that it belongs to.
    pub(super) key: usize,
    pub(super) address: usize,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Branch { falls_when: State, target: usize },
    Call,
}

impl Site {
    /// Returns the site's instruction while its key is in `state`; `None` for a static call, or for a target out of
    /// reach, which no linker produces.
    pub(super) fn code(&self, state: State) -> Option<Code> {
        match self.kind {
            Kind::Branch { falls_when, target } if falls_when == state => arch::falls(self.address, target),
            Kind::Branch { target, .. } => arch::jump(self.address, target),
            Kind::Call => None,
        }
    }

    /// Returns the present bytes of the site.
    ///
    /// # Safety
    ///
    /// 1. The site's object is loaded.
    pub(super) unsafe fn present(&self) -> Code {
        let mut code = Code::default();
        for (offset, byte) in code.iter_mut().enumerate() {
            let place = ptr::with_exposed_provenance::<u8>(self.address + offset);
            // SAFETY: 1. it is a byte of a loaded object's text. Volatile: other threads may be rewriting it through
            // the kernel; a caller who needs one state holds the key's lock.
            *byte = unsafe { place.read_volatile() };
        }
        code
    }
}

/// The keys and sites of one loaded object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object(NonNull<Note>);

impl Object {
    /// Returns the object with the note at `note`.
    ///
    /// # Safety
    ///
    /// 1. `note` is a note of ours, of [`NOTE_VERSION`](super::note::NOTE_VERSION), in an object that stays loaded as
    ///    long as the result is used.
    pub(super) unsafe fn new(note: NonNull<Note>) -> Self {
        Self(note)
    }

    /// Returns the address that a field points to.
    fn follow(field: *const i32) -> usize {
        // SAFETY: callers pass a field of a note or entry, in an object that is loaded (see `Object::new`).
        let distance = unsafe { field.read() };
        field.expose_provenance().wrapping_add_signed(distance as isize)
    }

    /// Returns the address that the field at offset `offset` of the note points to.
    fn field(self, offset: usize) -> usize {
        Self::follow(self.0.as_ptr().wrapping_byte_add(offset).cast())
    }

    /// Returns every key, in the order of the section.
    pub(super) fn keys(self) -> impl Iterator<Item = NonNull<Key>> {
        let start = self.field(mem::offset_of!(Note, keys_start));
        let end = self.field(mem::offset_of!(Note, keys_end));
        (start..end).step_by(size_of::<Key>()).filter_map(|address| {
            let key = NonNull::new(ptr::with_exposed_provenance_mut::<Key>(address))?;
            // The first entry is zeros: a key without a name. SAFETY: the section holds keys, all of whose fields may
            // hold any value.
            let is_filler = unsafe { key.as_ref() }.is_filler();
            (!is_filler).then_some(key)
        })
    }

    /// Returns every site, in the order of the section.
    pub(super) fn sites(self) -> impl Iterator<Item = Site> {
        let start = self.field(mem::offset_of!(Note, sites_start));
        let end = self.field(mem::offset_of!(Note, sites_end));
        (start..end).step_by(size_of::<Entry>()).filter_map(|address| {
            // SAFETY: the section holds entries of this size, which nobody writes to.
            let flags = unsafe { ptr::with_exposed_provenance::<u32>(address + mem::offset_of!(Entry, flags)).read() };
            let field = |offset: usize| Self::follow(ptr::with_exposed_provenance::<i32>(address + offset));
            let site = field(mem::offset_of!(Entry, site));
            let call = Site { key: field(mem::offset_of!(Entry, key)), address: site, kind: Kind::Call };
            let branch = || {
                let falls_when = State::from_on(flags & FLAG_FALLS_WHEN_ON != 0);
                // SAFETY: 1. by `Object::new`.
                let told = arch::target(site, unsafe { call.present() });
                let target = target_of(told, field(mem::offset_of!(Entry, target)));
                Site { kind: Kind::Branch { falls_when, target }, ..call }
            };
            // A filler points to itself.
            (site != address).then(|| if flags & FLAG_CALL != 0 { call } else { branch() })
        })
    }
}

/// Most bytes between two blocks of one function.
const FUNCTION: usize = 1 << 20;

/// Returns where a site leads whose instruction tells `told` and whose entry lists `listed`. The operand occurs in
/// both, and instrumentation (coverage, profiles) may give each a block of its own in the function, which lead to the
/// same code. A target farther away is someone else's, who has put a jump there: the bytes are then not those
/// expected, and a switch is refused.
fn target_of(told: Option<usize>, listed: usize) -> usize {
    told.filter(|told| told.abs_diff(listed) <= FUNCTION).unwrap_or(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_that_someone_else_has_put_at_a_site_is_not_its_target() {
        assert_eq!(target_of(Some(0x40_1010), 0x40_1000), 0x40_1010);
        assert_eq!(target_of(Some(0x7fff_0000_1000), 0x40_1000), 0x40_1000);
        assert_eq!(target_of(None, 0x40_1000), 0x40_1000);
    }
}
