//! The proof that the object is loaded: the program's own dynamic linker lists what it would load, with the very
//! `LD_PRELOAD` that the program gets, and runs none of it.
//!
//! A linker that cannot load an entry of `LD_PRELOAD` says so on standard error and runs the program without it: a
//! service could run unfrozen for months before somebody looks. This cannot see a security module that gives the
//! program other rights than its caller's when it is executed; the dynamic linker then ignores `LD_PRELOAD`.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use crate::run::program::Loader;

/// Why the object would not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotLoaded {
    #[error("cannot start the dynamic linker {} of the program", linker.display())]
    Linker {
        linker: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} needs no library (Go links position-independent programs so), and then its dynamic linker does not tell \
         what it loads; link it with one, as `go build -ldflags=-linkmode=external` does",
        program.display()
    )]
    NoLibraries { program: PathBuf },
    #[error("the dynamic linker {} does not load the object: {said}; {}", linker.display(), way_out(said))]
    Refused { linker: PathBuf, said: String },
}

/// Returns what helps against what the linker said.
fn way_out(said: &str) -> &'static str {
    if said.contains("GLIBC_") {
        "the program's C library is older than the one that palimpsest was built with: build it on the older system"
    } else if said.contains("failed to map") {
        "the folder does not allow execution: set XDG_CACHE_HOME to one that does"
    } else {
        "leave PALIMPSEST_PRELOAD out, or name an object that was built for this system"
    }
}

/// Asks the linker of a program whether it loads `entry` when `LD_PRELOAD` has the value `preloaded`.
///
/// # Errors
///
/// It does not, and what it said.
pub(crate) fn of_loading(loader: &Loader, entry: &OsStr, preloaded: &OsStr) -> Result<(), NotLoaded> {
    let linker = loader.linker.clone();
    match outputs(&mut question(loader, preloaded)) {
        Err(source) => Err(NotLoaded::Linker { linker, source }),
        Ok((listing, errors)) if lists(&listing, entry) && complaint(&errors, entry).is_none() => Ok(()),
        // `elf/rtld.c`, for a program without DT_NEEDED.
        Ok((listing, errors)) if lines(&errors).next().is_none() && listing.trim_ascii() == b"statically linked" => {
            Err(NotLoaded::NoLibraries { program: loader.program.clone() })
        }
        Ok((_, errors)) => {
            let said = complaint(&errors, entry).or_else(|| lines(&errors).next());
            let said = said.map_or_else(|| "it says nothing".to_owned(), |line| String::from_utf8_lossy(line).into());
            Err(NotLoaded::Refused { linker, said })
        }
    }
}

/// Variables that would run other people's code in the linker, or make it say more or elsewhere (`ld.so(8)`).
const NOT_ASKED: [&str; 9] = [
    "LD_AUDIT",
    "LD_DEBUG",
    "LD_DEBUG_OUTPUT",
    "LD_PROFILE",
    "LD_PROFILE_OUTPUT",
    "LD_SHOW_AUXV",
    "LD_TRACE_LOADED_OBJECTS",
    "LD_TRACE_PRELINKING",
    "LD_VERBOSE",
];

fn question(loader: &Loader, preloaded: &OsStr) -> Command {
    let mut command = Command::new(&loader.linker);
    // `$ORIGIN` is the folder of the file behind all links, as in `/proc/self/exe`; and a name without a slash would be
    // looked for among libraries.
    let program = fs::canonicalize(&loader.program).unwrap_or_else(|_| loader.program.clone());
    command.arg("--list").arg(program).env("LD_PRELOAD", preloaded);
    for variable in NOT_ASKED {
        command.env_remove(variable);
    }
    command
}

/// Returns what a command writes to standard output and to standard error. How it ended is not asked: with SIGCHLD
/// ignored, which is inherited, nobody can tell.
fn outputs(command: &mut Command) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let (from_output, from_errors) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let reading = || from_errors.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut errors));
        thread::Builder::new().spawn_scoped(scope, reading)?;
        from_output.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut output))
    })?;
    let _unknown = child.wait();
    Ok((output, errors))
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty())
}

/// Whether one of the lines `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)` has `entry` as its name.
fn lists(listing: &[u8], entry: &OsStr) -> bool {
    lines(listing).any(|line| line.strip_prefix(entry.as_bytes()).is_some_and(|rest| rest.starts_with(b" (")))
}

/// Returns the first line that mentions `entry`.
fn complaint<'a>(said: &'a [u8], entry: &OsStr) -> Option<&'a [u8]> {
    lines(said).find(|line| line.windows(entry.len().max(1)).any(|part| part == entry.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::program::Way;

    const ENTRY: &str = "/c/libpalimpsest_preload.so";

    #[test]
    fn a_listing_must_name_the_object_as_loaded() {
        let loaded = "\tlinux-vdso.so.1 (0x7f)\n\t/c/libpalimpsest_preload.so (0x7f)\n";
        assert!(lists(loaded.as_bytes(), OsStr::new(ENTRY)));
        for other in ["", "\t/c/libpalimpsest_preload.so => not found\n", "\t/c/libpalimpsest_preload.so.bak (0x7f)\n"]
        {
            assert!(!lists(other.as_bytes(), OsStr::new(ENTRY)), "{other}");
        }
    }

    #[test]
    fn auditors_and_the_like_are_left_out_of_the_question() {
        let loader = Loader { linker: "/ld.so".into(), program: "/bin/sh".into(), way: Way::Direct };
        let asked = question(&loader, OsStr::new(ENTRY));
        let removed: Vec<&OsStr> =
            asked.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        for variable in ["LD_AUDIT", "LD_DEBUG", "LD_DEBUG_OUTPUT", "LD_SHOW_AUXV"] {
            assert!(removed.contains(&OsStr::new(variable)), "{variable}");
        }
        assert!(!removed.contains(&OsStr::new("LD_LIBRARY_PATH")), "the program's own libraries");
    }

    #[test]
    fn what_the_linker_says_of_the_object_is_passed_on() {
        let said =
            "ERROR: ld.so: object '/c/libpalimpsest_preload.so' from LD_PRELOAD cannot be preloaded (x): ignored.";
        let both = format!("something else\n{said}\n");
        assert_eq!(complaint(both.as_bytes(), OsStr::new(ENTRY)), Some(said.as_bytes()));
        assert_eq!(complaint(b"something else\n", OsStr::new(ENTRY)), None);
        let old = "/lib/libc.so.6: version `GLIBC_2.34' not found (required by /c/libpalimpsest_preload.so)";
        assert!(way_out(old).contains("older"));
    }
}
