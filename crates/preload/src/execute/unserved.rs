//! What a program is executed with that can have no children: an environment without this object.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use palimpsest_sys::memory::readable::Readable;
use palimpsest_sys::threads::own::Blocked;

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
/// The longest path that the kernel takes.
const LONGEST_PATH: usize = libc::PATH_MAX as usize;

/// The program that is about to be executed.
#[derive(Clone, Copy)]
pub(super) enum Program {
    /// The file under this path.
    At(*const c_char),
    /// The first file with this name in the folders of `PATH`, if there is no slash in it.
    Named(*const c_char),
}

/// The folder in which a path of the program begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Folder {
    /// That of this process.
    Own,
    Unknown,
}

/// Calls `execute` with the environment in which this object is left out, if it is known that the program has no use
/// for it. What cannot be read is left to `execute`. Async-signal-safe, also in a child of `vfork`.
///
/// # Safety
///
/// 1. As far as they can be read, the program's path is a C string and `environment` null or a null-terminated array of
///    C strings, and nobody may change them meanwhile.
pub(super) unsafe fn execute<T>(
    program: Program,
    folder: Folder,
    process: Process,
    environment: *const *mut c_char,
    execute: impl FnOnce(Option<*const *mut c_char>) -> T,
) -> T {
    // SAFETY: 1. is this function's.
    if unsafe { is_useless(program, folder, process, environment) } {
        // SAFETY: 1. is this function's, and it can be read.
        unsafe { without(environment, execute) }
    } else {
        execute(None)
    }
}

/// Calls `execute` with the environment in which this object is left out, which nothing else loads.
///
/// # Safety
///
/// 1. As for [`environment::loads_only_this`].
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

/// Whether the program has no use for this object, and the environment can be read, and without the object fits.
///
/// # Safety
///
/// 1. As for [`execute`].
#[inline(never)]
unsafe fn is_useless(program: Program, folder: Folder, process: Process, environment: *const *mut c_char) -> bool {
    let Some(started) = started::get().filter(|started| may_look(started, process)) else { return false };
    // Whoever executes in the process that `palimpsest run` has started is told of its end by what is executed.
    if process == Process::Own && is_told(started) || is_on_stack_for_signals() {
        return false;
    }
    // SAFETY: 1. is (1).
    if !unsafe { environment::is_readable(environment.cast_mut(), VARIABLES) } {
        return false;
    }
    // SAFETY: 1. it can be read, and is (1).
    if !unsafe { environment::loads_only_this(environment.cast_mut()) } {
        return false;
    }
    // SAFETY: 1. is (1); 2. as was just seen.
    let Some(file) = (unsafe { file_of(program, folder, environment) }) else { return false };
    // A handler that leaves by `siglongjmp` would leave the file open, and this thread as it is meanwhile. What is
    // executed, and its mask, come after that.
    let _quiet = Blocked::all_but_faults();
    let children = match process {
        Process::Own => children_of(file, process),
        // Closing a file is a place where the C library ends a thread.
        Process::Child => uncancelled(|| children_of(file, process)),
    };
    children == Children::Impossible
}

/// Whether there is no filter, which may end who makes calls that the program does not make.
fn may_look(started: &Started, process: Process) -> bool {
    matches!(started.filters, Some(Filters { count: 0, .. }))
        && !confined::is_seen()
        && match process {
            Process::Own => confined::is_known_to_be_free(started) || confined::is_free_child(started),
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

/// Where the file of a program is.
#[derive(Clone, Copy)]
enum File<'a> {
    Under(&'a CStr),
    /// In the first of these folders that has one with this name.
    Among {
        folders: &'a [u8],
        name: &'a CStr,
    },
}

/// Returns where the file of a program is; `None` if that is not known, or cannot be read.
///
/// # Safety
///
/// 1. As for [`execute`].
/// 2. `environment` can be read.
unsafe fn file_of<'a>(program: Program, folder: Folder, environment: *const *mut c_char) -> Option<File<'a>> {
    let (Program::At(text) | Program::Named(text)) = program;
    // SAFETY: 1. is (1).
    if !unsafe { Readable::default().has_string(text, LONGEST_PATH) } {
        return None;
    }
    // SAFETY: it can be read up to its end, and is (1).
    let path = unsafe { CStr::from_ptr(text) };
    if matches!(program, Program::At(_)) || path.to_bytes().contains(&b'/') {
        return (folder == Folder::Own || path.to_bytes().starts_with(b"/")).then_some(File::Under(path));
    }
    // The program's own environment, which whoever searches it reads.
    let own = environment::present();
    // SAFETY: 1. is (1).
    if own.cast_const() != environment && !unsafe { environment::is_readable(own, VARIABLES) } {
        return None;
    }
    // SAFETY: 1. is (1), and it can be read.
    let folders = unsafe { environment::own(b"PATH") }?;
    Some(File::Among { folders, name: path })
}

fn children_of(file: File<'_>, process: Process) -> Children {
    let found = match file {
        File::Under(path) => childless::look_at(path, process),
        File::Among { folders, name } => search(folders, name, process),
    };
    match found {
        Found::Program(children) => children,
        Found::Nothing => Children::Possible,
    }
}

/// Looks for a program in folders, as `execvp(3)` does; not in those that depend on the present one, which a child may
/// change.
fn search(folders: &[u8], name: &CStr, process: Process) -> Found {
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
