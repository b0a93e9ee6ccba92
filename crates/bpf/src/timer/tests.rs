//! Timers, and who may be inside their lock.
//!
//! Mutants of the mark that tells who is inside, each planted by itself: it stays when the lock is given back, or while
//! a timer is called; it is never set, so that the timers' thread waits for itself; an inner one clears the outer one;
//! the lock of other timers is taken for one's own. One that is not noticed: a wait with nothing armed clears it.

use super::*;
use crate::holding::may_wait;

/// Timers of a map with two elements.
fn timed_by<C: Callback>(time: impl TimeSource) -> Timers<C> {
    let timers = Timers::new(Box::new(time));
    timers.add(Part::new(16, 16, 2).expect("room"));
    timers
}

fn timers() -> Timers<Arc<Nothing>> {
    timed_by(SystemTime)
}

#[test]
fn a_handler_does_not_wait_for_what_it_has_interrupted() {
    let timers = timers();
    timers.init(16, TimerClock::Boot).expect("a new one");
    let held = timers.state().expect("it is free");
    assert_eq!(timers.init(32, TimerClock::Boot), Err(TimerError::Interrupted));
    assert_eq!(timers.start(16, 1, From::Now), Err(TimerError::Interrupted));
    assert_eq!(timers.cancel(16), Err(TimerError::Interrupted));
    assert!(!may_wait(Level::Part), "a look-up waits for nobody who may want to remove a timer");
    drop(held);
    assert_eq!(timers.cancel(16), Ok(false));
    assert!(!is_interrupted() && may_wait(Level::Timers));
}

/// Mutant: a part is found by the addresses from its first timer on, as far as its values are long.
#[test]
fn a_timer_behind_a_value_is_its_own_maps() {
    // The first map's only value ends 16 bytes behind its timer. Then comes the other map.
    let [big, small] = [(0x1000 + 4080, 4096, 1), (0x2010, 64, 2)];
    for parts in [[big, small], [small, big]] {
        let timers = Timers::<Arc<Nothing>>::new(Box::new(SystemTime));
        for (start, stride, count) in parts {
            timers.add(Part::new(start, stride, count).expect("room"));
        }
        for address in [0x2010, 0x2050, 0x1000 + 4080] {
            assert_eq!(timers.init(address, TimerClock::Boot), Ok(()), "{address:#x}");
            assert_eq!(timers.init(address, TimerClock::Boot), Err(TimerError::Busy), "{address:#x}");
        }
        timers.forget_map(big.0);
        assert_eq!((timers.cancel(0x2050), timers.cancel(big.0)), (Ok(false), Err(TimerError::Invalid)));
    }
}

/// Does nothing.
#[derive(Debug)]
struct Nothing;

impl Callback for Arc<Nothing> {
    fn call(&self) -> Ended {
        Ended::Returned
    }

    fn is_alive(&self) -> bool {
        true
    }
}

/// Arms a timer for a time that does not come.
fn arm(timers: &Timers<Arc<Nothing>>) {
    timers.init(16, TimerClock::Boot).expect("a new one");
    timers.set_callback(16, Arc::new(Nothing)).expect("there");
    timers.start(16, u64::MAX, From::Now).expect("a thread");
}

fn wait_for_end<C>(shared: &Shared<C>) {
    let mut state = shared.lock();
    while state.has_thread {
        state = state.wait(&shared.done);
    }
}

#[test]
fn a_handler_that_has_interrupted_a_change_may_drop_other_timers() {
    let (timers, others) = (timers(), timers());
    arm(&others);
    let shared = Arc::clone(&others.shared);
    let held = timers.state().expect("it is free");
    drop(others);
    assert!(shared.lock().parts.is_empty(), "what they call is gone");
    assert!(is_interrupted(), "it goes on with its own");
    drop(held);
    assert!(!is_interrupted() && shared.is_ended());
    wait_for_end(&shared);
}

/// Tells the time; looks at how it is asked, and drops what it holds when the timers' thread asks.
#[derive(Debug, Default)]
struct Curious {
    outside: AtomicU64,
    held: Mutex<Option<Arc<Timers<Arc<Nothing>>>>>,
}

impl TimeSource for Arc<Curious> {
    fn now(&self, _clock: TimerClock) -> u64 {
        if !is_interrupted() {
            self.outside.fetch_add(1, Ordering::Relaxed);
        }
        if std::thread::current().name() == Some("bpf-timers") {
            drop(self.held.lock().expect("nobody panics").take());
        }
        0
    }
}

#[test]
fn who_is_asked_for_the_time_is_refused_and_may_drop_the_timers() {
    let curious = Arc::new(Curious::default());
    let timers = Arc::new(timed_by(Arc::clone(&curious)));
    arm(&timers);
    timers.look();
    let shared = Arc::clone(&timers.shared);
    *curious.held.lock().expect("nobody panics") = Some(Arc::clone(&timers));
    // From here on the source has the last one, and drops it when the thread wakes up.
    drop(timers);
    // Under the lock, so that the thread waits by now.
    let locked = shared.lock();
    shared.changed.notify_one();
    drop(locked);
    wait_for_end(&shared);
    assert_eq!(curious.outside.load(Ordering::Relaxed), 0, "nobody asks without the lock");
}

#[test]
#[expect(unsafe_code, reason = "processes are forked, and a child has what its parent's threads use")]
fn a_child_frees_nothing_that_was_being_changed() {
    let timers = Box::into_raw(Box::new(timers()));
    let kept = Arc::new(Nothing);
    // SAFETY: the box is the child's only when it is dropped there.
    let shown = unsafe { &*timers };
    shown.init(16, TimerClock::Boot).expect("a new one");
    shown.set_callback(16, Arc::clone(&kept)).expect("there");
    let is_left = || {
        // SAFETY: made above; the child has no thread that uses it.
        drop(unsafe { Box::from_raw(timers) });
        Arc::strong_count(&kept) == 2
    };
    crate::map::tests::beside(|| shown.state(), is_left);
    // SAFETY: the child had its own.
    drop(unsafe { Box::from_raw(timers) });
    assert_eq!(Arc::strong_count(&kept), 1);
}
