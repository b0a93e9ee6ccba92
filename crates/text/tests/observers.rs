//! Verifies the observers with the tools that they serve. Every test examines a child process with the observer, and
//! one without, of whose programs the tool must know nothing.

#[path = "observers/arch/mod.rs"]
mod arch;
#[path = "observers/child.rs"]
mod scenarios;
#[path = "observers/tools.rs"]
mod tools;

use std::{env, fs, path::Path};

use self::{
    scenarios::{BUSY, FRAMED, FRAMELESS},
    tools::{ATTACHED, GDB, PERF_EVENT, SCENARIO, Unavailable, gdb_refusal, perf, perf_works, printed, restart_works},
};

/// Whether a child attaches the observer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attached {
    Yes,
    No,
}

impl Attached {
    const BOTH: [Attached; 2] = [Attached::Yes, Attached::No];

    fn name(self) -> &'static str {
        match self {
            Attached::Yes => "yes",
            Attached::No => "no",
        }
    }
}

/// A scenario that a child plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scenario {
    Gdb,
    Backtrace,
    Panic,
    PerfMap,
    JitDump,
    Fork,
}

impl Scenario {
    const ALL: [Scenario; 6] =
        [Scenario::Gdb, Scenario::Backtrace, Scenario::Panic, Scenario::PerfMap, Scenario::JitDump, Scenario::Fork];

    fn name(self) -> &'static str {
        match self {
            Scenario::Gdb => "gdb",
            Scenario::Backtrace => "backtrace",
            Scenario::Panic => "panic",
            Scenario::PerfMap => "perf-map",
            Scenario::JitDump => "jitdump",
            Scenario::Fork => "fork",
        }
    }

    fn play(self, attached: Attached) {
        match self {
            Scenario::Gdb => scenarios::gdb(attached),
            Scenario::Backtrace => scenarios::backtrace(attached),
            Scenario::Panic => scenarios::panic(attached),
            Scenario::PerfMap => scenarios::perf_map(attached),
            Scenario::JitDump => scenarios::jit_dump(attached),
            Scenario::Fork => scenarios::fork(attached),
        }
    }
}

/// Is not a test of its own, but the entry of child processes.
#[test]
fn child() {
    let (Ok(scenario), Ok(attached)) = (env::var(SCENARIO), env::var(ATTACHED)) else {
        return;
    };
    let scenario = Scenario::ALL.into_iter().find(|known| known.name() == scenario).expect("a known scenario");
    let attached = Attached::BOTH.into_iter().find(|known| known.name() == attached).expect("yes or no");
    scenario.play(attached);
}

/// Runs a test in a directory of its own; skips it if something is not available.
fn verify(test: &str, body: impl FnOnce(&Path) -> Result<(), Unavailable>) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let verified = restart_works().and_then(|()| body(directory.path()));
    if let Err(Unavailable(reason)) = verified {
        eprintln!("skipped: {test}: {reason}");
    }
}

fn alone(scenario: Scenario, attached: Attached, directory: &Path) -> Result<String, Unavailable> {
    let output = tools::child::<&str>(&[], scenario, attached, directory)?;
    let printed = printed(&output);
    assert!(output.status.success(), "{attached:?}: {}: {printed}", output.status);
    Ok(printed)
}

#[test]
fn gdb_shows_programs_and_the_frames_beyond_them() {
    verify("gdb_shows_programs_and_the_frames_beyond_them", |directory| {
        for attached in Attached::BOTH {
            let output = tools::child(&GDB, Scenario::Gdb, attached, directory)?;
            let printed = printed(&output);
            if let Some(refusal) = gdb_refusal(&printed) {
                return Err(refusal);
            }
            let frames = [
                "observers_innermost",
                FRAMELESS,
                "observers_between",
                FRAMED,
                "observers_outermost",
                // The first frame of the thread in the standard library.
                "thread_start",
            ];
            let mut frame = 0;
            for line in printed.lines().filter(|line| line.starts_with('#')) {
                if frames.get(frame).is_some_and(|name| line.contains(name)) {
                    frame += 1;
                }
            }
            match attached {
                Attached::Yes => {
                    assert_eq!(frame, frames.len(), "no {:?} in {printed}", frames.get(frame));
                    assert!(printed.contains("No symbol matches"), "{printed}");
                }
                Attached::No => {
                    assert_eq!(frame, 1, "{printed}");
                    assert!(!printed.contains(FRAMED), "{printed}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn backtraces_cross_programs() {
    verify("backtraces_cross_programs", |directory| {
        for attached in Attached::BOTH {
            let printed = alone(Scenario::Backtrace, attached, directory)?;
            assert!(printed.contains("print_backtrace"), "{printed}");
            for beyond in ["observers_between", "observers_outermost"] {
                assert_eq!(printed.contains(beyond), attached == Attached::Yes, "{attached:?}: {beyond} in {printed}");
            }
        }
        Ok(())
    });
}

#[test]
fn panics_cross_programs() {
    verify("panics_cross_programs", |directory| {
        let printed = alone(Scenario::Panic, Attached::Yes, directory)?;
        assert!(printed.contains("caught: from the innermost"), "{printed}");
        let output = tools::child::<&str>(&[], Scenario::Panic, Attached::No, directory)?;
        assert!(!output.status.success(), "{}", tools::printed(&output));
        assert!(!tools::printed(&output).contains("caught:"));
        Ok(())
    });
}

#[test]
fn perf_resolves_names_by_the_perf_map() {
    verify("perf_resolves_names_by_the_perf_map", |directory| {
        perf_works(directory)?;
        for attached in Attached::BOTH {
            let record = ["perf", "record", "-q", "-e", PERF_EVENT, "-o", "perf.data", "--"];
            let output = tools::child(&record, Scenario::PerfMap, attached, directory)?;
            let printed = printed(&output);
            assert!(output.status.success(), "{printed}");
            let script = perf(&["script", "-i", "perf.data", "-F", "ip,sym"], directory)?;
            let pid =
                printed.lines().find_map(|line| line.split("pid=").nth(1)).expect("the child printed its process id");
            let map = Path::new("/tmp").join(format!("perf-{pid}.map"));
            assert_eq!(map.exists(), attached == Attached::Yes);
            if attached == Attached::Yes {
                fs::remove_file(map).expect("remove the perf map");
            }
            assert_resolved(&script, attached);
        }
        Ok(())
    });
}

#[test]
fn perf_resolves_names_by_the_jitdump() {
    verify("perf_resolves_names_by_the_jitdump", |directory| {
        perf_works(directory)?;
        for attached in Attached::BOTH {
            let record = ["perf", "record", "-q", "-k", "mono", "-e", PERF_EVENT, "-o", "perf.data", "--"];
            let output = tools::child(&record, Scenario::JitDump, attached, directory)?;
            assert!(output.status.success(), "{}", printed(&output));
            perf(&["inject", "--jit", "-i", "perf.data", "-o", "jitted.data"], directory)?;
            let script = perf(&["script", "-i", "jitted.data", "-F", "ip,sym"], directory)?;
            assert_resolved(&script, attached);
            let report = perf(&["report", "--stdio", "-i", "jitted.data"], directory)?;
            assert_eq!(report.contains(BUSY), attached == Attached::Yes, "{report}");
        }
        Ok(())
    });
}

/// Asserts that the busy program has most of the samples, under its name if there is an observer.
fn assert_resolved(script: &str, attached: Attached) {
    let samples = script.lines().count();
    let named = script.lines().filter(|line| line.contains(BUSY)).count();
    assert!(samples > 10, "only {samples} samples:\n{script}");
    match attached {
        Attached::Yes => assert!(named * 2 > samples, "{named} of {samples}:\n{script}"),
        Attached::No => assert_eq!(named, 0, "{script}"),
    }
}

#[test]
fn a_forked_child_writes_files_of_its_own() {
    verify("a_forked_child_writes_files_of_its_own", |directory| {
        let printed = alone(Scenario::Fork, Attached::Yes, directory)?;
        let id = |key: &str| -> u32 {
            let rest = printed.split(key).nth(1).expect("printed process ids");
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse().ok()).expect("a number")
        };
        let (parent, child) = (id("parent="), id("child="));
        for (pid, own, other) in [(parent, "before_fork", "in_child"), (child, "in_child", "before_fork")] {
            for file in [format!("perf-{pid}.map"), format!("jit-{pid}.dump")] {
                let data = fs::read(directory.join(&file)).expect("a file of each process");
                let holds = |name: &str| data.windows(name.len()).any(|part| part == name.as_bytes());
                assert!(holds(own) && !holds(other), "{file}");
            }
        }
        Ok(())
    });
}
