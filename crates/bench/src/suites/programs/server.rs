//! A Redis server of our own, started in a mode, and a client of its socket.
//!
//! Protocol: the Redis serialization protocol specification, version 2.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Ended, Mode, ProgramError, doing};

pub(super) const PROGRAM: &str = "redis-server";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a connection to it.
pub(super) struct Server {
    process: Ended,
    stream: BufReader<UnixStream>,
    socket: PathBuf,
    dice: u64,
}

impl Server {
    /// Starts the server by `command`, with its files in `folder`.
    pub(super) fn start(mut command: Command, mode: Mode, folder: &Path) -> Result<Self, ProgramError> {
        let socket = folder.join(format!("{}.sock", mode.name()));
        if mode == Mode::Thp {
            command.env("MALLOC_CONF", "thp:always");
        }
        // Otherwise it turns huge pages off for itself.
        let thp = if mode == Mode::Thp { "no" } else { "yes" };
        command.args(["--port", "0", "--save", "", "--enable-debug-command", "yes", "--disable-thp", thp]);
        command.args(["--dbfilename", &file_name(mode), "--dir"]).arg(folder).arg("--unixsocket").arg(&socket);
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
        stream.set_read_timeout(Some(PATIENCE)).map_err(doing("limit the time of a socket"))?;
        Ok(Self { process, stream: BufReader::new(stream), socket, dice: 88_172_645_463_325_252 })
    }

    /// Returns the file to which a server of this mode saves.
    pub(super) fn saved(mode: Mode, folder: &Path) -> PathBuf {
        folder.join(file_name(mode))
    }

    /// Makes another connection to the server.
    pub(super) fn connect(&self) -> Result<UnixStream, ProgramError> {
        let stream = UnixStream::connect(&self.socket).map_err(doing("reach redis-server"))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(doing("limit the time of a socket"))?;
        Ok(stream)
    }

    /// Makes the keys from `key:0` on, with values of this many bytes.
    pub(super) fn populate(&mut self, keys: u64, value: usize) -> Result<(), ProgramError> {
        if keys == 0 {
            return Ok(());
        }
        self.ask_ok(&["DEBUG", "POPULATE", &keys.to_string(), "key", &value.to_string()])
    }

    /// Makes the server fork, and returns how long that took in microseconds. Kills the saving child at once.
    pub(super) fn fork(&mut self) -> Result<f64, ProgramError> {
        self.save()?;
        self.stop_saving()?;
        self.fork_taken()
    }

    /// Ends a saving child.
    pub(super) fn stop_saving(&mut self) -> Result<(), ProgramError> {
        let start = Instant::now();
        while self.is_saving()? {
            for child in self.saving()? {
                // Redis itself ends it so, and does not count that as an error. The child may have ended already.
                let _ = kill_process(child, Signal::USR1);
            }
            if start.elapsed() > Duration::from_secs(30) {
                let answer = "still saving".to_owned();
                return Err(ProgramError::Answer { program: PROGRAM, question: "INFO".to_owned(), answer });
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Returns the server's number.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process.0)
    }

    /// Returns its children that save.
    pub(super) fn saving(&self) -> Result<Vec<Pid>, ProgramError> {
        Ok(only_saving(self.children()?))
    }

    /// Returns its children, deputies of the object among them, whose memory is the server's.
    fn children(&self) -> Result<Vec<Pid>, ProgramError> {
        let server = self.pid().as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
        let children = children.map_err(doing("read the list of redis-server's children"))?;
        Ok(children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
    }

    /// Makes the server begin to save.
    pub(super) fn save(&mut self) -> Result<(), ProgramError> {
        match self.ask(&["BGSAVE"])? {
            answer if answer.starts_with("Background") => Ok(()),
            answer => Err(ProgramError::Answer { program: PROGRAM, question: "BGSAVE".to_owned(), answer }),
        }
    }

    /// Returns whether it is saving.
    pub(super) fn is_saving(&mut self) -> Result<bool, ProgramError> {
        Ok(self.info("rdb_bgsave_in_progress")? != "0")
    }

    /// Returns how long its last fork took, in microseconds.
    pub(super) fn fork_taken(&mut self) -> Result<f64, ProgramError> {
        let taken = self.info("latest_fork_usec")?;
        let bad = |_| ProgramError::Answer { program: PROGRAM, question: "INFO".to_owned(), answer: taken.clone() };
        taken.parse().map_err(bad)
    }

    /// Gives keys new values of `value` bytes, `writes` times: random ones of `keys` keys that are spread over
    /// `0..all`.
    pub(super) fn set(&mut self, writes: usize, keys: u64, all: u64, value: usize) -> Result<(), ProgramError> {
        let text = "v".repeat(value);
        for batch in (0..writes).step_by(500) {
            let many = (writes - batch).min(500);
            let mut request = String::new();
            for _ in 0..many {
                request += &setting(self.roll() % keys * (all / keys), &text);
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

    /// Returns the next number of xorshift64, so that every run writes to the same keys.
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
        self.stream.get_mut().write_all(request(words).as_bytes()).map_err(doing("write to redis-server"))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<String, ProgramError> {
        answer(&mut self.stream)
    }
}

/// Returns those children that have named themselves as ones that save. Deputies of the object are children, too, and
/// go on: without them the server freezes by itself.
fn only_saving(mut children: Vec<Pid>) -> Vec<Pid> {
    let saves = |child: &Pid| {
        let title = fs::read(format!("/proc/{}/cmdline", child.as_raw_nonzero())).unwrap_or_default();
        title.starts_with(b"redis-rdb-bgsave")
    };
    children.retain(saves);
    children
}

fn file_name(mode: Mode) -> String {
    format!("{}.rdb", mode.name())
}

/// Returns a command as an array of strings.
pub(super) fn request(words: &[&str]) -> String {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request
}

/// Returns the command that gives the key with this number a value.
pub(super) fn setting(key: u64, value: &str) -> String {
    request(&["SET", &format!("key:{key}"), value])
}

/// Reads one answer: a line, or a string with its length.
pub(super) fn answer(from: &mut impl BufRead) -> Result<String, ProgramError> {
    let reading = "read from redis-server";
    let mut line = String::new();
    from.read_line(&mut line).map_err(doing(reading))?;
    let Some((kind, rest)) = line.trim_end().split_at_checked(1) else {
        return Err(ProgramError::Ended { program: PROGRAM });
    };
    match rest.parse::<usize>() {
        Ok(len) if kind == "$" => {
            let mut bytes = vec![0; len + 2];
            from.read_exact(&mut bytes).map_err(doing(reading))?;
            Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
        }
        _ => Ok(rest.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn children_that_save_are_told_by_their_title() {
        let start = |title: &str| {
            let mut shell = Command::new("sh");
            let child = shell.arg0(title).args(["-c", "read line"]).stdin(Stdio::piped()).spawn().expect("sh starts");
            // It has begun to be the shell, and its title may not be there yet.
            while fs::read(format!("/proc/{}/cmdline", child.id())).is_ok_and(|line| line.is_empty()) {
                thread::yield_now();
            }
            Ended(child)
        };
        let [other, saving] = ["sh", "redis-rdb-bgsave *:1"].map(start);
        let [other, saving] = [&other, &saving].map(|child| Pid::from_child(&child.0));
        assert_eq!(only_saving(vec![other, saving]), [saving]);
    }

    #[test]
    fn commands_are_built_and_answers_read() {
        assert_eq!(request(&["SET", "a", "bc"]), "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\nbc\r\n");
        assert_eq!(setting(7, "v"), request(&["SET", "key:7", "v"]));
        let mut stream = &b"+OK\r\n$3\r\nabc\r\n$-1\r\n:12\r\n"[..];
        let answers = [0; 4].map(|_| answer(&mut stream).expect("whole"));
        assert_eq!(answers, ["OK", "abc", "-1", "12"]);
        assert!(matches!(answer(&mut stream), Err(ProgramError::Ended { .. })));
        assert!(answer(&mut &b"$5\r\nab"[..]).is_err());
    }
}
