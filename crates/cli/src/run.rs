//! `palimpsest run`: starts a program with the preload object, after checking that it can be served.

mod arguments;
mod object;
mod one_node;
mod own_file;
mod program;
mod proof;
mod report;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

pub(crate) use arguments::Arguments;
#[cfg(feature = "documents")]
pub(crate) use object::BYTES as OBJECT;
pub(crate) use object::NAME as OBJECT_NAME;
use palimpsest_numa::{NoSuchNode, NodeId, Topology};
use palimpsest_sys::proc::stat::Incarnation;
use palimpsest_sys::proc::status::Status;
use palimpsest_sys::seccomp::{Calls, deadly_calls};
use palimpsest_sys::{OpenRegularError, broken_pipe};
use rustix::process::geteuid;

use crate::run::arguments::{At, Huge, LocalText, Pause, PaysAfter, Threads};
use crate::run::object::{Folders, Object, ObjectError};
use crate::run::one_node::one_node;
use crate::run::own_file::OwnFile;
use crate::run::program::{ProgramError, Way};
use crate::run::proof::NotLoaded;
use crate::{complain, exit, tell};

/// Starts the program in place of this one. Returns only if that fails.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let failure = start(arguments);
    complain(&failure);
    match failure {
        Failure::Program(ProgramError::NotFound { .. }) => exit::NOT_FOUND.into(),
        Failure::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => exit::NOT_FOUND.into(),
        Failure::Program(
            ProgramError::NotExecutable { .. } | ProgramError::Open(OpenRegularError::NotRegular { .. }),
        )
        | Failure::Exec { .. } => exit::NOT_STARTED.into(),
        Failure::Program(_) | Failure::Object(_) | Failure::NotLoaded(_) | Failure::ByEnv { .. } | Failure::Node(_) => {
            exit::REFUSED.into()
        }
    }
}

/// Returns where a program is, if PATH leads to one that can be executed.
pub(crate) fn locate(program: &OsStr) -> Option<PathBuf> {
    program::locate(program, env::var_os("PATH").as_deref()).ok()
}

/// Why the program was not started.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    NotLoaded(#[from] NotLoaded),
    #[error(
        "{} is a script for `env`, which would be served in the place of {}, as there is no folder for the object: \
         {shortcoming}; name the program itself, or set XDG_CACHE_HOME to a folder of your own",
        path.display(),
        program.display()
    )]
    ByEnv { path: PathBuf, program: PathBuf, shortcoming: String },
    #[error("--node {}", .0.node.0)]
    Node(#[source] NoSuchNode),
    #[error("cannot execute {}", path.display())]
    Exec {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn start(arguments: &Arguments) -> Failure {
    match prepare(arguments) {
        // The object's descriptor, if it has one, stays open until then.
        Ok(Prepared { mut command, path, object: _object }) => {
            tell_of_one_node(arguments);
            Failure::Exec { source: broken_pipe::execute(&mut command), path }
        }
        Err(failure) => failure,
    }
}

/// What to execute.
struct Prepared {
    command: Command,
    path: PathBuf,
    object: Option<Object>,
}

/// Says that nothing can be nearer, if local text is asked for where there is one node. A report says so, too, and in a
/// dry run there is no local text.
fn tell_of_one_node(arguments: &Arguments) {
    let is_told = report::place(arguments).is_some() || arguments.dry_run || report::is_quiet(arguments);
    if arguments.local_text.is_some()
        && !is_told
        && let Some(machine) = one_node(&Topology::read())
    {
        tell(format_args!(
            "{machine}: local text only means pages of 2 MiB here, for what fills them; --report tells how much"
        ));
    }
}

fn prepare(arguments: &Arguments) -> Result<Prepared, Failure> {
    let path = program::locate(&arguments.program, env::var_os("PATH").as_deref())?;
    if let Some(node) = arguments.node {
        Topology::read().check(NodeId(node.into())).map_err(Failure::Node)?;
    }
    // Before anything is opened here, under a number that may be named.
    let variables = variables(arguments);
    let loader = match program::check(&path) {
        Ok(loader) => loader,
        Err(error) if own_file::is_enough(arguments) => {
            return Ok(from_own_file(arguments, path, &OwnFile::unless_checked(error)?));
        }
        Err(error) => return Err(error.into()),
    };
    let folders = Folders::of(geteuid(), &|name| env::var_os(name));
    let executable = env::current_exe().unwrap_or_default();
    let object = object::find(env::var_os("PALIMPSEST_PRELOAD").as_deref(), &executable, &folders)?;
    if let (Some(shortcoming), Way::ByEnv) = (&object.shortcoming, loader.way) {
        // `env` would close the descriptor.
        return Err(Failure::ByEnv { path, program: loader.program, shortcoming: shortcoming.clone() });
    }
    let preloaded = preload(&object.entry, env::var_os("LD_PRELOAD"));
    if let Err(error) = proof::of_loading(&loader, &object.entry, &preloaded) {
        return match own_file::is_enough(arguments) {
            true => Ok(from_own_file(arguments, path, &OwnFile::unless_loaded(error)?)),
            false => Err(error.into()),
        };
    }
    if let (Some(shortcoming), false) = (&object.shortcoming, report::is_quiet(arguments)) {
        tell(format_args!("programs that this one executes run unfrozen: no folder for the object: {shortcoming}"));
    }
    let mut command = Command::new(&path);
    command.arg0(&arguments.program).args(&arguments.arguments);
    command.env("LD_PRELOAD", preloaded).envs(variables);
    // The program stays this process; the object reports only its end.
    command.env("PALIMPSEST_STARTED", Incarnation::of_this_process().to_string());
    // So that programs below need neither ask nor try. Without `/proc`, or where nobody counts filters, they will.
    if let Some(filters) = Status::of_this_thread().ok().and_then(|status| status.filters()) {
        let tried = match deadly_calls() {
            Ok(Calls::NONE) if filters > 0 => ",tried".to_owned(),
            Ok(deadly) if filters > 0 => format!(",tried,{}", deadly.named(",")),
            Ok(_) | Err(_) => String::new(),
        };
        command.env("PALIMPSEST_FILTERS", format!("{filters}{tried}"));
    }
    Ok(Prepared { command, path, object: Some(object) })
}

/// Returns the program as it is, after its file was prepared. It gets no variable, and no object of a `run` above this
/// one: programs that it executes are none of ours, and the dynamic linker of another C library may not load it.
fn from_own_file(arguments: &Arguments, path: PathBuf, file: &OwnFile) -> Prepared {
    if let Some(line) = file.prepare(arguments) {
        tell(format_args!("{line}"));
    }
    let mut command = Command::new(&path);
    command.arg0(&arguments.program).args(&arguments.arguments);
    let present = env::var_os("LD_PRELOAD").unwrap_or_default();
    match others(&present).join(OsStr::new(APART)) {
        nothing if nothing.is_empty() => command.env_remove("LD_PRELOAD"),
        rest => command.env("LD_PRELOAD", rest),
    };
    Prepared { command, path, object: None }
}

/// Separates entries of `LD_PRELOAD`.
const APART: &str = ":";

/// Returns the value of `LD_PRELOAD` with the object first. Other entries stay, as allocators are often preloaded.
fn preload(object: &OsStr, present: Option<OsString>) -> OsString {
    let present = present.unwrap_or_default();
    [&[object][..], &others(&present)].concat().join(OsStr::new(APART))
}

/// Returns the entries of `LD_PRELOAD` that are neither this object nor another version of it: both would freeze.
fn others(present: &OsStr) -> Vec<&OsStr> {
    let is_ours = |entry: &&[u8]| entry.rsplit(|&byte| byte == b'/').next() == Some(object::NAME.as_bytes());
    let entries = present.as_bytes().split(|byte| b": ".contains(byte)).filter(|entry| !entry.is_empty());
    entries.filter(|entry| !is_ours(entry)).map(OsStr::from_bytes).collect()
}

/// Separates names in `PALIMPSEST_ONLY`: the one sign that no file name contains.
const NAMES_APART: &str = "/";

/// Returns the object's settings. Those that the command line does not mention stay as they are in the environment.
fn variables(arguments: &Arguments) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&str, OsString)> = Vec::new();
    if let Some(extent) = arguments.local_text {
        let mut text = arguments.node.map_or_else(|| "local".to_owned(), |node| format!("local:{node}"));
        text.push_str(match extent {
            LocalText::Auto => "",
            LocalText::Huge => ",huge",
            LocalText::All => ",all",
        });
        if arguments.heirs {
            text.push_str(",heirs");
        }
        if arguments.shared {
            text.push_str(",shared");
        }
        if arguments.copies {
            text.push_str(",copies");
        }
        if arguments.reread {
            text.push_str(",reread");
        }
        variables.push(("PALIMPSEST_TEXT", text.into()));
    }
    if arguments.no_freeze {
        variables.push(("PALIMPSEST_FREEZE", "off".into()));
    } else if let Some(At(text)) = &arguments.at {
        variables.push(("PALIMPSEST_FREEZE", text.into()));
    } else if env::var_os("PALIMPSEST_FREEZE").is_some_and(|inherited| inherited == "off") {
        // Set by an outer `run --no-freeze`, for instance. This command asks for the opposite.
        variables.push(("PALIMPSEST_FREEZE", OsString::new()));
    }
    if !arguments.only.is_empty() {
        variables.push(("PALIMPSEST_ONLY", arguments.only.join(OsStr::new(NAMES_APART))));
    }
    if let Some(place) = arguments.report.clone().or_else(|| env::var_os(report::PLACE)) {
        variables.push((report::PLACE, report::handed_on(place)));
    }
    match arguments.huge {
        Some(Huge::Auto) => variables.push(("PALIMPSEST_HUGE", "auto".into())),
        Some(Huge::Collapse) => variables.push(("PALIMPSEST_HUGE", "collapse".into())),
        Some(Huge::Gather) => variables.push(("PALIMPSEST_HUGE", "gather".into())),
        Some(Huge::Off) => variables.push(("PALIMPSEST_HUGE", "off".into())),
        None => (),
    }
    match arguments.threads {
        Some(Threads::Stop) => variables.push(("PALIMPSEST_THREADS", "stop".into())),
        Some(Threads::Refuse) => variables.push(("PALIMPSEST_THREADS", "refuse".into())),
        None => {}
    }
    if let Some(PaysAfter(text)) = &arguments.pays_after {
        variables.push(("PALIMPSEST_PAYS_AFTER", text.into()));
    }
    if let Some(Pause(text)) = &arguments.pause {
        variables.push(("PALIMPSEST_PAUSE", text.into()));
    }
    if !arguments.trust.is_empty() {
        let names: Vec<&str> = arguments.trust.iter().map(|trusted| trusted.name()).collect();
        variables.push(("PALIMPSEST_TRUST", names.join(",").into()));
    }
    if arguments.dry_run {
        variables.push(("PALIMPSEST_DRY_RUN", "1".into()));
        // A dry run has no other purpose.
        if report::place(arguments).is_none() {
            variables.push((report::PLACE, "stderr".into()));
        }
    }
    if arguments.quiet {
        variables.push((report::QUIET, "1".into()));
    }
    variables
}

/// Whether `text` can be an entry of `LD_PRELOAD`, which the dynamic linker cuts at colons and blanks and in which it
/// expands `$LIB` and the like.
fn is_one_entry(text: &OsStr) -> bool {
    !text.as_bytes().iter().any(|byte| b": \t\n$".contains(byte))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &[&str]) -> Result<Arguments, clap::Error> {
        Line::try_parse_from([&["run"], line].concat()).map(|line| line.arguments)
    }

    #[test]
    fn every_flag_becomes_a_variable() {
        let line = [
            "--at",
            "size:512M",
            "--only",
            "redis-server",
            "--only=a,b",
            "--report=out.txt",
            "--huge",
            "--threads",
            "stop",
            "--pays-after",
            "3900",
            "--pause",
            "500us",
            "--trust",
            "go,io_uring",
            "--dry-run",
            "--quiet",
            "--",
            "redis-server",
            "--port",
            "0",
        ];
        let arguments = parse(&line).expect("a valid line");
        assert_eq!(arguments.program, "redis-server");
        assert_eq!(arguments.arguments, ["--port", "0"]);
        let expected = [
            ("PALIMPSEST_FREEZE", "size:512M"),
            ("PALIMPSEST_ONLY", "redis-server/a,b"),
            ("PALIMPSEST_REPORT", "out.txt"),
            ("PALIMPSEST_HUGE", "collapse"),
            ("PALIMPSEST_THREADS", "stop"),
            ("PALIMPSEST_PAYS_AFTER", "3900"),
            ("PALIMPSEST_PAUSE", "500us"),
            ("PALIMPSEST_TRUST", "go,io_uring"),
            ("PALIMPSEST_DRY_RUN", "1"),
            ("PALIMPSEST_QUIET", "1"),
        ];
        assert_eq!(variables(&arguments), expected.map(|(name, value)| (name, value.into())));
    }

    #[test]
    fn without_flags_the_environment_decides() {
        assert!(variables(&parse(&["true"]).expect("a valid line")).is_empty());
        let local = parse(&["--local-text", "--no-freeze", "--node", "1", "true"]).expect("a valid line");
        assert_eq!(variables(&local), [("PALIMPSEST_TEXT", "local:1".into()), ("PALIMPSEST_FREEZE", "off".into())]);
        let heirs = parse(&["--local-text", "--heirs", "true"]).expect("a valid line");
        assert_eq!(variables(&heirs), [("PALIMPSEST_TEXT", "local,heirs".into())]);
        let shared = parse(&["--local-text", "--heirs", "--shared", "true"]).expect("a valid line");
        assert_eq!(variables(&shared)[0], ("PALIMPSEST_TEXT", "local,heirs,shared".into()));
        for (flag, word) in [("--copies", "local,copies"), ("--reread", "local,reread")] {
            let of_pages = parse(&["--local-text", flag, "true"]).expect("a valid line");
            assert_eq!(variables(&of_pages)[0], ("PALIMPSEST_TEXT", word.into()));
        }
        for (flag, word) in [("--local-text=all", "local:1,all"), ("--local-text=huge", "local:1,huge")] {
            let some = parse(&[flag, "--node=1", "true"]).expect("a valid line");
            assert_eq!(variables(&some)[0], ("PALIMPSEST_TEXT", word.into()));
        }
        let both = parse(&["--local-text", "true"]).expect("a valid line");
        assert_eq!(variables(&both), [("PALIMPSEST_TEXT", "local".into())]);
        let reported = parse(&["--report", "--", "true"]).expect("a valid line");
        assert_eq!(variables(&reported), [("PALIMPSEST_REPORT", "stderr".into())]);
    }

    #[test]
    fn wrong_lines_are_usage_errors() {
        for line in [
            &[][..],
            &["--no-freeze", "true"],
            &["--node", "1", "true"],
            &["--heirs", "true"],
            &["--copies", "true"],
            &["--local-text=some", "true"],
            &["--local-text", "--copies", "--reread", "true"],
            &["--local-text", "--no-freeze", "--at", "fork", "true"],
            &["--local-text", "--no-freeze", "--only", "true", "true"],
            &["--local-text", "--no-freeze", "--huge", "true"],
            &["--local-text", "--no-freeze", "--threads", "stop", "true"],
            &["--local-text", "--no-freeze", "--pays-after", "any", "true"],
            &["--local-text", "--no-freeze", "--pause", "none", "true"],
            &["--local-text", "--no-freeze", "--trust", "go", "true"],
            &["--local-text", "--no-freeze", "--dry-run", "true"],
            &["--only", "", "true"],
            &["--only", "/bin/true", "true"],
            &["--at", "never", "true"],
            &["--at", "fork:0", "true"],
            &["--at", "fork:+1", "true"],
            &["--at", "size:1T", "true"],
            &["--at", "size:", "true"],
            &["--at", "size:18014398509481984K", "true"],
            &["--threads", "some", "true"],
            &["--trust", "rust", "true"],
            &["--pays-after", "0", "true"],
            &["--pays-after", "soon", "true"],
            &["--pause", "2", "true"],
            &["--pause", "5s", "true"],
        ] {
            assert_eq!(parse(line).expect_err(&format!("{line:?}")).exit_code(), i32::from(exit::USAGE), "{line:?}");
        }
    }

    #[test]
    fn a_signal_that_cannot_be_waited_for_is_told_before_the_start() {
        for (signal, reason) in [
            ("FOO", "there is no signal FOO"),
            ("KILL", "no program can catch KILL"),
            ("19", "no program can catch STOP"),
            ("SIGSEGV", "SEGV tells of a fault"),
            ("33", "the C library uses signal 33"),
        ] {
            let error = parse(&["--at", &format!("signal:{signal}"), "true"]).expect_err(signal);
            assert_eq!(error.exit_code(), i32::from(exit::USAGE), "{signal}");
            assert!(error.to_string().contains(reason), "{signal}: {error}");
        }
        parse(&["--at", "signal:USR2", "true"]).expect("a valid line");
    }

    #[test]
    fn what_is_preloaded_already_stays() {
        let object = OsStr::new("/a/x.so");
        assert_eq!(preload(object, None), "/a/x.so");
        assert_eq!(preload(object, Some("".into())), "/a/x.so");
        assert_eq!(preload(object, Some("jemalloc.so b.so".into())), "/a/x.so:jemalloc.so:b.so");
        let older = "/old/libpalimpsest_preload.so:jemalloc.so:libpalimpsest_preload.so";
        assert_eq!(preload(object, Some(older.into())), "/a/x.so:jemalloc.so");
    }
}
