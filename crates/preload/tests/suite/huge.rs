//! Memory that is to be gathered.

use std::path::{Path, PathBuf};

use palimpsest_sys::proc::status::Status;

use crate::common::{PLAIN, STARTED, compile, frozen, object, run};

const GATHER: (&str, &str) = ("PALIMPSEST_HUGE", "gather");

/// Builds the program for one test, under a name of its own.
fn program(name: &str) -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/huge.c");
    compile(Path::new(source), &format!("huge-{name}"), &[])
}

/// Returns what the program says; with these variables, or plain.
fn said(scenario: &str, variables: Option<&[(&str, &str)]>) -> Option<String> {
    let program = program(scenario)?;
    let object = object();
    let object = object.to_str().expect("a path in UTF-8");
    // Those of a container, which `palimpsest run` would have tried.
    let own = Status::of_this_thread().expect("/proc is mounted").seccomp_filters;
    let tried = own.filter(|&own| own > 0).map(|own| format!("{own},tried"));
    let tried = tried.as_deref().map(|tried| ("PALIMPSEST_FILTERS", tried));
    let variables: Option<Vec<_>> = variables.map(|some| some.iter().copied().chain(tried).collect());
    let way = variables.as_ref().map_or(PLAIN, |variables| frozen(object, variables));
    let ran = run(&[program.to_str().expect("a path in UTF-8"), scenario], way);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    Some(ran.stdout)
}

/// Fails on: advice for what is small, reserved without rights or a stack; advice that outlives the program's own; no
/// advice, whichever way the program maps memory; advice that nobody has asked for.
#[test]
fn large_memory_is_in_huge_pages_from_the_start_if_it_is_to_be_gathered() {
    if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return println!("skipped: this kernel has no huge pages");
    }
    let nothing = "large 0 reserved 0 small 0 none 0 stack 0 own 0 1\n";
    for (variables, expected) in [
        (Some(&[GATHER][..]), "large 1 reserved 1 small 0 none 0 stack 0 own 0 1\n"),
        (Some(&[GATHER, ("PALIMPSEST_FREEZE", "off")]), nothing),
        (Some(&[GATHER, ("PALIMPSEST_DRY_RUN", "1")]), nothing),
        (Some(&[GATHER, ("PALIMPSEST_ONLY", "another")]), nothing),
        (Some(&[]), nothing),
        (None, nothing),
    ] {
        for way in ["advice", "bare-advice"] {
            let Some(said) = said(way, variables) else { return };
            assert_eq!(said, expected, "{way} {variables:?}");
        }
    }
}

/// From Linux 6.17 on, a move to another place takes several mappings along if their length stays.
fn moves_several() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 17)
}

/// The one thing that a program may notice, as the book says it. Fails on: a call that is refused after half of it was
/// done; advice for one of two large neighbours, or for memory that is not to be gathered; a refusal that the book does
/// not tell.
#[test]
fn large_memory_and_a_small_neighbour_are_two_mappings_if_it_is_to_be_gathered() {
    if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return println!("skipped: this kernel has no huge pages");
    }
    let as_ever = "moved done whole\ngrown done whole\n";
    let apart = if moves_several() {
        "moved done whole\ngrown refused whole\n"
    } else {
        "moved refused whole\ngrown refused whole\n"
    };
    for (neighbour, variables, expected) in [
        ("small", None, as_ever),
        ("small", Some(&[][..]), as_ever),
        ("small", Some(&[GATHER]), apart),
        ("large", Some(&[GATHER]), as_ever),
    ] {
        let Some(said) = said(neighbour, variables) else { return };
        assert_eq!(said, expected, "{neighbour} {variables:?}");
    }
}

/// Unless told otherwise, these programs freeze all at once, whether that pays or not.
const SLICES: [(&str, &str); 2] = [("PALIMPSEST_PAUSE", "2ms"), ("PALIMPSEST_PAYS_AFTER", "100")];

/// Fails on: huge pages for a program that touches its memory here and there, or for one that is to be frozen; none for
/// one that fills what it maps.
#[test]
fn memory_of_a_program_that_uses_it_is_in_huge_pages_from_the_start() {
    if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return println!("skipped: this kernel has no huge pages");
    }
    let off = [&SLICES[..], &[("PALIMPSEST_HUGE", "off")]].concat();
    for (scenario, variables, expected) in [
        // What comes after the first 8 MiB; one less where the kernel counts so many pages for each of many CPUs first.
        ("dense", &SLICES[..], &["10 of 12 huge\n", "9 of 12 huge\n"][..]),
        ("sparse", &SLICES, &["0 of 12 huge\n"]),
        ("dense", &SLICES[..1], &["0 of 12 huge\n"]),
        ("dense", &SLICES[1..], &["0 of 12 huge\n"]),
        ("dense", &off, &["0 of 12 huge\n"]),
        ("sparse", &[GATHER], &["12 of 12 huge\n"]),
    ] {
        let Some(said) = said(scenario, Some(variables)) else { return };
        assert!(expected.contains(&said.as_str()), "{scenario} {variables:?}: {said}");
    }
}

/// Fails on: memory that stays in base pages because it was mapped too early; a huge page for memory of which an eighth
/// is not used; one for pages that a child may share, or that nobody has asked for.
#[test]
fn what_was_mapped_too_early_follows() {
    let off = [&SLICES[..], &[("PALIMPSEST_HUGE", "off")]].concat();
    // Nothing is put off to a wait at the first fork, from which on the engine would be asked.
    let later = [&SLICES[..], &[("PALIMPSEST_FREEZE", "fork:9")]].concat();
    for (scenario, variables, expected) in [
        ("earlier", &SLICES[..], "huge, base\n"),
        ("forked", &SLICES, "base, base\n"),
        ("forked", &later, "base, base\n"),
        ("earlier", &off, "base, base\n"),
    ] {
        let Some(said) = said(scenario, Some(variables)) else { return };
        if said.starts_with("skipped: ") {
            return print!("{said}");
        }
        assert_eq!(said, expected, "{scenario} {variables:?}");
    }
}

/// An inherited filter may refuse whatever the object asks for. Fails on: an `errno` that only such a refusal sets.
#[test]
fn a_mapping_that_was_made_leaves_errno() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/confined.c");
    let Some(confined) = compile(Path::new(source), "confined-errno", &[]) else { return };
    let Some(program) = program("errno") else { return };
    let (confined, program) = (confined.to_str().expect("UTF-8"), program.to_str().expect("UTF-8"));
    let (object, gathers) = (object(), [GATHER]);
    let preload = format!("LD_PRELOAD={}", object.display());
    // One that `palimpsest run` has tried: nothing is asked for under an unknown one.
    let own = Status::of_this_thread().expect("/proc is mounted").seccomp_filters.unwrap_or(0);
    let tried = format!("PALIMPSEST_FILTERS={},tried", own + 1);
    for (call, variables) in [(libc::SYS_getrusage, &SLICES[..]), (libc::SYS_madvise, &gathers)] {
        let call = call.to_string();
        let variables: Vec<_> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let start = [confined, &call, "env", &preload, &tried];
        let command: Vec<_> = start.into_iter().chain(variables.iter().map(String::as_str)).collect();
        let ran = run(&[&command[..], &[program, "errno"]].concat(), PLAIN);
        if ran.status == Some(77) {
            return println!("skipped: this kernel takes no filters");
        }
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "7 7 7 7\n"), "{call}: {}", ran.stderr);
    }
}

/// Fails on: a first fork with a plan before it; a second one without; an end that does not tell why nothing was done.
#[test]
fn who_forks_once_and_never_waits_is_left_alone() {
    let Some(program) = program("forks") else { return };
    let object = object();
    let (program, object) = (program.display(), object.display());
    let ran = |variables: &str, times: &str| {
        let script = format!("{variables} PALIMPSEST_STARTED={STARTED} LD_PRELOAD={object} exec {program} {times}");
        let ran = run(&["sh", "-c", &script], PLAIN);
        assert_eq!((ran.status, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "done\n", ""), "{variables}");
        ran.report
    };
    let slices = "PALIMPSEST_PAUSE=2ms PALIMPSEST_PAYS_AFTER=100";
    let left = "it was not frozen: since its first fork it has neither forked again nor waited for long enough";
    for (variables, times, is_left) in [
        (slices.to_owned(), "once", true),
        (slices.to_owned(), "twice", false),
        (format!("{slices} PALIMPSEST_HUGE=off"), "once", false),
        (format!("{slices} PALIMPSEST_FREEZE=fork"), "once", false),
        (String::new(), "once", false),
    ] {
        let report = ran(&variables, times);
        assert_eq!(report.contains(left), is_left, "{variables} {times}: {report}");
        assert_eq!(report.contains("palimpsest: froze process"), !is_left, "{variables} {times}: {report}");
    }
}

/// Fails on: a wait that is missed, and not the filter that keeps the object from using waits.
#[test]
fn who_leaves_waits_alone_for_a_filter_says_so_at_the_end() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/inherited.c");
    let Some(filter) = compile(Path::new(source), "inherited-once", &[]) else { return };
    let Some(program) = program("forks-once") else { return };
    let object = object();
    let (program, object, filter) = (program.display(), object.display(), filter.display());
    let variables = format!("PALIMPSEST_PAUSE=2ms PALIMPSEST_PAYS_AFTER=100 PALIMPSEST_STARTED={STARTED}");
    let script = format!("{variables} LD_PRELOAD={object} exec {filter} kill {program} once");
    let ran = run(&["sh", "-c", &script], PLAIN);
    if ran.status == Some(77) {
        return println!("skipped: this kernel takes no filters");
    }
    assert_eq!((ran.status, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "done\n", ""));
    let told = "it was not frozen: since its first fork it has not forked again, and a seccomp filter would end the \
                program for ";
    assert!(ran.report.contains(told) && ran.report.contains(": nothing is done in waits"), "{}", ran.report);
}

/// Fails on: a deputy that the program before has left behind, whichever way it executed this one; waiting for a deputy
/// under a filter that ends whoever waits.
#[test]
fn a_program_that_is_executed_has_no_child_that_it_does_not_know() {
    for way in ["executed", "bare", "confined"] {
        // If everything were frozen, whether it pays or not, nothing would be gathered.
        let variables = [GATHER, ("PALIMPSEST_PAUSE", "1ms"), ("PALIMPSEST_PAYS_AFTER", "64")];
        let Some(ran) = said(way, Some(&variables)) else { return };
        // No deputy where the kernel makes huge pages is an error.
        if ran.starts_with("skipped: ") {
            return print!("{ran}");
        }
        assert_eq!(ran, "0 children\n", "{way}");
    }
}
