//! What makes a process unfit for freezing, and what goes wrong half-way: rows 9, 12-15 and 20 of the hazards in
//! `docs/src/numbered.md`, limits, and failures.

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Memory, freeze, in_child, page, play, skip, status_kb, wait};
use palimpsest_fork::{
    Answer, ExtentLen, FreezeError, Measure, Options, OtherThreads, Pause, freeze as freeze_process, guard,
};
use palimpsest_sys::proc::status::Status;
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: usize = 1 << 20;

/// Tries to freeze.
fn try_freeze(options: &Options) -> Result<palimpsest_fork::Report, FreezeError> {
    // SAFETY: the scenario is alone in its process.
    unsafe { freeze_process(options) }
}

#[test]
fn h09_locked_future_is_refused() {
    play("h09_locked_future_is_refused", || {
        // SAFETY: takes a number.
        if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
            skip("memory cannot be locked");
        }
        // Maps the one page that tells whose memory this is.
        assert!(!guard::is_borrowed());
        let before = status_kb("VmSize");
        let error = try_freeze(&Options::new()).expect_err("future memory is locked");
        assert!(matches!(error, FreezeError::FutureLocked), "{error}");
        assert_eq!(status_kb("VmSize"), before, "nothing was mapped");
        let answered = Options::new().answer_for(Answer::LockedMemory);
        match try_freeze(&answered) {
            Ok(report) => assert!(status_kb("VmLck") < 64 << 10, "the tables are not populated: {report}"),
            // If a limit forbids locking as much address space as the tables have.
            Err(error) => assert!(matches!(error, FreezeError::Tables(_) | FreezeError::NotStopped(_)), "{error}"),
        }
    });
}

#[test]
fn repairs_keep_what_was_answered_for() {
    play("repairs_keep_what_was_answered_for", || {
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        let answers = [Answer::LockedMemory, Answer::RawAllocator, Answer::IoUring];
        freeze(&answers.into_iter().fold(Options::new().least(3 * page()), Options::answer_for));
        // SAFETY: takes a number.
        if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
            skip("memory cannot be locked");
        }
        repair_by_forking(&memory);
        freeze(&Options::new().answer_for(Answer::LockedMemory));
        // The last freeze's answers count.
        // SAFETY: takes nothing.
        unsafe { libc::munlockall() };
        freeze(&Options::new());
        // SAFETY: takes a number.
        assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
        let repairs = palimpsest_fork::status().repairs;
        memory.fill(0..memory.len, 3);
        (0..300).for_each(|_| assert_eq!(in_child(|| 0), 0));
        assert_eq!(palimpsest_fork::status().repairs, repairs, "refused");
    });
}

/// Fails on: memory that is locked once a guard has replaced it, or a thaw: it stays in RAM, and cannot be discarded.
#[test]
fn what_guards_replace_is_locked_no_more_than_before() {
    play("what_guards_replace_is_locked_no_more_than_before", || {
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 1);
        // SAFETY: takes a number.
        if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
            skip("memory cannot be locked");
        }
        freeze(&Options::new().answer_for(Answer::LockedMemory).measure(Measure::Nothing));
        if !memory.is_frozen() {
            skip("nothing is frozen where all new memory is locked");
        }
        let locked = status_kb("VmLck");
        for time in 0..2 {
            // SAFETY: 1. the scenario's own memory.
            let done = unsafe { guard::madvise(memory.start.addr(), 2 * MIB, libc::MADV_DONTNEED) };
            assert_eq!(done, Ok(()), "{time}");
        }
        let grown = guard::Remap {
            address: memory.at(6 * MIB).addr(),
            len: 2 * MIB,
            new_len: 4 * MIB,
            flags: libc::MREMAP_MAYMOVE,
            new_address: 0,
        };
        // SAFETY: 1. the scenario's own memory.
        let moved = unsafe { guard::mremap(grown) };
        assert!(moved.is_ok(), "{moved:?}");
        guard::thaw_all().expect("thawed");
        assert!(memory.is_zero(0..2 * MIB) && memory.holds(2 * MIB..6 * MIB, 1));
        assert!(status_kb("VmLck") <= locked, "{} after {locked}", status_kb("VmLck"));
    });
}

/// Writes to frozen memory, and forks until it is repaired.
fn repair_by_forking(memory: &Memory) {
    let before = palimpsest_fork::status().repairs;
    assert!((0..memory.len).step_by(page()).fold(0, |sum, offset| sum + u64::from(memory.get(offset))) > 0);
    for offset in (0..memory.len).step_by(2 * MIB) {
        memory.set(offset + 100, 7);
    }
    let mut forks = 0;
    while palimpsest_fork::status().repairs == before {
        assert_eq!(in_child(|| 0), 0);
        forks += 1;
        assert!(forks < 100_000, "{:?}", palimpsest_fork::status());
    }
}

#[test]
fn repairs_stop_threads_only_if_the_freeze_might() {
    for may_stop in [OtherThreads::Refuse, OtherThreads::Stop] {
        play("repairs_stop_threads_only_if_the_freeze_might", || {
            let memory = Memory::apart(64 * MIB);
            memory.fill(0..memory.len, 1);
            freeze(&Options::new().other_threads(may_stop));
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || ended.recv());
            match may_stop {
                OtherThreads::Stop => repair_by_forking(&memory),
                OtherThreads::Refuse => {
                    memory.fill(0..memory.len, 3);
                    (0..300).for_each(|_| assert_eq!(in_child(|| 0), 0));
                    assert_eq!(palimpsest_fork::status().repairs, 0);
                }
            }
            drop(end);
            let _ = thread.join();
        });
    }
}

#[test]
fn h12_core_dumps_have_frozen_memory() {
    play("h12_core_dumps_have_frozen_memory", || {
        let filter = || {
            let text = std::fs::read_to_string("/proc/self/coredump_filter").expect("/proc");
            u64::from_str_radix(text.trim(), 16).expect("a number")
        };
        std::fs::write("/proc/self/coredump_filter", "0x33").expect("/proc");
        let report = freeze(&Options::new());
        assert_eq!(filter(), 0x37);
        assert!(report.notes.iter().any(|note| note.contains("coredump_filter")), "{report}");
        for other in ["0x0", "0x32"] {
            std::fs::write("/proc/self/coredump_filter", other).expect("/proc");
            let before = filter();
            freeze(&Options::new());
            assert_eq!(filter(), before, "who dumps no private memory does not get any");
        }
    });
}

#[test]
fn h13_frozen_memory_is_not_accounted_twice() {
    play("h13_frozen_memory_is_not_accounted_twice", || {
        use palimpsest_sys::pages::maps::Maps;
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        let maps = Maps::read().expect("/proc");
        assert!(maps.overlapping(memory.range()).count() > 4);
        let text = std::fs::read_to_string("/proc/self/smaps").expect("/proc");
        let frozen = text.split("\nVmFlags:").zip(text.split("\nVmFlags:").skip(1));
        let accounted = frozen.filter(|(body, flags)| {
            body.rsplit_once("/memfd:palimpsest-frozen").is_some_and(|(_, rest)| !rest.contains(" r-xp "))
                && flags.lines().next().is_some_and(|flags| flags.contains(" ac"))
        });
        assert_eq!(accounted.count(), 0);
    });
}

#[test]
fn h14_a_file_size_limit_is_lifted_for_the_time_or_refused() {
    play("h14_a_file_size_limit_is_lifted_for_the_time_or_refused", || {
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 1);
        let soft = Rlimit { current: Some(1 << 20), maximum: None };
        if setrlimit(Resource::Fsize, soft).is_err() {
            skip("the hard limit is finite");
        }
        freeze(&Options::new());
        assert!(memory.is_frozen());
        assert_eq!(rustix::process::getrlimit(Resource::Fsize).current, Some(1 << 20), "as before");
        setrlimit(Resource::Fsize, Rlimit { current: Some(1 << 20), maximum: Some(1 << 30) }).expect("lowered");
        let error = try_freeze(&Options::new()).expect_err("too low");
        assert!(matches!(error, FreezeError::FileSizeLimit { limit } if limit == 1 << 30), "{error}");
        assert!(memory.holds(0..memory.len, 1));
    });
}

#[test]
fn h15_the_children_hold_little() {
    play("h15_the_children_hold_little", || {
        let memory = Memory::apart(128 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        assert_eq!(in_child(|| i32::from(status_kb("VmRSS") > 32 << 10)), 0);
    });
}

#[test]
fn h20_executed_programs_inherit_nothing() {
    play("h20_executed_programs_inherit_nothing", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        let Ok(listing) = Command::new("ls").args(["-l", "/proc/self/fd"]).output() else { skip("there is no ls") };
        assert!(!String::from_utf8_lossy(&listing.stdout).contains("palimpsest"), "{listing:?}");
    });
}

#[test]
fn closed_descriptors_are_survived() {
    play("closed_descriptors_are_survived", || {
        let memory = Memory::apart(32 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().extent(ExtentLen::Bytes(8 * MIB)));
        // As daemons do. Then somebody else gets the numbers. SAFETY: nothing of the scenario uses a descriptor above
        // 2.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        let taken = std::fs::File::open("/dev/null").expect("opened");
        memory.fill(MIB..2 * MIB, 2);
        assert_eq!(freeze(&Options::new()).stopped, None, "what the descriptor would tell is had by copying");
        assert!(memory.is_frozen());
        assert!(memory.holds(0..MIB, 1) && memory.holds(MIB..2 * MIB, 2) && memory.holds(2 * MIB..32 * MIB, 1));
        memory.fill(3 * MIB..4 * MIB, 3);
        freeze(&Options::new());
        assert!(memory.holds(3 * MIB..4 * MIB, 3) && memory.holds(4 * MIB..32 * MIB, 1));
        taken.metadata().expect("still open");
    });
}

#[test]
fn too_few_descriptors_end_a_freeze_early_and_rightly() {
    play("too_few_descriptors_end_a_freeze_early_and_rightly", || {
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        let open = std::fs::read_dir("/proc/self/fd").expect("/proc").count() as u64;
        let limit = Rlimit { current: Some(open + 6), maximum: rustix::process::getrlimit(Resource::Nofile).maximum };
        setrlimit(Resource::Nofile, limit).expect("lowered");
        let report = freeze(&Options::new().extent(ExtentLen::Bytes(2 * MIB)));
        println!("{:?}", report.stopped);
        assert!(memory.holds(0..memory.len, 1));
        memory.fill(0..memory.len, 2);
        assert!(memory.holds(0..memory.len, 2));
        assert_eq!(in_child(|| i32::from(!memory.holds(0..memory.len, 2))), 0);
    });
}

#[test]
fn memory_files_that_fail_half_way_lose_nothing() {
    play("memory_files_that_fail_half_way_lose_nothing", || {
        // Children with a filter each, under which one call of a freeze fails.
        for (name, number, errno) in [
            ("ftruncate", libc::SYS_ftruncate, libc::EFBIG),
            ("pwrite64", libc::SYS_pwrite64, libc::ENOSPC),
            ("pwrite64", libc::SYS_pwrite64, libc::ENOMEM),
            ("mmap", libc::SYS_mmap, libc::ENOMEM),
            ("fcntl", libc::SYS_fcntl, libc::EPERM),
            ("mincore", libc::SYS_mincore, libc::ENOMEM),
            ("ioctl", libc::SYS_ioctl, libc::ENOTTY),
            ("madvise", libc::SYS_madvise, libc::EINVAL),
            ("lseek", libc::SYS_lseek, libc::EINVAL),
        ] {
            // SAFETY: one thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let memory = Memory::apart(16 * MIB);
                memory.fill(0..memory.len, 1);
                // The tables are mapped already.
                let first = freeze(&Options::new().measure(Measure::Nothing));
                assert!(first.stopped.is_none());
                let more = Memory::apart(16 * MIB);
                more.fill(0..more.len, 2);
                memory.fill(4 * MIB..5 * MIB, 3);
                if number == libc::SYS_mmap {
                    // Only for files: the tables of the second freeze are anonymous memory.
                    forbid_if_clear(number, 3, libc::MAP_ANONYMOUS.cast_unsigned(), errno);
                } else {
                    forbid(number, errno);
                }
                let outcome = try_freeze(&Options::new().measure(Measure::Nothing));
                let told = outcome.map_or_else(|error| error.to_string(), |report| format!("{:?}", report.stopped));
                println!("{name} fails with {errno}: {told}");
                assert!(memory.holds(0..4 * MIB, 1) && memory.holds(4 * MIB..5 * MIB, 3), "{name}");
                assert!(memory.holds(5 * MIB..16 * MIB, 1) && more.holds(0..16 * MIB, 2), "{name}");
                memory.fill(0..memory.len, 4);
                assert!(memory.holds(0..memory.len, 4), "{name}");
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            assert_eq!(wait(child), 0, "{name} fails with {errno}");
        }
    });
}

/// Makes a system call fail from now on.
fn forbid(number: i64, errno: i32) {
    forbid_if_clear(number, 0, 0, errno);
}

/// Makes a system call fail from now on if its argument has none of these bits.
fn forbid_if_clear(number: i64, argument: u32, bits: u32, errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // `struct seccomp_data`: the number, the architecture, the instruction pointer, and then the arguments,
    // little-endian.
    let place = 16 + 8 * argument;
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 2, u32::try_from(number).expect("small")),
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, place),
        statement(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, bits),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0);
}

/// Fails on: asking by `mincore`, which guards are not said to need, whether memory is still there: the process ended.
#[test]
fn a_discard_whose_mapping_is_refused_writes_zeros_whatever_a_filter_allows() {
    play("a_discard_whose_mapping_is_refused_writes_zeros_whatever_a_filter_allows", || {
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().measure(Measure::Nothing));
        forbid(libc::SYS_mincore, libc::EPERM);
        forbid(libc::SYS_mmap, libc::ENOMEM);
        // SAFETY: 1. the scenario's own memory, of which it needs nothing back.
        let outcome = unsafe { guard::madvise(memory.at(2 * MIB).addr(), 4 * MIB, libc::MADV_DONTNEED) };
        assert_eq!(outcome, Ok(()));
        assert!(memory.holds(0..2 * MIB, 1) && memory.is_zero(2 * MIB..6 * MIB));
        assert!(memory.holds(6 * MIB..memory.len, 1));
    });
}

#[test]
fn a_filter_that_forbids_memory_files_is_told() {
    play("a_filter_that_forbids_memory_files_is_told", || {
        forbid(libc::SYS_memfd_create, libc::EPERM);
        let error = try_freeze(&Options::new()).expect_err("forbidden");
        assert!(matches!(error, FreezeError::NoMemfd { .. }), "{error}");
    });
}

#[test]
fn children_in_another_pid_namespace_can_still_be_made() {
    play("children_in_another_pid_namespace_can_still_be_made", || {
        if Status::of_this_thread().expect("/proc is mounted").seccomp_filters != Some(0) {
            skip("there is a seccomp filter, which a child tries, and none may be made in that namespace");
        }
        // SAFETY: takes a number.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            skip(&format!("no pid namespace can be made: {}", std::io::Error::last_os_error()));
        }
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        // A child to time forks would be the first of the namespace, which would end with it.
        let report = freeze(&Options::new());
        assert_eq!((report.fork_before, report.fork_after), (None, None));
        assert!(report.notes.iter().any(|note| note.contains("CLONE_NEWPID")), "{report}");
        assert!(memory.is_frozen());
        let first = || i32::from(std::process::id() != 1 || !memory.holds(0..memory.len, 1));
        assert_eq!(in_child(first), 0);
    });
}

#[test]
fn a_filter_in_another_pid_namespace_is_refused() {
    play("a_filter_in_another_pid_namespace_is_refused", || {
        // SAFETY: takes a number.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            skip(&format!("no pid namespace can be made: {}", std::io::Error::last_os_error()));
        }
        common::filter(libc::SYS_get_mempolicy, libc::SECCOMP_RET_KILL_PROCESS);
        // Only a child could try what the filter kills.
        let error = try_freeze(&Options::new()).expect_err("nothing can be tried");
        assert!(matches!(error, FreezeError::NoMemfd { .. }), "{error}");
        // SAFETY: one thread.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(std::process::id() != 1)) };
        }
        assert_eq!(wait(child), 0);
    });
}

#[test]
fn a_kernel_without_the_new_calls_is_served() {
    play("a_kernel_without_the_new_calls_is_served", || {
        // PAGEMAP_SCAN and PROCMAP_QUERY are ioctls.
        forbid(libc::SYS_ioctl, libc::ENOTTY);
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..5 * MIB, 1);
        let report = freeze(&Options::new());
        assert_eq!(report.way, palimpsest_sys::pages::pagemap::ScanWay::Entries);
        assert!(memory.holds(0..5 * MIB, 1) && memory.is_zero(5 * MIB..memory.len));
        let start = memory.at(MIB).addr();
        // SAFETY: the scenario's own memory.
        let done = unsafe { guard::madvise(start, MIB, libc::MADV_DONTNEED) };
        assert_eq!(done, Ok(()));
        assert!(memory.is_zero(MIB..2 * MIB) && memory.holds(2 * MIB..5 * MIB, 1));
    });
}

#[test]
fn a_killed_freezer_hurts_nobody_else() {
    play("a_killed_freezer_hurts_nobody_else", || {
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        for round in 0..40_u64 {
            // SAFETY: one thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                memory.fill(0..memory.len, 2);
                let more = Memory::apart(64 * MIB);
                more.fill(0..more.len, 3);
                loop {
                    let _ = try_freeze(&Options::new().measure(Measure::Nothing));
                    memory.fill(0..memory.len, 4);
                }
            }
            // Somewhere in what takes the child a few hundred milliseconds.
            std::thread::sleep(Duration::from_micros(round * 3_700 % 150_000));
            // SAFETY: the scenario's own child.
            unsafe { libc::kill(child, libc::SIGKILL) };
            assert_eq!(wait(child), 1000 + libc::SIGKILL);
            assert!(memory.holds(0..memory.len, 1), "round {round}");
        }
    });
}

#[test]
fn h01_the_c_librarys_own_trimming_leaves_zeros() {
    play("h01_the_c_librarys_own_trimming_leaves_zeros", || {
        const BLOCK: usize = 100 << 10;
        const BLOCKS: usize = 300;
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel::<usize>();
        // A thread has an arena of its own, which the C library trims with a call that nobody can interpose.
        let thread = std::thread::spawn(move || {
            let allocate = || {
                // SAFETY: any length is allowed.
                let block = unsafe { libc::calloc(1, BLOCK) };
                assert!(!block.is_null());
                block.cast::<u8>()
            };
            let blocks: Vec<_> = (0..BLOCKS).map(|_| allocate()).collect();
            for block in &blocks {
                // SAFETY: a block of this length.
                unsafe { block.write_bytes(0xAA, BLOCK) };
            }
            tell.send(blocks[0].addr()).expect("heard");
            asked.recv().expect("asked");
            for block in blocks.into_iter().rev() {
                // SAFETY: allocated above, freed once.
                unsafe { libc::free(block.cast()) };
            }
            let dirty = (0..BLOCKS).map(|_| allocate()).filter(|block| {
                // SAFETY: a block of this length, which calloc has initialised.
                unsafe { std::slice::from_raw_parts(*block, BLOCK) }.iter().any(|byte| *byte != 0)
            });
            tell.send(dirty.count()).expect("heard");
        });
        let block = told.recv().expect("told");
        freeze(&Options::new().other_threads(OtherThreads::Stop));
        let maps = palimpsest_sys::pages::maps::Maps::read().expect("/proc");
        let name = maps.at(block).and_then(|entry| entry.path.clone());
        assert!(
            name.is_some_and(|name| name.as_os_str() == palimpsest_sys::memory::extent::EXTENT_NAME),
            "the arena is frozen"
        );
        ask.send(()).expect("waiting");
        assert_eq!(told.recv().expect("told"), 0, "blocks from calloc that are not zero");
        thread.join().expect("alive");
    });
}

/// The limit on the size of files that the handler has found.
static FOUND: AtomicU64 = AtomicU64::new(0);

extern "C" fn find_limit(_signal: i32) {
    let limit = rustix::process::getrlimit(Resource::Fsize).current;
    FOUND.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Fails on: a limit that is raised while a handler may run, whose children would keep it.
#[test]
fn no_handler_sees_a_limit_that_a_slice_has_raised() {
    play("no_handler_sees_a_limit_that_a_slice_has_raised", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        let most = rustix::process::getrlimit(Resource::Fsize).maximum;
        let low = Rlimit { current: Some(64 << 10), maximum: most };
        setrlimit(Resource::Fsize, low).expect("lowered");
        // SAFETY: the handler makes a system call.
        unsafe { libc::signal(libc::SIGUSR1, find_limit as extern "C" fn(i32) as usize) };
        freeze(&Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO)));
        let raise = &mut || {
            // SAFETY: blocked until the slice is over.
            unsafe { libc::raise(libc::SIGUSR1) };
            false
        };
        // SAFETY: 1. the scenario keeps the contract. 2. it makes system calls that do not wait.
        let progress = unsafe { palimpsest_fork::freeze_while(raise) }.expect("a slice");
        assert!(progress.frozen_bytes > 0, "{progress:?}");
        assert_eq!(FOUND.load(Ordering::Relaxed), 64 << 10);
    });
}
