//! Waits while a freeze in slices is under way: the program sees what it would see without the object.

use std::path::Path;

use crate::common::{PLAIN, compile, frozen, object, other_object, run, scenarios, slices};

/// Runs the program plainly and with slices that copy the least that they may. Returns their reports.
fn compare(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Option<String> {
    let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources"));
    let source = match name.split('-').next() {
        Some("waits") => "waits.c",
        Some("confined") => "confined_waits.c",
        Some("alternate") => "alternate_stack.c",
        Some("ignored") => "ignored_waits.c",
        _ => "full_report.c",
    };
    let program = compile(&sources.join(source), name, &[])?;
    let command = [&[program.to_str().expect("a path in UTF-8")], arguments].concat();
    let object = object();
    let plain = run(&command, PLAIN);
    let ran = run(&command, frozen(object.to_str().expect("a path in UTF-8"), variables));
    assert_eq!(ran.stdout, plain.stdout, "{}{}", ran.stderr, ran.report);
    assert_eq!((ran.status, plain.status), (Some(0), Some(0)), "{}", ran.stderr);
    assert_eq!(ran.stderr, "");
    Some(ran.report)
}

#[test]
fn every_wait_is_as_without_the_object_and_the_freeze_ends_in_them() {
    // Each kind of wait is the first one once, in which most slices are taken.
    for first in ["0", "1", "2", "3", "4", "5", "6", "7"] {
        let Some(report) = compare("waits-least", &[first], &[("PALIMPSEST_PAUSE", "1ns")]) else { return };
        // 64 MiB in parts of 128 KiB; the program forks a few times.
        assert!(slices(&report) >= 512, "{report}");
        assert!(!report.contains("under way") && report.matches("froze process").count() == 1, "{report}");
    }
}

#[test]
fn so_it_is_at_any_pause() {
    for pause in ["100us", "1ms", "1s"] {
        if let Some(report) = compare("waits-more", &[], &[("PALIMPSEST_PAUSE", pause)]) {
            assert!(slices(&report) >= 1 && !report.contains("under way"), "{report}");
        }
    }
}

#[test]
fn threads_are_held_in_slices_and_can_be_canceled_in_waits() {
    let variables = [("PALIMPSEST_PAUSE", "1ns"), ("PALIMPSEST_THREADS", "stop")];
    let Some(report) = compare("waits-threads", &["thread"], &variables) else { return };
    assert!(slices(&report) >= 1, "{report}");
}

#[test]
fn the_main_thread_can_be_canceled_in_waits() {
    let variables = [("PALIMPSEST_PAUSE", "1ns"), ("PALIMPSEST_THREADS", "stop")];
    // One each of `epoll_wait`, `poll`, `select` and `nanosleep`.
    for way in ["0", "2", "4", "6"] {
        let _ = compare("waits-canceled", &["0", way], &variables);
    }
}

/// Fails on: a slice on a stack for signals that is an array on the main stack, below which are frames in use.
#[test]
fn a_handler_on_a_small_stack_waits_and_leaves_what_is_below_it() {
    for disarmed in ["", "disarmed"] {
        let variables = [("PALIMPSEST_PAUSE", "1ns")];
        let Some(report) = compare("alternate-waits", &["waits", disarmed], &variables) else { return };
        assert!(slices(&report) >= 1 && !report.contains("under way"), "{report}");
    }
}

/// Fails on: a freeze, in one go or in slices, or the unwinder's library loaded, on such a stack at a fork.
#[test]
fn a_handler_on_a_small_stack_forks_and_leaves_what_is_below_it() {
    for (pause, at, threads) in
        [("none", "fork", "refuse"), ("1ns", "fork", "refuse"), ("1ns", "fork:2", "refuse"), ("1ns", "fork", "stop")]
    {
        let variables = [("PALIMPSEST_PAUSE", pause), ("PALIMPSEST_FREEZE", at), ("PALIMPSEST_THREADS", threads)];
        let thread = if threads == "stop" { "thread" } else { "" };
        let Some(report) = compare("alternate-forks", &["forks", thread], &variables) else { return };
        assert!(report.contains("froze process"), "{report}");
    }
}

#[test]
fn ignored_signals_end_no_wait() {
    for pause in ["1ns", "2ms"] {
        if let Some(report) = compare("ignored", &[], &[("PALIMPSEST_PAUSE", pause)]) {
            assert!(slices(&report) >= 1, "{report}");
        }
    }
}

/// Fails on: a wait that is measured by two clocks, and ends never; one that asks the kernel past another object, which
/// knows of more descriptors.
#[test]
fn waits_of_other_objects_are_theirs() {
    let program = scenarios().and_then(Path::to_str);
    let (clock, waits) = (other_object("other_clock"), other_object("other_waits"));
    let (Some(program), Some(clock), Some(waits)) = (program, clock, waits) else { return };
    let object = object();
    let [object, clock, waits] = [&object, &clock, &waits].map(|path| path.to_str().expect("UTF-8"));
    for (scenario, objects, expected) in [
        ("other_waits", [object, waits], "epoll: 1 \npoll: 1 \nevents: 1\n"),
        ("other_clock", [object, clock], "until: 0\nfor: 0 \n"),
        ("other_clock", [clock, object], "until: 0\nfor: 0 \n"),
    ] {
        let ran = run(&[program, scenario], frozen(&objects.join(":"), &[("PALIMPSEST_PAUSE", "1ns")]));
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), expected), "{objects:?} {}{}", ran.stderr, ran.report);
    }
}

#[test]
fn nobody_waits_for_the_reader_of_a_report() {
    let _ = compare("full", &[], &[("PALIMPSEST_PAUSE", "1ns")]);
}

#[test]
fn a_filter_that_ends_the_program_for_calls_that_it_does_not_make_leaves_its_waits() {
    for who in ["self", "child"] {
        for trust in ["", "seccomp"] {
            let name = format!("confined-{who}-{trust}");
            let variables = [("PALIMPSEST_PAUSE", "1ns"), ("PALIMPSEST_TRUST", trust)];
            let _ = compare(&name, &[who], &variables);
        }
    }
}

/// Fails on: a look, a wait or an answer by a call that the program does not make, once another thread has confined it;
/// slices that go on beside the installation of a filter; a child that waits for a thread that it does not have.
#[test]
fn a_filter_that_another_thread_installs_for_all_leaves_the_wait_that_is_under_way() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/confined_from_outside.c");
    let Some(program) = compile(Path::new(source), "confined-from-outside", &[]) else { return };
    let (program, object) = (program.to_str().expect("a path in UTF-8"), object());
    let variables = [("PALIMPSEST_PAUSE", "1ns"), ("PALIMPSEST_THREADS", "stop")];
    let served = frozen(object.to_str().expect("a path in UTF-8"), &variables);
    let run_as = |way, arguments: [&str; 2]| {
        let ran = run(&[&[program][..], &arguments].concat(), way);
        if ran.status == Some(77) {
            return println!("skipped: this kernel takes no filters");
        }
        let told = format!("{arguments:?}: {}{}", ran.stderr, ran.report);
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "1\nwaited\n"), "{told}");
    };
    for how in ["epoll_wait", "epoll_pwait", "poll", "ppoll", "select", "pselect", "nanosleep"] {
        run_as(PLAIN, ["slices", how]);
        run_as(served, ["slices", how]);
        run_as(served, ["wait", how]);
    }
    run_as(served, ["children", "epoll_wait"]);
}

/// Fails on: a call that the program does not make, before it is known that a filter was there when it started; a
/// filter that only refuses, as those of containers, or ends whoever makes a call that can be left out, and keeps
/// programs from being frozen; a refusal that is not told.
#[test]
fn a_filter_that_was_there_before_the_program_ends_it_for_no_call_of_ours() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/inherited.c");
    let Some(program) = compile(Path::new(source), "inherited", &[]) else { return };
    let (program, object) = (program.to_str().expect("a path in UTF-8"), object());
    let slices = [("PALIMPSEST_PAUSE", "100us"), ("PALIMPSEST_PAYS_AFTER", "100")];
    let below = [&slices[..], &[("PALIMPSEST_FILTERS", "0")]].concat();
    let trusted = [&below[..], &[("PALIMPSEST_TRUST", "seccomp")]].concat();
    let added = "palimpsest: not frozen: the program has installed 1 seccomp filter(s), or a sandbox that ";
    let deadly = "palimpsest: not frozen: a seccomp filter would end the program for msync, ";
    let own = palimpsest_sys::proc::status::Status::of_this_thread().expect("/proc is mounted").seccomp_filters;
    for (action, variables, told) in [
        // Of a sandbox below `palimpsest run`, and from before it.
        ("kill", &below[..], Some(added)),
        ("refuse", &below, Some(added)),
        ("needed", &slices, Some(deadly)),
        ("kill", &slices, None),
        ("unit", &slices, None),
        ("refuse", &slices, None),
        ("refuse", &trusted, None),
    ] {
        let ran = run(&[program, action], frozen(object.to_str().expect("a path in UTF-8"), variables));
        if ran.status == Some(77) {
            return println!("skipped: this kernel takes no filters");
        }
        let case = format!("{action} {variables:?}: {}", ran.stderr);
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "worked\n"), "{case}");
        // Under a filter of the test's own, others are not the only ones below.
        if own != Some(0) {
            continue;
        }
        assert_eq!(ran.stderr.lines().count(), usize::from(told.is_some()), "{case}");
        assert!(ran.stderr.starts_with(told.unwrap_or("")), "{case}");
        let is_done = ["froze process", "gathered memory of process"].iter().any(|verb| ran.report.contains(verb));
        assert_eq!(is_done, told.is_none(), "{case}{}", ran.report);
    }
}

/// Fails on: a program that is not served for want of a call that can be left out; one that is ended for such a call;
/// what is left out, and not told.
#[test]
fn what_a_filter_from_before_the_program_ends_it_for_is_left_out_and_told() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/inherited.c");
    let Some(program) = compile(Path::new(source), "inherited-part", &[]) else { return };
    let (program, object) = (program.to_str().expect("a path in UTF-8"), object());
    let own = palimpsest_sys::proc::status::Status::of_this_thread().expect("/proc is mounted").seccomp_filters;
    let Some(own) = own else { return println!("skipped: this kernel does not count filters") };
    let early = "less memory is put into huge pages before the first fork";
    let unit = format!("mincore: {early}");
    let kill = format!(
        "getrusage, mincore, ppoll, epoll_pwait, process_vm_readv, process_vm_writev: nothing is done \
         in waits, {early}"
    );
    let told_by_run = format!("{},tried,mincore,pkey_mprotect", own + 1);
    for (action, filters, notes) in [
        ("unit", None, &[&unit[..]][..]),
        ("unit", Some(&told_by_run[..]), &[&unit]),
        ("kill", None, &[&kill, "get_mempolicy: memory with a policy for NUMA nodes is treated like other memory"]),
    ] {
        let variables = [("PALIMPSEST_PAUSE", "100us"), ("PALIMPSEST_PAYS_AFTER", "100")];
        let variables: Vec<_> = variables.into_iter().chain(filters.map(|told| ("PALIMPSEST_FILTERS", told))).collect();
        let ran = run(&[program, action], frozen(object.to_str().expect("a path in UTF-8"), &variables));
        if ran.status == Some(77) {
            return println!("skipped: this kernel takes no filters");
        }
        let case = format!("{action} {filters:?}: {}{}", ran.stderr, ran.report);
        assert_eq!((ran.status, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "worked\n", ""), "{case}");
        let is_done = ["froze process", "gathered memory of process"].iter().any(|verb| ran.report.contains(verb));
        assert!(is_done, "{case}");
        for note in notes {
            assert!(
                ran.report.contains(&format!("note: a seccomp filter would end the program for {note}\n")),
                "{case}"
            );
        }
        assert_eq!(ran.report.matches("seccomp").count(), notes.len(), "{case}");
    }
    // Nothing can be frozen; whether memory can be gathered is the kernel's to say.
    let variables = [("PALIMPSEST_PAUSE", "2ms"), ("PALIMPSEST_HUGE", "gather"), ("PALIMPSEST_PAYS_AFTER", "1000")];
    let ran = run(&[program, "files"], frozen(object.to_str().expect("a path in UTF-8"), &variables));
    let case = format!("files: {}{}", ran.stderr, ran.report);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "worked\n"), "{case}");
    assert!(!ran.report.contains("palimpsest: froze process"), "{case}");
    let is_gathered = ran.report.contains("palimpsest: gathered memory of process");
    assert!(is_gathered || ran.report.contains("memfd_create") || ran.stderr.contains("memfd_create"), "{case}");
    assert!(!is_gathered || ran.report.contains("would end the program for memfd_create: nothing is frozen"), "{case}");
}
