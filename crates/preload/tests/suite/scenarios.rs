//! The memory that a program sees is the same, frozen or not.

use crate::common::{PLAIN, Ran, STARTED, Way, frozen};
use crate::common::{assert_same, linked_scenarios, object, other_object, run, scenarios, slices, static_scenarios};

/// The settings under which each scenario runs.
const VARIANTS: [&[(&str, &str)]; 2] = [&[], &[("PALIMPSEST_EXTENT", "4M"), ("PALIMPSEST_HUGE", "collapse")]];

fn same_and_frozen(scenario: &str) {
    for variables in VARIANTS {
        let Some(Ran { stderr, report, .. }) = assert_same(scenario, variables) else { return };
        // Programs that it executes are served for themselves.
        let own = report.lines().filter(|line| line.starts_with("palimpsest: froze") && line.contains("(scenarios"));
        assert_eq!(own.count(), 1, "{scenario}: {report}{stderr}");
        assert_eq!(stderr, "", "{scenario}");
    }
}

macro_rules! same_and_frozen {
    ($($scenario:ident)*) => {
        $(#[test]
        fn $scenario() {
            same_and_frozen(stringify!($scenario));
        })*
    };
}

same_and_frozen! {
    dontneed dontneed_syscall advise_free advise_remove wipeonfork erased dontfork other_advice dontneed_many
    dontneed_over_hole dontneed_none
    mremap_grow_in_place mremap_move mremap_shrink_regrow mremap_chunks mremap_half_frozen mremap_middle mremap_errors
    mremap_dontunmap mremap_syscall
    map_fixed map_fixed_file unmap_and_map unmap_unseen unmap_syscall map_errors attached attached_syscall
    confined_attaches
    locking locking_all crowded protect protect_raced breaking callocs reallocs
    errnos nested many_forks fork_in_handler fork_in_malloc close_all executing vforking piping atforks
    cancelled_command
}

/// Fails on: a thread that ends in a call in which it would not end without the object, or ends the process there; a
/// child that cannot be cancelled.
#[test]
fn a_cancelled_thread_ends_in_none_of_these_calls() {
    let (at_once, stop) = (("PALIMPSEST_FREEZE", "fork"), ("PALIMPSEST_THREADS", "stop"));
    let (late, told) = (("PALIMPSEST_FREEZE", "size:1G"), ("PALIMPSEST_FILTERS", "0"));
    for variables in [&[at_once][..], &[at_once, stop], &[stop], &[late], &[late, told]] {
        let Some(ran) = assert_same("cancelled_fork", variables) else { return };
        assert!(ran.stdout.starts_with("forked\ncanceled: 1\nchild: 1\n"), "{}", ran.stdout);
        assert_eq!(ran.report.contains("froze process"), variables.contains(&stop), "{}{}", ran.stderr, ran.report);
    }
    for (scenario, variables) in [("cancelled_calls", &[stop][..]), ("cancelled_erasing", &[])] {
        let Some(ran) = assert_same(scenario, variables) else { return };
        assert!(ran.report.contains("froze process"), "{}{}", ran.stderr, ran.report);
    }
    let Some(ran) = assert_same("cancelled_filter", &[at_once]) else { return };
    assert!(
        ran.stderr.starts_with("palimpsest: not frozen: the program installs a seccomp filter, "),
        "{}",
        ran.stderr
    );
}

#[test]
fn threads_are_a_reason_to_refuse() {
    let Some(ran) = assert_same("threads", &[]) else { return };
    assert!(ran.stderr.starts_with("palimpsest: not frozen: the process has 3 threads"), "{}", ran.stderr);
    assert!(ran.stderr.contains("; freeze before"), "a way out: {}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "told once, though it forks often: {}", ran.stderr);
    assert!(ran.report.starts_with("palimpsest: froze nothing in process "), "{}", ran.report);
    assert!(ran.report.contains("it was not frozen: the process has 3 threads"), "{}", ran.report);
}

#[test]
fn threads_are_stopped_on_request() {
    let Some(ran) = assert_same("threads", &[("PALIMPSEST_THREADS", "stop")]) else { return };
    assert_eq!(ran.stderr, "");
    assert!(ran.report.contains("froze process"), "{}", ran.report);
}

#[test]
fn a_limit_on_file_sizes_is_a_reason_to_refuse() {
    let Some(ran) = assert_same("limits", &[]) else { return };
    assert!(ran.stderr.starts_with("palimpsest: not frozen: RLIMIT_FSIZE is 1048576"), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1);
}

#[test]
fn locked_memory_is_a_reason_to_refuse_unless_it_is_answered_for() {
    let Some(ran) = assert_same("locked_future", &[]) else { return };
    if ran.stdout.contains("mlockall future: -1") {
        return println!("skipped: memory cannot be locked (RLIMIT_MEMLOCK)");
    }
    assert!(ran.stderr.starts_with("palimpsest: not frozen: all memory is locked"), "{}", ran.stderr);
    assert!(ran.stderr.contains("PALIMPSEST_TRUST=locked"), "a way out: {}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1);
    assert!(ran.report.contains("it was not frozen: all memory is locked"), "{}", ran.report);
    let Some(ran) = assert_same("locked_future", &[("PALIMPSEST_TRUST", "locked")]) else { return };
    assert_eq!(ran.stderr, "");
    assert!(ran.report.contains("froze process"), "{}", ran.report);
}

#[test]
fn a_filter_of_the_program_is_a_reason_to_refuse() {
    let Some(ran) = assert_same("sandboxed", &[]) else { return };
    assert!(
        ran.stderr.starts_with("palimpsest: not frozen: the program installs a seccomp filter, "),
        "{}",
        ran.stderr
    );
    assert_eq!((ran.stderr.lines().count(), ran.report.as_str()), (1, ran.stderr.as_str()));
    let Some(ran) = assert_same("sandboxed", &[("PALIMPSEST_TRUST", "seccomp")]) else { return };
    assert!(ran.report.contains("froze process"), "{}", ran.stderr);
}

/// The filter ends whoever opens a file: a fork, a program that cannot be executed and the end of the process open
/// none. Fails on: a filter of which no line tells that it forbids the freeze, also after a fork that was put off.
#[test]
fn a_filter_that_forbids_to_open_files_ends_nothing() {
    for way in ["confined_forks", "confined_by_syscall", "confined_by_syscall_prctl"] {
        let Some(ran) = assert_same(way, &[]) else { return };
        let said = ran.stderr;
        assert!(said.starts_with("palimpsest: not frozen: the program installs a seccomp filter, "), "{way}: {said}");
    }
    // The first fork was a plain one, and from the filter on nothing begins.
    let slices = [("PALIMPSEST_PAUSE", "2ms"), ("PALIMPSEST_PAYS_AFTER", "100")];
    let ran = assert_same("confined_after_fork", &slices).expect("compiled above");
    let said = (ran.stderr, ran.report);
    assert!(said.0.starts_with("palimpsest: not frozen: the program installs a seccomp filter, "), "{said:?}");
    assert_eq!(said.1, said.0);
    // Too small to be frozen yet: the object reports nothing and looks at nothing.
    let ran = assert_same("confined_forks", &[("PALIMPSEST_FREEZE", "size:1G")]).expect("compiled above");
    assert_eq!(ran.stderr, "");
    let ran = assert_same("confined_executes", &[]).expect("compiled above");
    assert!(ran.report.contains("froze process"), "{}", ran.stderr);
    let script = format!(
        "PALIMPSEST_STARTED={STARTED} PALIMPSEST_FREEZE=size:1G LD_PRELOAD={} exec {} confined_forks",
        object().display(),
        scenarios().expect("compiled above").display()
    );
    assert_eq!(run(&["sh", "-c", &script], PLAIN).status, Some(0));
}

#[test]
fn children_have_no_page_tables_for_frozen_memory() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let tables = |way| -> u64 {
        let ran = run(&[program, "child_tables"], way);
        ran.stdout.trim().parse().unwrap_or_else(|_| panic!("no number: {}{}", ran.stdout, ran.stderr))
    };
    let object = object();
    let (plain, frozen) = (tables(PLAIN), tables(frozen(object.to_str().expect("UTF-8"), &[])));
    assert!(plain >= 256, "{plain} kB for 128 MiB");
    assert!(frozen <= 96, "{frozen} kB");
}

#[test]
fn core_dumps_keep_private_memory() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let object = object();
    let command = ["sh", "-c", &format!("echo 0x33 >/proc/self/coredump_filter; exec {program} core_filter")];
    let ran = run(&command, frozen(object.to_str().expect("a path in UTF-8"), &[]));
    assert_eq!(ran.stdout, "filter 00000037\n", "{}", ran.stderr);
}

/// `execve` passes the filter on, and what this program froze does not concern the next.
#[test]
fn executed_programs_get_the_filter_of_core_dumps_that_was_before() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let object = object();
    let command = ["sh", "-c", &format!("echo 0x33 >/proc/self/coredump_filter; exec {program} core_filter_executed")];
    let ran = run(&command, frozen(object.to_str().expect("a path in UTF-8"), &[]));
    assert_eq!(ran.status, Some(0), "{}{}", ran.stdout, ran.stderr);
    let ways = "execve execv execvp execvpe execl execlp execle fexecve execveat syscall vfork \
                posix_spawn posix_spawnp system popen";
    let expected: String =
        ways.split_whitespace().map(|way| format!("{way}: 00000033\nafterwards: 00000037\n")).collect();
    assert_eq!(
        ran.stdout,
        format!("{expected}failed: -1\nafterwards: 00000037\nits own: 00000003\n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_file_that_took_the_place_of_standard_error_is_left_alone() {
    let Some(ran) = assert_same("no_standard_error", &[]) else { return };
    assert_eq!(ran.stdout, "descriptor 2 has 0 bytes\n");
}

#[test]
fn locked_memory_is_thawed_so_that_it_is_held_once() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let ran = run(&[program, "locking_thaws"], frozen(object().to_str().expect("UTF-8"), &[]));
    if ran.status == Some(99) {
        return println!("skipped: memory cannot be locked (RLIMIT_MEMLOCK): {}", ran.stdout);
    }
    let expected = "frozen: 1\nafter mlock: 0\nafter mlock2: 0\nafter syscall: 0\nelsewhere: 1 1\n";
    assert_eq!(ran.stdout, format!("{expected}both: -1, 0 0\nsame: 1\n"), "{}", ran.stderr);
}

/// Fails on: an extent that still has the bytes of a secret, of which it shows nothing any longer.
#[test]
fn what_is_erased_is_gone_also_where_something_else_was_mapped() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let ran = run(&[program, "erased_elsewhere"], frozen(object().to_str().expect("UTF-8"), &[]));
    assert_eq!(ran.stdout, "frozen: 1 0\nafter erasing: 0, elsewhere: 1\n", "{}{}", ran.stderr, ran.report);
}

/// The object is part of the program here, since the dynamic linker preloads next to nothing into such programs.
#[test]
fn a_program_with_more_rights_than_its_caller_is_left_alone() {
    let Some((_folder, program)) = linked_scenarios() else { return };
    let path = program.to_str().expect("a path in UTF-8");
    let plain = run(&[path, "secure"], PLAIN);
    assert_eq!(plain.stdout, "secure: 0\nfrozen: 1\n", "the object works: {}", plain.stderr);
    // Root runs it as a user with fewer rights; what matters is that the two differ.
    if let Err(error) = std::os::unix::fs::chown(&program, Some(65534), Some(65534)) {
        return println!("skipped: only root can give a program to another user: {error}");
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o6755);
    std::fs::set_permissions(&program, mode).expect("it is ours to change");
    let ran = run(&[path, "secure"], Way { preload: "", variables: &[("PALIMPSEST_FREEZE", "fork")] });
    std::fs::remove_file(&program).expect("nobody should find such a program");
    if !ran.stdout.starts_with("secure: 1\n") {
        return println!(
            "skipped: the file system gives no rights (nosuid), or the program cannot start: {}",
            ran.stdout
        );
    }
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str(), ran.report.as_str()), ("secure: 1\nfrozen: 0\n", "", ""));
}

#[test]
fn a_static_program_is_untouched() {
    let Some(program) = static_scenarios() else { return };
    let program = program.to_str().expect("a path in UTF-8");
    let plain = run(&[program, "dontneed"], PLAIN);
    let ran = run(&[program, "dontneed"], frozen(object().to_str().expect("a path in UTF-8"), &[]));
    assert_eq!((ran.stdout, ran.status), (plain.stdout, Some(0)));
    assert!(!ran.report.contains("scenarios"), "{}", ran.report);
}

/// Memory is frozen between the object's question and the program's call.
#[test]
fn memory_that_is_frozen_meanwhile_is_discarded_all_the_same() {
    let (Some(program), Some(slow)) = (scenarios().and_then(|path| path.to_str()), other_object("slow_madvise")) else {
        return;
    };
    let objects = format!("{}:{}", object().display(), slow.display());
    let ran = run(&[program, "discard_meanwhile"], frozen(&objects, &[("PALIMPSEST_THREADS", "stop")]));
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "0 pages are not zero\n"), "{}", ran.stderr);
    assert!(ran.report.contains("froze"), "{}{}", ran.report, ran.stderr);
}

#[test]
fn a_child_of_vfork_leaves_its_parents_memory_alone() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let object = object();
    let ran = run(&[program, "vfork_forks"], frozen(object.to_str().expect("UTF-8"), &[]));
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "0 stores are lost\n"), "{}{}", ran.stderr, ran.report);
    assert_eq!(ran.report, "", "nobody but a child of vfork forks");
}

/// Fails on: a child of `vfork` that switches its parent off for good.
#[test]
fn a_child_of_vfork_that_confines_itself_leaves_its_parent_unconfined() {
    let Some(ran) = assert_same("vfork_confines", &[("PALIMPSEST_FREEZE", "fork")]) else { return };
    if ran.stdout.contains("confined: 7") {
        return println!("skipped: this kernel takes no filters");
    }
    assert!(ran.report.contains("froze process") && ran.stderr.is_empty(), "{}{}", ran.stderr, ran.report);
    let ran = assert_same("vfork_confines_in_slices", &[("PALIMPSEST_PAUSE", "1ns")]).expect("compiled above");
    // The forks alone take two or three.
    assert!(slices(&ran.report) >= 10, "{}{}", ran.stderr, ran.report);
}
