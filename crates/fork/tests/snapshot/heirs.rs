//! Snapshots that children of the process inherit, and children in the same memory.

use super::*;

#[test]
fn children_restore_their_own_memory() {
    play("heirs::children_restore_their_own_memory", || {
        let memory = map(8);
        write(memory, 1);
        let mut snapshot = take(&ranges([range(memory, 8)]).sweep(Sweep::Always));
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        write(memory.wrapping_add(if child == 0 { 3 * page() } else { 0 }), 9);
        let restored = restore(&mut snapshot);
        assert_eq!((read(memory), read(memory.wrapping_add(3 * page())), restored.pages), (1, 0, 1));
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    });
}

#[test]
fn children_get_the_memory_of_a_snapshot_and_none_of_its_descriptors() {
    play("heirs::children_get_the_memory_of_a_snapshot_and_none_of_its_descriptors", || {
        let open =
            || (0..8192).filter(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok()).collect();
        let before: Vec<i32> = open();
        let memory = map(2);
        write(memory, 1);
        let mut whole = take(&whole().descriptors(Descriptors::Restore));
        let mut part = take(&ranges([range(memory, 2)]).sweep(Sweep::Always));
        drop(take(&ranges([range(map(1), 1)])));
        let with: Vec<i32> = open();
        assert!(with.len() > before.len());
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let inherited: Vec<i32> = open();
            println!("the parent had {before:?}, then {with:?}, the child has {inherited:?}");
            let none = inherited == before;
            write(memory, 9);
            restore(&mut part);
            let is_back = read(memory) == 1;
            // From the first restore on, the snapshot has files open that the parent's never had.
            let is_back = is_back
                && (0..3).all(|_| {
                    COUNTER.store(50, Relaxed);
                    write(memory, 9);
                    restore(&mut whole);
                    COUNTER.load(Relaxed) == 5 && read(memory) == 1
                });
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!none) + 2 * i32::from(!is_back)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        drop((whole, part));
        let after: Vec<i32> = open();
        assert_eq!(after, before, "a snapshot that is dropped closes what it opened");
    });
}

/// Fails on: anonymous memory in place of a mapping that is gone, which shows zeros once it is dropped.
#[test]
fn children_keep_what_they_mapped_again() {
    play("heirs::children_keep_what_they_mapped_again", || {
        for resident in [2, 1000] {
            let memory = map(8);
            (0..8).for_each(|index| write(memory.wrapping_add(index * page()), 1));
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { libc::mprotect(memory.cast(), page(), libc::PROT_READ) }, 0);
            let mut snapshot = take(&whole().sweep(Sweep::Always).resident(resident * page()));
            // SAFETY: this process has one thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the scenario's own memory.
                assert_eq!(unsafe { libc::munmap(memory.cast(), 6 * page()) }, 0);
                let is_back = (0..150).all(|round| {
                    restore(&mut snapshot);
                    let values = [0, 1, 2, 3, 4, 5, 6, 7].map(|index| read(memory.wrapping_add(index * page())));
                    if values != [1; 8] {
                        println!("{values:?} in round {round}, with {resident} pages");
                    }
                    values == [1; 8]
                });
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!is_back)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
        }
    });
}

#[test]
fn a_handler_that_forks_waits_until_the_snapshot_is_taken() {
    extern "C" fn fork(_: i32) {
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        COUNTER.fetch_add(1, Relaxed);
    }
    play("heirs::a_handler_that_forks_waits_until_the_snapshot_is_taken", || {
        let handler = fork as *const () as usize;
        // SAFETY: the scenario's thread runs nothing that the handler may not interrupt, unless the test fails.
        assert_ne!(unsafe { libc::signal(libc::SIGUSR1, handler) }, libc::SIG_ERR);
        let thread = rustix::thread::gettid();
        let watched = refusing::watch_call(libc::SYS_memfd_create, move || {
            let status =
                std::fs::read_to_string(format!("/proc/self/task/{}/status", thread.as_raw_nonzero())).unwrap();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
            if u64::from_str_radix(blocked, 16).unwrap() & 1 << (libc::SIGUSR1 - 1) == 0 {
                println!("the handler would run now, and wait for this thread for ever");
                // SAFETY: ends the process.
                unsafe { libc::_exit(3) };
            }
            // SAFETY: the thread waits for this one, in the call.
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread.as_raw_nonzero(), libc::SIGUSR1) };
        });
        if let Err(error) = watched {
            return println!("skipped: no seccomp notifications here: {error}");
        }
        let memory = map(1);
        drop(take(&ranges([range(memory, 1)]).threads(Threads::Asleep)));
        assert_eq!(COUNTER.load(Relaxed), 6, "the handler has run");
    });
}

/// Fails by waiting for itself: a snapshot that is dropped, for want of a page, while it keeps forks away.
#[test]
fn without_memory_for_it_a_snapshot_is_refused() {
    play("heirs::without_memory_for_it_a_snapshot_is_refused", || {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes to a local.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
        let set = |limit: u64| {
            let limit = libc::rlimit { rlim_cur: limit.min(before.rlim_max), ..before };
            // SAFETY: the kernel reads a local.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        };
        let options = ranges([range(map(1), 1)]);
        let attempt = |pages: u64| {
            set(pages * page() as u64);
            // SAFETY: as in `take`.
            let taken = unsafe { Snapshot::take(&options) };
            set(libc::RLIM_INFINITY);
            taken.map(drop)
        };
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let used: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        // From where on there is memory for all tables, which come before the snapshot itself.
        let (mut few, mut enough) = (used, used + (8 << 30) / page() as u64);
        assert!(attempt(enough).is_ok());
        while enough - few > 1 {
            let pages = u64::midpoint(few, enough);
            let has_tables = matches!(attempt(pages), Ok(()) | Err(TakeError::Call { call: "mmap", .. }));
            *if has_tables { &mut enough } else { &mut few } = pages;
        }
        assert!(matches!(attempt(enough), Err(TakeError::Call { call: "mmap", .. })), "the test means the last page");
    });
}

/// Page faults of this process, as the kernel counts them.
fn faults() -> i64 {
    // SAFETY: zeroes are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills a local.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
    usage.ru_minflt + usage.ru_majflt
}

#[test]
fn children_sweep_even_if_they_have_had_as_many_faults() {
    play("heirs::children_sweep_even_if_they_have_had_as_many_faults", || {
        let memory = map(4);
        (0..4).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        let mut other = take(&ranges([range(memory.wrapping_add(2 * page()), 2)]));
        let mut snapshot = take(&ranges([range(memory, 2)]));
        write(memory, 9);
        restore(&mut other);
        while restore(&mut snapshot).swept {}
        let parents = faults();
        // In a child, a restore has a few faults before it asks for their number.
        for fewer in 0..8 {
            // SAFETY: this process has one thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                restore(&mut other);
                write(memory.wrapping_add(page()), 9);
                let mut is_same = false;
                while faults() < parents - fewer {
                    is_same = faults() == parents - fewer - 1;
                    write(map(1), 1);
                }
                let restored = restore(&mut snapshot).swept && read(memory.wrapping_add(page())) == 1;
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!restored) + 2 * i32::from(!is_same)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "with {fewer} faults fewer");
        }
    });
}

#[test]
fn what_a_child_in_the_same_memory_wrote_comes_back() {
    /// Stores a byte at the given address.
    extern "C" fn child(at: *mut libc::c_void) -> i32 {
        write(at.cast(), 9);
        0
    }
    play("heirs::what_a_child_in_the_same_memory_wrote_comes_back", || {
        let memory = map(400);
        (0..400).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        let stack = map(64);
        let mut snapshot = take(&ranges([range(memory, 400)]));
        let mut left = 0;
        for round in 0..200 {
            let at = memory.wrapping_add(2 * round * page());
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: the child stores one byte and ends, on a stack of its own, while this thread waits for it, as
            // with `vfork`.
            let process = unsafe { libc::clone(child, stack.wrapping_add(64 * page()).cast(), flags, at.cast()) };
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
            restore(&mut snapshot);
            left += usize::from(read(at) != 1);
        }
        assert_eq!(left, 0, "so many of 200 bytes are still there");
    });
}
