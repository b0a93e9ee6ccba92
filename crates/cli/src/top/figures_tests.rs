use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use palimpsest_sys::pages::maps::{self, MapLine};

use super::*;

/// The start of this test as a file, whose offsets are addresses; and its mapping.
const AT: usize = 0x10_0000;

fn own() -> (Vec<u8>, Vec<MapEntry>) {
    let maps = maps::Maps::read().expect("/proc is mounted");
    let name = std::env::current_exe().expect("it has a file");
    let map = maps.iter().find(|map| map.offset == 0 && map.path.as_deref() == Some(&*name)).expect("it is mapped");
    // Not with `Memory`, which reads a limited part of a process: a debug build with all peers has more.
    let mut bytes = vec![0; map.end - map.start];
    let memory = File::open("/proc/self/mem").expect("one's own");
    memory.read_exact_at(&mut bytes, map.start as u64).expect("one's own");
    let line = MapLine { start: AT, end: AT + map.range().len(), ..map.line };
    (bytes, vec![MapEntry { line, ..map.clone() }])
}

fn memory(bytes: &[u8]) -> Memory {
    let mut file = tempfile::tempfile().expect("a file");
    file.set_len(AT as u64).expect("it has holes");
    file.seek(SeekFrom::End(0)).expect("a file");
    file.write_all(bytes).expect("it can be written");
    Memory::new(file)
}

#[test]
fn the_library_is_found_in_this_program_which_has_frozen_nothing() {
    let maps = maps::parse(std::fs::read("/proc/self/maps").expect("/proc is mounted")).expect("a valid text");
    let told = of(&Memory::new(File::open("/proc/self/mem").expect("one's own")), &maps);
    assert!(matches!(told, Told::Nothing), "{told:?}");
}

/// Each byte of what leads to the note can have any other value.
#[test]
fn hostile_objects_are_read_without_harm() {
    let (bytes, maps) = own();
    let memory_of_it = memory(&bytes);
    assert!(matches!(of(&memory_of_it, &maps), Told::Nothing));
    let note = bytes.windows(NOTE_OWNER.len()).position(|window| window == NOTE_OWNER.as_bytes());
    let places = (0..512).chain(note.map_or(0..0, |note| note - 12..note + 24));
    for place in places {
        let put = |value: u8| memory_of_it.file.write_all_at(&[value], (AT + place) as u64).expect("it can be written");
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            put(value);
            let told = of(&memory_of_it, &maps);
            assert!(!matches!(told, Told::Figures { .. }), "{place}: {told:?}");
        }
        put(bytes[place]);
    }
    // Less of it than there should be.
    for length in [0, 16, 63, 64, 100, 4095, 4096] {
        let _nothing_or_not_there = of(&memory(&bytes[..length]), &maps);
    }
}

/// Each object asks for more notes than all together may have.
#[test]
fn what_is_read_of_one_process_is_bounded() {
    let (bytes, maps) = own();
    let count = (HEADERS - 64) / 56;
    let mut object = bytes[..64].to_vec();
    object[32..40].copy_from_slice(&64_u64.to_ne_bytes());
    object[56..58].copy_from_slice(&u16::try_from(count).expect("few").to_ne_bytes());
    for index in 0..count {
        // Type and flags; offset, address, address; sizes; alignment.
        let kind = if index == 0 { PT_LOAD } else { PT_NOTE };
        let words = [u64::from(kind.0), 0, 0, 0, MOST_NOTES, MOST_NOTES, 4];
        object.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }
    object.resize(1 << 17, 0);
    let memory = memory(&object);
    let maps = vec![maps[0].clone(); MOST_OBJECTS];
    assert!(matches!(of(&memory, &maps), Told::NotThere));
    assert!(memory.left.get() < HEADERS, "{}", memory.left.get());
}

/// A note at the start, what it leads to, and words as changed by `change`.
fn figures(note: Note, change: impl Fn(&mut Vec<u64>)) -> Option<Told> {
    let mut words = vec![0; WORDS];
    words[0] = u64::from_le_bytes(*b"PALIFORK");
    words[1] = 1 << 32 | WORDS as u64;
    // Rounds.
    words[4] = 1;
    change(&mut words);
    let pointer = (AT as u64 + 16).to_ne_bytes();
    let bytes: Vec<u8> =
        pointer.into_iter().chain([0; 8]).chain(words.iter().flat_map(|word| word.to_ne_bytes())).collect();
    read(&memory(&bytes), AT as u64, note)
}

#[test]
fn figures_are_taken_as_they_are_and_nothing_else_is() {
    let here = Note { distance: 0, offset: 0 };
    assert!(matches!(figures(here, |_| ()), Some(Told::Figures { state: State::Whole, .. })));
    assert!(matches!(figures(here, |words| words[SEQUENCE] = 7), Some(Told::Figures { state: State::Torn, .. })));
    assert!(matches!(figures(here, |words| words[4] = 0), Some(Told::Nothing)));
    assert!(matches!(
        figures(here, |words| words[1] = 7 << 32 | 99),
        Some(Told::Wrong(FiguresError::Version { version: 7 }))
    ));
    assert!(matches!(figures(here, |words| words[0] = 1), Some(Told::Wrong(FiguresError::Sign))));
    assert!(figures(here, |words| words.fill(0)).is_none(), "not published yet");
    assert!(figures(here, |words| words.truncate(3)).is_none(), "there is no more memory");
    for wild in [i32::MIN, i32::MAX, -1] {
        let _anything = figures(Note { distance: wild, offset: u32::MAX }, |_| ());
    }
    for words in [u64::MAX, 1 << 63] {
        // All figures are extreme: they are added up and shown.
        let told = figures(here, |all| all[5..].fill(words));
        let Some(Told::Figures { figures, .. }) = told else { panic!("{told:?}") };
        assert!(!figures.worth().to_string().is_empty());
    }
}
