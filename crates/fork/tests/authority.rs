//! What children of a frozen process can reach, and what they do without: no descriptor, no file, no old bytes.

mod common;

use std::collections::BTreeSet;

use common::{Memory, freeze, in_child, page, play, skip};
use palimpsest_fork::guard::{self, Remap};
use palimpsest_fork::{ExtentLen, Measure, Options};
use palimpsest_sys::pages::maps::Maps;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: usize = 1 << 20;
const KEY: &[u8; 32] = b"a key that nobody is to see agai";

fn frozen(len: usize) -> Memory {
    let memory = Memory::apart(len);
    memory.fill(0..len, 1);
    freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
    memory
}

fn madvise(memory: &Memory, offset: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: 1. the scenario's own memory, of which it needs nothing back.
    unsafe { guard::madvise_by(memory.at(offset).addr(), len, advice, || Err(Errno::NOSYS)) }
}

fn mremap(address: usize, len: usize, new_len: usize) -> Result<usize, Errno> {
    let asked = Remap { address, len, new_len, flags: libc::MREMAP_MAYMOVE, new_address: 0 };
    // SAFETY: 1. the scenario's own memory.
    unsafe { guard::mremap_by(asked, || Err(Errno::NOSYS)) }
}

/// Returns the numbers of open descriptors, except the one that lists them.
fn descriptors() -> BTreeSet<i32> {
    let listed: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // SAFETY: only asks.
    listed.into_iter().filter(|number| unsafe { libc::fcntl(*number, libc::F_GETFD) } >= 0).collect()
}

#[test]
fn neither_a_frozen_process_nor_a_child_of_it_has_a_descriptor_more() {
    play("neither_a_frozen_process_nor_a_child_of_it_has_a_descriptor_more", || {
        let before = descriptors();
        let memory = frozen(16 * MIB);
        assert_eq!(descriptors(), before, "after a freeze");
        assert_eq!(in_child(|| i32::from(descriptors() != before)), 0, "a child of fork");
        // Past every handler: `clone` without flags.
        // SAFETY: without CLONE_VM it is a fork.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let same = descriptors() == before;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!same)) };
        }
        assert_eq!(common::wait(child as i32), 0, "a raw child");
        memory.fill(MIB..2 * MIB, 5);
        madvise(&memory, 4 * MIB, MIB, libc::MADV_DONTNEED).expect("discarded");
        freeze(&Options::new().measure(Measure::Nothing));
        assert_eq!(descriptors(), before, "after a repair and a guarded call");
        let child = in_child(|| {
            memory.fill(0..page(), 7);
            freeze(&Options::new().measure(Measure::Nothing));
            i32::from(descriptors() != before)
        });
        assert_eq!(child, 0, "a child that has frozen for itself");
    });
}

/// Does what a server's worker does with its memory, through guards only.
fn work(memory: &Memory) {
    assert_eq!(madvise(memory, 0, MIB, libc::MADV_DONTNEED), Ok(()));
    assert_eq!(madvise(memory, 3 * MIB, 2 * MIB, libc::MADV_FREE), Ok(()));
    assert!(memory.is_zero(0..MIB) && memory.is_zero(3 * MIB..5 * MIB));
    let to = mremap(memory.at(0).addr(), memory.len, memory.len + MIB).expect("moved or grown");
    let grown = Memory { start: std::ptr::with_exposed_provenance_mut(to), len: memory.len + MIB };
    assert!(grown.is_zero(memory.len..grown.len) && grown.holds(5 * MIB..memory.len, 1));
    assert_eq!(mremap(to, grown.len, 8 * MIB), Ok(to));
    // SAFETY: the scenario's own memory.
    assert_eq!(unsafe { libc::mprotect(grown.at(6 * MIB), MIB, libc::PROT_READ) }, 0);
    guard::protected(to + 6 * MIB..to + 7 * MIB, Ok(palimpsest_sys::pages::maps::Permissions::READ));
    assert_eq!(madvise(&grown, 6 * MIB, MIB, libc::MADV_DONTNEED), Ok(()));
    assert!(grown.is_zero(6 * MIB..7 * MIB) && grown.holds(7 * MIB..8 * MIB, 1));
}

/// Installs a filter that allows memory calls, `exit`, what writes an assertion's text, and `more`, and answers every
/// other call with `action`.
fn confine(action: u32, more: &[libc::c_long]) {
    let memory = [
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_mprotect,
        libc::SYS_exit_group,
        libc::SYS_write,
    ];
    let allowed: Vec<_> = memory.into_iter().chain(more.iter().copied()).collect();
    common::allow_only(&allowed, action);
}

/// Checks that a worker that confines itself by `confine` still gets what it needs from the guards.
fn a_worker_is_served(name: &str, confine: impl Fn()) {
    play(name, || {
        let memory = frozen(16 * MIB);
        let worker = in_child(|| {
            confine();
            work(&memory);
            0
        });
        assert_eq!(worker, 0);
    });
}

#[test]
fn a_worker_under_a_filter_that_kills_lives() {
    a_worker_is_served("a_worker_under_a_filter_that_kills_lives", || confine(libc::SECCOMP_RET_KILL_PROCESS, &[]));
}

#[test]
fn a_worker_under_a_filter_that_refuses_is_served() {
    a_worker_is_served("a_worker_under_a_filter_that_refuses_is_served", || {
        confine(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, &[]);
    });
}

#[test]
fn a_worker_without_descriptors_is_served() {
    a_worker_is_served("a_worker_without_descriptors_is_served", || {
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) }).expect("a limit can be lowered");
    });
}

/// Returns how often the key is in the memory of this process that can be read, or made readable.
fn copies_of_the_key() -> usize {
    let maps = Maps::read().expect("/proc");
    let readable = maps.iter().filter(|map| {
        let name = map.path.as_deref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        !name.starts_with("[v") && (map.inode == 0 || name.contains("palimpsest"))
    });
    let mut found = 0;
    for map in readable {
        let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(map.start);
        let len = map.end - map.start;
        // SAFETY: a child that does nothing else: rights are only added.
        unsafe { libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE) };
        let mut buffer = vec![0_u8; len.min(4 * MIB)];
        let mut next = map.start;
        while next < map.end {
            let want = (map.end - next).min(buffer.len());
            let from = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(next), iov_len: want };
            let to = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: want };
            let own = std::process::id().cast_signed();
            // SAFETY: the buffer is long enough; what cannot be read is an error.
            let got = unsafe { libc::process_vm_readv(own, &raw const to, 1, &raw const from, 1, 0) };
            if got <= 0 {
                break;
            }
            let bytes = &buffer[..got as usize];
            // Wherever a page of it is copied to, it lies at a multiple of 8.
            let (words, _) = bytes.as_chunks::<8>();
            found += words.windows(2).filter(|two| two[0] == KEY[8..16] && two[1] == KEY[16..24]).count();
            next += got as usize;
        }
    }
    found
}

/// Checks that the key is gone, except for the copies of this test itself: its constant in the program, and the buffer
/// for searching.
fn assert_gone(memory: &Memory, at: usize) {
    let place = memory.at(at);
    assert!(memory.is_zero(at..at + page()));
    // An attacker discards past the guards. SAFETY: the scenario's own memory.
    assert_eq!(unsafe { libc::madvise(place.cast(), page(), libc::MADV_DONTNEED) }, 0);
    assert!(memory.is_zero(at..at + page()), "a raw discard shows it again");
    // An attacker grows a neighbour, at another place: what the file holds behind it would show.
    let before = memory.at(at - page());
    // SAFETY: the scenario's own memory, moved for good.
    let grown = unsafe { libc::mremap(before.cast(), page(), 4 * page(), libc::MREMAP_MAYMOVE) };
    assert_ne!(grown, libc::MAP_FAILED);
    let grown = Memory { start: grown.cast(), len: 4 * page() };
    assert!(grown.is_zero(page()..4 * page()), "a mapping that grows shows it again");
    let before: Vec<_> = descriptors().into_iter().filter(|number| *number > 2).collect();
    for number in before {
        let name = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        assert!(!name.to_string_lossy().contains("palimpsest-frozen"), "{number} is {}", name.display());
    }
}

fn with_key(memory: &Memory, at: usize) {
    // SAFETY: the scenario's own memory.
    unsafe { memory.at(at + 64).cast::<u8>().copy_from_nonoverlapping(KEY.as_ptr(), KEY.len()) };
}

fn erase(memory: &Memory, at: usize) {
    // SAFETY: the scenario's own memory.
    unsafe { memory.at(at).cast::<u8>().write_bytes(0, page()) };
}

#[test]
fn a_key_that_was_forgotten_is_nowhere() {
    play("a_key_that_was_forgotten_is_nowhere", || {
        const AT: usize = 5 * MIB;
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        erase(&memory, AT);
        with_key(&memory, AT);
        freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
        assert_eq!(in_child(|| i32::try_from(copies_of_the_key().min(9)).unwrap_or(9).min(1)), 1, "it can be found");
        erase(&memory, AT);
        let range = memory.at(AT).addr()..memory.at(AT).addr() + page();
        palimpsest_fork::forget(range).expect("one thread");
        let all = |memory: &Memory| {
            memory.holds(0..AT, 1) && memory.is_zero(AT..AT + page()) && memory.holds(AT + page()..memory.len, 1)
        };
        assert!(all(&memory), "the rest is what it was");
        let child = in_child(|| {
            assert_eq!(copies_of_the_key(), 0);
            assert_gone(&memory, AT);
            0
        });
        assert_eq!(child, 0);
        // What has become anonymous is frozen again, without the key.
        freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
        assert!(all(&memory) && memory.is_frozen());
        assert_eq!(in_child(|| i32::try_from(copies_of_the_key()).unwrap_or(1)), 0);
    });
}

#[test]
fn a_child_forgets_for_itself_without_a_file() {
    play("a_child_forgets_for_itself_without_a_file", || {
        const AT: usize = 5 * MIB;
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        erase(&memory, AT);
        with_key(&memory, AT);
        freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
        let child = in_child(|| {
            erase(&memory, AT);
            let range = memory.at(AT).addr()..memory.at(AT).addr() + page();
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(1 << 10) }).expect("lowered");
            match palimpsest_fork::forget(range) {
                // The C library counts the harness's threads, and a child may not look.
                Err(Errno::BUSY) => return 77,
                done => done.expect("forgotten"),
            }
            setrlimit(Resource::Nofile, Rlimit { current: Some(1 << 9), maximum: Some(1 << 10) }).expect("raised");
            assert_eq!(copies_of_the_key(), 0);
            assert_gone(&memory, AT);
            0
        });
        if child == 77 {
            skip("the C library does not know that there is one thread");
        }
        assert_eq!(child, 0);
    });
}

#[test]
fn what_could_not_be_forgotten_is_forgotten_in_a_child_before_fork_returns() {
    play("what_could_not_be_forgotten_is_forgotten_in_a_child_before_fork_returns", || {
        const AT: usize = 5 * MIB;
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        erase(&memory, AT);
        with_key(&memory, AT);
        freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
        // A thread that must not be stopped.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv().is_err());
        erase(&memory, AT);
        let range = memory.at(AT).addr()..memory.at(AT).addr() + page();
        assert_eq!(palimpsest_fork::forget(range), Err(Errno::BUSY));
        // SAFETY: 1. the child makes few calls; 2. nothing is discarded except through guards.
        match unsafe { palimpsest_fork::fork() }.expect("forked") {
            palimpsest_fork::Forked::Child => {
                let left = copies_of_the_key();
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(left != 0)) };
            }
            palimpsest_fork::Forked::Parent(child) => assert_eq!(common::wait(child.as_raw_nonzero().get()), 0),
        }
        drop(stop);
        assert!(thread.join().expect("ends"));
        // Alone again: the next fork repairs first.
        // SAFETY: 1. one thread; 2. as above.
        if let palimpsest_fork::Forked::Parent(child) = unsafe { palimpsest_fork::fork() }.expect("forked") {
            common::wait(child.as_raw_nonzero().get());
            assert_eq!(in_child(|| i32::try_from(copies_of_the_key()).unwrap_or(1)), 0);
        } else {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        assert!(memory.holds(0..AT, 1) && memory.is_zero(AT..AT + page()) && memory.holds(AT + page()..memory.len, 1));
    });
}

/// Freezes a key, calls `between`, which may move the memory, erases the key and forgets it. Then it must be nowhere.
fn forgotten_after(between: impl FnOnce(Memory) -> Memory) {
    const AT: usize = 5 * MIB;
    let memory = Memory::apart(16 * MIB);
    memory.fill(0..memory.len, 1);
    erase(&memory, AT);
    with_key(&memory, AT);
    let options = Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing);
    freeze(&options);
    let memory = between(memory);
    erase(&memory, AT);
    palimpsest_fork::forget(memory.at(AT).addr()..memory.at(AT).addr() + page()).expect("one thread");
    assert!(memory.holds(0..AT, 1) && memory.is_zero(AT..AT + page()) && memory.holds(AT + page()..16 * MIB, 1));
    assert_eq!(in_child(|| i32::try_from(copies_of_the_key().min(9)).unwrap_or(9)), 0, "it is somewhere");
    freeze(&options);
    assert!(memory.holds(0..AT, 1) && memory.is_zero(AT..AT + page()) && memory.holds(AT + page()..16 * MIB, 1));
}

/// Fails on: a `forget` that asks only what the map says of the range now.
#[test]
fn a_key_that_a_repair_has_copied_is_forgotten_in_the_older_extent_too() {
    play("a_key_that_a_repair_has_copied_is_forgotten_in_the_older_extent_too", || {
        forgotten_after(|memory| {
            memory.set(5 * MIB + 8, 1);
            freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
            memory
        });
    });
}

#[test]
fn a_key_in_memory_that_became_anonymous_is_forgotten_in_its_extent() {
    play("a_key_in_memory_that_became_anonymous_is_forgotten_in_its_extent", || {
        forgotten_after(|memory| {
            guard::thaw(memory.at(4 * MIB).addr()..memory.at(6 * MIB).addr()).expect("one thread");
            memory
        });
    });
}

#[test]
fn a_key_that_was_discarded_is_forgotten_in_its_extent_after_a_round() {
    play("a_key_that_was_discarded_is_forgotten_in_its_extent_after_a_round", || {
        forgotten_after(|memory| {
            madvise(&memory, 5 * MIB, page(), libc::MADV_DONTNEED).expect("discarded");
            freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
            memory
        });
    });
}

#[test]
fn a_key_that_was_moved_and_copied_is_forgotten_in_the_older_extent_too() {
    play("a_key_that_was_moved_and_copied_is_forgotten_in_the_older_extent_too", || {
        forgotten_after(|memory| {
            let to = mremap(memory.at(0).addr(), memory.len, memory.len + MIB).expect("moved");
            let moved = Memory { start: std::ptr::with_exposed_provenance_mut(to), len: memory.len + MIB };
            guard::thaw(moved.at(4 * MIB).addr()..moved.at(6 * MIB).addr()).expect("one thread");
            moved
        });
    });
}

/// A moved range that a round has seen is known by what it shows, not from a guard.
#[test]
fn a_key_that_was_moved_before_a_round_is_forgotten_in_the_older_extent_too() {
    play("a_key_that_was_moved_before_a_round_is_forgotten_in_the_older_extent_too", || {
        forgotten_after(|memory| {
            let to = mremap(memory.at(0).addr(), memory.len, memory.len + MIB).expect("moved");
            let moved = Memory { start: std::ptr::with_exposed_provenance_mut(to), len: memory.len + MIB };
            moved.set(5 * MIB + 8, 1);
            freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
            moved
        });
    });
}

/// Returns how many copies of the key are in a child that does nothing about them: forked without the library.
fn copies_in_a_plain_child() -> i32 {
    // SAFETY: one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let copies = i32::try_from(copies_of_the_key().min(9)).unwrap_or(9);
        // SAFETY: ends the child.
        unsafe { libc::_exit(copies) };
    }
    common::wait(child)
}

/// Erases the key's page while a thread runs that must not be stopped, so that the key cannot be forgotten at once.
fn erase_beside_a_thread(memory: &Memory, at: usize) {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || stopped.recv().is_err());
    erase(memory, at);
    assert_eq!(palimpsest_fork::forget(memory.at(at).addr()..memory.at(at).addr() + page()), Err(Errno::BUSY));
    drop(stop);
    assert!(thread.join().expect("ends"));
}

/// Fails on: a repair that leaves a small hot mapping alone, whatever its extent holds.
#[test]
fn a_small_mapping_that_is_hot_is_forgotten_by_the_next_round() {
    play("a_small_mapping_that_is_hot_is_forgotten_by_the_next_round", || {
        let memory = Memory::apart(128 << 10);
        memory.fill(0..memory.len, 1);
        erase(&memory, 0);
        with_key(&memory, 0);
        let options = Options::new().least(0).measure(Measure::Nothing);
        freeze(&options);
        for value in 1..=2 {
            memory.set(8, value);
            freeze(&options);
        }
        erase_beside_a_thread(&memory, 0);
        freeze(&options);
        assert_eq!(copies_in_a_plain_child(), 0);
        assert!(memory.is_zero(0..page()) && memory.holds(page()..memory.len, 1));
    });
}

/// Fails on: a round that asks only what the map says of the erased range.
#[test]
fn what_a_repair_has_copied_and_could_not_be_forgotten_is_forgotten_by_the_next_round() {
    play("what_a_repair_has_copied_and_could_not_be_forgotten_is_forgotten_by_the_next_round", || {
        const AT: usize = 5 * MIB;
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        erase(&memory, AT);
        with_key(&memory, AT);
        let options = Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing);
        freeze(&options);
        memory.set(AT + 8, 1);
        freeze(&options);
        erase_beside_a_thread(&memory, AT);
        freeze(&options);
        assert_eq!(copies_in_a_plain_child(), 0);
        assert!(memory.holds(0..AT, 1) && memory.is_zero(AT..AT + page()) && memory.holds(AT + page()..memory.len, 1));
    });
}

/// Fails on: a fork that plays a whole round at any price while something erased is left.
#[test]
fn a_fork_that_forgets_what_was_erased_freezes_nothing_new() {
    play("a_fork_that_forgets_what_was_erased_freezes_nothing_new", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        erase(&memory, 0);
        with_key(&memory, 0);
        freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
        let new = Memory::apart(16 * MIB);
        new.fill(0..new.len, 3);
        erase_beside_a_thread(&memory, 0);
        // And nothing at all once it is forgotten.
        palimpsest_fork::forget(memory.at(0).addr()..memory.at(0).addr() + page()).expect("one thread");
        let before = palimpsest_fork::status().extents;
        assert_eq!(in_child(|| i32::try_from(copies_of_the_key().min(9)).unwrap_or(9)), 0);
        assert_eq!(palimpsest_fork::status().extents, before);
        assert!(new.is_anonymous());
        with_key(&memory, 8 * MIB);
        freeze(&Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing));
        let newer = Memory::apart(16 * MIB);
        newer.fill(0..newer.len, 4);
        erase_beside_a_thread(&memory, 8 * MIB);
        assert_eq!(in_child(|| 0), 0);
        assert!(newer.is_anonymous() && newer.holds(0..newer.len, 4));
        assert_eq!(copies_in_a_plain_child(), 0, "it has gone in the parent");
    });
}

/// Fails on: a `fork` that asks for the time, or for its process id, under a filter.
#[test]
fn a_worker_under_a_filter_that_kills_can_fork() {
    play("a_worker_under_a_filter_that_kills_can_fork", || {
        let memory = frozen(16 * MIB);
        let worker = in_child(|| {
            guard::confined();
            // What the C library's own `fork` and `waitpid` may call.
            let forking = [
                libc::SYS_clone,
                libc::SYS_set_robust_list,
                libc::SYS_rt_sigprocmask,
                libc::SYS_wait4,
                libc::SYS_gettid,
                libc::SYS_futex,
            ];
            confine(libc::SECCOMP_RET_KILL_PROCESS, &forking);
            memory.fill(0..page(), 2);
            let grandchild =
                in_child(|| i32::from(!memory.holds(0..page(), 2) || !memory.holds(page()..memory.len, 1)));
            assert_eq!(grandchild, 0);
            in_child(|| {
                work(&memory);
                0
            })
        });
        assert_eq!(worker, 0);
    });
}

/// Fails on: a child that looks for marks for ever.
#[test]
fn a_child_ends_forgetting_whatever_range_was_asked_for() {
    play("a_child_ends_forgetting_whatever_range_was_asked_for", || {
        let memory = frozen(16 * MIB);
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv().is_err());
        assert_eq!(palimpsest_fork::forget(0..usize::MAX / 2), Err(Errno::BUSY));
        assert_eq!(in_child(|| i32::from(!memory.is_anonymous() || !memory.holds(0..memory.len, 1))), 0);
        drop(stop);
        assert!(thread.join().expect("ends"));
    });
}
