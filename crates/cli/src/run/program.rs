//! Whether the dynamic linker would load the preload object into a program.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use palimpsest_numa::Piece;
use palimpsest_sys::{OpenRegularError, open_regular};
use rustix::fs::{Access, access};

mod elf;
mod env_line;
mod privileges;

use elf::{Linking, NotElf};
use env_line::Named;

/// Why a program cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("{}: not found; give its path or add its folder to PATH", name.display())]
    NotFound { name: OsString },
    #[error("{}: not executable; is it the file that you mean?", path.display())]
    NotExecutable { path: PathBuf },
    #[error(transparent)]
    Open(#[from] OpenRegularError),
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is neither an ELF program nor a script with `#!`; name a program", path.display())]
    NoProgram {
        path: PathBuf,
        #[source]
        source: NotElf,
    },
    #[error(
        "{} is for another architecture (ELF machine {machine}); it cannot be run with an object for this one",
        path.display()
    )]
    Foreign { path: PathBuf, machine: u16 },
    #[error(
        "{} is statically linked, so that nothing can be preloaded; link it dynamically, or use the crate \
         palimpsest-fork in it",
        path.display()
    )]
    Static { path: PathBuf },
    #[error(
        "{} uses the dynamic linker {}, not that of glibc, for which the object is made; use a build for glibc",
        path.display(),
        linker.display()
    )]
    OtherLibrary { path: PathBuf, linker: PathBuf },
    #[error(
        "{} gets more rights when it is started (set-user-id, set-group-id or capabilities), and then nothing is \
         preloaded; start it as the user that it becomes",
        path.display()
    )]
    Privileged { path: PathBuf },
    #[error(
        "{} is a script that has `env` take the object out of the environment of {} ({lost}); name the program itself",
        path.display(),
        program.display()
    )]
    WithoutObject { path: PathBuf, program: PathBuf, lost: String },
    #[error(
        "{} is a script whose interpreters are scripts, more than {DEPTH} deep; name the program behind them",
        path.display()
    )]
    TooDeep { path: PathBuf },
}

/// The kernel follows this many interpreters (`exec_binprm` in `fs/exec.c`).
const DEPTH: usize = 5;

/// Finds the file that executing `name` would start: itself if it has a slash, else the first in `path`.
///
/// # Errors
///
/// There is none, or it is not executable.
pub(crate) fn locate(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![name.into()]
    } else {
        // What the C library uses if there is no PATH.
        let folders = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
        // An empty one is the current folder; whoever gets a name without a slash would look for it again.
        let named = |folder: PathBuf| if folder.as_os_str().is_empty() { ".".into() } else { folder };
        std::env::split_paths(folders).map(|folder| named(folder).join(name)).collect()
    };
    let mut refused = None;
    for candidate in candidates {
        let Ok(found) = fs::metadata(&candidate) else { continue };
        // By this process, as the kernel will decide.
        if found.is_file() && access(&candidate, Access::EXEC_OK).is_ok() {
            return Ok(candidate);
        }
        refused.get_or_insert(candidate);
    }
    Err(match refused {
        Some(path) => ProgramError::NotExecutable { path },
        None => ProgramError::NotFound { name: name.to_owned() },
    })
}

/// The dynamic linker of a program, and the program itself: for a script the one behind it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Loader {
    pub(crate) linker: PathBuf,
    pub(crate) program: PathBuf,
    pub(crate) way: Way,
}

/// How the kernel comes to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// By itself.
    Direct,
    /// It starts `env`, which executes the program.
    ByEnv,
}

/// Checks a program, or the interpreter of a script.
///
/// # Errors
///
/// Why nothing would be preloaded.
pub(crate) fn check(path: &Path) -> Result<Loader, ProgramError> {
    let mut path = path.to_owned();
    let mut way = Way::Direct;
    for _ in 0..DEPTH {
        let read = |source| ProgramError::Read { path: path.clone(), source };
        let mut file = open_regular(&path)?;
        // The kernel looks at the first 256 bytes (`BINPRM_BUF_SIZE`).
        let mut start = Vec::new();
        (&mut file).take(256).read_to_end(&mut start).map_err(read)?;
        let Some(script) = interpreter(&start) else { return check_elf(path, &file, way) };
        path = match script {
            Interpreter::Program(program) => program,
            // `env` is served; but what matters is the program that it becomes.
            Interpreter::ByEnv(named) => {
                way = Way::ByEnv;
                let folders = named.path.or_else(|| std::env::var_os("PATH"));
                let program = locate(&named.program, folders.as_deref())?;
                if let Some(lost) = named.lost {
                    return Err(ProgramError::WithoutObject { path, program, lost });
                }
                program
            }
        };
    }
    Err(ProgramError::TooDeep { path })
}

/// Returns what of a program's file the kernel maps without the right to write, where huge pages can show it.
///
/// # Errors
///
/// It cannot be read, or is no program for this machine.
pub(crate) fn constants(path: &Path) -> Result<Vec<Piece>, ProgramError> {
    let file = open_regular(path)?;
    elf::constants(&file).map_err(|source| ProgramError::NoProgram { path: path.to_owned(), source })
}

fn check_elf(path: PathBuf, file: &File, way: Way) -> Result<Loader, ProgramError> {
    let linking = match elf::linking(file) {
        Ok(linking) => linking,
        Err(source) => return Err(ProgramError::NoProgram { path, source }),
    };
    match linking {
        Linking::Foreign { machine } => Err(ProgramError::Foreign { path, machine: machine.0 }),
        Linking::Static => Err(ProgramError::Static { path }),
        // `ld-linux-x86-64.so.2`, `ld-linux-aarch64.so.1`; musl's is `ld-musl-…`.
        Linking::Dynamic { linker } if !file_name(&linker).starts_with(b"ld-linux") => {
            Err(ProgramError::OtherLibrary { path, linker })
        }
        Linking::Dynamic { .. } if privileges::are_gained(&path, file) => Err(ProgramError::Privileged { path }),
        Linking::Dynamic { linker } => Ok(Loader { linker, program: path, way }),
    }
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}

#[derive(PartialEq, Eq, Debug)]
enum Interpreter {
    Program(PathBuf),
    /// Named to `env`, which looks for it in PATH.
    ByEnv(Named),
}

/// Returns the interpreter of a script that starts like this, as `load_script` in `fs/binfmt_script.c` finds it.
fn interpreter(start: &[u8]) -> Option<Interpreter> {
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let is_blank = |byte: &u8| b" \t".contains(byte);
    let from = line.iter().position(|byte| !is_blank(byte))?;
    let to = line.iter().rposition(|byte| !is_blank(byte))?;
    let line = &line[from..=to];
    let (program, argument) = line.split_at(line.iter().position(is_blank).unwrap_or(line.len()));
    let argument = &argument[argument.iter().position(|byte| !is_blank(byte)).unwrap_or(argument.len())..];
    let program = Path::new(OsStr::from_bytes(program));
    let named =
        if file_name(program) == b"env" { env_line::read(argument, &|name| std::env::var_os(name)) } else { None };
    Some(named.map_or_else(|| Interpreter::Program(program.to_owned()), Interpreter::ByEnv))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn interpreters_are_read_as_the_kernel_and_env_do() {
        let program = |path: &str| Some(Interpreter::Program(path.into()));
        let by_env = |name: &str| Some(Interpreter::ByEnv(Named { program: name.into(), path: None, lost: None }));
        assert_eq!(interpreter(b"#!/bin/sh\necho\n"), program("/bin/sh"));
        assert_eq!(interpreter(b"#! /usr/bin/python3 -u\n"), program("/usr/bin/python3"));
        assert_eq!(interpreter(b"#!/usr/bin/env python3\n"), by_env("python3"));
        assert_eq!(interpreter(b"#! \t/usr/bin/env\tpython3 \t\n"), by_env("python3"));
        assert_eq!(interpreter(b"#!/usr/bin/env -S A=1 ruby -w\n"), by_env("ruby"));
        assert_eq!(interpreter(b"#!/usr/bin/env python3 -u\n"), by_env("python3 -u"), "the kernel splits nothing");
        assert_eq!(interpreter(b"#!/usr/bin/env\n"), program("/usr/bin/env"));
        assert_eq!(interpreter(b"\x7fELF"), None);
        assert_eq!(interpreter(b"#!\n"), None);
    }

    fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    #[test]
    fn programs_and_scripts_of_this_machine_are_served() {
        let shell = locate(OsStr::new("sh"), None).expect("there is a shell");
        check(&shell).expect("it is dynamic");
        let folder = tempfile::tempdir().expect("a folder");
        check(&script(folder.path(), "a", "#!/bin/sh\n")).expect("its interpreter is dynamic");
        let b = format!("#!{}\n", folder.path().join("a").display());
        check(&script(folder.path(), "b", &b)).expect("a script of a script");
        let own = std::env::current_exe().expect("it has a path");
        check(&own).expect("this test is dynamic");
    }

    #[test]
    fn what_cannot_be_served_says_why() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = script(folder.path(), "text", "just text\n");
        assert!(matches!(check(&text), Err(ProgramError::NoProgram { .. })));
        let itself = folder.path().join("itself");
        script(folder.path(), "itself", &format!("#!{}\n", itself.display()));
        assert!(matches!(check(&itself), Err(ProgramError::TooDeep { .. })));
        let missing = script(folder.path(), "missing", "#!/nonexistent/interpreter\n");
        assert!(matches!(check(&missing), Err(ProgramError::Open(OpenRegularError::Open { .. }))));
        let by_env = script(folder.path(), "by_env", "#!/usr/bin/env no-such-interpreter\n");
        assert!(matches!(check(&by_env), Err(ProgramError::NotFound { .. })));
        let clearing = script(folder.path(), "clearing", "#!/usr/bin/env -S -i sh\n");
        assert!(matches!(check(&clearing), Err(ProgramError::WithoutObject { .. })));
        assert!(matches!(locate(OsStr::new("no-such-program"), None), Err(ProgramError::NotFound { .. })));
        let plain = folder.path().join("plain");
        fs::write(&plain, "").expect("it can be written");
        assert!(matches!(locate(plain.as_os_str(), None), Err(ProgramError::NotExecutable { .. })));
        assert!(matches!(locate(folder.path().as_os_str(), None), Err(ProgramError::NotExecutable { .. })));
    }

    /// Opening it would wait for somebody who writes.
    #[test]
    fn an_interpreter_that_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
        for interpreter in [fifo.as_path(), Path::new("/dev/null"), folder.path()] {
            let by_it = script(folder.path(), "by_it", &format!("#!{}\n", interpreter.display()));
            let refused = check(&by_it);
            let expected = matches!(refused, Err(ProgramError::Open(OpenRegularError::NotRegular { .. })));
            assert!(expected, "{}: {refused:?}", interpreter.display());
        }
    }
}
