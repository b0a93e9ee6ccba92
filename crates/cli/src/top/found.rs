//! Which processes to look at.

use std::fs;
use std::io;

use palimpsest_sys::memory::extent::EXTENT_NAME;
use rustix::process::Pid;

use super::folder::Folder;
use crate::run::OBJECT_NAME;

/// Returns all processes, in order.
pub(super) fn all() -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw));
    }
    found.sort_unstable_by_key(|pid| pid.as_raw_nonzero());
    Ok(found)
}

/// Whether a process has the object of `run` mapped, or frozen memory. Waits for whoever holds its mappings.
pub(super) fn is_worth_a_look(pid: Pid) -> bool {
    // What another user's process has mapped is not ours to know, and an ended one has nothing.
    Folder::open(pid).and_then(|folder| folder.read("maps")).is_ok_and(|maps| is_served(&maps))
}

/// Whether a list of mappings names the object, or frozen memory. A process that names a file so is shown, with nothing
/// to tell.
fn is_served(maps: &[u8]) -> bool {
    maps.split(|&byte| byte == b'\n').any(|line| {
        let line = line.strip_suffix(b" (deleted)").unwrap_or(line);
        let has = |name: &str| line.ends_with(name.trim_end_matches(" (deleted)").as_bytes());
        has(OBJECT_NAME) || has(EXTENT_NAME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_known_wherever_it_comes_from() {
        let line = |name: &str| format!("1000-2000 r--p 0 0:0 0 /bin/a\n7f00-7f01 r--p 00000000 00:01 7   {name}\n");
        for name in [
            "/home/u/.cache/palimpsest/1-2/libpalimpsest_preload.so",
            "/home/u/.cache/palimpsest/1-2/libpalimpsest_preload.so (deleted)",
            "/memfd:libpalimpsest_preload.so (deleted)",
            EXTENT_NAME,
        ] {
            assert!(is_served(line(name).as_bytes()), "{name}");
        }
        for name in ["", "/lib/libc.so.6", "/x/libpalimpsest_preload.so.bak", "/memfd:palimpsest-constant (deleted)"] {
            assert!(!is_served(line(name).as_bytes()), "{name}");
        }
    }
}
