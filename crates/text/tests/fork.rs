//! What happens to packs when the process forks.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{call, exit_code, fork, fork_and_wait, identity, killed_by, one_at_a_time, wait};
use palimpsest_text::{Backing, DataAccess, FinalizeError, ForkPolicy, Packs, PacksBuilder, ReclaimPolicy};

fn manual() -> PacksBuilder {
    Packs::builder().reclaim(ReclaimPolicy::Manual)
}

/// Returns whether children share the memory of their parent's packs.
fn shared(packs: &Packs) -> bool {
    packs.backing() != Backing::ProcMem
}

/// A pipe whose reading end ends when the parent lets go.
struct Gate(Option<std::io::PipeWriter>, std::io::PipeReader);

impl Gate {
    fn new() -> Self {
        let (read, write) = std::io::pipe().unwrap();
        Self(Some(write), read)
    }

    /// In the child: waits for the parent.
    fn wait(&mut self) {
        self.0 = None;
        let _ = std::io::Read::read(&mut self.1, &mut [0]);
    }
}

#[test]
fn a_child_runs_what_it_inherits_and_loads_its_own() {
    let _one = one_at_a_time();
    for backing in [Backing::CollapsedMemfd, Backing::SmallMemfd, Backing::ProcMem] {
        let Ok(packs) = manual().backing(backing).open() else {
            eprintln!("skipped: backing {backing}: not to be had here");
            continue;
        };
        let inherited = packs.load_named("inherited", &identity(1, 64), 16).unwrap();
        let status = fork_and_wait(|| {
            assert_eq!(call(&inherited), 1);
            let own = packs.load(&identity(2, 64), 16).unwrap();
            assert_eq!((call(&own), call(&inherited)), (2, 1));
            assert!(packs.region().contains(&own.address().get()));
            assert!(!packs.region().contains(&inherited.address().get()));
            let address = inherited.address().get();
            assert_eq!(packs.lookup(address).unwrap().name(), "inherited");
            assert!(packs.lookup(own.address().get()).is_some());
            drop(own);
            assert_eq!(packs.reclaim().unwrap().programs, 1);
            drop(inherited);
            assert_eq!(packs.reclaim().unwrap().programs, 0);
            assert_eq!(packs.stats().loads, 1, "the child counts what it does itself");
            0
        });
        assert_eq!(exit_code(status), Some(0), "{backing}: {status:#x}");
        // `inherited` was moved into the closure, and dropped only in the child's copy.
    }
}

/// Fails on: a child that plans for the addresses of its parent's programs.
#[test]
fn a_child_knows_its_region_before_it_loads() {
    let _one = one_at_a_time();
    let packs = manual().open().unwrap();
    let inherited = packs.load(&identity(1, 64), 16).unwrap();
    let status = fork_and_wait(|| {
        let region = packs.region();
        let own = packs.stage(64, 16).unwrap();
        i32::from(!region.contains(&own.address().get()) || region.contains(&inherited.address().get()))
    });
    assert_eq!(exit_code(status), Some(0), "{status:#x}");
}

#[test]
fn a_grandchild_is_served_as_well() {
    let _one = one_at_a_time();
    let packs = manual().open().unwrap();
    let first = packs.load(&identity(1, 64), 16).unwrap();
    let status = fork_and_wait(|| {
        let second = packs.load(&identity(2, 64), 16).unwrap();
        let status = fork_and_wait(|| {
            let third = packs.load(&identity(3, 64), 16).unwrap();
            i32::from((call(&first), call(&second), call(&third)) != (1, 2, 3))
        });
        exit_code(status).unwrap_or(9)
    });
    assert_eq!(exit_code(status), Some(0));
}

#[test]
fn memory_that_a_child_holds_is_not_reused_before_it_is_gone() {
    let _one = one_at_a_time();
    let packs = manual().open().unwrap();
    if !shared(&packs) {
        eprintln!("skipped: packs are private here");
        return;
    }
    let before_fork = packs.load(&identity(1, 64), 16).unwrap();
    let address = before_fork.address();
    let mut gate = Gate::new();
    let child = fork(|| {
        gate.wait();
        // The parent has dropped its handle and reclaimed: this must still be the same program.
        i32::try_from(call(&before_fork)).unwrap()
    });
    drop(before_fork);
    let after_fork = packs.load(&identity(2, 64), 16).unwrap();
    let done = packs.reclaim().unwrap();
    assert_eq!((done.programs, done.waiting_for_children), (0, 1));
    // A program born after the last look at the children is not held by them.
    drop(after_fork);
    let young = packs.load(&identity(3, 64), 16).unwrap();
    drop(young);
    let done = packs.reclaim().unwrap();
    assert_eq!((done.programs, done.waiting_for_children), (1, 2), "only what is younger than the fork");
    gate.0 = None;
    assert_eq!(exit_code(wait(child)), Some(1));
    let done = packs.reclaim().unwrap();
    assert_eq!((done.programs, done.waiting_for_children), (2, 0));
    assert_eq!(packs.load(&identity(4, 64), 16).unwrap().address().get() / 64, address.get() / 64);
}

#[test]
fn a_child_that_executes_another_program_holds_nothing() {
    let _one = one_at_a_time();
    let packs = manual().open().unwrap();
    let program = packs.load(&identity(1, 64), 16).unwrap();
    // SAFETY: the hook does nothing; its existence makes the standard library use fork and exec.
    let mut child = unsafe {
        use std::os::unix::process::CommandExt;
        std::process::Command::new("sleep").arg("30").pre_exec(|| Ok(())).spawn().unwrap()
    };
    drop(program);
    let done = packs.reclaim().unwrap();
    assert_eq!((done.programs, done.waiting()), (1, 0));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_child_cannot_write_to_its_parents_code() {
    let _one = one_at_a_time();
    let packs = manual().open().unwrap();
    let _program = packs.load(&identity(1, 64), 16).unwrap();
    let status = fork_and_wait(|| {
        let maps = palimpsest_sys::pages::maps::Maps::read().unwrap();
        let writable = palimpsest_sys::pages::maps::Permissions::WRITE;
        let code = |entry: &&palimpsest_sys::pages::maps::MapEntry| {
            entry.path.as_ref().is_some_and(|path| path.to_string_lossy().contains("palimpsest-code"))
        };
        i32::from(maps.iter().filter(code).any(|entry| entry.permissions.contains(writable)))
    });
    assert_eq!(exit_code(status), Some(0));
}

#[test]
fn forking_while_others_load_deadlocks_nobody() {
    let _one = one_at_a_time();
    let packs = Packs::new().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..3_u64 {
            let (packs, stop) = (&packs, &stop);
            scope.spawn(move || {
                let mut live = Vec::new();
                let mut id = worker << 32;
                while !stop.load(Ordering::Relaxed) {
                    id += 1;
                    live.push((id, packs.load(&identity(id, 3000), 16).unwrap()));
                    if live.len() > 400 {
                        live.drain(..300).for_each(|(id, program)| assert_eq!(call(&program), id));
                    }
                }
            });
        }
        for round in 0..60 {
            let kept = packs.load(&identity(round, 200), 16).unwrap();
            let status = fork_and_wait(|| {
                let own: Vec<_> = (0..50).map(|id| packs.load(&identity(id, 500), 16).unwrap()).collect();
                let right = own.iter().enumerate().all(|(id, program)| call(program) == id as u64);
                drop(own);
                packs.reclaim().unwrap();
                i32::from(!right || call(&kept) != round)
            });
            assert_eq!(exit_code(status), Some(0), "round {round}: {status:#x}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_child_that_drops_everything_unmaps_nothing_of_its_own() {
    let _one = one_at_a_time();
    let packs = manual().open().unwrap();
    let program = packs.load(&identity(1, 64), 16).unwrap();
    let status = fork_and_wait(|| {
        // Fills the addresses that the child did not inherit: its parent's writable views and spare witness.
        let own: Vec<_> = (0..64)
            .map(|_| {
                let page = 1 << 21;
                palimpsest_sys::Mapping::new(
                    palimpsest_sys::Source::Anonymous,
                    page,
                    palimpsest_sys::Protection::ReadWrite,
                    page,
                )
                .unwrap()
            })
            .chain((0..256).map(|_| {
                palimpsest_sys::Mapping::new(
                    palimpsest_sys::Source::Anonymous,
                    4096,
                    palimpsest_sys::Protection::ReadWrite,
                    4096,
                )
                .unwrap()
            }))
            .collect();
        drop(program);
        drop(packs);
        for mapping in &own {
            // SAFETY: mapped writable, and nobody else's.
            unsafe { mapping.as_ptr().write(1) };
        }
        0
    });
    assert_eq!(exit_code(status), Some(0), "{status:#x}");
}

#[test]
fn a_child_can_ask_for_everything_while_its_parent_is_busy() {
    let _one = one_at_a_time();
    let packs = Packs::new().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    packs.stats();
                    packs.huge_mapped().unwrap();
                    drop(packs.load(&identity(1, 100), 16).unwrap());
                }
            });
        }
        for _ in 0..30 {
            let status = fork_and_wait(|| {
                packs.huge_mapped().unwrap();
                packs.stats();
                packs.reclaim().unwrap();
                drop(packs.participant().pin());
                0
            });
            assert_eq!(exit_code(status), Some(0));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_pin_protects_a_childs_programs() {
    let _one = one_at_a_time();
    let packs = manual().open().unwrap();
    let participant = packs.participant();
    let status = fork_and_wait(|| {
        // Before the child has a store of its own.
        let pinned = participant.pin();
        let program = packs.load(&identity(7, 64), 16).unwrap();
        // SAFETY: 1. an identity program; 2. pinned since before its address was known.
        let function = unsafe { program.function::<extern "C" fn() -> u64>() };
        drop(program);
        let held = packs.reclaim().unwrap().waiting_for_threads;
        let answer = function();
        drop(pinned);
        i32::from((held, answer, packs.reclaim().unwrap().programs) != (1, 7, 1))
    });
    assert_eq!(exit_code(status), Some(0));
}

/// Opens packs of every backing that works here.
fn on_every_backing(options: impl Fn() -> PacksBuilder) -> impl Iterator<Item = Packs> {
    Backing::ALL.into_iter().filter_map(move |backing| {
        let packs = options().backing(backing).open();
        if packs.is_err() {
            eprintln!("skipped: backing {backing}: not to be had here");
        }
        packs.ok()
    })
}

#[test]
fn children_get_nothing_under_the_omit_policy() {
    let _one = one_at_a_time();
    for packs in on_every_backing(|| manual().fork(ForkPolicy::Omit)) {
        let program = packs.load(&identity(1, 64), 16).unwrap();
        let mut gate = Gate::new();
        let child = fork(|| {
            gate.wait();
            i32::try_from(call(&program)).unwrap()
        });
        drop(program);
        assert_eq!(packs.reclaim().unwrap().programs, 1, "no child can hold it");
        gate.0 = None;
        assert_eq!(killed_by(wait(child)), Some(libc::SIGSEGV), "{}", packs.backing());
    }
}

#[cfg(feature = "observe")]
unsafe extern "C" {
    /// Returns the frame description for an address, or null; `bases` has three words to be written.
    fn _Unwind_Find_FDE(pc: *const std::ffi::c_void, bases: *mut [usize; 3]) -> *const std::ffi::c_void;
}

/// Fails on: debuggers and unwinders that know the parent's programs for ever, at addresses that are others' by now.
#[cfg(feature = "observe")]
#[test]
fn observers_forget_what_a_child_does_not_get() {
    use palimpsest_text::observe::{GdbJit, UnwindRegistry, frame_pointer_eh_frame};

    let _one = one_at_a_time();
    // SAFETY: 1. nobody unwinds through the programs.
    let registry = unsafe { UnwindRegistry::new() };
    let options = manual().fork(ForkPolicy::Omit).region_len(1 << 21);
    let packs = options.observer(registry).observer(GdbJit::new()).open().unwrap();
    let load = || {
        let mut staged = packs.stage(64, 64).unwrap();
        staged.set_eh_frame(frame_pointer_eh_frame(staged.address(), 64));
        staged.finalize().unwrap()
    };
    let is_known = |address: usize| {
        // SAFETY: takes any address; the place for the bases is large enough.
        let found = unsafe { _Unwind_Find_FDE(std::ptr::without_provenance(address + 8), &mut [0; 3]) };
        !found.is_null()
    };
    let programs = [load(), load()];
    let addresses = programs.each_ref().map(|program| program.address().get());
    assert_eq!(addresses.map(is_known), [true, true]);
    let status = fork_and_wait(|| {
        packs.stats();
        if addresses.map(is_known) != [false, false] {
            return 2;
        }
        let own = [load(), load()];
        let are_known = own.each_ref().map(|program| is_known(program.address().get()));
        // Those of this process stay, whoever asks.
        if are_known != [true, true] || packs.stats().observer_errors != 0 {
            return 3;
        }
        // A grandchild lacks all of them.
        let status = fork_and_wait(|| {
            packs.stats();
            let all = own.each_ref().map(|program| program.address().get());
            i32::from(addresses.into_iter().chain(all).any(is_known) || packs.stats().observer_errors != 0)
        });
        exit_code(status).unwrap_or(9)
    });
    assert_eq!(exit_code(status), Some(0), "{status:#x}");
    assert_eq!(addresses.map(is_known), [true, true], "the parent's");
}

#[test]
fn a_child_cannot_finalize_what_its_parent_has_staged() {
    let _one = one_at_a_time();
    for packs in on_every_backing(manual) {
        let mut first = Some(packs.stage(64, 16).unwrap());
        let mut second = Some(packs.stage(64, 16).unwrap());
        let mut data = Some(packs.stage_data(DataAccess::ReadOnly, 64, 16).unwrap());
        let address = first.as_ref().unwrap().address();
        let status = fork_and_wait(|| {
            let error = first.take().unwrap().finalize().unwrap_err();
            assert!(error.to_string().contains(&address.to_string()), "{error}");
            let error = packs.finalize_all(vec![second.take().unwrap()]).unwrap_err();
            assert!(matches!(error, FinalizeError::Forked { .. }), "{error}");
            let error = data.take().unwrap().finalize().unwrap_err();
            assert!(matches!(error, FinalizeError::Forked { .. }), "{error}");
            0
        });
        assert_eq!(exit_code(status), Some(0), "{}: {status:#x}", packs.backing());
        // The parent's copies are unchanged.
        let code = identity(5, 64);
        for mut staged in [first.take().unwrap(), second.take().unwrap()] {
            staged.image().copy_from_slice(&code);
            assert_eq!(call(&staged.finalize().unwrap()), 5);
        }
        data.take().unwrap().finalize().unwrap();
    }
}

#[test]
fn a_child_that_drops_what_it_inherits_frees_nothing_of_its_parents() {
    let _one = one_at_a_time();
    for policy in [ForkPolicy::Inherit, ForkPolicy::Omit] {
        // Every drop makes a reclaim due.
        let options = || Packs::builder().fork(policy).reclaim(ReclaimPolicy::Automatic { retired_bytes: 1 });
        for packs in on_every_backing(options) {
            let mut inherited = Some(packs.load(&identity(1, 64), 16).unwrap());
            let before = packs.stats();
            let status = fork_and_wait(|| {
                drop(inherited.take());
                i32::from(packs.reclaim().unwrap().programs != 0)
            });
            assert_eq!(exit_code(status), Some(0), "{}, {policy:?}: {status:#x}", packs.backing());
            assert_eq!(call(inherited.as_ref().unwrap()), 1, "{}, {policy:?}", packs.backing());
            assert_eq!(packs.stats(), before);
        }
    }
}

#[test]
fn an_inherited_participant_counts_in_the_childs_own_packs() {
    let _one = one_at_a_time();
    let packs = manual().open().unwrap();
    let participant = packs.participant();
    drop(participant.pin());
    let status = fork_and_wait(|| {
        let own = packs.load(&identity(1, 64), 16).unwrap();
        let pinned = participant.pin();
        drop(own);
        let done = packs.reclaim().unwrap();
        assert_eq!((done.programs, done.waiting_for_threads), (0, 1));
        drop(pinned);
        assert_eq!(packs.reclaim().unwrap().programs, 1);
        0
    });
    assert_eq!(exit_code(status), Some(0), "{status:#x}");
}

#[test]
fn a_failed_opening_leaves_no_address_space_behind() {
    let _one = one_at_a_time();
    let mapped =
        || palimpsest_sys::pages::maps::Maps::read().unwrap().iter().map(|entry| entry.range().len()).sum::<usize>();
    let status = fork_and_wait(|| {
        let before = mapped();
        // SAFETY: lowers a limit of this child alone.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 4, rlim_max: 4096 }) };
        for _ in 0..3 {
            if Packs::new().is_ok() {
                return 2;
            }
        }
        // SAFETY: as above; /proc can be read again.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 64, rlim_max: 4096 }) };
        i32::from(mapped() > before + (64 << 20))
    });
    assert_eq!(exit_code(status), Some(0), "{status:#x}");
}
