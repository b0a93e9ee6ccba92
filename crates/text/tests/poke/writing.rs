//! Copying and filling code that nobody runs; and who is told of changes.

use std::sync::{Arc, Mutex};

use palimpsest_sys::arch::{INSTRUCTION_ALIGN, TRAP};
use palimpsest_text::observe::{Loaded, ObserveError, Observer};
use palimpsest_text::poke::{self, Batch, PlaceError};
use palimpsest_text::{Backing, CodeAddress, Packs, Patched};

use crate::Version::New;
use crate::common::{call, identity};
use crate::isa::generate;

#[test]
fn programs_are_copied_over_and_filled() {
    for packs in [Packs::new().unwrap(), Packs::builder().backing(Backing::ProcMem).open().unwrap()] {
        let len = 3 * 4096 + 64;
        let program = packs.load(&identity(1, len), 64).unwrap();
        assert_eq!(call(&program), 1);
        // SAFETY: 1. nobody else knows the program; 2. it is of the same kind.
        unsafe { poke::copy(&program, 0, &identity(2, len)) }.unwrap();
        assert_eq!(call(&program), 2);
        // SAFETY: as above, and it is not called any more.
        unsafe { poke::fill(&program, 4, 2 * 4096, TRAP) }.unwrap();
        // SAFETY: the program's bytes, which nobody changes meanwhile.
        let code = unsafe { std::slice::from_raw_parts(program.entry(), len) };
        let expected = identity(2, len);
        assert_eq!((&code[..4], &code[4 + 2 * 4096..]), (&expected[..4], &expected[4 + 2 * 4096..]));
        assert!(code[4..4 + 2 * 4096].chunks(TRAP.len()).all(|chunk| chunk == TRAP));
    }
}

#[test]
fn what_is_no_whole_part_of_a_program_is_refused() {
    let packs = Packs::new().unwrap();
    let program = packs.load(&identity(1, 64), 64).unwrap();
    // SAFETY: refused, or changes nothing.
    let copy = |offset, len| unsafe { poke::copy(&program, offset, &vec![0; len]) };
    assert!(matches!(copy(60, 8), Err(PlaceError::Outside(_))));
    assert!(matches!(copy(usize::MAX, 8), Err(PlaceError::Outside(_))));
    copy(0, 0).unwrap();
    if INSTRUCTION_ALIGN > 1 {
        assert!(matches!(copy(2, 4), Err(PlaceError::Misaligned { .. })));
        assert!(matches!(copy(0, 6), Err(PlaceError::Misaligned { .. })));
    }
    // SAFETY: as above.
    let fill = |len, instruction: &[u8]| unsafe { poke::fill(&program, 0, len, instruction) };
    assert!(matches!(fill(8, &[]), Err(PlaceError::Pattern { len: 8, instruction: 0 })));
    assert!(matches!(fill(8, &[0; 16]), Err(PlaceError::Pattern { len: 8, instruction: 16 })));
    fill(0, TRAP).unwrap();
    assert_eq!(call(&program), 1);
}

/// A program's name, the number of patches, and the code.
type Note = (String, usize, Vec<u8>);

#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<Note>>>);

impl Observer for Noted {
    fn loaded(&self, _loaded: &Loaded<'_>) -> Result<(), ObserveError> {
        Ok(())
    }

    fn unloaded(&self, _address: CodeAddress, _len: usize) -> Result<(), ObserveError> {
        Ok(())
    }

    fn patched(&self, patched: &Patched<'_>) -> Result<(), ObserveError> {
        self.0.lock().unwrap().push((patched.name.to_owned(), patched.patches.len(), patched.code.to_vec()));
        Ok(())
    }
}

#[test]
fn observers_and_the_log_learn_of_every_site() {
    let noted = Noted::default();
    let packs = Packs::builder().observer(noted.clone()).open().unwrap();
    let code = generate(12);
    let programs = ["first", "second"].map(|name| packs.load_named(name, &code.code, 64).unwrap());
    let records = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&records);
    poke::set_log(move |patched| log.lock().unwrap().extend_from_slice(patched));
    let mut batch = Batch::new();
    programs.iter().for_each(|program| (0..12).for_each(|index| code.add(&mut batch, program, index, New)));
    batch.apply().unwrap();
    let mut expected = code.code.clone();
    for (offset, _, new) in &code.sites {
        expected[*offset..offset + new.len()].copy_from_slice(new);
    }
    let mut seen = noted.0.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, ["first", "second"].map(|name| (name.to_owned(), 12, expected.clone())));
    // The log also has other tests' batches.
    let records = records.lock().unwrap();
    for program in &programs {
        for (offset, old, new) in &code.sites {
            let address = program.address().get() + offset;
            let record = records.iter().find(|record| record.address == address).unwrap();
            assert_eq!((record.old.as_slice(), record.new.as_slice()), (&old[..], &new[..]));
        }
    }
}
