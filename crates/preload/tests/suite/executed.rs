//! Programs that a served program executes: with the object if they can have children.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::common::{PLAIN, Ran, compile, frozen, object, other_object, run, started};

/// Shows what is loaded in itself, and its environment. It makes no process.
const CAT: [&str; 3] = ["/bin/cat", "/proc/self/maps", "/proc/self/environ"];
/// Shows what is loaded in itself, by another program.
const SHELL: [&str; 3] = ["/bin/sh", "-c", "cat /proc/$$/maps; :"];

/// Executes the rest in the folder of these programs.
const IN_BIN: [&str; 4] = ["/bin/sh", "-c", "cd /bin && exec \"$@\"", "sh"];

/// The program that executes others.
fn executes() -> Option<&'static str> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/executes.c");
    PROGRAM.get_or_init(|| compile(Path::new(source), "executes", &[])).as_ref()?.to_str()
}

/// Whether what was executed has loaded the object.
fn has_object(ran: &Ran) -> bool {
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("libc.so.6"), "{}", ran.stdout);
    ran.stdout.lines().any(|line| line.contains(" r-xp ") && line.ends_with("/libpalimpsest_preload.so"))
}

/// Fails on: a way to execute a program in which the object stays, or goes although it is needed; another variable
/// that goes.
#[test]
fn programs_without_children_run_without_the_object() {
    let (Some(executes), object) = (executes(), object()) else { return };
    let way = frozen(object.to_str().expect("UTF-8"), &[("OTHER", "1")]);
    let variables = |ran: &Ran| -> BTreeSet<String> {
        let names = ran.stdout.split('\n').next_back().expect("a last line").split('\0');
        names.filter_map(|variable| Some(variable.split_once('=')?.0.to_owned())).collect()
    };
    let plain = variables(&run(&[&[executes, "execve"], CAT.as_slice()].concat(), PLAIN));
    for kind in ["execve", "vfork", "execv", "execvp", "execvpe", "posix_spawn", "posix_spawnp", "elsewhere"] {
        let ran = run(&[&[executes, kind], CAT.as_slice()].concat(), way);
        assert!(!has_object(&ran), "{kind}");
        let more: Vec<_> = variables(&ran).difference(&plain).cloned().collect();
        assert_eq!((more.as_slice(), plain.difference(&variables(&ran)).count()), (["OTHER".to_owned()].as_slice(), 0));
        assert!(has_object(&run(&[&[executes, kind], SHELL.as_slice()].concat(), way)), "{kind}");
    }
    // By name: the first file in `PATH` that can be executed.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("cat"), "no program").expect("the folder is ours");
    // Nobody knows for sure which folder no folder is.
    for (path, is_known) in [(format!("{}:/bin", folder.path().display()), true), ("/nowhere::/bin".to_owned(), false)]
    {
        let variables = [("PATH", path.as_str())];
        let way = frozen(object.to_str().expect("UTF-8"), &variables);
        for kind in ["execvp", "execvpe", "posix_spawnp"] {
            let line = [IN_BIN.as_slice(), &[executes, kind, "cat"], &CAT[1..]].concat();
            assert_eq!(has_object(&run(&line, way)), !is_known, "{kind} {path}");
            let line = [IN_BIN.as_slice(), &[executes, kind, "sh"], &SHELL[1..]].concat();
            assert!(has_object(&run(&line, way)), "{kind} {path}");
        }
    }
    // Whose folder another is than this process's.
    let line = [IN_BIN.as_slice(), &[executes, "elsewhere", "../bin/cat"], &CAT[1..]].concat();
    assert!(has_object(&run(&line, way)));
    std::os::unix::fs::symlink("/bin/cat", folder.path().join("other")).expect("the folder is ours");
    std::fs::rename(folder.path().join("other"), folder.path().join("cat")).expect("as before");
    let variables = [("FOLDER", folder.path().to_str().expect("UTF-8"))];
    let line = [IN_BIN.as_slice(), &[executes, "elsewhere", "cat"], &CAT[1..]].concat();
    assert!(has_object(&run(&line, frozen(object.to_str().expect("UTF-8"), &variables))));
}

/// Fails on: a child of `vfork` that looks for no filters, as `palimpsest run` has found none; one that finds none
/// though there is one.
#[test]
fn children_of_vfork_look_for_filters_that_came_since_the_start() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/confined.c");
    let (Some(executes), Some(confined)) = (executes(), compile(Path::new(source), "confined", &[])) else { return };
    let object = object();
    let way = frozen(object.to_str().expect("UTF-8"), &[("PALIMPSEST_FILTERS", "0")]);
    let line = [&[executes, "vfork"], CAT.as_slice()].concat();
    assert!(!has_object(&run(&line, way)));
    // Of a call that there is not.
    let confined = [confined.to_str().expect("UTF-8"), "100000"];
    assert!(has_object(&run(&[confined.as_slice(), &line].concat(), way)));
}

/// Fails on: another service of the object that such a program goes without; an environment that does not fit; a call
/// before it is known that no filter ends the program for it.
#[test]
fn whoever_is_served_in_another_way_keeps_the_object() {
    let (Some(executes), object, Some(other)) = (executes(), object(), other_object("inherited")) else { return };
    let object = object.to_str().expect("UTF-8");
    let line = [&[executes, "execve"], CAT.as_slice()].concat();
    let variables = [("PALIMPSEST_TEXT", "off"), ("PALIMPSEST_FREEZE", "signal:USR1"), ("PALIMPSEST_HUGE", "gather")];
    for variable in &variables {
        assert!(has_object(&run(&line, frozen(object, &[*variable]))), "{variable:?}");
    }
    assert!(!has_object(&run(&line, frozen(object, &[("PALIMPSEST_FREEZE", "fork:2")]))));
    let both = format!("{object}:{}", other.display());
    assert!(has_object(&run(&line, frozen(&both, &[]))));
    let names: Vec<String> = (0..256).map(|number| format!("VARIABLE_{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert!(has_object(&run(&line, frozen(object, &many))));
    // On a stack for signals there may be no room.
    for kind in ["execl", "fexecve", "handler"] {
        assert!(has_object(&run(&[&[executes, kind], CAT.as_slice()].concat(), frozen(object, &[]))), "{kind}");
    }
    // An empty variable stays as it is.
    let line = ["/bin/sh", "-c", "LD_PRELOAD= /usr/bin/printenv LD_PRELOAD"];
    assert_eq!(run(&line, frozen(object, &[])).status, Some(0));
    // What the kernel answers to an address where nothing is, and in a program that a filter ends for more calls.
    for kind in ["nowhere", "confined"] {
        assert_eq!(run(&[executes, "own", kind, "/bin/cat"], frozen(object, &[])).status, Some(0), "{kind}");
    }
}

/// Fails on: an array, a string or a path that the object reads though it cannot be read, where the kernel refuses it.
#[test]
fn what_cannot_be_read_is_refused_as_without_the_object() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/faults.c");
    let Some(faults) = compile(Path::new(source), "faults", &[]) else { return };
    let line = [faults.to_str().expect("UTF-8"), "/bin/true"];
    let (plain, ran) = (run(&line, PLAIN), run(&line, frozen(object().to_str().expect("UTF-8"), &[])));
    assert_eq!((plain.status, ran.status), (Some(0), Some(0)), "{}", ran.stderr);
    assert_eq!(ran.stdout, plain.stdout);
}

/// Fails on: a file that stays open if a handler leaves the look at it by a jump; a mask that the program inherits.
#[test]
fn signals_wait_until_a_file_is_closed() {
    let (Some(executes), object) = (executes(), object()) else { return };
    let way = frozen(object.to_str().expect("UTF-8"), &[]);
    for kind in ["execve", "vfork", "posix_spawn"] {
        let line = [executes, kind, "/bin/grep", "SigBlk", "/proc/self/status"];
        assert_eq!(run(&line, way).stdout, run(&line, PLAIN).stdout, "{kind}");
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/jumps.c");
    let Some(jumps) = compile(Path::new(source), "jumps", &[]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("true");
    std::fs::copy("/bin/true", &program).expect("coreutils are there");
    let ran = run(&[jumps.to_str().expect("UTF-8"), program.to_str().expect("UTF-8")], way);
    if ran.status == Some(77) {
        println!("skipped: the kernel tells of no reads: {}", ran.stderr);
        return;
    }
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
}

/// Fails on: a report of the process that `palimpsest run` has started, which is lost with the object.
#[test]
fn the_process_that_was_started_is_told_of_whatever_it_executes() {
    let Some(executes) = executes() else { return };
    let line = [&[executes, "own", "execve"], CAT.as_slice()].concat();
    let ran = started(&line, &[]);
    assert!(has_object(&ran));
    assert!(ran.report.starts_with("palimpsest: froze nothing in process "), "{}", ran.report);
    // Its children are not.
    for kind in ["vfork", "execve", "posix_spawn"] {
        assert!(!has_object(&started(&[&[executes, kind], CAT.as_slice()].concat(), &[])), "{kind}");
    }
    assert!(!has_object(&run(&line, frozen(object().to_str().expect("UTF-8"), &[]))));
}
