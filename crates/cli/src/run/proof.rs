//! The proof that the object is loaded: the program's own dynamic linker lists what it would load, with the very
//! `LD_PRELOAD` that the program gets, and runs none of it.
//!
//! A linker that cannot load an entry of `LD_PRELOAD` says so on standard error and runs the program without it: a
//! service could run unfrozen for months before somebody looks. This cannot see a security module that gives the
//! program other rights than its caller's when it is executed; the dynamic linker then ignores `LD_PRELOAD`.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fs};

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
    #[error(
        "this process's next child would be process 1 of a new PID namespace, which ends with it: let `unshare --pid` \
         have --fork, so that palimpsest is process 1 itself"
    )]
    EmptyNamespace,
    #[error(
        "the program needs {runtime}, which ends it unless it is loaded first, as the object has to be; set \
         {ASAN_OPTIONS}=verify_asan_link_order=0, or link the runtime statically (gcc -static-libasan; clang's default)"
    )]
    NotFirst { runtime: String },
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
    if is_namespace_empty() {
        return Err(NotLoaded::EmptyNamespace);
    }
    let linker = loader.linker.clone();
    match outputs(&mut question(loader, preloaded)) {
        Err(source) => Err(NotLoaded::Linker { linker, source }),
        Ok((listing, errors)) if lists(&listing, entry) && complaint(&errors, entry).is_none() => {
            match jealous(&listing).filter(|_| !is_order_free(env::var_os(ASAN_OPTIONS).as_deref())) {
                Some(runtime) => Err(NotLoaded::NotFirst { runtime }),
                None => Ok(()),
            }
        }
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

/// Whether children would be in a PID namespace that has no process yet. The file is there, and cannot be read
/// (`pidns_for_children_get` in `kernel/pid_namespace.c`).
fn is_namespace_empty() -> bool {
    let link = "/proc/self/ns/pid_for_children";
    let is_unreadable = || fs::read_link(link).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    fs::symlink_metadata(link).is_ok() && is_unreadable()
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

/// Returns what the linker writes to standard output, where each line begins with a tab, and to standard error. How it
/// ended is not asked: with SIGCHLD ignored, which is inherited, nobody can tell.
///
/// Through one pipe: for two there would have to be a thread, which a limit may forbid, or a call such as `poll`, for
/// which a filter may end this process.
fn outputs(command: &mut Command) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (mut pipe, end) = io::pipe()?;
    let child = command.stdin(Stdio::null()).stdout(end.try_clone()?).stderr(end).spawn();
    // Else this process itself would keep the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (mut child, mut told) = (child?, Vec::new());
    pipe.read_to_end(&mut told)?;
    let _unknown = child.wait();
    let (listing, errors): (Vec<&[u8]>, Vec<&[u8]>) =
        told.split_inclusive(|&byte| byte == b'\n').partition(|line| line.starts_with(b"\t"));
    Ok((listing.concat(), errors.concat()))
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty())
}

/// Whether one of the lines `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)` has `entry` as its name.
fn lists(listing: &[u8], entry: &OsStr) -> bool {
    lines(listing).any(|line| line.strip_prefix(entry.as_bytes()).is_some_and(|rest| rest.starts_with(b" (")))
}

/// Returns the name of a shared runtime of AddressSanitizer, which looks whether it comes first
/// (`AsanCheckDynamicRTPrereqs` in `compiler-rt/lib/asan/asan_linux.cpp`).
fn jealous(listing: &[u8]) -> Option<String> {
    let names = lines(listing).filter_map(|line| line.split(|&byte| byte == b' ').next());
    let files = names.filter_map(|name| name.rsplit(|&byte| byte == b'/').next());
    let mut runtimes = files.filter(|file| file.starts_with(b"libasan.so") || file.starts_with(b"libclang_rt.asan"));
    runtimes.next().map(|name| String::from_utf8_lossy(name).into())
}

const ASAN_OPTIONS: &str = "ASAN_OPTIONS";

/// Whether these options, of which the last one counts, let the runtime come later.
fn is_order_free(options: Option<&OsStr>) -> bool {
    let options = options.unwrap_or_default().as_bytes().split(|byte| b" ,:\n\t\r".contains(byte));
    let mut values = options.filter_map(|option| option.strip_prefix(b"verify_asan_link_order="));
    values.next_back().is_some_and(|value| [&b"0"[..], b"no", b"false"].contains(&value))
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
    fn listing_and_complaints_are_told_apart_however_much_there_is() {
        let script = "number=0; while [ $number -lt 9000 ]; do \
            printf '\\tname => path\\n'; echo complaint >&2; number=$((number + 1)); done";
        let (listing, errors) = outputs(Command::new("sh").args(["-c", script])).expect("a shell");
        let count =
            |text: &[u8], wanted: &[u8]| text.split(|&byte| byte == b'\n').filter(|line| *line == wanted).count();
        assert_eq!((count(&listing, b"\tname => path"), count(&errors, b"complaint")), (9000, 9000));
        assert_eq!((listing.len(), errors.len()), (9000 * 14, 9000 * 10));
    }

    #[test]
    fn shared_runtimes_of_address_sanitizer_are_seen_and_can_be_told_to_come_later() {
        let listing = |name: &str| format!("\tlinux-vdso.so.1 (0x7f)\n{ENTRY} (0x7f)\n\t{name} => /x/{name} (0x7f)\n");
        for name in ["libasan.so.8", "libclang_rt.asan-x86_64.so"] {
            assert_eq!(jealous(listing(name).as_bytes()).as_deref(), Some(name));
        }
        assert_eq!(jealous(b"\t/opt/libasan.so.6 (0x7f)").as_deref(), Some("libasan.so.6"));
        assert_eq!(jealous(listing("libubsan.so.1").as_bytes()), None);
        let is_free = |options: &str| is_order_free(Some(OsStr::new(options)));
        assert!(is_free("verify_asan_link_order=0") && is_free("a=1:verify_asan_link_order=false,b=2"));
        assert!(!is_free("") && !is_free("verify_asan_link_order=0 verify_asan_link_order=1") && !is_order_free(None));
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
