use std::sync::atomic::AtomicBool;

use super::*;
use crate::threads::{alone, in_pid_namespace};

#[test]
fn threads_stand_still_and_run_on() {
    let _alone = alone();
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
    let world = World::prepare().expect("a free signal");
    for _ in 0..20 {
        let stopped = world.stop_others().expect("they can be stopped");
        let before = counts();
        let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let _ = rustix::thread::nanosleep(&pause);
        let after = counts();
        let held = stopped.held().filter(|held| held.stack != 0 && held.control_block != 0).count();
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

/// How long a thread takes, in turns of a loop, between its answer and its sleep.
static LINGER: AtomicUsize = AtomicUsize::new(0);

/// Delays a thread in the handler.
pub(super) fn linger() {
    (0..LINGER.load(Ordering::Relaxed)).for_each(|_| std::hint::spin_loop());
}

/// Threads that are started meanwhile, and so found later, are held too; and a thread that has answered counts only
/// when it sleeps.
#[test]
fn everyone_who_is_there_sleeps() {
    let _alone = alone();
    static END: AtomicBool = AtomicBool::new(false);
    let spawn_on = || {
        while !END.load(Ordering::Relaxed) {
            std::thread::spawn(|| {}).join().expect("it ends");
        }
    };
    let threads: Vec<_> = (0..6).map(|_| std::thread::spawn(spawn_on)).collect();
    LINGER.store(300_000, Ordering::Relaxed);
    let world = World::prepare().expect("memory");
    let own = own_thread();
    let (mut awake, mut strangers) = (0, 0);
    for _ in 0..30 {
        // The listing misses a thread where others end without pause: that is an error, and nobody is held.
        let Ok(stopped) = world.stop_others() else { continue };
        let mut unknown = 0;
        // Without the heap, which a held thread may be inside.
        list::list(&mut |tid| {
            let Some(stat) = task_stat(tid).filter(|stat| !stat.has_ended()) else { return ControlFlow::Continue(()) };
            if tid != own && !stat.is_kernel_worker(tid) {
                awake += usize::from(!matches!(stat.state, b'S' | b't'));
                unknown += usize::from(!stopped.held().any(|held| held.tid == tid));
            }
            ControlFlow::Continue(())
        })
        .expect("/proc is mounted");
        strangers += unknown - stopped.traced().min(unknown);
    }
    LINGER.store(0, Ordering::Relaxed);
    END.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("alive"));
    assert_eq!((awake, strangers), (0, 0));
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

#[test]
fn a_proc_of_another_pid_namespace_is_named() {
    let status = in_pid_namespace(|| {
        let Ok(world) = World::prepare() else { return false };
        let is_named = |answer| matches!(answer, Err(StopError::OtherNamespace));
        is_named(world.rehearse()) && is_named(world.stop_others().map(drop))
    });
    assert!(matches!(status, None | Some(0)), "{status:?}");
}
