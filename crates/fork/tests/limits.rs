//! Freezing, and what comes after it, where memory, address space or mappings are short.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Files, Memory, freeze, in_child, page, play, skip, status_kb, wait};
use palimpsest_fork::guard::{self, Remap};
use palimpsest_fork::{
    ExtentLen, FreezeError, Measure, Options, Pause, Stage, freeze as freeze_process, freeze_slice, progress,
};
use palimpsest_sys::memory::extent::EXTENT_NAME;
use palimpsest_sys::pages::maps::Maps;
use palimpsest_sys::pages::vmas::{Detail, Vmas};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: usize = 1 << 20;

/// Tries to freeze.
fn try_freeze(options: &Options) -> Result<palimpsest_fork::Report, FreezeError> {
    // SAFETY: the scenario is alone in its process.
    unsafe { freeze_process(options) }
}

fn is_frozen(address: usize) -> bool {
    let maps = Maps::read().expect("/proc");
    maps.at(address).expect("mapped").path.as_ref().is_some_and(|path| path.as_os_str() == EXTENT_NAME)
}

/// Bytes of memory that are this process's own pages.
fn anonymous(memory: &Memory) -> usize {
    let mut vmas = Vmas::with_capacity(10_000).expect("memory");
    vmas.read(Detail::Figures).expect("/proc");
    vmas.iter().filter(|vma| memory.range().contains(&vma.start)).map(|vma| vma.anonymous).sum()
}

/// Makes the kernel refuse every `mmap` at `address`.
fn refuse_mappings_at(address: usize) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).expect("16 bits"), jt, jf, k };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let equal = |value, jf| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, jf, value);
    let end = |value| statement(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // `struct seccomp_data`: the number at 0, the first argument at 16, as two words.
    let (low, high) = (address as u32, (address >> 32) as u32);
    let (first, second) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
    let mut program = [
        load(0),
        equal(libc::SYS_mmap as u32, 5),
        load(16),
        equal(first, 3),
        load(20),
        equal(second, 1),
        end(libc::SECCOMP_RET_ERRNO | libc::ENOMEM.cast_unsigned()),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0);
}

#[test]
fn a_repair_goes_on_after_a_piece_that_it_cannot_replace() {
    play("a_repair_goes_on_after_a_piece_that_it_cannot_replace", || {
        let memory: Vec<_> = (0..3).map(|_| Memory::apart(8 * MIB)).collect();
        memory.iter().for_each(|memory| memory.fill(0..memory.len, 1));
        let options = Options::new().extent(ExtentLen::Bytes(8 * MIB)).measure(Measure::Nothing);
        freeze(&options);
        // In each the second and the fourth piece as a whole.
        let write = |memory: &Memory| {
            memory.fill(2 * MIB..4 * MIB, 2);
            memory.fill(6 * MIB..8 * MIB, 2);
        };
        memory.iter().for_each(write);
        refuse_mappings_at(memory[0].at(2 * MIB).addr());
        let report = freeze(&options);
        assert!(report.stopped.as_ref().is_some_and(|reason| reason.contains("cannot map")), "{report}");
        assert_eq!(anonymous(&memory[0]), 2 * MIB, "the one piece");
        assert_eq!((anonymous(&memory[1]), anonymous(&memory[2])), (0, 0));
        for memory in &memory {
            assert!(memory.is_frozen());
            assert!(memory.holds(0..2 * MIB, 1) && memory.holds(2 * MIB..4 * MIB, 2));
            assert!(memory.holds(4 * MIB..6 * MIB, 1) && memory.holds(6 * MIB..8 * MIB, 2));
        }
    });
}

#[test]
fn a_child_of_a_frozen_gibibyte_has_page_tables_of_72_kib_at_most() {
    play("a_child_of_a_frozen_gibibyte_has_page_tables_of_72_kib_at_most", || {
        let available = fs::read_to_string("/proc/meminfo").expect("/proc");
        let available =
            available.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
        if available.and_then(|kib| kib.trim().parse::<usize>().ok()).is_some_and(|kib| kib < 3 << 20) {
            skip("there are not 3 GiB of memory");
        }
        let memory = Memory::apart(1 << 30);
        // SAFETY: the scenario's own memory.
        if unsafe { libc::madvise(memory.at(0), memory.len, libc::MADV_POPULATE_WRITE) } != 0 {
            memory.fill(0..memory.len, 1);
        }
        // Every page with contents of its own, and every mapping in use in the parent.
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().measure(Measure::Nothing));
        assert!(memory.holds(0..memory.len, 1));
        assert!(status_kb("VmPTE") > 2048, "the parent has looked at everything");
        assert_eq!(in_child(|| i32::try_from(status_kb("VmPTE")).unwrap_or(255).min(255)).max(72), 72, "kB");
    });
}

#[test]
fn without_address_space_nothing_is_frozen_and_guards_answer_as_the_kernel() {
    play("without_address_space_nothing_is_frozen_and_guards_answer_as_the_kernel", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        assert!(memory.is_frozen());
        let more = Memory::apart(16 * MIB);
        more.fill(0..more.len, 2);
        memory.fill(0..MIB, 3);
        // As `vm.overcommit_memory=2` would, but for this process only: no new address space; replacing what is there
        // is allowed.
        let before = getrlimit(Resource::As);
        let now = (status_kb("VmSize") as u64 + 256) << 10;
        setrlimit(Resource::As, Rlimit { current: Some(now), ..before }).expect("a soft limit can be lowered");
        let error = try_freeze(&Options::new()).expect_err("there is no room for tables");
        assert!(matches!(error, FreezeError::Tables(_) | FreezeError::NotStopped(_)), "{error}");
        assert!(memory.is_frozen() && !is_frozen(more.at(0).addr()));
        // SAFETY: the scenario's own memory.
        let done = unsafe { guard::madvise(memory.at(4 * MIB).addr(), MIB, libc::MADV_DONTNEED) };
        assert_eq!(done, Ok(()));
        let grow = |flags| Remap {
            address: memory.at(0).addr(),
            len: memory.len,
            new_len: memory.len * 2,
            flags,
            new_address: 0,
        };
        for flags in [0, libc::MREMAP_MAYMOVE] {
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { guard::mremap(grow(flags)) }, Err(Errno::NOMEM));
        }
        let holds = || {
            memory.holds(0..MIB, 3)
                && memory.holds(MIB..4 * MIB, 1)
                && memory.is_zero(4 * MIB..5 * MIB)
                && memory.holds(5 * MIB..memory.len, 1)
                && more.holds(0..more.len, 2)
        };
        assert!(holds());
        assert_eq!(in_child(|| i32::from(!holds())), 0);
        setrlimit(Resource::As, before).expect("back");
        freeze(&Options::new());
        assert!(holds() && more.is_frozen());
    });
}

/// A cgroup of this test's own, with a memory limit.
struct Group(PathBuf);

impl Group {
    /// Makes one, if possible, and moves this process into it.
    fn enter(limit: usize) -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        // Version 1 has a hierarchy for memory, version 2 one for everything.
        let first =
            own.lines().find_map(|line| Some((line.split_once(":memory:")?.1, "memory", "memory.limit_in_bytes")));
        let second = own.lines().find_map(|line| Some((line.strip_prefix("0::")?, "", "memory.max")));
        let (path, hierarchy, file) = first.or(second).ok_or("no cgroup")?;
        let parent = Path::new("/sys/fs/cgroup").join(hierarchy).join(path.trim_start_matches('/'));
        let parent = if parent.is_dir() { parent } else { Path::new("/sys/fs/cgroup").join(hierarchy) };
        let group = Self(parent.join(format!("palimpsest-{}", std::process::id())));
        let told = |what: &str, error: std::io::Error| format!("{what} {}: {error}", group.0.display());
        fs::create_dir(&group.0).map_err(|error| told("cannot make", error))?;
        fs::write(group.0.join(file), limit.to_string()).map_err(|error| told("no memory controller in", error))?;
        fs::write(group.0.join("cgroup.procs"), "0").map_err(|error| told("cannot enter", error))?;
        Ok(group)
    }
}

#[test]
fn a_limit_of_memory_a_little_above_what_is_used_suffices() {
    play("a_limit_of_memory_a_little_above_what_is_used_suffices", || {
        let (told, teller) = std::io::pipe().expect("a pipe");
        // SAFETY: one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // 128 MiB; copying everything first would need twice as much.
            if let Err(reason) = Group::enter(160 * MIB) {
                let _ = std::io::Write::write_all(&mut &teller, reason.as_bytes());
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            let memory = Memory::apart(128 * MIB);
            memory.fill(0..memory.len, 1);
            let report = freeze(&Options::new().measure(Measure::Nothing));
            assert!(report.stopped.is_none() && memory.is_frozen() && report.peak_extra <= 2 * MIB, "{report}");
            // What is frozen again takes the place of what it replaces.
            for round in 2..6 {
                memory.fill(32 * MIB..48 * MIB, round);
                assert_eq!(freeze(&Options::new().measure(Measure::Nothing)).stopped, None);
            }
            let holds = memory.holds(0..32 * MIB, 1) && memory.holds(32 * MIB..48 * MIB, 5);
            let status = in_child(|| i32::from(!memory.holds(48 * MIB..memory.len, 1)));
            // SAFETY: ends the child.
            unsafe { libc::_exit(if holds { status } else { 1 }) };
        }
        let status = wait(child);
        drop(teller);
        for folder in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
            remove_groups(Path::new(folder), &format!("palimpsest-{child}"));
        }
        let reason = std::io::read_to_string(told).expect("readable");
        if !reason.is_empty() {
            skip(&reason);
        }
        assert_eq!(status, 0, "1009 is the kernel's, for lack of memory");
    });
}

/// Removes the groups of this name below `folder`.
fn remove_groups(folder: &Path, name: &str) {
    let _ = fs::remove_dir(folder.join(name));
    let folders = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    folders.filter(|path| path.is_dir()).for_each(|path| remove_groups(&path, name));
}

#[test]
fn swapped_pages_are_frozen_and_repaired() {
    play("swapped_pages_are_frozen_and_repaired", || {
        if fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() < 2) {
            skip("there is no swap");
        }
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        let page_out = || {
            // SAFETY: changes no contents.
            unsafe { libc::madvise(memory.at(0), memory.len, libc::MADV_PAGEOUT) };
        };
        page_out();
        freeze(&Options::new().measure(Measure::Nothing));
        memory.fill(4 * MIB..8 * MIB, 2);
        page_out();
        freeze(&Options::new().measure(Measure::Nothing));
        assert!(memory.holds(0..4 * MIB, 1) && memory.holds(4 * MIB..8 * MIB, 2) && memory.holds(8 * MIB..16 * MIB, 1));
        memory.set(9 * MIB + page(), 0);
        assert_eq!(in_child(|| i32::from(!memory.holds(10 * MIB..16 * MIB, 1))), 0);
    });
}

#[test]
fn files_of_which_little_is_left_are_given_up() {
    play("files_of_which_little_is_left_are_given_up", || {
        const PIECE: usize = 2 * MIB;
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        let options = Options::new().extent(ExtentLen::Bytes(64 * MIB)).measure(Measure::Nothing);
        freeze(&options);
        let mut files = Files::default();
        let mut look = || files.look(|_| true);
        let other = look() - memory.len;
        let (mut most, mut last) = (0, 0);
        // Each time one piece fewer is written, so that every file keeps one.
        for first in 1..24_usize {
            memory.fill(first * PIECE..memory.len, first as u64 + 1);
            freeze(&options);
            most = most.max(look());
            // What is written in every round is left alone.
            freeze(&options);
            look();
            freeze(&options);
            last = look();
        }
        println!("{} kB at most for {} kB", most >> 10, (memory.len + other) >> 10);
        assert!(most <= 3 * (memory.len + other), "{most} bytes");
        assert!(last <= 2 * (memory.len + other), "{last} bytes at last");
        for first in 1..23_usize {
            assert!(memory.holds(first * PIECE..(first + 1) * PIECE, first as u64 + 1), "piece {first}");
        }
        assert!(memory.is_frozen() && memory.holds(0..PIECE, 1) && memory.holds(23 * PIECE..memory.len, 24));
    });
}

/// Fails on: slices that are tried for ever, and told as if another thread were at work; forks that try for ever.
#[test]
fn slices_without_memory_for_a_stack_are_refused_and_end() {
    play("slices_without_memory_for_a_stack_are_refused_and_end", || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        let options = Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO));
        for at_forks in [false, true] {
            let mut report = freeze(&options);
            let before = getrlimit(Resource::As);
            let size = u64::try_from(status_kb("VmSize") * 1024).expect("64 bits");
            setrlimit(Resource::As, Rlimit { current: Some(size), ..before }).expect("lowered");
            let try_one = || match at_forks {
                true => in_child(|| 0) == 0,
                // SAFETY: 1. the scenario keeps the contract of freezing.
                false => matches!(unsafe { freeze_slice() }, Err(FreezeError::NoStack)),
            };
            let tried = (0..63).filter(|_| try_one()).count();
            let under_way = progress().stage;
            let last = try_one();
            setrlimit(Resource::As, before).expect("raised again");
            assert_eq!((tried, under_way, last, progress().stage), (63, Stage::UnderWay, true, Stage::Ended));
            report.update();
            assert!(report.stopped.as_ref().is_some_and(|reason| reason.contains("stack")), "{report}");
        }
        assert!(memory.is_anonymous() && memory.holds(0..memory.len, 1));
    });
}
