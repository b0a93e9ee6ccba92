//! The greeting between a target and its fuzzer, and a host's runs, for the fuzz targets (feature `fuzzing`).

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use crate::Protocol;
use crate::error::HostError;
use crate::host::{Host, Run};
use crate::protocol::{self, Offer, SharedInput, Words};
use crate::{serve, wire};

/// A target's offer.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Bytes of its coverage map.
    pub map_len: Option<u32>,
    /// Whether test cases may come through shared memory.
    pub takes_shared_input: bool,
    /// Its dictionary, in the protocol's format.
    pub dictionary: Vec<u8>,
}

/// The result of a greeting: whether test cases come through shared memory, and a request that came instead of an
/// answer.
pub type Settled = (bool, Option<u32>);

struct Ends<'a> {
    answer: &'a mut dyn FnMut(&[u8]) -> Option<u32>,
    sent: Vec<u8>,
}

impl Words for Ends<'_> {
    type Error = Option<u32>;

    fn receive(&mut self) -> Result<u32, Option<u32>> {
        (self.answer)(&self.sent).ok_or(None)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Option<u32>> {
        self.sent.extend_from_slice(bytes);
        Ok(())
    }

    fn unexpected(&self, word: u32) -> Option<u32> {
        Some(word)
    }
}

/// Plays the target's side. `answer` is the fuzzer: it gets everything sent so far, and returns a word, or nothing if
/// it is gone. Returns what was settled, or the word that was not understood, and everything that was sent.
pub fn greet(
    protocol: Protocol,
    offered: &Offered,
    answer: &mut dyn FnMut(&[u8]) -> Option<u32>,
) -> (Result<Settled, Option<u32>>, Vec<u8>) {
    let shared_input = if offered.takes_shared_input { SharedInput::Used } else { SharedInput::Unused };
    let offer = Offer { map_len: offered.map_len, shared_input, dictionary: offered.dictionary.clone() };
    let mut ends = Ends { answer, sent: Vec::new() };
    let agreed = protocol::greet(&mut ends, protocol, &offer);
    (agreed.map(|agreed| (agreed.shared_input == SharedInput::Used, agreed.first_request)), ends.sent)
}

/// A server's reaction to a request for a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It names a worker, and reports at once that this has ended with a status.
    Tells {
        /// The wait status.
        status: i32,
    },
    /// The same with a number that no worker has, and that must not be killed.
    TellsOfNobody {
        /// 0, or a number that is negative as a signed 32-bit one.
        worker: u32,
        /// The wait status.
        status: i32,
    },
    /// The worker runs until somebody kills it; only then the server reports.
    Hangs,
    /// It sends some bytes of its two words and is gone.
    Leaves {
        /// 0 to 7.
        bytes: u8,
        /// Whether it exits by itself instead of being killed.
        exits: bool,
    },
}

/// The exit code of a server that got another word than expected.
pub const ASKED_WRONGLY: i32 = 98;

/// Lets a host request as many runs as there are steps, of a server that does what they say, until one is an error.
/// Runs that hang get no time at all, others unlimited time.
///
/// # Errors
///
/// The host could not be set up.
pub fn runs(steps: &[Step]) -> Result<Vec<Result<Run, HostError>>, HostError> {
    let failed = |errno: rustix::io::Errno| HostError::Start { action: "make a pipe", source: errno.into() };
    let (hear, control) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    let (status, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    let fuzzer = getpid();
    // SAFETY: the child makes system calls and leaves by `exit`.
    let server = unsafe { libc::fork() };
    if server == 0 {
        drop((control, status));
        serve::stay_with(fuzzer);
        obey(steps, hear.as_fd(), tell.as_fd());
        serve::exit()
    }
    drop((hear, tell));
    let server = Pid::from_raw(server.max(0))
        .ok_or_else(|| HostError::Start { action: "fork", source: std::io::Error::last_os_error() })?;
    let mut host = Host::of(server, control, status)?;
    let mut ended = Vec::new();
    for step in steps {
        let limit = if *step == Step::Hangs { Duration::ZERO } else { Duration::from_secs(600) };
        ended.push(host.run(b"input", limit));
        if ended.last().is_some_and(Result::is_err) {
            break;
        }
    }
    Ok(ended)
}

/// Plays the server's part.
fn obey(steps: &[Step], hear: rustix::fd::BorrowedFd<'_>, tell: rustix::fd::BorrowedFd<'_>) {
    let say = |word: u32| drop(wire::send(tell, &word.to_ne_bytes()));
    let mut killed = 0;
    for step in steps {
        match wire::receive(hear) {
            Ok(Some(word)) if word == killed => {}
            // SAFETY: ends this process.
            Ok(Some(_)) => unsafe { libc::_exit(ASKED_WRONGLY) },
            _ => return,
        }
        killed = u32::from(*step == Step::Hangs);
        match *step {
            Step::Tells { status } => {
                let Some(worker) = decoy() else { return };
                say(worker.as_raw_nonzero().get().cast_unsigned());
                say(status.cast_unsigned());
                let _ = kill_process(worker, Signal::KILL);
                let _ = waitpid(Some(worker), WaitOptions::empty());
            }
            Step::TellsOfNobody { worker, status } => {
                say(worker);
                say(status.cast_unsigned());
            }
            Step::Hangs => {
                let Some(worker) = decoy() else { return };
                say(worker.as_raw_nonzero().get().cast_unsigned());
                let Ok(Some((_, status))) = waitpid(Some(worker), WaitOptions::empty()) else { return };
                say(status.as_raw().cast_unsigned());
            }
            Step::Leaves { bytes, exits } => {
                let _ = wire::send(tell, &[0; 7][..usize::from(bytes.min(7))]);
                if !exits {
                    let _ = kill_process(getpid(), Signal::KILL);
                }
                return;
            }
        }
    }
    // Waits until the host is done.
    let _ = wire::receive(hear);
}

/// Makes a worker that does nothing until it is killed, and dies with its server.
fn decoy() -> Option<Pid> {
    let server = getpid();
    // SAFETY: the child makes system calls only.
    let worker = unsafe { libc::fork() };
    if worker == 0 {
        serve::stay_with(server);
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    Pid::from_raw(worker.max(0))
}
