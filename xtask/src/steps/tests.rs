//! The tests as cargo runs them, the build without std, and loom.

use std::{fs, time::Duration};

use crate::{
    aarch64, guest,
    need::Need,
    process,
    programs::{self, TestProgram},
    step::{Depth, Done, LeftOut, StepError, chain},
    workspace::Workspace,
};

/// Names of target folders.
pub(super) const ATOMIC_KEYS: &str = "atomic-keys";
pub(super) const LOOM: &str = "loom";

const BARE_TRIPLE: &str = "x86_64-unknown-none";
/// A target without any std: only there does a stray `std::` fail to build.
pub(super) const BARE_TARGET: Need = Need::Target { triple: BARE_TRIPLE };

pub(super) fn no_std(workspace: &Workspace) -> Result<Done, StepError> {
    let mut build = process::cargo(workspace);
    build.args([
        "build",
        "--package",
        "palimpsest-text",
        "--package",
        "palimpsest-paging",
        "--package",
        "palimpsest-paging-capi",
        "--package",
        "palimpsest-bpf",
        "--no-default-features",
    ]);
    let bare = BARE_TARGET.is_met(workspace);
    if bare {
        build.args(["--target", BARE_TRIPLE]);
    }
    process::stream(&mut build)?;
    // The step `clippy` sees the crate with all its features.
    let mut lint = process::cargo(workspace);
    lint.args(["clippy", "--package", "palimpsest-bpf", "--no-default-features", "--", "-D", "warnings"]);
    process::stream(&mut lint)?;
    let mut remarks = Vec::new();
    if bare && cfg!(target_arch = "x86_64") {
        link_kernel(workspace, BARE_TRIPLE, "cc", &[])?;
    }
    if !bare {
        remarks.push("built for the host, which has std".to_owned());
    }
    remarks.extend(link_aarch64_kernel(workspace)?);
    Ok(Done::with(&remarks))
}

/// Links the kernel in C for AArch64, too, where a compiler and a target without std are installed; or says that they
/// are not.
fn link_aarch64_kernel(workspace: &Workspace) -> Result<Option<String>, StepError> {
    let triple = guest::Arch::Aarch64.triple();
    if !(Need::Target { triple }.is_met(workspace) && process::is_runnable(aarch64::LINKER)) {
        return Ok(Some(format!("no kernel in C for AArch64: {triple} or {} is missing", aarch64::LINKER)));
    }
    let mut build = process::cargo(workspace);
    build.args(["build", "--package", "palimpsest-paging-capi", "--no-default-features", "--target", triple]);
    process::stream(&mut build)?;
    // As the target, which kernels take because they do not save registers of floating point.
    link_kernel(workspace, triple, aarch64::LINKER, &["-mgeneral-regs-only"])?;
    Ok(None)
}

/// Links a kernel in C with the functions of palimpsest-paging for C: the library needs nothing but what their header
/// asks for.
fn link_kernel(workspace: &Workspace, triple: &str, compiler: &str, options: &[&str]) -> Result<(), StepError> {
    let built = workspace.target.join(triple).join("debug");
    let mut link = process::program(compiler, workspace);
    link.args(options);
    link.args(["-std=c99", "-ffreestanding", "-nostdlib", "-static", "-Wall", "-Wextra", "-Werror", "-I"]);
    link.arg(workspace.root.join("crates/paging-capi/include"));
    link.arg(workspace.root.join("crates/paging-capi/tests/kernel.c"));
    link.arg(built.join("libpalimpsest_paging_capi.a")).arg("-o").arg(built.join("palimpsest-paging-kernel"));
    process::stream(&mut link)
}

/// The test programs that take longest; they start first, so that none runs alone at the end.
const LONGEST: [&str; 9] = [
    "preload.programs",
    "preload.suite",
    "text.keys",
    "fork.snapshot",
    "text.hostile",
    "fork.oracle",
    "preload.oracle",
    "sys.tracer",
    "cli.exit_codes",
];

/// How many random programs a short run plays, all with the same seed: the first of those that an exhaustive run plays;
/// and for which versions of eBPF it takes programs in C.
const CASES: [(&str, &str); 4] = [
    ("PALIMPSEST_CORPUS_VERSIONS", "v1 v4"),
    ("PALIMPSEST_ORACLE_PROGRAMS", "120"),
    ("PALIMPSEST_SANDBOX_PROGRAMS", "25"),
    ("PALIMPSEST_THREADS_PROGRAMS", "4"),
];

pub(super) const LEFT_OUT: &[LeftOut] = &[
    LeftOut { what: "preload.programs::allocators::mimalloc", reason: ALLOCATOR },
    LeftOut { what: "preload.programs::allocators::tcmalloc", reason: ALLOCATOR },
    LeftOut {
        what: "preload.programs::interpreters::ruby_forks",
        reason: "an interpreter with a heap of its own, as the one of `python_forks`",
    },
    LeftOut {
        what: "of fork and preload: 180 of 300 random programs of oracle, 35 of 60 of sandbox, 6 of 10 of threads",
        reason: "the same ones each time, since the seed is fixed",
    },
    LeftOut {
        what: "7700 of 8000 random programs of bpf.differential, and the campaigns of bpf.guarded and bpf.least",
        reason: "more of the same kind, which take minutes",
    },
    LeftOut {
        what: "objects for v2 and v3, and what clang makes now, of bpf.corpus",
        reason: "their programs are those for v1 and v4, which use the least and the most of the instruction set",
    },
    LeftOut {
        what: "117 of 120 ways to compile static keys in C and C++, of capi.program",
        reason: "the three are those in which compilers have gone wrong",
    },
    LeftOut {
        what: "295 of 300 exchanges of text in numa.text",
        reason: "they are alike, and each waits for threads that keep both CPUs busy",
    },
    LeftOut {
        what: "each deed at each step in fork.steps, and ends at more steps in fork.killed",
        reason: "one deed after the other is done at some steps, so that each is done at each kind of step",
    },
    LeftOut {
        what: "preload.suite::calls::a_child_that_ends_takes_no_more_pages_than_it_must",
        reason: "needs an optimised build: where code lies in others is chance",
    },
];

const ALLOCATOR: &str = "the same is played with glibc's and jemalloc, and preload.suite freezes with each";

/// The test program of random programs for eBPF, and how many programs it tries in an exhaustive run (300 in others).
const RANDOM_PROGRAMS: (&str, &str) = ("bpf.differential", "8000");
/// The test program of random programs between guard pages, and the test in it that short runs leave out.
const GUARDED_PROGRAMS: (&str, &str) = ("bpf.guarded", "what_is_accepted_stays_between_its_pages_in_a_campaign");
/// The test program of random programs with the least context that each needs, and the test in it that short runs leave
/// out.
const LEAST_PROGRAMS: (&str, &str) = ("bpf.least", "programs_need_the_context_they_are_promised_in_a_campaign");
/// The test program of static keys in C, and the test in it that short runs leave out.
const KEYS_IN_C: (&str, &str) = ("capi.program", "keys::branches_are_switched_in_code_of_every_kind");
/// The test program that exchanges text while everything else goes on, its test, and how often it does so then.
const EXCHANGES: (&str, &str, &str) = ("numa.text", "torture::text_is_exchanged_while_everything_else_goes_on", "300");
/// The test programs that do something at each step of a slice; short runs leave their ignored tests out.
const EACH_STEP: [&str; 2] = ["fork.steps", "fork.killed"];
/// Time limit for each of those.
const RANDOM_LIMIT: Duration = Duration::from_secs(3600);

pub(super) fn test(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let mut programs = programs::build(&mut programs::everything(workspace))?;
    let mut cases: &[(&str, &str)] = &[];
    if depth == Depth::Short {
        programs::shorten(&mut programs, LEFT_OUT);
        cases = &CASES;
    }
    let ran = programs::run(workspace, &programs, &LONGEST, cases);
    let mut documented = programs::everything(workspace);
    documented.args(["--doc", "--no-fail-fast"]);
    let ran = both(ran, process::stream_within(&mut documented, process::LIMIT))?;
    if depth == Depth::Exhaustive {
        let (name, count) = RANDOM_PROGRAMS;
        chosen(workspace, &programs, name, &[], Tests::Some, &[("PALIMPSEST_BPF_PROGRAMS", count)])?;
        for (name, campaign) in [GUARDED_PROGRAMS, LEAST_PROGRAMS, KEYS_IN_C] {
            chosen(workspace, &programs, name, &["--exact", campaign, "--ignored"], Tests::One, &[])?;
        }
        let (name, torture, exchanges) = EXCHANGES;
        let variables = [("PALIMPSEST_FLIPS", exchanges)];
        chosen(workspace, &programs, name, &["--exact", torture], Tests::One, &variables)?;
        for name in EACH_STEP {
            chosen(workspace, &programs, name, &["--ignored"], Tests::Some, &[])?;
        }
        // In an optimised build: where code lies in others is chance.
        let mut optimised = process::cargo(workspace);
        optimised.args(["test", "--release", "--package", "palimpsest-preload", "--test", "suite", "calls::"]);
        process::stream_within(&mut optimised, process::LIMIT)?;
        // By another linker, which wraps fewer references.
        let mut linked = process::cargo(workspace);
        linked.args(["test", "--release", "--package", "palimpsest-preload", "--test", "suite", "scenarios::"]);
        linked.arg("--target-dir").arg(workspace.separate_target("gnu-ld"));
        linked.env("RUSTFLAGS", "-Clink-arg=-fuse-ld=bfd");
        process::stream_within(&mut linked, process::LIMIT)?;
    }
    Ok(Done::PassedWith(ran))
}

/// Returns what the test programs have said, unless they or the tests in documentation have failed; of both, all
/// failures.
fn both(ran: Result<String, StepError>, documented: Result<(), StepError>) -> Result<String, StepError> {
    match (ran, documented) {
        (ran, Ok(())) => ran,
        (Ok(_), Err(error)) => Err(error),
        (Err(StepError::Programs { mut failed, total }), Err(error)) => {
            failed.push(chain(&error));
            Err(StepError::Programs { failed, total: total + 1 })
        }
        (Err(first), Err(second)) => Err(StepError::Programs { failed: vec![chain(&first), chain(&second)], total: 2 }),
    }
}

/// How many tests arguments must choose, so that none that was renamed is left out unseen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tests {
    /// At least one.
    Some,
    One,
}

/// Runs the tests of the program `name` that `arguments` choose.
fn chosen(
    workspace: &Workspace,
    programs: &[TestProgram],
    name: &'static str,
    arguments: &[&str],
    tests: Tests,
    variables: &[(&str, &str)],
) -> Result<(), StepError> {
    let program = programs.iter().find(|program| program.name == name).ok_or(StepError::NoProgram(name))?;
    let command = || {
        let mut command = process::test_program(workspace, &program.path, &program.folder);
        command.args(arguments);
        command
    };
    let listed = process::capture(command().args(["--list", "--format", "terse"]))?;
    let found = listed.lines().filter(|line| line.ends_with(": test")).count();
    let wanted = match tests {
        Tests::Some if found == 0 => "at least one",
        Tests::One if found != 1 => "one",
        Tests::Some | Tests::One => {
            let mut run = command();
            run.arg("--nocapture").envs(variables.iter().copied());
            return process::stream_within(&mut run, RANDOM_LIMIT);
        }
    };
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    Err(StepError::Renamed { program: name.to_owned(), arguments, found, wanted })
}

/// Tests that static keys keep the same promises where nothing can be patched.
pub(super) fn atomic_keys(workspace: &Workspace) -> Result<Done, StepError> {
    let mut test = programs::everything(workspace);
    // In the whole workspace: with these features, the tests build a plugin.
    test.args(["--test", "keys"]).env("RUSTFLAGS", "--cfg palimpsest_atomic_keys");
    process::stream_within(process::apart(&mut test, workspace, ATOMIC_KEYS), process::LIMIT)?;
    Ok(Done::Passed)
}

/// The models of the lock-free parts, with what picks them: beside the code in palimpsest-text, in a test of its own in
/// palimpsest-paging.
const MODELS: [(&str, &[&str]); 3] = [("sys.lib", &["loom"]), ("text.lib", &["loom"]), ("paging.loom", &[])];

pub(super) fn loom(workspace: &Workspace) -> Result<Done, StepError> {
    let mut test = process::cargo(workspace);
    // In one build: alone, each crate would have loom with features of its own.
    test.args(["test", "--release", "--package", "palimpsest-sys"]);
    test.args(["--package", "palimpsest-text", "--package", "palimpsest-paging"]);
    test.args(["--lib", "--test", "loom"]).env("RUSTFLAGS", "--cfg loom");
    let built = programs::build(process::apart(&mut test, workspace, LOOM))?;
    for (name, chosen) in MODELS {
        let program = built.iter().find(|program| program.name == name).ok_or(StepError::NoPrograms)?;
        let mut model = process::test_program(workspace, &program.path, &program.folder);
        process::stream_within(model.args(chosen), process::LIMIT)?;
    }
    Ok(Done::Passed)
}

/// Tests that plain, frozen and reset targets of AFL++ cover the same on the same inputs.
pub(super) fn afl(workspace: &Workspace) -> Result<Done, StepError> {
    // The program is among what tests are built with.
    programs::build(&mut programs::everything(workspace))?;
    let folder = workspace.separate_target(crate::runner::FOLDER);
    fs::create_dir_all(&folder).map_err(|source| StepError::File { action: "make", path: folder.clone(), source })?;
    let record = folder.join("afl-record.json");
    let mut check = process::program(workspace.target.join("debug/palimpsest"), workspace);
    process::stream_within(check.args(["bench", "afl", "--check", "--json"]).arg(&record), process::LIMIT)?;
    let text =
        fs::read_to_string(&record).map_err(|source| StepError::File { action: "read", path: record, source })?;
    checked(&text)
}

/// Reads the record of a suite that was only checked: whatever it did says why there is no figure.
fn checked(record: &str) -> Result<Done, StepError> {
    let unexpected = || StepError::NoCheck { found: record.chars().take(200).collect() };
    let record: serde_json::Value = serde_json::from_str(record).map_err(|_| unexpected())?;
    let skipped = record["skipped"].as_array().filter(|skipped| !skipped.is_empty()).ok_or_else(unexpected)?;
    let reasons: Option<Vec<&str>> = skipped.iter().map(|skipped| skipped["reason"].as_str()).collect();
    let reasons = reasons.ok_or_else(unexpected)?;
    match reasons.iter().find(|reason| !reason.starts_with("only checked: ")) {
        Some(missing) => Ok(Done::Skipped((*missing).to_owned())),
        None => Ok(Done::PassedWith(reasons.join("; ").replace("only checked: ", ""))),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_suite_that_is_left_out_has_not_passed() {
        let record = |reason: &str| format!(r#"{{"results": [], "skipped": [{{"id": "a.*", "reason": "{reason}"}}]}}"#);
        let passed = checked(&record("only checked: the maps are equal")).expect("a record");
        assert!(matches!(passed, Done::PassedWith(remark) if remark == "the maps are equal"));
        let skipped = checked(&record("no afl-showmap: install afl++")).expect("a record");
        assert!(matches!(skipped, Done::Skipped(reason) if reason == "no afl-showmap: install afl++"));
        assert!(checked(r#"{"results": [], "skipped": []}"#).is_err() && checked("").is_err());
    }

    #[test]
    fn of_programs_and_documentation_all_failures_are_named() {
        let programs = || Err(StepError::Programs { failed: vec!["fork.oracle".to_owned()], total: 9 });
        let error = both(programs(), Err(StepError::NoPrograms)).expect_err("both failed").to_string();
        assert!(error.starts_with("2 of 10 programs failed: fork.oracle; cargo named no"), "{error}");
        let error = both(Err(StepError::NothingSelected), Err(StepError::NoPrograms)).expect_err("both failed");
        assert!(error.to_string().starts_with("2 of 2 programs failed: --only"), "{error}");
        assert!(both(programs(), Ok(())).is_err() && both(Ok(String::new()), Err(StepError::NoPrograms)).is_err());
        assert_eq!(both(Ok("all".to_owned()), Ok(())).expect("none failed"), "all");
    }

    #[test]
    fn a_test_that_was_renamed_is_missed() {
        let workspace = Workspace::find();
        let this = std::env::current_exe().expect("this program");
        let programs = [TestProgram::new("xtask.xtask".to_owned(), this, workspace.root.clone())];
        let exact = |name| chosen(&workspace, &programs, "xtask.xtask", &["--exact", name], Tests::One, &[]);
        assert!(exact("tests::only_takes_a_list").is_ok());
        let error = exact("tests::only_takes_lists").expect_err("there is none");
        assert!(matches!(error, StepError::Renamed { found: 0, .. }), "{error}");
        let many = |part, least| chosen(&workspace, &programs, "xtask.xtask", &[part], least, &[]);
        assert!(many("tests::only_", Tests::Some).is_ok() && many("tests::", Tests::One).is_err());
        assert!(many("no_such_test", Tests::Some).is_err());
        let absent = chosen(&workspace, &programs, "xtask.none", &[], Tests::Some, &[]);
        assert!(matches!(absent, Err(StepError::NoProgram("xtask.none"))));
    }
}
