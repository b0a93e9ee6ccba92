//! What children see, what forks copy, and what happens where files are refused. Tests take turns, since they look at
//! page tables of the whole process, too.

mod arena_process;
mod arena_support;

use std::cell::RefCell;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arena_process::{descriptors, pin, turn, with_descriptors};
use arena_support::{Filled, forked, waited};
use palimpsest_fork::arena::{Arena, Backing};

/// `VmPTE` of this process, kB.
fn page_tables() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmPTE:")).expect("the kernel counts page tables");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
}

/// As `forked`, with a raw system call that runs no handlers.
fn cloned(child: impl FnOnce() -> bool, parent: impl FnOnce()) -> i32 {
    // SAFETY: as in `forked`; without flags but the signal this is what the system call `fork` does.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    waited(pid.try_into().expect("a process id"), child, parent)
}

#[test]
fn a_fork_that_was_not_announced_shares_nothing() {
    let _turn = turn();
    let arena = Arena::new();
    let block = RefCell::new(Filled::new(&arena, 5 << 20, 16, 1).expect("memory"));
    assert!(arena.stats().memory.shared > 0);
    let (read, write) = std::io::pipe().expect("a pipe");
    let mut child_block = Filled::new(&arena, 100, 16, 2).expect("memory");
    let status = forked(
        || {
            // Until the parent has written.
            let mut read = &read;
            let waited = std::io::Read::read_exact(&mut read, &mut [0]).is_ok();
            child_block.refill(7);
            let more = Filled::new(&arena, 3 << 20, 16, 9);
            waited && block.borrow().is_right() && more.is_some_and(|more| more.is_right())
        },
        || {
            block.borrow_mut().refill(3);
            let mut write = &write;
            std::io::Write::write_all(&mut write, &[1]).expect("the child reads");
        },
    );
    assert_eq!(status, 0, "the child saw its parent's stores");
    assert!(block.borrow().is_right());
    assert!(child_block.is_right(), "the parent saw its child's stores");
    assert_eq!(arena.stats().freezes, 1);
}

#[test]
fn a_child_of_a_bare_clone_faults_instead_of_sharing() {
    let _turn = turn();
    let arena = Arena::new();
    let block = Filled::new(&arena, 100, 16, 1).expect("memory");
    let status = cloned(|| block.is_right(), || {});
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
    arena.freeze().expect("the files are open");
    assert_eq!(cloned(|| block.is_right(), || {}), 0);
}

#[test]
fn freezing_loses_no_store_of_another_thread() {
    stores_while(|arena| assert!(arena.freeze().expect("the files are open").bytes > 0));
}

#[test]
fn a_fork_that_freezes_loses_no_store_of_another_thread() {
    stores_while(|arena| assert_eq!(forked(|| arena.stats().memory.shared == 0, || {}), 0));
}

/// Runs `freeze` while another thread counts in memory of the arena.
fn stores_while(freeze: impl Fn(&Arena)) {
    let _turn = turn();
    const COUNTERS: usize = 64;
    for _ in 0..30 {
        let arena = Arena::new();
        let block = arena.allocate_zeroed(COUNTERS << 16, 4096).cast::<std::ffi::c_void>().cast::<AtomicU64>();
        // SAFETY: the block is this long, aligned, and zeros are valid; only these counters refer to it.
        let counters = unsafe { std::slice::from_raw_parts(block, COUNTERS << 13) };
        // Relaxed everywhere: the counters are one thread's, and these two only tell when to begin and to end.
        let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let counter = scope.spawn(|| {
                let mut rounds = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    for index in 0..COUNTERS {
                        let counter = &counters[index << 13];
                        let seen = counter.load(Ordering::Relaxed);
                        assert_eq!(seen, rounds, "counter {index} lost stores");
                        counter.store(seen + 1, Ordering::Relaxed);
                    }
                    rounds += 1;
                    progress.store(rounds, Ordering::Relaxed);
                }
            });
            let wait_until = |rounds: u64| {
                while progress.load(Ordering::Relaxed) < rounds && !counter.is_finished() {
                    std::thread::yield_now();
                }
            };
            wait_until(50);
            freeze(&arena);
            wait_until(progress.load(Ordering::Relaxed) + 50);
            stop.store(true, Ordering::Relaxed);
            counter.join().expect("no store was lost");
        });
    }
}

/// Runs a test in a process of one thread: the harness starts threads as it likes, whose stacks have page tables.
fn on_one_thread(test: impl FnOnce()) {
    let _turn = turn();
    let test = || {
        test();
        true
    };
    assert_eq!(forked(test, || {}), 0);
}

#[test]
fn a_child_gets_no_page_tables_of_frozen_memory() {
    on_one_thread(page_tables_of_frozen_memory);
}

fn page_tables_of_frozen_memory() {
    const LEN: usize = 64 << 20;
    let arena = Arena::new();
    let block = Filled::new(&arena, LEN, 16, 1).expect("memory");
    arena.freeze().expect("the files are open");
    let before = page_tables();
    let small = |limit: usize| move || page_tables() <= limit;
    assert_eq!(forked(small(before + 16), || {}), 0);
    // Read, so that the parent has all page tables again: 128 kB for 64 MiB with pages of 4 KiB.
    assert!(block.is_right());
    let populated = page_tables();
    if populated < before + 64 {
        println!("skipped: page tables are too small to be told apart ({before} kB, {populated} kB)");
        return;
    }
    assert_eq!(forked(small(before + 16), || {}), 0, "a clean fork copied page tables");
}

#[test]
fn a_written_page_costs_its_segment_until_it_is_frozen_again() {
    on_one_thread(price_of_a_written_page);
}

fn price_of_a_written_page() {
    const LEN: usize = 256 << 20;
    let arena = Arena::new();
    let block = arena.allocate(LEN, 16);
    // SAFETY: as long as this, and this test's alone.
    let bytes = unsafe { std::slice::from_raw_parts_mut(block, LEN) };
    bytes.fill(1);
    arena.freeze().expect("the files are open");
    let differ = |bytes: &[u8]| bytes.chunks(4096).filter(|piece| **piece != [1; 4096]).count();
    assert_eq!(differ(bytes), 0);
    bytes[LEN / 2] = 2;
    let dirty = page_tables_of_child();
    // SAFETY: the arena is this thread's alone.
    let refrozen = unsafe { arena.refreeze() }.expect("a pagemap and files");
    assert!((2 << 20..=8 << 20).contains(&refrozen.copied), "{refrozen:?}");
    let clean = page_tables_of_child();
    if rustix::param::page_size() == 4096 {
        assert!(dirty > clean, "{dirty} kB with a dirty segment, {clean} kB without");
        assert!(dirty - clean < 64, "one segment of 8 MiB has 16 kB of page tables, not {}", dirty - clean);
    }
    assert_eq!((differ(bytes), bytes[LEN / 2]), (1, 2));
    // SAFETY: as above.
    assert_eq!(unsafe { arena.refreeze() }.expect("a pagemap").copied, 0);
    // What is written again has a segment of its own now.
    bytes[LEN / 2] = 3;
    // SAFETY: as above.
    assert_eq!(unsafe { arena.refreeze() }.expect("a pagemap").copied, 2 << 20);
    assert_eq!((differ(bytes), bytes[LEN / 2]), (1, 3));
}

fn page_tables_of_child() -> usize {
    let (read, write) = std::io::pipe().expect("a pipe");
    let status = forked(
        || {
            let mut write = &write;
            std::io::Write::write_all(&mut write, &page_tables().to_ne_bytes()).is_ok()
        },
        || {},
    );
    assert_eq!(status, 0);
    let mut bytes = [0; size_of::<usize>()];
    let mut read = &read;
    std::io::Read::read_exact(&mut read, &mut bytes).expect("the child wrote");
    usize::from_ne_bytes(bytes)
}

#[test]
fn where_files_are_refused_memory_is_ordinary_and_told_so() {
    let _turn = turn();
    // In a child: the limit applies to what the tests print, too.
    assert_eq!(forked(refused_files, || {}), 0);
}

fn refused_files() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    let small = rustix::process::Rlimit { current: Some(4096), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, small).expect("lowering is allowed");
    let arena = Arena::new();
    let block = Filled::zeroed(&arena, 9 << 20, 16, 1).expect("memory of another kind");
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("the old limit");
    let stats = arena.stats();
    assert_eq!(stats.refused, Some(libc::EFBIG));
    assert_eq!(stats.memory.shared, 0);
    let frozen = arena.freeze().expect("nothing to fail");
    assert_eq!((frozen.bytes, frozen.anonymous), (0, stats.memory.anonymous));
    assert_eq!(forked(|| block.is_right(), || {}), 0);
    // Files can be made now, so that a copy freezes it. SAFETY: the arena is this thread's alone.
    let refrozen = unsafe { arena.refreeze() }.expect("a pagemap and files");
    assert!(refrozen.copied >= 9 << 20);
    assert!(block.is_right());
    forked(|| block.is_right(), || {}) == 0
}

/// Becomes nobody if this is root, so that only descriptors and mappings give rights.
fn become_nobody() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: takes numbers; the process has one thread.
        assert_eq!(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
    }
}

/// Counts the bytes, mappings and new descriptors with which this process can write to memory files, through the
/// descriptors that it has. Such files belong to arenas, whatever their names.
fn ways_to_write() -> usize {
    let mut ways = 0;
    for descriptor in 3..1024 {
        let path = format!("/proc/self/fd/{descriptor}");
        if !fs::read_link(&path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:")) {
            continue;
        }
        for offset in [0, 1 << 20, 4 << 20] {
            // SAFETY: reads a byte of a constant.
            ways += usize::from(unsafe { libc::pwrite(descriptor, c"x".as_ptr().cast(), 1, offset) } == 1);
        }
        let (rights, page) = (libc::PROT_READ | libc::PROT_WRITE, rustix::param::page_size());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), page, rights, libc::MAP_SHARED, descriptor, 0) };
        if mapped != libc::MAP_FAILED {
            ways += 1;
            // SAFETY: the first byte of the mapping made above.
            unsafe { mapped.cast::<u8>().write_volatile(b'x') };
        }
        if let Ok(file) = fs::OpenOptions::new().write(true).open(&path) {
            ways += 1;
            let _ = std::os::unix::fs::FileExt::write_at(&file, b"x", 0);
        }
    }
    ways
}

#[test]
fn a_child_has_no_descriptor_of_its_parents_memory() {
    let _turn = turn();
    let arena = Arena::new();
    let block = Filled::new(&arena, 9 << 20, 16, 1).expect("memory");
    let more = Filled::new(&arena, 100, 16, 2).expect("memory");
    let _pinned = pin(block.bytes()[4 << 20..].as_ptr());
    let status = forked(
        || {
            let inherited = descriptors();
            println!("the child has {inherited:?}");
            become_nobody();
            let ways = ways_to_write();
            println!("{ways} ways to write to the parent's memory");
            ways == 0 && inherited.is_empty() && block.is_right() && more.is_right()
        },
        || {},
    );
    assert_eq!(status, 0);
    assert!(block.is_right() && more.is_right(), "the child has written to its parent's memory");
    arena.freeze().expect("nothing to fail");
    assert!(descriptors().is_empty(), "frozen memory needs none");
    // What is frozen again needs none, either.
    // SAFETY: the arena is this thread's alone.
    unsafe { arena.refreeze() }.expect("a pagemap and files");
    assert_eq!(forked(|| descriptors().is_empty() && block.is_right(), || {}), 0);
}

#[test]
fn a_child_that_no_handler_saw_cannot_write_to_its_parents_memory() {
    let _turn = turn();
    let arena = Arena::new();
    let block = Filled::new(&arena, 9 << 20, 16, 1).expect("memory");
    assert!(!descriptors().is_empty(), "memory that is being filled needs them");
    let status = cloned(
        || {
            become_nobody();
            ways_to_write() == 0
        },
        || {},
    );
    assert_eq!(status, 0);
    assert!(block.is_right());
    arena.freeze().expect("the files are open");
    assert_eq!(cloned(|| descriptors().is_empty() && block.is_right(), || {}), 0);
}

#[test]
fn memory_that_a_device_may_write_is_told() {
    let _turn = turn();
    let arena = Arena::new();
    let block = Filled::new(&arena, 9 << 20, 16, 1).expect("memory");
    let pinned = pin(block.bytes().as_ptr());
    arena.freeze().expect("the files are open");
    assert_eq!(arena.stats().unsealed, 1);
    drop(pinned);
    let other = Arena::new();
    let _block = Filled::new(&other, 9 << 20, 16, 1).expect("memory");
    other.freeze().expect("the files are open");
    assert_eq!(other.stats().unsealed, 0);
}

#[test]
fn descriptors_are_neither_low_nor_high() {
    let _turn = turn();
    let arena = Arena::new();
    let _block = Filled::new(&arena, 100, 16, 1).expect("memory");
    let numbers = with_descriptors(1024, descriptors);
    assert!(numbers.iter().any(|number| (128..256).contains(number)), "{numbers:?}");
    assert!(numbers.iter().all(|number| (128..448).contains(number)), "{numbers:?}");
}

/// Makes blocks that get segments of more than one piece in the end, frozen as they come.
fn grown(arena: &Arena) -> Vec<Filled> {
    let mut blocks: Vec<Filled> = Vec::new();
    while arena.stats().committed < 200 << 20 {
        let large = arena.allocate_zeroed(3 << 20, 16);
        assert!(!large.is_null());
        blocks.push(Filled::new(arena, 40_000, 16, blocks.len() as u64).expect("memory"));
        arena.freeze().expect("the files are open");
    }
    blocks
}

#[test]
fn frozen_memory_has_no_descriptors_and_is_frozen_again_all_the_same() {
    let _turn = turn();
    let arena = Arena::new();
    let mut blocks = grown(&arena);
    assert!(descriptors().is_empty());
    assert_eq!(arena.stats().memory.anonymous, 0);
    blocks.iter_mut().rev().step_by(3).enumerate().for_each(|(seed, block)| block.refill(seed as u64 + 1000));
    // SAFETY: the arena is this thread's alone.
    let refrozen = unsafe { arena.refreeze() }.expect("a pagemap and files");
    assert!(refrozen.copied > 0 && descriptors().is_empty(), "{refrozen:?}");
    assert!(blocks.iter().all(Filled::is_right));
    assert_eq!(forked(|| blocks.iter().all(Filled::is_right), || {}), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { arena.refreeze() }.expect("a pagemap"), Default::default());
}

#[test]
fn arenas_leave_descriptors_to_the_program() {
    let _turn = turn();
    let arenas: Vec<Arena> = (0..100).map(|_| Arena::new()).collect();
    let (blocks, more) = with_descriptors(64, || {
        let blocks: Vec<Filled> =
            arenas.iter().map(|arena| Filled::new(arena, 100, 16, 1).expect("memory of either kind")).collect();
        (blocks, (0..10).map(|_| fs::File::open("/dev/null")).collect::<Vec<_>>())
    });
    assert!(more.iter().all(Result::is_ok), "{more:?}");
    let stats = arenas[99].stats();
    assert_eq!((stats.refused, stats.memory.shared), (Some(libc::EMFILE), 0));
    assert!(arenas[0].stats().memory.shared > 0);
    arenas.iter().for_each(|arena| assert!(arena.freeze().is_ok()));
    assert_eq!(forked(|| blocks.iter().all(Filled::is_right), || {}), 0);
}

#[test]
fn programs_that_close_descriptors_of_others_lose_the_child_not_the_bytes() {
    let _turn = turn();
    let arena = Arena::new();
    let block = Filled::new(&arena, 100, 16, 1).expect("memory");
    let mut closed = 0;
    for descriptor in descriptors() {
        // SAFETY: daemons do this to descriptors that they do not know; the arena must cope.
        closed += usize::from(unsafe { libc::close(descriptor) } == 0);
    }
    assert!(closed > 0);
    let error = arena.freeze().expect_err("there is no file to map");
    assert!(error.to_string().contains("close the descriptors"), "{error}");
    assert!(block.is_right());
    let status = forked(|| block.is_right(), || {});
    assert!(libc::WIFSIGNALED(status), "the child must not share: {status:#x}");
    assert_eq!(arena.stats().aside, 0, "a former mapping of memory that stays shared");
    assert!(block.is_right());
}

#[test]
fn trimming_gives_memory_back_and_leaves_zeros() {
    let _turn = turn();
    for backing in [Backing::Memfd, Backing::Anonymous] {
        let arena = Arena::with_backing(backing);
        let kept = Filled::new(&arena, 3 << 20, 16, 1).expect("memory");
        let freed = Filled::new(&arena, 20 << 20, 16, 2).expect("memory");
        arena.freeze().expect("the files are open");
        let before = arena.stats();
        freed.free(&arena);
        let trimmed = arena.trim();
        assert!(trimmed >= 16 << 20 || backing == Backing::Anonymous, "{trimmed}");
        let after = arena.stats();
        if backing == Backing::Memfd {
            assert!(after.memory.frozen + (16 << 20) <= before.memory.frozen, "{after}");
        }
        assert!(kept.is_right());
        Filled::zeroed(&arena, 20 << 20, 16, 3).expect("memory").free(&arena);
        kept.free(&arena);
    }
}

/// Returns what a child that ends by SIGABRT says.
fn last_words(child: impl FnOnce()) -> String {
    let (read, write) = std::io::pipe().expect("a pipe");
    let dies = || {
        // SAFETY: both are descriptors of the child.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&write), 2) };
        child();
        false
    };
    let status = forked(dies, || {});
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "{status:#x}");
    drop(write);
    let mut words = String::new();
    std::io::Read::read_to_string(&mut &read, &mut words).expect("readable");
    words
}

#[test]
fn what_is_freed_wrongly_ends_the_process() {
    let _turn = turn();
    let arena = Arena::new();
    let free = |address: *mut u8| {
        // SAFETY: none: the test breaks the contract; the process ends before anything comes of it.
        unsafe { arena.release(std::ptr::NonNull::new(address).expect("a block")) };
    };
    for size in [16, 100, 5000, 100_000] {
        let [block, _neighbour] = [(); 2].map(|()| arena.allocate(size, 16));
        let twice = || (0..2).for_each(|_| free(block));
        assert!(last_words(twice).contains("a block that is free already"), "{size} bytes");
        assert!(last_words(|| free(block.wrapping_add(8))).contains("into the middle of a block"), "{size} bytes");
    }
    let run = arena.allocate(3 << 20, 16);
    assert!(last_words(|| (0..2).for_each(|_| free(run))).contains("not of a block in use"));
    assert!(last_words(|| free(run.wrapping_add(4096))).contains("not of a block in use"));
    assert!(last_words(|| free(std::ptr::from_mut(&mut 0))).contains("not of this arena"));
}

#[test]
fn impossible_requests_get_null_and_leave_the_arena_usable() {
    let _turn = turn();
    let arena = Arena::new();
    for len in [usize::MAX, usize::MAX / 2, 1 << 45, 1 << 39] {
        assert!(arena.allocate(len, 16).is_null(), "{len}");
        assert!(arena.allocate_zeroed(len, 1 << 21).is_null());
    }
    let mut block = Filled::new(&arena, 1000, 16, 1).expect("memory");
    assert!(!block.resize(&arena, 1 << 45));
    assert!(block.is_right());
    block.free(&arena);
}

#[test]
fn a_loop_of_allocations_reuses_its_memory() {
    let _turn = turn();
    let arena = Arena::new();
    let mut most = 0;
    for round in 0..200_u64 {
        let blocks: Vec<_> =
            (0..40).map(|index| Filled::new(&arena, 200 << (index % 12), 16, round).expect("memory")).collect();
        blocks.into_iter().for_each(|block| block.free(&arena));
        let committed = arena.stats().committed;
        assert!(round < 2 || committed == most, "round {round}: {committed} bytes after {most}");
        most = committed;
    }
}
