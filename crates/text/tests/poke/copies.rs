//! Programs with copies for several nodes: one batch changes all copies, with the syncs for one.

use palimpsest_sys::numa::NodeId;
use palimpsest_text::poke::{AddError, Batch, Mode, ModeChoice, arch};
use palimpsest_text::{Packs, ReplicatedPacks, ReplicatedProgram};

use crate::Generated;
use crate::Version::{self, New, Old};
use crate::isa::{FITS_A_WORD, generate};
use crate::torture::{ANY_WAY, Toggled, torture};

/// Opens packs for `nodes` nodes, which this machine need not have.
fn packs(nodes: u32) -> ReplicatedPacks {
    let homes: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    ReplicatedPacks::open(&homes, |node| node, |_| Packs::builder()).unwrap()
}

fn add<'p>(
    code: &Generated,
    batch: &mut Batch<'p>,
    program: &'p ReplicatedProgram,
    (index, version): (usize, Version),
) {
    let (offset, from, to) = code.change(index, version);
    // SAFETY: 1. generated as sites; 2. the tests work with both versions.
    unsafe { batch.add_to_all(program.replicas(), offset, |_| (from, to)) }.unwrap();
}

#[test]
fn any_number_of_copies_takes_as_many_syncs_as_one() {
    let code = generate(56);
    let by_traps = arch::TRAPS.then_some(ModeChoice::Only(Mode::Trap));
    for choice in [Some(ModeChoice::Automatic), by_traps].into_iter().flatten() {
        let counts: Vec<_> = [1, 2, 5]
            .into_iter()
            .map(|nodes| {
                let packs = packs(nodes);
                let program = packs.load(&code.code, 64).unwrap();
                let mut batch = Batch::new();
                (0..56).for_each(|index| add(&code, &mut batch, &program, (index, New)));
                let applied = batch.apply_in(choice).unwrap();
                for copy in program.replicas() {
                    assert_eq!(code.run_program(copy), vec![New; 56]);
                }
                assert_eq!(applied.sites, 56 * nodes as usize);
                (applied.mode, applied.syncs, applied.writes / u64::from(nodes))
            })
            .collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    }
}

#[test]
fn single_stores_change_all_copies_in_one_sync() {
    // A site that fits an aligned word does so in each copy, as all are aligned.
    let (code, site) = (generate(2), FITS_A_WORD);
    let packs = packs(3);
    let program = packs.load(&code.code, 64).unwrap();
    let mut batch = Batch::new();
    add(&code, &mut batch, &program, (site, New));
    let applied = batch.apply().unwrap();
    assert_eq!((applied.sites, applied.syncs), (3, 1));
    assert!(program.replicas().all(|copy| code.run_program(copy)[site] == New));
}

#[test]
fn each_copy_is_asked_for_by_its_address() {
    let (packs, code) = (packs(3), generate(3));
    let program = packs.load(&code.code, 64).unwrap();
    let (offset, old, new) = code.change(2, New);
    let (mut batch, mut asked) = (Batch::new(), Vec::new());
    let change = |address| {
        asked.push(address);
        (old.to_vec(), new.to_vec())
    };
    // SAFETY: 1. generated as sites; 2. never applied.
    unsafe { batch.add_to_all(program.replicas(), offset, change) }.unwrap();
    let expected: Vec<_> = program.replicas().map(|copy| copy.address().offset(offset)).collect();
    assert_eq!(asked, expected);
}

#[test]
fn an_error_of_one_copy_adds_none() {
    let (packs, code) = (Packs::new().unwrap(), generate(3));
    let long = packs.load(&code.code, 64).unwrap();
    let short = packs.load(&code.code[..4], 64).unwrap();
    let (offset, old, new) = code.change(2, New);
    let mut batch = Batch::new();
    code.add(&mut batch, &long, 0, New);
    for (copies, offset) in [([&long, &short], offset), ([&long, &long], usize::MAX)] {
        // SAFETY: what is added is never applied.
        let error = unsafe { batch.add_to_all(copies, offset, |_| (old, new)) }.unwrap_err();
        assert!(matches!(error, AddError::Outside(_)), "{error}");
        assert_eq!(batch.len(), 1);
    }
    assert_eq!(batch.apply().unwrap().sites, 1);
    assert_eq!(code.run_program(&long), [New, Old, Old]);
}

/// Each thread runs all copies in turn; batches change all of them at once.
#[test]
fn all_copies_are_old_or_new_while_threads_run_them() {
    let (packs, code) = (packs(3), generate(200));
    let program = packs.load(&code.code, 64).unwrap();
    let toggled = Toggled::of(200);
    for choice in [ModeChoice::Automatic, ANY_WAY] {
        torture(
            || program.replicas().for_each(|copy| drop(code.run_program(copy))),
            |numbers| {
                toggled.toggle_in(choice, numbers, |batch, index, version| {
                    add(&code, batch, &program, (index, version));
                });
            },
        );
        for copy in program.replicas() {
            assert_eq!(code.run_program(copy), toggled.now());
        }
    }
}
