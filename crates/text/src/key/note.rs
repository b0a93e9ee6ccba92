//! The note of an object, through which its keys and sites are found. See "The sections" in the module above.

/// The note's owner.
pub(super) const NOTE_OWNER: &str = "Palimpsest";
/// The note's type: the version of everything in `palimpsest_keys` and `palimpsest_sites`. Copies of this library with
/// another version leave the object alone.
pub(super) const NOTE_VERSION: u32 = 2;

/// The description in an object's note: distances, each from its own field.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Note {
    pub(super) sites_start: i32,
    pub(super) sites_end: i32,
    pub(super) keys_start: i32,
    pub(super) keys_end: i32,
}

// The first entry of each section is empty: it makes the linker define the section's bounds even if there is no other.
#[cfg(not(miri))]
std::arch::global_asm!(
    ".pushsection .note.palimpsest,\"a\",@note",
    ".balign 4",
    ".long 2f - 1f, 4f - 3f, {version}",
    "1:",
    ".asciz \"Palimpsest\"",
    "2:",
    ".balign 4",
    ".hidden __start_palimpsest_sites",
    ".hidden __stop_palimpsest_sites",
    ".hidden __start_palimpsest_keys",
    ".hidden __stop_palimpsest_keys",
    ".hidden palimpsest_key_note",
    ".globl palimpsest_key_note",
    "palimpsest_key_note:",
    "3:",
    ".long __start_palimpsest_sites - .",
    ".long __stop_palimpsest_sites - .",
    ".long __start_palimpsest_keys - .",
    ".long __stop_palimpsest_keys - .",
    "4:",
    ".popsection",
    ".pushsection palimpsest_sites,\"aR\",@progbits",
    ".balign 4",
    ".zero 16",
    ".popsection",
    ".pushsection palimpsest_keys,\"awR\",@progbits",
    ".balign 64",
    ".zero 64",
    ".popsection",
    version = const NOTE_VERSION,
);

#[cfg(not(miri))]
unsafe extern "C" {
    /// The note of the object that contains this copy of the library.
    static palimpsest_key_note: Note;
}

/// A note of nothing, where there are no sections.
#[cfg(miri)]
#[expect(non_upper_case_globals, reason = "as in the assembly")]
static palimpsest_key_note: Note = Note { sites_start: 0, sites_end: -4, keys_start: 0, keys_end: -4 };

/// The note of the object that contains this copy of the library.
pub(super) const OWN_NOTE: *const Note = &raw const palimpsest_key_note;
