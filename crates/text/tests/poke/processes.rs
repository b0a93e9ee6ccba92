//! Forks, and signals, while sites are toggled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palimpsest_text::Packs;
use palimpsest_text::poke::{Batch, PokeError};

use crate::StopOnDrop;
use crate::Version::{self, New};
use crate::blob::Blob;
use crate::common::{Numbers, exit_code, fork, fork_and_wait, wait};
use crate::isa::generate;
use crate::torture::{ANY_WAY, Toggled, torture_until};

const SITES: usize = 1000;

/// Children run inherited text and programs, finish what they have inherited, poke text on their own, and call `exec`.
#[test]
fn children_survive_batches_of_their_parents() {
    let blob = Blob::new(generate(SITES));
    let (packs, code) = (Packs::new().unwrap(), generate(SITES));
    let program = packs.load(&code.code, 64).unwrap();
    let (text, programs) = (Toggled::new(), Toggled::new());
    let (stop, children) = (AtomicBool::new(false), AtomicU64::new(0));
    let child = || {
        drop(code.run_program(&program));
        let seen = blob.run();
        let mut batch = Batch::new();
        seen.iter().enumerate().for_each(|(index, version)| blob.add(&mut batch, index, version.other()));
        assert_eq!(batch.apply().unwrap().sites, SITES);
        let others: Vec<Version> = seen.iter().map(|version| version.other()).collect();
        assert_eq!(blob.run(), others);
        let mut inherited = Batch::new();
        code.add(&mut inherited, &program, 0, New);
        assert!(matches!(inherited.apply(), Err(PokeError::Inherited { .. })));
        let own = packs.load(&code.code, 64).unwrap();
        let mut batch = Batch::new();
        (0..SITES).for_each(|index| code.add(&mut batch, &own, index, New));
        batch.apply().unwrap();
        assert_eq!(code.run_program(&own), vec![New; SITES]);
        // SAFETY: constant, terminated strings, and a terminated list.
        unsafe { libc::execlp(c"sleep".as_ptr(), c"sleep".as_ptr(), c"0".as_ptr(), std::ptr::null::<libc::c_char>()) };
        panic!("exec failed");
    };
    std::thread::scope(|scope| {
        let forker = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let pids: Vec<i32> = (0..4).map(|_| fork(|| -> i32 { child() })).collect();
                for status in pids.into_iter().map(wait) {
                    assert_eq!(exit_code(status), Some(0), "status {status:#x}");
                    children.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let _stop = StopOnDrop(&stop);
        torture_until(
            || children.load(Ordering::Relaxed) >= 4 || forker.is_finished(),
            || {
                drop(blob.run());
                drop(code.run_program(&program));
            },
            |numbers| {
                text.toggle(numbers, |batch, index, version| blob.add(batch, index, version));
                programs.toggle(numbers, |batch, index, version| code.add(batch, &program, index, version));
            },
        );
    });
    let children = children.into_inner();
    assert!(children >= 4, "{children} children");
    eprintln!("{children} children");
}

static RAIN: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_rain(_signal: i32) {
    RAIN.fetch_add(1, Ordering::Relaxed);
}

/// The number of signals that count as rain: fewer would hit next to no batch.
const DROPS: u64 = 100;

/// SIGUSR1 arrives at random threads all the time, inside and outside of our handler.
#[test]
fn signals_may_rain() {
    // In its own process: the signals would hit other tests' system calls.
    let status = fork_and_wait(|| {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_rain as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: a valid action, whose handler counts.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) }, 0);
        let (packs, code) = (Packs::new().unwrap(), generate(SITES));
        let program = packs.load(&code.code, 64).unwrap();
        let toggled = Toggled::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let own = std::process::id().cast_signed();
                    // SAFETY: sends a signal that has a handler to this process.
                    unsafe { libc::kill(own, libc::SIGUSR1) };
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            });
            let _stop = StopOnDrop(&stop);
            let toggle = |numbers: &mut Numbers| {
                toggled.toggle(numbers, |batch, index, version| code.add(batch, &program, index, version));
            };
            // One slow CPU handles few of them in the usual time.
            let is_rain = || RAIN.load(Ordering::Relaxed) >= DROPS;
            torture_until(is_rain, || drop(code.run_program(&program)), toggle);
        });
        assert_eq!(code.run_program(&program), toggled.now());
        0
    });
    assert_eq!(exit_code(status), Some(0), "status {status:#x}");
}

/// `posix_spawn` runs a part of this program in a child that shares its memory.
#[test]
fn spawning_goes_on() {
    let (packs, code) = (Packs::new().unwrap(), generate(SITES));
    let program = packs.load(&code.code, 64).unwrap();
    let toggled = Toggled::new();
    let mut numbers = Numbers::new(5);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..200).for_each(|_| {
                assert!(std::process::Command::new("sleep").arg("0").status().unwrap().success());
            });
        });
        (0..100).for_each(|_| {
            toggled.toggle(&mut numbers, |batch, index, version| code.add(batch, &program, index, version));
        });
    });
    assert_eq!(code.run_program(&program), toggled.now());
}

/// If `/proc/self/mem` is refused, pages of text are replaced.
#[test]
fn text_is_poked_without_proc_self_mem() {
    let blob = Blob::new(generate(100));
    let status = fork_and_wait(|| {
        // SAFETY: concerns only this child.
        unsafe { libc::setresuid(65534, 65534, 65534) };
        // SAFETY: as above. The kernel then gives the files below /proc/self to root, and this child is not root.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
        assert!(palimpsest_sys::ProcMem::open().is_err());
        for version in [New, Version::Old, New] {
            let mut batch = Batch::new();
            (0..100).for_each(|index| blob.add(&mut batch, index, version));
            assert_eq!(batch.apply().unwrap().sites, 100);
            assert_eq!(blob.run(), vec![version; 100]);
        }
        crate::common::assert_never_writable_and_executable();
        0
    });
    assert_eq!(exit_code(status), Some(0), "{status:#x}");
}

/// Traps and single stores pass over a thread that a tracer has stopped among the sites; it continues with the code as
/// it is then. In its own process: batches of other tests would wait for the thread to be held.
#[test]
fn a_thread_that_a_tracer_stops_is_passed_over() {
    let status = fork_and_wait(|| {
        beside_a_stopped_thread();
        0
    });
    assert_eq!(exit_code(status), Some(0), "status {status:#x}");
}

fn beside_a_stopped_thread() {
    const NOT_PERMITTED: i32 = 77;
    let (packs, code) = (Packs::new().unwrap(), generate(200));
    let program = packs.load(&code.code, 64).unwrap();
    let stop = AtomicBool::new(false);
    let (tell, hear) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: gettid touches no memory.
            tell.send(unsafe { libc::gettid() }).unwrap();
            while !stop.load(Ordering::Relaxed) {
                drop(code.run_program(&program));
            }
        });
        let _stop = StopOnDrop(&stop);
        let thread = hear.recv().unwrap();
        for version in [New, Version::Old, New, Version::Old, New] {
            let (mut stopped, tell_stopped) = std::io::pipe().unwrap();
            let (go_on, tell_go_on) = std::io::pipe().unwrap();
            let mut ends = Some((tell_stopped, tell_go_on));
            // A thread cannot trace its own process; a child can.
            let tracer = fork(|| {
                let (mut tell_stopped, tell_go_on) = ends.take().unwrap();
                drop(tell_go_on);
                let none = std::ptr::null_mut::<libc::c_void>();
                // SAFETY: concerns only the thread, and no memory.
                if unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) } != 0 {
                    return NOT_PERMITTED;
                }
                // SAFETY: as above.
                unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none) };
                let mut status = 0;
                // SAFETY: `status` is a valid place for the answer.
                unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
                std::io::Write::write_all(&mut tell_stopped, &[1]).unwrap();
                let _ = std::io::Read::read(&mut &go_on, &mut [0]);
                // SAFETY: as above.
                unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, none, none) };
                0
            });
            let (tell_stopped, tell_go_on) = ends.take().unwrap();
            drop(tell_stopped);
            let is_stopped = std::io::Read::read(&mut stopped, &mut [0]).unwrap() == 1;
            if is_stopped {
                let mut batch = Batch::new();
                (0..200).for_each(|index| code.add(&mut batch, &program, index, version));
                assert_eq!(batch.apply_in(ANY_WAY).unwrap().sites, 200);
                assert_eq!(code.run_program(&program), vec![version; 200]);
            }
            drop(tell_go_on);
            match exit_code(wait(tracer)) {
                Some(0) => {}
                Some(NOT_PERMITTED) => return eprintln!("skipped: a child may not trace its parent here"),
                other => panic!("the tracer ended with {other:?}"),
            }
        }
    });
}
