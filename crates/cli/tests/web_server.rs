//! A Python web server under load, while it is frozen in slices of 2 ms, or served as `run` does it without a flag:
//! each request is answered.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// When a hang is ended; nothing else depends on it.
const LIMIT: Duration = Duration::from_secs(900);
const CLIENTS: u64 = 4;
/// Least requests of each client.
const REQUESTS: u64 = 100;

struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// Starts it; without Python, says so and returns `None`.
    fn start(report: &Path, flags: &[&str], arguments: &[&str]) -> Option<Self> {
        // Debian's first, which is linked dynamically; others may not be.
        let is_python = |path: &&str| Command::new(path).arg("--version").output().is_ok();
        let Some(python) = ["/usr/bin/python3", "python3"].into_iter().find(is_python) else {
            println!("skipped: no python3 (Debian package python3)");
            return None;
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        command.arg("run").args(flags);
        command.arg(format!("--report={}", report.display())).args(["--", python, "-W", "ignore"]);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web_server/server.py")).args(arguments);
        for variable in ["LD_PRELOAD", "PALIMPSEST_PRELOAD", "http_proxy"] {
            command.env_remove(variable);
        }
        command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program was built");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut line).expect("it writes");
        let port = line.trim().parse().unwrap_or_else(|_| panic!("no port: {line:?}, {:?}", process.wait()));
        Some(Self { process, port })
    }

    /// Makes one request. Returns what the server says.
    fn ask(&self, name: &str, what: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream.write_all(format!("GET /{name}/{what} HTTP/1.0\r\n\r\n").as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head and body: {answer:?}"));
        assert!(head.contains(" 200 OK"), "{answer}");
        body.to_owned()
    }

    /// Makes requests, one after the other, until there were enough and the freeze is over. Returns how many.
    fn load(&self, name: &str, report: &Path) -> u64 {
        let until = Instant::now() + LIMIT;
        for count in 1.. {
            let what = if count % 10 == 1 { "fork" } else { "" };
            assert_eq!(self.ask(name, what), format!("{name} {count} 0"));
            if count >= REQUESTS && report.exists() {
                return count;
            }
            assert!(Instant::now() < until, "{count} requests, and the freeze is not over");
        }
        unreachable!("counts are endless")
    }

    /// Makes these requests of a client, one after the other.
    fn load_for(&self, name: &str, counts: std::ops::RangeInclusive<u64>) {
        for count in counts {
            let what = if count % 10 == 1 { "fork" } else { "" };
            assert_eq!(self.ask(name, what), format!("{name} {count} 0"));
        }
    }

    fn end(mut self) {
        self.ask("last", "end");
        assert!(self.process.wait().expect("a child of ours").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _ended = self.process.wait();
    }
}

/// Asks a server that is frozen with these flags besides.
fn each_request_is_answered(further: &[&str], arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let flags = [&["--pause", "2ms", "--pays-after", "any"], further].concat();
    let Some(server) = Server::start(&report, &flags, arguments) else { return };
    let requests: u64 = std::thread::scope(|scope| {
        let (server, report) = (&server, &report);
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || server.load(&format!("client{number}"), report))).collect();
        clients.into_iter().map(|client| client.join().expect("each request is answered")).sum()
    });
    server.end();
    let report = fs::read_to_string(report).expect("it was seen");
    println!("{requests} requests\n{report}");
    let slices = report.lines().find_map(|line| line.strip_prefix("slices")?.split(',').next()?.trim().parse().ok());
    assert!(report.contains("froze process") && !report.contains("under way"), "{report}");
    assert!(slices.is_some_and(|slices: u64| slices >= 2), "{report}");
}

#[test]
fn a_server_of_one_thread_loses_no_request() {
    each_request_is_answered(&[], &[]);
}

#[test]
fn a_server_with_a_thread_for_each_request_loses_none() {
    each_request_is_answered(&["--threads", "stop"], &["threads"]);
}

/// Fails on: a request that is lost while memory is gathered.
#[test]
fn a_server_of_one_thread_loses_no_request_by_default() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let Some(server) = Server::start(&report, &[], &[]) else { return };
    // It is served at waits: between requests, and when there are none for a while.
    let report = std::thread::scope(|scope| {
        let server = &server;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || server.load_for(&format!("client{number}"), 1..=REQUESTS)))
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("each request is answered"));
        let until = Instant::now() + LIMIT;
        while !report.exists() {
            assert!(Instant::now() < until, "no report");
            std::thread::sleep(Duration::from_millis(20));
        }
        (0..CLIENTS).for_each(|number| server.load_for(&format!("client{number}"), REQUESTS + 1..=2 * REQUESTS));
        fs::read_to_string(&report).expect("it was seen")
    });
    server.end();
    println!("{report}");
    let is_served = report.contains("gathered memory of process") || report.contains("froze process");
    assert!(is_served && !report.contains("under way"), "{report}");
}
