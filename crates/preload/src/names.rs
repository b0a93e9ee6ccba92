//! What this program is called, and whether `PALIMPSEST_ONLY` names it.
//!
//! | a program that was started as | is called |
//! |---|---|
//! | `python3`, a link to `/usr/bin/python3.11` | `python3` and `python3.11` |
//! | the script `gunicorn` with `#!/usr/bin/python3` | `gunicorn`, `python3` and `python3.11` |
//! | the script `gunicorn` with `#!/usr/bin/env python3` | `python3` and `python3.11`, which `env` executes |
//! | `sh`, a link to `busybox`; a login shell `-bash` | `sh` and `busybox`; `bash` |
//! | `exec -a worker sleep 1` | `worker` and `sleep` |

use std::ffi::{CStr, OsString, c_char};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Reads the wanted names from the variable. Slashes separate them, since no name contains one. `None` if there is
/// none.
pub(crate) fn wanted(value: &[u8]) -> Option<Vec<OsString>> {
    let names = value.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let names: Vec<OsString> = names.map(|name| OsString::from_vec(name.to_vec())).collect();
    (!names.is_empty()).then_some(names)
}

/// Returns why this program is left alone, if none of its names is `wanted`. Without names all programs are wanted.
///
/// # Safety
///
/// 1. `arguments` must be null or a null-terminated array of C strings.
pub(crate) unsafe fn left_out(wanted: &[OsString], arguments: *const *const c_char) -> Option<String> {
    if wanted.is_empty() {
        return None;
    }
    // SAFETY: contract 1.
    let first = unsafe { first(arguments) };
    let file = fs::read_link("/proc/self/exe").ok().map(|path| path.into_os_string().into_vec());
    judged(wanted, [executed(), first, file].into_iter().flatten())
}

fn judged(wanted: &[OsString], paths: impl Iterator<Item = Vec<u8>>) -> Option<String> {
    let mut names: Vec<Vec<u8>> = paths.map(|path| name(&path).to_vec()).filter(|name| !name.is_empty()).collect();
    names.dedup();
    if names.iter().any(|name| wanted.iter().any(|wanted| wanted.as_bytes() == name)) {
        return None;
    }
    let wanted: Vec<String> = wanted.iter().map(|name| shown(name.as_bytes())).collect();
    let names: Vec<String> = names.iter().map(|name| shown(name)).collect();
    Some(format!("--only (PALIMPSEST_ONLY) names {}, and it is called {}", wanted.join(", "), names.join(", ")))
}

/// Returns a name as it can be printed to a terminal.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}

/// Returns the last part of a path, without the dash of a login shell and without the kernel's mark of a replaced file.
fn name(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    name.strip_prefix(b"-").unwrap_or(name)
}

/// Returns the path given to `execve`: a script's own.
fn executed() -> Option<Vec<u8>> {
    // SAFETY: asks for a number.
    let place = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
    if place == 0 {
        return None;
    }
    // SAFETY: the kernel has put a C string there, above the stack, where it stays.
    Some(unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance(place)) }.to_bytes().to_vec())
}

/// Returns the first argument.
///
/// # Safety
///
/// 1. As for [`left_out`].
unsafe fn first(arguments: *const *const c_char) -> Option<Vec<u8>> {
    if arguments.is_null() {
        return None;
    }
    // SAFETY: contract 1.
    let first = unsafe { arguments.read() };
    // SAFETY: contract 1.
    (!first.is_null()).then(|| unsafe { CStr::from_ptr(first) }.to_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(wanted: &[&str], paths: &[&str]) -> Option<String> {
        let wanted: Vec<OsString> = wanted.iter().map(OsString::from).collect();
        judged(&wanted, paths.iter().map(|path| path.as_bytes().to_vec()))
    }

    #[test]
    fn a_program_is_known_by_each_of_its_names() {
        let script = ["/srv/bin/gunicorn", "/usr/bin/python3", "/usr/bin/python3.11"];
        for name in ["gunicorn", "python3", "python3.11"] {
            assert_eq!(left(&["other", name], &script), None);
        }
        assert_eq!(left(&["bash"], &["-bash", "/bin/bash"]), None);
        assert_eq!(left(&["sh"], &["/bin/sh", "/bin/busybox"]), None);
        assert_eq!(left(&["redis-server"], &["/usr/bin/redis-server (deleted)"]), None);
        assert_eq!(left(&["a,b c"], &["/x/a,b c"]), None);
    }

    #[test]
    fn others_are_left_with_the_names_that_they_have() {
        let said = left(&["redis-server"], &["sh", "sh", "/bin/dash"]).expect("left");
        assert_eq!(said, "--only (PALIMPSEST_ONLY) names redis-server, and it is called sh, dash");
        for name in ["", "gunicor", "gunicornn", "bin", "/srv/bin/gunicorn"] {
            assert!(left(&[name], &["/srv/bin/gunicorn"]).is_some(), "{name}");
        }
        let hostile = left(&["x"], &["/tmp/\u{1b}[2J\u{202e}"]).expect("left");
        assert!(hostile.chars().all(|sign| (' '..='~').contains(&sign)), "{hostile}");
    }

    #[test]
    fn names_are_apart_by_what_no_name_has() {
        let names = |value: &str| wanted(value.as_bytes());
        assert_eq!(names("a,b/c d"), Some(vec!["a,b".into(), "c d".into()]));
        assert_eq!((names("/"), names("")), (None, None));
    }

    #[test]
    fn this_program_has_its_own_name() {
        let own = std::env::current_exe().expect("it has a file");
        let own = own.file_name().expect("it has a name").to_owned();
        // SAFETY: 1. null.
        assert_eq!(unsafe { left_out(&[own], std::ptr::null()) }, None);
        // SAFETY: 1. null.
        assert!(unsafe { left_out(&["no-such-program".into()], std::ptr::null()) }.is_some());
    }
}
