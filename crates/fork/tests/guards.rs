//! Guards answer as the kernel does for anonymous memory, also at limits, without `/proc`, with other threads, and for
//! memory that was given advice.

mod common;

use std::os::fd::AsRawFd;
use std::sync::mpsc;

use common::guarded::{madvise, mremap};
use common::{Memory, freeze, in_child, page, play, skip};
use palimpsest_fork::guard::{self, Remap};
use palimpsest_fork::{ExtentLen, Measure, Options, OtherThreads};
use palimpsest_sys::pages::maps::{Maps, Permissions};
use palimpsest_sys::pages::vmas::{Detail, VmaFlags, Vmas};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: usize = 1 << 20;
const GUARD_INSTALL: i32 = 102;
const DONTNEED_LOCKED: i32 = 24;

fn filled(len: usize) -> Memory {
    let memory = Memory::apart(len);
    memory.fill(0..memory.len, 1);
    memory
}

fn frozen(len: usize) -> Memory {
    let memory = filled(len);
    freeze(&Options::new().measure(Measure::Nothing));
    assert!(memory.is_frozen());
    memory
}

/// The flags of the mapping at `offset`, and its protection key.
fn flags(memory: &Memory, offset: usize) -> (VmaFlags, u32) {
    let mut vmas = Vmas::with_capacity(10_000).expect("memory");
    vmas.read(Detail::Figures).expect("/proc");
    let at = memory.at(offset).addr();
    let vma = vmas.iter().find(|vma| vma.range().contains(&at)).expect("mapped");
    (vma.flags, vma.protection_key)
}

/// Fails on: what the kernel says of a process whose first thread has ended: that it has no mappings.
#[test]
fn after_the_first_thread_has_ended_memory_is_forgotten_and_thawed() {
    play("after_the_first_thread_has_ended_memory_is_forgotten_and_thawed", || {
        let (secret, other) = (filled(4 * MIB), filled(4 * MIB));
        freeze(&Options::new().measure(Measure::Nothing).other_threads(OtherThreads::Stop));
        assert!(secret.is_frozen() && other.is_frozen());
        let ranges = [secret, other].map(|memory| memory.range());
        std::thread::spawn(move || {
            let [secret, other] = ranges
                .map(|range| Memory { start: std::ptr::with_exposed_provenance_mut(range.start), len: range.len() });
            let stat = format!("/proc/self/task/{}/stat", std::process::id());
            let has_ended = || std::fs::read_to_string(&stat).expect("as long as the process").contains(") Z ");
            common::to_its_end(|| {
                while !has_ended() {
                    std::thread::yield_now();
                }
                secret.fill(0..secret.len, 2);
                guard::forget(secret.range()).expect("forgotten");
                assert!(secret.is_anonymous() && secret.holds(0..secret.len, 2));
                assert_eq!(madvise(&secret, 0, MIB, libc::MADV_DONTNEED), Ok(()));
                assert!(secret.is_zero(0..MIB) && secret.holds(MIB..secret.len, 2));
                guard::thaw(other.range()).expect("thawed");
                assert!(other.is_anonymous() && other.holds(0..other.len, 1));
            });
        });
        // SAFETY: ends this thread, of whose stack nobody uses anything.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
}

#[test]
fn pointers_may_have_tags() {
    play("pointers_may_have_tags", || {
        let Some(tag) = palimpsest_sys::arch::pointer_tag() else { skip("pointers have no tags here") };
        let memory = frozen(4 * MIB);
        let tagged = |offset: usize| memory.at(offset).addr() | tag;
        // SAFETY: the scenario's own memory.
        let discarded = unsafe { guard::madvise(tagged(0), page(), libc::MADV_DONTNEED) };
        assert_eq!(discarded, Ok(()));
        assert!(memory.is_zero(0..page()) && memory.holds(page()..memory.len, 1));
        let shrunk = Remap { address: tagged(2 * MIB), len: 2 * MIB, new_len: MIB, flags: 0, new_address: 0 };
        assert_eq!(mremap(shrunk), Ok(memory.at(2 * MIB).addr()));
        guard::thaw(tagged(MIB)..tagged(2 * MIB)).expect("thawed");
        assert!(memory.holds(page()..3 * MIB, 1));
    });
}

#[test]
fn locked_memory_is_not_discarded() {
    play("locked_memory_is_not_discarded", || {
        let plain = filled(4 * MIB);
        // SAFETY: the scenario's own memory.
        let locked = unsafe { libc::mlock(plain.at(0), 4 * page()) } == 0;
        let memory = frozen(4 * MIB);
        // Locked past the guard, as the C library might.
        // SAFETY: the scenario's own memory.
        if !locked || unsafe { libc::mlock(memory.at(0), 4 * page()) } != 0 {
            skip("memory cannot be locked (RLIMIT_MEMLOCK)");
        }
        for advice in [libc::MADV_DONTNEED, libc::MADV_FREE, GUARD_INSTALL] {
            let expected = madvise(&plain, 0, page(), advice);
            assert_eq!(madvise(&memory, 0, page(), advice), expected, "{advice}");
            // The kernel does what lies before, and stops there.
            assert_eq!(madvise(&memory, 0, 8 * page(), advice), expected, "{advice}");
        }
        assert!(memory.holds(0..memory.len, 1));
        assert!(flags(&memory, 0).0.intersects(VmaFlags::LOCKED));
        let expected = madvise(&plain, 0, 2 * page(), DONTNEED_LOCKED);
        assert_eq!(madvise(&memory, 0, 2 * page(), DONTNEED_LOCKED), expected);
        if expected.is_ok() {
            assert!(memory.is_zero(0..2 * page()) && memory.holds(2 * page()..memory.len, 1));
            assert!(flags(&memory, 0).0.intersects(VmaFlags::LOCKED), "what comes back is locked");
        }
        // SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::munlock(memory.at(0), 4 * page()) }, 0);
        assert_eq!(madvise(&memory, 0, memory.len, libc::MADV_DONTNEED), Ok(()));
        assert!(memory.is_zero(0..memory.len));
    });
}

/// Opens files until none can be opened.
fn use_up_descriptors(limit: u64) -> Vec<std::fs::File> {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..before }).expect("a soft limit can be lowered");
    let files: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    assert!(std::fs::File::open("/proc/self/maps").is_err());
    files
}

/// Discards the pages from `from` to `to`, and checks all of the memory.
fn assert_discards(memory: &Memory, from: usize, to: usize) {
    assert_eq!(madvise(memory, from, to - from, libc::MADV_DONTNEED), Ok(()));
    assert!(memory.is_zero(from..to) && memory.holds(to..memory.len, 1));
}

#[test]
fn guards_need_no_free_descriptor() {
    play("guards_need_no_free_descriptor", || {
        let memory = frozen(16 * MIB);
        let _files = use_up_descriptors(300);
        assert_discards(&memory, 0, MIB);
        // A child reads a different file, and its child again.
        let child = in_child(|| {
            assert_discards(&memory, 0, 2 * MIB);
            in_child(|| {
                assert_discards(&memory, 0, 3 * MIB);
                0
            })
        });
        assert_eq!(child, 0);
        assert_discards(&memory, 0, 4 * MIB);
        let to = mremap(Remap {
            address: memory.at(0).addr(),
            len: memory.len,
            new_len: 2 * memory.len,
            flags: libc::MREMAP_MAYMOVE,
            new_address: 0,
        });
        let grown = Memory { start: std::ptr::with_exposed_provenance_mut(to.expect("moved")), len: 2 * memory.len };
        assert!(grown.holds(4 * MIB..memory.len, 1) && grown.is_zero(memory.len..grown.len));
    });
}

fn leave_proc() {
    let folder = std::env::temp_dir().join(format!("palimpsest-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let gone = rustix::process::chroot(&folder).and_then(|()| rustix::process::chdir("/"));
    if gone.is_err() {
        let _ = std::fs::remove_dir(&folder);
        skip("only root can change its root");
    }
    assert!(std::fs::File::open("/proc/self/maps").is_err());
}

/// Removes the folder from outside, once the scenario is over.
fn with_folder_removed(scenario: impl FnOnce()) {
    // SAFETY: one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        scenario();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let status = common::wait(child);
    let _ = std::fs::remove_dir(std::env::temp_dir().join(format!("palimpsest-{child}")));
    assert_eq!(status, 0);
}

#[test]
fn guards_need_no_proc() {
    play("guards_need_no_proc", || {
        with_folder_removed(|| {
            let memory = frozen(16 * MIB);
            leave_proc();
            assert_discards(&memory, 0, MIB);
            let child = in_child(|| {
                assert_discards(&memory, 0, 2 * MIB);
                0
            });
            assert_eq!(child, 0);
            // The program closes what it does not know.
            for number in 3..1 << 10 {
                // SAFETY: nothing in this scenario uses a descriptor any more.
                unsafe { libc::close(number) };
            }
            assert_discards(&memory, 0, 4 * MIB);
        });
    });
}

#[test]
fn a_program_that_closes_all_descriptors_is_served() {
    play("a_program_that_closes_all_descriptors_is_served", || {
        // With a limit of 1024, none would be left to open the list with.
        let most = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("a soft limit can be raised");
        let memory = frozen(16 * MIB);
        let null = std::fs::File::open("/dev/null").expect("there is one");
        for number in 3..1 << 10 {
            if number != null.as_raw_fd() {
                // What the program opens next has the same numbers. SAFETY: nothing in this scenario uses a descriptor
                // any more.
                unsafe { libc::dup2(null.as_raw_fd(), number) };
            }
        }
        assert_discards(&memory, 0, MIB);
        assert_discards(&memory, 0, 2 * MIB);
    });
}

#[test]
fn guards_of_a_freeze_that_refuses_threads_stop_none() {
    play("guards_of_a_freeze_that_refuses_threads_stop_none", || {
        let memory = frozen(8 * MIB);
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let (told, ready) = mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            let mut wanted = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            told.send(()).expect("heard");
            // A handler would interrupt this call, and a tracer's stop would interrupt epoll. SAFETY: one record, which
            // lives.
            unsafe { libc::poll(&raw mut wanted, 1, -1) }
        });
        ready.recv().expect("told");
        std::thread::sleep(std::time::Duration::from_millis(50));
        for advice in [libc::MADV_DONTFORK, libc::MADV_DOFORK, libc::MADV_DONTDUMP, libc::MADV_DONTNEED] {
            assert_eq!(madvise(&memory, 0, MIB, advice), Ok(()), "{advice}");
        }
        // What only anonymous memory can do needs the others to stand still.
        assert_eq!(madvise(&memory, 2 * MIB, MIB, libc::MADV_WIPEONFORK), Err(Errno::INVAL));
        let remap = Remap {
            address: memory.at(2 * MIB).addr(),
            len: MIB,
            new_len: MIB,
            flags: libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP,
            new_address: 0,
        };
        assert_eq!(mremap(remap), Err(Errno::INVAL));
        assert_eq!(guard::thaw(memory.range()), Err(Errno::BUSY));
        guard::before_mlock(memory.range()).expect("always allowed");
        rustix::io::write(&writer, b"x").expect("heard");
        assert_eq!(sleeper.join().expect("alive"), 1, "poll was interrupted");
        assert!(memory.is_zero(0..MIB) && memory.holds(MIB..memory.len, 1) && !memory.is_anonymous());
        // Alone again, it works.
        while palimpsest_sys::threads::hold::count().expect("/proc") > 1 {
            std::thread::yield_now();
        }
        assert_eq!(madvise(&memory, 2 * MIB, MIB, libc::MADV_WIPEONFORK), Ok(()));
        assert_eq!(in_child(|| i32::from(!memory.is_zero(2 * MIB..3 * MIB))), 0);
    });
}

#[test]
fn advice_stays_with_what_replaces_frozen_memory() {
    play("advice_stays_with_what_replaces_frozen_memory", || {
        let kinds = [
            (libc::MADV_DONTDUMP, VmaFlags::DONT_DUMP),
            (libc::MADV_SEQUENTIAL, VmaFlags::SEQUENTIAL),
            (libc::MADV_HUGEPAGE, VmaFlags::HUGE_PAGE),
        ];
        // One gets its advice before the freeze, and one after it.
        let memory: Vec<_> = (0..2 * kinds.len()).map(|_| filled(8 * MIB)).collect();
        let give = |index: usize| {
            let (advice, _) = kinds[index / 2];
            assert_eq!(madvise(&memory[index], 0, 8 * MIB, advice), Ok(()));
        };
        (0..memory.len()).step_by(2).for_each(give);
        freeze(&Options::new().measure(Measure::Nothing));
        (1..memory.len()).step_by(2).for_each(give);
        for (index, memory) in memory.iter().enumerate() {
            let (_, flag) = kinds[index / 2];
            let has = |memory: &Memory, offset| flags(memory, offset).0.intersects(flag);
            assert!(memory.is_frozen() && has(memory, 0));
            madvise(memory, MIB, MIB, libc::MADV_DONTNEED).expect("allowed");
            assert!(has(memory, MIB) && has(memory, 2 * MIB), "{index}: lost by a discard");
            let remap = Remap {
                address: memory.at(0).addr(),
                len: 8 * MIB,
                new_len: 16 * MIB,
                flags: libc::MREMAP_MAYMOVE,
                new_address: 0,
            };
            let at = mremap(remap).expect("moved");
            let moved = Memory { start: std::ptr::with_exposed_provenance_mut(at), len: 16 * MIB };
            for offset in [0, MIB, 2 * MIB, 15 * MIB] {
                assert!(has(&moved, offset), "{index}: lost at {offset:#x} by a move");
            }
            madvise(&moved, 4 * MIB, MIB, libc::MADV_DONTNEED).expect("allowed");
            assert!(has(&moved, 4 * MIB), "{index}: lost by a discard after a move");
            guard::thaw(moved.range()).expect("thawed");
            assert!(moved.is_anonymous() && has(&moved, 0), "{index}: lost by thawing");
            assert!(moved.holds(0..MIB, 1) && moved.is_zero(MIB..2 * MIB) && moved.holds(5 * MIB..8 * MIB, 1));
        }
    });
}

/// Fails on: a thaw, of a range or of everything, after which the program may write where it may not.
#[test]
fn rights_stay_with_what_is_thawed() {
    play("rights_stay_with_what_is_thawed", || {
        let all = [filled(8 * MIB), filled(8 * MIB)];
        let forbid = |memory: &Memory, offset: usize| {
            // SAFETY: the scenario's own memory, which is read from here on.
            assert_eq!(unsafe { libc::mprotect(memory.at(offset), MIB, libc::PROT_READ) }, 0);
        };
        all.iter().for_each(|memory| forbid(memory, MIB));
        freeze(&Options::new().measure(Measure::Nothing));
        for memory in &all {
            assert!(memory.is_frozen());
            forbid(memory, 5 * MIB);
            // As the preload object does.
            guard::protected(memory.at(5 * MIB).addr()..memory.at(6 * MIB).addr(), Ok(Permissions::READ));
        }
        guard::thaw(all[0].range()).expect("thawed");
        guard::thaw_all().expect("thawed");
        let maps = Maps::read().expect("/proc");
        for memory in &all {
            let rights =
                (0..8).map(|mib| maps.at(memory.at(mib * MIB).addr()).expect("mapped").permissions.to_string());
            let both = "rw-p".to_owned();
            let expected = (0..8).map(|mib| if matches!(mib, 1 | 5) { "r--p".to_owned() } else { both.clone() });
            assert!(rights.eq(expected) && memory.is_anonymous() && memory.holds(0..memory.len, 1), "{maps:?}");
        }
    });
}

/// Fails on: a thaw that unmaps what it has made for one part where it has already made room for the next.
#[test]
fn what_lies_apart_is_thawed_in_one_call() {
    play("what_lies_apart_is_thawed_in_one_call", || {
        for lens in [[8 * MIB, 8 * MIB], [MIB, 8 * MIB], [8 * MIB, MIB]] {
            let mut all = lens.map(filled);
            all.sort_by_key(|memory| memory.start.addr());
            freeze(&Options::new().measure(Measure::Nothing));
            assert!(all.iter().all(Memory::is_frozen));
            let [first, last] = all.each_ref().map(Memory::range);
            guard::thaw(first.start..last.end).expect("thawed");
            assert!(all.iter().all(|memory| memory.is_anonymous() && memory.holds(0..memory.len, 1)));
        }
    });
}

/// Fails on: a thaw that believes the map, and puts a copy in place of a library's code, which cannot be executed, or
/// of memory that is shared with children; or one that gives back rights that were taken away.
#[test]
fn a_thaw_leaves_alone_what_nobody_has_reported() {
    play("a_thaw_leaves_alone_what_nobody_has_reported", || {
        for (has_thread, everything) in [(false, true), (false, false), (true, true)] {
            if has_thread {
                // It is held meanwhile, and lives on.
                std::thread::spawn(std::thread::park);
            }
            let memory = filled(8 * MIB);
            freeze(&Options::new().measure(Measure::Nothing).other_threads(OtherThreads::Stop));
            assert!(memory.is_frozen());
            let at = |mib: usize| memory.at(mib * MIB);
            // Its own code, where frozen memory was unmapped, as the dynamic linker maps it.
            let file = std::fs::File::open("/proc/self/exe").expect("this program");
            let (rights, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_FIXED);
            // SAFETY: the scenario's own memory, which nobody needs any more.
            assert_eq!(unsafe { libc::mmap(at(1), 64 << 10, rights, flags, file.as_raw_fd(), 0) }, at(1));
            // Another thread is held before it reports this.
            let (rights, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::mmap(at(3), MIB, rights, flags, -1, 0) }, at(3));
            for (mib, rights) in [(4, libc::PROT_READ), (5, libc::PROT_NONE)] {
                // SAFETY: the scenario's own memory, which is used accordingly.
                assert_eq!(unsafe { libc::mprotect(at(mib), MIB, rights) }, 0);
            }
            let thawed = if everything { guard::thaw_all() } else { guard::thaw(memory.range()) };
            assert_eq!(thawed, Ok(()));
            let maps = Maps::read().expect("/proc");
            let rights = |mib: usize| maps.at(at(mib).addr()).expect("mapped").permissions.to_string();
            let told = [0, 1, 2, 3, 4, 5, 6, 7].map(rights);
            assert_eq!(told, ["rw-p", "r-xp", "rw-p", "rw-s", "r--p", "---p", "rw-p", "rw-p"]);
            let shows_frozen = maps.overlapping(memory.range()).filter_map(|entry| entry.path.as_ref());
            let name = palimpsest_sys::memory::extent::EXTENT_NAME;
            assert_eq!(shows_frozen.filter(|path| path.as_os_str() == name).count(), 0, "{maps:?}");
            memory.fill(3 * MIB..4 * MIB, 2);
            let written = in_child(|| {
                memory.fill(3 * MIB..4 * MIB, 3);
                0
            });
            assert_eq!(written, 0);
            assert!(memory.holds(3 * MIB..4 * MIB, 3), "what is shared with children stays shared");
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { libc::mprotect(at(5), MIB, libc::PROT_READ) }, 0);
            assert!(memory.holds(0..MIB, 1) && memory.holds(MIB + (64 << 10)..3 * MIB, 1));
            assert!(memory.holds(4 * MIB..memory.len, 1));
        }
    });
}

/// Fails on: a child that believes the map, and puts a copy in place of a library's code.
#[test]
fn a_child_that_forgets_leaves_alone_what_nobody_has_reported() {
    play("a_child_that_forgets_leaves_alone_what_nobody_has_reported", || {
        let memory = filled(8 * MIB);
        freeze(&Options::new().extent(ExtentLen::Bytes(8 * MIB)).measure(Measure::Nothing));
        // It must not be held, so the parent can forget nothing.
        std::thread::spawn(std::thread::park);
        let at = |mib: usize| memory.at(mib * MIB);
        assert_eq!(palimpsest_fork::forget(at(7).addr()..at(8).addr()), Err(Errno::BUSY));
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let (rights, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: the scenario's own memory, which nobody needs any more.
        assert_eq!(unsafe { libc::mmap(at(1), 64 << 10, rights, flags, file.as_raw_fd(), 0) }, at(1));
        let child = in_child(|| {
            let maps = Maps::read().expect("/proc");
            let code = maps.at(at(1).addr()).expect("mapped");
            assert!(code.inode != 0 && code.permissions.to_string() == "r-xp", "{code}");
            let name = palimpsest_sys::memory::extent::EXTENT_NAME;
            let shows_frozen = maps.overlapping(memory.range()).filter_map(|entry| entry.path.as_ref());
            assert_eq!(shows_frozen.filter(|path| path.as_os_str() == name).count(), 0, "{maps:?}");
            assert!(memory.holds(0..MIB, 1) && memory.holds(MIB + (64 << 10)..memory.len, 1));
            0
        });
        assert_eq!(child, 0);
    });
}

#[test]
fn protection_keys_stay_with_what_replaces_frozen_memory() {
    play("protection_keys_stay_with_what_replaces_frozen_memory", || {
        let memory = frozen(8 * MIB);
        // SAFETY: asks for a key without restrictions.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
        let Ok(key) = u32::try_from(key) else { skip("the CPU or the kernel has no protection keys") };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::syscall(libc::SYS_pkey_mprotect, memory.at(0), memory.len, rights, key) }, 0);
        guard::keyed(memory.range(), key);
        madvise(&memory, MIB, MIB, libc::MADV_DONTNEED).expect("allowed");
        assert_eq!((flags(&memory, MIB).1, flags(&memory, 2 * MIB).1), (key, key));
        guard::thaw(memory.range()).expect("thawed");
        assert_eq!(flags(&memory, 4 * MIB).1, key);
        assert!(memory.is_zero(MIB..2 * MIB) && memory.holds(2 * MIB..memory.len, 1));
    });
}

/// Fails on: memory that a guard replaces, and that has no key then since a filter would end the program for giving it
/// one: open to all code, and nobody is told.
#[test]
fn a_protection_key_that_cannot_be_given_is_not_dropped() {
    play("a_protection_key_that_cannot_be_given_is_not_dropped", || {
        let memory = frozen(8 * MIB);
        // The guards are told of a key; whether this CPU has any makes no difference to what may be replaced.
        guard::keyed(memory.range(), 1);
        common::filter(libc::SYS_pkey_mprotect, libc::SECCOMP_RET_KILL_PROCESS);
        palimpsest_sys::seccomp::deadly_calls().expect("tried");
        let before = memory.mappings();
        madvise(&memory, MIB, MIB, libc::MADV_DONTNEED).expect("zeros in place");
        memory.fill(4 * MIB..5 * MIB, 2);
        madvise(&memory, 4 * MIB, MIB, GUARD_INSTALL).expect_err("that takes another mapping");
        assert_eq!(guard::thaw(memory.range()), Err(Errno::INVAL));
        let grown = |flags, new_address| Remap {
            address: memory.at(0).addr(),
            len: memory.len,
            new_len: 2 * memory.len,
            flags,
            new_address,
        };
        let room = Memory::apart(2 * memory.len);
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        for grown in [grown(libc::MREMAP_MAYMOVE, 0), grown(fixed, room.at(0).addr())] {
            // SAFETY: 1. the scenario's own memory.
            assert_eq!(unsafe { guard::mremap(grown) }, Err(Errno::NOMEM));
        }
        assert_eq!(memory.mappings(), before, "nothing was replaced");
        assert!(memory.is_frozen() && memory.is_zero(MIB..2 * MIB) && memory.holds(2 * MIB..4 * MIB, 1));
        assert!(memory.holds(4 * MIB..5 * MIB, 2) && memory.holds(5 * MIB..memory.len, 1));
    });
}

/// Whether something can be mapped there.
fn is_possible(address: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let at = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: replaces nothing, and is never used.
    (unsafe { libc::mmap(at, page(), libc::PROT_NONE, flags, -1, 0) }) != libc::MAP_FAILED
}

#[test]
fn moves_to_impossible_addresses_are_refused_as_by_the_kernel() {
    play("moves_to_impossible_addresses_are_refused_as_by_the_kernel", || {
        let memory = frozen(4 * MIB);
        let plain = filled(4 * MIB);
        // Whether there can be mappings depends on the machine for the first two.
        let tagged = plain.at(0).addr() | 1 << 58;
        for new_address in [1 << 48, 1 << 55, 1 << 56, 1 << 62, 1 << 63, usize::MAX & !(page() - 1), 4097, tagged] {
            if is_possible(new_address) {
                continue;
            }
            for new_len in [page(), 4 * MIB, 8 * MIB, 1 << 47, 1 << 60] {
                let moved = |memory: &Memory| {
                    mremap(Remap {
                        address: memory.at(0).addr(),
                        len: memory.len,
                        new_len,
                        flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                        new_address,
                    })
                };
                let expected = moved(&plain);
                assert!(expected.is_err(), "the kernel moves to {new_address:#x} with {new_len:#x} bytes");
                assert_eq!(moved(&memory), expected, "to {new_address:#x} with {new_len:#x} bytes");
            }
        }
        let overlapping = |memory: &Memory| {
            mremap(Remap {
                address: memory.at(0).addr(),
                len: 2 * MIB,
                new_len: 2 * MIB,
                flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                new_address: memory.at(MIB).addr(),
            })
        };
        assert_eq!(overlapping(&memory), overlapping(&plain));
        assert!(memory.holds(0..memory.len, 1) && memory.is_frozen());
    });
}

#[test]
fn memory_that_is_moved_again_and_again_leaves_the_test_of_others_quick() {
    play("memory_that_is_moved_again_and_again_leaves_the_test_of_others_quick", || {
        let mut memory = frozen(2 * MIB);
        let bystander = Memory::apart(2 * MIB);
        let places = [Memory::apart(2 * MIB), Memory::apart(2 * MIB)];
        for round in 0..10_000 {
            let to = places[round % 2];
            let at = mremap(Remap {
                address: memory.at(0).addr(),
                len: memory.len,
                new_len: memory.len,
                flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                new_address: to.at(0).addr(),
            });
            assert_eq!(at, Ok(to.at(0).addr()));
            memory = to;
        }
        assert!(guard::touches(memory.range()) && memory.holds(0..memory.len, 1));
        assert!(!guard::touches(bystander.range()), "every slot is used up");
    });
}

#[test]
fn memory_with_a_hole_is_not_moved() {
    play("memory_with_a_hole_is_not_moved", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        // In the middle of one extent; the map does not know.
        freeze_in_one(&memory);
        // SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::munmap(memory.at(5 * MIB), MIB) }, 0);
        let (address, flags) = (memory.at(0).addr(), libc::MREMAP_MAYMOVE);
        let grown = Remap { address, len: 8 * MIB, new_len: 24 * MIB, flags, new_address: 0 };
        assert_eq!(mremap(grown), Err(Errno::FAULT));
        assert!(memory.holds(0..5 * MIB, 1) && memory.holds(6 * MIB..memory.len, 1));
    });
}

/// Freezes into one extent for each 16 MiB.
fn freeze_in_one(memory: &Memory) {
    freeze(&Options::new().extent(ExtentLen::Bytes(16 * MIB)));
    assert!(memory.is_frozen());
}
