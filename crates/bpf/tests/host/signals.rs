//! Signal handlers that run programs and change maps, whatever they have interrupted on their thread.
//!
//! A lock that waits for its own thread is caught.
#![expect(unsafe_code, reason = "signals are sent, and handlers installed")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};

use palimpsest_bpf::map::{NestError, OpError};

use super::*;

/// What the handler does.
static HANDLER: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
/// How often it was called.
static CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle(_signal: libc::c_int) {
    if let Some(handler) = HANDLER.get() {
        handler();
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Signals among which some hit the few instructions that they are to hit: on busy machines ten did.
const MOST_SIGNALS: u64 = 20_000;

/// Says that no more signals are wanted, also when the work has failed: otherwise their sender would not end.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `work` again and again, while a thread sends signals to this one, until `is_enough`.
fn interrupt(mut work: impl FnMut(), is_enough: impl Fn() -> bool) {
    // SAFETY: all-zero is a valid action, without flags and masks.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: a valid action, whose handler is a function of that type; null asks for nothing.
    let installed = unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) };
    assert_eq!(installed, 0);
    // SAFETY: no preconditions.
    let worker = unsafe { libc::pthread_self() };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_done = &is_done;
        scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                let before = CALLS.load(Ordering::Relaxed);
                // SAFETY: the thread waits for this one before it ends.
                unsafe { libc::pthread_kill(worker, libc::SIGUSR1) };
                // The next one when this one was handled, so that the work goes on meanwhile.
                while CALLS.load(Ordering::Relaxed) == before && !is_done.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        });
        let _done = Done(is_done);
        let begun = CALLS.load(Ordering::Relaxed);
        while !is_enough() {
            work();
            let sent = CALLS.load(Ordering::Relaxed) - begun;
            assert!(sent <= MOST_SIGNALS, "of {sent} signals fewer than 3 were kept out, or fewer than 100 were not");
        }
    });
}

/// Sets the second value of the hash map, whose bucket is locked meanwhile, and passes a record to the ring buffer.
const CHANGES: &str = "*(u64 *)(r10 - 8) = 5\nr1 = map[idx:1] ll\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -8\nr4 = 0\n\
                       call 2\nr6 = r0\nr1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr1 = r0\n\
                       r2 = 0\ncall 133\nout: r0 = r6\nexit";

/// What programs get that would wait for what they have interrupted.
const DEADLOCK: u64 = -35_i64 as u64;

/// One test, since there is one handler.
#[test]
fn handlers_wait_for_nothing_that_they_have_interrupted() {
    let Some(packs) = packs() else { return };
    let host = builder().build();
    let program = Arc::new(
        HostedProgram::load(&packs, &host.verify(contract(), code(CHANGES)).expect("harmless")).expect("room"),
    );
    let outer = {
        let inner = Some(Box::new(Definition::new("inner", Kind::Array, 4, 8, 1)));
        let map = Definition { inner, ..Definition::new("outer", Kind::ArrayOfMaps, 4, 4, 2) };
        Arc::new(Map::new(map).expect("good measures"))
    };
    let inner = Arc::new(Map::new(Definition::new("inner", Kind::Array, 4, 8, 1)).expect("good measures"));
    let set = {
        let (outer, inner) = (Arc::clone(&outer), Arc::clone(&inner));
        move |place: u32| outer.maps().expect("it has maps").set(&place.to_ne_bytes(), Some(Arc::clone(&inner)))
    };
    // From the second time on it takes no memory.
    set(0).expect("room");
    let counts: Arc<[AtomicU64; 5]> = Arc::default();
    let [ran, refused, put, kept_out, wrong] = [0, 1, 2, 3, 4];
    HANDLER
        .set({
            let (program, counts, set) = (Arc::clone(&program), Arc::clone(&counts), set.clone());
            Box::new(move || {
                let count = |which: usize| counts[which].fetch_add(1, Ordering::Relaxed);
                match program.run(&mut [0; LEN]) {
                    Ok(0) => count(ran),
                    Ok(DEADLOCK) => count(refused),
                    _ => count(wrong),
                };
                match set(1) {
                    Ok(()) => count(put),
                    Err(NestError::Op(OpError::Deadlock)) => count(kept_out),
                    Err(_) => count(wrong),
                };
            })
        })
        .unwrap_or_else(|_| panic!("set once"));
    let count = |which: usize| counts[which].load(Ordering::Relaxed);
    interrupt(
        || assert_eq!(program.run(&mut [0; LEN]), Ok(0), "what is interrupted goes on"),
        || count(refused) >= 3 && count(ran) >= 100,
    );
    interrupt(|| set(0).expect("what is interrupted goes on"), || count(kept_out) >= 3 && count(put) >= 100);
    assert_eq!(count(wrong), 0);
    // Nothing is left over: no record, no lock.
    let ring = host.maps()[2].ring().expect("a ring buffer");
    assert_eq!(ring.take_consumer().expect("nobody else's").drain(|record| panic!("{record:?}")), 0);
    assert_eq!(ring.pending(), 0);
    assert_eq!((program.run(&mut [0; LEN]), set(0)), (Ok(0), Ok(())));
}
