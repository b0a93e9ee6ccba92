use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::*;

fn with_busy_threads(path: SyncPath, syncs: u64) {
    let sync = CoreSync::with_path(path).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match number {
                        0 => std::hint::spin_loop(),
                        1 => thread::sleep(std::time::Duration::from_millis(1)),
                        _ => {
                            thread::spawn(|| {}).join().unwrap();
                            // An emulated CPU cannot read the list of threads as fast as they come otherwise.
                            thread::sleep(std::time::Duration::from_micros(200));
                        }
                    }
                }
            })
        })
        .collect();
    for _ in 0..syncs {
        sync.sync().unwrap();
    }
    assert_eq!(sync.syncs(), syncs);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn membarrier_reaches_busy_sleeping_and_new_threads() {
    with_busy_threads(SyncPath::Membarrier, 1000);
}

/// Held by tests of the broadcast: one of them blocks its signal.
static BROADCAST: Mutex<()> = Mutex::new(());

#[test]
fn signals_reach_busy_sleeping_and_new_threads() {
    let _one_at_a_time = BROADCAST.lock().unwrap_or_else(PoisonError::into_inner);
    with_busy_threads(SyncPath::Signals, 200);
}

#[test]
fn a_thread_that_blocks_the_signal_is_named() {
    let _one_at_a_time = BROADCAST.lock().unwrap_or_else(PoisonError::into_inner);
    let sync = CoreSync::with_path(SyncPath::Signals).unwrap();
    let (ready, wait) = std::sync::mpsc::channel();
    let (done, finish) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        // SAFETY: all-zero is a valid `sigset_t`.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `all` is a valid set.
        unsafe { libc::sigfillset(&mut all) };
        // SAFETY: blocks signals of this thread alone.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut()) };
        ready.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let _ = finish.recv();
    });
    let tid = wait.recv().unwrap();
    let error = sync.sync().unwrap_err();
    assert!(error.to_string().contains(&format!("thread {tid} blocks signal")), "{error}");
    drop(done);
    thread.join().unwrap();
    sync.sync().unwrap();
}
