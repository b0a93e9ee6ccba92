//! PostgreSQL: connections of a client that only speaks the protocol's first and last messages.
//!
//! Messages: "Frontend/Backend Protocol", section 55.7 of the manual of version 15.

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use super::{Place, Spent, Subject};
use crate::suites::programs::{ProgramError, Stopped, Tool, doing, finish};

const PROGRAM: &str = "postgres";

/// Where Debian has the versions, and the user that the package creates.
const VERSIONS: &str = "/usr/lib/postgresql";
const USER: &str = "postgres";

/// Gives up root's rights before it executes PostgreSQL, which refuses to run as root.
const DROPS_RIGHTS: Tool = Tool { program: "setpriv", package: "util-linux" };

/// Connections for one sample.
pub(super) const CONNECTIONS: u32 = 20;

/// Returns the folder with the programs of the newest version.
fn folder() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = versions.filter_map(|name| name.parse::<u32>().ok()).max()?;
    let folder = Path::new(VERSIONS).join(newest.to_string()).join("bin");
    folder.join(PROGRAM).is_file().then_some(folder)
}

/// Returns why it cannot be measured.
pub(super) fn missing() -> Option<String> {
    if folder().is_none() {
        return Some(format!("there is no {VERSIONS}/VERSION/bin/{PROGRAM}: install Debian's package postgresql"));
    }
    if !geteuid().is_root() {
        return None;
    }
    let nobody = || format!("PostgreSQL does not run as root, and there is no user {USER}");
    DROPS_RIGHTS.missing().or_else(|| user().is_none().then(nobody))
}

/// Returns the numbers of the package's user and group.
fn user() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (USER, _password, user, group) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?) else {
            return None;
        };
        Some((user.parse().ok()?, group.parse().ok()?))
    })
}

/// Returns what to execute instead of `program`, so that it runs without root's rights.
fn unprivileged(program: &Path, owner: Option<(u32, u32)>) -> (String, Vec<String>) {
    let program = program.display().to_string();
    match owner {
        None => (program, Vec::new()),
        Some((user, group)) => {
            let words = ["--reuid", &user.to_string(), "--regid", &group.to_string(), "--clear-groups", &program];
            (DROPS_RIGHTS.program.to_owned(), words.map(str::to_owned).to_vec())
        }
    }
}

pub(super) fn start(place: &Place<'_>) -> Result<Box<dyn Subject>, ProgramError> {
    let programs = folder().ok_or(ProgramError::Ended { program: PROGRAM })?;
    let owner = if geteuid().is_root() { user() } else { None };
    if let Some((user, group)) = owner {
        chown(place.folder, Some(user), Some(group)).map_err(doing("give a folder to PostgreSQL's user"))?;
    }
    let data = place.folder.join("data");
    let (program, words) = unprivileged(&programs.join("initdb"), owner);
    finish(
        Command::new(program)
            .args(words)
            .args(["--auth", "trust", "--username", USER, "--no-sync", "--pgdata"])
            .arg(&data)
            .current_dir(place.folder),
    )?;
    let (program, words) = unprivileged(&programs.join(PROGRAM), owner);
    let mut command = place.command(&program)?;
    command.args(words).arg("-D").arg(&data).arg("-k").arg(place.folder).current_dir(place.folder);
    // Switches off what would work by itself now and then.
    command.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "autovacuum=off"]);
    let log = place.folder.join("log");
    let log = fs::File::create(&log).map_err(doing(format!("write {}", log.display())))?;
    // A "fast shutdown".
    let mut server = Stopped::start(command.stdout(Stdio::null()).stderr(log), Signal::INT)?;
    let socket = place.folder.join(".s.PGSQL.5432");
    server.wait_for(PROGRAM, || connection(&socket).ok())?;
    Ok(Box::new(Running { server, socket }))
}

struct Running {
    server: Stopped,
    socket: PathBuf,
}

impl Subject for Running {
    fn sample(&mut self) -> Result<f64, ProgramError> {
        let started = Instant::now();
        for _ in 0..CONNECTIONS {
            connection(&self.socket)?;
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(CONNECTIONS))
    }

    fn spent(&self) -> Result<Spent, ProgramError> {
        Spent::by(self.server.pid())
    }
}

/// Version 3.0 of the protocol.
const VERSION: u32 = 3 << 16;
/// `AuthenticationOk` and the like, one byte for each kind of message.
const READY: u8 = b'Z';
const ERROR: u8 = b'E';

/// Connects, waits until the server is ready for a query, and leaves.
fn connection(socket: &Path) -> Result<(), ProgramError> {
    let mut stream = UnixStream::connect(socket).map_err(doing("reach PostgreSQL"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(doing("limit the time of a socket"))?;
    let speaking = || doing("speak to PostgreSQL");
    stream.write_all(&greeting()).map_err(speaking())?;
    let mut answers = BufReader::new(&stream);
    loop {
        let (kind, body) = message(&mut answers).map_err(speaking())?;
        match kind {
            READY => break,
            ERROR => {
                let answer = String::from_utf8_lossy(&body).replace('\0', " ");
                return Err(ProgramError::Answer { program: PROGRAM, question: "a connection".to_owned(), answer });
            }
            _ => {}
        }
    }
    let mut rest = Vec::new();
    // `Terminate`. The stream ends when the process that served it ends.
    (&stream).write_all(b"X\0\0\0\x04").map_err(speaking())?;
    answers.read_to_end(&mut rest).map(drop).map_err(speaking())
}

/// Returns a `StartupMessage`: its length, the version, names and values.
fn greeting() -> Vec<u8> {
    let mut body = VERSION.to_be_bytes().to_vec();
    body.extend_from_slice(format!("user\0{USER}\0database\0postgres\0\0").as_bytes());
    let len = u32::try_from(body.len() + size_of::<u32>()).unwrap_or(u32::MAX);
    [&len.to_be_bytes()[..], &body].concat()
}

/// Reads one message: its kind, and what follows the length, which counts itself.
fn message(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let rest = len.checked_sub(size_of::<u32>()).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; rest];
    from.read_exact(&mut body)?;
    Ok((head[0], body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_built_and_read() {
        let greeting = greeting();
        assert_eq!(greeting[..8], [0, 0, 0, greeting.len() as u8, 0, 3, 0, 0]);
        assert!(greeting.ends_with(b"postgres\0\0"));
        let mut stream = &b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I"[..];
        assert_eq!(message(&mut stream).expect("whole"), (b'R', vec![0; 4]));
        assert_eq!(message(&mut stream).expect("whole"), (READY, b"I".to_vec()));
        assert!(message(&mut stream).is_err());
        assert!(message(&mut &b"R\0\0\0\x03"[..]).is_err(), "shorter than its length");
    }
}
