//! Runs a program and says after each operation what it returned.
//!
//! Lines that begin with `@` must be equal in two runs of a program, process by process; lines that begin with `#` may
//! differ.

use std::ffi::CString;
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;

use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};

use crate::calls::{self, Answer, Block, World, answer};
use crate::probe::{Erased, Probes};
use crate::program::{self, Code, Forbidden, Limit, Namespace, Op, Punishment, Signals};
use crate::run::{self, PATH, PROGRAM, WORLD};

/// Where a program's memory is, in every run: below what the kernel hands out, even with 39 bits of address.
const MEMORY: usize = 0x20_0000_0000;
/// Its length in pages, with room to grow behind it.
const PAGES: usize = 1024;
/// The page with the secret.
const SECRET: usize = 300;
/// Bytes of the block: several pieces of 2 MiB, so that an arena may keep its file.
const BLOCK: usize = 5 << 20;
/// Most processes of a program: each may fork, and is looked at for a while.
const MOST_FORKS: usize = 6;
/// Seconds after which a hanging process is ended: only a run that would never end reaches this.
const TIME_LIMIT: u32 = 1200;

pub(crate) struct Interpreter {
    world: World,
    path: String,
    born: usize,
    page: usize,
    pages: usize,
    block: Block,
    /// Whether a filter kills for calls that a freeze makes: then the preload object refuses without trying the filter.
    is_watched: bool,
    /// Whether the dynamic linker could be refused what it needs, of which it would complain.
    is_confined: bool,
    has_thread: bool,
    erased: Erased,
    probes: Probes,
}

impl Interpreter {
    pub(crate) fn new(world: World, path: String) -> Self {
        // SAFETY: sets a timer of this process, which kills it.
        unsafe { libc::alarm(TIME_LIMIT) };
        // What the harness has left open is not the program's, and must not be written to. SAFETY: nothing in this
        // process uses them.
        unsafe { libc::close_range(3, u32::MAX, 0) };
        let page = rustix::param::page_size();
        assert_eq!(calls::map(memory(page, PAGES)), 0, "the memory's place is free");
        let probes = Probes::new(page);
        let new = Self {
            world,
            path,
            born: 0,
            page,
            pages: PAGES,
            block: Block::new(world),
            is_watched: false,
            is_confined: false,
            has_thread: false,
            erased: Erased::No,
            probes,
        };
        for number in 0..PAGES {
            new.store(number, number as u8 | 1);
        }
        let secret = new.probes.secret();
        // SAFETY: the page is mapped, and no memory that Rust knows of.
        unsafe { new.at(SECRET).copy_from_nonoverlapping(secret.as_ptr(), secret.len()) };
        new
    }

    /// Runs all of it and ends the process.
    pub(crate) fn run(mut self, codes: &[Code]) -> ! {
        let mut at = 0;
        let mut end = codes.len();
        self.say("born", 0);
        while at < end {
            calls::slice(self.world);
            let op = Op::decode(codes[at]);
            at += 1;
            match op {
                Op::Fork { body } => {
                    let body = at..(at + usize::from(body)).min(end);
                    if self.fork() {
                        (at, end) = (body.start, body.end);
                    } else {
                        at = body.end;
                    }
                }
                Op::Exec if self.is_confined => self.say("no exec", 0),
                Op::Exec => self.exec(&program::to_hex(&codes[at..end])),
                _ => {
                    let answer = self.step(op);
                    self.say(&format!("{op:?}"), answer);
                }
            }
        }
        self.probe();
        // SAFETY: ends this process without the rest of the test harness, which the children have inherited.
        unsafe { libc::_exit(0) }
    }

    fn step(&mut self, op: Op) -> Answer {
        match op {
            Op::Write { page, pages, byte } => {
                let range = self.range(page, pages);
                range.clone().for_each(|page| self.store(page, byte));
                range.len().cast_signed()
            }
            Op::Erase => {
                let is_gone = calls::erase(self.world, memory(self.page, SECRET + 1).end - self.page, self.page);
                if is_gone && self.erased == Erased::No {
                    // The first process has no parent that has the secret, too.
                    self.erased = if self.path.contains('.') { Erased::Here } else { Erased::Everywhere };
                }
                0
            }
            Op::Discard { page, pages } => {
                let range = self.range(page, pages);
                calls::discard(self.world, MEMORY + range.start * self.page..MEMORY + range.end * self.page)
            }
            Op::Resize { pages } => {
                // Never so short that the secret goes with it.
                let pages = PAGES / 2 + usize::from(pages) * 8;
                let answer = calls::resize(self.world, memory(self.page, self.pages), pages * self.page);
                if answer == 0 {
                    self.pages = pages;
                }
                answer
            }
            Op::Jail => jail(),
            Op::LeaveRoot => leave_root(),
            Op::Filter { forbidden, punishment } => {
                self.is_watched |= punishment == Punishment::Kill;
                self.is_confined = true;
                calls::confine(self.world);
                filter(forbidden, punishment)
            }
            Op::Limit(limit) => {
                self.is_confined = true;
                set_limit(limit)
            }
            Op::Signals(how) => set_signals(how),
            // Such a process wants an arena of anonymous memory.
            Op::Ring { pins: true } | Op::FreezeArena if self.is_watched && self.block.made().is_none() => -1000,
            Op::Ring { pins } => self.ring(pins),
            Op::Unshare(namespace) => {
                let flag = match namespace {
                    Namespace::Pid => libc::CLONE_NEWPID,
                    Namespace::Mount => libc::CLONE_NEWNS,
                    Namespace::User => libc::CLONE_NEWUSER,
                };
                // SAFETY: what this process gets is its own.
                answer(unsafe { libc::unshare(flag) } as isize)
            }
            // Until an arena is frozen, its file is all it has, and not the program's to close.
            Op::CloseAll | Op::Crowd if self.block.needs_file() => -1000,
            // SAFETY: nothing here uses the descriptors.
            Op::CloseAll => answer(unsafe { libc::close_range(3, u32::MAX, 0) } as isize),
            Op::Crowd => {
                let put = |number| {
                    // SAFETY: closes a descriptor of our own, if there is one; one that the library keeps may be
                    // closed, too.
                    answer(unsafe { libc::dup2(1, number) } as isize)
                };
                (100..140).map(put).min().unwrap_or(0)
            }
            Op::Thread => {
                if !self.has_thread {
                    self.has_thread = true;
                    return Answer::from(std::thread::Builder::new().stack_size(64 << 10).spawn(sleep).is_err());
                }
                0
            }
            Op::Freeze if self.is_watched => -1000,
            Op::Freeze => {
                calls::freeze(self.world);
                0
            }
            Op::FreezeArena => {
                self.block.make(BLOCK);
                self.block.freeze(self.world);
                0
            }
            Op::Probe => {
                self.probe();
                0
            }
            Op::Fork { .. } | Op::Exec => unreachable!("handled by the caller"),
        }
    }

    /// Forks, and waits for the child. Returns whether this is the child.
    fn fork(&mut self) -> bool {
        if self.born == MOST_FORKS {
            return false;
        }
        let name = format!("{}.{}", self.path, self.born);
        self.born += 1;
        self.say("before a fork", 0);
        self.block.is_forked();
        match calls::fork(self.world) {
            0 => {
                // If the parent is killed, nobody is left behind. A filter may forbid asking for that.
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                // SAFETY: sets a timer of this process, which kills it.
                unsafe { libc::alarm(TIME_LIMIT) };
                self.path = name;
                self.born = 0;
                self.has_thread = false;
                self.say("born", 0);
                self.probe();
                return true;
            }
            child @ 1.. => {
                let child = Pid::from_raw(child as i32).expect("a child");
                let ended = waitpid(Some(child), WaitOptions::empty());
                // With SIGCHLD ignored, only its end can be known.
                let ended = ended.map(|ended| ended.map(|(_, status)| status.as_raw()));
                self.say(&format!("{name} has ended: {ended:?}"), 0);
            }
            error => self.say("fork", error),
        }
        false
    }

    /// Replaces this process by one that runs `program` from empty memory.
    fn exec(&self, program: &str) -> ! {
        self.say("exec", 0);
        let c_string = |text: &[u8]| CString::new(text).expect("no zero byte");
        let own = std::env::current_exe().map(|path| c_string(path.as_os_str().as_bytes()));
        let own = own.unwrap_or_else(|_| c"/proc/self/exe".to_owned());
        let environment = [(PROGRAM, program), (PATH, &format!("{}!", self.path)), (WORLD, &run::name(self.world))];
        let environment = environment.map(|(name, value)| (name, value.to_owned())).into_iter();
        let environment: Vec<CString> = environment
            .chain(self.world.environment())
            .map(|(name, value)| c_string(format!("{name}={value}").as_bytes()))
            .collect();
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(std::slice::from_ref(&own)), pointers(&environment));
        calls::before_exec(self.world);
        // SAFETY: both lists end with null and their strings with zero, and all live until the call.
        let failed = unsafe { libc::execve(own.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        self.say("exec failed", answer(failed as isize));
        // SAFETY: ends this process without the rest of the test harness.
        unsafe { libc::_exit(0) }
    }

    fn probe(&self) {
        let mut memory = memory(self.page, self.pages);
        memory.end = memory.end.min(memory.start + PAGES * self.page);
        for (name, outcome) in self.probes.all(self.world, &memory, SECRET, self.erased) {
            self.say(&format!("probe {name}: {outcome}"), 0);
        }
    }

    /// Prints an operation, its answer, and what the memory holds.
    fn say(&self, what: &str, answer: Answer) {
        let (memory, block) = (self.probes.digest(memory(self.page, self.pages)), self.block_digest());
        let mut line = format!("\n@{} {what} = {answer} | {memory:x} {block:x}", self.path);
        line.push('\n');
        // One write, so that the lines of two processes do not mix.
        std::io::stdout().write_all(line.as_bytes()).expect("standard output is open");
    }

    fn block_digest(&self) -> u64 {
        let Some(block) = self.block.made() else { return 0 };
        let start = block.as_ptr().expose_provenance();
        self.probes.digest(start..start + BLOCK)
    }

    /// Makes an io_uring, with the block as a buffer or none: a buffer's pages are pinned.
    fn ring(&mut self, pins: bool) -> Answer {
        // `struct io_uring_params`: 120 bytes, all zeros ask for nothing special.
        let mut parameters = [0_u32; 30];
        // SAFETY: makes a ring; the parameters live until the call returns.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) } as isize;
        if ring < 0 || !pins {
            return answer(ring).min(0);
        }
        let vector = libc::iovec { iov_base: self.block.make(BLOCK).as_ptr().cast(), iov_len: 4096 };
        // SAFETY: registers a part of the block, to which the ring will never be told to write. 0:
        // IORING_REGISTER_BUFFERS.
        answer(unsafe { libc::syscall(libc::SYS_io_uring_register, ring, 0, &raw const vector, 1) } as isize)
    }

    fn at(&self, page: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(MEMORY + page * self.page)
    }

    /// Fills most of a page. The rest of the secret's page stays as it is.
    fn store(&self, page: usize, byte: u8) {
        let (at, len) = (self.at(page), if page == SECRET { 0 } else { self.page });
        // SAFETY: the page is mapped, and no memory that Rust knows of.
        unsafe { at.write_bytes(byte, len) };
    }

    fn range(&self, page: u8, pages: u8) -> Range<usize> {
        let first = usize::from(page) * PAGES / 512;
        first..first + 1 + usize::from(pages)
    }
}

fn memory(page: usize, pages: usize) -> Range<usize> {
    MEMORY..MEMORY + pages * page
}

fn sleep() {
    loop {
        // SAFETY: waits for signals, whose handlers are the library's.
        unsafe { libc::pause() };
    }
}

fn jail() -> Answer {
    let folder = std::env::temp_dir().join("palimpsest-sandbox-jail");
    // A filter or an earlier jail may forbid it: then there is none to go to.
    let _ = std::fs::create_dir(&folder);
    let Ok(folder) = CString::new(folder.as_os_str().as_bytes()) else { return -2 };
    // SAFETY: a path that ends with zero.
    let done = unsafe { libc::chroot(folder.as_ptr()) };
    if done != 0 {
        return answer(done as isize);
    }
    // SAFETY: as before.
    answer(unsafe { libc::chdir(c"/".as_ptr()) } as isize)
}

fn leave_root() -> Answer {
    // 65534: nobody.
    // SAFETY: an empty list.
    let groups = answer(unsafe { libc::setgroups(0, std::ptr::null()) } as isize);
    // SAFETY: a number.
    let group = answer(unsafe { libc::setgid(65534) } as isize);
    // SAFETY: a number.
    let user = answer(unsafe { libc::setuid(65534) } as isize);
    groups.min(group).min(user)
}

fn set_limit(limit: Limit) -> Answer {
    let which = match limit {
        Limit::Descriptors => libc::RLIMIT_NOFILE,
        Limit::FileSize => libc::RLIMIT_FSIZE,
        Limit::Core => libc::RLIMIT_CORE,
    };
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a limit that lives until the call returns.
    answer(unsafe { libc::setrlimit(which, &raw const none) } as isize)
}

fn set_signals(how: Signals) -> Answer {
    // All except the one that ends a hanging process.
    let all = (1..=64).filter(|&signal| signal != libc::SIGALRM);
    match how {
        Signals::Default | Signals::Ignore => {
            let action = if how == Signals::Default { libc::SIG_DFL } else { libc::SIG_IGN };
            for signal in all {
                // SAFETY: no function is installed. Signals that cannot be changed are refused.
                unsafe { libc::signal(signal, action) };
            }
            0
        }
        Signals::Block => {
            let mut set = std::mem::MaybeUninit::uninit();
            // SAFETY: the place is as large as a set.
            unsafe { libc::sigfillset(set.as_mut_ptr()) };
            // SAFETY: it was initialised.
            unsafe { libc::sigdelset(set.as_mut_ptr(), libc::SIGALRM) };
            // SAFETY: the set is initialised and lives until the call returns.
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) }.try_into().unwrap_or(-1)
        }
    }
}

fn filter(forbidden: Forbidden, punishment: Punishment) -> Answer {
    let calls: &[libc::c_long] = match forbidden {
        Forbidden::Opening => &[libc::SYS_openat, libc::SYS_openat2],
        Forbidden::MemoryFiles => &[libc::SYS_memfd_create, libc::SYS_ftruncate],
        Forbidden::AtPlaces => &[libc::SYS_pread64, libc::SYS_pwrite64],
        Forbidden::Policies => &[libc::SYS_get_mempolicy, libc::SYS_mbind],
        Forbidden::Others => &[libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_kill],
    };
    let punished = match punishment {
        Punishment::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        Punishment::Refuse => libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(),
    };
    let line = |code: u32, jt: usize, jf, k| libc::sock_filter { code: code as u16, jt: jt as u8, jf, k };
    let mut program = vec![line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for (index, call) in calls.iter().enumerate() {
        program.push(line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, calls.len() - index, 0, *call as u32));
    }
    program.push(line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    program.push(line(libc::BPF_RET | libc::BPF_K, 0, 0, punished));
    let whole = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: numbers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program lives until the call returns; its jumps end inside of it.
    answer(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const whole) } as isize)
}
