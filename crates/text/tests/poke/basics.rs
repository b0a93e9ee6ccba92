//! One thread: what batches do, what they refuse, and what they count.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_text::poke::{AddError, Applied, Batch, Mode, PokeError};
use palimpsest_text::{Backing, CodeAddress, Loaded, ObserveError, Observer, Packs, Patched};

use crate::Version::{New, Old};
use crate::blob::Blob;
use crate::isa::{SITES_CROSS_WORDS, generate};

/// Returns the syncs that a batch takes.
fn syncs(applied: &Applied) -> u64 {
    match applied.mode {
        Mode::Trap => 3,
        Mode::Detour => 2,
        Mode::SingleStore | Mode::Held => 1,
    }
}

#[test]
fn any_number_of_sites_of_a_program_takes_as_many_syncs() {
    let code = generate(1000);
    for packs in [Packs::new().unwrap(), Packs::builder().backing(Backing::ProcMem).open().unwrap()] {
        let program = packs.load(&code.code, 64).unwrap();
        for sites in [1, 6, 56, 1000] {
            let mut batch = Batch::new();
            (0..sites).rev().for_each(|index| code.add(&mut batch, &program, index, New));
            let applied = batch.apply().unwrap();
            assert_eq!((applied.sites, applied.syncs), (sites, syncs(&applied)));
            let seen = code.run_program(&program);
            assert!(seen.iter().enumerate().all(|(index, seen)| *seen == if index < sites { New } else { Old }));
            let mut back = Batch::new();
            (0..sites).for_each(|index| code.add(&mut back, &program, index, Old));
            let applied = back.apply().unwrap();
            assert_eq!(applied.syncs, syncs(&applied));
            assert!(sites < 56 || !SITES_CROSS_WORDS || applied.mode == Mode::Held);
            assert_eq!(code.run_program(&program), vec![Old; 1000]);
        }
    }
}

#[test]
fn any_number_of_sites_of_text_takes_as_many_syncs_and_few_writes() {
    let blob = Blob::new(generate(1000));
    for (sites, version) in [(1000, New), (1000, Old), (56, New), (56, Old)] {
        let mut batch = Batch::new();
        (0..sites).for_each(|index| blob.add(&mut batch, index, version));
        let applied = batch.apply().unwrap();
        assert_eq!((applied.sites, applied.syncs), (sites, syncs(&applied)));
        if applied.mode == Mode::Held {
            let pages = blob.range().len().div_ceil(4096) as u64;
            assert!(applied.writes <= pages, "{applied:?} in {pages} pages");
        }
        assert!(blob.run()[..sites].iter().all(|seen| *seen == version));
    }
    crate::common::assert_never_writable_and_executable();
}

/// Counts the changes that it is told of.
#[derive(Clone, Default)]
struct Patches(Arc<AtomicUsize>);

impl Observer for Patches {
    fn loaded(&self, _: &Loaded<'_>) -> Result<(), ObserveError> {
        Ok(())
    }

    fn unloaded(&self, _: CodeAddress, _: usize) -> Result<(), ObserveError> {
        Ok(())
    }

    fn patched(&self, _: &Patched<'_>) -> Result<(), ObserveError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Fails on: sites of text that end the search for programs. Text lies below packs, or above.
#[test]
fn observers_are_told_of_programs_beside_sites_of_text() {
    let patches = Patches::default();
    let packs = Packs::builder().observer(patches.clone()).open().unwrap();
    let (blob, code) = (Blob::new(generate(2)), generate(2));
    let programs = [packs.load(&code.code, 64).unwrap(), packs.load(&code.code, 64).unwrap()];
    for (version, told) in [(New, 2), (Old, 4)] {
        let mut batch = Batch::new();
        (0..2).for_each(|index| blob.add(&mut batch, index, version));
        for program in &programs {
            (0..2).for_each(|index| code.add(&mut batch, program, index, version));
        }
        assert_eq!(batch.apply().unwrap().sites, 6);
        assert_eq!(patches.0.load(Ordering::Relaxed), told);
    }
}

#[test]
fn a_mismatch_changes_nothing() {
    let (packs, code) = (Packs::new().unwrap(), generate(20));
    let program = packs.load(&code.code, 64).unwrap();
    let mut first = Batch::new();
    code.add(&mut first, &program, 7, New);
    first.apply().unwrap();
    let mut batch = Batch::new();
    (0..20).for_each(|index| code.add(&mut batch, &program, index, New));
    let error = batch.apply().unwrap_err();
    let PokeError::Mismatch { address, expected, found } = &error else { panic!("{error}") };
    let (offset, old, new) = &code.sites[7];
    assert_eq!(*address, program.address().get() + offset);
    assert_eq!((expected.as_slice(), found.as_slice()), (&old[..], &new[..]));
    assert!(error.to_string().contains(&format!("{address:#x}")), "{error}");
    assert_eq!(code.run_program(&program).iter().filter(|seen| **seen == New).count(), 1);
}

#[test]
fn overlaps_and_odd_lengths_are_refused() {
    let (packs, code) = (Packs::new().unwrap(), generate(2));
    let program = packs.load(&code.code, 64).unwrap();
    let mut batch = Batch::new();
    code.add(&mut batch, &program, 0, New);
    code.add(&mut batch, &program, 0, New);
    assert!(matches!(batch.apply(), Err(PokeError::Overlap { first, second }) if first == second));
    // SAFETY: never applied.
    let mut add =
        |offset, old: &[u8], new: &[u8]| unsafe { batch.add(&program, offset, old, new) }.map(|_| ()).unwrap_err();
    assert!(matches!(add(0, &[1, 2], &[3]), AddError::Lengths { old: 2, new: 1 }));
    assert!(matches!(add(0, &[], &[]), AddError::Length { len: 0 }));
    assert!(matches!(add(0, &[0; 16], &[0; 16]), AddError::Length { len: 16 }));
    let len = program.len();
    assert!(matches!(add(len - 1, &[0; 2], &[0; 2]), AddError::Outside(_)));
    assert!(matches!(add(usize::MAX, &[0; 2], &[0; 2]), AddError::Outside(_)));
}

#[test]
fn a_site_that_is_to_stay_needs_nothing() {
    let (packs, code) = (Packs::new().unwrap(), generate(1));
    let program = packs.load(&code.code, 64).unwrap();
    let (offset, old, _) = &code.sites[0];
    let mut batch = Batch::new();
    // SAFETY: changes nothing.
    unsafe { batch.add(&program, *offset, old, old) }.unwrap();
    let applied = batch.apply().unwrap();
    assert_eq!((applied.sites, applied.syncs, applied.writes), (0, 0, 0));
    assert_eq!(Batch::new().apply().unwrap().sites, 0);
}
