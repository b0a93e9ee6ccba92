//! Ring buffers that another process reads: it gets the descriptor of the buffer's memory, and that of an event.
//!
//! Mutants that are caught: a length that is not compared with the room that was taken, or with the end of the buffer;
//! a producers' position that may be anywhere; a header whose other bits do not count; the reader's own position read
//! back from memory that others write; a record that is not cleared; a call without a bound.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use palimpsest_bpf::host::Host;
use palimpsest_bpf::interp::Interpreter;
use palimpsest_bpf::map::{
    BrokenRing, Definition, Drained, Event, Kind, Map, OpenRingError, RecordLength, Rest, Ring, RingReader, Waited,
    Waiter, Wake,
};
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, asm};
use palimpsest_sys::memory::words::SharedWords;

/// Bytes of the buffer.
const LEN: u64 = 4096;
/// Where the producers' position and the records are in its memory.
const PRODUCERS: u64 = 4096;
const RECORDS: u64 = 8192;
/// The bit of a header that is always there.
const THERE: u64 = 1 << 29;

fn made() -> Map {
    let map = Map::new(Definition::new("ring", Kind::RingBuffer, 0, 0, LEN as u32)).expect("good measures");
    map.shared_with_processes().expect("a memory object")
}

fn ring(map: &Map) -> &Ring {
    map.ring().expect("it is one")
}

fn owned(descriptor: BorrowedFd<'_>) -> OwnedFd {
    descriptor.try_clone_to_owned().expect("a descriptor")
}

fn memory(map: &Map) -> OwnedFd {
    owned(ring(map).descriptor().expect("it is shared"))
}

fn reader(map: &Map) -> RingReader {
    RingReader::open(memory(map)).expect("a ring buffer")
}

/// Returns what is there, and whether that is all.
fn drained(reader: &mut RingReader) -> Result<(Vec<Vec<u8>>, Rest), BrokenRing> {
    let mut records = Vec::new();
    let Drained { records: count, rest } = reader.drain(|record| records.push(record.to_vec()))?;
    assert_eq!(count, records.len());
    Ok((records, rest))
}

fn words(numbers: &[u64]) -> (Vec<Vec<u8>>, Rest) {
    (numbers.iter().map(|number| number.to_ne_bytes().to_vec()).collect(), Rest::Nothing)
}

/// Writes a word to the memory, as any process can that has it.
fn poke(memory: &File, offset: u64, word: u64) {
    memory.write_all_at(&word.to_ne_bytes(), offset).expect("it is mapped for writing");
}

/// Set in the process that reads.
const CHILD: &str = "PALIMPSEST_BPF_READS";
/// Records that it reads.
const COUNT: u64 = 20_000;

/// Plays the reader in a process of its own. It gets the memory as its standard input, and the event as its standard
/// error, to which nobody writes: so it has both, and no other descriptor of this process.
#[test]
fn another_process_reads_and_is_woken() {
    if std::env::var_os(CHILD).is_some() {
        return read_in_child();
    }
    let event = Arc::new(Event::new().expect("an event"));
    let map = Arc::new(made().signalling(&event));
    let own = std::env::current_exe().expect("a test has a path");
    let mut child = Command::new(own);
    child.args(["--exact", "another_process_reads_and_is_woken"]).env(CHILD, "1");
    let child = child.stdin(memory(&map)).stdout(Stdio::piped()).stderr(owned(event.as_fd())).spawn();
    let mut child = child.expect("it starts");
    let host = Host::builder().map(Arc::clone(&map)).build();
    let output = asm::assemble("r2 = r1\nr1 = map[idx:0] ll\nr3 = 8\nr4 = 0\ncall 130\nexit").expect("a program");
    let contract = Contract::of::<u64>(ContextAccess::Read);
    let linked = host.verify(contract, Code::new(&output).expect("its structure is right")).expect("harmless");
    'all: for number in 0..COUNT {
        // Until the other process has made room.
        while linked.interpret(&Interpreter::default(), &mut number.to_ne_bytes()) != Ok(0) {
            if child.try_wait().expect("it is ours").is_some() {
                break 'all;
            }
            std::thread::yield_now();
        }
    }
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(ring(&map).pending(), 0);
}

fn read_in_child() {
    /// Only bounds a hang.
    const PATIENCE: Duration = Duration::from_secs(600);
    let (ring, event) = (owned(std::io::stdin().as_fd()), owned(std::io::stderr().as_fd()));
    let mut next = 0;
    // ANCHOR: reader
    let mut reader = RingReader::open(ring).expect("a ring buffer");
    let event = Waiter::from(event);
    while next < COUNT {
        let drained = reader.drain(|record| {
            assert_eq!(RecordLength::check::<u64>(record), Ok(next));
            next += 1;
        });
        if drained.expect("nobody damages it").rest == Rest::Nothing && next < COUNT {
            assert_eq!(event.wait(PATIENCE).expect("it works"), Waited::Signalled, "nobody woke the reader at {next}");
        }
    }
    // ANCHOR_END: reader
}

#[test]
fn one_consumer_goes_on_where_another_has_stopped() {
    let map = made();
    let put = |number: u64| assert!(ring(&map).output(&number.to_ne_bytes(), Wake::Never));
    (1..=3).for_each(put);
    let mut here = ring(&map).take_consumer().expect("the only one");
    assert_eq!(here.drain(|_| ()), 3);
    drop(here);
    (4..=5).for_each(put);
    assert_eq!(drained(&mut reader(&map)), Ok(words(&[4, 5])));
    // All places, also what is skipped at the end.
    let mut there = reader(&map);
    for round in 0..300 {
        assert!(ring(&map).output(&[round as u8; 37], Wake::Never));
        assert_eq!(drained(&mut there), Ok((vec![vec![round as u8; 37]], Rest::Nothing)));
    }
    put(6);
    let mut here = ring(&map).take_consumer().expect("the only one");
    let mut seen = 0_u64;
    here.drain(|record| seen = RecordLength::check(record).expect("8 bytes"));
    assert_eq!((seen, ring(&map).pending()), (6, 0));
}

#[test]
fn a_call_ends_although_there_is_always_more() {
    let map = made();
    let mut reader = reader(&map);
    assert!(ring(&map).output(&[1; 24], Wake::Never));
    let mut count = 0;
    let more = |_: &[u8]| {
        count += 1;
        assert!(count < LEN, "it does not end");
        assert!(ring(&map).output(&[1; 24], Wake::Never));
    };
    assert_eq!(reader.drain(more), Ok(Drained { records: LEN as usize / 32, rest: Rest::Unknown }));
}

/// Puts in two records, and has the host write `word` at `offset`.
fn after(offset: u64, word: u64) -> Result<(Vec<Vec<u8>>, Rest), BrokenRing> {
    let map = made();
    let mut reader = reader(&map);
    let put = |number: u64| assert!(ring(&map).output(&number.to_ne_bytes(), Wake::Never));
    put(1);
    assert_eq!(drained(&mut reader), Ok(words(&[1])));
    put(2);
    poke(&File::from(memory(&map)), offset, word);
    let first = drained(&mut reader);
    if first.is_err() {
        assert_eq!(drained(&mut reader), first, "an error stays");
    }
    first
}

#[test]
fn what_the_host_writes_is_compared_with_bounds() {
    // The second record lies at 16, and takes 16 bytes.
    let at = RECORDS + 16;
    assert_eq!(after(at, THERE | 8), Ok(words(&[2])));
    // The reader knows its position, whatever the host says of it.
    for position in [0, 8, 24, 7, u64::MAX] {
        assert_eq!(after(0, position), Ok(words(&[2])), "{position}");
    }
    let length = |len, most| Err(BrokenRing::Length { position: 16, len, most });
    assert_eq!(after(at, THERE | 9), length(9, 8));
    assert_eq!(after(at, THERE | (THERE - 1)), length(THERE - 1, 8));
    assert_eq!(after(at, THERE | 1 << 30 | 4096), length(4096, 8), "what is skipped, too");
    let header = |header| Err(BrokenRing::Header { position: 16, header });
    for wrong in [8, THERE | 1 << 32 | 8, 1 << 63] {
        assert_eq!(after(at, wrong), header(wrong));
    }
    let position = |producers| Err(BrokenRing::Position { position: 16, producers });
    for wrong in [0, 8, 36, 16 + LEN + 8, u64::MAX] {
        assert_eq!(after(PRODUCERS, wrong), position(wrong));
    }
    assert_eq!(after(PRODUCERS, 16), length(8, 0));
    assert_eq!(after(PRODUCERS, 24), length(8, 0));
    // Nothing is ready.
    assert_eq!(after(at, 0), Ok(words(&[])));
    assert_eq!(after(at, THERE | 1 << 31 | 8), Ok(words(&[])));
    // A record may not cross the end, even if so much room was taken.
    let map = made();
    let mut reader = reader(&map);
    assert!(ring(&map).output(&[0; 4072], Wake::Never));
    assert_eq!(reader.drain(|_| ()).map(|drained| drained.records), Ok(1));
    let file = File::from(memory(&map));
    poke(&file, PRODUCERS, 4080 + 64);
    poke(&file, RECORDS + 4080, THERE | 16);
    assert_eq!(drained(&mut reader), Err(BrokenRing::Length { position: 4080, len: 16, most: 8 }));
}

#[test]
fn whatever_is_written_the_reader_ends() {
    let map = made();
    let file = File::from(memory(&map));
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut reader = reader(&map);
    let mut broken = 0;
    for _ in 0..20_000 {
        let mut position = [0; 8];
        file.read_exact_at(&mut position, 0).expect("it is there");
        // Most of what lies elsewhere is never looked at.
        let present = RECORDS + u64::from_ne_bytes(position) % LEN / 8 * 8;
        let place = [0, PRODUCERS, present, RECORDS + next() % LEN / 8 * 8][next() as usize % 4];
        let words = [next() >> (next() % 64), THERE | (next() % 64), next() % (2 * LEN) / 8 * 8, 0];
        poke(&file, place, words[next() as usize % 4]);
        if reader.drain(|_| ()).is_err() {
            broken += 1;
            // The next one begins wherever the memory says.
            if let Ok(other) = RingReader::open(memory(&map)) {
                reader = other;
            }
        }
    }
    assert!((100..20_000).contains(&broken), "{broken}");
}

#[test]
fn what_is_no_ring_buffer_is_refused() {
    let null = File::open("/dev/null").expect("it is there");
    assert!(matches!(RingReader::open(null.into()), Err(OpenRingError::Map(_))));
    let pages = |count: usize| {
        let words = SharedWords::new("words", count * 4096).expect("memory");
        RingReader::open(owned(words.as_fd())).map(drop)
    };
    for count in [1, 2, 5, 7] {
        let refused = pages(count);
        assert!(matches!(refused, Err(OpenRingError::Length { bytes }) if bytes == count * 4096), "{refused:?}");
    }
    pages(3).expect("as long as one");
    let within = |most| RingReader::open_within(memory(&made()), most).map(drop);
    within(3 * 4096).expect("no longer");
    assert!(matches!(within(3 * 4096 - 1), Err(OpenRingError::Large { bytes: 12288, most: 12287 })));
    let map = made();
    poke(&File::from(memory(&map)), 0, 12);
    assert!(matches!(RingReader::open(memory(&map)), Err(OpenRingError::Position { position: 12 })));
}
