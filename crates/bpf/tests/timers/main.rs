//! Timers in values of maps. Tests move time by hand, except one, which waits until a timer has been called.
//!
//! Mutants that are caught: a cancellation that does not wait, or takes its own call for another's; an element that is
//! removed or set and keeps its timer; an earlier time that still counts after a later one was set; a child that takes
//! its parent's lock; a load or store of a timer's first or last byte; a result that is not 0; a map that does not hold
//! the timer; a mark of who is inside the timers' lock that stays, is not set, or is another's.

mod again;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod fork;
mod refused;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palimpsest_bpf::host::{Host, HostBuilder, HostedProgram, Linked};
use palimpsest_bpf::map::{ArrayHandle, Definition, Kind, Map};
use palimpsest_bpf::timer::{TimeSource, TimerClock};
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, Packs, asm};

use common::packs;

/// A clock that is moved by hand. The time of day is a million ahead of it.
#[derive(Clone, Debug, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn move_on(&self, host: &Host, by: u64) {
        self.0.fetch_add(by, Ordering::SeqCst);
        host.look_at_time();
    }
}

impl TimeSource for Hand {
    fn now(&self, clock: TimerClock) -> u64 {
        let ahead = if clock == TimerClock::Real { 1_000_000 } else { 0 };
        self.0.load(Ordering::SeqCst) + ahead
    }
}

/// A value: a count that [`TICK`] adds to, the timer (two words), and how often the timer is to arm itself again.
type Value = [u64; 4];

fn map(kind: Kind, entries: u32) -> Arc<Map> {
    let definition = Definition { timer: Some(8), ..Definition::new("timed", kind, 4, 32, entries) };
    Arc::new(Map::new(definition).expect("good measures"))
}

fn array() -> Arc<Map> {
    map(Kind::Array, 4)
}

fn builder(hand: &Hand) -> HostBuilder {
    Host::builder().map(array()).time(hand.clone())
}

/// Puts the context into `r8`, and the value whose key is the context's first byte into `r7`.
const FIND: &str = "r8 = r1
    r1 = *(u8 *)(r8 + 0)
    *(u32 *)(r10 - 4) = r1
    r1 = map[idx:0] ll
    r2 = r10
    r2 += -4
    call 1
    if r0 != 0 goto found
    r0 = 100
    exit
    found: r7 = r0
";
/// Makes the timer of `r7`, with the monotonic clock.
const INIT: &str = "r1 = r7\nr1 += 8\nr2 = map[idx:0] ll\nr3 = 1\ncall 169\n";
/// Sets `tick` as its callback.
const SET: &str = "r1 = r7\nr1 += 8\nr2 = func[tick] ll\ncall 170\n";
/// Arms it: the context's second number is the time in nanoseconds, the third has the flags.
const START: &str = "r1 = r7\nr1 += 8\nr2 = *(u64 *)(r8 + 8)\nr3 = *(u64 *)(r8 + 16)\ncall 171\n";
const CANCEL: &str = "r1 = r7\nr1 += 8\ncall 172\n";
/// Adds one and the key to the value's count. Arms the timer again, for 10 later, as often as the value's last number
/// says.
const TICK: &str = "tick: r6 = r3
    r1 = *(u32 *)(r2 + 0)
    r1 += 1
    r0 = *(u64 *)(r6 + 0)
    r0 += r1
    *(u64 *)(r6 + 0) = r0
    r1 = *(u64 *)(r6 + 24)
    if r1 == 0 goto once
    r1 += -1
    *(u64 *)(r6 + 24) = r1
    r1 = r6
    r1 += 8
    r2 = 10
    r3 = 0
    call 171
    once: r0 = 0
    exit
";

/// A program of these parts, which returns the last `r0`.
fn program(parts: &[&str]) -> String {
    let sets = parts.contains(&SET);
    [FIND, &parts.concat(), "exit\n", if sets { TICK } else { "" }].concat()
}

fn contract() -> Contract {
    Contract::new().context(24, ContextAccess::Read)
}

fn link(host: &Arc<Host>, text: &str) -> Linked {
    let bytes = asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let code = Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{text}"));
    host.verify(contract(), code).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn load(packs: &Packs, host: &Arc<Host>, text: &str) -> HostedProgram {
    HostedProgram::load(packs, &link(host, text)).expect("room")
}

/// A context: the key, the time, the flags.
fn context(key: u64, time: u64, flags: u64) -> Vec<u8> {
    [key, time, flags].iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn run(program: &HostedProgram, key: u64, time: u64, flags: u64) -> i64 {
    program.run_read_only(&context(key, time, flags)).expect("it ends") as i64
}

fn values(host: &Host) -> ArrayHandle<Value> {
    ArrayHandle::new(Arc::clone(&host.maps()[0])).expect("its types")
}

#[test]
fn a_timer_calls_what_it_is_for_when_its_time_has_come() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let host = builder(&hand).build();
    let values = values(&host);
    let arm = load(&packs, &host, &program(&[INIT, SET, START]));
    assert_eq!(run(&arm, 2, 100, 0), 0);
    hand.move_on(&host, 99);
    assert_eq!(values.get(2), Some([0; 4]), "it is not time");
    hand.move_on(&host, 1);
    assert_eq!(values.get(2), Some([3, 0, 0, 0]), "one, and the key");
    hand.move_on(&host, 1000);
    assert_eq!(values.get(2), Some([3, 0, 0, 0]), "once");
    // A program arms it twice; the later call counts. Then its callback arms it, twice.
    assert_eq!(values.set(1, &[0, 7, 7, 2]), Ok(()));
    assert_eq!(run(&arm, 1, 50, 0), 0);
    let start = load(&packs, &host, &program(&[START]));
    assert_eq!(run(&start, 1, 60, 0), 0);
    hand.move_on(&host, 59);
    assert_eq!(values.get(1), Some([0, 0, 0, 2]), "the bytes of a timer mean nothing");
    for (by, expected) in
        [(1, [2, 0, 0, 1]), (9, [2, 0, 0, 1]), (1, [4, 0, 0, 0]), (10, [6, 0, 0, 0]), (50, [6, 0, 0, 0])]
    {
        hand.move_on(&host, by);
        assert_eq!(values.get(1), Some(expected));
    }
    // A time of the clock. One that has passed is due at once.
    let now = hand.0.load(Ordering::SeqCst);
    assert_eq!(run(&start, 2, now + 5, 1), 0);
    hand.move_on(&host, 4);
    assert_eq!(values.get(2).map(|value| value[0]), Some(3));
    hand.move_on(&host, 1);
    assert_eq!(values.get(2).map(|value| value[0]), Some(6));
    assert_eq!(run(&start, 2, 1, 1), 0);
    host.look_at_time();
    assert_eq!(values.get(2).map(|value| value[0]), Some(9));
    assert_eq!(host.timer_failures(), 0);
}

#[test]
fn timers_are_called_in_the_order_of_their_times() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    let number = [palimpsest_bpf::verify::Argument::Number];
    let host = builder(&hand).helper(70_000, palimpsest_bpf::verify::Signature::new(number), move |call| {
        seen.lock().expect("nobody panics").push(call.number(0));
        Ok(0)
    });
    let host = host.build();
    let tick = "tick: r1 = *(u32 *)(r2 + 0)\ncall 70000\nr0 = 0\nexit\n";
    let arm = load(&packs, &host, &[FIND, INIT, SET, START, "exit\n", tick].concat());
    for (key, time) in [(0, 30), (1, 10), (2, 20), (3, 10_000)] {
        assert_eq!(run(&arm, key, time, 0), 0);
    }
    hand.move_on(&host, 100);
    assert_eq!(*order.lock().expect("nobody panics"), [1, 2, 0]);
}

#[test]
fn timers_of_the_clock_of_the_day_take_its_time() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let host = builder(&hand).build();
    let init = INIT.replace("r3 = 1", "r3 = 0");
    let arm = load(&packs, &host, &[FIND, &init, SET, START, "exit\n", TICK].concat());
    assert_eq!(run(&arm, 0, 1_000_005, 1), 0);
    hand.move_on(&host, 4);
    assert_eq!(values(&host).get(0).map(|value| value[0]), Some(0));
    hand.move_on(&host, 1);
    assert_eq!(values(&host).get(0).map(|value| value[0]), Some(1));
}

#[test]
fn the_kernels_clocks_move_by_themselves() {
    let Some(packs) = packs() else { return };
    let host = Host::builder().map(array()).build();
    let arm = load(&packs, &host, &program(&[INIT, SET, START]));
    assert_eq!(run(&arm, 3, 1_000_000, 0), 0);
    while values(&host).get(3).map(|value| value[0]) != Some(4) {
        std::thread::yield_now();
    }
}

#[test]
fn what_linux_refuses_is_refused() {
    let Some(packs) = packs() else { return };
    let (hand, host) = (Hand::default(), builder(&Hand::default()).build());
    let load = |parts: &[&str]| load(&packs, &host, &program(parts));
    let (init, set, start, cancel) = (load(&[INIT]), load(&[SET]), load(&[START]), load(&[CANCEL]));
    let no_timer = [&set, &start, &cancel].map(|program| run(program, 0, 10, 0));
    assert_eq!(no_timer, [-22; 3], "there is none yet");
    assert_eq!((run(&init, 0, 0, 0), run(&init, 0, 0, 0)), (0, -16));
    assert_eq!(run(&start, 0, 10, 0), -22, "it calls nothing");
    assert_eq!((run(&set, 0, 0, 0), run(&start, 0, 10, 2), run(&start, 0, 10, 0)), (0, -22, 0));
    assert_eq!((run(&cancel, 0, 0, 0), run(&start, 0, 10, 0)), (1, -22), "what it calls was taken away");
    assert_eq!((run(&set, 0, 0, 0), run(&cancel, 0, 0, 0)), (0, 0), "it was not armed");
    let wrong_clock = INIT.replace("r3 = 1", "r3 = 5");
    assert_eq!(run(&load(&[&wrong_clock]), 1, 0, 0), -22);
    hand.move_on(&host, 1000);
    assert_eq!(values(&host).get(0).map(|value| value[0]), Some(0));
}
