//! The promises of packs, one per test.

mod common;

use common::{assert_never_writable_and_executable, call, identity, one_at_a_time};
use palimpsest_sys::{HUGE_PAGE, arch};
use palimpsest_text::{Backing, DataAccess, Packs, ReclaimPolicy, StageError};

/// Returns packs of the backings that work here; prints the others with the reason.
fn backings() -> Vec<Packs> {
    let mut all = Vec::new();
    for backing in Backing::ALL {
        match Packs::builder().backing(backing).reclaim(ReclaimPolicy::Manual).open() {
            Ok(packs) => all.push(packs),
            Err(error) => {
                eprintln!("skipped: backing {backing}: {}", std::error::Error::source(&error).unwrap_or(&error));
            }
        }
    }
    assert!(!all.is_empty());
    all
}

/// Returns the bytes at an address in a program's own region.
fn bytes_at(address: usize, len: usize) -> &'static [u8] {
    // SAFETY: tests read only memory of live packs, while nobody writes to it.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), len) }
}

fn trap_fill(len: usize) -> Vec<u8> {
    let mut traps = vec![0; len];
    arch::fill_traps(&mut traps);
    traps
}

#[test]
fn programs_run_on_every_backing() {
    let _one = one_at_a_time();
    for packs in backings() {
        let programs: Vec<_> =
            (0..500_u64).map(|id| packs.load(&identity(id * 3, 20 + id as usize * 4), 16).unwrap()).collect();
        for (id, program) in programs.iter().enumerate() {
            assert_eq!(call(program), id as u64 * 3, "{}", packs.backing());
            assert_eq!(program.address().get() % 16, 0);
            assert!(packs.region().contains(&program.address().get()));
        }
        assert_never_writable_and_executable();
    }
}

#[test]
fn the_staged_address_is_the_final_one() {
    let _one = one_at_a_time();
    for packs in backings() {
        let code = identity(77, 100);
        let mut staged = packs.stage(code.len(), 16).unwrap();
        let address = staged.address();
        assert_eq!(staged.image(), trap_fill(code.len()));
        staged.image().copy_from_slice(&code);
        assert_eq!(bytes_at(address.get(), code.len()), trap_fill(code.len()), "visible before finalize");
        staged.set_name("seventy-seven");
        let program = staged.finalize().unwrap();
        assert_eq!(program.address(), address);
        assert_eq!(program.name(), "seventy-seven");
        assert_eq!(call(&program), 77);
    }
}

#[test]
fn many_are_finalized_at_the_price_of_one_sync() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let staged = (0..1000_u64)
        .map(|id| {
            let code = identity(id, 64);
            let mut staged = packs.stage(code.len(), 4).unwrap();
            staged.image().copy_from_slice(&code);
            staged
        })
        .collect();
    let before = packs.stats();
    let programs = packs.finalize_all(staged).unwrap();
    let after = packs.stats();
    let syncs = match arch::COHERENCE {
        arch::Coherence::Coherent => 0,
        arch::Coherence::NeedsFlushAndSync => 1,
    };
    assert_eq!(after.core_syncs - before.core_syncs, syncs);
    assert_eq!(after.cache_flushes - before.cache_flushes, 1000);
    assert!(programs.iter().enumerate().all(|(id, program)| call(program) == id as u64));
}

#[test]
fn a_staged_program_that_is_dropped_leaves_nothing() {
    let _one = one_at_a_time();
    let packs = Packs::new().unwrap();
    let before = packs.stats();
    drop(packs.stage(5000, 64).unwrap());
    drop(packs.stage(5 * HUGE_PAGE, 64).unwrap());
    let after = packs.stats();
    assert_eq!((after.used_bytes, after.reserved_bytes), (before.used_bytes, before.reserved_bytes));
}

#[test]
fn freed_memory_holds_traps_and_is_used_again() {
    let _one = one_at_a_time();
    for packs in backings() {
        let kept = packs.load(&identity(1, 64), 16).unwrap();
        let code = identity(2, 640);
        let program = packs.load(&code, 16).unwrap();
        let address = program.address().get();
        drop(program);
        assert_eq!(bytes_at(address, code.len()), code, "overwritten before reclaim");
        let syncs = packs.stats().core_syncs;
        let done = packs.reclaim().unwrap();
        assert_eq!((done.programs, done.bytes, done.waiting()), (1, 640, 0), "{}", packs.backing());
        assert_eq!(packs.stats().core_syncs - syncs, 2, "one reclaim takes two syncs");
        assert_eq!(bytes_at(address, code.len()), trap_fill(code.len()));
        assert!(packs.lookup(address).is_none());
        let again = packs.load(&code, 16).unwrap();
        assert_eq!(again.address().get(), address, "first fit");
        assert_eq!((call(&kept), call(&again)), (1, 2));
    }
}

#[test]
fn a_pinned_thread_keeps_what_it_may_run() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let participant = packs.participant();
    let code = identity(9, 64);
    let program = packs.load(&code, 16).unwrap();
    let address = program.address().get();
    let outer = participant.pin();
    let inner = participant.pin();
    drop(program);
    let done = packs.reclaim().unwrap();
    assert_eq!((done.programs, done.waiting_for_threads), (0, 1));
    drop(inner);
    assert_eq!(packs.reclaim().unwrap().programs, 0);
    assert_eq!(bytes_at(address, code.len()), code);
    assert!(packs.lookup(address).is_some(), "retired programs are found as long as they may run");
    drop(outer);
    assert_eq!(packs.reclaim().unwrap().programs, 1);
}

#[test]
fn reclaim_within_waits_for_threads_that_leave() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let program = packs.load(&identity(9, 64), 16).unwrap();
    let (pinned, wait) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let participant = packs.participant();
            let pin = participant.pin();
            pinned.send(()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(pin);
        });
        wait.recv().unwrap();
        drop(program);
        let done = packs.reclaim_within(std::time::Duration::from_secs(600)).unwrap();
        assert_eq!((done.programs, done.waiting()), (1, 0));
    });
}

#[test]
fn a_lookup_keeps_what_it_has_found() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let program = packs.load_named("found", &identity(5, 64), 16).unwrap();
    let inside = program.address().get() + 7;
    let found = packs.lookup(inside).unwrap();
    assert_eq!((found.name(), found.offset(), found.len()), ("found", 7, 64));
    drop(program);
    assert_eq!(packs.reclaim().unwrap().waiting_for_lookups, 1);
    assert_eq!(found.name(), "found");
    drop(found);
    assert_eq!(packs.reclaim().unwrap().programs, 1);
}

#[test]
fn lookup_knows_the_bounds() {
    let _one = one_at_a_time();
    let packs = Packs::new().unwrap();
    let first = packs.load(&identity(1, 100), 16).unwrap();
    let second = packs.load(&identity(2, 100), 16).unwrap();
    for program in [&first, &second] {
        let start = program.address().get();
        assert_eq!(packs.lookup(start).unwrap().address(), program.address());
        assert_eq!(packs.lookup(start + program.len() - 1).unwrap().offset() as usize, program.len() - 1);
        assert!(packs.lookup(start + program.len()).is_none());
    }
    assert!(packs.lookup(first.address().get() - 1).is_none());
    for nowhere in [0, packs.region().start - 1, packs.region().end, packs.region().end - 1, usize::MAX] {
        assert!(packs.lookup(nowhere).is_none());
    }
}

#[test]
fn a_program_longer_than_a_pack_has_a_run_of_its_own() {
    let _one = one_at_a_time();
    for packs in backings() {
        let before = packs.stats();
        let len = 2 * HUGE_PAGE + 12_344;
        let long = packs.load(&identity(3, len), 64).unwrap();
        let short = packs.load(&identity(4, 64), 64).unwrap();
        assert_eq!((call(&long), call(&short)), (3, 4), "{}", packs.backing());
        assert_eq!(packs.stats().packs, before.packs + 3);
        let end = long.address().get() + len - 1;
        assert_eq!(packs.lookup(end).unwrap().address(), long.address());
        assert!(packs.lookup(end + 1).is_none());
        drop(long);
        let done = packs.reclaim().unwrap();
        assert_eq!(done.programs, 1);
        assert_eq!(packs.stats().packs, before.packs);
        assert_eq!(call(&short), 4);
    }
}

#[test]
fn empty_packs_are_given_back() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let executable = palimpsest_sys::pages::maps::Permissions::EXECUTE;
    let mappings = || {
        let maps = palimpsest_sys::pages::maps::Maps::read().unwrap();
        maps.overlapping(packs.region()).filter(|entry| entry.permissions.contains(executable)).count()
    };
    let before = (packs.stats(), mappings());
    let programs: Vec<_> = (0..200).map(|id| packs.load(&identity(id, 40_000), 16).unwrap()).collect();
    assert!(packs.stats().packs >= 4);
    drop(programs);
    assert_eq!(packs.reclaim().unwrap().packs, packs.stats().packs + 3 - 1);
    let after = packs.stats();
    assert_eq!((after.packs, after.used_bytes, after.programs), (1, before.0.used_bytes, 0));
    assert_eq!(mappings(), before.1);
}

#[test]
fn data_lies_beside_code_and_is_never_executable() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    for access in [DataAccess::ReadOnly, DataAccess::ReadWrite] {
        let mut staged = packs.stage_data(access, 100, 32).unwrap();
        staged.image().copy_from_slice(&[7; 100]);
        let address = staged.address();
        let data = staged.finalize().unwrap();
        assert_eq!((data.address(), data.len(), address % 32), (address, 100, 0));
        assert!(packs.region().contains(&address));
        assert_eq!(bytes_at(address, 100), [7; 100]);
        let maps = palimpsest_sys::pages::maps::Maps::read().unwrap();
        let letters = maps.at(address).unwrap().permissions.to_string();
        match access {
            DataAccess::ReadOnly => assert!(letters.starts_with("r--"), "{letters}"),
            DataAccess::ReadWrite => {
                assert!(letters.starts_with("rw-"), "{letters}");
                // SAFETY: in bounds of writable data that nobody else uses.
                unsafe { data.as_ptr().wrapping_add(99).write(8) };
            }
        }
    }
    assert_eq!(packs.reclaim().unwrap().programs, 2);
}

#[test]
fn the_region_can_lie_near_a_function() {
    let _one = one_at_a_time();
    let target = the_region_can_lie_near_a_function as fn() as usize;
    let packs = Packs::builder().near(target).region_len(32 * HUGE_PAGE).open().unwrap();
    let region = packs.region();
    let reach = arch::DIRECT_BRANCH_REACH;
    assert!(region.start.abs_diff(target) < reach && region.end.abs_diff(target) <= reach, "{region:x?} {target:#x}");
    assert_eq!(call(&packs.load(&identity(11, 30), 16).unwrap()), 11);
}

#[test]
fn start_offsets_vary() {
    let _one = one_at_a_time();
    let packs = Packs::new().unwrap();
    let programs: Vec<_> = (0..64).map(|id| packs.load(&identity(id, 36), 4).unwrap()).collect();
    let offsets: std::collections::BTreeSet<_> = programs.iter().map(|program| program.address().get() % 64).collect();
    // 28 bytes of slack, 8 places: the chance that 64 draws show fewer than 3 is below 1e-30.
    assert!(offsets.len() >= 3, "{offsets:?}");
    assert!(offsets.iter().all(|offset| offset % 4 == 0));
}

#[test]
fn the_best_backing_is_huge_for_real() {
    let _one = one_at_a_time();
    let packs = Packs::new().unwrap();
    let program = packs.load(&identity(1, 500), 16).unwrap();
    assert_eq!(call(&program), 1);
    let huge = packs.huge_mapped().unwrap();
    assert_eq!(huge.reserved_bytes, packs.stats().reserved_bytes);
    if packs.backing() == Backing::CollapsedMemfd && packs.stats().downgraded_packs == 0 {
        assert_eq!(huge.bytes, huge.reserved_bytes);
    } else {
        eprintln!("skipped: huge mapping: packs are {} here; {:?}", packs.backing(), packs.refused());
    }
}

#[test]
fn bad_input_is_named_and_harmless() {
    let _one = one_at_a_time();
    let packs = Packs::builder().region_len(4 * HUGE_PAGE).open().unwrap();
    let message = |result: Result<_, StageError>| match result {
        Ok(staged) => panic!("{staged:?} was staged"),
        Err(error) => error.to_string(),
    };
    assert!(message(packs.stage(0, 16)).contains("0 bytes"));
    for align in [0, 3, 48, 8192, usize::MAX] {
        assert!(message(packs.stage(64, align)).contains(&format!("{align} bytes")));
    }
    for len in [4 * HUGE_PAGE + 1, usize::MAX] {
        let text = message(packs.stage(len, 16));
        assert!(text.contains(&len.to_string()) && text.contains("region_len"), "{text}");
    }
    // The first pack has one slot.
    let text = message(packs.stage(4 * HUGE_PAGE, 16));
    assert!(text.contains("no room"), "{text}");
    let program = packs.load(&identity(6, 64), 16).unwrap();
    assert_eq!(call(&program), 6);
    assert_eq!(program.entry_at(63).unwrap().addr(), program.address().get() + 63);
    let error = program.entry_at(64).unwrap_err();
    assert_eq!((error.offset, error.len), (64, 64));
    assert!(error.to_string().contains("offset 64"));
}

#[test]
fn a_full_region_says_so_and_recovers() {
    let _one = one_at_a_time();
    let packs = Packs::builder().region_len(2 * HUGE_PAGE).reclaim(ReclaimPolicy::Manual).open().unwrap();
    let mut programs = Vec::new();
    let error = loop {
        match packs.load(&identity(programs.len() as u64, 100_000), 16) {
            Ok(program) => programs.push(program),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("no room for 100000 bytes"), "{error}");
    assert_eq!(programs.len(), 40);
    assert!(programs.iter().enumerate().all(|(id, program)| call(program) == id as u64));
    programs.truncate(10);
    assert!(packs.load(&identity(0, 100_000), 16).is_err(), "nothing is reclaimed by itself under the manual policy");
    packs.reclaim().unwrap();
    assert_eq!(call(&packs.load(&identity(99, 100_000), 16).unwrap()), 99);
}

#[test]
fn room_is_made_by_itself_under_the_automatic_policy() {
    let _one = one_at_a_time();
    let packs = Packs::builder().region_len(2 * HUGE_PAGE).open().unwrap();
    for id in 0..1000 {
        assert_eq!(call(&packs.load(&identity(id, 100_000), 16).unwrap()), id);
    }
    let stats = packs.stats();
    assert_eq!(stats.loads, 1000);
    assert!(stats.frees > 900 && stats.reclaims < 200, "{stats:?}");
}

#[test]
fn a_region_must_have_a_sensible_length() {
    let _one = one_at_a_time();
    for len in [0, usize::MAX, arch::DIRECT_BRANCH_REACH + 1] {
        let error = Packs::builder().region_len(len).open().unwrap_err();
        assert!(error.to_string().contains(&format!("of {len} bytes")), "{error}");
    }
}

#[test]
fn packs_that_only_staged_programs_filled_are_given_back() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let staged: Vec<_> = (0..10).map(|_| packs.stage(HUGE_PAGE, 64).unwrap()).collect();
    assert_eq!(packs.stats().packs, 10);
    drop(staged);
    assert_eq!(packs.reclaim().unwrap().packs, 9);
    assert_eq!(packs.stats().packs, 1);
}

#[test]
fn a_threshold_without_bound_is_one_that_is_never_reached() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Automatic { retired_bytes: usize::MAX }).open().unwrap();
    for id in 0..1000 {
        assert_eq!(call(&packs.load(&identity(id, 3000), 16).unwrap()), id);
    }
    assert!(packs.stats().reclaims <= 1, "{:?}", packs.stats());
}

#[test]
fn every_alignment_is_kept() {
    let _one = one_at_a_time();
    for packs in backings() {
        let mut kept = Vec::new();
        for align in (0..=12).map(|shift| 1 << shift) {
            for len in [1, 64, 100, 5000] {
                let staged = packs.stage(len, align).unwrap();
                assert!(staged.address().get().is_multiple_of(align), "{staged:?} at a multiple of {align}");
                let data = packs.stage_data(DataAccess::ReadOnly, len, align).unwrap();
                assert!(data.address().is_multiple_of(align), "{data:?} at a multiple of {align}");
                kept.push((staged, data));
            }
        }
    }
}

#[test]
fn retired_programs_are_reclaimed_once_there_are_enough() {
    let _one = one_at_a_time();
    let policy = ReclaimPolicy::Automatic { retired_bytes: 640 };
    let packs = Packs::builder().reclaim(policy).open().unwrap();
    let load_and_drop = |count| (0..count).for_each(|id| drop(packs.load(&identity(id, 64), 16).unwrap()));
    load_and_drop(9);
    assert_eq!((packs.stats().reclaims, packs.stats().frees), (0, 0));
    load_and_drop(1);
    assert_eq!((packs.stats().reclaims, packs.stats().frees, packs.stats().retired_bytes), (1, 10, 0));
    // What waits is only looked at again after another 640 bytes.
    let participant = packs.participant();
    let pinned = participant.pin();
    load_and_drop(100);
    let stats = packs.stats();
    assert_eq!((stats.reclaims, stats.frees, stats.retired_bytes), (11, 10, 6400));
    drop(pinned);
    load_and_drop(10);
    assert_eq!((packs.stats().frees, packs.stats().retired_bytes), (120, 0));
}

#[test]
fn a_pack_stays_mapped_while_somebody_looks_up() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let program = packs.load(&identity(1, 64), 16).unwrap();
    let long = packs.stage(3 * HUGE_PAGE, 16).unwrap();
    let address = long.address().get();
    let is_mapped = || {
        let maps = palimpsest_sys::pages::maps::Maps::read().unwrap();
        maps.at(address).unwrap().permissions.to_string().starts_with("r-x")
    };
    let found = packs.lookup(program.address().get()).unwrap();
    drop(long);
    assert!(is_mapped(), "unmapped under the eyes of a reader");
    drop(found);
    packs.reclaim().unwrap();
    assert!(!is_mapped());
}

#[test]
fn the_numbers_are_right() {
    let _one = one_at_a_time();
    for packs in backings() {
        let empty = packs.stats();
        assert_eq!((empty.packs, empty.reserved_bytes, empty.largest_free_run), (1, HUGE_PAGE, HUGE_PAGE));
        let views = match packs.backing() {
            Backing::ProcMem => 1,
            _ => 2,
        };
        assert_eq!(empty.mappings, views);
        let participants = [packs.participant(), packs.participant()];
        let pinned = participants[0].pin();
        let programs = [100, 64, 1].map(|len| packs.load(&identity(7, 100)[..len], 16).unwrap());
        let long = packs.load(&identity(1, 2 * HUGE_PAGE), 16).unwrap();
        let stats = packs.stats();
        assert_eq!((stats.packs, stats.mappings, stats.reserved_bytes), (3, 2 * views, 3 * HUGE_PAGE));
        assert_eq!((stats.programs, stats.loads, stats.pinned_threads), (4, 4, 1));
        assert_eq!(stats.used_bytes, 4 * 64 + 2 * HUGE_PAGE);
        assert_eq!(stats.largest_free_run, HUGE_PAGE - 4 * 64);
        drop((pinned, programs, long));
        assert_eq!(packs.stats().retired_bytes, 4 * 64 + 2 * HUGE_PAGE);
        packs.reclaim().unwrap();
        let stats = packs.stats();
        // The run is unmapped; there is nothing to fill.
        assert_eq!((stats.frees, stats.refills, stats.reclaims), (4, 3, 1));
        assert_eq!((stats.programs, stats.retired_bytes, stats.pinned_threads), (0, 0, 0));
        assert_eq!((stats.packs, stats.mappings, stats.largest_free_run), (1, views, HUGE_PAGE));
    }
}
