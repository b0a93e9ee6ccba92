use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;

/// One thread at a time may hold the others.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn threads_stand_still_and_run_on() {
    static COUNTS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
    static END: AtomicBool = AtomicBool::new(false);
    let threads: Vec<_> = COUNTS
        .iter()
        .map(|count| {
            std::thread::spawn(move || {
                while !END.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let counts = || COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed));
    while counts().contains(&0) {
        std::thread::yield_now();
    }
    let _turn = TURN.lock().expect("no test has failed");
    let world = World::prepare().expect("a free signal");
    for _ in 0..20 {
        let stopped = world.stop_others().expect("they can be stopped");
        let before = counts();
        let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let _ = rustix::thread::nanosleep(&pause);
        let after = counts();
        let held = stopped.held().filter(|held| held.stack != 0 && held.thread_pointer != 0).count();
        drop(stopped);
        assert_eq!(before, after);
        assert!(held >= 4, "{held}");
        while counts().iter().zip(after).any(|(now, then)| *now == then) {
            std::thread::yield_now();
        }
    }
    END.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("alive"));
}

#[test]
fn who_is_gone_leaves_no_number_behind() {
    let seat = Seat::default();
    seat.tid.store(7, Ordering::Relaxed);
    seat.becomes(Way::Held);
    assert!(seat.is(Way::Held) && seat.tid() == 7);
    seat.becomes(Way::Gone);
    assert!(seat.is(Way::Gone) && seat.tid() == 0, "the kernel may give the number to a new thread");
}

#[test]
fn errors_name_the_thread() {
    let named = std::thread::Builder::new().name("deaf (one)".to_owned());
    let name = || ThreadName::of(rustix::thread::gettid().as_raw_nonzero().get());
    let thread = named.spawn(name).expect("a thread").join().expect("it ends");
    let refusal = Refusal::Denied(Errno::PERM);
    let error = StopError::Blocked { thread, signal: 64, refusal };
    let expected = format!("thread {} (deaf (one)) blocks signal 64 and cannot be held by ptrace", thread.tid());
    assert_eq!(error.to_string(), expected);
    assert_eq!(std::error::Error::source(&error).map(ToString::to_string), Some(refusal.to_string()));
}
