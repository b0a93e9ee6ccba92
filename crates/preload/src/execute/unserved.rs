//! What a program is executed with that can have no children: an environment without this object.

use std::ffi::{CStr, c_char};
use std::ptr;

use super::childless::{self, Children, Found};
use crate::cancelling::uncancelled;
use crate::started::{self, End};
use crate::{confined, environment};

/// Variables that fit on the stack of who executes a program; one that has more keeps the object.
const VARIABLES: usize = 256;
/// Bytes of a path that fit there.
const PATH: usize = 256;

/// The program that is about to be executed.
#[derive(Clone, Copy)]
pub(super) enum Program<'a> {
    /// The file under this path.
    At(&'a CStr),
    /// The first file with this name in the folders of `PATH`, if there is no slash in it.
    Named(&'a CStr),
}

/// In which process it is about to be executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    Own,
    Child,
}

/// Calls `execute` with the environment in which this object is left out, if it is known that the program has no use
/// for it.
/// Async-signal-safe, also in a child of `vfork`.
///
/// # Safety
///
/// 1. `environment` must be null or a null-terminated array of C strings, and nobody may change it meanwhile.
pub(super) unsafe fn execute<T>(
    program: Option<Program<'_>>,
    process: Process,
    environment: *const *mut c_char,
    execute: impl FnOnce(Option<*const *mut c_char>) -> T,
) -> T {
    // SAFETY: 1. is this function's.
    let preload = program.and_then(|program| unsafe { useless(program, process, environment) });
    match preload {
        None => execute(None),
        // SAFETY: 1. is this function's.
        Some(preload) => unsafe { without(preload, environment, execute) },
    }
}

/// Calls `execute` with the environment in which this string is left out.
///
/// # Safety
///
/// 1. `environment` must be a null-terminated array of at most [`VARIABLES`] C strings, and nobody may change it
///    meanwhile.
// What it has on the stack, nobody else needs there.
#[inline(never)]
unsafe fn without<T>(
    preload: usize,
    environment: *const *mut c_char,
    execute: impl FnOnce(Option<*const *mut c_char>) -> T,
) -> T {
    let mut strings = [ptr::null_mut(); VARIABLES];
    // SAFETY: 1. is this function's.
    let all = unsafe { environment::Strings::of(environment.cast_mut()) };
    for (place, string) in strings.iter_mut().zip(all.enumerate().filter(|&(number, _)| number != preload)) {
        *place = string.1.cast_mut();
    }
    execute(Some(strings.as_ptr()))
}

/// Returns which variable loads this object, if the program has no use for it and there are fewer than [`VARIABLES`].
///
/// # Safety
///
/// 1. As for [`execute`].
#[inline(never)]
unsafe fn useless(program: Program<'_>, process: Process, environment: *const *mut c_char) -> Option<usize> {
    // It makes calls that the program does not make. And whoever executes in the process that `palimpsest run` has
    // started is told of its end by what is executed.
    if confined::is_seen() || process == Process::Own && is_told() {
        return None;
    }
    // SAFETY: 1. is (1).
    let preload = unsafe { environment::only_preload(environment.cast_mut(), VARIABLES) }?;
    (uncancelled(|| children_of(program)) == Children::Impossible).then_some(preload)
}

/// Whether the end of this process is to be told.
fn is_told() -> bool {
    match started::get().map(|started| started.end) {
        Some(End::Told(process)) => rustix::process::getpid().as_raw_nonzero().get().unsigned_abs() == process,
        Some(End::Silent) | None => false,
    }
}

fn children_of(program: Program<'_>) -> Children {
    let found = match program {
        Program::Named(name) if !name.to_bytes().contains(&b'/') => search(name),
        Program::At(path) | Program::Named(path) => childless::look_at(path),
    };
    match found {
        Found::Program(children) => children,
        Found::Nothing => Children::Possible,
    }
}

/// Looks for a program in the folders of `PATH`, as `execvp(3)` does.
fn search(name: &CStr) -> Found {
    // SAFETY: 1. the program's own environment, which whoever searches it reads.
    let Some(folders) = (unsafe { environment::own(b"PATH") }) else { return Found::Nothing };
    let mut path = [0; PATH];
    for folder in folders.split(|&byte| byte == b':') {
        // No folder is the present one.
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        let Some(candidate) = joined(&mut path, [folder, slash, name.to_bytes_with_nul()]) else {
            return Found::Nothing;
        };
        match childless::look_at(candidate) {
            Found::Nothing => {}
            found @ Found::Program(_) => return found,
        }
    }
    Found::Nothing
}

/// Puts parts one behind another; `None` if there is no place for all.
fn joined<'a>(place: &'a mut [u8], parts: [&[u8]; 3]) -> Option<&'a CStr> {
    let mut rest = &mut *place;
    for part in parts {
        let (here, others) = rest.split_at_mut_checked(part.len())?;
        here.copy_from_slice(part);
        rest = others;
    }
    CStr::from_bytes_until_nul(place).ok()
}
