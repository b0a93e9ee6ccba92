//! How timers end: cancelled, with their elements, with their hosts; and programs that stay for their timers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

use palimpsest_bpf::Packs;
use palimpsest_bpf::host::{Host, HostBuilder};
use palimpsest_bpf::interp::HelperError;
use palimpsest_bpf::map::{Definition, HashHandle, Kind, Map, Update};
use palimpsest_bpf::verify::{Argument, Signature};

use super::common::packs;
use super::{
    CANCEL, FIND, Hand, INIT, SET, START, TICK, Value, array, builder, context, load, map, program, run, values,
};

/// The number of the host's own helper, which takes a number.
const OWN: i32 = 70_000;

fn with(builder: HostBuilder, own: impl Fn(u64) -> Result<u64, HelperError> + Send + Sync + 'static) -> Arc<Host> {
    builder.helper(OWN, Signature::new([Argument::Number]), move |call| own(call.number(0))).build()
}

/// Returns how many programs are left, once there are no more than `wanted`. A thread that looks at timers beside the
/// test's may be about to drop one; if nobody is, this gives up.
fn left(packs: &Packs, wanted: usize) -> usize {
    let mut left = usize::MAX;
    for _ in 0..1 << 18 {
        packs.reclaim().expect("programs are left");
        left = packs.stats().programs;
        if left <= wanted {
            break;
        }
        std::thread::yield_now();
    }
    left
}

/// A callback: calls the host's helper with the key.
const ASK: &str = "tick: r1 = *(u32 *)(r2 + 0)\ncall 70000\nr0 = 0\nexit\n";

#[test]
fn a_program_stays_as_long_as_its_timers() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let host = builder(&hand).build();
    let arm = load(&packs, &host, &program(&[INIT, SET, START]));
    assert_eq!(run(&arm, 0, 10, 0), 0);
    drop(arm);
    packs.reclaim().expect("no program is left");
    hand.move_on(&host, 10);
    assert_eq!(values(&host).get(0).map(|value| value[0]), Some(1));
    assert_eq!(packs.stats().programs, 1, "its code is there");
    let cancel = load(&packs, &host, &program(&[CANCEL]));
    assert_eq!(run(&cancel, 0, 0, 0), 0);
    // The program that has cancelled it does not free the other's code; this does, or the timers' thread.
    host.look_at_time();
    assert_eq!(left(&packs, 1), 1, "the one that cancelled it");
}

#[test]
fn a_timer_ends_with_its_element() {
    let Some(packs) = packs() else { return };
    let count = |kind, end: fn(&Map)| {
        let (hand, timed) = (Hand::default(), map(kind, 4));
        let host = Host::builder().map(Arc::clone(&timed)).time(hand.clone()).build();
        let arm = load(&packs, &host, &program(&[INIT, SET, START]));
        for key in 0_u32..4 {
            timed.update(&key.to_ne_bytes(), &[0; 32], Update::Always).expect("room");
        }
        let armed: Vec<i64> = (0..4).map(|key| run(&arm, key, 10, 0)).collect();
        assert_eq!(armed, [0; 4]);
        end(&timed);
        hand.move_on(&host, 10);
        let calls = |key: u32| {
            let mut value = [0; 32];
            timed.read(&key.to_ne_bytes(), 0, &mut value).map(|()| value[0]).ok()
        };
        // A new element, or one with a new value, has no timer.
        let again = run(&load(&packs, &host, &program(&[INIT])), 1, 0, 0);
        ((0..5).map(calls).collect::<Vec<_>>(), again)
    };
    let update: fn(&Map) = |map| map.update(&1_u32.to_ne_bytes(), &[0; 32], Update::Always).expect("there");
    let replace: fn(&Map) = |map| {
        map.remove(&1_u32.to_ne_bytes()).expect("there");
        map.update(&1_u32.to_ne_bytes(), &[0; 32], Update::Insert).expect("room");
    };
    let remove: fn(&Map) = |map| map.remove(&1_u32.to_ne_bytes()).expect("there");
    assert_eq!(count(Kind::Array, |_| ()), (vec![Some(1), Some(2), Some(3), Some(4), None], -16));
    assert_eq!(count(Kind::Array, update), (vec![Some(1), Some(0), Some(3), Some(4), None], 0));
    for kind in [Kind::Hash, Kind::LruHash] {
        assert_eq!(count(kind, update), (vec![Some(1), Some(0), Some(3), Some(4), None], 0), "{kind:?}");
        assert_eq!(count(kind, replace), (vec![Some(1), Some(0), Some(3), Some(4), None], 0), "{kind:?}");
        assert_eq!(count(kind, remove), (vec![Some(1), None, Some(3), Some(4), None], 100), "{kind:?}");
    }
    // An element that is evicted takes its timer with it.
    let evict: fn(&Map) = |map| map.update(&4_u32.to_ne_bytes(), &[0; 32], Update::Always).expect("room");
    let (calls, _) = count(Kind::LruHash, evict);
    assert_eq!(calls[4], Some(0));
    assert_eq!(calls.iter().flatten().filter(|calls| **calls > 0).count(), 3, "{calls:?}");
}

/// A program of one host arms a timer of a map that another host drives, which cancels it. Nobody keeps the code then.
fn goes_with_its_last_timer(more: Option<Arc<Map>>) {
    let Some(packs) = packs() else { return };
    let (hand, timed) = (Hand::default(), array());
    let host = || Host::builder().map(Arc::clone(&timed)).time(hand.clone());
    let first = host().build();
    let second = more.into_iter().fold(host(), HostBuilder::map).build();
    let arm = load(&packs, &second, &program(&[INIT, SET, START]));
    let cancel = load(&packs, &first, &program(&[CANCEL]));
    assert_eq!(run(&arm, 0, 10, 0), 0);
    drop(arm);
    packs.reclaim().expect("programs are left");
    hand.move_on(&first, 10);
    assert_eq!((values(&first).get(0).map(|value| value[0]), packs.stats().programs), (Some(1), 2));
    assert_eq!(run(&cancel, 0, 0, 0), 0);
    first.look_at_time();
    second.look_at_time();
    assert_eq!(left(&packs, 1), 1, "the one that cancelled it");
}

/// Fails on: code that only the timers of its own host keep, where those of the map are another's.
#[test]
fn a_program_on_another_hosts_map_goes_with_its_last_timer() {
    goes_with_its_last_timer(None);
}

/// Fails on: code that the timers of two hosts keep, each because the other does.
#[test]
fn a_program_on_maps_of_two_hosts_goes_with_its_last_timer() {
    let own = Definition { name: "own".into(), ..array().definition().clone() };
    goes_with_its_last_timer(Some(Arc::new(Map::new(own).expect("good measures"))));
}

#[test]
fn timers_end_with_their_host_and_the_thread_with_the_maps() {
    let Some(packs) = packs() else { return };
    let (hand, timed) = (Hand::default(), array());
    let host = Host::builder().map(Arc::clone(&timed)).time(hand.clone()).build();
    let arm = load(&packs, &host, &program(&[INIT, SET, START]));
    assert_eq!(run(&arm, 0, 10, 0), 0);
    drop(host);
    drop(arm);
    assert_eq!(left(&packs, 0), 0, "its code is not kept");
    // Another host with the same map: the old timer is gone, and the thread is still the same.
    let host = Host::builder().map(Arc::clone(&timed)).build();
    let arm = load(&packs, &host, &program(&[INIT, SET, START]));
    assert_eq!(run(&arm, 0, 10, 0), 0);
    drop((arm, host, timed));
    // The thread holds the clock until it ends.
    while Arc::strong_count(&hand.0) > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn who_cancels_waits_for_what_is_called() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let said = Arc::new(Mutex::new(Vec::new()));
    let (entered, is_entered) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let (seen, goes_on) = (Arc::clone(&said), Mutex::new(goes_on));
    let host = with(builder(&hand), move |_| {
        entered.send(()).expect("the test waits");
        goes_on.lock().expect("one thread").recv().expect("the test goes on");
        seen.lock().expect("nobody panics").push("called");
        Ok(0)
    });
    let arm = load(&packs, &host, &[FIND, INIT, SET, START, "exit\n", ASK].concat());
    let (start, cancel) = (load(&packs, &host, &program(&[START])), load(&packs, &host, &program(&[CANCEL])));
    assert_eq!(run(&arm, 0, 0, 0), 0);
    is_entered.recv().expect("it is called");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(matches!(run(&cancel, 0, 0, 0), 0 | 1), "armed anew or not");
            said.lock().expect("nobody panics").push("cancelled");
        });
        // Once it is cancelled, it has no callback, and cannot be started.
        while run(&start, 0, 1 << 40, 0) == 0 {
            std::thread::yield_now();
        }
        go_on.send(()).expect("it waits");
    });
    assert_eq!(*said.lock().expect("nobody panics"), ["called", "cancelled"]);
}

/// Fails by hanging on: a wait for a call that may wait for this thread, which holds a lock of a map.
#[test]
fn who_holds_a_lock_of_a_map_does_not_wait_for_what_is_called() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let locked = Definition { lock: Some(0), ..Definition::new("locked", Kind::Array, 4, 8, 1) };
    let locked = Arc::new(Map::new(locked).expect("good measures"));
    let (entered, is_entered) = mpsc::channel();
    let for_callback = Arc::clone(&locked);
    let host = with(builder(&hand), move |_| {
        entered.send(()).expect("the test waits");
        // As a program does between `bpf_spin_lock` and `bpf_spin_unlock`.
        for_callback.change_locked(&[0; 4], |_| ()).expect("it is free by and by");
        Ok(0)
    });
    let arm = load(&packs, &host, &[FIND, INIT, SET, START, "exit\n", ASK].concat());
    let cancel = load(&packs, &host, &program(&[CANCEL]));
    locked
        .change_locked(&[0; 4], |_| {
            assert_eq!(run(&arm, 0, 0, 0), 0);
            is_entered.recv().expect("it is called");
            assert_eq!(run(&cancel, 0, 0, 0), -35);
            host.look_at_time();
        })
        .expect("it is free");
    assert!(matches!(run(&cancel, 0, 0, 0), 0 | 1), "armed anew or not");
}

#[test]
fn what_a_timer_calls_cancels_others_and_not_itself() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let host = builder(&hand).build();
    // Cancels its own timer and that of element 1. The results go into the value's first and last number.
    let tick = ["tick: r7 = r3\n", CANCEL, "*(u64 *)(r7 + 0) = r0\n", "r1 = r7\nr1 += 8\n"].concat();
    let other = "*(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\nr1 = r0\n\
                 r1 += 8\ncall 172\n*(u64 *)(r7 + 24) = r0\nnone: r0 = 0\nexit\n";
    let arm = load(&packs, &host, &[FIND, INIT, SET, START, "exit\n", &tick, other].concat());
    assert_eq!((run(&arm, 0, 10, 0), run(&arm, 1, 20, 0)), (0, 0));
    hand.move_on(&host, 100);
    assert_eq!(values(&host).get(0), Some([-35_i64 as u64, 0, 0, 1]));
    assert_eq!(values(&host).get(1), Some([0; 4]), "it was cancelled");
}

#[test]
fn an_element_can_end_itself() {
    let Some(packs) = packs() else { return };
    let (hand, timed) = (Hand::default(), map(Kind::Hash, 4));
    let host = Host::builder().map(Arc::clone(&timed)).time(hand.clone()).build();
    // The callback removes its own element; then there is no timer left to arm.
    let tick = "tick: r6 = r3\nr1 = *(u32 *)(r2 + 0)\n*(u32 *)(r10 - 4) = r1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\n\
                call 3\nr1 = r6\nr1 += 8\nr2 = 0\nr3 = 0\ncall 171\n*(u64 *)(r6 + 24) = r0\nr0 = 0\nexit\n";
    let arm = load(&packs, &host, &[FIND, INIT, SET, START, "exit\n", tick].concat());
    let counts = HashHandle::<u32, Value>::new(Arc::clone(&timed)).expect("its types");
    counts.set(&9, &[0; 4], Update::Insert).expect("room");
    assert_eq!(run(&arm, 9, 10, 0), 0);
    hand.move_on(&host, 10);
    assert_eq!(counts.get(&9), None);
    counts.set(&9, &[0; 4], Update::Insert).expect("room");
    assert_eq!(run(&arm, 9, 10, 0), 0, "a new element, a new timer");
}

#[test]
fn failures_are_counted_and_other_timers_go_on() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let ring = Arc::new(Map::new(Definition::new("ring", Kind::RingBuffer, 0, 0, 4096)).expect("good measures"));
    let host = with(builder(&hand).map(Arc::clone(&ring)), |key| match key {
        0 => Ok(0),
        1 => Err(HelperError::Exit(5)),
        2 => panic!("as asked for"),
        _ => Err(HelperError::Unknown),
    });
    // The callback holds a record of the ring while it calls the helper.
    let tick = "tick: r7 = *(u32 *)(r2 + 0)\nr1 = map[idx:1] ll\nr2 = 8\nr3 = 0\ncall 131\n\
                if r0 == 0 goto none\nr6 = r0\n\
                r1 = r7\ncall 70000\n*(u64 *)(r6 + 0) = r7\nr1 = r6\nr2 = 0\ncall 132\nnone: r0 = 0\nexit\n";
    let arm = load(&packs, &host, &[FIND, INIT, SET, START, "exit\n", tick].concat());
    for key in 0..4 {
        assert_eq!(run(&arm, 3 - key, 10 + key, 0), 0);
    }
    hand.move_on(&host, 100);
    assert_eq!(host.timer_failures(), 2, "the one that panicked, and the one that failed");
    let mut records = Vec::new();
    ring.ring().and_then(|ring| ring.take_consumer()).expect("its only one").drain(|record| records.push(record[0]));
    assert_eq!((records, ring.ring().map(|ring| ring.pending())), (vec![0], Some(0)), "none is kept");
}

#[test]
fn timers_are_armed_and_ended_by_many_threads() {
    let Some(packs) = packs() else { return };
    let timed = map(Kind::Hash, 8);
    let host = Host::builder().map(Arc::clone(&timed)).build();
    let text = [FIND, INIT, SET, START, CANCEL, INIT, SET, START, "exit\n", TICK].concat();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (packs, host, timed, text) = (&packs, &host, &timed, &text);
            scope.spawn(move || {
                for round in 0..60_u32 {
                    // Programs come and go while their timers are armed.
                    let arm = load(packs, host, text);
                    let key = (thread + round) % 8;
                    let _ = timed.update(&key.to_ne_bytes(), &[0; 32], Update::Always);
                    let answer = arm.run_read_only(&context(key.into(), u64::from(round % 3) * 1000, 0));
                    assert!(matches!(answer.map(|answer| answer as i64), Ok(0 | 100 | -22 | -16)), "{answer:?}");
                    let _ = timed.remove(&(key ^ 1).to_ne_bytes());
                    drop(arm);
                    packs.reclaim().expect("there are packs");
                }
            });
        }
    });
    assert_eq!(host.timer_failures(), 0);
}

/// Two timers, each of the map of another host, are called at once, and each cancels the other's: whoever waited would
/// do so for ever. Linux had that as CVE-2024-42239.
///
/// Mutants: in `cancel` or in `look` only the callbacks of one's own host are not waited for.
#[test]
fn callbacks_of_two_hosts_do_not_wait_for_each_other() {
    let Some(packs) = packs() else { return };
    let (hand, maps) = (Hand::default(), [array(), array()]);
    let hosts = maps.each_ref().map(|timed| Host::builder().map(Arc::clone(timed)).time(hand.clone()).build());
    let (tell, told) = mpsc::channel();
    let (both, shown) = (Barrier::new(2), hosts.clone());
    let both_maps = maps.into_iter().fold(Host::builder(), HostBuilder::map);
    let third = with(both_maps, move |number| {
        if number == 0 {
            both.wait();
            shown.iter().for_each(|host| host.look_at_time());
        } else {
            tell.send(number as i64).expect("the test waits");
        }
        Ok(0)
    });
    let arm = |map: usize| {
        format!(
            "r7 = map[idx:{map}][0]+8 ll\nr1 = r7\nr2 = map[idx:{map}] ll\nr3 = 1\ncall 169\nr1 = r7\n\
             r2 = func[tick{map}] ll\ncall 170\nr1 = r7\nr2 = 10\nr3 = 0\ncall 171\n"
        )
    };
    let tick = |map: usize| {
        let meet = "r1 = 0\ncall 70000\n";
        let cancel = format!("r1 = map[idx:{}][0]+8 ll\ncall 172\nr1 = r0\ncall 70000\n", 1 - map);
        // The other one has not returned when this one is told.
        format!("tick{map}: {meet}{cancel}{meet}r0 = 0\nexit\n")
    };
    let text = format!("{}{}r0 = 0\nexit\n{}{}", arm(0), arm(1), tick(0), tick(1));
    assert_eq!(run(&load(&packs, &third, &text), 0, 0, 0), 0);
    hand.0.fetch_add(10, Ordering::SeqCst);
    // Whoever looks waits for what it is the test that it ends.
    let looks = hosts.map(|host| std::thread::spawn(move || host.look_at_time()));
    let answers = [(); 2].map(|()| told.recv_timeout(Duration::from_secs(60)));
    assert_eq!(answers, [Ok(-35); 2], "they wait for each other");
    looks.into_iter().for_each(|look| look.join().expect("it looks"));
}
