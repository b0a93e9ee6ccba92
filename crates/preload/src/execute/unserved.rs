//! What a program is executed with that can have no children: an environment without this object.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use super::childless::{self, Children, Found, Process};
use crate::cancelling::uncancelled;
use crate::filters::Filters;
use crate::started::{self, End, Started};
use crate::{confined, environment};

/// Variables that fit on the stack of who executes a program, with the null behind them; one that has more keeps the
/// object.
const VARIABLES: usize = 192;
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

/// Calls `execute` with the environment in which this object is left out, if it is known that the program has no use
/// for it. Async-signal-safe, also in a child of `vfork`.
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
    if program.is_some_and(|program| unsafe { is_useless(program, process, environment) }) {
        // SAFETY: 1. is this function's.
        unsafe { without(environment, execute) }
    } else {
        execute(None)
    }
}

/// Calls `execute` with the environment in which this object is left out, which nothing else loads.
///
/// # Safety
///
/// 1. As for [`execute`].
// What it has on the stack, nobody else needs there.
#[inline(never)]
unsafe fn without<T>(environment: *const *mut c_char, execute: impl FnOnce(Option<*const *mut c_char>) -> T) -> T {
    let mut strings = [ptr::null_mut(); VARIABLES];
    // SAFETY: 1. is this function's.
    let all = unsafe { environment::Strings::of(environment.cast_mut()) };
    // SAFETY: 1. strings of the environment; is this function's.
    let kept = all.filter(|&string| !unsafe { environment::is_preload(string) });
    // The last stays null, whatever another thread has added.
    for (place, string) in strings.iter_mut().take(VARIABLES - 1).zip(kept) {
        *place = string.cast_mut();
    }
    execute(Some(strings.as_ptr()))
}

/// Whether the program has no use for this object, and the environment without it fits.
///
/// # Safety
///
/// 1. As for [`execute`].
#[inline(never)]
unsafe fn is_useless(program: Program<'_>, process: Process, environment: *const *mut c_char) -> bool {
    let Some(started) = started::get().filter(|started| may_look(started, process)) else { return false };
    // Whoever executes in the process that `palimpsest run` has started is told of its end by what is executed.
    if process == Process::Own && is_told(started) || is_on_stack_for_signals() {
        return false;
    }
    // SAFETY: 1. is (1).
    if !unsafe { environment::loads_only_this(environment.cast_mut(), VARIABLES) } {
        return false;
    }
    let children = match process {
        Process::Own => children_of(program, process),
        // Closing a file is a place where the C library ends a thread.
        Process::Child => uncancelled(|| children_of(program, process)),
    };
    children == Children::Impossible
}

/// Whether there is no filter, which may end who makes calls that the program does not make.
fn may_look(started: &Started, process: Process) -> bool {
    matches!(started.filters, Some(Filters { count: 0, .. }))
        && !confined::is_seen()
        && match process {
            Process::Own => confined::is_known_to_be_free(started),
            Process::Child => confined::is_free(started),
        }
}

/// Whether the end of this process is to be told.
fn is_told(started: &Started) -> bool {
    match started.end {
        End::Told(process) => rustix::process::getpid().as_raw_nonzero().get().unsigned_abs() == process,
        End::Silent => false,
    }
}

/// Whether this is a stack that the program has given to handlers, which may be too short.
fn is_on_stack_for_signals() -> bool {
    // SAFETY: all zeros is a valid value.
    let mut stack: libc::stack_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the kernel writes to a local.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK != 0 }
}

fn children_of(program: Program<'_>, process: Process) -> Children {
    let found = match program {
        Program::Named(name) if !name.to_bytes().contains(&b'/') => search(name, process),
        Program::At(path) | Program::Named(path) => childless::look_at(path, process),
    };
    match found {
        Found::Program(children) => children,
        Found::Nothing => Children::Possible,
    }
}

/// Looks for a program in the folders of `PATH`, as `execvp(3)` does; not in those that depend on the present one,
/// which a child may change.
fn search(name: &CStr, process: Process) -> Found {
    // SAFETY: 1. the program's own environment, which whoever searches it reads.
    let Some(folders) = (unsafe { environment::own(b"PATH") }) else { return Found::Nothing };
    let mut path = [0; PATH];
    for folder in folders.split(|&byte| byte == b':') {
        let parts = [folder, b"/", name.to_bytes_with_nul()];
        let candidate = if folder.starts_with(b"/") { joined(&mut path, parts) } else { None };
        let Some(candidate) = candidate else { return Found::Program(Children::Possible) };
        match childless::look_at(candidate, process) {
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
