//! Suite `redis`: how long Redis stands still when it forks to save 700 MB.
//!
//! In each round every mode has a turn with a new server and the same data: the first fork, which freezes; forks with
//! nothing written in between; forks after writes to existing keys, from few pages to most; and forks with nothing
//! written again, until the policy has had the chance to repair. The saving child is ended at once, for what it saves
//! is not of interest. Redis tells how long its fork took; a repair is part of the fork that buys it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Ended, Mode, Needs, ProgramError, Scratch, Threads, Tool, doing, groups, measure};
use crate::harness::{Asked, BenchError, Context, Group, Suite, failed};

/// See the module.
pub(in crate::suites) struct Redis;

const PROGRAM: &str = "redis-server";

/// States, and what a fork in them is.
const STATES: [(&str, &str); 7] = [
    ("first", "Redis forks with 700 MB: the first time, which freezes"),
    ("idle", "Redis forks with 700 MB, nothing written since"),
    ("same100k", "Redis forks with 700 MB, after 100 000 writes to one key"),
    ("set1k", "Redis forks with 700 MB, after 1000 writes to any keys"),
    ("hot100k", "Redis forks with 700 MB, after 100 000 writes to 1000 keys"),
    ("set100k", "Redis forks with 700 MB, after 100 000 writes to any keys"),
    ("settled", "Redis forks with 700 MB, 60 forks after the last write"),
];

/// Keys, with values of so many bytes: 700 MB as Redis keeps them.
const KEYS: u64 = 1_250_000;
const VALUE: usize = 400;

/// The time after which no other round begins.
const LIMIT: Duration = Duration::from_secs(80);

/// Forks in a row with nothing written in between.
const IDLE_FORKS: usize = 5;

/// Forks after the last writes, before those that show what the policy has made of it.
const SETTLING_FORKS: usize = 60;

/// Writes between forks: name, how many, and to how many different keys. Each key has its entry and its value in pages
/// of their own.
const WRITES: [(&str, usize, u64); 4] =
    [("same100k", 100_000, 1), ("set1k", 1000, KEYS), ("hot100k", 100_000, 1000), ("set100k", 100_000, KEYS)];

impl Suite for Redis {
    fn id(&self) -> &'static str {
        "redis"
    }

    fn description(&self) -> &'static str {
        "forks of an unmodified Redis that saves: plain, with huge pages, frozen"
    }

    fn asked(&self) -> Asked {
        Asked::ByName
    }

    fn groups(&self) -> Vec<Group> {
        groups("redis", &STATES)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        let tool = Tool { program: PROGRAM, package: PROGRAM };
        let needs = Needs { tool, memory: 2500 << 20, rounds: (5, 1), budget: LIMIT };
        let folder = Scratch::new("redis").map_err(failed("redis", "redis"))?;
        measure(context, self.groups(), &needs, |context, mode, sink| {
            let mut server = Server::start(context, mode, &folder.0)?;
            server.ask_ok(&["DEBUG", "POPULATE", &KEYS.to_string(), "key", &VALUE.to_string()])?;
            sink("first", server.fork()?);
            for _ in 0..IDLE_FORKS {
                sink("idle", server.fork()?);
            }
            for (state, writes, keys) in WRITES {
                server.set(writes, keys)?;
                sink(state, server.fork()?);
            }
            for _ in 0..SETTLING_FORKS {
                server.fork()?;
            }
            for _ in 0..IDLE_FORKS {
                sink("settled", server.fork()?);
            }
            Ok(())
        })
    }
}

/// A server with a connection to it.
struct Server {
    process: Ended,
    stream: BufReader<UnixStream>,
    dice: u64,
}

impl Server {
    fn start(context: &Context<'_>, mode: Mode, folder: &Path) -> Result<Self, ProgramError> {
        let socket = folder.join(format!("{}.sock", mode.name()));
        let mut command = mode.command(context, PROGRAM, Threads::Stop)?;
        if mode == Mode::Thp {
            command.env("MALLOC_CONF", "thp:always");
        }
        // It turns huge pages off for itself otherwise.
        let thp = if mode == Mode::Thp { "no" } else { "yes" };
        command.args(["--port", "0", "--save", "", "--enable-debug-command", "yes", "--disable-thp", thp]);
        command
            .args(["--dbfilename", &format!("{}.rdb", mode.name()), "--dir"])
            .arg(folder)
            .arg("--unixsocket")
            .arg(&socket);
        let child = command.stdout(Stdio::null()).spawn().map_err(doing("start redis-server"))?;
        let mut process = Ended(child);
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(source) if start.elapsed() > Duration::from_secs(20) => {
                    return Err(doing("reach redis-server")(source));
                }
                Err(_) if process.0.try_wait().map_err(doing("wait for redis-server"))?.is_some() => {
                    return Err(ProgramError::Ended { program: PROGRAM });
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        };
        stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(doing("limit the time of a socket"))?;
        Ok(Self { process, stream: BufReader::new(stream), dice: 88_172_645_463_325_252 })
    }

    /// Has the server fork, and returns how long that took in microseconds.
    fn fork(&mut self) -> Result<f64, ProgramError> {
        let answer = self.ask(&["BGSAVE"])?;
        if !answer.starts_with("Background") {
            return Err(ProgramError::Answer { program: PROGRAM, question: "BGSAVE".to_owned(), answer });
        }
        let server = self.process.0.id();
        let children = fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
        let children = children.map_err(doing("read the list of redis-server's children"))?;
        for child in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            // As Redis ends it itself: not an error to it. The child may have ended by itself.
            let _ = kill_process(child, Signal::USR1);
        }
        let start = Instant::now();
        while self.info("rdb_bgsave_in_progress")? != "0" {
            if start.elapsed() > Duration::from_secs(30) {
                let answer = "still saving".to_owned();
                return Err(ProgramError::Answer { program: PROGRAM, question: "INFO".to_owned(), answer });
            }
            thread::sleep(Duration::from_millis(2));
        }
        let taken = self.info("latest_fork_usec")?;
        let bad = |_| ProgramError::Answer { program: PROGRAM, question: "INFO".to_owned(), answer: taken.clone() };
        taken.parse().map_err(bad)
    }

    /// Gives random existing keys a new value, `writes` times one of `keys` that are spread over all.
    fn set(&mut self, writes: usize, keys: u64) -> Result<(), ProgramError> {
        let value = "v".repeat(VALUE);
        for batch in (0..writes).step_by(500) {
            let many = (writes - batch).min(500);
            let mut request = String::new();
            for _ in 0..many {
                let key = format!("key:{}", self.roll() % keys * (KEYS / keys));
                request += &format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE}\r\n{value}\r\n", key.len());
            }
            self.stream.get_mut().write_all(request.as_bytes()).map_err(doing("write to redis-server"))?;
            for _ in 0..many {
                let answer = self.answer()?;
                if answer != "OK" {
                    return Err(ProgramError::Answer { program: PROGRAM, question: "SET".to_owned(), answer });
                }
            }
        }
        Ok(())
    }

    /// xorshift64, so that every run writes to the same keys.
    fn roll(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice
    }

    fn info(&mut self, field: &str) -> Result<String, ProgramError> {
        let info = self.ask(&["INFO"])?;
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::to_owned);
        value.ok_or_else(|| ProgramError::Answer {
            program: PROGRAM,
            question: "INFO".to_owned(),
            answer: format!("no {field}"),
        })
    }

    fn ask_ok(&mut self, words: &[&str]) -> Result<(), ProgramError> {
        match self.ask(words)? {
            answer if answer == "OK" => Ok(()),
            answer => Err(ProgramError::Answer { program: PROGRAM, question: words.join(" "), answer }),
        }
    }

    fn ask(&mut self, words: &[&str]) -> Result<String, ProgramError> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.get_mut().write_all(request.as_bytes()).map_err(doing("write to redis-server"))?;
        self.answer()
    }

    /// Reads one answer: a line, or a text with its length.
    fn answer(&mut self) -> Result<String, ProgramError> {
        let reading = "read from redis-server";
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(doing(reading))?;
        let Some((kind, rest)) = line.trim_end().split_at_checked(1) else {
            return Err(ProgramError::Ended { program: PROGRAM });
        };
        match rest.parse::<usize>() {
            Ok(len) if kind == "$" => {
                let mut bytes = vec![0; len + 2];
                self.stream.read_exact(&mut bytes).map_err(doing(reading))?;
                Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
            }
            _ => Ok(rest.to_owned()),
        }
    }
}
