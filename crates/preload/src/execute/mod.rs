//! `exec…`, `posix_spawn…`, `system` and `popen` as the program calls them: executed programs get the `coredump_filter`
//! that this one was started with.
//!
//! The C library's calls from one to another bypass this object, so that each function is defined. Those of `exec` that
//! take any number of arguments, or a descriptor, are trampolines that call [`prepare`], and then the next definition,
//! with registers and stack as they came. The others leave this object out of the environment of programs that can have
//! no children ([`childless`]).
//!
//! `pidfd_spawn` and `pidfd_spawnp` (glibc 2.39) are not among them. Who uses them asks first whether they exist, as
//! Rust's standard library does by a weak symbol, and has another way. A definition here would answer yes whatever the
//! C library, and such programs would fail with the older ones.

mod childless;
mod unserved;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::arch::trampoline;
use crate::cancelling::uncancelled;
use crate::next::Next;
use crate::{confined, core_filter, environment, errno};
use childless::Process;
use unserved::{Folder, Program};

/// A function of the family `exec`: a trampoline passes on whatever it takes.
type Exec = unsafe extern "C" fn() -> c_int;
type Execv = unsafe extern "C" fn(*const c_char, *const *mut c_char) -> c_int;
type Execve = unsafe extern "C" fn(*const c_char, *const *mut c_char, *const *mut c_char) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const posix_spawn_file_actions_t,
    *const posix_spawnattr_t,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;
/// A thread can be cancelled in it and in `popen`, which unwinds the thread.
type System = unsafe extern "C-unwind" fn(*const c_char) -> c_int;
type Popen = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// A function that trampolines call by address only, so that its type does not matter.
const fn exec(name: &'static CStr) -> Next<Exec> {
    // SAFETY: it is never called through this type.
    unsafe { Next::new(name) }
}

/// The trampolines' functions, by number.
static EXEC: [Next<Exec>; 5] = [exec(c"execl"), exec(c"execlp"), exec(c"execle"), exec(c"fexecve"), exec(c"execveat")];
// SAFETY: `int execve(const char *, char *const [], char *const [])`.
static EXECVE: Next<Execve> = unsafe { Next::new(c"execve") };
// SAFETY: the same.
static EXECVPE: Next<Execve> = unsafe { Next::new(c"execvpe") };
// SAFETY: `int execv(const char *, char *const [])`.
static EXECV: Next<Execv> = unsafe { Next::new(c"execv") };
// SAFETY: the same.
static EXECVP: Next<Execv> = unsafe { Next::new(c"execvp") };
// SAFETY: `int posix_spawn(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
// char *const [], char *const [])`.
static POSIX_SPAWN: Next<Spawn> = unsafe { Next::new(c"posix_spawn") };
// SAFETY: the same.
static POSIX_SPAWNP: Next<Spawn> = unsafe { Next::new(c"posix_spawnp") };
// SAFETY: `int system(const char *)`.
static SYSTEM: Next<System> = unsafe { Next::new(c"system") };
// SAFETY: `FILE *popen(const char *, const char *)`.
static POPEN: Next<Popen> = unsafe { Next::new(c"popen") };

/// Defines functions of the family `exec`.
macro_rules! trampolines {
    ($($number:literal $name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`, with that function's parameters.")]
        ///
        /// # Safety
        ///
        /// 1. As for the C library's function, to which the type written here is of no concern.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name() -> c_int {
            trampoline!($number, prepare)
        }
    )*};
}

trampolines! {
    0 execl
    1 execlp
    2 execle
    3 fexecve
    4 execveat
}

/// Defines functions of the family `exec` that are given an environment.
macro_rules! with_environment {
    ($($name:ident $next:ident $program:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        ///
        /// 1. As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            arguments: *const *mut c_char,
            environment: *const *mut c_char,
        ) -> c_int {
            before_exec();
            let Some(real) = real(&$next) else { return missing() };
            // SAFETY: contract 1.
            let call = |other: Option<_>| unsafe { real(path, arguments, other.unwrap_or(environment)) };
            // SAFETY: 1. is contract 1.
            unsafe { unserved::execute(Program::$program(path), Folder::Own, Process::Own, environment, call) }
        }
    )*};
}

with_environment! {
    execve EXECVE At
    execvpe EXECVPE Named
}

/// Defines functions of the family `exec` for the program's own environment, and what they are with another one.
macro_rules! with_own_environment {
    ($($name:ident $next:ident $other:ident $program:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        ///
        /// 1. As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: *const c_char, arguments: *const *mut c_char) -> c_int {
            before_exec();
            let (Some(real), with_environment) = (real(&$next), real(&$other)) else { return missing() };
            let call = |other: Option<_>| match (other, with_environment) {
                // SAFETY: contract 1.
                (Some(other), Some(with_environment)) => unsafe { with_environment(path, arguments, other) },
                // SAFETY: contract 1.
                _ => unsafe { real(path, arguments) },
            };
            let environment = environment::present();
            // SAFETY: 1. is contract 1; the program's own environment, with which it executes another one.
            unsafe { unserved::execute(Program::$program(path), Folder::Own, Process::Own, environment, call) }
        }
    )*};
}

with_own_environment! {
    execv EXECV EXECVE At
    execvp EXECVP EXECVPE Named
}

/// Looks up the real functions. At the start, although most programs execute no other one and this takes 6 µs: `dlsym`
/// takes a lock of the dynamic linker, which another thread may hold in a constructor that waits for this very call,
/// and which a child made by a bare `clone` finds taken for ever.
pub(crate) fn resolve() {
    EXEC.iter().for_each(Next::resolve);
    [&EXECVE, &EXECVPE].into_iter().for_each(Next::resolve);
    [&EXECV, &EXECVP].into_iter().for_each(Next::resolve);
    POSIX_SPAWN.resolve();
    POSIX_SPAWNP.resolve();
    SYSTEM.resolve();
    POPEN.resolve();
}

/// Returns the next definition; looks it up now for a constructor that runs before ours. None of these functions is
/// called from inside `malloc` or the dynamic linker, so that `dlsym` is safe.
fn real<F: Copy>(next: &Next<F>) -> Option<F> {
    next.get().or_else(|| {
        next.resolve();
        next.get()
    })
}

/// Does what must be done before this process executes another program. Waits for no deputy under a filter of the
/// program's, which may end it for any system call: none is sent from there on, and the last was waited for.
pub(crate) fn before_exec() {
    core_filter::lend();
    if !confined::is_seen() {
        uncancelled(palimpsest_fork::dismiss_deputy);
    }
}

/// Waits for a deputy. Returns whether there was one.
fn make_room() -> bool {
    !confined::is_seen() && uncancelled(palimpsest_fork::make_room)
}

/// Spawns; once more if there was no place for the child, and a deputy had one.
fn spawned<T>(spawn: impl Fn() -> T, is_refused: impl Fn(&T) -> bool, make_room: impl FnOnce() -> bool) -> T {
    let outcome = spawn();
    if is_refused(&outcome) && make_room() { spawn() } else { outcome }
}

/// Whether `posix_spawn` was refused a place.
const fn lacks_place(errno: &c_int) -> bool {
    *errno == libc::EAGAIN
}

/// What `system` answers if it could not make a child: the status of a shell that could not be executed, with the
/// reason in `errno`; or -1.
const NO_SHELL: c_int = 127 << 8;

/// Does what must be done before, and returns the address of the real function with this number. For the trampolines.
pub(crate) extern "C" fn prepare(number: usize) -> *const c_void {
    before_exec();
    match EXEC.get(number).and_then(real) {
        Some(real) => real as *const c_void,
        None => missing as *const c_void,
    }
}

/// What an older C library answers to a function that it lacks.
extern "C" fn missing() -> c_int {
    errno::set(libc::ENOSYS);
    -1
}

/// Defines functions of the family `posix_spawn`.
macro_rules! spawns {
    ($($name:ident $next:ident $program:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        ///
        /// 1. As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            child: *mut pid_t,
            path: *const c_char,
            actions: *const posix_spawn_file_actions_t,
            attributes: *const posix_spawnattr_t,
            arguments: *const *mut c_char,
            environment: *const *mut c_char,
        ) -> c_int {
            let Some(real) = real(&$next) else { return libc::ENOSYS };
            let spawn = |other: Option<_>| {
                let environment = other.unwrap_or(environment);
                // SAFETY: contract 1.
                let spawn = || unsafe { real(child, path, actions, attributes, arguments, environment) };
                core_filter::around(|| spawned(spawn, lacks_place, make_room))
            };
            // The actions may change it.
            let folder = if actions.is_null() { Folder::Own } else { Folder::Unknown };
            // SAFETY: 1. is contract 1.
            unsafe { unserved::execute(Program::$program(path), folder, Process::Child, environment, spawn) }
        }
    )*};
}

spawns! {
    posix_spawn POSIX_SPAWN At
    posix_spawnp POSIX_SPAWNP Named
}

/// `system(3)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    let Some(real) = real(&SYSTEM) else { return missing() };
    let before = errno::Kept::now();
    // Else a shell that ends with 127 would look refused beside an old value.
    errno::set(0);
    let lacks_place = |status: &c_int| matches!(*status, -1 | NO_SHELL) && errno::get() == libc::EAGAIN;
    // SAFETY: contract 1.
    let status = core_filter::around(|| spawned(|| unsafe { real(command) }, lacks_place, make_room));
    if errno::get() == 0 {
        before.set_again();
    }
    status
}

/// `popen(3)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let Some(real) = real(&POPEN) else {
        missing();
        return ptr::null_mut();
    };
    let lacks_place = |file: &*mut libc::FILE| file.is_null() && errno::get() == libc::EAGAIN;
    // SAFETY: contract 1.
    core_filter::around(|| spawned(|| unsafe { real(command, mode) }, lacks_place, make_room))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Fails on: a spawn that is refused for the place of a deputy; one that is done twice for another reason.
    #[test]
    fn who_is_refused_a_place_tries_again_without_the_deputy() {
        let tries = |answer: c_int, has_deputy: bool| {
            let count = Cell::new(0);
            let spawn = || {
                count.set(count.get() + 1);
                if count.get() == 1 { answer } else { 0 }
            };
            (spawned(spawn, lacks_place, || has_deputy), count.get())
        };
        assert_eq!(tries(libc::EAGAIN, true), (0, 2));
        assert_eq!(tries(libc::EAGAIN, false), (libc::EAGAIN, 1));
        assert_eq!(tries(libc::ENOENT, true), (libc::ENOENT, 1));
        assert_eq!(tries(0, true), (0, 1));
    }
}
