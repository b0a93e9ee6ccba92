//! A small HTTP server, on hyper, with hooks, and two programs in C that are attached while clients send requests.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use palimpsest_bpf::elf::{Btf, Object};
use palimpsest_bpf::host::HostedProgram;
use palimpsest_bpf::jit::Target;
use palimpsest_bpf::layout::Types;
use palimpsest_bpf::map::ArrayHandle;
use palimpsest_bpf::verify::Contract;
use palimpsest_bpf::{Packs, hook, layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

type Failure = Box<dyn Error + Send + Sync>;

// ANCHOR: hooks
layout! {
    /// What programs see of a request; times are nanoseconds.
    #[derive(FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    pub struct Request as "request" {
        now: u64,
        client: u32,
        length: u32,
    }

    /// What programs see of an answer.
    #[derive(FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    pub struct Answered as "answered" {
        nanoseconds: u64,
        client: u32,
        status: u32,
    }
}

/// What is done with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is answered.
    Answer,
    /// It is refused: too many requests.
    Refuse,
}

impl From<u64> for Verdict {
    fn from(result: u64) -> Self {
        if result == 0 { Self::Answer } else { Self::Refuse }
    }
}

hook! {
    /// Called before a request is answered.
    pub fn request(request: &Request) -> Verdict = "http.request";
    /// Called after the answer.
    pub fn answered(answered: &Answered) = "http.answered"
}

/// Answers a request of the client whose number is its path; `began` is when the server started.
fn answer(asked: &hyper::Request<Incoming>, began: Instant) -> Response<Full<Bytes>> {
    let arrived = Instant::now();
    let now = arrived.duration_since(began).as_nanos() as u64;
    let (status, client) = match asked.uri().path().trim_start_matches('/').parse() {
        Err(_) => (StatusCode::NOT_FOUND, 0),
        Ok(client) => match request(&Request { now, client, length: 0 }) {
            Verdict::Answer => (StatusCode::OK, client),
            Verdict::Refuse => (StatusCode::TOO_MANY_REQUESTS, client),
        },
    };
    let mut response = Response::new(Full::from("hello"));
    *response.status_mut() = status;
    let nanoseconds = arrived.elapsed().as_nanos() as u64;
    answered(&Answered { nanoseconds, client, status: status.as_u16().into() });
    response
}
// ANCHOR_END: hooks

/// Serves connections for as long as the process lives.
async fn serve(listener: TcpListener, began: Instant) -> Result<(), Failure> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = service_fn(move |asked| async move { Ok::<_, Infallible>(answer(&asked, began)) });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// How many requests were answered, and how many refused.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Seen {
    answered: usize,
    refused: usize,
}

/// Sends requests of a client, one after the other, as long as `more` says so.
fn send(server: SocketAddr, client: u32, mut more: impl FnMut(usize) -> bool) -> Result<Seen, Failure> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut seen = Seen::default();
    while more(seen.answered + seen.refused) {
        stream.write_all(format!("GET /{client} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Err("the server has gone".into());
            }
        }
        reader.read_exact(&mut [0; "hello".len()])?;
        match head.split(' ').nth(1) {
            Some("200") => seen.answered += 1,
            Some("429") => seen.refused += 1,
            other => return Err(format!("status {other:?}").into()),
        }
    }
    Ok(seen)
}

/// Clients that send all the time.
struct Load {
    done: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    clients: Vec<thread::JoinHandle<Result<Seen, Failure>>>,
}

impl Load {
    /// Starts clients with the numbers from 1000 on.
    fn start(server: SocketAddr, clients: u32) -> Self {
        let (done, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = |number| {
            let (done, sent) = (Arc::clone(&done), Arc::clone(&sent));
            // Relaxed: one request more or less does not matter.
            let more = move |_| {
                sent.fetch_add(1, Ordering::Relaxed);
                !done.load(Ordering::Relaxed)
            };
            thread::spawn(move || send(server, 1000 + number, more))
        };
        let clients = (0..clients).map(client).collect();
        Self { done, sent, clients }
    }

    /// Waits until they have sent 1000 requests more, and prints how many that is in a second.
    fn measure(&self, when: &str) {
        let (began, first) = (Instant::now(), self.sent.load(Ordering::Relaxed));
        let sent = loop {
            let sent = self.sent.load(Ordering::Relaxed) - first;
            if sent >= 1000 || self.clients.iter().all(thread::JoinHandle::is_finished) {
                break sent;
            }
            thread::sleep(Duration::from_millis(1));
        };
        println!("{when}: {:.0} requests in a second", sent as f64 / began.elapsed().as_secs_f64());
    }

    /// Ends them. Returns what they have seen.
    fn end(self) -> Result<Seen, Failure> {
        self.done.store(true, Ordering::Relaxed);
        let mut all = Seen::default();
        for client in self.clients {
            let seen = client.join().map_err(|_| "a client panicked")??;
            all = Seen { answered: all.answered + seen.answered, refused: all.refused + seen.refused };
        }
        Ok(all)
    }
}

/// Returns the object file of a program: compiled by the clang of this machine, or kept from clang 14.
fn object_file(name: &str) -> Result<Vec<u8>, Failure> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("http_hooks");
    let source = folder.join(name).with_extension("c");
    let clang = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-c", "-o", "-"];
    match Command::new("clang").args(clang).arg(&source).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("target") => {
            println!("{name}: this clang does not compile for bpf; the object file that is kept is taken");
            Ok(std::fs::read(folder.join(name).with_extension("o"))?)
        }
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into()),
        Err(_) => {
            println!("{name}: there is no clang; the object file that is kept is taken");
            Ok(std::fs::read(folder.join(name).with_extension("o"))?)
        }
    }
}

// ANCHOR: types
/// The contexts of both hooks, as programs know them.
fn types() -> Types {
    request::HOOK.types().and::<Answered>()
}

/// The header for programs, which is kept beside them.
const HEADER: &str = include_str!("http_hooks/hooks.h");

/// Compiles, verifies and returns a program in C for a hook with this contract.
fn program(
    packs: &Packs,
    name: &str,
    contract: Contract,
) -> Result<(Arc<HostedProgram>, Arc<palimpsest_bpf::host::Host>), Failure> {
    let file = object_file(name)?;
    // Reads members where they are here, also if the program was compiled against another header.
    let object = Object::parse_for(&file, Some(&Btf::parse(&types().btf())?))?;
    let host = object.host()?.build();
    let program = object.program(name).ok_or("no such program")?;
    let linked = host.verify(contract, program.code()?).map_err(|error| program.explain(error).to_string())?;
    Ok((Arc::new(HostedProgram::load(packs, &linked)?), host))
}
// ANCHOR_END: types

fn main() -> Result<(), Failure> {
    let header = types().header("http_hooks");
    if std::env::args().any(|argument| argument == "--header") {
        print!("{header}");
        return Ok(());
    }
    assert!(header == HEADER, "the types have changed: write examples/http_hooks/hooks.h again, with `--header`");
    if Target::NATIVE.is_none() {
        println!("skipped: there is no compiler for this machine");
        return Ok(());
    }
    let began = Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    thread::spawn(move || runtime.block_on(serve(listener, began)));
    let load = Load::start(server, 2);
    load.measure("nothing attached");
    let before = send(server, 2, |sent| sent < 200)?;
    assert_eq!(before, Seen { answered: 200, refused: 0 }, "nothing is attached");

    // ANCHOR: attach
    let packs = Packs::new()?;
    let (limit, _) = program(&packs, "limit", request::HOOK.contract())?;
    let (histogram, host) = program(&packs, "histogram", answered::HOOK.contract())?;
    let limiting = request::HOOK.attach(0, limit)?;
    let counting = answered::HOOK.attach(0, histogram)?;
    // ANCHOR_END: attach

    load.measure("both attached");
    let started = Instant::now();
    let greedy = send(server, 3, |sent| sent < 200)?;
    let seconds = started.elapsed().as_secs() as usize;
    assert!(greedy.answered >= 20, "{greedy:?}: as many as a client may send at once");
    assert!(greedy.answered <= 20 + seconds + 1, "{greedy:?} in {seconds} seconds");
    let polite = send(server, 4, |sent| sent < 20)?;
    assert_eq!(polite, Seen { answered: 20, refused: 0 }, "the limit is one for each client");
    limiting.detach()?;
    let after = send(server, 3, |sent| sent < 200)?;
    assert_eq!(after, Seen { answered: 200, refused: 0 }, "detached");
    counting.detach()?;
    load.measure("detached");
    // ANCHOR: read
    let latencies = ArrayHandle::<u64>::new(Arc::clone(host.map("latencies").ok_or("no such map")?))?;
    let counts: Vec<u64> = (0..32).filter_map(|power| latencies.get(power)).collect();
    // ANCHOR_END: read
    let others = load.end()?;
    let counted: u64 = counts.iter().sum();
    // All of clients 3 and 4 but the last one, which may be counted after its answer.
    assert!(counted >= 420 - 1, "{counted}");
    assert_eq!((request::HOOK.failures(), answered::HOOK.failures()), (0, 0));
    println!(
        "of 200 requests at once {} were answered; of all that the other clients sent: {others:?}",
        greedy.answered
    );
    for (power, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        println!("{:>8} µs and more: {count}", 1_u64 << power);
    }
    Ok(())
}
