//! Packs in hostile environments: each works by a fallback that it reports, or fails with an error that names the cause
//! and the way out. None may end the process.
//!
//! Every scenario runs in a child process, which restricts itself before it uses packs.

#![cfg(feature = "std")]

mod arch;
mod child;
mod exercise;
mod fork;
mod limits;
mod poking;
mod seccomp;
mod signals;
mod writing;

use child::{World, play, skip};
use exercise::{assert_tells, chain, doctor_agrees, exercise, refusals};
use limits::Ballast;
use palimpsest_sys::capabilities::Capabilities;
use palimpsest_sys::proc::sysctl;
use palimpsest_sys::{CoreSync, HUGE_PAGE, SyncPath};
use palimpsest_text::{Backing, Packs, Program};
use seccomp::Answer;

const MIB: u64 = 1 << 20;

/// Returns the best backing without transparent huge pages.
fn best_without_collapse() -> Backing {
    match sysctl::free_huge_pages_2_mib() {
        Ok(1..) => Backing::HugetlbMemfd,
        _ => Backing::SmallMemfd,
    }
}

/// Returns why cores are synchronised by signals, as a user reads it.
fn why_no_membarrier() -> String {
    let sync = CoreSync::new().expect("signals work");
    chain(sync.refused().expect("membarrier is refused"))
}

/// Opens packs, checks the backing, and uses them.
fn works_with(backing: Backing) -> Packs {
    let packs = Packs::new().unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(packs.backing(), backing, "{}", refusals(&packs));
    doctor_agrees(&packs);
    exercise(&packs);
    packs
}

#[test]
fn a_friendly_environment() {
    play("a_friendly_environment", World::Same, || {
        let packs = works_with(Backing::CollapsedMemfd);
        assert!(packs.refused().is_empty(), "{}", refusals(&packs));
    });
}

#[test]
fn a_small_file_size_limit() {
    play("a_small_file_size_limit", World::Same, || {
        limits::set(libc::RLIMIT_FSIZE, MIB);
        let packs = works_with(Backing::ProcMem);
        assert_tells(&refusals(&packs), &["collapsed-memfd", "small-memfd", "RLIMIT_FSIZE", "1048576", "ulimit -f"]);
    });
}

#[test]
fn no_file_size_at_all() {
    play("no_file_size_at_all", World::Same, || {
        limits::set(libc::RLIMIT_FSIZE, 0);
        let packs = works_with(Backing::ProcMem);
        assert_tells(&refusals(&packs), &["RLIMIT_FSIZE", "ulimit -f"]);
    });
}

#[test]
fn a_small_address_space() {
    play("a_small_address_space", World::Same, || {
        limits::set(libc::RLIMIT_AS, limits::address_space_in_use() + 256 * MIB);
        match Packs::new() {
            Ok(packs) => {
                println!("a region of {} MiB", packs.region().len() >> 20);
                exercise(&packs);
            }
            Err(error) => assert_tells(&chain(&error), &["RLIMIT_AS", "ulimit -v"]),
        }
        let small = Packs::builder().region_len(64 << 20).open().expect("64 MiB fit");
        exercise(&small);
    });
}

#[test]
fn no_address_space_left() {
    play("no_address_space_left", World::Same, || {
        limits::set(libc::RLIMIT_AS, limits::address_space_in_use() + MIB);
        let error = Packs::new().expect_err("not even one pack fits");
        assert_tells(&chain(&error), &["RLIMIT_AS", "ulimit -v"]);
    });
}

#[test]
fn memory_deny_write_execute() {
    play("memory_deny_write_execute", World::Same, || {
        const REFUSE_EXEC_GAIN: usize = 1;
        if let Err(error) = limits::prctl(libc::PR_SET_MDWE, REFUSE_EXEC_GAIN) {
            skip(&format!("this kernel has no PR_SET_MDWE: {error}"));
        }
        works_with(Backing::CollapsedMemfd);
        exercise(&Packs::builder().backing(Backing::ProcMem).open().expect("it needs no writable code either"));
    });
}

fn membarrier_is(name: &str, answer: Answer, told: &'static str) {
    play(name, World::Same, || {
        seccomp::forbid(libc::SYS_membarrier, answer);
        let packs = works_with(Backing::CollapsedMemfd);
        assert_eq!(packs.sync_path(), SyncPath::Signals);
        assert_tells(&why_no_membarrier(), &["membarrier", "allow", told]);
    });
}

#[test]
fn membarrier_is_not_permitted() {
    membarrier_is("membarrier_is_not_permitted", Answer::Errno(libc::EPERM), "seccomp");
}

#[test]
fn membarrier_is_not_implemented() {
    membarrier_is("membarrier_is_not_implemented", Answer::Errno(libc::ENOSYS), "seccomp");
}

#[test]
fn membarrier_is_deadly() {
    membarrier_is("membarrier_is_deadly", Answer::Kill, "signal 31");
}

#[test]
fn membarrier_traps() {
    membarrier_is("membarrier_traps", Answer::Trap, "signal 31");
}

/// Fails on: packs that reclaim nothing, or on AArch64 load nothing, once a sandbox is entered.
#[test]
fn membarrier_begins_to_fail() {
    play("membarrier_begins_to_fail", World::Same, || {
        let packs = works_with(Backing::CollapsedMemfd);
        let program = exercise::load(&packs, 1);
        seccomp::forbid(libc::SYS_membarrier, Answer::Errno(libc::EPERM));
        drop(program);
        let reclaimed = packs.reclaim().unwrap_or_else(|error| panic!("{}", chain(&error)));
        assert_eq!(reclaimed.programs, 1);
        exercise(&packs);
        assert_tells(&chain(packs.sync_refused().expect("it is told")), &["membarrier", "seccomp", "not permitted"]);
    });
}

fn memfd_create_is(name: &str, answer: Answer, told: &'static str) {
    play(name, World::Same, || {
        seccomp::forbid(libc::SYS_memfd_create, answer);
        let packs = works_with(Backing::ProcMem);
        assert_tells(&refusals(&packs), &["collapsed-memfd", "memfd_create", "allow", told]);
        for backing in [Backing::CollapsedMemfd, Backing::SmallMemfd] {
            let error = Packs::builder().backing(backing).open().expect_err("it was forced");
            assert_tells(&chain(&error), &["memfd_create", "allow", told]);
        }
    });
}

#[test]
fn memfd_create_is_not_permitted() {
    memfd_create_is("memfd_create_is_not_permitted", Answer::Errno(libc::EPERM), "not permitted");
}

#[test]
fn memfd_create_is_not_implemented() {
    memfd_create_is("memfd_create_is_not_implemented", Answer::Errno(libc::ENOSYS), "not implemented");
}

#[test]
fn memfd_create_is_deadly() {
    memfd_create_is("memfd_create_is_deadly", Answer::Kill, "signal 31");
}

#[test]
fn memfd_create_traps() {
    memfd_create_is("memfd_create_traps", Answer::Trap, "signal 31");
}

#[test]
fn memfds_and_membarrier_are_deadly() {
    play("memfds_and_membarrier_are_deadly", World::Same, || {
        seccomp::forbid(libc::SYS_memfd_create, Answer::Kill);
        seccomp::forbid(libc::SYS_membarrier, Answer::Kill);
        let packs = works_with(Backing::ProcMem);
        assert_eq!(packs.sync_path(), SyncPath::Signals);
    });
}

fn memfd_noexec() -> String {
    std::fs::read_to_string("/proc/sys/vm/memfd_noexec").expect("it was just written").trim().to_owned()
}

#[test]
fn memfds_are_not_executable_by_default() {
    let world = World::PidNamespace("echo 1 > /proc/sys/vm/memfd_noexec");
    play("memfds_are_not_executable_by_default", world, || {
        assert_eq!(memfd_noexec(), "1");
        works_with(Backing::CollapsedMemfd);
    });
}

#[test]
fn memfds_are_never_executable() {
    let world = World::PidNamespace("echo 2 > /proc/sys/vm/memfd_noexec");
    play("memfds_are_never_executable", world, || {
        assert_eq!(memfd_noexec(), "2");
        works_with(Backing::CollapsedMemfd);
    });
}

#[test]
fn memfds_with_an_executable_flag_are_refused() {
    // Does what vm.memfd_noexec=2 does, for users who may not set it.
    play("memfds_with_an_executable_flag_are_refused", World::Same, || {
        seccomp::forbid_memfd_flags(libc::MFD_EXEC, Answer::Errno(libc::EACCES));
        works_with(Backing::CollapsedMemfd);
    });
}

#[test]
fn kernels_that_know_no_executable_flags() {
    play("kernels_that_know_no_executable_flags", World::Same, || {
        seccomp::forbid_memfd_flags(libc::MFD_EXEC | libc::MFD_NOEXEC_SEAL, Answer::Errno(libc::EINVAL));
        works_with(Backing::CollapsedMemfd);
    });
}

#[test]
fn transparent_huge_pages_are_disabled() {
    play("transparent_huge_pages_are_disabled", World::Same, || {
        limits::prctl(libc::PR_SET_THP_DISABLE, 1).expect("always allowed");
        let packs = works_with(best_without_collapse());
        assert_tells(&refusals(&packs), &["collapsed-memfd", "PR_SET_THP_DISABLE"]);
    });
}

#[test]
fn there_is_no_proc() {
    play("there_is_no_proc", World::MountNamespace("mount -t tmpfs none /proc"), || {
        assert!(sysctl::max_map_count().expect_err("/proc is empty").is_absent());
        works_with(Backing::CollapsedMemfd);
        let error = Packs::builder().backing(Backing::ProcMem).open().expect_err("there is no /proc/self/mem");
        assert_tells(&chain(&error), &["/proc/self/mem", "mounted"]);
    });
}

#[test]
fn there_is_neither_proc_nor_membarrier() {
    play("there_is_neither_proc_nor_membarrier", World::MountNamespace("mount -t tmpfs none /proc"), || {
        seccomp::forbid(libc::SYS_membarrier, Answer::Kill);
        let error = Packs::new().expect_err("no thread can be reached");
        assert_tells(&chain(&error), &["/proc", "membarrier"]);
    });
}

#[test]
fn proc_is_that_of_another_pid_namespace() {
    play("proc_is_that_of_another_pid_namespace", World::PidNamespaceOnly, || {
        works_with(Backing::CollapsedMemfd);
        seccomp::forbid(libc::SYS_membarrier, Answer::Errno(libc::EPERM));
        let error = CoreSync::new().expect_err("no thread can be reached");
        assert_tells(&chain(&error), &["another PID namespace", "--mount-proc", "membarrier"]);
    });
}

#[test]
fn there_is_no_proc_and_children_are_elsewhere() {
    let world = World::MountNamespace("mount -t tmpfs none /proc");
    play("there_is_no_proc_and_children_are_elsewhere", world, || {
        // SAFETY: takes a number; concerns children that are made later.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
        let error = Packs::new().expect_err("neither is a memfd safe to try, nor is there /proc/self/mem");
        assert_tells(&chain(&error), &["CLONE_NEWPID", "/proc"]);
        // Nobody has been the first process of the namespace yet, whose end would be the end of all children.
        let mut children =
            [(); 2].map(|()| std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn());
        assert!(children.iter().all(Result::is_ok), "{children:?}");
        children.iter_mut().rev().flatten().for_each(|child| drop(child.kill().and_then(|()| child.wait())));
    });
}

#[test]
fn there_are_neither_proc_nor_memfds() {
    play("there_are_neither_proc_nor_memfds", World::MountNamespace("mount -t tmpfs none /proc"), || {
        seccomp::forbid(libc::SYS_memfd_create, Answer::Errno(libc::EPERM));
        let error = Packs::new().expect_err("code can be written by no way");
        assert_tells(&chain(&error), &["/proc", "memfd_create"]);
    });
}

/// The only number of mappings to leave, where filling up all others takes long.
const LEFT: &str = "PALIMPSEST_MAPPINGS_LEFT";

fn mappings_are_left(name: &str, left: usize) {
    const TOLD: [&str; 2] = ["vm.max_map_count", "sysctl -w"];
    if std::env::var(LEFT).is_ok_and(|only| only != left.to_string()) {
        return println!("skipped: {LEFT} has another number");
    }
    play(name, World::Same, || {
        let ballast = Ballast::leaving(left);
        println!("the doctor says {:?}", Capabilities::probe().features());
        let packs = match Packs::new() {
            Ok(packs) => packs,
            Err(error) => {
                assert_tells(&chain(&error), &TOLD);
                drop(ballast);
                return exercise(&Packs::new().expect("there are mappings again"));
            }
        };
        let mut programs = fill_until_refused(&packs, &TOLD);
        programs.pop();
        // Watching for forks again takes a mapping.
        if let Err(error) = packs.reclaim() {
            assert_tells(&chain(&error), &TOLD);
        }
        drop(ballast);
        packs.reclaim().expect("there are mappings again");
        exercise(&packs);
    });
}

#[test]
fn two_mappings_are_left() {
    mappings_are_left("two_mappings_are_left", 2);
}

#[test]
fn ten_mappings_are_left() {
    mappings_are_left("ten_mappings_are_left", 10);
}

#[test]
fn thirty_mappings_are_left() {
    mappings_are_left("thirty_mappings_are_left", 30);
}

/// Loads programs of half a pack until one is refused, and checks that the others still run.
fn fill_until_refused(packs: &Packs, told: &[&str]) -> Vec<Program> {
    let mut programs = Vec::new();
    let error = loop {
        let mut code = arch::return_number(programs.len() as u16);
        code.resize(HUGE_PAGE / 2 - 4096, 0);
        match packs.load(&code, 16) {
            Ok(program) => programs.push(program),
            Err(error) => break error,
        }
    };
    println!("{} programs were loaded", programs.len());
    assert_tells(&chain(&error), told);
    for (number, program) in programs.iter().enumerate() {
        assert_eq!(usize::from(exercise::run(program)), number);
    }
    programs
}

#[test]
fn a_region_is_full() {
    play("a_region_is_full", World::Same, || {
        let packs = Packs::builder().region_len(8 << 20).open().expect("8 MiB are enough for four packs");
        let mut programs = fill_until_refused(&packs, &["8388608", "region_len"]);
        assert_eq!(programs.len(), 8);
        programs.pop();
        exercise(&packs);
        drop(programs);
        exercise(&packs);
    });
}

#[test]
fn every_backing_can_be_forced() {
    play("every_backing_can_be_forced", World::Same, || {
        for backing in [Backing::CollapsedMemfd, Backing::SmallMemfd, Backing::ProcMem] {
            let packs = Packs::builder().backing(backing).open().unwrap_or_else(|error| panic!("{}", chain(&error)));
            assert_eq!(packs.backing(), backing);
            exercise(&packs);
        }
        match Packs::builder().backing(Backing::HugetlbMemfd).open() {
            Ok(packs) => exercise(&packs),
            Err(error) => assert_tells(&chain(&error), &["nr_hugepages"]),
        }
    });
}

#[test]
fn no_child_can_be_made_to_try_in() {
    play("no_child_can_be_made_to_try_in", World::Same, || {
        seccomp::forbid(libc::SYS_clone, Answer::Errno(libc::EPERM));
        let packs = works_with(Backing::ProcMem);
        assert_eq!(packs.sync_path(), SyncPath::Signals);
        assert_tells(&refusals(&packs), &["memfd_create could be deadly", "no child process"]);
        assert_tells(&why_no_membarrier(), &["membarrier could be deadly", "no child process"]);
    });
}

#[test]
fn children_for_trying_are_not_noticed() {
    play("children_for_trying_are_not_noticed", World::Same, || {
        signals::count_dead_children();
        seccomp::forbid(libc::SYS_membarrier, Answer::Kill);
        works_with(Backing::CollapsedMemfd);
        assert_eq!(signals::dead_children(), 0);
    });
}

#[test]
fn a_thread_blocks_all_signals() {
    play("a_thread_blocks_all_signals", World::Same, || {
        seccomp::forbid(libc::SYS_membarrier, Answer::Errno(libc::EPERM));
        let packs = works_with(Backing::CollapsedMemfd);
        let program = exercise::load(&packs, 1);
        let (dropped, error) = signals::while_a_thread_blocks_all(|| match exercise::try_load(&packs, 2) {
            Ok(program) => {
                drop(program);
                (1, chain(&packs.reclaim().expect_err("that thread might be inside")))
            }
            // If loading itself takes a core synchronisation.
            Err(error) => (0, chain(&error)),
        });
        assert_tells(&error, &["blocks signal", "unblock it", "membarrier"]);
        assert_eq!(exercise::run(&program), 1);
        let reclaimed = packs.reclaim().expect("the thread has ended");
        assert_eq!(reclaimed.programs, dropped);
        exercise(&packs);
    });
}

#[test]
fn no_descriptor_is_left() {
    play("no_descriptor_is_left", World::Same, || {
        limits::set(libc::RLIMIT_NOFILE, 3);
        let error = Packs::new().expect_err("neither a memfd nor /proc/self/mem can be opened");
        assert_tells(&chain(&error), &["Too many open files"]);
    });
}

#[test]
fn proc_mem_is_closed_to_an_undumpable_user() {
    play("proc_mem_is_closed_to_an_undumpable_user", World::Same, || {
        limits::become_nobody();
        limits::prctl(libc::PR_SET_DUMPABLE, 0).expect("always allowed");
        works_with(Backing::CollapsedMemfd);
        let error = Packs::builder().backing(Backing::ProcMem).open().expect_err("/proc/self/mem is root's");
        assert_tells(&chain(&error), &["/proc/self/mem", "Permission denied"]);
    });
}

#[test]
fn all_future_memory_is_locked() {
    play("all_future_memory_is_locked", World::Same, || {
        limits::set(libc::RLIMIT_MEMLOCK, 4 * MIB);
        limits::become_nobody();
        limits::lock_future_memory();
        match Packs::new() {
            Ok(packs) => exercise(&packs),
            Err(error) => assert_tells(&chain(&error), &["RLIMIT_MEMLOCK", "ulimit -l"]),
        }
    });
}

#[test]
fn forks_while_loading() {
    play("forks_while_loading", World::Same, || {
        for backing in [Backing::CollapsedMemfd, Backing::SmallMemfd, Backing::ProcMem] {
            println!("forks on {backing}");
            fork::forks_while_loading(&Packs::builder().backing(backing).open().expect("a friendly environment"));
        }
    });
}

#[test]
fn forks_while_loading_without_membarrier() {
    play("forks_while_loading_without_membarrier", World::Same, || {
        seccomp::forbid(libc::SYS_membarrier, Answer::Errno(libc::ENOSYS));
        fork::forks_while_loading(&Packs::new().expect("signals work"));
    });
}

#[test]
fn reclaiming_takes_no_further_descriptor() {
    play("reclaiming_takes_no_further_descriptor", World::Same, || {
        let packs = works_with(Backing::CollapsedMemfd);
        limits::use_all_descriptors();
        for number in 0..10 {
            drop(exercise::load(&packs, number));
            let reclaimed = packs.reclaim().unwrap_or_else(|error| panic!("round {number}: {}", chain(&error)));
            assert_eq!(reclaimed.programs, 1);
        }
    });
}

#[test]
fn a_place_that_cannot_be_filled_with_traps_is_not_used_again() {
    play("a_place_that_cannot_be_filled_with_traps_is_not_used_again", World::Same, || {
        let packs =
            Packs::builder().backing(Backing::ProcMem).open().unwrap_or_else(|error| panic!("{}", chain(&error)));
        let program = exercise::load(&packs, 1);
        seccomp::forbid(libc::SYS_pwrite64, Answer::Errno(libc::EPERM));
        let used = packs.stats().used_bytes;
        let staged = packs.stage(64, 64).expect("there is room");
        let address = staged.address();
        let error = staged.finalize().expect_err("nothing can be written");
        assert_tells(&chain(&error), &["could not be written", "not permitted"]);
        assert_ne!(packs.stage(64, 64).expect("there is room").address(), address);
        assert_eq!(packs.stats().used_bytes, used + 64, "one chunk is lost");
        assert_eq!(exercise::run(&program), 1);
        // Reclaiming also keeps what it cannot fill.
        drop(program);
        assert_tells(&chain(&packs.reclaim().expect_err("nothing can be written")), &["traps"]);
        assert_eq!(packs.stats().programs, 1);
    });
}
