//! What the object costs a program that never forks much: system calls before it and at each fork, mappings that each
//! fork copies, and libraries that it would not load by itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::common::{PLAIN, Way, compile, frozen, object, run};

/// The program that counts.
fn counter() -> Option<&'static str> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/counter.c");
    // So that no child looks for a function in the object.
    PROGRAM.get_or_init(|| compile(Path::new(source), "counter", &["-Wl,-z,now"])).as_ref()?.to_str()
}

/// Returns the calls of a process that executes `command`, from one `getppid` to the next; `None`, after saying so, if
/// it cannot be traced.
fn calls(counter: &str, command: &[&str], way: Way<'_>) -> Option<Vec<usize>> {
    const REFUSED: i32 = 3;
    // The counter itself runs plainly, and what it executes runs in this way.
    let mut line = vec![counter, "count", "/usr/bin/env"];
    let preload = format!("LD_PRELOAD={}", way.preload);
    if !way.preload.is_empty() {
        line.push(&preload);
    }
    line.extend(command);
    let ran = run(&line, Way { preload: "", variables: way.variables });
    if ran.status == Some(REFUSED) {
        println!("skipped: ptrace is refused");
        return None;
    }
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    Some(ran.stderr.lines().map(|line| line.parse().expect("a number")).collect())
}

/// Fails on: another library with the object, also where other threads are to be held; another mapping of it, or one
/// made at its start; a heap that a start needs.
#[test]
fn a_start_loads_no_library_and_makes_no_more_mappings_than_it_must() {
    let (object, command) = (object(), ["cat", "/proc/self/maps"]);
    let plain = run(&command, PLAIN).stdout;
    let variables = [("PALIMPSEST_THREADS", "stop")];
    let served = run(&command, frozen(object.to_str().expect("UTF-8"), &variables)).stdout;
    let files = |maps: &str| -> BTreeSet<String> {
        let files = maps.lines().filter_map(|line| Some(line.split_once('/')?.1.to_owned()));
        files.filter(|file| file.contains(".so")).collect()
    };
    let more: Vec<String> = files(&served).difference(&files(&plain)).cloned().collect();
    let [own] = more.as_slice() else { panic!("{more:?}\n{served}") };
    assert!(own.ends_with("libpalimpsest_preload.so"), "{own}");
    let count = served.lines().filter(|line| line.ends_with(own)).count();
    // Code, constants, what is constant once it is relocated, and variables. Some linkers put constants on both sides
    // of the code, or leave a gap.
    assert!(count <= 6, "{count}: {served}");
    // The page that says whose memory it is, which the kernel makes one mapping with no other.
    let others = served.lines().count().saturating_sub(plain.lines().count() + count);
    assert!(others <= 1, "{others} more\n{plain}\n{served}");
}

/// Fails on: variables beyond the file, for which the dynamic linker makes a mapping more.
#[test]
fn all_that_is_loaded_of_the_object_comes_with_its_file() {
    // A header and its table of programs, of 64 bits (`Elf64_Ehdr` and `Elf64_Phdr` in elf.h).
    const LOAD: u64 = 1;
    let file = std::fs::read(object()).expect("the object can be read");
    let number = |at: usize, len: usize| {
        file[at..at + len].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let [start, size, count] = [number(32, 8), number(54, 2), number(56, 2)].map(|number| number as usize);
    let mut parts = (0..count).map(|part| start + part * size);
    // The last has the variables.
    let last = parts.rfind(|&header| number(header, 4) == LOAD).expect("something is loaded");
    let [of_file, of_memory] = [32, 40].map(|field| number(last + field, 8));
    if file.windows(5).any(|word| word == b"mold ") {
        return println!("skipped: mold keeps what begins as zeros apart");
    }
    assert_eq!(of_file, of_memory);
}

/// A little more than the present number, so that more must be argued for: loading the object takes 9, and its start 8.
/// Kernels and C libraries differ.
#[test]
fn a_start_makes_no_more_system_calls_than_it_must() {
    const MOST: usize = 24;
    let (Some(counter), object) = (counter(), object()) else { return };
    let object = object.to_str().expect("UTF-8");
    let Some(plain) = calls(counter, &["/bin/true"], PLAIN) else { return };
    let Some(served) = calls(counter, &["/bin/true"], frozen(object, &[])) else { return };
    let [plain, served] = [plain, served].map(|calls| calls.iter().sum::<usize>());
    println!("{plain} plain, {served} served");
    assert!(served > plain, "the object is not loaded");
    assert!(served - plain <= MOST, "{served} against {plain}");
}

/// A fork with too little memory asks whose memory it is and how much there has been at most; one that has frozen keeps
/// account (two clocks, and two questions for the process id). The least of thirty: the first freezes, some look at
/// what was written, or whether they had the processor to themselves, and some at how much memory there is now.
#[test]
fn a_fork_makes_no_more_system_calls_than_it_must() {
    let (Some(counter), object) = (counter(), object()) else { return };
    let object = object.to_str().expect("UTF-8");
    let each =
        |mebibytes: &str, way: Way<'_>| calls(counter, &[counter, "fork", "30", mebibytes], way)?.into_iter().min();
    for (mebibytes, most) in [("0", 2), ("16", 5)] {
        let Some(plain) = each(mebibytes, PLAIN) else { return };
        let Some(served) = each(mebibytes, frozen(object, &[])) else { return };
        println!("{mebibytes} MiB: {plain} plain, {served} served");
        assert!(served > plain, "the object is not loaded");
        assert!(served - plain <= most, "{mebibytes} MiB: {served} against {plain}");
    }
}

/// Returns the least of the page faults that a counter tells.
fn least_faults(line: &[&str], way: Way<'_>) -> usize {
    let ran = run(line, way);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    ran.stderr.lines().map(|line| line.parse().expect("a number")).min().expect("numbers")
}

/// Fails on: a variable that each fork writes to, on a page that the child shares. The least of thirty: the first ones
/// write to more, and the kernel to a page of its own where a thread loses its processor.
#[test]
fn a_fork_of_a_small_process_copies_no_more_pages() {
    let (Some(counter), object) = (counter(), object()) else { return };
    let each = |way| least_faults(&[counter, "faults", "30"], way);
    let (plain, served) = (each(PLAIN), each(frozen(object.to_str().expect("UTF-8"), &[])));
    println!("{plain} plain, {served} served");
    assert!(served <= plain, "{served} against {plain}");
}

/// Fails on: a child of a small process that comes back through the object, whose code it then has to map.
#[test]
#[cfg_attr(debug_assertions, ignore = "needs an optimised build: in others no call is the last one")]
fn a_child_of_a_small_process_takes_no_page_of_the_object() {
    let (Some(counter), object) = (counter(), object()) else { return };
    let each = |way| least_faults(&[counter, "begin-bare", "30"], way);
    let (plain, served) = (each(PLAIN), each(frozen(object.to_str().expect("UTF-8"), &[])));
    println!("{plain} plain, {served} served");
    assert!(served <= plain, "{served} against {plain}");
}

/// Fails on: tables or a heap with pages of their own in a process in which a look has found nothing to freeze: to copy
/// such a mapping, with its page table, takes each fork some 4 µs.
#[test]
fn a_look_that_finds_nothing_leaves_nothing_to_copy() {
    let (Some(counter), object) = (counter(), object()) else { return };
    let variables = [("PALIMPSEST_PAUSE", "2ms"), ("PALIMPSEST_PAYS_AFTER", "1")];
    let way = |moment| [variables[0], variables[1], ("PALIMPSEST_FREEZE", moment)];
    let counted = |moment| {
        let ran = run(&[counter, "begin-copied", "2304"], frozen(object.to_str().expect("UTF-8"), &way(moment)));
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        let mut numbers = ran.stderr.lines().map(|line| line.parse::<usize>().expect("a number"));
        let mut next = || numbers.next().expect("two numbers");
        ((next(), next()), ran.report)
    };
    let ((unseen, unseen_own), report) = counted("size:1G");
    assert!(report.contains("at none of its 8 forks"), "nothing is looked at: {report}");
    let ((looked, looked_own), report) = counted("size:2M");
    let is_in_vain = report.contains("it was not frozen") && !report.contains("at none of its 8 forks");
    assert!(is_in_vain, "{report}");
    println!("{unseen} and {looked} mappings, {unseen_own} and {looked_own} of them with own pages");
    // The tables, to which nobody has written.
    assert!(looked <= unseen + 1, "{looked} against {unseen}");
    assert!(looked_own <= unseen_own, "{looked_own} against {unseen_own}");
}

/// Fails on: a child that ends and looks far away in the object whether to report that, or writes to a page of it.
#[test]
#[cfg_attr(debug_assertions, ignore = "needs an optimised build: where code lies in others is chance")]
fn a_child_that_ends_takes_no_more_pages_than_it_must() {
    const MOST: usize = 1;
    let (Some(counter), object) = (counter(), object()) else { return };
    let each = |way| least_faults(&[counter, "begin-ends", "30"], way);
    let object = object.to_str().expect("UTF-8");
    let (plain, served) = (each(PLAIN), each(frozen(object, &[("PALIMPSEST_FREEZE", "size:1G")])));
    println!("{plain} plain, {served} served");
    assert!(served <= plain + MOST, "{served} against {plain}");
}

/// Fails on: a program below `palimpsest run` that asks the kernel what it was told.
#[test]
fn a_program_that_is_told_how_many_filters_there_are_opens_no_file() {
    let (Some(counter), object) = (counter(), object()) else { return };
    let object = object.to_str().expect("UTF-8");
    let start = |variables| calls(counter, &["/bin/true"], frozen(object, variables)).map(|calls| calls.iter().sum());
    let Some(asks): Option<usize> = start(&[]) else { return };
    let Some(is_told): Option<usize> = start(&[("PALIMPSEST_FILTERS", "0")]) else { return };
    // It opens, reads at least once, and closes; a debug build asks about the descriptor before it closes it.
    assert!(is_told + 3 <= asks, "{is_told} against {asks}");
}

/// A program that is kept busy pays nothing for a freeze under way: the call that asks whether anything has come also
/// hands it on, and a wait too short for a slice is left alone. Only `select` must have its sets copied, which takes
/// two copies and two questions for the process id.
#[test]
fn a_wait_that_is_no_wait_makes_no_more_system_calls_than_it_must() {
    let (Some(counter), object) = (counter(), object()) else { return };
    let object = object.to_str().expect("UTF-8");
    let each = |kind: &str, way: Way<'_>| {
        let mut calls = calls(counter, &[counter, "wait", kind], way)?;
        calls.sort_unstable();
        Some(calls[calls.len() / 2])
    };
    for (kind, most) in [("poll", 0), ("nanosleep", 0), ("select", 4)] {
        let Some(plain) = each(kind, PLAIN) else { return };
        let Some(served) = each(kind, frozen(object, &[("PALIMPSEST_PAUSE", "1ms")])) else { return };
        println!("{kind}: {plain} plain, {served} served");
        assert!(served <= plain + most, "{kind}: {served} against {plain}");
    }
}
