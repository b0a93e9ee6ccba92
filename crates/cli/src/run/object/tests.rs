use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use rustix::process::geteuid;

use super::*;

const SOME: &[u8] = b"the bytes of an object";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn put_in(folder: &Path) -> Result<PathBuf, Refused> {
    cache::put(folder, "id", NAME, SOME)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").mode() & 0o7777
}

#[test]
fn it_is_inside_this_program() {
    assert_eq!(BYTES.get(..4), Some(&b"\x7fELF"[..]));
    assert!(id(BYTES).starts_with(env!("CARGO_PKG_VERSION")), "{}", id(BYTES));
    let mut other = BYTES.to_vec();
    other[8] ^= 1;
    assert_ne!(id(&other), id(BYTES), "another version has a folder of its own");
}

#[test]
fn the_cache_is_filled_once_and_used_again() {
    let above = folder();
    let cache = above.path().join("a/b");
    let path = put_in(&cache).expect("a folder of one's own");
    assert_eq!(fs::read(&path).expect("it was written"), SOME);
    assert_eq!(mode(&path) & 0o222, 0, "nobody writes to it");
    assert_eq!(mode(path.parent().expect("a folder")) & 0o022, 0);
    let inode = fs::metadata(&path).expect("it is there").ino();
    assert_eq!(put_in(&cache).expect("it is there"), path);
    assert_eq!(fs::metadata(&path).expect("it is there").ino(), inode, "what is right is left alone");
}

/// A crash of the machine, a full disk, or somebody who is this user could leave these.
#[test]
fn what_is_not_the_object_is_replaced_and_never_written_to() {
    let above = folder();
    let path = put_in(above.path()).expect("a folder of one's own");
    let precious = above.path().join("precious");
    let damage: [&dyn Fn(); 6] = [
        &|| fs::write(&path, &SOME[..5]).expect("half of it"),
        &|| fs::write(&path, b"").expect("none of it"),
        &|| fs::write(&path, [SOME, b"x"].concat()).expect("more than it"),
        &|| fs::write(&path, b"other bytes, as many!!").expect("as many"),
        &|| symlink(&precious, &path).expect("a link"),
        &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("it is ours"),
    ];
    for (number, damage) in damage.iter().enumerate() {
        fs::write(&precious, b"precious").expect("it can be written");
        // A running program has the old file mapped: not one byte of it may change.
        let running = above.path().join("running");
        let _none = fs::remove_file(&running);
        if number == 5 {
            put_in(above.path()).expect("a folder of one's own");
        } else {
            fs::remove_file(&path).expect("it is there");
        }
        damage();
        if number != 4 {
            fs::hard_link(&path, &running).expect("on the same disk");
        }
        let before = fs::read(&running).ok();
        assert_eq!(put_in(above.path()).expect("it is replaced"), path);
        assert_eq!(fs::read(&path).expect("it is there"), SOME, "{number}");
        assert!(fs::symlink_metadata(&path).expect("it is there").is_file(), "{number}");
        assert_eq!(mode(&path) & 0o222, 0, "{number}");
        assert_eq!(fs::read(&precious).expect("it is there"), b"precious", "{number}");
        assert_eq!(fs::read(&running).ok(), before, "{number}");
    }
    let left: Vec<_> = fs::read_dir(path.parent().expect("a folder")).expect("it is there").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_folder_that_others_can_change_is_refused() {
    let above = folder();
    let cache = above.path().join("cache");
    fs::create_dir(&cache).expect("it can be made");
    let open = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    for rights in [0o777, 0o770, 0o1777, 0o702] {
        open(&cache, rights);
        assert!(matches!(put_in(&cache), Err(Refused::Open { .. })), "{rights:o}");
    }
    open(&cache, 0o700);
    open(above.path(), 0o777);
    assert!(matches!(put_in(&cache), Err(Refused::BelowOpen { .. })));
    // Like /tmp: others can add names, but cannot take ours away.
    open(above.path(), 0o1777);
    put_in(&cache).expect("a sticky folder is above");
    // The folder of the bytes itself.
    open(&cache.join("id"), 0o777);
    assert!(matches!(put_in(&cache), Err(Refused::Open { .. })));
}

#[test]
fn a_planted_link_or_file_in_the_place_of_a_folder_is_refused() {
    let above = folder();
    let (cache, elsewhere) = (above.path().join("cache"), above.path().join("elsewhere"));
    fs::create_dir(&elsewhere).expect("it can be made");
    symlink(&elsewhere, &cache).expect("a link");
    assert!(matches!(put_in(&cache), Err(Refused::NoFolder)));
    fs::remove_file(&cache).expect("it is a link");
    fs::create_dir(&cache).expect("it can be made");
    symlink(&elsewhere, cache.join("id")).expect("a link");
    assert!(matches!(put_in(&cache), Err(Refused::NoFolder)));
    assert_eq!(fs::read_dir(&elsewhere).expect("it is there").count(), 0, "nothing was written through the link");
    fs::remove_file(cache.join("id")).expect("it is a link");
    fs::write(cache.join("id"), "").expect("a file");
    assert!(matches!(put_in(&cache), Err(Refused::NoFolder)));
    // A FIFO under the name must not block us, and a folder cannot be replaced.
    fs::remove_file(cache.join("id")).expect("it is a file");
    fs::create_dir_all(cache.join("id").join(NAME)).expect("a folder");
    assert!(matches!(put_in(&cache), Err(Refused::File { .. })));
}

#[test]
fn what_another_user_owns_is_refused() {
    if !geteuid().is_root() {
        return println!("skipped: only root can give files away");
    }
    const OTHER: Option<u32> = Some(65534);
    let above = folder();
    let cache = above.path().join("cache");
    let path = put_in(&cache).expect("a folder of one's own");
    // With the right bytes: its owner could change them later.
    chown(&path, OTHER, None).expect("root may");
    put_in(&cache).expect("the file is replaced");
    assert_eq!(fs::metadata(&path).expect("it is there").uid(), 0);
    chown(cache.join("id"), OTHER, None).expect("root may");
    assert!(matches!(put_in(&cache), Err(Refused::Foreign { owner: 65534 })));
    chown(cache.join("id"), Some(0), None).expect("root may");
    chown(&cache, OTHER, None).expect("root may");
    assert!(matches!(put_in(&cache), Err(Refused::Foreign { owner: 65534 })));
    chown(&cache, Some(0), None).expect("root may");
    chown(above.path(), OTHER, None).expect("root may");
    assert!(matches!(put_in(&cache), Err(Refused::BelowForeign { owner: 65534, .. })));
}

#[test]
fn nothing_is_made_below_another_users_folder_or_where_his_links_lead() {
    if !geteuid().is_root() {
        return println!("skipped: only root can give files away");
    }
    const OTHER: u32 = 65534;
    let above = folder();
    let (his, own) = (above.path().join("his"), above.path().join("own"));
    let is_empty = |path: &Path| fs::read_dir(path).expect("it is there").count() == 0;
    for path in [&his, &own] {
        fs::create_dir(path).expect("it can be made");
    }
    chown(&his, Some(OTHER), None).expect("root may");
    assert!(matches!(put_in(&his.join("a/b")), Err(Refused::BelowForeign { owner: OTHER, .. })));
    assert!(is_empty(&his));
    let link = above.path().join("link");
    symlink(&own, &link).expect("a link");
    std::os::unix::fs::lchown(&link, Some(OTHER), None).expect("root may");
    assert!(matches!(put_in(&link.join("a/b")), Err(Refused::BelowForeign { owner: OTHER, .. })));
    assert!(is_empty(&own));
    // One's own link, to another's folder.
    let link = above.path().join("own_link");
    symlink(&his, &link).expect("a link");
    assert!(matches!(put_in(&link.join("a/b")), Err(Refused::BelowForeign { owner: OTHER, .. })));
    assert!(is_empty(&his));
}

#[test]
fn without_a_folder_it_is_handed_over_in_memory() {
    let above = folder();
    fs::write(above.path().join("file"), "").expect("it can be written");
    let folders = Folders::only(&[&above.path().join("file"), &above.path().join("with blank")]);
    let object = put(SOME, &folders).expect("there is memory");
    let told = object.shortcoming.as_deref().expect("it is told");
    assert!(told.contains("file") && told.contains("with blank"), "{told}");
    assert_eq!(fs::read(&object.entry).expect("an open descriptor"), SOME);
    let target = fs::read_link(&object.entry).expect("/proc is mounted");
    assert_eq!(target.as_os_str(), "/memfd:libpalimpsest_preload.so (deleted)", "the object knows it by this");
}

#[test]
fn what_is_installed_with_the_program_must_be_the_same_and_safe() {
    let prefix = folder();
    let executable = prefix.path().join("bin/palimpsest");
    let path = installed(&executable).expect("two folders above");
    assert_eq!(path, prefix.path().join("lib/palimpsest").join(NAME));
    fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
    fs::write(&path, SOME).expect("it can be written");
    let path = fs::canonicalize(&path).expect("it is there");
    let rights = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
    rights(0o644);
    assert!(is_ours(&path, SOME) && is_ours(&path, b""));
    assert!(!is_ours(&path, b"a later version"));
    rights(0o666);
    assert!(!is_ours(&path, SOME));
    rights(0o644);
    fs::set_permissions(path.parent().expect("a folder"), fs::Permissions::from_mode(0o777)).expect("it is ours");
    assert!(!is_ours(&path, SOME));
}

#[test]
fn what_is_named_is_taken_as_it_is() {
    let place = folder();
    let none = Folders::only(&[]);
    let path = place.path().join("other.so");
    let found = || find(Some(path.as_os_str()), Path::new("/bin/x"), &none);
    assert!(matches!(found(), Err(ObjectError::Missing { .. })));
    fs::write(&path, "").expect("it can be written");
    assert_eq!(found().expect("it is there").entry, path);
    for name in ["a b.so", "a:b.so", "$LIB.so"] {
        let path = place.path().join(name);
        fs::write(&path, "").expect("it can be written");
        let refused = find(Some(path.as_os_str()), Path::new("/bin/x"), &none);
        assert!(matches!(refused, Err(ObjectError::NotOneEntry { .. })), "{name}");
    }
}

/// Makes a cache with a file of an earlier version, last used that long ago.
fn with_earlier(age: std::time::Duration) -> (tempfile::TempDir, PathBuf) {
    let above = folder();
    let path = cache::put(above.path(), "0.0.9-1", NAME, b"an earlier object").expect("a folder of one's own");
    let time = std::time::SystemTime::now() - age;
    fs::File::open(&path).and_then(|file| file.set_modified(time)).expect("it is ours");
    (above, path)
}

#[test]
fn what_earlier_versions_have_left_goes_when_nobody_uses_it() {
    let (above, earlier) = with_earlier(old::REST * 2);
    let other = above.path().join("not-ours");
    fs::create_dir(&other).expect("it can be made");
    fs::write(other.join("file"), "").expect("it can be written");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o711)).expect("own");
    put_in(above.path()).expect("a folder of one's own");
    assert_eq!(fs::metadata(&other).expect("there").permissions().mode() & 0o777, 0o711, "its rights are not ours");
    assert!(!earlier.parent().expect("a folder").exists());
    assert!(other.join("file").exists() && above.path().join("id").join(NAME).exists());
}

#[test]
fn what_was_used_lately_or_is_in_use_stays() {
    let (above, earlier) = with_earlier(old::REST / 2);
    put_in(above.path()).expect("a folder of one's own");
    assert!(earlier.exists(), "used lately");
    // A program that has it in its environment and not mapped, such as a statically linked one.
    let (above, earlier) = with_earlier(old::REST * 2);
    let mut sleeper = std::process::Command::new("sleep");
    let mut sleeper = sleeper.arg("600").env("PALIMPSEST_TEST_ENTRY", &earlier).spawn().expect("coreutils are there");
    // `vfork` goes on as soon as the new program has its memory, before the kernel notes where the environment is
    // (`exec_mmap` and `create_elf_tables`).
    let environment = format!("/proc/{}/environ", sleeper.id());
    while !fs::read(&environment).is_ok_and(|text| text.ends_with(b"\0")) {
        std::thread::yield_now();
    }
    put_in(above.path()).expect("a folder of one's own");
    let is_kept = earlier.exists();
    sleeper.kill().expect("a child of ours");
    sleeper.wait().expect("a child of ours");
    assert!(is_kept, "in an environment");
    // And a use counts from then on.
    let (above, earlier) = with_earlier(old::REST * 2);
    cache::put(above.path(), "0.0.9-1", NAME, b"an earlier object").expect("it is there");
    put_in(above.path()).expect("a folder of one's own");
    assert!(earlier.exists(), "used just now");
}

#[test]
fn what_is_not_what_this_program_leaves_stays() {
    for change in 0..3 {
        let elsewhere = folder();
        let (above, earlier) = with_earlier(old::REST * 2);
        let within = earlier.parent().expect("a folder").to_owned();
        match change {
            0 => fs::write(within.join("more"), "").expect("it can be written"),
            1 => fs::hard_link(&earlier, above.path().join("second")).expect("on the same disk"),
            _ => {
                fs::rename(&within, elsewhere.path().join("moved")).expect("on the same disk");
                symlink(elsewhere.path().join("moved"), &within).expect("a link");
            }
        }
        put_in(above.path()).expect("a folder of one's own");
        assert!(within.exists(), "{change}");
        assert!(change == 0 || fs::read(&earlier).is_ok_and(|bytes| !bytes.is_empty()), "{change}");
    }
}
