//! A small HTTP server with hooks, and two programs in C that are attached while clients send requests.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use palimpsest_bpf::elf::Object;
use palimpsest_bpf::host::HostedProgram;
use palimpsest_bpf::jit::Target;
use palimpsest_bpf::map::ArrayHandle;
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Packs, hook};
use zerocopy::{FromBytes, Immutable, IntoBytes};

type Failure = Box<dyn Error + Send + Sync>;

// ANCHOR: hooks
/// What programs see of a request (`http.h`).
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Request {
    now: u64,
    client: u32,
    length: u32,
}

/// What programs see of an answer.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Answered {
    nanoseconds: u64,
    client: u32,
    status: u32,
}

hook! {
    /// Called before a request is answered; a result other than 0 refuses the request.
    pub fn request(request: &Request) = "http.request";
    /// Called after the answer.
    pub fn answered(answered: &Answered) = "http.answered"
}

/// Answers the requests of a connection; `began` is when the server started.
fn serve(stream: TcpStream, began: Instant) -> Result<(), Failure> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    writer.set_nodelay(true)?;
    while let Some(client) = read_request(&mut reader)? {
        let arrived = Instant::now();
        let now = arrived.duration_since(began).as_nanos() as u64;
        let status = if request(&Request { now, client, length: 0 }) == 0 { 200 } else { 429 };
        writer.write_all(format!("HTTP/1.1 {status} .\r\nContent-Length: 5\r\n\r\nhello").as_bytes())?;
        let nanoseconds = arrived.elapsed().as_nanos() as u64;
        answered(&Answered { nanoseconds, client, status });
    }
    Ok(())
}
// ANCHOR_END: hooks

/// Returns the client of the next request, which is the number in its path (`GET /7 HTTP/1.1`), or `None` at the end.
fn read_request(reader: &mut impl BufRead) -> Result<Option<u32>, Failure> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).and_then(|path| path.strip_prefix('/'));
    let client = path.and_then(|path| path.parse().ok()).ok_or_else(|| format!("no client in {line:?}"))?;
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err("a request ends in its head".into());
        }
    }
    Ok(Some(client))
}

/// How many requests were answered, and how many refused.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Seen {
    answered: usize,
    refused: usize,
}

/// Sends requests of a client as long as `more` says so.
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
        let mut body = [0; 5];
        std::io::Read::read_exact(&mut reader, &mut body)?;
        match head.split(' ').nth(1) {
            Some("200") => seen.answered += 1,
            Some("429") => seen.refused += 1,
            other => return Err(format!("status {other:?}").into()),
        }
    }
    Ok(seen)
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

/// Compiles, verifies and returns a program in C; its context has 16 bytes.
fn program(packs: &Packs, name: &str) -> Result<(Arc<HostedProgram>, Arc<palimpsest_bpf::host::Host>), Failure> {
    let file = object_file(name)?;
    let object = Object::parse(&file)?;
    let host = object.host()?.build();
    let program = object.program(name).ok_or("no such program")?;
    let contract = Contract::new().context(16, ContextAccess::Read);
    let linked = host.verify(contract, program.code()?).map_err(|error| program.explain(error).to_string())?;
    Ok((Arc::new(HostedProgram::load(packs, &linked)?), host))
}

fn main() -> Result<(), Failure> {
    if Target::NATIVE.is_none() {
        println!("skipped: there is no compiler for this machine");
        return Ok(());
    }
    let began = Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream, began));
        }
    });
    // One client sends all the time, while programs come and go.
    let done = Arc::new(AtomicBool::new(false));
    let background = thread::spawn({
        let done = Arc::clone(&done);
        // Relaxed: one request more or less does not matter.
        move || send(server, 1, |_| !done.load(Ordering::Relaxed))
    });
    let before = send(server, 2, |sent| sent < 200)?;
    assert_eq!(before, Seen { answered: 200, refused: 0 }, "nothing is attached");

    // ANCHOR: attach
    let packs = Packs::new()?;
    let (limit, _) = program(&packs, "limit")?;
    let (histogram, host) = program(&packs, "histogram")?;
    let limiting = request::HOOK.attach(0, limit)?;
    let counting = answered::HOOK.attach(0, histogram)?;
    // ANCHOR_END: attach

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
    // ANCHOR: read
    let latencies = ArrayHandle::<u64>::new(Arc::clone(host.map("latencies").ok_or("no such map")?))?;
    let counts: Vec<u64> = (0..32).filter_map(|power| latencies.get(power)).collect();
    // ANCHOR_END: read
    // Relaxed: as above.
    done.store(true, Ordering::Relaxed);
    let background = background.join().map_err(|_| "the background client panicked")??;
    let counted: u64 = counts.iter().sum();
    // A request is counted after its answer: the last one of each of the three clients may be missing.
    assert!(counted >= 420 - 3, "{counted}");
    assert_eq!((request::HOOK.failures(), answered::HOOK.failures()), (0, 0));
    println!("of 200 requests at once {} were answered; beside them, of one client: {background:?}", greedy.answered);
    for (power, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        println!("{:>8} µs and more: {count}", 1_u64 << power);
    }
    Ok(())
}
