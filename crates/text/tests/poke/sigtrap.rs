//! SIGTRAP shared with others, and SIGTRAP blocked. Only x86-64 changes code by traps.
//!
//! Each test runs in its own process: signal actions belong to the process, and a thread that blocks SIGTRAP would
//! obstruct other tests' batches.

use std::collections::BTreeSet;
use std::path::PathBuf;
#[cfg(target_env = "gnu")]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;

use palimpsest_text::Packs;
use palimpsest_text::poke::{Batch, Mode, ModeChoice, PokeError, traps_hit};

use crate::StopOnDrop;
use crate::Version::{New, Old};
use crate::blob::Blob;
use crate::common::{exit_code, fork_and_wait, killed_by, program_counter};
use crate::isa::generate;

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Runs into a trap that only the test knows.
fn foreign_trap() {
    // SAFETY: the handler for SIGTRAP continues behind it.
    unsafe { std::arch::asm!("int3") };
}

fn set_action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: all-zero is a valid `sigaction`.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, &mut old) }, 0);
    old
}

/// Toggles a site there and back.
fn poke() {
    let (packs, code) = (Packs::new().unwrap(), generate(6));
    let program = packs.load(&code.code, 64).unwrap();
    for version in [New, Old] {
        let mut batch = Batch::new();
        (0..6).for_each(|index| code.add(&mut batch, &program, index, version));
        assert_eq!(batch.apply_in(ModeChoice::Only(Mode::Trap)).unwrap().mode, Mode::Trap);
    }
}

/// Runs `test` in a child, which must succeed.
fn alone(test: impl FnOnce()) {
    let status = fork_and_wait(|| {
        test();
        0
    });
    assert_eq!(exit_code(status), Some(0), "status {status:#x}");
}

static FIRST: AtomicU32 = AtomicU32::new(0);
static SECOND: AtomicU32 = AtomicU32::new(0);
static BEFORE_SECOND: AtomicUsize = AtomicUsize::new(0);

extern "C" fn first(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    assert_eq!(signal, libc::SIGTRAP);
    // SAFETY: the kernel's context, passed on.
    assert_ne!(*program_counter(unsafe { &mut *context.cast() }), 0);
    FIRST.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn second(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SECOND.fetch_add(1, Ordering::Relaxed);
    // SAFETY: stored from a handler of this type.
    let before = unsafe { std::mem::transmute::<usize, Handler>(BEFORE_SECOND.load(Ordering::Relaxed)) };
    before(signal, info, context);
}

extern "C" fn of_one_argument(_signal: i32) {
    FIRST.fetch_add(100, Ordering::Relaxed);
}

fn counts() -> (u32, u32) {
    (FIRST.load(Ordering::Relaxed), SECOND.load(Ordering::Relaxed))
}

#[test]
fn earlier_and_later_handlers_get_what_is_not_ours() {
    alone(|| {
        set_action(first as Handler as usize, libc::SA_SIGINFO);
        poke();
        assert_eq!(counts(), (0, 0));
        foreign_trap();
        assert_eq!(counts(), (1, 0));
        // A handler that is installed later, and calls the one before it: ours.
        let old = set_action(second as Handler as usize, libc::SA_SIGINFO);
        BEFORE_SECOND.store(old.sa_sigaction, Ordering::Relaxed);
        foreign_trap();
        assert_eq!(counts(), (2, 1));
        // Now ours is both in front of it and behind it.
        poke();
        foreign_trap();
        assert_eq!(counts(), (3, 2));
        // Restored by code that has remembered it: nothing grows, nothing loops.
        for _ in 0..3 {
            set_action(second as Handler as usize, libc::SA_SIGINFO);
            poke();
        }
        foreign_trap();
        assert_eq!(counts(), (4, 3));
        set_action(of_one_argument as extern "C" fn(i32) as usize, 0);
        poke();
        foreign_trap();
        assert_eq!(counts(), (104, 3));
    });
}

#[test]
fn a_handler_that_is_called_once_is_not_called_again() {
    let status = fork_and_wait(|| {
        set_action(of_one_argument as extern "C" fn(i32) as usize, libc::SA_RESETHAND);
        poke();
        foreign_trap();
        assert_eq!(counts(), (100, 0));
        foreign_trap();
        0
    });
    assert_eq!(killed_by(status), Some(libc::SIGTRAP), "status {status:#x}");
}

/// Where [`never_returns`] continues.
#[cfg(target_env = "gnu")]
static CONTINUES: AtomicPtr<libc::ucontext_t> = AtomicPtr::new(std::ptr::null_mut());

/// Leaves as `siglongjmp` does. Other C libraries have no `setcontext`.
#[cfg(target_env = "gnu")]
extern "C" fn never_returns(_signal: i32) {
    FIRST.fetch_add(1, Ordering::Relaxed);
    // SAFETY: stored by the test, whose frame is alive.
    unsafe { libc::setcontext(CONTINUES.load(Ordering::Relaxed)) };
}

#[cfg(target_env = "gnu")]
#[test]
fn a_handler_that_never_returns_gets_the_next_trap_too() {
    alone(|| {
        set_action(never_returns as extern "C" fn(i32) as usize, 0);
        poke();
        // SAFETY: all-zero is a valid place for a context.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        CONTINUES.store(&raw mut context, Ordering::Relaxed);
        // SAFETY: a valid place. Each later return is the handler's; nothing here is changed in between but a static.
        assert_eq!(unsafe { libc::getcontext(CONTINUES.load(Ordering::Relaxed)) }, 0);
        if FIRST.load(Ordering::Relaxed) < 200 {
            foreign_trap();
            unreachable!("the handler goes elsewhere");
        }
    });
}

static BLOCKED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn asks_for_the_mask(_signal: i32) {
    // SAFETY: all-zero is a valid set.
    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a null new mask only reads.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask) };
    // SAFETY: a valid set and valid signals.
    let blocked = |signal| usize::from(unsafe { libc::sigismember(&mask, signal) } == 1);
    let seen = 1 + 2 * blocked(libc::SIGUSR1) + 4 * blocked(libc::SIGUSR2) + 8 * blocked(libc::SIGTRAP);
    BLOCKED.store(seen, Ordering::Relaxed);
}

#[test]
fn a_handler_behind_ours_has_the_mask_that_it_asked_for() {
    alone(|| {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = asks_for_the_mask as extern "C" fn(i32) as usize;
        // SAFETY: a valid set and a valid signal.
        unsafe { libc::sigaddset(&mut action.sa_mask, libc::SIGUSR2) };
        // SAFETY: a valid action.
        assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()) }, 0);
        foreign_trap();
        let without_us = BLOCKED.swap(0, Ordering::Relaxed);
        poke();
        foreign_trap();
        assert_eq!((without_us, BLOCKED.load(Ordering::Relaxed)), (1 + 4 + 8, 1 + 4 + 8));
    });
}

#[test]
fn a_foreign_trap_without_handler_ends_the_process() {
    let status = fork_and_wait(|| {
        set_action(libc::SIG_DFL, 0);
        poke();
        foreign_trap();
        0
    });
    assert_eq!(killed_by(status), Some(libc::SIGTRAP));
}

/// The kernel spares the first process of a pid namespace every signal with the default action, except those that the
/// CPU itself causes.
#[test]
fn a_foreign_trap_ends_also_the_first_process_of_a_pid_namespace() {
    /// The exit code of a process that may make no namespace.
    const NOT_ALLOWED: i32 = 77;
    let status = fork_and_wait(|| {
        set_action(libc::SIG_DFL, 0);
        poke();
        // SAFETY: takes numbers; concerns children that are made later, and the user's rights in this process.
        let unshared = |flags| unsafe { libc::unshare(flags) } == 0;
        if !unshared(libc::CLONE_NEWPID) && !unshared(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) {
            return NOT_ALLOWED;
        }
        let status = fork_and_wait(|| {
            foreign_trap();
            0
        });
        killed_by(status).unwrap_or(0)
    });
    match exit_code(status) {
        Some(NOT_ALLOWED) => eprintln!("skipped: this user may not unshare pid namespaces"),
        code => assert_eq!(code, Some(libc::SIGTRAP), "status {status:#x}"),
    }
}

#[test]
fn a_signal_that_was_sent_stays_ignored() {
    alone(|| {
        set_action(libc::SIG_IGN, 0);
        poke();
        // SAFETY: sends a signal to this thread.
        assert_eq!(unsafe { libc::raise(libc::SIGTRAP) }, 0);
    });
}

/// Runs `test` while another thread, whose id the test gets, blocks SIGTRAP.
fn while_blocked(test: impl FnOnce(u32)) {
    let (ready, wait) = mpsc::channel();
    let (done, finish) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: all-zero is a valid `sigset_t`.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: a valid set.
        unsafe { libc::sigaddset(&mut set, libc::SIGTRAP) };
        // SAFETY: this thread's own mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        // SAFETY: cannot fail.
        ready.send(unsafe { libc::gettid() }.unsigned_abs()).unwrap();
        let _ = finish.recv();
    });
    test(wait.recv().unwrap());
    drop(done);
    thread.join().unwrap();
}

#[test]
fn a_thread_that_blocks_traps_is_named_or_does_without() {
    alone(|| {
        let (packs, code) = (Packs::new().unwrap(), generate(60));
        let program = packs.load(&code.code, 64).unwrap();
        let base = program.address().get();
        let fits = |index: &usize| {
            let (offset, old, _) = &code.sites[*index];
            (base + offset) / 8 == (base + offset + old.len() - 1) / 8
        };
        let (fitting, other): (Vec<usize>, Vec<usize>) = (0..60).partition(fits);
        assert!(!fitting.is_empty() && !other.is_empty());
        let batch = |indexes: &[usize], version| {
            let mut batch = Batch::new();
            indexes.iter().for_each(|&index| code.add(&mut batch, &program, index, version));
            batch
        };
        while_blocked(|blocker| {
            let error = batch(&other, New).apply_in(ModeChoice::Only(Mode::Trap)).unwrap_err();
            assert!(matches!(error, PokeError::Blocked { tid } if tid == blocker), "{error}");
            assert_eq!(code.run_program(&program), vec![Old; 60]);
            for version in [New, Old] {
                let applied = batch(&fitting, version).apply().unwrap();
                assert_eq!((applied.mode, applied.syncs, applied.sites), (Mode::SingleStore, 1, fitting.len()));
                let seen = code.run_program(&program);
                assert!(fitting.iter().all(|&index| seen[index] == version));
            }
            for version in [New, Old] {
                match batch(&other, version).apply() {
                    Ok(applied) => assert_eq!((applied.mode, applied.sites), (Mode::Held, other.len())),
                    Err(PokeError::Hold(error)) => return eprintln!("skipped: threads cannot be traced here: {error}"),
                    Err(error) => panic!("{error}"),
                }
                let seen = code.run_program(&program);
                assert!(other.iter().all(|&index| seen[index] == version));
            }
            let forced = batch(&fitting, New).apply_in(ModeChoice::Only(Mode::Trap));
            assert!(matches!(forced, Err(PokeError::Blocked { .. })));
        });
        assert_eq!(batch(&other, New).apply_in(ModeChoice::Only(Mode::Trap)).unwrap().mode, Mode::Trap);
        let error = batch(&other, Old).apply_in(ModeChoice::Only(Mode::SingleStore)).unwrap_err();
        assert!(matches!(error, PokeError::NotSingleStore { .. }), "{error}");
    });
}

/// The C library blocks all signals for a moment when it starts threads and processes.
#[test]
fn starting_threads_and_processes_is_not_in_the_way() {
    alone(|| {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::spawn(|| {}).join().unwrap();
                    assert!(std::process::Command::new("sleep").arg("0").status().unwrap().success());
                }
            });
            let _stop = StopOnDrop(&stop);
            (0..200).for_each(|_| poke());
        });
    });
}

extern "C" fn takes_a_frame(_signal: i32) {}

/// A thread whose alternate stack holds only a signal frame and 4 KiB, and which gets other signals there meanwhile.
#[test]
fn a_small_alternate_stack_is_enough() {
    const BELOW: usize = 1 << 16;
    const CANARY: u8 = 0xA5;
    alone(|| {
        poke();
        // SAFETY: asks for a number.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        let mut memory = vec![CANARY; BELOW + frame.max(2048) + 4096];
        let size = memory.len() - BELOW;
        let stack = libc::stack_t { ss_sp: memory[BELOW..].as_mut_ptr().cast(), ss_flags: 0, ss_size: size };
        // SAFETY: the memory lives until the process ends.
        assert_eq!(unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) }, 0);
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = takes_a_frame as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: a valid action.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) }, 0);
        // SAFETY: names this thread, which outlives the others.
        let runner = unsafe { libc::pthread_self() };
        let (packs, code) = (Packs::new().unwrap(), generate(600));
        let program = packs.load(&code.code, 64).unwrap();
        let hit = traps_hit();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: the thread is alive.
                    unsafe { libc::pthread_kill(runner, libc::SIGUSR1) };
                }
            });
            scope.spawn(|| {
                for round in 0.. {
                    let mut batch = Batch::new();
                    let version = if round % 2 == 0 { New } else { Old };
                    (0..600).for_each(|index| code.add(&mut batch, &program, index, version));
                    batch.apply_in(ModeChoice::Only(Mode::Trap)).unwrap();
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let _stop = StopOnDrop(&stop);
            while traps_hit() < hit + 100 {
                drop(code.run_program(&program));
            }
        });
        assert!(memory[..BELOW].iter().all(|&byte| byte == CANARY), "the handler left its stack");
        assert!(memory[BELOW..].iter().any(|&byte| byte != CANARY), "the handler ran elsewhere");
        std::mem::forget(memory);
    });
}

/// A trap at the wrong moment would end the process, so none is stored. Tries sites of all kinds, in a program and in
/// text.
#[test]
fn any_code_is_changed_beside_threads_that_block_every_signal_at_any_moment() {
    const BATCHES: u32 = 300;
    let blob = Blob::new(generate(60));
    alone(|| {
        let (packs, code) = (Packs::new().unwrap(), generate(60));
        let program = packs.load(&code.code, 64).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let blocked = palimpsest_sys::threads::own::Blocked::all();
                        drop(code.run_program(&program));
                        drop(blob.run());
                        drop(blocked);
                    }
                });
            }
            let _stop = StopOnDrop(&stop);
            for round in 0..BATCHES {
                let version = if round % 2 == 0 { New } else { Old };
                let mut batch = Batch::new();
                (0..60).for_each(|index| code.add(&mut batch, &program, index, version));
                (0..60).for_each(|index| blob.add(&mut batch, index, version));
                match batch.apply() {
                    Ok(applied) => assert_eq!((applied.mode, applied.sites), (Mode::Held, 120)),
                    Err(PokeError::Hold(error)) => return eprintln!("skipped: threads cannot be traced here: {error}"),
                    Err(error) => panic!("{error}"),
                }
                assert_eq!((code.run_program(&program), blob.run()), (vec![version; 60], vec![version; 60]));
            }
        });
    });
}

/// A handler that is installed later, and never calls the one before it, would get the traps of the next batch.
#[test]
fn ours_is_put_back_in_front_of_a_handler_that_does_not_chain() {
    alone(|| {
        poke();
        let ours = set_action(of_one_argument as extern "C" fn(i32) as usize, 0).sa_sigaction;
        assert_ne!(ours, libc::SIG_DFL);
        poke();
        let in_front = set_action(libc::SIG_DFL, 0).sa_sigaction;
        assert_eq!(in_front, ours);
    });
}

/// Returns the open descriptors and their targets.
fn descriptors() -> BTreeSet<(PathBuf, String)> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter_map(|path| Some((path.clone(), std::fs::read_link(path).ok()?.to_string_lossy().into_owned())))
        .collect()
}

/// A child cannot attack its parent: it has no descriptor of the parent's memory or tables, and cannot make the table
/// that it inherits writable.
#[test]
fn children_get_no_way_to_write_what_their_parents_run() {
    let blob = Blob::new(generate(6));
    alone(|| {
        // What other tests have open, this process has inherited.
        let of_others = descriptors();
        poke();
        for version in [New, Old] {
            let mut batch = Batch::new();
            (0..6).for_each(|index| blob.add(&mut batch, index, version));
            batch.apply_in(ModeChoice::Only(Mode::Trap)).unwrap();
        }
        let status = fork_and_wait(|| {
            for (_, target) in descriptors().difference(&of_others) {
                assert!(!target.ends_with("/mem") && !target.contains("palimpsest"), "{target}");
            }
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let tables: Vec<&str> = maps.lines().filter(|line| line.contains("palimpsest-sites")).collect();
            assert!(!tables.is_empty(), "the table that handlers read is gone");
            for table in tables {
                let start = table.split_once('-').unwrap().0;
                let start = std::ptr::with_exposed_provenance_mut(usize::from_str_radix(start, 16).unwrap());
                // SAFETY: a table that nobody reads at this time.
                let answer = unsafe { libc::mprotect(start, 4096, libc::PROT_READ | libc::PROT_WRITE) };
                assert_eq!(answer, -1, "a child may write its parent's table");
            }
            0
        });
        assert_eq!(exit_code(status), Some(0), "status {status:#x}");
    });
}
