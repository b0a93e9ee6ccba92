//! Timers whose callbacks arm them again at once, for ever: others have their turn, and nobody waits for an end. And a
//! clock that panics, which ends their thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use palimpsest_bpf::host::Host;
use palimpsest_bpf::timer::{TimeSource, TimerClock};
use palimpsest_bpf::verify::{Argument, Signature};

use super::common::packs;
use super::{CANCEL, FIND, Hand, INIT, SET, START, TICK, array, builder, load, program, run, values};

/// Arms the timers of two elements. One of them arms itself for ever; `time` sets the time and flags for which it does.
/// Time stands still except where the test moves it.
fn others_have_their_turn(endless: usize, other: usize, time: &str) {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let host = builder(&hand).build();
    let values = values(&host);
    let tick = TICK.replace("r2 = 10\n    r3 = 0", time);
    assert_ne!(tick, TICK);
    let arm = load(&packs, &host, &[FIND, INIT, SET, START, "exit\n", &tick].concat());
    hand.move_on(&host, 1000);
    assert_eq!(values.set(endless as u32, &[0, 0, 0, u64::MAX]), Ok(()));
    assert_eq!(run(&arm, endless as u64, 10, 0), 0);
    hand.move_on(&host, 10);
    let calls = |key: usize| values.get(key as u32).map_or(0, |value| value[0]);
    assert!(calls(endless) > 0, "it was due");
    assert_eq!(run(&arm, other as u64, 10, 0), 0);
    hand.move_on(&host, 10);
    assert_eq!(calls(other), other as u64 + 1);
    // Due at the same time as the endless one.
    assert_eq!(run(&arm, other as u64, 0, 0), 0);
    hand.move_on(&host, 0);
    assert_eq!(calls(other), 2 * (other as u64 + 1));
    // Setting a value ends its timer.
    assert_eq!(values.set(endless as u32, &[0; 4]), Ok(()));
}

#[test]
fn a_timer_that_is_always_due_leaves_others_their_turn() {
    for (endless, other) in [(0, 3), (3, 0)] {
        others_have_their_turn(endless, other, "r2 = 0\n    r3 = 0");
    }
}

#[test]
fn a_time_long_ago_is_not_later_than_that_of_others() {
    for (endless, other) in [(0, 3), (3, 0)] {
        others_have_their_turn(endless, other, "r2 = 0\n    r3 = 1");
    }
}

#[test]
fn who_cancels_waits_for_one_call_alone() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let (entered, is_entered) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let host = builder(&hand)
        .helper(70_000, Signature::new([Argument::Number]), move |_| {
            // The test no longer waits for later calls.
            let _ = entered.send(());
            let _ = goes_on.lock().expect("one thread").recv();
            Ok(0)
        })
        .build();
    // The callback sets itself and arms the timer again, whoever has cancelled it meanwhile.
    let again = "r1 = r7\nr1 += 8\nr2 = 0\nr3 = 0\ncall 171\nr0 = 0\nexit\n";
    let tick = ["tick: r7 = r3\nr1 = 0\ncall 70000\n", SET, again].concat();
    let arm = load(&packs, &host, &[FIND, INIT, SET, START, "exit\n", &tick].concat());
    let (start, cancel) = (load(&packs, &host, &program(&[START])), load(&packs, &host, &program(&[CANCEL])));
    assert_eq!(run(&arm, 0, 0, 0), 0);
    is_entered.recv().expect("it is called");
    std::thread::scope(|scope| {
        let cancels = scope.spawn(|| run(&cancel, 0, 0, 0));
        while run(&start, 0, 1 << 40, 0) == 0 {
            std::thread::yield_now();
        }
        // From now on the helper does not wait, and the timer is called for ever.
        drop((go_on, is_entered));
        assert!(matches!(cancels.join().expect("it returns"), 0 | 1), "armed anew or not");
    });
    assert_eq!(values(&host).set(0, &[0; 4]), Ok(()));
}

/// A clock that the timers' thread cannot read.
#[derive(Debug)]
struct Broken(Hand, Arc<AtomicBool>);

impl TimeSource for Broken {
    fn now(&self, clock: TimerClock) -> u64 {
        let is_timers = std::thread::current().name() == Some("bpf-timers");
        assert!(!is_timers || !self.1.load(Ordering::SeqCst), "as asked for");
        self.0.now(clock)
    }
}

#[test]
fn a_clock_that_panics_ends_the_thread_and_the_next_timer_starts_another() {
    let Some(packs) = packs() else { return };
    let (hand, is_broken) = (Hand::default(), Arc::new(AtomicBool::new(true)));
    let host = Host::builder().map(array()).time(Broken(hand.clone(), Arc::clone(&is_broken))).build();
    let arm = load(&packs, &host, &program(&[INIT, SET, START]));
    assert_eq!(run(&arm, 0, 10, 0), 0);
    hand.move_on(&host, 10);
    assert_eq!(values(&host).get(0).map(|value| value[0]), Some(0));
    is_broken.store(false, Ordering::SeqCst);
    assert_eq!(run(&arm, 1, 10, 0), 0);
    hand.move_on(&host, 10);
    let calls = [0, 1].map(|key| values(&host).get(key).map(|value| value[0]));
    assert_eq!(calls, [Some(1), Some(2)], "both, by another thread");
}
