//! gunicorn with `--preload`: workers that share what the master has loaded.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use crate::support::{self, LIMIT, Mode, Running, wait_until};

const WORKERS: usize = 3;

/// Returns what the workers answer, without their numbers: each worker's answers in order. Also the page tables of the
/// workers in kB, and the report.
fn serve(gunicorn: &Path, mode: Mode) -> (Vec<Vec<String>>, Vec<u64>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("gunicorn.sock");
    let mut command = support::command(gunicorn, mode, &folder, None);
    command.args(["--preload", "--workers", &WORKERS.to_string(), "--timeout", "1200", "--log-level", "warning"]);
    command.args(["--chdir", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs"), "--bind"]);
    command.arg(format!("unix:{}", socket.display())).arg("application:application");
    let mut running = Running::start(command.env("PYTHONDONTWRITEBYTECODE", "1"));
    wait_until("all workers run", || {
        assert!(running.has_ended().is_none(), "gunicorn has ended");
        let workers = support::children(running.pid()).len();
        (workers == WORKERS && UnixStream::connect(&socket).is_ok()).then_some(())
    });
    let workers = support::children(running.pid());
    let tables = workers.iter().filter_map(|worker| support::status_kb(*worker, "VmPTE")).collect();
    let mut answers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // Each worker gives at least a first and a second answer. The kernel chooses which one serves; but a worker that
    // has taken a connection waits for its request, and leaves the next to the others.
    let until = Instant::now() + LIMIT;
    while answers.len() < WORKERS || answers.values().any(|answers| answers.len() < 2) {
        assert!(Instant::now() < until, "some worker never serves: {answers:?}");
        let connections: Vec<UnixStream> = (0..WORKERS).map(|_| connect(&socket)).collect();
        for connection in connections {
            let (worker, answer) = ask(connection);
            answers.entry(worker).or_default().push(answer);
        }
    }
    let mut answers: Vec<Vec<String>> = answers.into_values().map(|answers| answers[..2].to_vec()).collect();
    answers.sort();
    (answers, tables, support::report(&folder))
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("gunicorn listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    stream
}

/// Makes one request. Returns the worker's number, and what else it says.
fn ask(mut stream: UnixStream) -> (String, String) {
    stream.write_all(b"GET /?key HTTP/1.0\r\n\r\n").expect("gunicorn reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("gunicorn answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains("200 OK"), "{answer}");
    let (worker, rest) = body.split_once(',').expect("several fields");
    (worker.to_owned(), rest.to_owned())
}

#[test]
fn workers_answer_from_the_preloaded_heap() {
    let gunicorn = support::need!("gunicorn", "/usr/bin/gunicorn", "gunicorn");
    let (plain, plain_tables, _) = serve(&gunicorn, Mode::Plain);
    let (frozen, frozen_tables, report) = serve(&gunicorn, Mode::Frozen("refuse"));
    assert_eq!(plain, frozen, "{report}");
    println!("page tables of the workers, kB: plain {plain_tables:?}, frozen {frozen_tables:?}");
    // By now each worker may have read some of its heap, so that the least are compared.
    let least = |tables: &[u64]| tables.iter().min().copied().expect("a worker");
    support::assert_few_tables(least(&plain_tables), least(&frozen_tables), &report);
}
