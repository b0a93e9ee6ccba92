use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use palimpsest_sys::memory::sealed::SealedBytes;
use rustix::process::{Signal, kill_process};

use super::lock::Lock;
use super::*;

const NODE: NodeId = NodeId(0);

/// Tells a test's child the folder to work in.
pub(crate) const FOLDER: &str = "PALIMPSEST_TEST_FOLDER";
/// Tells it where to be killed.
pub(crate) const KILLED_AT: &str = "PALIMPSEST_TEST_KILLED_AT";

/// Kills this process if a test has requested that.
pub(crate) fn step(step: Step) {
    if std::env::var(KILLED_AT).is_ok_and(|wanted| wanted == format!("{step:?}")) {
        let _ = kill_process(rustix::process::getpid(), Signal::KILL);
    }
}

/// Returns a command that runs one test of this program in its own process.
pub(crate) fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command.args(["--exact", test, "--nocapture", "--include-ignored"]);
    command
}

/// A test of this file that is such a child.
const OBTAINS: &str = "shared::tests::another_process_obtains_a_copy";

fn ran(status: ExitStatus) {
    assert!(status.success(), "{status}");
}

pub(crate) fn folder() -> (tempfile::TempDir, Folder) {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = Folder::at(parent.path().join("copies"));
    (parent, folder)
}

fn obtain(folder: &Folder, content: &[u8]) -> Result<Obtained<SealedBytes>, NotShared> {
    folder.obtain_bytes(NODE, content)
}

pub(crate) fn entries(folder: &Folder) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder.path())
        .expect("there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .filter(|name| !name.starts_with("lock-"))
        .collect();
    names.sort();
    names
}

fn is_found(obtained: &Result<Obtained<SealedBytes>, NotShared>) -> bool {
    matches!(obtained, Ok(Obtained::Found { .. }))
}

#[test]
fn the_second_finds_what_the_first_has_made_until_it_is_dropped() {
    let (_parent, folder) = folder();
    let first = obtain(&folder, b"content").expect("made");
    assert!(matches!(first, Obtained::Made { .. }));
    let second = obtain(&folder, b"content");
    assert!(is_found(&second), "{second:?}");
    assert!(!is_found(&obtain(&folder, b"another")), "by content");
    assert!(!is_found(&folder.obtain_bytes(NodeId(1), b"content")), "by node");
    assert_eq!(fs::metadata(folder.path()).expect("there").permissions().mode() & 0o777, 0o700);
    // The second process offers it too.
    drop(first);
    assert!(is_found(&obtain(&folder, b"content")));
    drop(second);
    assert!(entries(&folder).is_empty(), "{:?}", entries(&folder));
    assert!(!is_found(&obtain(&folder, b"content")));
}

/// Fails on: a copy somewhere that others find as that of a node.
#[test]
fn a_copy_that_is_not_on_its_node_is_offered_to_nobody() {
    let (_parent, folder) = folder();
    let absent = NodeId(1023);
    let first = folder.obtain_bytes(absent, b"content").expect("made");
    let Obtained::Misplaced { taken, made, .. } = &first else { panic!("{first:?}") };
    assert!(taken.as_bytes() == b"content" && made.not_placed.is_some());
    assert!(entries(&folder).is_empty(), "{:?}", entries(&folder));
    let second = folder.obtain_bytes(absent, b"content").expect("made");
    assert!(matches!(second, Obtained::Misplaced { .. }), "{second:?}");
    let copy = crate::copy::Copy::get(b"content", absent, Some(&folder)).expect("made");
    assert_eq!(copy.origin(), Origin::Private);
    assert!(copy.lacks().iter().any(|lack| lack.starts_with("not shared: ")), "{:?}", copy.lacks());
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn another_process_obtains_a_copy() {
    let folder = Folder::at(std::env::var(FOLDER).expect("told"));
    let obtained = obtain(&folder, b"content").expect("to be had");
    match &obtained {
        Obtained::Found { taken, .. } | Obtained::Made { taken, .. } | Obtained::Misplaced { taken, .. } => {
            assert_eq!(taken.as_bytes(), b"content");
        }
    }
    println!("found: {}", matches!(obtained, Obtained::Found { .. }));
}

#[test]
fn another_process_of_this_user_finds_it() {
    let (_parent, folder) = folder();
    let _here = obtain(&folder, b"content").expect("made");
    let output = child(OBTAINS).env(FOLDER, folder.path()).output().expect("started");
    ran(output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("found: true"), "{output:?}");
    assert_eq!(entries(&folder).len(), 1, "the other has taken its entry back");
}

#[test]
fn who_is_killed_at_any_step_leaves_nothing_that_is_trusted() {
    for at in [Step::Opened, Step::Locked, Step::Sealed, Step::Registered] {
        let (_parent, folder) = folder();
        let mut command = child(OBTAINS);
        let status = command.env(FOLDER, folder.path()).env(KILLED_AT, format!("{at:?}")).status().expect("started");
        assert_eq!(status.signal(), Some(9), "{at:?}: {status}");
        assert_eq!(entries(&folder).len(), usize::from(at == Step::Registered), "{at:?}");
        // The lock is free, nothing is found, and leftovers are gone.
        let obtained = obtain(&folder, b"content");
        assert!(matches!(obtained, Ok(Obtained::Made { .. })), "{at:?}: {obtained:?}");
        assert_eq!(entries(&folder).len(), 1, "{at:?}");
    }
}

#[test]
fn leftovers_of_other_contents_are_removed_too() {
    let (_parent, folder) = folder();
    let mut command = child(OBTAINS);
    command.env(FOLDER, folder.path()).env(KILLED_AT, "Registered").status().expect("started");
    let other = obtain(&folder, b"another").expect("made");
    assert_eq!(entries(&folder).len(), 1);
    let is_told = |passed: &[PassedOver]| matches!(passed, [PassedOver::Ended { .. }]);
    assert!(matches!(&other, Obtained::Made { passed_over, .. } if is_told(passed_over)), "{other:?}");
}

#[test]
fn leftovers_are_removed_also_where_a_copy_is_found() {
    let (_parent, folder) = folder();
    let _here = obtain(&folder, b"content").expect("made");
    let own = entries(&folder).remove(0);
    let mut dead = Command::new("true").spawn().expect("started");
    dead.wait().expect("a child");
    let mut parts: Vec<String> = own.split('-').map(str::to_owned).collect();
    parts[3] = dead.id().to_string();
    for inode in 1..50_u32 {
        parts[5] = inode.to_string();
        fs::write(folder.path().join(parts.join("-")), "").expect("written");
    }
    // Some file systems list the newest names first: the newest is the good one.
    fs::remove_file(folder.path().join(&own)).expect("there");
    fs::write(folder.path().join(&own), "").expect("written");
    assert!(is_found(&obtain(&folder, b"content")));
    assert_eq!(entries(&folder), [own]);
}

/// Writes an entry that points to an object of this process.
fn plant(folder: &Folder, key: &Key, file: &SealedFile) -> Name {
    let name = Name::new(key, NODE, file.descriptor(), file.id().inode);
    drop(folder.open().expect("made"));
    fs::write(folder.path().join(name.to_string()), "").expect("written");
    name
}

#[test]
fn an_object_with_other_bytes_is_refused_and_its_entry_removed() {
    for planted in [&b"c0ntent"[..], b"content and more", b"cont"] {
        let (_parent, folder) = folder();
        let (_bytes, file, _) = SealedBytes::with_file(planted, None).expect("made");
        let name = plant(&folder, &Key::of(b"content"), &file);
        let obtained = obtain(&folder, b"content");
        // Bytes behind the content do not matter: only the content is compared.
        assert_eq!(is_found(&obtained), planted.starts_with(b"content"), "{obtained:?}");
        if !is_found(&obtained) {
            assert!(!entries(&folder).contains(&name.to_string()));
            let told = vec![PassedOver::Different { process: rustix::process::getpid() }];
            assert!(
                matches!(&obtained, Ok(Obtained::Made { passed_over, .. }) if *passed_over == told),
                "{obtained:?}"
            );
        }
    }
}

#[test]
fn entries_that_point_to_other_files_are_refused() {
    let (_parent, folder) = folder();
    let key = Key::of(b"content");
    drop(folder.open().expect("made"));
    let file = fs::File::open("/dev/zero").expect("there");
    let name = Name::new(&key, NODE, std::os::fd::AsRawFd::as_raw_fd(&file), 5);
    fs::write(folder.path().join(name.to_string()), "").expect("written");
    for odd in ["", "content", "lock", &key_text(&key)] {
        if !odd.is_empty() {
            fs::write(folder.path().join(odd), "half written").expect("written");
        }
    }
    let obtained = obtain(&folder, b"content");
    assert!(matches!(obtained, Ok(Obtained::Made { .. })), "{obtained:?}");
    assert!(!entries(&folder).contains(&name.to_string()));
}

fn key_text(key: &Key) -> String {
    Name::new(key, NODE, 1, 1).to_string().split('-').next().expect("a key").to_owned()
}

#[test]
fn links_and_folders_that_others_may_enter_are_refused() {
    let (parent, folder) = folder();
    let real = parent.path().join("real");
    fs::create_dir(&real).expect("made");
    std::os::unix::fs::symlink(&real, folder.path()).expect("made");
    let answer = obtain(&folder, b"content");
    assert!(matches!(answer, Err(NotShared::Folder(FolderError::Open { .. }))), "{answer:?}");
    for mode in [0o755, 0o710, 0o707] {
        fs::set_permissions(&real, fs::Permissions::from_mode(mode)).expect("own");
        let answer = obtain(&Folder::at(&real), b"content");
        assert!(matches!(&answer, Err(NotShared::Folder(FolderError::Foreign { mode: told, .. })) if *told == mode));
    }
    // A lock that is a link to a user's file.
    fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).expect("own");
    let lock = real.join(format!("lock-{}", Key::of(b"content").group()));
    std::os::unix::fs::symlink("/etc/passwd", lock).expect("made");
    let answer = obtain(&Folder::at(&real), b"content");
    assert!(matches!(answer, Err(NotShared::Folder(FolderError::Entry { .. }))), "{answer:?}");
}

#[test]
fn who_waits_for_the_lock_in_vain_is_told() {
    let (_parent, folder) = folder();
    let opened = folder.open().expect("made");
    let lock = Lock::of(&Key::of(b"content"));
    let mut patience = Patience::of(2);
    let held = lock.take(opened.as_fd(), &mut patience).expect("free");
    let answer = lock.take(opened.as_fd(), &mut patience);
    assert!(matches!(&answer, Err(NotShared::Locked { lock }) if lock.starts_with("lock-")), "{answer:?}");
    // After waiting in vain, waits for no other lock, but takes a free one.
    let lock_of_another = Lock::of(&Key::of(b"another"));
    let held_too = lock_of_another.take(opened.as_fd(), &mut patience).expect("free");
    lock_of_another.take(opened.as_fd(), &mut patience).expect_err("held");
    drop((held, held_too));
    lock.take(opened.as_fd(), &mut patience).expect("free again");
}

#[test]
#[ignore = "runs in a process of another user, as part of another test"]
fn another_user_tries() {
    let path = std::env::var(FOLDER).expect("told");
    assert!(fs::read_dir(&path).is_err(), "its names cannot be read");
    assert!(fs::write(format!("{path}/planted"), "").is_err(), "nothing can be put there");
    let answer = obtain(&Folder::at(&path), b"content");
    let is_told = matches!(answer, Err(NotShared::Folder(FolderError::Foreign { owner: 0, mode: 0o700, .. })));
    assert!(is_told, "{answer:?}");
    // Even somebody who knows the name cannot reach the object.
    let known = Name::parse(&std::env::var("PALIMPSEST_TEST_NAME").expect("told")).expect("a name");
    let answer = SealedFile::adopt(known.process, known.descriptor, known.inode);
    assert!(matches!(answer, Err(AdoptError::Refused { .. })), "{answer:?}");
}

#[test]
fn another_user_can_neither_read_nor_plant() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can become another user");
    }
    const NOBODY: u32 = 65534;
    let parent = tempfile::tempdir().expect("a folder");
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o1777)).expect("own");
    let program = parent.path().join("program");
    fs::copy(std::env::current_exe().expect("known"), &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("own");
    let folder = Folder::at(parent.path().join("copies"));
    let _here = obtain(&folder, b"content").expect("made");
    let mut command = Command::new(&program);
    command.args(["--exact", "shared::tests::another_user_tries", "--include-ignored"]);
    command.env(FOLDER, folder.path()).env("PALIMPSEST_TEST_NAME", &entries(&folder)[0]);
    let output = command.uid(NOBODY).gid(NOBODY).current_dir("/").output().expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    // A folder that another user has made beforehand, however private.
    let theirs = parent.path().join("theirs");
    fs::create_dir(&theirs).expect("made");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).expect("own");
    std::os::unix::fs::chown(&theirs, Some(NOBODY), Some(NOBODY)).expect("by root");
    let answer = obtain(&Folder::at(&theirs), b"content");
    let owner_is_told =
        matches!(&answer, Err(NotShared::Folder(FolderError::Foreign { owner: NOBODY, user: 0, mode: 0o700, .. })));
    assert!(owner_is_told, "{answer:?}");
}

#[test]
fn a_lock_is_free_when_it_is_dropped_whoever_else_has_its_open_file() {
    let (_parent, folder) = folder();
    let opened = folder.open().expect("made");
    let take = || Lock::of(&Key::of(b"content")).take(opened.as_fd(), &mut Patience::of(0));
    let held = take().expect("free");
    // A descriptor of the same open file, as a child that was forked meanwhile has it.
    let inherited = held.duplicate();
    assert!(matches!(take(), Err(NotShared::Locked { .. })));
    drop(held);
    take().expect("free again");
    drop(inherited);
}
