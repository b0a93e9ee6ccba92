//! Every command that the README, the book and CONTRIBUTING.md show is run here with small arguments, is run by a test
//! that is named, or is not run, with the reason. A command that is in no list fails, and so does a superfluous one.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How we know that a command does what the page says.
enum Proof {
    /// [`run_here`] starts the program with these arguments in a folder of its own; it ends with one of these codes.
    Here(&'static [&'static str], &'static [i32]),
    /// A test in this file of the tree runs the same; the second is a line of it.
    Test(&'static str, &'static str),
    /// No test can run it, because…
    Not(&'static str),
}

use Proof::{Here, Not, Test};

/// `run` with a program that everybody has.
const SHELL: [&str; 3] = ["sh", "-c", "(exit 0); exit 0"];
const STEP: &str = "is what runs this test, or a choice of its steps; its arguments are parsed in xtask's own tests";
const PEERS: &str = "needs an optimised build with Cranelift; a group of the same suites runs here by `bench --check`";
const MEASURES: &str = "measures programs of others for minutes; that they run frozen is what crates/preload/tests see";
const WHEEL: &str = "takes a program from PyPI; the step `python` does it in an exhaustive run";
const ORC: &str = "needs LLVM's development files; the step `llvm-orc` does it in an exhaustive run";
const ASMJIT: &str = "needs asmjit's development files; the step `asmjit` does it in an exhaustive run";
const INSTALL: &str = "builds everything once more; the step `package` installs what it would";

/// Every command, with its proof.
const COMMANDS: &[(&str, Proof)] = &[
    ("cargo run --release", Here(&["tour", "--check"], &[0])),
    ("palimpsest", Test("crates/cli/src/main.rs", "fn without_a_command_it_is_the_tour")),
    ("palimpsest tour --json t.json --html t.html", Here(&["tour", "--check", "--json", "t.json"], &[0])),
    // 1: something is slower here; 3: something does not work here.
    ("palimpsest doctor", Here(&["doctor"], &[0, 1, 3])),
    ("palimpsest doctor --json", Here(&["doctor", "--json"], &[0, 1, 3])),
    ("palimpsest bench --list", Here(&["bench", "--list"], &[0])),
    ("palimpsest bench --check", Here(&["bench", "--check", "--filter", "pack.load"], &[0])),
    (
        "palimpsest bench --from pack.json --markdown pack.md --csv pack.csv",
        Here(&["bench", "--from", "pack.json", "--markdown", "pack.md", "--csv", "pack.csv"], &[0]),
    ),
    (
        "palimpsest bpf verify count.o --program wrong --context 16 --log",
        Test("crates/cli/tests/bpf.rs", "fn the_log_that_the_book_shows_is_what_is_printed"),
    ),
    ("palimpsest run --report -- redis-server", Test(REDIS, "fn dumps_are_the_data_of_the_moment")),
    ("palimpsest run --report -- redis-server --save ''", Here(&RUN_FROZEN, &[0])),
    ("palimpsest run -- redis-server", Test(REDIS, "fn dumps_are_the_data_of_the_moment")),
    (
        "palimpsest run --report -- redis-server --save '' --enable-debug-command yes",
        Test(REDIS, "fn dumps_are_the_data_of_the_moment"),
    ),
    ("redis-cli debug populate 1140000 key 400", Not("is Redis's own; the page's figure is that of `bench mix`")),
    ("redis-cli bgsave", Test(REDIS, "BGSAVE")),
    ("redis-cli info | grep latest_fork_usec", Not("is Redis's own; `bench redis` reads the same field")),
    ("palimpsest run --report -- python3 program.py", Test(INTERPRETERS, "fn python_forks")),
    (
        "palimpsest run --report -- gunicorn --preload --workers 8 application:app",
        Test("crates/preload/tests/programs/gunicorn.rs", "fn workers_answer_from_the_preloaded_heap"),
    ),
    ("pip install maturin", Not(WHEEL)),
    ("maturin build --release --manifest-path adapters/python/Cargo.toml", Not(WHEEL)),
    ("pip install adapters/python/target/wheels/palimpsest-*.whl", Not(WHEEL)),
    (
        "python -m palimpsest run --report program.py",
        Test("adapters/python/tests/test_hosts.py", "def test_a_program_is_frozen_at_its_first_fork"),
    ),
    (
        "python -m palimpsest.uvicorn app:application --workers 4",
        Test("adapters/python/tests/test_hosts.py", "def test_workers_are_forks_of_the_frozen_parent"),
    ),
    ("palimpsest run --report -- ruby program.rb", Test(INTERPRETERS, "fn ruby_forks")),
    ("palimpsest run --local-text --no-freeze -- CMD…", Here(&RUN_LOCAL, &[0])),
    ("palimpsest run --local-text --no-freeze --reread -- CMD…", Here(&RUN_REREAD, &[0])),
    (
        "palimpsest run --only redis-server --only python3 -- ./start-everything.sh",
        Here(&["run", "--only", "redis-server", "--only", "python3", "--", SHELL[0], SHELL[1], SHELL[2]], &[0]),
    ),
    ("palimpsest top", Not("shows its table again and again until it is ended; `--once` is the same once")),
    ("palimpsest top 4712 -v", Test("crates/cli/tests/top.rs", "fn a_frozen_process_tells_its_figures")),
    // 1: no process here is frozen.
    ("palimpsest top --once --json", Here(&["top", "--once", "--json"], &[0, 1])),
    (
        "numactl --cpunodebind=1 palimpsest run --local-text --node 1 -- CMD…",
        Test("crates/preload/tests/nodes.rs", "fn the_command_puts_it_there_and_shows_it"),
    ),
    (
        "LD_PRELOAD=/usr/lib/palimpsest/libpalimpsest_preload.so PALIMPSEST_REPORT=stderr redis-server",
        Test("crates/preload/tests/suite/common.rs", "LD_PRELOAD"),
    ),
    (
        "cargo build --release -p palimpsest-paging-capi --target x86_64-unknown-none",
        Not("the step `no-std` builds the library, not optimised"),
    ),
    ("cargo build --release --package palimpsest-preload", Not("the step `package` builds the object, optimised")),
    (
        "AFL_PRELOAD=$PWD/target/release/libpalimpsest_preload.so afl-fuzz -i seeds -o out -m none -- ./target",
        Test("crates/bench/src/suites/afl/mod.rs", "AFL_PRELOAD"),
    ),
    (
        "cc program.c $(pkg-config --cflags --libs palimpsest)",
        Test("xtask/src/package/installed.rs", "[\"--cflags\", \"--libs\", \"palimpsest\"]"),
    ),
    (
        "cmake -S adapters/llvm-orc -B target/llvm-orc -DPALIMPSEST_LIBRARY=$PWD/target/release/libpalimpsest_capi.a",
        Not(ORC),
    ),
    ("cmake --build target/llvm-orc", Not(ORC)),
    ("target/llvm-orc/orc-bench", Not("measures for minutes; the step `llvm-orc` builds it and runs it once, briefly")),
    (
        "cmake -S adapters/asmjit -B target/asmjit -DPALIMPSEST_LIBRARY=$PWD/target/release/libpalimpsest_capi.a",
        Not(ASMJIT),
    ),
    ("cmake --build target/asmjit", Not(ASMJIT)),
    ("target/asmjit/asmjit-bench", Not("measures for minutes; the step `asmjit` builds it and runs it once, briefly")),
    ("cargo install --path crates/cli", Not(INSTALL)),
    ("cargo xtask package", Not("the step `package`")),
    ("cargo xtask guest c", Not("the step `guest-c`")),
    ("cargo xtask guest paging", Not("the steps `guest-x86_64` and `guest-aarch64`")),
    ("cargo xtask guest paging --stress 200", Not("the same steps, with fewer rounds")),
    ("cargo xtask bench pack --quick", Not(PEERS)),
    ("cargo xtask bench pack --json pack.json --html pack.html", Not(PEERS)),
    ("cargo xtask bench paging --quick", Not(PEERS)),
    ("cargo xtask bench bpf --quick", Not(PEERS)),
    ("cargo xtask bench numa --quick", Not(PEERS)),
    ("cargo xtask bench programs --quick", Not(MEASURES)),
    ("cargo xtask bench mix", Not(MEASURES)),
    ("cargo xtask release-check", Not("fails until the tree has an address; the step `crates` runs all else of it")),
    ("cargo xtask bench adapters", Not("the step `wasmtime`")),
    ("cargo xtask bench adapters --quick", Not("the same, with more rounds")),
    ("cargo xtask test", Not(STEP)),
    ("cargo xtask test --install", Not("installs packages as root; every other option is as without it")),
    ("cargo xtask test --leftovers remove", Not(STEP)),
    ("cargo xtask test --quick", Not(STEP)),
    ("cargo xtask test --exhaustive", Not(STEP)),
    ("cargo xtask test --lanes 1", Not(STEP)),
    ("cargo xtask test --only clippy,test", Not(STEP)),
];

const REDIS: &str = "crates/preload/tests/programs/redis.rs";
const INTERPRETERS: &str = "crates/preload/tests/programs/interpreters.rs";
const RUN_FROZEN: [&str; 6] = ["run", "--report", "--", SHELL[0], SHELL[1], SHELL[2]];
const RUN_REREAD: [&str; 8] = ["run", "--local-text", "--no-freeze", "--reread", "--", SHELL[0], SHELL[1], SHELL[2]];
const RUN_LOCAL: [&str; 7] = ["run", "--local-text", "--no-freeze", "--", SHELL[0], SHELL[1], SHELL[2]];

/// The root of the tree; `None` in a package, which has no book.
fn root() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("docs/src").is_dir().then_some(root)
}

/// How commands begin in blocks that also show output. In `sh` blocks every line is a command.
const PROGRAMS: [&str; 10] =
    ["palimpsest", "cargo", "cc", "redis-cli", "numactl", "pip", "maturin", "python", "AFL_PRELOAD", "LD_PRELOAD"];

/// Returns the commands in a page's blocks of `sh`, of `console` and without a language, without comments.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut language = None;
    for line in page.lines() {
        if let Some(opened) = line.strip_prefix("```") {
            language = if language.is_none() { Some(opened) } else { None };
        } else if matches!(language, Some("" | "sh" | "console")) {
            let command = line.split(" #").next().unwrap_or_default().split("  ").next().unwrap_or_default().trim();
            let first = command.split([' ', '=']).next().unwrap_or_default();
            if !first.is_empty() && (language == Some("sh") || PROGRAMS.contains(&first)) {
                found.push(command.to_owned());
            }
        }
    }
    found
}

/// Returns those of the README, the book, CONTRIBUTING.md and the program's own page.
fn shown(root: &Path) -> BTreeSet<String> {
    let book = fs::read_dir(root.join("docs/src")).expect("the book").map(|entry| entry.expect("a page").path());
    let pages = ["README.md", "CONTRIBUTING.md", "crates/cli/README.md"].map(|name| root.join(name));
    let chapters = book.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let read = |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    chapters.chain(pages).flat_map(|path| commands(&read(path))).collect()
}

#[test]
fn every_command_that_is_shown_has_a_proof() {
    let Some(root) = root() else { return println!("skipped: a package has no book") };
    let shown = shown(&root);
    let known: BTreeSet<String> = COMMANDS.iter().map(|(command, _)| (*command).to_owned()).collect();
    assert_eq!(known.len(), COMMANDS.len(), "a command is listed twice");
    let unproven: Vec<_> = shown.difference(&known).collect();
    assert!(unproven.is_empty(), "say in COMMANDS how it is known that these work: {unproven:#?}");
    let gone: Vec<_> = known.difference(&shown).collect();
    assert!(gone.is_empty(), "no page shows these any more: {gone:#?}");
    for (command, proof) in COMMANDS {
        match proof {
            Test(file, line) => {
                let text = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
                assert!(text.contains(line), "{command}: {file} has no {line:?}");
            }
            Not(reason) => assert!(!reason.is_empty()),
            Here(..) => {}
        }
    }
}

#[test]
fn commands_that_can_be_run_here_end_as_they_should() {
    let Some(root) = root() else { return println!("skipped: a package has no book") };
    let folder = tempfile::tempdir().expect("a folder");
    let record = root.join("docs/records/2026-11-20-epyc-2cpu/pack.json");
    fs::copy(record, folder.path().join("pack.json")).expect("a record");
    for (command, proof) in COMMANDS {
        let Here(arguments, codes) = proof else { continue };
        let mut program = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        program.args(*arguments).current_dir(folder.path()).stdin(Stdio::null());
        let output = program.output().expect("the program was built");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{command}: {}\n{told}", output.status);
    }
    for made in ["t.json", "pack.md", "pack.csv"] {
        assert!(folder.path().join(made).is_file(), "{made}");
    }
}

#[test]
fn commands_are_told_from_what_is_said_about_them() {
    let page = "```\npalimpsest doctor   # why\nworks   freeze\nLD_PRELOAD=x y\nA=1 b\n```\n```rust\ncargo x\n```\n\
                cargo run\n```sh\nA=1 b\n\ntarget/x   # why\n```\n";
    assert_eq!(commands(page), ["palimpsest doctor", "LD_PRELOAD=x y", "A=1 b", "target/x"]);
}
