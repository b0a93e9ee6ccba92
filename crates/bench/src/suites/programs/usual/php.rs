//! php-fpm with one worker that serves one request and ends, so that each request waits for a fork.
//!
//! Records: the FastCGI specification, version 1.0, sections 3.3 and 8.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use super::{Place, Spent, Subject};
use crate::suites::programs::{ProgramError, Stopped, doing};

const PROGRAM: &str = "php-fpm";

/// Where Debian has the program; a version follows its name.
const FOLDER: &str = "/usr/sbin";

/// Requests for one sample.
pub(super) const REQUESTS: u32 = 20;

/// What the script prints.
const GREETING: &str = "palimpsest";

/// Returns the program with the last name.
fn program() -> Option<PathBuf> {
    let names = fs::read_dir(FOLDER).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = names.filter(|name| name.starts_with(PROGRAM)).max()?;
    Some(Path::new(FOLDER).join(newest))
}

/// Returns why it cannot be measured.
pub(super) fn missing() -> Option<String> {
    program().is_none().then(|| format!("there is no {FOLDER}/{PROGRAM}*: install Debian's package {PROGRAM}"))
}

pub(super) fn start(place: &Place<'_>) -> Result<Box<dyn Subject>, ProgramError> {
    let program = program().ok_or(ProgramError::Ended { program: PROGRAM })?;
    let (file, script) = (place.folder.join("fpm.conf"), place.folder.join("script.php"));
    let socket = place.folder.join("socket");
    let written = fs::write(&script, format!("<?php echo '{GREETING}';"));
    let rights = if geteuid().is_root() { "user = root\ngroup = root\n" } else { "" };
    let text = format!(
        "[global]\nerror_log = {}\ndaemonize = no\n[one]\nlisten = {}\n{rights}pm = static\npm.max_children = 1\n\
         pm.max_requests = 1\n",
        place.folder.join("log").display(),
        socket.display()
    );
    written.and_then(|()| fs::write(&file, text)).map_err(doing(format!("write {}", file.display())))?;
    let mut command = place.command(&program.display().to_string())?;
    command.args(["--nodaemonize", "--fpm-config"]).arg(&file);
    if geteuid().is_root() {
        command.arg("--allow-to-run-as-root");
    }
    let mut server = Stopped::start(command.stdout(Stdio::null()).stderr(Stdio::null()), Signal::TERM)?;
    server.wait_for(PROGRAM, || UnixStream::connect(&socket).ok())?;
    Ok(Box::new(Running { server, socket, script: script.display().to_string() }))
}

struct Running {
    server: Stopped,
    socket: PathBuf,
    script: String,
}

impl Subject for Running {
    fn sample(&mut self) -> Result<f64, ProgramError> {
        let started = Instant::now();
        for _ in 0..REQUESTS {
            let answer = request(&self.socket, &self.script).map_err(doing("ask php-fpm for a page"))?;
            if !answer.ends_with(GREETING) {
                return Err(ProgramError::Answer { program: PROGRAM, question: self.script.clone(), answer });
            }
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(REQUESTS))
    }

    fn spent(&self) -> Result<Spent, ProgramError> {
        Spent::by(self.server.pid())
    }
}

/// Kinds of records.
const BEGIN: u8 = 1;
const END: u8 = 3;
const PARAMETERS: u8 = 4;
const INPUT: u8 = 5;
const OUTPUT: u8 = 6;
/// The role of a process that answers requests.
const RESPONDER: u8 = 1;

/// Returns the output of the script at `path`, with its headers.
fn request(socket: &Path, path: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let parameters: Vec<u8> = [("SCRIPT_FILENAME", path), ("REQUEST_METHOD", "GET"), ("QUERY_STRING", "")]
        .iter()
        .flat_map(|(name, value)| pair(name, value))
        .collect();
    let records = [
        record(BEGIN, &[0, RESPONDER, 0, 0, 0, 0, 0, 0]),
        record(PARAMETERS, &parameters),
        record(PARAMETERS, &[]),
        record(INPUT, &[]),
    ];
    stream.write_all(&records.concat())?;
    let mut output = Vec::new();
    loop {
        let (kind, content) = answer(&mut stream)?;
        match kind {
            OUTPUT => output.extend(content),
            END => return Ok(String::from_utf8_lossy(&output).into_owned()),
            _ => {}
        }
    }
}

/// Returns a record of request 1, without padding.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[1, kind, 0, 1, high, low, 0, 0], content].concat()
}

/// Returns a name and its value, after their lengths; a length of four bytes has its highest bit set.
fn pair(name: &str, value: &str) -> Vec<u8> {
    let len = |text: &str| (u32::try_from(text.len()).unwrap_or(u32::MAX) | 1 << 31).to_be_bytes();
    [&len(name)[..], &len(value), name.as_bytes(), value.as_bytes()].concat()
}

/// Returns the next record's kind and content.
fn answer(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 8];
    from.read_exact(&mut head)?;
    let len = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let mut content = vec![0; len + usize::from(head[6])];
    from.read_exact(&mut content)?;
    content.truncate(len);
    Ok((head[1], content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_built_and_read() {
        let built = record(OUTPUT, b"text");
        assert_eq!(built[..8], [1, OUTPUT, 0, 1, 0, 4, 0, 0]);
        assert_eq!(answer(&mut &built[..]).expect("whole"), (OUTPUT, b"text".to_vec()));
        let padded = [1, END, 0, 1, 0, 1, 2, 0, b'x', 0, 0];
        assert_eq!(answer(&mut &padded[..]).expect("whole"), (END, b"x".to_vec()));
        assert!(answer(&mut &padded[..9]).is_err(), "its padding is missing");
        assert_eq!(pair("a", "bc"), b"\x80\0\0\x01\x80\0\0\x02abc");
    }
}
