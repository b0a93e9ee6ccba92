//! The errors of a server and of its host.

use std::ffi::OsString;
use std::io;

use palimpsest_fork::{ForkError, FreezeError};

/// Why a target cannot serve a fuzzer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A shared memory segment cannot be attached. The fuzzer was told.
    #[error(
        "cannot attach the fuzzer's shared memory {variable}={value:?}; start the target by afl-fuzz or afl-showmap"
    )]
    Attach {
        /// The environment variable that names it.
        variable: &'static str,
        /// Its value, which should be the number of a System V segment.
        value: OsString,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The program has more guards than the fuzzer's map has counters.
    #[error(
        "the program has {guards} guards and the fuzzer's map {map_len} bytes; set AFL_MAP_SIZE={}",
        guards.next_multiple_of(64)
    )]
    MapTooShort {
        /// Bytes that are needed.
        guards: usize,
        /// Bytes that the map has.
        map_len: usize,
    },
    /// The protocol cannot carry the dictionary.
    #[error("token {index} of the dictionary has {len} bytes; a token has 1 to 255, and all of them less than 16 MiB")]
    Token {
        /// Its index, in the order of `Server::token`.
        index: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// A pipe to the fuzzer broke.
    #[error("the pipe to the fuzzer failed while the target wanted to {action}")]
    Pipe {
        /// The action.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The fuzzer answered the greeting with a word that the protocol does not have.
    #[error("the fuzzer answered the hello with {word:#x}, which no known version does; try AFL_OLD_FORKSERVER=1")]
    Answer {
        /// The word.
        word: u32,
    },
    /// The process could not be frozen.
    #[error("the target could not be frozen; plain fork works without")]
    Freeze(#[source] FreezeError),
    /// No process could be forked for a run.
    #[error("no process could be forked for a run")]
    Fork(#[source] ForkError),
    /// A worker could not take or restore its snapshot.
    #[error("the target cannot be reset: {message}; the modes that fork work without")]
    Snapshot {
        /// The worker's message.
        message: String,
    },
    /// A child could not be waited for or woken.
    #[error("the process {pid} of a run could not be {action}")]
    Worker {
        /// Its id.
        pid: i32,
        /// The action.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// Why a fuzzer cannot run its target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The process has several threads: a fork would leave the locks of others held for ever.
    #[error("the process has {threads} threads; start the host before any thread")]
    Threads {
        /// Their number.
        threads: usize,
    },
    /// The number of threads cannot be read.
    #[error("cannot count the threads of the process; mount /proc")]
    CountThreads(#[source] io::Error),
    /// The shared memory could not be made.
    #[error("no shared memory of {len} bytes for the {what}")]
    Memory {
        /// Its purpose.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A pipe or the server's process could not be made.
    #[error("cannot {action} for the server")]
    Start {
        /// The action.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The server ended before it was ready.
    #[error("the server could not be set up: {message}")]
    SetUp {
        /// The server's message.
        message: String,
    },
    /// The server ended between runs.
    #[error("the server is gone; start another host")]
    ServerGone,
    /// A pipe to the server failed.
    #[error("the pipe to the server failed")]
    Pipe(#[source] io::Error),
    /// The input is longer than the memory set aside for inputs.
    #[error("an input of {len} bytes; the longest is {longest}, see `HostOptions::longest_input`")]
    InputTooLong {
        /// Its length in bytes.
        len: usize,
        /// The longest in bytes.
        longest: usize,
    },
}
