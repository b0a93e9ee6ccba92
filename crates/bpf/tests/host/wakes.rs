//! Ring buffers wake a host that sleeps on an event: whenever there is something, and not more often.
#![expect(unsafe_code, reason = "an event is watched, and not taken")]

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use palimpsest_bpf::map::{Event, Waited};

use super::*;

fn made() -> Map {
    Map::new(Definition::new("ring", Kind::RingBuffer, 0, 0, 4096)).expect("good measures")
}

/// Makes a ring buffer that counts how often it wakes who reads it.
fn ring() -> (Arc<Map>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let waker = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    (Arc::new(made().waking(waker)), count)
}

/// Makes an event, and a ring buffer that signals it.
fn signalling() -> (Arc<Map>, Arc<Event>) {
    let event = Arc::new(Event::new().expect("an event"));
    (Arc::new(made().signalling(&event)), event)
}

/// Waits so many milliseconds, or without end for -1, until the event is signalled, and leaves it so.
fn is_signalled(event: &Event, patience: i32) -> bool {
    let mut poll = libc::pollfd { fd: event.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is there to be written.
    unsafe { libc::poll(&mut poll, 1, patience) == 1 }
}

/// Puts the 8 bytes of the context into a record; returns 0 if there was room.
const OUTPUT: &str = "r2 = r1\nr1 = map[idx:0] ll\nr3 = 8\nr4 = 0\ncall 130\nexit";

#[test]
fn an_event_is_signalled_for_who_waits() {
    let (map, event) = signalling();
    assert!(!is_signalled(&event, 0));
    let ring = map.ring().expect("a ring");
    assert!(ring.output(b"record", palimpsest_bpf::map::Wake::IfWaiting));
    assert_eq!(event.wait(Duration::ZERO).expect("it works"), Waited::Signalled);
    assert!(ring.output(b"another", palimpsest_bpf::map::Wake::IfWaiting));
    assert_eq!(event.wait(Duration::ZERO).expect("it works"), Waited::TimedOut, "nobody waits");
}

#[test]
fn nobody_is_woken_who_has_something_to_do() {
    let (map, count) = ring();
    let host = Host::builder().map(Arc::clone(&map)).build();
    let linked = host.verify(contract(), code(OUTPUT)).expect("it is right");
    let output = || linked.interpret(&Interpreter::default(), &mut [0; LEN]);
    (0..9).for_each(|_| assert_eq!(output(), Ok(0)));
    assert_eq!(count.load(Ordering::Relaxed), 1, "the first one finds who waits");
    let mut consumer = map.ring().and_then(|ring| ring.take_consumer()).expect("nobody has it");
    assert_eq!(consumer.drain(|_| ()), 9);
    assert_eq!(output(), Ok(0));
    assert_eq!(count.load(Ordering::Relaxed), 2, "it waits again");
}

/// Fails on: a record behind what is skipped at the end, to which a consumer that waits there is not woken.
#[test]
fn who_waits_at_the_end_is_woken_for_what_is_behind_it() {
    use palimpsest_bpf::map::Wake;

    // With a header, 40 of 4096 bytes: 16 are left at the end.
    let (map, count) = ring();
    let ring = map.ring().expect("a ring");
    let mut consumer = ring.take_consumer().expect("nobody has it");
    for number in 1..300 {
        assert!(ring.output(&[7; 32], Wake::IfWaiting));
        assert_eq!(count.load(Ordering::Relaxed), number, "the consumer had taken all");
        assert!(ring.output(&[7; 32], Wake::IfWaiting));
        assert_eq!(count.load(Ordering::Relaxed), number, "it knows");
        assert_eq!(consumer.drain(|_| ()), 2);
    }
}

#[test]
fn who_sleeps_on_an_event_misses_nothing() {
    const RECORDS: u64 = 20_000;
    let Some(packs) = packs() else { return };
    let (map, event) = signalling();
    let host = Host::builder().map(Arc::clone(&map)).build();
    let linked = host.verify(contract(), code(OUTPUT)).expect("it is right");
    let program = HostedProgram::load(&packs, &linked).expect("room");
    // Odd while the consumer is about to sleep, or sleeps: then nobody takes the wake-up away.
    let (naps, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let mut consumer = map.ring().and_then(|ring| ring.take_consumer()).expect("nobody has it");
            let mut seen = 0;
            while seen < RECORDS {
                seen += consumer.drain(|record| {
                    let number = u64::from_ne_bytes(record.try_into().expect("8 bytes"));
                    sum.fetch_add(number, Ordering::Relaxed);
                }) as u64;
                if seen < RECORDS {
                    naps.fetch_add(1, Ordering::SeqCst);
                    while !is_signalled(&event, -1) {}
                    naps.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(event.wait(Duration::ZERO).expect("it works"), Waited::Signalled);
                }
            }
        });
        for number in 0..RECORDS {
            let mut context = [0; LEN];
            context[..8].copy_from_slice(&number.to_ne_bytes());
            while program.run(&mut context) != Ok(0) {
                std::thread::yield_now();
            }
        }
        // All is there: who sleeps now, and is not woken yet, sleeps for ever.
        while !consumer.is_finished() {
            let before = naps.load(Ordering::SeqCst);
            let is_left = before % 2 == 1 && !is_signalled(&event, 0) && naps.load(Ordering::SeqCst) == before;
            if is_left {
                // So that the test ends.
                event.signal();
            }
            assert!(!is_left, "nobody woke the consumer");
            std::thread::yield_now();
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), RECORDS * (RECORDS - 1) / 2);
}

#[test]
fn a_waker_that_panics_leaves_no_record_behind() {
    let Some(packs) = packs() else { return };
    let ring = |waker: fn()| {
        let definition = Definition::new("ring", Kind::RingBuffer, 0, 0, 4096);
        Arc::new(Map::new(definition).expect("good measures").waking(waker))
    };
    let host = Host::builder().map(ring(|| panic!("on purpose"))).map(ring(|| ()));
    let host = host.helper(1000, Signature::new([]), |_| Err(HelperError::NoArgument { index: 7 })).build();
    let reserve = |map: u32, to: u32| format!("r1 = map[idx:{map}] ll\nr2 = 16\nr3 = 0\ncall 131\nr{to} = r0\n");
    let submit = |at: u32| format!("if r{at} == 0 goto +3\nr1 = r{at}\nr2 = 0\ncall 132\n");
    let all = reserve(0, 6) + &reserve(0, 7) + &reserve(1, 8) + "call 1000\n" + &submit(6) + &submit(7) + &submit(8);
    let linked = host.verify(contract(), code(&format!("{all}r0 = 0\nexit"))).unwrap_or_else(|error| panic!("{error}"));
    let program = HostedProgram::load(&packs, &linked).expect("room");
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| program.run(&mut [0; LEN])));
    assert!(run.is_err(), "the waker's panic is the host's");
    for map in host.maps() {
        let ring = map.ring().expect("a ring");
        ring.take_consumer().expect("the only one").drain(|_| panic!("it was discarded"));
        assert_eq!(ring.pending(), 0);
    }
}

/// Fails on: a record that a program cannot hold, for which nobody wakes the consumer that waits for it.
#[test]
fn who_waits_is_woken_for_a_record_that_the_program_cannot_hold() {
    let (map, count) = ring();
    let other = Arc::new(Map::new(Definition::new("other", Kind::RingBuffer, 0, 0, 4096)).expect("good measures"));
    let host = Host::builder().map(other).map(Arc::clone(&map)).build();
    let reserve = |map: u32| format!("r1 = map[idx:{map}] ll\nr2 = 8\nr3 = 0\ncall 131\n");
    let discard = |number: usize| {
        let at = 8 * number;
        format!("r1 = *(u64 *)(r10 - {at})\nif r1 == 0 goto none{number}\nr2 = 0\ncall 133\nnone{number}: r0 = 0\n")
    };
    let fill: String = (1..=64).map(|number| format!("{}*(u64 *)(r10 - {}) = r0\n", reserve(0), 8 * number)).collect();
    let give_back: String = (1..=64).map(discard).collect();
    let one_more = "r6 = r0\nif r6 == 0 goto full\nr1 = r6\nr2 = 0\ncall 133\nr0 = 0\nexit\nfull: ";
    // What it cannot hold is told apart from what it can: it returns 1.
    let one_more = format!("{}{one_more}", reserve(1));
    let text = format!("{fill}{one_more}{give_back}r0 = 1\nexit");
    let text = text.replace("r0 = 0\nexit\nfull", &format!("{give_back}r0 = 0\nexit\nfull").replace("none", "last"));
    let linked = host.verify(contract(), code(&text)).expect("it is right");
    let output = host.verify(contract(), code(&OUTPUT.replace("idx:0", "idx:1"))).expect("it is right");
    let mut consumer = map.ring().and_then(|ring| ring.take_consumer()).expect("nobody has it");
    let check = |run: &dyn Fn() -> u64, drain: &mut dyn FnMut() -> usize| {
        drain();
        let before = count.load(Ordering::Relaxed);
        assert_eq!(run(), 1, "it cannot hold the last one");
        assert!(count.load(Ordering::Relaxed) > before, "nobody is woken");
        assert_eq!(output.interpret(&Interpreter::default(), &mut [0; LEN]), Ok(0));
    };
    let interpreted = || linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("it ends");
    check(&interpreted, &mut || consumer.drain(|_| ()));
    let Some(packs) = packs() else { return };
    let program = HostedProgram::load(&packs, &linked).expect("room");
    check(&|| program.run(&mut [0; LEN]).expect("it ends"), &mut || consumer.drain(|_| ()));
}
