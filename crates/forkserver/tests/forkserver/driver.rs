//! Plays afl-fuzz; written from the description of the protocol, independently of the code under test.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::segment::Segment;
use crate::target;

pub(crate) const MAP: usize = 65536;
const INPUT: usize = 4 + (1 << 20);

/// What the target has sent before its first run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) map_len: Option<u32>,
    pub(crate) shared: bool,
    pub(crate) dictionary: Vec<u8>,
}

/// A target and the fuzzer's ends of its pipes.
pub(crate) struct Driver {
    pub(crate) child: Child,
    control: File,
    status: File,
    pub(crate) map: Segment,
    input: Segment,
    stdin: File,
    shared: bool,
    killed: u32,
}

/// How a run ended, according to its wait status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exit(i32),
    Signal(i32),
    Stopped,
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe")
}

impl Driver {
    /// Starts the target; the caller then greets it.
    pub(crate) fn start(description: &str) -> Self {
        let map = Segment::new(MAP);
        let id = map.id.to_string();
        Self::launch(description, map, &id)
    }

    /// Does the same with a coverage map that may not exist.
    pub(crate) fn start_with_map(description: &str, id: &str) -> Self {
        Self::launch(description, Segment::new(MAP), id)
    }

    fn launch(description: &str, map: Segment, map_id: &str) -> Self {
        let (hear, control) = pipe();
        let (status, tell) = pipe();
        let input = Segment::new(INPUT);
        let stdin = {
            let name = c"palimpsest-stdin";
            // SAFETY: makes a file; the name is a C string.
            let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
            assert!(fd >= 0);
            // SAFETY: just made, and nobody else's.
            File::from(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        let mut command: Command = target::command(description);
        command
            .env("__AFL_SHM_ID", map_id)
            .env("__AFL_SHM_FUZZ_ID", input.id.to_string())
            .stdin(Stdio::from(stdin.try_clone().expect("a second descriptor")))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (hear_fd, tell_fd) = (hear.as_raw_fd(), tell.as_raw_fd());
        let place = move || {
            for (from, to) in [(hear_fd, 198), (tell_fd, 199)] {
                // SAFETY: both are descriptors of the child, which has nothing at 198 and 199 that it needs.
                if unsafe { libc::dup2(from, to) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: the closure makes two system calls and allocates nothing.
        unsafe { command.pre_exec(place) };
        let child = command.spawn().expect("the target starts");
        drop((hear, tell));
        let (control, status) = (File::from(control), File::from(status));
        Self { child, control, status, map, input, stdin, shared: false, killed: 0 }
    }

    pub(crate) fn word(&mut self) -> u32 {
        let mut word = [0; 4];
        self.status.read_exact(&mut word).expect("the target speaks");
        u32::from_ne_bytes(word)
    }

    pub(crate) fn say(&mut self, word: u32) {
        self.control.write_all(&word.to_ne_bytes()).expect("the target listens");
    }

    fn dictionary(&mut self) -> Vec<u8> {
        let mut dictionary = vec![0; self.word() as usize];
        self.status.read_exact(&mut dictionary).expect("a dictionary");
        dictionary
    }

    /// Greets like AFL++ 4.04c.
    pub(crate) fn greet_old(&mut self) -> Greeting {
        let hello = self.word();
        let mut greeting = Greeting { map_len: None, shared: false, dictionary: Vec::new() };
        if hello & 0x8000_0001 != 0x8000_0001 {
            return greeting;
        }
        if hello & 0x4000_0000 != 0 {
            greeting.map_len = Some((hello & 0x00ff_fffe) / 2 + 1);
        }
        greeting.shared = hello & 0x0100_0000 != 0;
        let answer = 0x8000_0001 | hello & 0x1100_0000;
        if answer != 0x8000_0001 {
            self.say(answer);
        }
        if hello & 0x1000_0000 != 0 {
            greeting.dictionary = self.dictionary();
        }
        self.shared = greeting.shared;
        greeting
    }

    /// Greets like AFL++ from 4.20 on.
    pub(crate) fn greet_new(&mut self) -> Greeting {
        let hello = self.word();
        assert_eq!(hello, 0x4146_4c01);
        self.say(hello ^ 0xffff_ffff);
        let options = self.word();
        let map_len = (options & 1 != 0).then(|| self.word());
        let shared = options & 2 != 0;
        let dictionary = if options & 0x800 != 0 { self.dictionary() } else { Vec::new() };
        assert_eq!(self.word(), hello, "the hello ends the greeting");
        self.shared = shared;
        Greeting { map_len, shared, dictionary }
    }

    /// Runs the target, and kills it after `limit`. Also returns the worker.
    pub(crate) fn run(&mut self, input: &[u8], limit: Duration) -> (u32, Ending) {
        self.map.clear();
        if self.shared {
            self.input.write(0, &u32::try_from(input.len()).unwrap().to_ne_bytes());
            self.input.write(4, input);
        } else {
            self.stdin.set_len(0).unwrap();
            self.stdin.seek(SeekFrom::Start(0)).unwrap();
            self.stdin.write_all(input).unwrap();
            self.stdin.seek(SeekFrom::Start(0)).unwrap();
        }
        self.say(self.killed);
        self.killed = 0;
        let worker = self.word();
        let mut wanted = libc::pollfd { fd: self.status.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = i32::try_from(limit.as_millis()).unwrap();
        // SAFETY: one record, which is live.
        if unsafe { libc::poll(&raw mut wanted, 1, milliseconds) } == 0 {
            // SAFETY: the worker belongs to the target, which has not reported its end.
            unsafe { libc::kill(worker.cast_signed(), libc::SIGKILL) };
            self.killed = 1;
        }
        let status = self.word().cast_signed();
        let ending = if libc::WIFSTOPPED(status) {
            Ending::Stopped
        } else if libc::WIFSIGNALED(status) {
            Ending::Signal(libc::WTERMSIG(status))
        } else {
            Ending::Exit(libc::WEXITSTATUS(status))
        };
        (worker, ending)
    }

    /// Makes the next request say that the last run was killed.
    pub(crate) fn pretend_killed(&mut self) {
        self.killed = 1;
    }

    /// Closes the fuzzer's ends. Returns how the target ended.
    pub(crate) fn hang_up(&mut self) -> ExitStatus {
        let (_, end) = pipe();
        self.control = File::from(end);
        self.child.wait().expect("the target ends")
    }

    /// Runs an input that must find nothing. Returns the worker.
    pub(crate) fn passes(&mut self, input: &[u8]) -> u32 {
        let (worker, ending) = self.run(input, Duration::from_secs(600));
        assert!(matches!(ending, Ending::Exit(0) | Ending::Stopped), "{ending:?} on {input:?}");
        worker
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
