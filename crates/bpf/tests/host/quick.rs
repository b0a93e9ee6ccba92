//! Helpers that compiled code calls in a shorter way do what they do for an interpreted program.

use palimpsest_sys::clock::Clock;

use super::*;
use crate::cpu::stay_on_one_cpu;

/// Bytes of the stack that programs fill: with 1, 2, 3…
const FILLED: i32 = 64;

/// Puts `len` of them into a record, those from `start` on.
fn output(start: i32, len: i32, flags: i32) -> String {
    let fill: String = (0..FILLED).map(|n| format!("*(u8 *)(r10 - {}) = {}\n", FILLED - n, n + 1)).collect();
    format!("{fill}r1 = map[idx:0] ll\nr2 = r10\nr2 += {}\nr3 = {len}\nr4 = {flags}\ncall 130\nexit", start - FILLED)
}

fn host(waker: Option<fn()>) -> Arc<Host> {
    let map = Map::new(Definition::new("ring", Kind::RingBuffer, 0, 0, 4096)).expect("good measures");
    let map = if let Some(waker) = waker { map.waking(waker) } else { map };
    Host::builder().map(Arc::new(map)).build()
}

fn records(host: &Host) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let ring = host.maps()[0].ring().expect("a ring");
    ring.take_consumer().expect("the only one").drain(|record| records.push(record.to_vec()));
    assert_eq!(ring.pending(), 0);
    records
}

#[test]
fn records_of_any_length_come_from_any_place() {
    let Some(packs) = packs() else { return };
    let host = host(None);
    for start in 0..8 {
        for len in 1..=25 {
            let linked = host.verify(contract(), code(&output(start, len, 0))).expect("it is right");
            let program = HostedProgram::load(&packs, &linked).expect("room");
            assert_eq!(program.run(&mut [0; LEN]), Ok(0));
            assert_eq!(linked.interpret(&Interpreter::default(), &mut [0; LEN]), Ok(0));
            let expected: Vec<u8> = (start..start + len).map(|n| n as u8 + 1).collect();
            assert_eq!(records(&host), [expected.clone(), expected], "{len} bytes from {start}");
        }
    }
}

#[test]
fn what_is_not_plain_fails_in_the_same_way() {
    let Some(packs) = packs() else { return };
    let host = host(None);
    let run = |text: &str| {
        let linked = host.verify(contract(), code(text)).expect("it is right");
        let program = HostedProgram::load(&packs, &linked).expect("room");
        let results = (program.run(&mut [0; LEN]), linked.interpret(&Interpreter::default(), &mut [0; LEN]));
        (results.0.expect("no helper fails") as i64, results.1.expect("no helper fails") as i64)
    };
    assert_eq!(run(&output(0, 8, 3)), (-22, -22), "these flags mean nothing");
    let reserve = |len: u32, flags: u32, then: &str| {
        format!("r1 = map[idx:0] ll\nr2 = {len}\nr3 = {flags}\ncall 131\nif r0 == 0 goto out\n{then}r0 = 1\nout: exit")
    };
    let submit = "*(u64 *)(r0 + 0) = 7\nr1 = r0\nr2 = 0\ncall 132\n";
    assert_eq!(run(&reserve(8, 1, submit)), (0, 0), "there are no flags for this");
    assert_eq!(run(&reserve(4096, 0, submit)), (0, 0), "with its header it is longer than the buffer");
    assert_eq!(run(&reserve(8, 0, submit)), (1, 1));
    assert_eq!(run(&reserve(8, 0, "r1 = r0\nr2 = 0\ncall 133\n")), (1, 1));
    assert_eq!(records(&host), vec![7_u64.to_ne_bytes().to_vec(); 2], "two were discarded");
    let ring = host.maps()[0].ring().expect("a ring");
    let linked = host.verify(contract(), code(&output(0, 8, 1))).expect("it is right");
    let program = HostedProgram::load(&packs, &linked).expect("room");
    let mut count = 0;
    while program.run(&mut [0; LEN]) == Ok(0) {
        count += 1;
    }
    assert_eq!((count, ring.dropped()), (4096 / 16, 3), "two were too long, and one finds no room");
    assert_eq!(run(&output(0, 8, 1)), (-11, -11));
    assert_eq!(run(&reserve(8, 0, submit)), (0, 0));
    assert_eq!(ring.dropped(), 7);
}

#[test]
fn a_waker_that_panics_ends_the_program_and_the_record_is_there() {
    let Some(packs) = packs() else { return };
    let host = host(Some(|| panic!("on purpose")));
    let submit = "r1 = map[idx:0] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\n*(u64 *)(r0 + 0) = 7\n\
                  r1 = r0\nr2 = 2\ncall 132\nout: r0 = 0\nexit";
    for (id, text) in [(130, output(0, 8, 2)), (132, submit.to_owned())] {
        let linked = host.verify(contract(), code(&text)).expect("it is right");
        let program = HostedProgram::load(&packs, &linked).expect("room");
        let error = HelperError::Panicked;
        assert_eq!(program.run(&mut [0; LEN]), Err(HostedError::Helper { id, error }));
        assert_eq!(records(&host).len(), 1);
        // The run after it is a new one.
        let quiet = host.verify(contract(), code("r0 = 3\nexit")).expect("it is right");
        assert_eq!(HostedProgram::load(&packs, &quiet).expect("room").run(&mut [0; LEN]), Ok(3));
    }
}

/// Fails on: a key or value that is cut, or read beyond its end; a flag that means nothing; another CPU's value.
#[test]
fn keys_and_values_of_any_length_are_found_where_they_were_put() {
    let Some(packs) = packs() else { return };
    stay_on_one_cpu();
    let kinds = [Kind::Hash, Kind::LruHash, Kind::PerCpuHash, Kind::Array, Kind::PerCpuArray];
    let lens = [(4, 8), (1, 1), (7, 3), (8, 16), (16, 9), (17, 8), (16, 17), (40, 40)];
    for (kind, (key_len, value_len)) in kinds.into_iter().flat_map(|kind| lens.map(|lens| (kind, lens))) {
        let is_array = matches!(kind, Kind::Array | Kind::PerCpuArray);
        if is_array && key_len != 4 {
            continue;
        }
        let make = || Arc::new(Map::new(Definition::new("map", kind, key_len, value_len, 4)).expect("good measures"));
        let host = |map| Host::builder().map(map).build();
        // The key, and bytes behind it that belong to nobody; then the value, downwards from 200.
        let key = |n: u32| match n + 1 {
            end if end < key_len || is_array && end == key_len => 0,
            end if end == key_len => 7,
            _ => 0x5a,
        };
        let fill: String = (0..40)
            .map(|n| format!("*(u8 *)(r10 - {}) = {}\n*(u8 *)(r10 - {}) = {}\n", 112 - n, key(n), 56 - n, 200 - n))
            .collect();
        let keys = "r1 = map[idx:0] ll\nr2 = r10\nr2 += -112\n";
        let update = |flags: i32| format!("{fill}{keys}r3 = r10\nr3 += -56\nr4 = {flags}\ncall 2\nexit");
        let last = value_len - 1;
        let look = format!(
            "{fill}{keys}call 1\nif r0 == 0 goto none\nr1 = *(u8 *)(r0 + 0)\nr2 = *(u8 *)(r0 + {last})\n\
             r0 = r1\nr0 <<= 8\nr0 |= r2\nexit\nnone: r0 = -1\nexit"
        );
        let whole = [look.clone(), update(0), look.clone(), update(1), update(2), update(4), update(9), look];
        let (compiled, interpreted) = (make(), make());
        let (of_compiled, of_interpreted) = (host(Arc::clone(&compiled)), host(Arc::clone(&interpreted)));
        let mut told = [Vec::new(), Vec::new()];
        for text in &whole {
            let linked = of_compiled.verify(contract(), code(text)).expect("it is right");
            told[0].push(HostedProgram::load(&packs, &linked).expect("room").run(&mut [0; LEN]).expect("none fails"));
            let linked = of_interpreted.verify(contract(), code(text)).expect("it is right");
            told[1].push(linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("none fails"));
        }
        assert_eq!(told[0], told[1], "{kind:?} of {key_len} and {value_len} bytes");
        // -17: it exists; -22: no such flags.
        let errno = |answer: u64| answer as i64;
        assert_eq!([errno(told[0][3]), errno(told[0][6])], [-17, -22], "{kind:?}");
        let ends = u64::from(200 - value_len + 1) | 200 << 8;
        assert_eq!([told[0][2], told[0][7]], [ends; 2], "{kind:?} of {key_len} and {value_len} bytes");
        assert_eq!(compiled.keys(), interpreted.keys());
    }
}

#[test]
fn the_time_is_the_hosts_and_goes_on() {
    let Some(packs) = packs() else { return };
    let linked = host(None).verify(contract(), code("call 5\nexit")).expect("it is right");
    let program = HostedProgram::load(&packs, &linked).expect("room");
    let mut last = Clock::Monotonic.nanoseconds();
    for _ in 0..1000 {
        let called = program.run(&mut [0; LEN]).expect("no helper fails");
        let interpreted = linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("no helper fails");
        let now = Clock::Monotonic.nanoseconds();
        assert!(last <= called && called <= interpreted && interpreted <= now, "{last} {called} {interpreted} {now}");
        last = now;
    }
}
