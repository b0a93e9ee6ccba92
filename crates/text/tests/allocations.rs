//! Tests allocations of code with its data: against a model, with many threads, across forks, and mistakes.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use common::{Numbers, call, exit_code, fork_and_wait, identity, one_at_a_time, reclaim_after_children};
use palimpsest_sys::arch;
use palimpsest_text::{
    AllocateError, Allocated, Allocation, Backing, CHUNK, CodeAddress, Loaded, NotPinned, ObserveError, Observer,
    Ownership, Packs, Part, Parts, ReclaimPolicy, ReleaseError, ShrinkError, Size, StageError, Working, WriteView,
};
use proptest::prelude::*;

/// How far a displacement of 32 bits reaches.
const REACH: usize = i32::MAX as usize;

fn manual() -> Packs {
    Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap()
}

fn size(len: usize, align: usize) -> Size {
    Size { len, align }
}

/// Returns the bytes at addresses of something in place.
fn bytes_at(range: &Range<usize>) -> &'static [u8] {
    if range.is_empty() {
        return &[];
    }
    // SAFETY: tests ask only for memory that is in place or retired, while nobody writes to it.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(range.start), range.len()) }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { lens: [usize; 3], aligns: [u32; 3], working: Working },
    Write { which: usize, part: usize, byte: u8 },
    Shrink { which: usize, part: usize, len: usize },
    Drop { which: usize },
    Finalize { which: Vec<usize> },
    Release { which: usize, part: usize, offset: usize },
    Query { which: usize, part: usize, offset: usize },
    Reclaim,
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(0_usize), 6 => 1..300_usize, 2 => 300..20_000_usize, 1 => 1_900_000..2_300_000_usize]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let part = || 0..3_usize;
    let which = || 0..64_usize;
    let aligns = [0..13_u32, 0..13_u32, 0..13_u32];
    let working = prop_oneof![Just(Working::Private), Just(Working::InPlace)];
    let step = prop_oneof![
        4 => ([lens(), lens(), lens()], aligns, working)
            .prop_map(|(lens, aligns, working)| Step::Allocate { lens, aligns, working }),
        4 => (which(), part(), any::<u8>()).prop_map(|(which, part, byte)| Step::Write { which, part, byte }),
        3 => (which(), part(), 0..400_usize).prop_map(|(which, part, len)| Step::Shrink { which, part, len }),
        1 => which().prop_map(|which| Step::Drop { which }),
        2 => prop::collection::vec(which(), 0..4).prop_map(|which| Step::Finalize { which }),
        3 => (which(), part(), 0..3_usize).prop_map(|(which, part, offset)| Step::Release { which, part, offset }),
        3 => (which(), part(), 0..20_000_usize).prop_map(|(which, part, offset)| Step::Query { which, part, offset }),
        1 => Just(Step::Reclaim),
    ];
    prop::collection::vec(step, 1..60)
}

/// What an allocation should be.
#[derive(Clone)]
struct Expected {
    bytes: Parts<Vec<u8>>,
    ranges: Parts<Range<usize>>,
}

#[derive(Default)]
struct Model {
    drafts: Vec<(Allocation, Expected)>,
    kept: Vec<Expected>,
    released: Vec<Expected>,
}

fn fill(part: Part, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    if part == Part::Code {
        arch::fill_traps(&mut bytes);
    }
    bytes
}

impl Model {
    /// Checks that no two parts share a byte, in whatever state they are.
    fn check_apart(&self) {
        let drafts = self.drafts.iter().map(|(_, expected)| expected);
        let all = drafts.chain(&self.kept).chain(&self.released);
        let mut by_start = BTreeMap::new();
        for expected in all {
            for part in Part::ALL {
                let range = expected.ranges.get(part);
                if !range.is_empty() {
                    assert!(by_start.insert(range.start, range.end).is_none(), "two parts at {range:#x?}");
                }
            }
        }
        let ranges: Vec<_> = by_start.into_iter().collect();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "parts overlap: {ranges:#x?}");
    }

    /// Checks that parts in place, or retired ones that may still run, have the bytes that were written.
    fn check_bytes(&self) {
        for expected in self.kept.iter().chain(&self.released) {
            for part in Part::ALL {
                assert!(bytes_at(expected.ranges.get(part)) == *expected.bytes.get(part), "{part:?}");
            }
        }
    }
}

fn get_mut<T>(parts: &mut Parts<T>, part: Part) -> &mut T {
    match part {
        Part::Code => &mut parts.code,
        Part::ReadOnly => &mut parts.read_only,
        Part::ReadWrite => &mut parts.read_write,
    }
}

fn play(packs: &Packs, steps: Vec<Step>) {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Allocate { lens, aligns, working } => {
                let sizes = Parts {
                    code: size(lens[0], 1 << aligns[0]),
                    read_only: size(lens[1], 1 << aligns[1]),
                    read_write: size(lens[2], 1 << aligns[2]),
                };
                match packs.allocate(sizes, working) {
                    Err(error) => {
                        assert!(matches!(error, AllocateError::Nothing) && lens == [0; 3], "{error}");
                    }
                    Ok(mut allocation) => {
                        let mut expected = Expected { bytes: Parts::default(), ranges: Parts::default() };
                        for part in Part::ALL {
                            let &Size { len, align } = sizes.get(part);
                            let range = allocation.range(part);
                            assert_eq!((range.len(), range.start % align), (len, 0));
                            let bytes = fill(part, len);
                            assert!(allocation.working(part).unwrap() == bytes, "{part:?} as it is at first");
                            *get_mut(&mut expected.bytes, part) = bytes;
                            *get_mut(&mut expected.ranges, part) = range;
                        }
                        let (least, most) = Part::ALL
                            .iter()
                            .map(|&part| expected.ranges.get(part))
                            .filter(|range| !range.is_empty())
                            .fold((usize::MAX, 0), |(least, most), range| {
                                (least.min(range.start), most.max(range.end))
                            });
                        assert!(most - least <= REACH, "parts out of each other's reach");
                        model.drafts.push((allocation, expected));
                    }
                }
                model.check_apart();
            }
            Step::Write { which, part, byte } if !model.drafts.is_empty() => {
                let which = which % model.drafts.len();
                let (allocation, expected) = &mut model.drafts[which];
                allocation.working(Part::ALL[part]).unwrap().fill(byte);
                get_mut(&mut expected.bytes, Part::ALL[part]).fill(byte);
            }
            Step::Shrink { which, part, len } if !model.drafts.is_empty() => {
                let which = which % model.drafts.len();
                let (allocation, expected) = &mut model.drafts[which];
                let part = Part::ALL[part];
                let was = expected.bytes.get(part).len();
                let shrunk = allocation.shrink(part, len);
                match shrunk {
                    Ok(()) => {
                        assert!(0 < len && len <= was);
                        get_mut(&mut expected.bytes, part).truncate(len);
                        get_mut(&mut expected.ranges, part).end = expected.ranges.get(part).start + len;
                        assert_eq!(allocation.range(part), *expected.ranges.get(part));
                    }
                    Err(ShrinkError::NoPart { .. }) => assert_eq!(was, 0),
                    Err(error) => {
                        assert_eq!(error, ShrinkError::Length { part, len: was, wanted: len });
                        assert!(len == 0 || len > was);
                    }
                }
            }
            Step::Drop { which } if !model.drafts.is_empty() => {
                let which = which % model.drafts.len();
                drop(model.drafts.swap_remove(which));
            }
            Step::Finalize { which } => {
                let mut batch = Vec::new();
                for which in which {
                    if !model.drafts.is_empty() {
                        let which = which % model.drafts.len();
                        batch.push(model.drafts.swap_remove(which));
                    }
                }
                let (allocations, expected): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                for (allocated, expected) in packs.finalize_allocations(allocations).unwrap().into_iter().zip(expected)
                {
                    assert_eq!(allocated.keep(), expected.ranges);
                    model.kept.push(expected);
                }
                model.check_bytes();
            }
            Step::Release { which, part, offset } if !model.kept.is_empty() => {
                let which = which % model.kept.len();
                let range = model.kept[which].ranges.get(Part::ALL[part]).clone();
                if range.is_empty() {
                    continue;
                }
                let address = range.start + offset.min(range.len() - 1);
                match packs.release(address) {
                    Ok(()) => {
                        assert_eq!(address, range.start);
                        assert_eq!(packs.release(address), Err(ReleaseError::Released { address }));
                        let expected = model.kept.swap_remove(which);
                        model.released.push(expected);
                    }
                    Err(error) => {
                        assert!(address > range.start, "{error}");
                        assert!(matches!(error, ReleaseError::Inside { .. }), "{error}");
                    }
                }
                model.check_bytes();
            }
            Step::Query { which, part, offset } => {
                let (all, ownership) = if which % 2 == 0 {
                    (&model.kept, Ownership::Kept)
                } else {
                    (&model.released, Ownership::Released)
                };
                let Some(expected) = (!all.is_empty()).then(|| &all[which % all.len()]) else { continue };
                let part = Part::ALL[part];
                let range = expected.ranges.get(part);
                if !range.is_empty() {
                    let found = packs.lookup(range.start + offset % range.len()).unwrap();
                    assert_eq!((found.part(), found.ownership()), (part, ownership));
                    assert_eq!(found.parts(), Some(&expected.ranges));
                }
            }
            Step::Reclaim => {
                reclaim_after_children(packs);
                for expected in std::mem::take(&mut model.released) {
                    for part in Part::ALL {
                        let start = expected.ranges.get(part).start;
                        assert!(packs.lookup(start).is_none(), "{part:?} is still found");
                    }
                }
                model.check_bytes();
            }
            Step::Write { .. } | Step::Shrink { .. } | Step::Drop { .. } | Step::Release { .. } => {}
        }
    }
    model.drafts.clear();
    for expected in model.kept.drain(..) {
        let part = Part::ALL.into_iter().find(|&part| !expected.ranges.get(part).is_empty()).unwrap();
        packs.release(expected.ranges.get(part).start).unwrap();
    }
    reclaim_after_children(packs);
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes, stats.retired_bytes), (0, 0, 0), "{stats:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn allocations_are_what_a_plain_model_says(steps in steps()) {
        // One set of packs for all cases, so that they also meet packs that others have used.
        static PACKS: Mutex<Option<Packs>> = Mutex::new(None);
        let _one = one_at_a_time();
        let kept = || PACKS.lock().unwrap_or_else(PoisonError::into_inner);
        // A case that fails leaves its programs in its packs: the smaller ones that proptest then tries get new packs.
        let packs = kept().take().unwrap_or_else(|| {
            Packs::builder().write_view(WriteView::Standing).reclaim(ReclaimPolicy::Manual).open().unwrap()
        });
        play(&packs, steps);
        *kept() = Some(packs);
    }
}

/// Returns an allocation with all parts, whose code returns `id`.
fn returning(packs: &Packs, id: u64, working: Working) -> Allocation {
    let code = identity(id, 64);
    let sizes = Parts { code: size(100, 16), read_only: size(8, 8), read_write: size(8, 8) };
    let mut allocation = packs.allocate(sizes, working).unwrap();
    allocation.working(Part::Code).unwrap()[..code.len()].copy_from_slice(&code);
    allocation.working(Part::ReadOnly).unwrap().copy_from_slice(&id.to_ne_bytes());
    allocation.shrink(Part::Code, code.len()).unwrap();
    allocation
}

/// Calls the code at an address, in the second way that `Program` allows.
fn call_at(address: usize) -> u64 {
    // SAFETY: the bytes are `identity`'s, and the caller is pinned, or nobody releases them.
    let function =
        unsafe { std::mem::transmute::<*const u8, extern "C" fn() -> u64>(std::ptr::with_exposed_provenance(address)) };
    function()
}

#[test]
fn what_one_gives_back_by_shrinking_is_free_for_others() {
    let _one = one_at_a_time();
    let packs = manual();
    let mut allocation =
        packs.allocate(Parts { code: size(1 << 20, 16), ..Parts::default() }, Working::Private).unwrap();
    let used = packs.stats().used_bytes;
    allocation.shrink(Part::Code, 10 * CHUNK).unwrap();
    let left = packs.stats().used_bytes;
    assert!((10 * CHUNK..=11 * CHUNK).contains(&left), "{used} bytes became {left}");
    let others: Vec<_> = (0..20).map(|_| packs.stage(64 << 10, 64).unwrap()).collect();
    assert_eq!(packs.stats().packs, 1, "{others:?}");
    // A part that is longer than a pack keeps its memory.
    let mut long = packs.allocate(Parts { code: size(3 << 20, 16), ..Parts::default() }, Working::Private).unwrap();
    long.shrink(Part::Code, 100).unwrap();
    assert_eq!(long.range(Part::Code).len(), 100);
    drop(long.finalize().unwrap());
    reclaim_after_children(&packs);
    drop((allocation, others));
    assert_eq!(packs.stats().used_bytes, 0);
}

#[test]
fn bytes_behind_a_shrunk_part_are_traps_again() {
    let _one = one_at_a_time();
    let packs = Packs::builder().write_view(WriteView::Standing).reclaim(ReclaimPolicy::Manual).open().unwrap();
    let traps = fill(Part::Code, 4096);
    // Of any length: an instruction behind it that a branch could meet is a whole trap.
    for len in 1..=2 * CHUNK {
        let sizes = Parts { code: size(4096, CHUNK), ..Parts::default() };
        let mut allocation = packs.allocate(sizes, Working::InPlace).unwrap();
        let range = allocation.range(Part::Code);
        allocation.working(Part::Code).unwrap().fill(1);
        allocation.shrink(Part::Code, len).unwrap();
        assert!(bytes_at(&(range.start..range.start + len)).iter().all(|&byte| byte == 1));
        assert!(*bytes_at(&(range.start + len..range.end)) == traps[len..], "after {len} bytes");
        drop(allocation);
        assert!(*bytes_at(&range) == traps, "what was written in place and dropped is executable");
    }
}

#[test]
fn nothing_of_others_is_read_from_fresh_data_in_place() {
    let _one = one_at_a_time();
    let packs = Packs::builder().write_view(WriteView::Standing).reclaim(ReclaimPolicy::Manual).open().unwrap();
    let sizes = Parts { read_only: size(500, 64), read_write: size(500, 64), ..Parts::default() };
    for _ in 0..3 {
        let mut allocation = packs.allocate(sizes, Working::InPlace).unwrap();
        for part in [Part::ReadOnly, Part::ReadWrite] {
            let bytes = allocation.working(part).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0), "{part:?} has what was there before");
            bytes.fill(7);
        }
        drop(allocation.finalize().unwrap());
        reclaim_after_children(&packs);
    }
}

/// With `WriteView::DuringCopies` each opening is a system call, and interrupts other cores.
#[test]
fn a_hundred_are_finalized_by_one_opening_of_each_pack_and_one_synchronisation() {
    let _one = one_at_a_time();
    let packs = Packs::builder().write_view(WriteView::DuringCopies).reclaim(ReclaimPolicy::Manual).open();
    let packs = match packs {
        Ok(packs) => packs,
        Err(error) => return println!("skipped: {error}"),
    };
    let all: Vec<_> = (0..100).map(|id| returning(&packs, id, Working::Private)).collect();
    let before = packs.stats();
    let all = packs.finalize_allocations(all).unwrap();
    let after = packs.stats();
    // For code and read-only data; writable data needs none.
    assert_eq!(after.view_openings - before.view_openings, 2);
    assert_eq!(after.core_syncs - before.core_syncs, u64::from(arch::COHERENCE != arch::Coherence::Coherent));
    for (id, one) in all.iter().enumerate() {
        assert_eq!(call(one.code().unwrap()), id as u64);
    }
    // The same holds for programs.
    let staged: Vec<_> = (0..100).map(|_| packs.stage(64, 16).unwrap()).collect();
    let programs = packs.finalize_all(staged).unwrap();
    assert_eq!((programs.len(), packs.stats().view_openings - after.view_openings), (100, 1));
    let refused = packs.allocate(Parts { code: size(1, 1), ..Parts::default() }, Working::InPlace);
    assert!(matches!(refused, Err(AllocateError::InPlace { .. })), "{refused:?}");
    assert!(!packs.can_write_in_place());
    // Data that programs write is always writable at its own address.
    let data = packs.allocate(Parts { read_write: size(1, 1), ..Parts::default() }, Working::InPlace);
    assert!(data.is_ok(), "{data:?}");
}

#[test]
fn handles_and_addresses_are_told_apart() {
    let _one = one_at_a_time();
    let packs = manual();
    let held: Allocated = returning(&packs, 5, Working::Private).finalize().unwrap();
    let address = held.range(Part::Code).start;
    assert_eq!(packs.release(address), Err(ReleaseError::Held { address }));
    assert_eq!(packs.lookup(address).unwrap().ownership(), Ownership::Handle);
    let data = held.range(Part::ReadOnly);
    assert_eq!(bytes_at(&data), 5_u64.to_ne_bytes());
    let ranges = held.keep();
    assert_eq!((&ranges.read_only, packs.lookup(data.start).unwrap().ownership()), (&data, Ownership::Kept));
    let inside = packs.release(data.start + 1).unwrap_err();
    assert!(matches!(inside, ReleaseError::Inside { .. }), "{inside}");
    packs.release(data.start).unwrap();
    assert_eq!(packs.release(address), Err(ReleaseError::Released { address }));
    assert_eq!(packs.reclaim().unwrap().programs, 3);
    assert_eq!(packs.release(address), Err(ReleaseError::NotFound { address }));
    let program = packs.load(&identity(1, 64), 16).unwrap();
    let address = program.address().get();
    assert_eq!(packs.release(address), Err(ReleaseError::Held { address }));
    let full = packs.allocate(Parts { read_write: size(usize::MAX / 2, 1), ..Parts::default() }, Working::Private);
    assert!(
        matches!(full, Err(AllocateError::Part { part: Part::ReadWrite, source: StageError::TooLong { .. }, .. })),
        "{full:?}"
    );
}

#[test]
fn pins_are_counted() {
    let _one = one_at_a_time();
    let packs = manual();
    let pins = packs.pins();
    assert_eq!(pins.unpin(), Err(NotPinned));
    pins.pin();
    pins.pin();
    let address = returning(&packs, 3, Working::Private).finalize().unwrap().keep().code.start;
    packs.release(address).unwrap();
    pins.unpin().unwrap();
    assert_eq!(packs.reclaim().unwrap().waiting_for_threads, 3, "still pinned once");
    assert_eq!((call_at(address), pins.count()), (3, 1));
    pins.unpin().unwrap();
    assert_eq!(packs.reclaim().unwrap().programs, 3);
    // A pin that is not taken back ends with the thread's `Pins`.
    pins.pin();
    drop(pins);
    assert_eq!(packs.stats().pinned_threads, 0);
}

#[test]
fn many_threads_allocate_finalize_call_and_release() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Automatic { retired_bytes: 16 << 10 }).open().unwrap();
    // Addresses that any thread may release: two threads try each, and one succeeds.
    let released = Mutex::new(0);
    let contested = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (packs, released, contested) = (&packs, &released, &contested);
            scope.spawn(move || {
                let mut numbers = Numbers::new(thread as u64 + 1);
                let pins = packs.pins();
                for round in 0..ROUNDS {
                    let ids = (0..1 + numbers.below(5)).map(|number| (thread * ROUNDS + round * 10 + number) as u64);
                    let ids: Vec<_> = ids.collect();
                    let working = if packs.can_write_in_place() && numbers.below(2) == 0 {
                        Working::InPlace
                    } else {
                        Working::Private
                    };
                    let all = ids.iter().map(|&id| returning(packs, id, working)).collect();
                    pins.pin();
                    let kept: Vec<_> =
                        packs.finalize_allocations(all).unwrap().into_iter().map(Allocated::keep).collect();
                    for (id, parts) in ids.iter().zip(&kept) {
                        assert_eq!(call_at(parts.code.start), *id);
                        assert_eq!(packs.lookup(parts.code.start + 8).unwrap().parts(), Some(parts));
                    }
                    // Twice in the list, for whichever threads take them.
                    contested.lock().unwrap().extend(kept.iter().chain(&kept).map(|parts| parts.read_only.start));
                    for _ in 0..2 * ids.len() {
                        let which = contested.lock().unwrap().pop();
                        let Some(address) = which else { break };
                        // The second time it is gone; by then the place may belong to another allocation, which is not
                        // released yet.
                        if packs.release(address).is_ok() {
                            *released.lock().unwrap() += 1;
                        }
                    }
                    pins.unpin().unwrap();
                }
            });
        }
    });
    let loads = packs.stats().loads as usize;
    for address in contested.into_inner().unwrap() {
        if packs.release(address).is_ok() {
            *released.lock().unwrap() += 1;
        }
    }
    reclaim_after_children(&packs);
    let stats = packs.stats();
    assert!(*released.lock().unwrap() * 3 <= loads);
    assert_eq!(stats.programs, 0, "{stats:?}");
}

#[test]
fn a_child_has_its_own() {
    let _one = one_at_a_time();
    for backing in Backing::ALL {
        let Ok(packs) = Packs::builder().backing(backing).reclaim(ReclaimPolicy::Manual).open() else {
            println!("skipped: {backing} is not to be had here");
            continue;
        };
        let kept = returning(&packs, 1, Working::Private).finalize().unwrap().keep().code.start;
        let mut private = returning(&packs, 2, Working::Private);
        let mut in_place = packs.can_write_in_place().then(|| returning(&packs, 3, Working::InPlace));
        let status = fork_and_wait(|| {
            assert_eq!(call_at(kept), 1);
            private.working(Part::Code).unwrap()[0] = 0;
            assert!(private.finalize().is_err());
            if let Some(mut in_place) = in_place.take() {
                let address = in_place.range(Part::Code).start;
                assert_eq!(in_place.working(Part::Code).unwrap_err().address.get(), address);
                assert!(matches!(in_place.shrink(Part::Code, 1), Err(ShrinkError::Forked(_))));
                assert!(in_place.finalize().is_err());
            }
            assert_eq!(packs.release(kept), Ok(()), "given up in the child alone");
            assert_eq!(packs.release(kept), Err(ReleaseError::Released { address: kept }));
            let own = returning(&packs, 4, Working::Private).finalize().unwrap().keep().code.start;
            assert_eq!((call_at(own), call_at(kept)), (4, 1));
            packs.release(own).unwrap();
            assert_eq!(packs.reclaim().unwrap().programs, 3);
            0
        });
        assert_eq!(exit_code(status), Some(0), "{backing}: {status:#x}");
        // `private` and `in_place` were moved into the closure, and dropped only in the child's copy: here they are
        // unchanged, and so is what was kept.
        assert_eq!(call_at(kept), 1, "{backing}");
        packs.release(kept).unwrap();
        reclaim_after_children(&packs);
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<(String, usize, Vec<u8>)>>);

impl Observer for &'static Told {
    fn loaded(&self, program: &Loaded<'_>) -> Result<(), ObserveError> {
        let told = (program.name.to_owned(), program.address.get(), program.code.to_vec());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(told);
        Ok(())
    }

    fn unloaded(&self, _: CodeAddress, _: usize) -> Result<(), ObserveError> {
        Ok(())
    }
}

#[test]
fn observers_are_told_of_the_code_however_it_was_written() {
    let _one = one_at_a_time();
    let told: &'static Told = Box::leak(Box::default());
    let packs = Packs::builder().observer(told).write_view(WriteView::Standing).open().unwrap();
    for working in [Working::Private, Working::InPlace] {
        let mut allocation = returning(&packs, 9, working);
        allocation.set_name("nine");
        let done = allocation.finalize().unwrap();
        let (name, address, code) = told.0.lock().unwrap().pop().unwrap();
        assert_eq!((&*name, address, code), ("nine", done.range(Part::Code).start, identity(9, 64)));
        assert_eq!(packs.lookup(done.range(Part::ReadWrite).start).unwrap().name(), "nine");
    }
}
