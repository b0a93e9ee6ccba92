//! User ring buffers: samples from the host, and from another process that may write anything.
//!
//! Mutants that are caught: any of the checks of positions, lengths and bits left out, a consumer's position that is
//! read back, room for one word too many, a buffer that stays locked after its program was ended.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palimpsest_bpf::host::{Host, HostedError, HostedProgram};
use palimpsest_bpf::insn::Register;
use palimpsest_bpf::interp::{HelperError, Interpreter};
use palimpsest_bpf::map::{Definition, Kind, Map, MapError, ReserveError, UserRing};
use palimpsest_bpf::verify::{Argument, Fault, Signature};

use super::common::packs;
use super::{LEN, code, contract};

const BYTES: u64 = 4096;

fn ring() -> Map {
    Map::new(Definition::new("samples", Kind::UserRingBuffer, 0, 0, BYTES as u32)).expect("good measures")
}

fn host(map: Map) -> Arc<Host> {
    let fails = |_: &mut palimpsest_bpf::host::Call<'_>| Err(HelperError::Unknown);
    let array = Definition::new("array", Kind::Array, 4, 8, 1);
    let array = Arc::new(Map::new(array).expect("good measures"));
    Host::builder().map(Arc::new(map)).map(array).helper(70_000, Signature::new([Argument::Number]), fails).build()
}

/// A program that drains the ring by the function `each`, puts what that folded into the context, and returns the
/// helper's result.
fn drains(flags: u64, each: &str) -> String {
    format!(
        "r6 = r1\n*(u64 *)(r10 - 8) = 0\nr1 = map[idx:0] ll\nr2 = func[each] ll\nr3 = r10\nr3 += -8\nr4 = {flags}\n\
         call 209\nr1 = *(u64 *)(r10 - 8)\n*(u64 *)(r6 + 0) = r1\nexit\neach: {each}"
    )
}

/// Folds the first 8 bytes of each sample, and stops after a sample that is 9.
const FOLD: &str = "r6 = r2\n*(u64 *)(r10 - 8) = 0\nr3 = r1\nr1 = r10\nr1 += -8\nr2 = 8\nr4 = 0\nr5 = 0\ncall 201\n\
                    r1 = *(u64 *)(r6 + 0)\nr1 *= 100\nr2 = *(u64 *)(r10 - 8)\nr1 += r2\n*(u64 *)(r6 + 0) = r1\n\
                    r0 = 0\nif r2 != 9 goto on\nr0 = 1\non: exit";

/// Returns what the program returned and folded. Runs it interpreted and compiled, on hosts that are filled alike; both
/// must agree.
fn drained(fill: impl Fn(&UserRing), flags: u64, each: &str) -> (i64, u64) {
    let text = drains(flags, each);
    let run = |is_compiled: bool| {
        let host = host(ring());
        fill(host.maps()[0].user_ring().expect("one"));
        let linked = host.verify(contract(), code(&text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut context = [0; LEN];
        let result = match packs().filter(|_| is_compiled) {
            None => linked.interpret(&Interpreter::default(), &mut context).expect("it ends"),
            Some(packs) => HostedProgram::load(&packs, &linked).expect("room").run(&mut context).expect("it ends"),
        };
        (result as i64, u64::from_ne_bytes(*context.first_chunk().expect("8 bytes")))
    };
    assert_eq!(run(true), run(false), "{text}");
    run(true)
}

fn put(ring: &UserRing, samples: &[&[u8]]) {
    let mut producer = ring.take_producer().expect("the only one");
    samples.iter().for_each(|sample| producer.put(sample).expect("room"));
}

fn number(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}

#[test]
fn samples_come_in_order_until_there_are_no_more() {
    assert_eq!(drained(|_| (), 0, FOLD), (0, 0));
    let three = |ring: &UserRing| put(ring, &[&number(1), &[&number(2)[..], b"more"].concat(), &number(3)]);
    assert_eq!(drained(three, 0, FOLD), (3, 1_02_03));
    // Nothing is read of a sample that is too short.
    assert_eq!(drained(|ring| put(ring, &[&number(7), b"short", b"", &number(8)]), 1, FOLD), (4, 7_00_00_08));
    // A result other than 0 stops the draining; the samples behind stay.
    let nine = |ring: &UserRing| put(ring, &[&number(1), &number(9), &number(3)]);
    assert_eq!(drained(nine, 0, FOLD), (2, 1_09));
    assert_eq!(drained(three, 4, FOLD), (-22, 0), "unknown flags");
    // The bytes are a copy, which a program may change.
    let data = "r6 = r2\nr2 = 0\nr3 = 8\ncall 203\nif r0 == 0 goto none\nr1 = *(u64 *)(r0 + 0)\nr1 += 1\n\
                *(u64 *)(r0 + 0) = r1\nr1 = *(u64 *)(r0 + 0)\n*(u64 *)(r6 + 0) = r1\nnone: r0 = 0\nexit";
    assert_eq!(drained(three, 0, data), (3, 4));
}

#[test]
fn what_is_dropped_is_skipped_and_what_is_written_is_waited_for() {
    let fill = |ring: &UserRing| {
        let mut producer = ring.take_producer().expect("the only one");
        assert!(ring.take_producer().is_none(), "there is one");
        producer.put(&number(1)).expect("room");
        drop(producer.reserve(100).expect("room"));
        producer.put(&number(2)).expect("room");
        let mut sample = producer.reserve(8).expect("room");
        sample.write(&number(3));
        // Never finished, as if the producer had stopped here.
        std::mem::forget(sample);
    };
    assert_eq!(drained(fill, 0, FOLD), (2, 1_02));
}

#[test]
fn room_is_given_back_and_samples_go_over_the_end() {
    let Some(packs) = packs() else { return };
    let host = host(ring());
    let drain = host.verify(contract(), code(&drains(0, FOLD))).expect("harmless");
    let drain = HostedProgram::load(&packs, &drain).expect("room");
    let ring = host.maps()[0].user_ring().expect("one");
    let mut producer = ring.take_producer().expect("the only one");
    assert_eq!(producer.reserve(BYTES - 7).err(), Some(ReserveError::Long { len: BYTES - 7, most: BYTES }));
    assert_eq!(producer.reserve(u64::MAX).err(), Some(ReserveError::Long { len: u64::MAX, most: BYTES }));
    for round in 0..200_u64 {
        // The length does not divide the buffer's, so samples lie at all places, also over the end.
        let sample = [&number(round)[..], &[round as u8; 1000]].concat();
        for _ in 0..4 {
            producer.put(&sample).expect("room");
        }
        assert_eq!(producer.put(&sample), Err(ReserveError::Full { len: 1008 }));
        assert_eq!(producer.pending(), 4 * 1016);
        let mut context = [0; LEN];
        let sum = (0..4).fold(0_u64, |sum, _| sum * 100 + round);
        let expected = if round == 9 { (1, 9) } else { (4, sum) };
        let result = drain.run(&mut context).expect("it ends");
        assert_eq!((result, u64::from_ne_bytes(*context.first_chunk().expect("8"))), expected, "{round}");
        while round == 9 && producer.pending() > 0 {
            drain.run(&mut context).expect("it ends");
        }
    }
}

#[test]
fn another_process_writes_what_it_likes() {
    let map = ring().shared_with_processes().expect("memory");
    let host = host(map);
    let linked = host.verify(contract(), code(&drains(0, FOLD))).expect("harmless");
    let ring = host.maps()[0].user_ring().expect("one");
    let memory = File::from(ring.descriptor().expect("shared").try_clone_to_owned().expect("a descriptor"));
    let write = |at: u64, value: u64| memory.write_all_at(&number(value), at).expect("there");
    let read = |at: u64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at).expect("there");
        u64::from_ne_bytes(bytes)
    };
    let (consumer, producer) = (0, 4096);
    let sample = |position: u64, header: u64, value: u64| {
        write(8192 + position % BYTES, header);
        write(8192 + (position + 8) % BYTES, value);
    };
    let drain = || {
        let mut context = [0; LEN];
        let result = linked.interpret(&Interpreter::default(), &mut context).expect("it ends") as i64;
        (result, u64::from_ne_bytes(*context.first_chunk().expect("8 bytes")))
    };
    // A correct sample.
    sample(0, 8, 5);
    write(producer, 16);
    assert_eq!((drain(), read(consumer)), ((1, 5), 16));
    // Impossible positions, and samples that reach beyond the position.
    sample(16, 8, 6);
    write(producer, 33);
    assert_eq!((drain(), read(consumer)), ((-22, 0), 16));
    write(producer, 8);
    assert_eq!(drain(), (0, 0), "before what was taken");
    sample(16, 8, 6);
    write(producer, 24);
    assert_eq!(drain(), (-22, 0));
    sample(16, 4000, 6);
    write(producer, 32);
    assert_eq!(drain(), (-22, 0));
    // Longer than the buffer, though the position covers it.
    for len in [BYTES - 7, 1 << 29, (1 << 30) - 1] {
        sample(16, len, 6);
        write(producer, !7);
        assert_eq!(drain(), (-7, 0), "{len}");
    }
    // A sample that is being written; bits above the length, which mean nothing; a sample to skip.
    write(producer, 32);
    sample(16, 8 | 1 << 31, 6);
    assert_eq!((drain(), read(consumer)), ((0, 0), 16));
    sample(16, 8 | 0xdead_beef << 32, 6);
    assert_eq!((drain(), read(consumer)), ((1, 6), 32));
    sample(32, 8 | 1 << 30 | 1 << 31, 7);
    sample(48, 8, 8);
    write(producer, 64);
    assert_eq!((drain(), read(consumer)), ((1, 8), 64));
    // Setting the consumer's position has no effect.
    write(consumer, 4000);
    sample(64, 8, 9);
    write(producer, 80);
    assert_eq!((drain(), read(consumer)), ((1, 9), 80));
    // Over the end, as a process that has mapped the samples twice writes it.
    sample(80, 8 | 1 << 30, 0);
    write(8192 + 80, (BYTES - 80 - 16) | 1 << 30);
    write(producer, BYTES - 8);
    assert_eq!((drain(), read(consumer)), ((0, 0), BYTES - 8));
    sample(BYTES - 8, 8, 77);
    write(producer, BYTES + 8);
    assert_eq!((drain(), read(consumer)), ((1, 77), BYTES + 8));
    // Zeros are samples of no bytes; one call takes 128 Ki of them at most.
    let zeros = vec![0; BYTES as usize];
    memory.write_all_at(&zeros, 8192).expect("there");
    write(producer, BYTES + 8 + 200_000 * 8);
    assert_eq!((drain().0, read(consumer)), (128 * 1024, BYTES + 8 + 128 * 1024 * 8));
}

#[test]
fn who_waits_for_room_is_woken() {
    let woken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&woken);
    let map = ring().waking(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let host = host(map);
    let run = |flags: u64, is_full: bool| {
        if is_full {
            put(host.maps()[0].user_ring().expect("one"), &[&number(1), &number(2)]);
        }
        let linked = host.verify(contract(), code(&drains(flags, FOLD))).expect("harmless");
        linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("it ends");
        woken.swap(0, Ordering::Relaxed)
    };
    assert_eq!([run(0, false), run(0, true), run(1, true), run(2, false), run(2, true)], [0, 1, 0, 1, 1]);
}

#[test]
fn a_buffer_is_drained_by_one_at_a_time_and_by_others_when_that_was_ended() {
    let Some(packs) = packs() else { return };
    // A callback cannot drain the ring again.
    let again = "r6 = r2\nr1 = map[idx:0] ll\nr2 = func[no] ll\nr3 = 0\nr4 = 0\ncall 209\n*(u64 *)(r6 + 0) = r0\n\
                 r0 = 0\nexit\nno: r0 = 0\nexit";
    let (result, inner) = drained(|ring| put(ring, &[&number(1)]), 0, again);
    assert_eq!((result, inner as i64), (1, -16));
    let host = host(ring());
    let load = |each: &str| {
        let linked = host.verify(contract(), code(&drains(0, each))).expect("harmless");
        HostedProgram::load(&packs, &linked).expect("room")
    };
    put(host.maps()[0].user_ring().expect("one"), &[&number(1), &number(2)]);
    let ended = load("r1 = 0\ncall 70000\nr0 = 0\nexit").run(&mut [0; LEN]);
    assert!(matches!(ended, Err(HostedError::Helper { id: 70_000, .. })), "{ended:?}");
    assert_eq!(load(FOLD).run(&mut [0; LEN]), Ok(1), "the second sample is there, and the ring is free to drain");
}

#[test]
fn samples_reach_one_of_many_threads() {
    let Some(packs) = packs() else { return };
    const SAMPLES: u64 = 5000;
    let host = host(ring());
    // Each thread adds the number of each sample that it sees to the array's value.
    let each = "r6 = r2\n*(u64 *)(r10 - 8) = 0\nr3 = r1\nr1 = r10\nr1 += -8\nr2 = 8\nr4 = 0\nr5 = 0\ncall 201\n\
                r2 = *(u64 *)(r10 - 8)\nr1 = map[idx:1][0]+0 ll\nlock *(u64 *)(r1 + 0) += r2\nr0 = 0\nexit";
    let drain = host.verify(contract(), code(&drains(0, each))).expect("harmless");
    let drain = HostedProgram::load(&packs, &drain).expect("room");
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while seen.load(Ordering::Relaxed) < SAMPLES {
                    let count = drain.run(&mut [0; LEN]).expect("it ends") as i64;
                    assert!(count >= 0 || count == -16, "{count}");
                    seen.fetch_add(count.max(0) as u64, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
        let mut producer = host.maps()[0].user_ring().and_then(UserRing::take_producer).expect("the only one");
        for sample in 1..=SAMPLES {
            let bytes = [&number(sample)[..], &vec![0xee; (sample % 90) as usize]].concat();
            while producer.put(&bytes).is_err() {
                std::thread::yield_now();
            }
        }
    });
    let mut sum = [0; 8];
    host.maps()[1].read(&[0; 4], 0, &mut sum).expect("there");
    assert_eq!(u64::from_ne_bytes(sum), SAMPLES * (SAMPLES + 1) / 2);
}

#[test]
fn a_waker_that_panics_ends_the_program_and_not_the_process() {
    let Some(packs) = packs() else { return };
    let host = host(ring().waking(|| panic!("as asked for")));
    let load =
        |flags| HostedProgram::load(&packs, &host.verify(contract(), code(&drains(flags, FOLD))).expect("right"));
    // `BPF_RB_NO_WAKEUP`, and `BPF_RB_FORCE_WAKEUP`.
    let (quiet, wakes) = (load(1).expect("room"), load(2).expect("room"));
    put(host.maps()[0].user_ring().expect("one"), &[&number(1)]);
    let panicked = HostedError::Helper { id: 209, error: HelperError::Panicked };
    assert_eq!(wakes.run(&mut [0; LEN]), Err(panicked));
    assert_eq!(quiet.run(&mut [0; LEN]), Ok(0), "the ring is free to drain, and the sample was taken");
}

#[test]
fn a_producer_follows_positions_that_end_where_numbers_end() {
    let host = host(ring().shared_with_processes().expect("memory"));
    let ring = host.maps()[0].user_ring().expect("one");
    let memory = File::from(ring.descriptor().expect("shared").try_clone_to_owned().expect("a descriptor"));
    for at in [0, 4096] {
        memory.write_all_at(&number(!7), at).expect("there");
    }
    put(ring, &[&[5; 24]]);
    assert_eq!(ring.take_producer().expect("the only one").pending(), 32);
}

#[test]
fn what_a_sample_is_known_by_is_for_helpers() {
    let refused = |each: &str| {
        let text = drains(0, each);
        host(ring()).verify(contract(), code(&text)).map(drop).expect_err(&text).fault
    };
    assert_eq!(refused("r0 = *(u64 *)(r1 + 0)\nr0 = 0\nexit"), Fault::NoAddress { register: Register::R1 });
    assert_eq!(refused("*(u64 *)(r1 + 8) = 1\nr0 = 0\nexit"), Fault::NoAddress { register: Register::R1 });
    assert_eq!(refused("r1 += 8\nr0 = 0\nexit"), Fault::Address { register: Register::R1 });
    assert_eq!(refused("r0 = r1\nexit"), Fault::ReturnedAddress);
    // It is no record that could be discarded, and no place for another dynptr.
    assert_eq!(refused("r2 = 0\ncall 199\nr0 = 0\nexit"), Fault::DynptrPlace { register: Register::R1 });
    let place = "r4 = r1\nr1 = map[idx:1][0]+0 ll\nr2 = 8\nr3 = 0\ncall 197\nr0 = 0\nexit";
    assert_eq!(refused(place), Fault::DynptrPlace { register: Register::R4 });
    // The bytes may not be used after the call, though the callback has kept their address for the program.
    let kept = "r6 = r2\nr2 = 0\nr3 = 8\ncall 203\nif r0 == 0 goto none\n*(u64 *)(r6 + 0) = r0\nnone: r0 = 0\nexit";
    assert_eq!(refused(kept), Fault::Unset { register: Register::R1 });
    let outside = "r2 = 0\nr3 = 8\ncall 203\nif r0 == 0 goto none\nr1 = *(u8 *)(r0 + 8)\nnone: r0 = 0\nexit";
    assert_eq!(refused(outside), Fault::Outside { what: "the slice", min: 8, end: 9, len: 8 });
    let array = drains(0, FOLD).replace("r1 = map[idx:0]", "r1 = map[idx:1]");
    let fault = host(ring()).verify(contract(), code(&array)).map(drop).expect_err("an array").fault;
    assert_eq!(fault, Fault::MapKind { register: Register::R1, kind: Kind::Array });
}

#[test]
fn measures_are_those_of_ring_buffers() {
    for (key, value, entries) in [(4, 0, 4096), (0, 8, 4096), (0, 0, 4095), (0, 0, 2048)] {
        let map = Map::new(Definition::new("m", Kind::UserRingBuffer, key, value, entries)).map(drop);
        assert!(matches!(map, Err(MapError::Measure { .. })), "{map:?}");
    }
}
