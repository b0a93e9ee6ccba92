//! What a process can reach and do, as text that is equal in two runs when that is.
//!
//! Each probe runs in a child of its own, forked by the C library alone: a filter may end it, and what it changes ends
//! with it.

use std::fmt::Write as _;
use std::ops::Range;
use std::os::fd::AsRawFd as _;

use crate::calls::{self, Answer, World, answer};

/// Descriptors that are looked at.
const DESCRIPTORS: i32 = 1200;
/// The most that is read or written of one file.
const MOST: usize = 16 << 20;

pub(crate) struct Probes {
    page: usize,
    secret: [u8; 32],
}

/// What a probe is given.
struct Given<'a> {
    probes: &'a Probes,
    world: World,
    memory: &'a Range<usize>,
    secret_page: usize,
}

/// Adds what it finds to a text.
type Probe = fn(&Given<'_>, &mut String);

const PROBES: [(&str, Probe); 16] = [
    ("descriptors", descriptors),
    ("next descriptor", next_descriptor),
    ("up from each descriptor", climb),
    ("out by each descriptor", leave),
    ("read each descriptor", read_each),
    ("write to each descriptor", write_each),
    ("open", open),
    ("discard", discard),
    ("grow", grow),
    ("shrink", shrink),
    ("discard everything", discard_everything),
    ("memory file", memory_file),
    ("become root", become_root),
    ("signal the parent", signal_parent),
    ("fork and discard", fork_and_discard),
    ("policy", policy),
];

/// The probes that look for an erased secret.
const SEARCHES: [(&str, Probe); 4] = [
    ("the secret in memory", secret_in_memory),
    ("the secret after a raw discard", secret_after_discard),
    ("the secret in files", secret_in_files),
    ("the secret in mapped files", secret_in_mapped_files),
];

/// Where the secret is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Erased {
    No,
    /// In this process; the parent still has it, and so do the files that both show.
    Here,
    /// In every living process.
    Everywhere,
}

impl Probes {
    pub(crate) fn new(page: usize) -> Self {
        // Made at run time, so that the program's own file does not contain it.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let secret = std::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8 | 1
        });
        Self { page, secret }
    }

    pub(crate) fn secret(&self) -> [u8; 32] {
        self.secret
    }

    /// Runs all probes.
    pub(crate) fn all(
        &self,
        world: World,
        memory: &Range<usize>,
        secret_page: usize,
        erased: Erased,
    ) -> Vec<(&'static str, String)> {
        let given = Given { probes: self, world, memory, secret_page };
        let searches: &[_] = match erased {
            Erased::No => &[],
            Erased::Here => &SEARCHES[..3],
            Erased::Everywhere => &SEARCHES,
        };
        PROBES.iter().chain(searches).map(|(name, probe)| (*name, alone(*probe, &given))).collect()
    }

    /// Returns a digest of memory that the process itself reads.
    pub(crate) fn digest(&self, range: Range<usize>) -> u64 {
        let words = range.step_by(self.page / 4).map(|address| {
            // SAFETY: the range is mapped memory of the program, aligned, and any bits are a word.
            unsafe { std::ptr::with_exposed_provenance::<u64>(address).read_volatile() }
        });
        words.fold(0xcbf2_9ce4_8422_2325, |digest, word| (digest ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(23))
    }
}

/// Runs a probe in a child. Returns what it says and how it ends.
fn alone(probe: Probe, given: &Given<'_>) -> String {
    // Shared memory instead of a pipe: descriptors may be used up.
    const ROOM: usize = 64 << 10;
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: makes a mapping at a place that the kernel chooses.
    let board = unsafe { libc::mmap(std::ptr::null_mut(), ROOM, rights, kind, -1, 0) };
    assert_ne!(board, libc::MAP_FAILED, "memory for a probe");
    let board = board.cast::<u8>();
    // SAFETY: the child makes system calls and uses its heap, which no other thread of the parent can have locked: they
    // sleep.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut text = String::new();
        probe(given, &mut text);
        let length = text.len().min(ROOM - 1);
        // SAFETY: the board is longer, and zeros until now.
        unsafe { board.copy_from_nonoverlapping(text.as_ptr(), length) };
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut text = if child < 0 { format!("no child: {}", answer(-1)) } else { String::new() };
    let mut status = 0;
    // SAFETY: the child is ours; with SIGCHLD ignored the call returns when it is gone.
    if child > 0 && unsafe { libc::waitpid(child, &raw mut status, 0) } == child && libc::WIFSIGNALED(status) {
        let _ = write!(text, "killed by {} after ", libc::WTERMSIG(status));
    }
    // SAFETY: the board is that long and ends with a zero, and the child is gone.
    let bytes = unsafe { std::slice::from_raw_parts(board, ROOM) };
    let said = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    text.push_str(&String::from_utf8_lossy(said));
    // SAFETY: the mapping was made above, and nothing points to it any more.
    unsafe { libc::munmap(board.cast(), ROOM) };
    text
}

/// The open descriptors above the standard ones.
fn opened() -> impl Iterator<Item = i32> {
    // SAFETY: asks about a number.
    (3..DESCRIPTORS).filter(|&number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0)
}

fn kind(number: i32) -> u32 {
    let mut stat = std::mem::MaybeUninit::zeroed();
    // SAFETY: a place for the answer.
    unsafe { libc::fstat(number, stat.as_mut_ptr()) };
    // SAFETY: all bits are values, zeros too.
    let stat: libc::stat = unsafe { stat.assume_init() };
    stat.st_mode & libc::S_IFMT
}

fn descriptors(_: &Given<'_>, text: &mut String) {
    for number in opened() {
        // SAFETY: asks about a number.
        let mode = unsafe { libc::fcntl(number, libc::F_GETFL) } & libc::O_ACCMODE;
        let _ = write!(text, "{number}:{:o}:{mode} ", kind(number));
    }
}

fn next_descriptor(_: &Given<'_>, text: &mut String) {
    // SAFETY: a new descriptor, of this child.
    let _ = write!(text, "{}", answer(unsafe { libc::dup(1) } as isize));
}

fn climb(_: &Given<'_>, text: &mut String) {
    for number in opened() {
        for path in [c"../etc/hostname", c"../etc/passwd", c"self/maps"] {
            // SAFETY: a path that ends with zero.
            let got = answer(unsafe { libc::openat(number, path.as_ptr(), libc::O_RDONLY) } as isize);
            let _ = write!(text, "{number}:{} ", if got < 0 { got } else { 0 });
        }
    }
}

fn leave(_: &Given<'_>, text: &mut String) {
    for number in opened() {
        // SAFETY: moves this child.
        let went = answer(unsafe { libc::fchdir(number) } as isize);
        // SAFETY: a path that ends with zero.
        let up = answer(unsafe { libc::chdir(c"..".as_ptr()) } as isize);
        // SAFETY: a path that ends with zero.
        let found = answer(unsafe { libc::access(c"etc/passwd".as_ptr(), libc::F_OK) } as isize);
        let _ = write!(text, "{number}:{went},{up},{found} ");
    }
}

fn read_each(_: &Given<'_>, text: &mut String) {
    let mut byte = [0_u8];
    for number in opened() {
        // SAFETY: room for one byte.
        let got = answer(unsafe { libc::pread(number, byte.as_mut_ptr().cast(), 1, 0) });
        let _ = write!(text, "{number}:{got} ");
    }
}

/// Tries what a worker could do to its parent's memory: next, the parent says what that holds.
fn write_each(given: &Given<'_>, text: &mut String) {
    for number in opened().filter(|&number| kind(number) == libc::S_IFREG) {
        let mut written: Answer = 0;
        for place in (0..MOST).step_by(given.probes.page) {
            // SAFETY: one byte is read. Files of others were closed when the interpreter began.
            let done = unsafe { libc::pwrite(number, [0xee_u8].as_ptr().cast(), 1, place as i64) };
            if done != 1 {
                written += answer(done).min(0);
                break;
            }
            written += 1;
        }
        let _ = write!(text, "{number}:{written} ");
    }
}

fn open(_: &Given<'_>, text: &mut String) {
    for path in [c"/", c"/etc/passwd", c"/proc/self/maps", c"/proc/self/mem"] {
        // SAFETY: a path that ends with zero.
        let got = answer(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) } as isize);
        let _ = write!(text, "{} ", got.min(0));
    }
}

fn part(given: &Given<'_>, from: usize, pages: usize) -> Range<usize> {
    let start = given.memory.start + from * given.probes.page;
    start..start + pages * given.probes.page
}

fn discard(given: &Given<'_>, text: &mut String) {
    let part = part(given, 10, 7);
    let done = calls::discard(given.world, part.clone());
    let _ = write!(text, "{done} {:x}", given.probes.digest(part));
    let _ = write!(text, " {:x}", given.probes.digest(given.memory.clone()));
}

fn discard_everything(given: &Given<'_>, text: &mut String) {
    let done = calls::discard(given.world, given.memory.clone());
    let _ = write!(text, "{done} {:x}", given.probes.digest(given.memory.clone()));
}

fn grow(given: &Given<'_>, text: &mut String) {
    // Page by page up to a length that no program has.
    let len = 4096 * given.probes.page;
    let done = calls::resize(given.world, given.memory.clone(), len);
    let _ = write!(text, "{done}");
    if done == 0 {
        let _ = write!(text, " {:x}", given.probes.digest(given.memory.start..given.memory.start + len));
    }
}

fn shrink(given: &Given<'_>, text: &mut String) {
    let len = 400 * given.probes.page;
    let done = calls::resize(given.world, given.memory.clone(), len);
    let _ = write!(text, "{done} {:x}", given.probes.digest(given.memory.start..given.memory.start + len));
}

fn memory_file(_: &Given<'_>, text: &mut String) {
    // SAFETY: a name that ends with zero.
    let made = unsafe { libc::memfd_create(c"probe".as_ptr(), 0) };
    let _ = write!(text, "{} ", answer(made as isize).min(0));
    // SAFETY: a descriptor, or a number that is none.
    let _ = write!(text, "{}", answer(unsafe { libc::ftruncate(made, 1) } as isize));
}

fn become_root(_: &Given<'_>, text: &mut String) {
    // SAFETY: a number.
    let _ = write!(text, "{}", answer(unsafe { libc::setuid(0) } as isize));
}

fn signal_parent(_: &Given<'_>, text: &mut String) {
    // SAFETY: the call always succeeds.
    let parent = unsafe { libc::getppid() };
    // SAFETY: signal 0 asks only.
    let _ = write!(text, "{}", answer(unsafe { libc::kill(parent, 0) } as isize));
}

/// A grandchild goes on with guarded calls.
fn fork_and_discard(given: &Given<'_>, text: &mut String) {
    let part = part(given, 30, 3);
    let child = calls::fork(given.world);
    if child == 0 {
        let done = calls::discard(given.world, part);
        // SAFETY: ends the child.
        unsafe { libc::_exit((-done) as i32) };
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
    let _ = write!(text, "{} {status:x} {:x}", child.min(0), given.probes.digest(part));
}

fn policy(_: &Given<'_>, text: &mut String) {
    let null = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: asks for this thread's policy, and wants nothing told.
    let got = unsafe { libc::syscall(libc::SYS_get_mempolicy, null, null, 0, null, 0) };
    let _ = write!(text, "{}", answer(got as isize));
}

fn holds(given: &Given<'_>, bytes: &[u8]) -> bool {
    bytes.windows(given.probes.secret.len()).any(|window| window == given.probes.secret)
}

fn secret_page<'a>(given: &Given<'a>) -> &'a [u8] {
    let start = std::ptr::with_exposed_provenance(part(given, given.secret_page, 1).start);
    // SAFETY: the page is mapped, and nothing else runs in this child.
    unsafe { std::slice::from_raw_parts(start, given.probes.page) }
}

fn secret_in_memory(given: &Given<'_>, text: &mut String) {
    let _ = write!(text, "{}", holds(given, secret_page(given)));
}

fn secret_after_discard(given: &Given<'_>, text: &mut String) {
    let done = calls::discard_raw(part(given, given.secret_page, 1));
    let _ = write!(text, "{done} {}", holds(given, secret_page(given)));
}

/// Whether a file holds the secret, which is at the start of a page there as in memory.
fn file_holds(given: &Given<'_>, number: i32) -> bool {
    let page = given.probes.page as i64;
    let mut at = 0;
    for _ in 0..MOST / given.probes.page {
        // Most of a file is holes.
        // SAFETY: moves a position that nobody else uses.
        let data = unsafe { libc::lseek(number, at, libc::SEEK_DATA) };
        if data < 0 {
            return false;
        }
        at = data - data % page;
        let mut bytes = [0_u8; 32];
        // A filter may kill for `pread`, which a plain run comes to only if there is such a file. SAFETY: as above.
        unsafe { libc::lseek(number, at, libc::SEEK_SET) };
        // SAFETY: room for as many bytes.
        unsafe { libc::read(number, bytes.as_mut_ptr().cast(), bytes.len()) };
        if bytes == given.probes.secret {
            return true;
        }
        at += page;
    }
    false
}

fn secret_in_files(given: &Given<'_>, text: &mut String) {
    let found = opened().filter(|&number| kind(number) == libc::S_IFREG && file_holds(given, number)).count();
    let _ = write!(text, "{found}");
}

/// Whoever may can open what is mapped privately as a file: `/proc/PID/map_files`, of this process and its parents.
fn secret_in_mapped_files(given: &Given<'_>, text: &mut String) {
    // SAFETY: the call always succeeds.
    let parent = unsafe { libc::getppid() };
    let mut found = 0;
    for folder in ["/proc/self".to_owned(), format!("/proc/{parent}")] {
        let Ok(entries) = std::fs::read_dir(format!("{folder}/map_files")) else { continue };
        for entry in entries.flatten() {
            // Files with a name of their own are not a secret of this process.
            let path = std::fs::read_link(entry.path()).unwrap_or_default();
            let is_memory = path.as_os_str().as_encoded_bytes().starts_with(b"/memfd:");
            let Ok(file) = std::fs::File::open(entry.path()) else { continue };
            found += usize::from(is_memory && file_holds(given, file.as_raw_fd()));
        }
    }
    let _ = write!(text, "{found}");
}
