//! The fork server as fuzzers see it: tested by a driver that plays afl-fuzz, and by AFL++ itself if it is installed.

#[path = "forkserver/driver.rs"]
mod driver;
#[path = "forkserver/host.rs"]
mod host;
#[path = "forkserver/segment.rs"]
mod segment;
#[path = "forkserver/target.rs"]
mod target;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use driver::{Driver, Ending, Greeting};

const LONG: Duration = Duration::from_secs(600);

/// The tests. libtest would run each on its own thread, but neither a target nor a host can start beside other threads.
const TESTS: &[(&str, fn())] = &[
    ("the_target_greets_in_both_generations", the_target_greets_in_both_generations),
    (
        "runs_end_as_they_should_and_find_no_trace_of_each_other",
        runs_end_as_they_should_and_find_no_trace_of_each_other,
    ),
    ("a_run_that_hangs_is_killed_and_the_next_one_works", a_run_that_hangs_is_killed_and_the_next_one_works),
    (
        "a_worker_that_was_killed_after_it_had_stopped_is_replaced",
        a_worker_that_was_killed_after_it_had_stopped_is_replaced,
    ),
    (
        "every_run_of_a_forking_mode_has_a_worker_of_its_own_and_a_reset_keeps_one",
        every_run_of_a_forking_mode_has_a_worker_of_its_own_and_a_reset_keeps_one,
    ),
    (
        "a_target_that_takes_its_children_away_keeps_that_to_itself",
        a_target_that_takes_its_children_away_keeps_that_to_itself,
    ),
    ("the_map_shows_the_same_in_every_mode", the_map_shows_the_same_in_every_mode),
    (
        "an_old_fuzzer_is_served_by_a_target_that_speaks_the_new_generation",
        an_old_fuzzer_is_served_by_a_target_that_speaks_the_new_generation,
    ),
    (
        "the_target_ends_with_its_fuzzer_and_takes_the_worker_along",
        the_target_ends_with_its_fuzzer_and_takes_the_worker_along,
    ),
    ("a_worker_dies_with_a_server_that_is_killed", a_worker_dies_with_a_server_that_is_killed),
    ("without_a_fuzzer_the_target_runs_once", without_a_fuzzer_the_target_runs_once),
    (
        "a_segment_that_does_not_exist_is_an_error_that_the_fuzzer_hears",
        a_segment_that_does_not_exist_is_an_error_that_the_fuzzer_hears,
    ),
    ("afl_showmap_sees_the_same_edges_in_every_mode", afl_showmap_sees_the_same_edges_in_every_mode),
    ("afl_fuzz_fuzzes_every_mode_and_finds_the_planted_crash", afl_fuzz_fuzzes_every_mode_and_finds_the_planted_crash),
    ("host::runs_end_as_they_should", host::runs_end_as_they_should),
    ("host::a_map_that_was_taken_is_the_fuzzers", host::a_map_that_was_taken_is_the_fuzzers),
    ("host::a_set_up_that_panics_is_told", host::a_set_up_that_panics_is_told),
    ("host::a_server_that_is_gone_is_an_error", host::a_server_that_is_gone_is_an_error),
    ("host::a_second_thread_is_refused", host::a_second_thread_is_refused),
];

fn main() -> ExitCode {
    // This program is also the target that it tests.
    target::serve_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    // Like libtest: words that are neither options nor values of `--skip` select tests by parts of their names.
    let skipped = |name: &str| arguments.windows(2).any(|pair| pair[0] == "--skip" && name.contains(pair[1].as_str()));
    let chosen: Vec<&String> = arguments
        .iter()
        .enumerate()
        .filter(|(at, word)| !word.starts_with('-') && (*at == 0 || arguments[at - 1] != "--skip"))
        .map(|(_, word)| word)
        .collect();
    let mut failed = Vec::new();
    for (name, test) in TESTS {
        if skipped(name) || !(chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()))) {
            continue;
        }
        let passed = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        if !passed {
            failed.push(name);
        }
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn greeted(description: &str) -> (Driver, Greeting) {
    let mut driver = Driver::start(description);
    let greeting = if description.contains("new") { driver.greet_new() } else { driver.greet_old() };
    (driver, greeting)
}

fn descriptions() -> impl Iterator<Item = String> {
    target::MODES.iter().flat_map(|mode| {
        ["old", "new"].into_iter().flat_map(move |generation| {
            ["shared", "stdin"].into_iter().map(move |inputs| format!("{mode} {generation} {inputs}"))
        })
    })
}

fn the_target_greets_in_both_generations() {
    for description in descriptions() {
        let (_, greeting) = greeted(&description);
        let expected = Greeting {
            map_len: Some(65536),
            shared: description.ends_with("shared"),
            dictionary: b"\x06SELECT".to_vec(),
        };
        assert_eq!(greeting, expected, "{description}");
    }
}

fn runs_end_as_they_should_and_find_no_trace_of_each_other() {
    for description in descriptions() {
        let (mut driver, _) = greeted(&description);
        for (input, expected) in [
            (&b"crash"[..], Ending::Signal(libc::SIGABRT)),
            (b"panic", Ending::Signal(libc::SIGABRT)),
            (b"trap", Ending::Signal(libc::SIGILL)),
            (b"exit", Ending::Exit(7)),
        ] {
            driver.passes(b"harmless");
            driver.passes(b"");
            assert_eq!(driver.run(input, LONG).1, expected, "{description}");
            driver.passes(input.get(..2).unwrap());
        }
    }
}

fn a_run_that_hangs_is_killed_and_the_next_one_works() {
    for mode in target::MODES {
        let (mut driver, _) = greeted(&format!("{mode} old shared"));
        for _ in 0..3 {
            driver.passes(b"before");
            assert_eq!(driver.run(b"hang", Duration::from_millis(200)).1, Ending::Signal(libc::SIGKILL), "{mode}");
        }
        driver.passes(b"after");
    }
}

fn a_worker_that_was_killed_after_it_had_stopped_is_replaced() {
    let (mut driver, _) = greeted("reset old shared");
    let first = driver.passes(b"a");
    assert_eq!(driver.passes(b"b"), first, "the worker stays");
    // Does what afl-fuzz does if the time is over just when the worker stops. SAFETY: the worker belongs to the target
    // and is stopped.
    unsafe { libc::kill(first.cast_signed(), libc::SIGKILL) };
    driver.pretend_killed();
    assert_ne!(driver.passes(b"c"), first);
}

fn every_run_of_a_forking_mode_has_a_worker_of_its_own_and_a_reset_keeps_one() {
    for mode in target::MODES {
        let (mut driver, _) = greeted(&format!("{mode} new shared"));
        let mut workers: Vec<u32> = (0..20).map(|_| driver.passes(b"same")).collect();
        workers.dedup();
        assert_eq!(workers.len(), if mode == "reset" { 1 } else { 20 }, "{mode}");
    }
}

/// Fails on: a server whose workers are gone before it waits for them; runs or a caller that find another action.
fn a_target_that_takes_its_children_away_keeps_that_to_itself() {
    for mode in target::MODES {
        for children in ["ignored", "unwaited", "reaped"] {
            let (mut driver, _) = greeted(&format!("{mode} new shared {children}"));
            for _ in 0..3 {
                driver.passes(b"harmless");
                assert_eq!(driver.run(b"exit", LONG).1, Ending::Exit(7), "{mode}, {children}");
            }
            driver.passes(b"harmless");
            assert_eq!(driver.hang_up().code(), Some(0), "{mode}, {children}");
        }
    }
}

fn the_map_shows_the_same_in_every_mode() {
    let inputs: Vec<Vec<u8>> =
        (0..40u8).map(|n| (0..n % 9).map(|m| n.wrapping_mul(31).wrapping_add(m * 7)).collect()).collect();
    let maps = |description: &str| -> Vec<Vec<u8>> {
        let (mut driver, _) = greeted(description);
        let run = |input: &Vec<u8>| {
            driver.passes(input);
            driver.map.read()
        };
        inputs.iter().map(run).collect()
    };
    let plain = maps("plain old shared");
    assert!(plain.iter().all(|map| map[1] == 1), "every run reaches the first edge once");
    for description in
        ["plain new stdin", "frozen old shared", "frozen new stdin", "reset new shared", "reset old stdin"]
    {
        assert!(maps(description) == plain, "{description}");
    }
}

fn an_old_fuzzer_is_served_by_a_target_that_speaks_the_new_generation() {
    let mut driver = Driver::start("plain new shared");
    assert_eq!(driver.word(), 0x4146_4c01);
    // AFL++ 4.04c does not know this hello and begins at once.
    for input in [&b"a"[..], b"b"] {
        driver.passes(input);
    }
    assert_eq!(driver.run(b"crash", LONG).1, Ending::Signal(libc::SIGABRT));
}

fn the_target_ends_with_its_fuzzer_and_takes_the_worker_along() {
    for mode in target::MODES {
        let (mut driver, _) = greeted(&format!("{mode} old shared"));
        let worker = driver.passes(b"one");
        assert!(driver.hang_up().success(), "{mode}");
        assert!(!Path::new(&format!("/proc/{worker}")).exists(), "{mode}: the worker is left");
    }
}

fn a_worker_dies_with_a_server_that_is_killed() {
    let (mut driver, _) = greeted("reset old shared");
    let worker = driver.passes(b"one");
    driver.child.kill().unwrap();
    driver.child.wait().unwrap();
    // The worker now belongs to init, which may wait for it later.
    let dead = || match fs::read_to_string(format!("/proc/{worker}/stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    };
    assert!((0..60_000).any(|_| dead() || {
        std::thread::sleep(Duration::from_millis(10));
        false
    }));
}

fn without_a_fuzzer_the_target_runs_once() {
    let run = |input: &str| {
        let file = scratch().join(format!("alone-{input}"));
        fs::write(&file, input).unwrap();
        let stdin = fs::File::open(&file).unwrap();
        target::command("plain old shared").stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
    };
    assert_eq!(run("harmless").code(), Some(0));
    assert_eq!(run("exit").code(), Some(7));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&run("crash")), Some(libc::SIGABRT));
}

fn a_segment_that_does_not_exist_is_an_error_that_the_fuzzer_hears() {
    let mut driver = Driver::start_with_map("plain old shared", "2147483647");
    assert_eq!(driver.word(), 0xf800_088f);
    assert_eq!(driver.child.wait().unwrap().code(), Some(1));
    let mut driver = Driver::start_with_map("plain new shared", "no number");
    assert_eq!(driver.word(), 0xeffe_0008);
}

/// Returns this test program's own folder.
fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("forkserver-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns a quiet command that runs AFL++'s program `name` on the target; `None` if it is not installed.
fn afl(name: &str, description: &str) -> Option<Command> {
    let found = std::env::split_paths(&std::env::var_os("PATH")?).any(|folder| folder.join(name).is_file());
    if !found {
        println!("skipped: no {name}; Debian package afl++");
        return None;
    }
    let mut command = Command::new(name);
    let (variable, value) = target::environment(description);
    command.env(variable, value).env("AFL_QUIET", "1").env("AFL_NO_UI", "1").env("AFL_SKIP_CPUFREQ", "1");
    command
        .env("AFL_NO_AFFINITY", "1")
        .env("AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES", "1")
        .env("AFL_FORKSRV_INIT_TMOUT", "600000");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Some(command)
}

fn seeds(name: &str, inputs: &[&[u8]]) -> PathBuf {
    let folder = scratch().join(name);
    fs::create_dir_all(&folder).unwrap();
    for (number, input) in inputs.iter().enumerate() {
        fs::write(folder.join(number.to_string()), input).unwrap();
    }
    folder
}

fn afl_showmap_sees_the_same_edges_in_every_mode() {
    let seeds = seeds("showmap-in", &[b"abc", b"zzzzzzzz", b"FUZ!", b"1"]);
    let mut seen = Vec::new();
    for description in
        ["plain auto shared", "plain auto stdin", "frozen auto shared", "reset auto shared", "reset auto stdin"]
    {
        let Some(mut command) = afl("afl-showmap", description) else { return };
        let out = scratch().join(format!("showmap-{}", description.replace(' ', "-")));
        command.arg("-i").arg(&seeds).arg("-o").arg(&out).args(["-m", "none", "-t", "60000", "--"]);
        let status = command.arg(std::env::current_exe().unwrap()).status().unwrap();
        assert!(status.success(), "{description}: {status}");
        let maps: Vec<String> =
            (0..4).map(|number| fs::read_to_string(out.join(number.to_string())).expect("a map")).collect();
        assert!(maps.iter().all(|map| map.lines().count() > 1), "{description}: {maps:?}");
        assert!(maps[2].contains("020000:1"), "{maps:?}");
        seen.push((description, maps));
    }
    let (_, plain) = seen[0].clone();
    for (description, maps) in seen {
        assert_eq!(maps, plain, "{description}");
    }
}

fn afl_fuzz_fuzzes_every_mode_and_finds_the_planted_crash() {
    let seeds = seeds("fuzz-in", &[b"FUZ"]);
    for description in ["plain auto shared", "frozen auto shared", "reset auto shared", "reset auto stdin"] {
        let Some(mut command) = afl("afl-fuzz", description) else { return };
        let out = scratch().join(format!("fuzz-{}", description.replace(' ', "-")));
        command.env("AFL_BENCH_UNTIL_CRASH", "1").arg("-i").arg(&seeds).arg("-o").arg(&out);
        command.args(["-V", "600", "-s", "1", "-m", "none", "-t", "60000", "--"]);
        let status = command.arg(std::env::current_exe().unwrap()).status().unwrap();
        assert!(status.success(), "{description}: {status}");
        let stats = fs::read_to_string(out.join("default/fuzzer_stats")).expect("statistics");
        let value = |name: &str| -> String {
            let line =
                stats.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {stats}"));
            line.split_once(':').unwrap().1.trim().to_owned()
        };
        assert_eq!(value("stability"), "100.00%", "{description}");
        assert!(value("execs_done").parse::<u64>().unwrap() > 20, "{description}: {stats}");
        assert_eq!(value("saved_crashes"), "1", "{description}: {stats}");
    }
}
