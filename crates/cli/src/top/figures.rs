//! Finds the figures in a process's memory.
//!
//! Looks in memory for our note in each object that is mapped from its start: the object's file may be in another mount
//! namespace, or gone. All numbers come from the process and may lead anywhere; whatever cannot be read does not exist.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use object::elf::{FileHeader64, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use object::{Endianness, NativeEndian};
use palimpsest_fork::figures::{Figures, FiguresError, NOTE_OWNER, NOTE_TYPE, Note, SEQUENCE, WORD, WORDS};
use palimpsest_sys::pages::maps::{MapEntry, Permissions};

/// The memory of another process.
pub(super) struct Memory {
    file: File,
    /// Bytes that may still be read to look for the note.
    left: Cell<usize>,
}

impl Memory {
    pub(super) const fn new(file: File) -> Self {
        Self { file, left: Cell::new(MOST_BYTES) }
    }

    fn read<const LEN: usize>(&self, address: u64) -> io::Result<[u8; LEN]> {
        let mut bytes = [0; LEN];
        self.file.read_exact_at(&mut bytes, address)?;
        Ok(bytes)
    }

    fn read_some(&self, address: u64, most: usize) -> io::Result<Vec<u8>> {
        self.left.set(self.left.get().checked_sub(most).ok_or(io::ErrorKind::QuotaExceeded)?);
        let mut bytes = vec![0; most];
        self.file.read_exact_at(&mut bytes, address)?;
        Ok(bytes)
    }

    fn word(&self, address: u64) -> io::Result<u64> {
        self.read(address).map(u64::from_ne_bytes)
    }
}

/// What the objects of a process tell.
#[derive(Debug)]
pub(super) enum Told {
    /// None of them contains this library.
    NotThere,
    /// One does, and has neither frozen nor gathered anything.
    Nothing,
    /// The figures of the one with most frozen and gathered memory.
    Figures { figures: Box<Figures>, state: State },
    /// They cannot be understood.
    Wrong(FiguresError),
}

/// Whether figures belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Whole,
    /// They changed each time: the process was stopped in the middle of a change.
    Torn,
}

/// Most objects looked at in one process; and most bytes of notes in one object.
const MOST_OBJECTS: usize = 4096;
const MOST_NOTES: u64 = 1 << 16;
/// Most bytes read of one process to find the note: headers of the objects, and room for notes.
const MOST_BYTES: usize = 2 * MOST_OBJECTS * HEADERS;
/// Bytes at the start of an object that contain its headers.
const HEADERS: usize = 4096;
/// How often changing figures are read again.
const TRIES: usize = 64;

/// Looks through all objects.
pub(super) fn of(memory: &Memory, maps: &[MapEntry]) -> Told {
    let objects = maps.iter().filter(|map| map.offset == 0 && map.permissions.contains(Permissions::READ));
    memory.left.set(MOST_BYTES);
    let mut told = Told::NotThere;
    for map in objects.filter(|map| map.inode != 0).take(MOST_OBJECTS) {
        let found = match note(memory, map) {
            None => continue,
            Some(Err(error)) => Told::Wrong(error),
            Some(Ok((place, note))) => read(memory, place, note).unwrap_or(Told::Nothing),
        };
        if rank(&found) > rank(&told) {
            told = found;
        }
    }
    told
}

/// Ranks what copies of this library in one process tell: the highest is shown.
fn rank(told: &Told) -> (u8, u64) {
    match told {
        Told::NotThere => (0, 0),
        Told::Nothing => (1, 0),
        Told::Wrong(_) => (2, 0),
        Told::Figures { figures, .. } => (3, figures.frozen_bytes.saturating_add(figures.gathered_bytes)),
    }
}

/// Returns our note in the object that is mapped here, and the address of its description.
fn note(memory: &Memory, map: &MapEntry) -> Option<Result<(u64, Note), FiguresError>> {
    let start = map.start as u64;
    let headers = memory.read_some(start, HEADERS.min(map.end - map.start)).ok()?;
    let header = FileHeader64::<Endianness>::parse(&*headers).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &*headers).ok()?;
    let first = segments.iter().find(|segment| segment.p_type(endian) == PT_LOAD)?;
    let bias = start.wrapping_sub(first.p_vaddr(endian));
    for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_NOTE) {
        let place = bias.wrapping_add(segment.p_vaddr(endian));
        // None of our objects has more; we would have to allocate the memory.
        let Some(len) = usize::try_from(segment.p_memsz(endian).min(MOST_NOTES)).ok() else { continue };
        let Ok(notes) = memory.read_some(place, len) else { continue };
        if let Some((offset, description)) = description(&notes, segment.p_align(endian)) {
            return Some(Note::read(description).map(|note| (place.wrapping_add(offset), note)));
        }
    }
    None
}

/// Returns the description of our note among `notes`, and where in them it is.
fn description(notes: &[u8], align: u64) -> Option<(u64, &[u8])> {
    let mut all = NoteIterator::<FileHeader64<NativeEndian>>::new(NativeEndian, align, notes).ok()?;
    while let Ok(Some(note)) = all.next() {
        if note.name() == NOTE_OWNER.as_bytes() && note.n_type(NativeEndian).0 == NOTE_TYPE {
            let offset = note.desc().as_ptr().addr() - notes.as_ptr().addr();
            return Some((offset as u64, note.desc()));
        }
    }
    None
}

/// Returns the figures to which a note leads; `None` if there are none yet.
fn read(memory: &Memory, place: u64, note: Note) -> Option<Told> {
    let pointer = place.wrapping_add_signed(note.distance.into());
    let tables = memory.word(pointer).ok().filter(|&tables| tables != 0)?;
    let words = tables.wrapping_add(note.offset.into());
    let sequence = words.wrapping_add((SEQUENCE * WORD) as u64);
    let mut read = None;
    for _ in 0..TRIES {
        // Three calls, in this order; see `palimpsest_fork::figures`.
        let before = memory.word(sequence).ok()?;
        let bytes: [u8; WORDS * WORD] = memory.read(words).ok()?;
        let after = memory.word(sequence).ok()?;
        let state = if before == after && before.is_multiple_of(2) { State::Whole } else { State::Torn };
        read = Some((bytes, state));
        if state == State::Whole {
            break;
        }
    }
    let (bytes, state) = read?;
    // Zeros: nothing was published yet.
    if bytes.iter().all(|&byte| byte == 0) {
        return None;
    }
    Some(match Figures::read(&bytes) {
        // A survey or a snapshot.
        Ok(figures) if figures.rounds == 0 => Told::Nothing,
        Ok(figures) => Told::Figures { figures: Box::new(figures), state },
        Err(error) => Told::Wrong(error),
    })
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
