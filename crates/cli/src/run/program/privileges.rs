//! Whether starting a file gives rights that its caller lacks, so that the dynamic linker ignores `LD_PRELOAD`.
//!
//! As in `bprm_fill_uid` in `fs/exec.c` and `cap_bprm_creds_from_file` in `security/commoncap.c`: a mount without
//! set-user-id gives nothing; a process that gains no privileges (`no_new_privs`) gets no other user or group. It still
//! starts "securely" if the file has capabilities, though it does not get them.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use palimpsest_sys::proc::owners::{Meaning, Numbers};
use rustix::fs::{StatVfsMountFlags, fstatvfs, getxattr};
use rustix::process::{getgid, getuid};
use rustix::thread::no_new_privs;

/// Who becomes whom.
#[derive(Clone, Copy, Debug)]
struct Start {
    mode: u32,
    /// The file's owner and group, with what these numbers mean here.
    owner: (u32, Meaning),
    group: (u32, Meaning),
    capabilities: Capabilities,
    user: u32,
    own_group: u32,
    allowed: Allowed,
}

/// Whether the file has capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Capabilities {
    None,
    Some,
}

/// What a file may give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Allowed {
    Everything,
    /// `no_new_privs`.
    NoOtherUser,
    /// The file is mounted with `nosuid`.
    Nothing,
}

/// Whether rights are gained.
pub(super) fn are_gained(path: &Path, file: &File) -> bool {
    let Ok(found) = file.metadata() else { return false };
    let mounted = fstatvfs(file).map(|mount| mount.f_flag).unwrap_or(StatVfsMountFlags::empty());
    let mut nothing: [u8; 0] = [];
    let has_capabilities = getxattr(path, "security.capability", &mut nothing).is_ok_and(|length| length > 0);
    gains(Start {
        mode: found.mode(),
        owner: (found.uid(), Numbers::of_users().meaning(found.uid())),
        group: (found.gid(), Numbers::of_groups().meaning(found.gid())),
        capabilities: if has_capabilities { Capabilities::Some } else { Capabilities::None },
        user: getuid().as_raw(),
        own_group: getgid().as_raw(),
        allowed: match () {
            () if mounted.contains(StatVfsMountFlags::NOSUID) => Allowed::Nothing,
            () if no_new_privs().unwrap_or(false) => Allowed::NoOtherUser,
            () => Allowed::Everything,
        },
    })
}

fn gains(start: Start) -> bool {
    const SET_USER_ID: u32 = 0o4000;
    /// With the group's right to execute; without it, this bit once meant that the file can be locked.
    const SET_GROUP_ID: u32 = 0o2010;
    // Nobody becomes a user whom his namespace does not know.
    let is_other = |(number, meaning): (u32, Meaning), own| match meaning {
        Meaning::Known => number != own,
        Meaning::Unknown => false,
        Meaning::Either => true,
    };
    let sets_user = start.mode & SET_USER_ID != 0 && is_other(start.owner, start.user);
    let sets_group = start.mode & SET_GROUP_ID == SET_GROUP_ID && is_other(start.group, start.own_group);
    // Capabilities of the file change nothing for root.
    let has_capabilities = start.capabilities == Capabilities::Some && start.user != 0;
    match start.allowed {
        Allowed::Everything => sets_user || sets_group || has_capabilities,
        Allowed::NoOtherUser => has_capabilities,
        Allowed::Nothing => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Start = Start {
        mode: 0o755,
        owner: (0, Meaning::Known),
        group: (0, Meaning::Known),
        capabilities: Capabilities::None,
        user: 1000,
        own_group: 1000,
        allowed: Allowed::Everything,
    };

    #[test]
    fn rights_are_gained_by_bits_and_by_capabilities() {
        assert!(!gains(PLAIN));
        let starts = [
            Start { mode: 0o4755, ..PLAIN },
            Start { mode: 0o2755, ..PLAIN },
            Start { capabilities: Capabilities::Some, ..PLAIN },
            Start { mode: 0o4755, owner: (65_534, Meaning::Either), user: 65_534, ..PLAIN },
        ];
        for start in starts {
            assert!(gains(start), "{start:?}");
            assert!(!gains(Start { allowed: Allowed::Nothing, ..start }), "{start:?}");
        }
        for (start, is_gained) in starts.into_iter().zip([false, false, true, false]) {
            assert_eq!(gains(Start { allowed: Allowed::NoOtherUser, ..start }), is_gained, "{start:?}");
        }
    }

    #[test]
    fn who_stays_who_he_is_gains_nothing() {
        for start in [
            Start { mode: 0o4755, user: 0, ..PLAIN },
            Start { mode: 0o2755, own_group: 0, ..PLAIN },
            Start { mode: 0o2745, ..PLAIN },
            Start { mode: 0o6755, owner: (9, Meaning::Unknown), group: (9, Meaning::Unknown), ..PLAIN },
            Start { capabilities: Capabilities::Some, user: 0, ..PLAIN },
        ] {
            assert!(!gains(start), "{start:?}");
        }
    }

    #[test]
    fn a_file_of_another_user_with_his_rights_is_seen() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = tempfile::tempdir().expect("a folder");
        let copy = folder.path().join("copy");
        fs::copy("/bin/sh", &copy).expect("it can be copied");
        let set_user_id = || fs::set_permissions(&copy, Permissions::from_mode(0o4755)).expect("it is ours");
        set_user_id();
        let are_gained = || are_gained(&copy, &File::open(&copy).expect("it is there"));
        assert!(!are_gained(), "one's own rights are no more");
        if chown(&copy, Some(getuid().as_raw() + 1), None).is_err() {
            return println!("skipped: only root can give a file away");
        }
        // Changing the owner has dropped the bit.
        set_user_id();
        let mounted = fstatvfs(File::open(&copy).expect("it is there")).expect("it is mounted").f_flag;
        if mounted.contains(StatVfsMountFlags::NOSUID) || no_new_privs().expect("a question") {
            return println!("skipped: nobody gains rights here");
        }
        assert!(are_gained());
    }
}
