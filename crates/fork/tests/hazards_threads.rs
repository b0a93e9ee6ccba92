//! Processes with several threads: rows 4 and 18 of the hazards in `docs/src/numbered.md`, and what the kernel writes
//! to on a thread's behalf.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Memory, freeze, is_playing, page, play};
use palimpsest_fork::guard::{self, Remap};
use palimpsest_fork::{FreezeError, Measure, Options, OtherThreads, Pause, Stage, freeze as freeze_process};
use rustix::io::Errno;

const MIB: usize = 1 << 20;

/// Tries to freeze.
fn try_freeze(options: &Options) -> Result<palimpsest_fork::Report, FreezeError> {
    // SAFETY: the scenario is alone in its process.
    unsafe { freeze_process(options) }
}

#[test]
fn h04_other_threads_are_refused() {
    play("h04_other_threads_are_refused", || {
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || ended.recv());
        let error = try_freeze(&Options::new()).expect_err("a second thread");
        assert!(matches!(error, FreezeError::Threads { count: 2 }), "{error}");
        assert_eq!(palimpsest_fork::frozen_bytes(), 0);
        drop(end);
        let _ = thread.join();
    });
}

#[test]
fn h04_who_was_joined_is_no_other_thread() {
    play("h04_who_was_joined_is_no_other_thread", || {
        // The kernel lists a thread for some time after it was joined.
        for _ in 0..300 {
            std::thread::spawn(|| ()).join().expect("it ends");
            assert_eq!(palimpsest_sys::threads::hold::count().expect("/proc is mounted"), 1);
        }
        std::thread::spawn(|| ()).join().expect("it ends");
        freeze(&Options::new());
    });
}

#[test]
fn h04_no_write_of_a_stopped_thread_is_lost() {
    play("h04_no_write_of_a_stopped_thread_is_lost", || {
        static END: AtomicBool = AtomicBool::new(false);
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        let base = memory.start.addr();
        let writer = move |offset: usize| {
            move || {
                let mut written = 0_u64;
                while !END.load(Ordering::Relaxed) {
                    for at in (base + offset..base + 64 * MIB).step_by(64 * page()) {
                        // SAFETY: the scenario's own memory, of which each thread has words of its own.
                        let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(at) };
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                    written += 1;
                }
                written
            }
        };
        let threads: Vec<_> = (0..4).map(|index| std::thread::spawn(writer(page() * index + 64))).collect();
        for round in 0..10 {
            let report = freeze(&Options::new().other_threads(OtherThreads::Stop).measure(Measure::Nothing));
            assert!(report.stopped.is_none());
            assert!(
                round > 0 || report.frozen_bytes() >= memory.len,
                "later it is found to be written to all the time"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        END.store(true, Ordering::Relaxed);
        for (index, thread) in threads.into_iter().enumerate() {
            let written = thread.join().expect("alive");
            for offset in (page() * index + 64..64 * MIB).step_by(64 * page()) {
                // SAFETY: aligned, and the scenario's own memory.
                let found = unsafe { memory.at(offset).cast::<u64>().read_volatile() };
                assert_eq!(found, written, "thread {index} at {offset:#x}");
            }
        }
    });
}

/// Starts a thread that blocks all signals, until the sender is dropped.
fn deaf_thread() -> (Sender<()>, JoinHandle<()>) {
    let (end, ended) = channel::<()>();
    let (told, ready) = channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: all-zero is a valid set, which is then filled.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place for a set.
        unsafe { libc::sigfillset(&mut all) };
        // SAFETY: a valid set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) };
        told.send(()).expect("heard");
        let _ = ended.recv();
    });
    ready.recv().expect("told");
    (end, thread)
}

#[test]
fn h04_a_thread_that_blocks_signals_is_held_or_an_error() {
    play("h04_a_thread_that_blocks_signals_is_held_or_an_error", || {
        let (end, thread) = deaf_thread();
        // If it cannot be traced either.
        if let Err(error) = try_freeze(&Options::new().other_threads(OtherThreads::Stop)) {
            assert!(matches!(error, FreezeError::NotStopped(_)), "{error}");
            let source = std::error::Error::source(&error).expect("the reason").to_string();
            assert!(source.contains("blocks signal"), "{source}");
            assert_eq!(palimpsest_fork::frozen_bytes(), 0);
        }
        drop(end);
        let _ = thread.join();
        freeze(&Options::new());
    });
}

/// Fails on: slices that go on to the end while threads stand still that only the tracer can hold.
#[test]
fn h04_slices_let_a_thread_go_on_that_blocks_signals() {
    play("h04_slices_let_a_thread_go_on_that_blocks_signals", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        let (end, thread) = deaf_thread();
        let options = beside_others().pause(Pause::Within(Duration::ZERO));
        match try_freeze(&options) {
            Err(FreezeError::NotStopped(_)) => common::skip("the thread cannot be traced here"),
            planned => assert!(planned.expect("a plan").progress.is_some()),
        }
        for number in 1..4 {
            // SAFETY: 1. the scenario keeps the contract of freezing. 2. the closure does nothing.
            let now = common::patiently(|| unsafe { palimpsest_fork::freeze_while(&mut || true) });
            assert_eq!((now.stage, now.slices), (Stage::UnderWay, number));
        }
        drop(end);
        thread.join().expect("it ends");
    });
}

/// Options of a freeze beside other threads.
fn beside_others() -> Options {
    Options::new().other_threads(OtherThreads::Stop).measure(Measure::Nothing)
}

/// Fails on: advice that a freeze comes before, and that is given for anonymous memory all the same.
#[test]
fn what_is_discarded_while_it_is_frozen_is_zeros() {
    play("what_is_discarded_while_it_is_frozen_is_zeros", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        // The first time before there is a map.
        for time in 0..2 {
            let (mut calls, part) = (0, time * MIB..(time + 1) * MIB);
            let mut call = || {
                calls += 1;
                if calls == 1 {
                    freeze_quietly(&beside_others());
                }
                // SAFETY: the scenario's own memory.
                match unsafe { libc::madvise(memory.at(part.start), part.len(), libc::MADV_DONTNEED) } {
                    0 => Ok(()),
                    _ => Err(Errno::INVAL),
                }
            };
            // SAFETY: 1. the scenario's own memory, and the call is made.
            let done =
                unsafe { guard::madvise_by(memory.at(part.start).addr(), part.len(), libc::MADV_DONTNEED, &mut call) };
            assert_eq!((done, calls), (Ok(()), 1));
            assert!(memory.is_zero(0..part.end) && memory.holds(part.end..memory.len, 1), "{time}");
            guard::thaw_all().expect("thawed");
        }
    });
}

/// Fails on: a freeze of memory that has moved in the kernel and not yet in the map, or is about to move: what is
/// discarded at the new place then shows the bytes of the freeze, and what grows shows what lies behind it in a file.
#[test]
fn nobody_freezes_what_is_being_moved() {
    play("nobody_freezes_what_is_being_moved", || {
        // The first time before there is a map, the second time before memory is frozen, the third time after.
        for time in 0..3 {
            let (memory, room) = (Memory::apart(8 * MIB), Memory::apart(8 * MIB));
            memory.fill(0..memory.len, 1);
            if time == 2 {
                freeze_quietly(&beside_others());
            }
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let (address, new_address) = (memory.start.addr(), room.start.addr());
            let asked = Remap { address, len: 2 * MIB, new_len: 4 * MIB, flags, new_address };
            let mut freezing = None;
            let is_begun = std::sync::Arc::new(AtomicBool::new(false));
            let wait_for_a_freeze = |freezing: &mut Option<JoinHandle<()>>| {
                let begun = is_begun.clone();
                let thread = std::thread::spawn(move || {
                    begun.store(true, Ordering::Relaxed);
                    freeze_quietly(&beside_others());
                });
                while !is_begun.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                // However long it takes: a freeze that does not wait for the move is over by then.
                for _ in 0..5 {
                    if thread.is_finished() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                *freezing = Some(thread);
            };
            let call = || {
                wait_for_a_freeze(&mut freezing);
                // SAFETY: the scenario's own memory, and room for it.
                let at = unsafe { libc::mremap(memory.at(0), asked.len, asked.new_len, asked.flags, room.at(0)) };
                assert_eq!(at, room.at(0), "{time}");
                Ok(at.addr())
            };
            // SAFETY: 1. the scenario's own memory, room for it, and the call is made.
            assert_eq!(unsafe { guard::mremap_by(asked, call) }, Ok(new_address), "{time}");
            assert_eq!(freezing.is_some(), time < 2, "frozen memory is moved without the call");
            if let Some(freezing) = freezing {
                freezing.join().expect("it freezes");
            }
            assert!(room.holds(0..2 * MIB, 1) && room.is_zero(2 * MIB..4 * MIB), "{time}");
            // SAFETY: 1. the scenario's own memory.
            assert_eq!(unsafe { guard::madvise(new_address, 2 * MIB, libc::MADV_DONTNEED) }, Ok(()));
            assert!(room.is_zero(0..4 * MIB), "{time}");
        }
    });
}

/// Fails on: a freeze in a handler that has interrupted a move, which the move knows nothing of.
#[test]
fn who_has_interrupted_a_move_does_not_freeze() {
    play("who_has_interrupted_a_move_does_not_freeze", || {
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 1);
        freeze_quietly(&beside_others());
        let other = Memory::apart(4 * MIB);
        let address = other.start.addr();
        let asked = Remap { address, len: 2 * MIB, new_len: 2 * MIB, flags: 0, new_address: 0 };
        let call = || {
            // As a handler does.
            assert!(matches!(try_freeze(&beside_others()), Err(FreezeError::Busy)));
            assert_eq!(guard::thaw_all(), Err(Errno::BUSY));
            Ok(address)
        };
        // SAFETY: 1. the scenario's own memory, which stays as it is.
        assert_eq!(unsafe { guard::mremap_by(asked, call) }, Ok(address));
        freeze_quietly(&beside_others());
        guard::thaw_all().expect("thawed");
        assert!(memory.holds(0..memory.len, 1));
    });
}

#[test]
fn h04_no_write_of_another_thread_is_lost_by_thawing() {
    play("h04_no_write_of_another_thread_is_lost_by_thawing", || {
        static END: AtomicBool = AtomicBool::new(false);
        static ROUNDS: AtomicU64 = AtomicU64::new(0);
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        let address = memory.start.addr() + page();
        let count = move || {
            // SAFETY: aligned, and the scenario's own memory.
            unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(address) }
        };
        count().store(0, Ordering::Relaxed);
        let thread = std::thread::spawn(move || {
            let mut written = 0_u64;
            while !END.load(Ordering::Relaxed) {
                count().fetch_add(1, Ordering::Relaxed);
                written += 1;
                ROUNDS.store(written, Ordering::Relaxed);
            }
            written
        });
        let options = Options::new().other_threads(OtherThreads::Stop).measure(Measure::Nothing);
        for _ in 0..60 {
            freeze_quietly(&options);
            assert!(!memory.is_anonymous(), "frozen");
            let before = ROUNDS.load(Ordering::Relaxed);
            while ROUNDS.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            // Left to the kernel: memory is held twice.
            guard::before_mlock(memory.range()).expect("always allowed");
            guard::before_mlockall().expect("always allowed");
            assert!(!memory.is_anonymous());
            // SAFETY: asks for nothing to be discarded.
            let thawed = unsafe {
                guard::madvise_by(memory.start.addr(), memory.len, libc::MADV_WIPEONFORK, || Err(Errno::NOSYS))
            };
            assert_eq!(thawed, Err(Errno::NOSYS), "the kernel is asked");
            assert!(memory.is_anonymous());
        }
        // What cannot be held is an error, and nothing is lost.
        freeze_quietly(&options);
        let remap = Remap {
            address: memory.start.addr(),
            len: memory.len,
            new_len: memory.len,
            flags: libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP,
            new_address: 0,
        };
        // SAFETY: the scenario's own memory: its old place stays mapped, for the thread.
        let moved = unsafe { guard::mremap(remap) };
        END.store(true, Ordering::Relaxed);
        let written = thread.join().expect("alive");
        let (moved, before) = match moved {
            Ok(at) => {
                let moved = Memory { start: std::ptr::with_exposed_provenance_mut(at), len: memory.len };
                assert!(memory.is_zero(2 * page()..memory.len));
                // SAFETY: aligned, and the scenario's own memory.
                let before = unsafe { std::ptr::with_exposed_provenance::<u64>(at + page()).read() };
                (moved, before)
            }
            // A kernel before 5.7 does not know it.
            refused => {
                assert_eq!(refused, Err(Errno::INVAL));
                (memory, 0)
            }
        };
        assert_eq!(before + count().load(Ordering::Relaxed), written, "lost increments");
        assert!(moved.holds(2 * page()..memory.len, 1));
    });
}

/// Freezes without printing.
fn freeze_quietly(options: &Options) {
    let report = try_freeze(options).expect("this process can be frozen");
    assert_eq!(report.stopped, None);
}

#[test]
fn a_thread_may_run_on_a_frozen_stack() {
    play("a_thread_may_run_on_a_frozen_stack", || {
        // As the C library does, which keeps stacks of ended threads.
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
            for round in 0..20_u64 {
                let mut local = [round; 512];
                freeze_quietly(&Options::new().other_threads(OtherThreads::Stop).measure(Measure::Nothing));
                std::hint::black_box(&mut local).iter().for_each(|value| assert_eq!(*value, round));
                let here = std::ptr::from_ref(&local).addr() & !(page() - 1);
                assert_eq!(guard::thaw(here..here + page()), Err(Errno::BUSY));
                // Not for ever, though other memory is thawed with it. SAFETY: 1. nothing is advised.
                let wiped = unsafe { guard::madvise_by(here, page(), libc::MADV_WIPEONFORK, || Err(Errno::INVAL)) };
                assert_eq!(wiped, Err(Errno::INVAL));
            }
            std::ptr::null_mut()
        }
        // SAFETY: all-zero is overwritten by the next call.
        let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place.
        assert_eq!(unsafe { libc::pthread_attr_init(&raw mut attributes) }, 0);
        // SAFETY: initialised; memory that nobody else uses.
        assert_eq!(unsafe { libc::pthread_attr_setstack(&raw mut attributes, memory.at(0), memory.len) }, 0);
        let mut thread = 0;
        // SAFETY: valid attributes and a function of the right type.
        let made = unsafe { libc::pthread_create(&raw mut thread, &raw const attributes, run, std::ptr::null_mut()) };
        assert_eq!(made, 0);
        // SAFETY: made above, joined once.
        assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
        assert!(memory.holds(0..8 * MIB, 1));
    });
}

/// Sets the action of every signal that can have one.
fn set_all_signals(action: usize) {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: resets, ignores, or calls an async-signal-safe handler.
        unsafe { libc::signal(signal, action) };
    }
}

/// Starts a thread that runs and stays.
fn busy_thread() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    std::thread::spawn(|| {
        loop {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    });
    while COUNT.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
}

fn stop() -> Options {
    Options::new().other_threads(OtherThreads::Stop).measure(Measure::Nothing)
}

#[test]
fn a_program_that_resets_its_signals_is_not_killed_by_a_freeze() {
    play("a_program_that_resets_its_signals_is_not_killed_by_a_freeze", || {
        busy_thread();
        freeze(&stop());
        set_all_signals(libc::SIG_DFL);
        freeze(&stop());
        // As daemons do.
        // SAFETY: the child starts a thread, freezes and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            set_all_signals(libc::SIG_DFL);
            busy_thread();
            let status = i32::from(try_freeze(&stop()).is_err());
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        assert_eq!(common::wait(child), 0);
    });
}

#[test]
fn threads_that_ignore_all_signals_are_held_by_the_tracer() {
    play("threads_that_ignore_all_signals_are_held_by_the_tracer", || {
        busy_thread();
        freeze(&stop());
        set_all_signals(libc::SIG_IGN);
        match try_freeze(&stop()) {
            Ok(report) => assert_eq!(report.stopped, None),
            // Where nobody may trace. Not because a thread is silent, which would take a second to find out.
            Err(error) => {
                let source = std::error::Error::source(&error).expect("the reason").to_string();
                assert!(source.contains("no real-time signal is free"), "{source}");
            }
        }
    });
}

#[test]
fn a_handler_of_the_programs_gets_no_call_that_nobody_sent() {
    play("a_handler_of_the_programs_gets_no_call_that_nobody_sent", || {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        extern "C" fn count(_: i32) {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
        busy_thread();
        freeze(&stop());
        for signal in (libc::SIGRTMIN() + 1..=libc::SIGRTMAX()).rev() {
            // SAFETY: the handler is async-signal-safe.
            unsafe { libc::signal(signal, count as extern "C" fn(i32) as usize) };
            freeze(&stop());
        }
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn h18_a_futex_wakes_across_a_freeze() {
    play("h18_a_futex_wakes_across_a_freeze", || {
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 1);
        let address = memory.start.addr() + 4 * MIB;
        // SAFETY: aligned, and the scenario's own memory.
        let word = move || unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(address) };
        word().store(0, Ordering::Relaxed);
        let thread = std::thread::spawn(move || {
            while word().load(Ordering::Relaxed) == 0 {
                // SAFETY: a valid word; no time limit.
                unsafe {
                    libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0, 0_usize)
                };
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        freeze(&Options::new().other_threads(OtherThreads::Stop));
        assert!(memory.is_frozen());
        word().store(1, Ordering::Relaxed);
        // SAFETY: a valid word.
        unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
        thread.join().expect("woken");
    });
}

#[test]
fn what_the_kernel_writes_to_is_never_frozen() {
    play("what_the_kernel_writes_to_is_never_frozen", || {
        const DEEP: usize = MIB;
        let (end, ended) = channel::<()>();
        let (told, ready) = channel();
        // Its stack pointer is far from its thread-local storage, so that what is left out around one does not hold the
        // other.
        let deep = move || {
            let mut array = [7_u8; DEEP];
            // SAFETY: only tells the thread's identity.
            let pointer = unsafe { libc::pthread_self() } as usize;
            told.send((pointer, std::hint::black_box(&mut array).as_ptr().addr())).expect("heard");
            let _ = ended.recv();
            assert!(std::hint::black_box(&array).iter().all(|byte| *byte == 7));
        };
        let thread = std::thread::Builder::new().stack_size(4 * MIB).spawn(deep).expect("started");
        let (pointer, array) = ready.recv().expect("told");
        let options = Options::new().other_threads(OtherThreads::Stop);
        freeze(&options);
        let maps = palimpsest_sys::pages::maps::Maps::read().expect("/proc");
        let is_frozen = |address: usize| {
            let entry = maps.at(address).expect("mapped");
            entry.path.as_ref().is_some_and(|path| path.as_os_str() == palimpsest_sys::memory::extent::EXTENT_NAME)
        };
        assert!(is_frozen(array + 3 * DEEP / 4), "the stack is one of the mappings that are frozen");
        assert!(!is_frozen(pointer));
        // SAFETY: the C library's symbols, if it has them.
        let symbol = |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let offset = symbol(c"__rseq_offset");
        if !offset.is_null() {
            // SAFETY: glibc exports it as a `const ptrdiff_t`.
            let area = pointer.wrapping_add_signed(unsafe { offset.cast::<isize>().read() });
            assert!(!is_frozen(area));
        }
        drop(end);
        thread.join().expect("alive");
    });
}

/// Where cargo puts the plugin, and the target folder; this program is
/// `<target>/<profile>/deps/hazards_threads-<hash>`.
fn plugin() -> Option<(PathBuf, PathBuf)> {
    let test = std::env::current_exe().ok()?;
    let profile = test.parent()?.parent()?;
    Some((profile.join("examples/libfreezing_plugin.so"), profile.parent()?.to_owned()))
}

/// Builds the plugin, if cargo is installed.
fn build(file: &Path, target: &Path) {
    let mut cargo = Command::new(env!("CARGO"));
    // Features as in `cargo test --workspace --all-features`: its results can be reused here.
    cargo.args([
        "build",
        "--quiet",
        "--workspace",
        "--all-features",
        "--example",
        "freezing_plugin",
        "--manifest-path",
    ]);
    cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).arg("--target-dir").arg(target);
    if file.starts_with(target.join("release")) {
        cargo.arg("--release");
    }
    if let Ok(status) = cargo.status() {
        assert!(status.success(), "the plugin does not build");
    }
}

/// Fails on: a library that is unloaded although the handler that it has installed is there.
#[test]
fn the_handler_of_a_library_that_is_closed_still_runs() {
    let Some((file, target)) = plugin() else { return println!("skipped: the test is in no target folder") };
    if !is_playing() {
        build(&file, &target);
    }
    // In a guest that got only the tests.
    if !file.exists() {
        return println!("skipped: there is no {}", file.display());
    }
    play("the_handler_of_a_library_that_is_closed_still_runs", || {
        let file = std::ffi::CString::new(file.into_os_string().into_encoded_bytes()).expect("a path");
        // SAFETY: the plugin's constructors are ours.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null());
        // SAFETY: the handle is open.
        let symbol = unsafe { libc::dlsym(library, c"plugin_freeze".as_ptr()) };
        assert!(!symbol.is_null());
        // SAFETY: the plugin's function takes nothing and returns a number.
        let freeze = unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u32>(symbol) };
        // On a thread that ends: destructors of its variables would keep the library. The first thread is held.
        assert_eq!(std::thread::spawn(move || freeze()).join().expect("it ends"), 0);
        let is_handled = |signal: &i32| {
            // SAFETY: all zeros is a valid `sigaction`.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: null sets nothing; there is room for the answer.
            unsafe { libc::sigaction(*signal, std::ptr::null(), &raw mut action) };
            action.sa_sigaction != libc::SIG_DFL
        };
        let signal = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(is_handled).expect("its handler");
        // SAFETY: nothing of it is called any more, but by that signal.
        assert_eq!(unsafe { libc::dlclose(library) }, 0);
        // SAFETY: it has a handler.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    });
}
