//! A web server in Python that is asked by several clients while it freezes or gathers in slices: each request is
//! answered, once, by a child that has the heap of its moment.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use crate::support::{self, LIMIT, Mode, Running, wait_until};

/// Clients that ask all the time, and how often each asks.
const CLIENTS: usize = 4;
const REQUESTS: usize = 120;

/// Makes one request. Returns its number as the server counts them.
fn ask(socket: &Path) -> usize {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole answer: {answer:?}"));
    assert!(head.contains(" 200 "), "{answer}");
    let (number, heap) = body.split_once(' ').expect("two fields");
    assert_eq!(heap, "right", "a child has another heap than the server had");
    number.parse().expect("a number")
}

/// Asks a new server in this mode, with these variables, under load. Returns its report.
fn report_under_load(python: &Path, mode: Mode, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("server.sock");
    let mut command = support::command(python, mode, &folder, None);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/server.py");
    let mut running = Running::start(command.envs(variables.iter().copied()).arg(script).arg(&socket));
    wait_until("the server listens", || {
        assert!(running.has_ended().is_none(), "the server has ended");
        folder.path().join("server.sock.ready").exists().then_some(())
    });
    let mut numbers: Vec<usize> = thread::scope(|scope| {
        let clients = [(); CLIENTS].map(|()| scope.spawn(|| (0..REQUESTS).map(|_| ask(&socket)).collect::<Vec<_>>()));
        clients.into_iter().flat_map(|client| client.join().expect("each request is answered")).collect()
    });
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=CLIENTS * REQUESTS), "each request once: {numbers:?}");
    support::wait_for_report(&mut running, &folder);
    rustix::process::kill_process(running.pid(), rustix::process::Signal::TERM).expect("it runs");
    let status = running.ends();
    assert!(status.success(), "{status}");
    support::report(&folder)
}

/// Fails on: a child with half a piece; a slice that loses what the server writes between forks, or a signal of a
/// child.
#[test]
fn a_python_server_under_load_loses_no_request_while_it_freezes() {
    let python = support::need!("python3", "/usr/bin/python3", "python3");
    // The least slices, so that the freeze goes on for some hundred requests; and those of the default.
    for (pause, least) in [("1ns", 100), ("2ms", 1)] {
        let report = report_under_load(&python, Mode::Frozen("refuse"), &[("PALIMPSEST_PAUSE", pause)]);
        assert!(support::slices(&report) >= least && report.contains("froze process"), "{report}");
    }
}

/// Fails on: the same for memory that is put together by deputies while children show it.
#[test]
fn a_python_server_under_load_loses_no_request_while_it_gathers() {
    let python = support::need!("python3", "/usr/bin/python3", "python3");
    let variables = [("PALIMPSEST_HUGE", "gather"), ("PALIMPSEST_PAYS_AFTER", "1500"), ("PALIMPSEST_PAUSE", "1ms")];
    let report = report_under_load(&python, Mode::Frozen("refuse"), &variables);
    assert!(is_served(&report), "{report}");
}

/// Whether memory was frozen or gathered.
fn is_served(report: &str) -> bool {
    report.contains("froze process") || report.contains("gathered memory of process")
}

/// Fails on: the same for who says nothing: large mappings are huge from the start, and what follows is gathered.
#[test]
fn a_python_server_under_load_loses_no_request_by_default() {
    let python = support::need!("python3", "/usr/bin/python3", "python3");
    let report = report_under_load(&python, Mode::Default, &[]);
    assert!(is_served(&report), "{report}");
}
