//! Runs scenarios in child processes, since a freeze rewrites the process it happens in: this test binary is started
//! again and told which scenario to play.

#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses a part, so that an expectation would fail in some"
)]

pub(crate) mod deeds;
pub(crate) mod gathering;
pub(crate) mod guarded;
pub(crate) mod kernels;
pub(crate) mod notified;
pub(crate) mod traced;
pub(crate) mod ways;

use std::env;
use std::ffi::c_void;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::ptr;

use palimpsest_fork::{FreezeError, Progress};
use palimpsest_sys::pages::smaps;
use palimpsest_sys::pages::vmas::{Detail, Label, Vma, Vmas};

const SCENARIO: &str = "PALIMPSEST_FORK_SCENARIO";
/// A scenario that hangs is ended after this time; nothing else depends on it.
const PATIENCE_SECONDS: u32 = 1200;
const DONE: &str = "the scenario was played to its end";

/// Whether this process was started to play a scenario.
pub(crate) fn is_playing() -> bool {
    env::var_os(SCENARIO).is_some()
}

/// Plays `scenario` in a child process; `name` is the path of the calling test.
///
/// The harness runs each test on a thread of its own, and a freeze wants to be alone. So the scenario runs in a fork of
/// that child, on its only thread.
pub(crate) fn play(name: &str, scenario: impl FnOnce()) {
    if env::var(SCENARIO).is_ok_and(|playing| playing == name) {
        // SAFETY: nothing but the scenario runs in the child; the harness's threads hold no lock that it needs: they
        // wait for this one.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: takes a number. A scenario that hangs ends by SIGALRM.
            unsafe { libc::alarm(PATIENCE_SECONDS) };
            kernels::show_wanted();
            to_its_end(scenario);
        }
        assert_eq!(wait(child), 0, "{name} failed in its process");
        return;
    }
    let own = env::current_exe().expect("/proc is mounted for the parent");
    let output = Command::new(own)
        .args(["--exact", name, "--nocapture", "--test-threads=1", "--include-ignored"])
        .env(SCENARIO, name)
        .output();
    let Output { status, stdout, stderr } = match output {
        Ok(output) => output,
        Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => {
            return println!("skipped: this binary is emulated and cannot start itself without binfmt_misc");
        }
        Err(error) => panic!("{name} cannot be started: {error}"),
    };
    let stdout = String::from_utf8_lossy(&stdout);
    let stderr = String::from_utf8_lossy(&stderr);
    println!("{stdout}{stderr}");
    assert_eq!(status.signal(), None, "{name} died of a signal");
    assert!(status.success() && stdout.contains(DONE), "{name} ended with {status}");
}

/// Plays a scenario, or what is left of one for another thread, and ends its process.
pub(crate) fn to_its_end(scenario: impl FnOnce()) -> ! {
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scenario));
    if ended.is_err() && gathering::was_refused() {
        skip("meanwhile the kernel had no huge page (thp_collapse_alloc_failed in /proc/vmstat)");
    }
    if ended.is_ok() {
        println!("{DONE}");
    }
    // SAFETY: ends the process without the harness's destructors.
    unsafe { libc::_exit(i32::from(ended.is_err())) }
}

/// Ends the scenario, since it cannot be played here.
pub(crate) fn skip(reason: &str) -> ! {
    println!("skipped: {reason}\n{DONE}");
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

/// Waits for a child. Returns its exit status, or 1000 plus the signal that ended it.
pub(crate) fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) }
}

/// Plays `child` in a fork made by the library. Returns its exit status.
pub(crate) fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the scenario has one thread, and keeps the contract of freezing.
    match unsafe { palimpsest_fork::fork() }.expect("children can be made") {
        palimpsest_fork::Forked::Child => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) }
        }
        palimpsest_fork::Forked::Parent(pid) => wait(pid.as_raw_nonzero().get()),
    }
}

pub(crate) fn page() -> usize {
    rustix::param::page_size()
}

/// Raw memory of a scenario, never unmapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

impl Memory {
    /// Maps private anonymous memory.
    pub(crate) fn map(len: usize) -> Self {
        let memory = Self::reserve(len);
        // Huge pages would hide what the tests count.
        // SAFETY: changes no contents.
        unsafe { libc::madvise(memory.start.cast(), len, libc::MADV_NOHUGEPAGE) };
        memory
    }

    fn reserve(len: usize) -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping replaces nothing.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                rights,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start.cast(), len }
    }

    /// Maps memory between inaccessible pages, so that it is a mapping of its own; at a multiple of 8 MiB, so that
    /// extents of that length begin with it.
    pub(crate) fn apart(len: usize) -> Self {
        Self::map(len + (16 << 20)).inner(len)
    }

    /// Maps the same without advice about huge pages. Where the kernel makes them unasked, it has some.
    pub(crate) fn unadvised(len: usize) -> Self {
        Self::reserve(len + (16 << 20)).inner(len)
    }

    fn inner(self, len: usize) -> Self {
        let whole = self;
        let start = whole.start.wrapping_add(page()).addr().next_multiple_of(8 << 20);
        let start = ptr::with_exposed_provenance_mut::<u8>(start);
        for (from, to) in [(whole.start.addr(), start.addr()), (start.addr() + len, whole.start.addr() + whole.len)] {
            // SAFETY: parts of the mapping made above that nobody uses.
            assert_eq!(unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(from), to - from, 0) }, 0);
        }
        Self { start, len }
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.len
    }

    pub(crate) fn at(&self, offset: usize) -> *mut c_void {
        assert!(offset <= self.len);
        self.start.wrapping_add(offset).cast()
    }

    pub(crate) fn set(&self, offset: usize, value: u8) {
        assert!(offset < self.len);
        // SAFETY: inside the scenario's own memory.
        unsafe { self.start.wrapping_add(offset).write_volatile(value) };
    }

    pub(crate) fn get(&self, offset: usize) -> u8 {
        assert!(offset < self.len);
        // SAFETY: inside the scenario's own memory.
        unsafe { self.start.wrapping_add(offset).read_volatile() }
    }

    /// Writes a word that depends on the place and `salt` to each page of the range.
    pub(crate) fn fill(&self, range: Range<usize>, salt: u64) {
        for offset in range.step_by(page()) {
            // SAFETY: inside the scenario's own memory, and aligned.
            unsafe { self.at(offset).cast::<u64>().write_volatile(word(offset, salt)) };
        }
    }

    /// Whether the range has the words of [`fill`](Self::fill).
    pub(crate) fn holds(&self, mut range: Range<usize>, salt: u64) -> bool {
        let step = page();
        range.start = range.start.next_multiple_of(step);
        range.step_by(step).all(|offset| {
            // SAFETY: inside the scenario's own memory, and aligned.
            unsafe { self.at(offset).cast::<u64>().read_volatile() == word(offset, salt) }
        })
    }

    pub(crate) fn is_zero(&self, range: Range<usize>) -> bool {
        range.step_by(page()).all(|offset| self.get(offset) == 0)
    }

    /// Returns how many mappings this memory has.
    pub(crate) fn mappings(&self) -> usize {
        palimpsest_sys::pages::maps::Maps::read().expect("/proc").overlapping(self.range()).count()
    }

    /// Whether sealed files show all of it.
    pub(crate) fn is_frozen(&self) -> bool {
        let maps = palimpsest_sys::pages::maps::Maps::read().expect("/proc");
        maps.overlapping(self.range()).all(|entry| {
            entry.path.as_ref().is_some_and(|path| path.as_os_str() == palimpsest_sys::memory::extent::EXTENT_NAME)
        })
    }

    /// Whether no file shows any of it.
    pub(crate) fn is_anonymous(&self) -> bool {
        let maps = palimpsest_sys::pages::maps::Maps::read().expect("/proc");
        maps.overlapping(self.range()).all(|entry| entry.path.is_none())
    }

    /// Returns the bytes in anonymous huge pages.
    pub(crate) fn huge(&self) -> usize {
        let mut vmas = Vmas::with_capacity(1 << 14).expect("memory");
        vmas.read(Detail::Figures).expect("/proc");
        let own = vmas.iter().filter(|vma| vma.start >= self.range().start && vma.end <= self.range().end);
        own.map(|vma| vma.huge).sum()
    }

    /// Returns the present bytes.
    pub(crate) fn present(&self) -> usize {
        smaps::overlapping(self.range()).expect("/proc").iter().map(|entry| entry.rss).sum()
    }
}

fn word(offset: usize, salt: u64) -> u64 {
    (offset as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt
}

/// Returns a figure of `/proc/self/status` in kB, such as `VmPTE`.
pub(crate) fn status_kb(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().strip_suffix(" kB")?.parse().ok()).expect("a figure in kB")
}

/// Freezes this process.
pub(crate) fn freeze(options: &palimpsest_fork::Options) -> palimpsest_fork::Report {
    // SAFETY: the scenario is alone in its process and uses the guard functions.
    let report = unsafe { palimpsest_fork::freeze(options) }.expect("this process can be frozen");
    println!("{report}");
    report
}

/// Takes a slice.
pub(crate) fn slice() -> Progress {
    // SAFETY: 1. the scenario keeps the contract of freezing.
    patiently(|| unsafe { palimpsest_fork::freeze_slice() })
}

/// Takes slices. Tries again while that is refused for a moment: another thread is at work on the same tables, or has
/// no processor on which it could answer.
pub(crate) fn patiently(mut take: impl FnMut() -> Result<Progress, FreezeError>) -> Progress {
    loop {
        match take() {
            Ok(progress) => return progress,
            Err(FreezeError::Busy | FreezeError::NotStopped(_)) => std::thread::yield_now(),
            Err(error) => panic!("a slice is refused: {error:?}"),
        }
    }
}

/// Gives this thread a filter that answers the call `number` with `action`.
pub(crate) fn filter(number: i64, action: u32) {
    let statement = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, u32::try_from(number).expect("small")),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, 0, action),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0);
}

/// Gives this thread a filter that answers all calls but the `allowed` ones with `action`.
pub(crate) fn allow_only(allowed: &[libc::c_long], action: u32) {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for (index, number) in allowed.iter().enumerate() {
        let to_end = (allowed.len() - index) as u8;
        program.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_end, 0, *number as u32));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0, 0, action));
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0);
}

/// The sealed files of this process. A file holds what it showed when it was new, as long as anything shows it.
#[derive(Default)]
pub(crate) struct Files {
    /// Inodes, and the bytes that each holds.
    known: Vec<(u64, usize)>,
}

impl Files {
    /// Looks at what is mapped. Returns how many bytes are in the files whose inode is wanted. Call it after each
    /// freeze, when new files show all that they hold.
    pub(crate) fn look(&mut self, is_wanted: impl Fn(u64) -> bool) -> usize {
        let mut vmas = Vmas::with_capacity(10_000).expect("memory");
        vmas.read(Detail::Places).expect("/proc");
        let shown: Vec<Vma> = vmas.iter().filter(|vma| vma.label == Label::Extent).copied().collect();
        self.known.retain(|(inode, _)| shown.iter().any(|vma| vma.inode == *inode));
        let old = self.known.len();
        for vma in &shown {
            let bytes = in_memory(vma);
            match self.known.iter().position(|(inode, _)| *inode == vma.inode) {
                Some(place) if place < old => {}
                Some(place) => self.known[place].1 += bytes,
                None => self.known.push((vma.inode, bytes)),
            }
        }
        self.known.iter().filter(|(inode, _)| is_wanted(*inode)).map(|(_, bytes)| bytes).sum()
    }
}

/// Returns how much of what a mapping shows is in memory, in bytes.
fn in_memory(vma: &Vma) -> usize {
    let mut present = vec![0_u8; vma.range().len() / page()];
    let place = ptr::with_exposed_provenance_mut(vma.start);
    // SAFETY: one byte for each page.
    assert_eq!(unsafe { libc::mincore(place, vma.range().len(), present.as_mut_ptr()) }, 0);
    present.iter().filter(|byte| *byte & 1 != 0).count() * page()
}
