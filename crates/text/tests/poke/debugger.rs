//! Under gdb: breakpoints elsewhere still work while batches run. Under strace: threads that it delays are not taken
//! for such that a debugger has set back.
//!
//! `palimpsest_sys::trap` says what gdb does with traps, and how to configure it.

use std::process::{Command, ExitStatus};

use palimpsest_text::Packs;
use palimpsest_text::poke::{Mode, ModeChoice, traps_hit};

use crate::Version::{New, Old};
use crate::isa::generate;
use crate::{StopOnDrop, Version};

/// Set in the child.
const CHILD: &str = "PALIMPSEST_POKE_UNDER_GDB";

const STOPS: usize = 5;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn poke_breakpoint(round: usize) -> usize {
    std::hint::black_box(round)
}

/// Is not a test by itself, but what gdb runs.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (packs, code) = (Packs::new().unwrap(), generate(500));
    let program = packs.load(&code.code, 64).unwrap();
    // Installs the handler; nobody runs into the traps.
    for version in [New, Old] {
        let mut batch = palimpsest_text::poke::Batch::new();
        code.add(&mut batch, &program, 0, version);
        batch.apply_in(ModeChoice::Only(Mode::Trap)).unwrap();
    }
    poke_breakpoint(STOPS);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let hit = traps_hit();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(code.run_program(&program));
            }
        });
        let _stop = StopOnDrop(&stop);
        let mut batches = 0;
        for round in 0..STOPS {
            while traps_hit() < hit + 3 * (round as u64 + 1) || batches < 20 * round {
                let version: Version = if batches % 2 == 0 { New } else { Old };
                let mut batch = palimpsest_text::poke::Batch::new();
                (0..500).for_each(|index| code.add(&mut batch, &program, index, version));
                batch.apply_in(ModeChoice::Only(Mode::Trap)).unwrap();
                batches += 1;
            }
            assert_eq!(poke_breakpoint(round), round);
        }
    });
    println!("child has hit {} traps", traps_hit() - hit);
}

#[test]
fn breakpoints_and_batches_live_together() {
    let executable = std::env::current_exe().unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "set breakpoint pending on"]);
    // Not before the handler is installed: gdb also passes on the SIGTRAPs of `exec` and of its own breakpoints.
    gdb.args(["-ex", "break poke_breakpoint", "-ex", "run", "-ex", "handle SIGTRAP nostop noprint pass"]);
    gdb.args((0..=STOPS).flat_map(|_| ["-ex", "signal 0"]));
    gdb.arg("--args").arg(executable).args(["--exact", "isa::debugger::child", "--nocapture", "--test-threads=1"]);
    let Some((_, printed)) = traced(gdb.env(CHILD, "1")) else { return };
    assert_eq!(printed.matches(" hit Breakpoint 1, ").count(), STOPS + 1, "{printed}");
    assert!(printed.contains("child has hit ") && printed.contains("exited normally"), "{printed}");
    assert!(!printed.contains("received signal"), "{printed}");
}

/// Fails on: a trap whose batch is over, and forgotten, that is taken for a debugger's breakpoint: then the thread
/// continues in the middle of an instruction.
#[test]
fn who_only_passes_signals_on_leaves_threads_to_us() {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=none", "-e", "signal=none", "--"]).arg(std::env::current_exe().unwrap());
    strace.args(["--exact", "torture::programs_are_all_old_or_all_new", "--nocapture", "--test-threads=1"]);
    let Some((status, printed)) = traced(&mut strace) else { return };
    assert!(status.success() && printed.contains("1 passed"), "{status}: {printed}");
}

/// Runs a tracer; returns how it ended, and what it printed. `None`, having said so, if there is none or it may not
/// trace.
fn traced(tracer: &mut Command) -> Option<(ExitStatus, String)> {
    let name = tracer.get_program().display().to_string();
    let Ok(output) = tracer.output() else {
        eprintln!("skipped: {name} is not installed");
        return None;
    };
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if ["ptrace: ", "ptrace(", "PTRACE_", "Could not trace"].iter().any(|refusal| printed.contains(refusal)) {
        eprintln!("skipped: {name} may not trace");
        return None;
    }
    Some((output.status, printed.into_owned()))
}
