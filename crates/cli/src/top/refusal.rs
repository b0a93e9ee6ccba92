//! Why the memory of a process may not be read, and what helps (`ptrace(2)`, "Ptrace access mode checking").

use std::fs;
use std::io::ErrorKind;

use rustix::process::getuid;

use super::folder::Folder;

const HIDEPID: &str =
    "/proc lets nobody else look at it (hidepid, see proc(5)): look as its user, or by `sudo palimpsest top`";

/// Returns the reason and the way out.
pub(super) fn reason(folder: &Folder) -> String {
    let status = folder.read("status");
    // Everybody may read it where nothing is hidden.
    if status.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        return HIDEPID.to_owned();
    }
    let owner = status.ok().and_then(|text| owner(&text));
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    why(owner, getuid().as_raw(), scope.and_then(|text| text.trim().parse().ok()))
}

/// Returns the real user of a process.
fn owner(status: &[u8]) -> Option<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the same for a process of `owner`, looked at by `user`, in a kernel with this `ptrace_scope`.
pub(super) fn why(owner: Option<u32>, user: u32, scope: Option<u32>) -> String {
    match (owner, scope) {
        (_, Some(scope @ 3..)) => format!(
            "its figures are in its memory, which kernel.yama.ptrace_scope = {scope} lets nobody read, not even root, \
             until the machine is started with less"
        ),
        _ if user == 0 => {
            "its memory may not be read even by root: this needs CAP_SYS_PTRACE in the user namespace of \
                           the process, which containers lack; look from outside"
                .to_owned()
        }
        (Some(owner), _) if owner != user => {
            format!("it belongs to user {owner}: look as that user, or by `sudo palimpsest top`")
        }
        (_, Some(scope @ 1..)) => format!(
            "its figures are in its memory, which kernel.yama.ptrace_scope = {scope} lets {} read: `sudo palimpsest \
             top`{}",
            if scope == 1 { "its parent alone" } else { "root alone" },
            if scope == 1 { ", or `sysctl kernel.yama.ptrace_scope=0` on a machine of your own" } else { "" }
        ),
        _ => "its memory may not be read: it has changed its user, or has more rights than you; `sudo palimpsest top`"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_way_out() {
        assert_eq!(owner(b"Name:\tUid: 7\nUid:\t1000\t1001\t1000\t1000\nGid:\t5\n"), Some(1000));
        assert_eq!(owner(b"Uid:\t\xff\n"), None);
        for (owner, user, scope, part) in [
            (Some(7), 1000, Some(1), "user 7"),
            (Some(1000), 1000, Some(1), "ptrace_scope=0"),
            (Some(1000), 1000, Some(2), "sudo"),
            // Whoever looks, at whomever.
            (Some(1000), 1000, Some(3), "not even root"),
            (Some(1000), 0, Some(3), "not even root"),
            (Some(7), 1000, Some(3), "not even root"),
            (Some(1000), 1000, Some(0), "changed its user"),
            (None, 1000, None, "changed its user"),
            (Some(7), 0, Some(1), "CAP_SYS_PTRACE"),
        ] {
            let said = why(owner, user, scope);
            assert!(said.contains(part), "{said}");
        }
    }
}
