//! Text is exchanged again and again, while threads execute it, fork, load and unload libraries, and switch keys in it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use palimpsest_numa::{NodeId, ProgramText, Reach, TextOptions, TextRefusal, Topology};
use palimpsest_sys::numa::text::ExchangeError;
use palimpsest_text::key::{Key, State};
use palimpsest_text::{branch, static_key};

use super::{BUILT, Call, Ended, FUNCTIONS, all_functions_work, apart, library, load, opened_at};

#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
mod isa;

/// How often the text is exchanged.
const FLIPS: &str = "PALIMPSEST_FLIPS";

/// Defines keys, and for each a function far from the others with a branch on it: while a key was never switched, the
/// page with its site is exchanged each time.
macro_rules! keyed {
    ($($name:ident $key:ident $text:literal)+) => {
        $(
            static_key!(static $key: $text = off);

            #[inline(never)]
            fn $name() -> bool {
                // SAFETY: jumps over nothing that is executed, and changes nothing.
                unsafe { std::arch::asm!(isa::far!()) };
                branch!(unlikely $key)
            }
        )+

        static KEYED: [Keyed; 24] = [$(Keyed::new($name, &$key)),+];
    };
}

keyed! {
    keyed_0 KEY_0 "torture.0" keyed_1 KEY_1 "torture.1" keyed_2 KEY_2 "torture.2" keyed_3 KEY_3 "torture.3"
    keyed_4 KEY_4 "torture.4" keyed_5 KEY_5 "torture.5" keyed_6 KEY_6 "torture.6" keyed_7 KEY_7 "torture.7"
    keyed_8 KEY_8 "torture.8" keyed_9 KEY_9 "torture.9" keyed_10 KEY_10 "torture.10" keyed_11 KEY_11 "torture.11"
    keyed_12 KEY_12 "torture.12" keyed_13 KEY_13 "torture.13" keyed_14 KEY_14 "torture.14" keyed_15 KEY_15 "torture.15"
    keyed_16 KEY_16 "torture.16" keyed_17 KEY_17 "torture.17" keyed_18 KEY_18 "torture.18" keyed_19 KEY_19 "torture.19"
    keyed_20 KEY_20 "torture.20" keyed_21 KEY_21 "torture.21" keyed_22 KEY_22 "torture.22" keyed_23 KEY_23 "torture.23"
}

/// A key, and what everybody must see of it.
struct Keyed {
    branch: fn() -> bool,
    key: &'static Key,
    /// What holds, and above it how often that has changed. `SeqCst` throughout: nothing here is about speed.
    word: AtomicUsize,
}

/// What holds of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holds {
    Off,
    On,
    /// It is being switched: its branch goes either way.
    Either,
}

impl Keyed {
    const fn new(branch: fn() -> bool, key: &'static Key) -> Self {
        Self { branch, key, word: AtomicUsize::new(0) }
    }

    /// Switches the key, and checks that this holds at once. For one thread at a time.
    fn switch(&self, state: State) {
        let settled = if state.is_on() { Holds::On } else { Holds::Off };
        let count = self.word.load(Ordering::SeqCst) >> 2;
        self.word.store((count + 1) << 2 | Holds::Either as usize, Ordering::SeqCst);
        self.key.set(state).expect("nothing is in the way");
        self.word.store((count + 2) << 2 | settled as usize, Ordering::SeqCst);
        assert_eq!((self.branch)(), state.is_on(), "{}", self.key.name());
    }

    /// Whether the branch goes where the key says, unless that is being switched.
    fn is_right(&self) -> bool {
        let before = self.word.load(Ordering::SeqCst);
        let went = (self.branch)();
        let is_settled = before & 3 != Holds::Either as usize && self.word.load(Ordering::SeqCst) == before;
        !is_settled || went == (before & 3 == Holds::On as usize)
    }
}

/// Exchanges text. Tries again, since nothing changes while it cannot hold a thread that the machine does not let run.
fn localized(options: &TextOptions) -> ProgramText {
    let mut tries = 0;
    loop {
        match ProgramText::localize(options) {
            Err(TextRefusal::Exchange(ExchangeError::Stop(error))) if tries < 10 => println!("again: {error}"),
            done => return done.expect("nothing is in the way"),
        }
        tries += 1;
    }
}

#[test]
fn text_is_exchanged_while_everything_else_goes_on() {
    apart("torture::tortured");
}

/// Fails on: a switched key that an exchange takes back; a thread, a child or a library that runs other bytes, or none;
/// an exchange that stops for good.
#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn tortured() {
    let flips = std::env::var(FLIPS).map_or(5, |told| told.parse().expect("a number"));
    let call = load();
    let other = tempfile::tempdir().expect("a folder");
    let other = other.path().join("libother.so");
    std::fs::copy(library(), &other).expect("copied");
    // On a machine with one node no memory is on this one, so that everything is copied each time.
    let nodes = match Topology::read().homes() {
        [first, second, ..] => [*first, *second],
        _ => [NodeId(1); 2],
    };
    // Before the first exchange.
    KEYED[0].switch(State::On);
    let (done, flip, switched) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let (forked, loaded) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Keys that were switched, and how long the last exchange took, in milliseconds.
    let (fresh, lasts) = (AtomicUsize::new(1), AtomicU64::new(0));
    let until_done = |work: &dyn Fn()| {
        // Also when an assertion fails.
        let _ended = Ended(&done);
        while !done.load(Ordering::Relaxed) {
            work();
        }
    };
    std::thread::scope(|scope| {
        let _ended = Ended(&done);
        scope.spawn(|| until_done(&|| all_functions_work(call)));
        scope.spawn(|| {
            until_done(&|| KEYED.iter().for_each(|keyed| assert!(keyed.is_right(), "{}", keyed.key.name())));
        });
        scope.spawn(|| {
            until_done(&|| {
                child_runs(call);
                forked.fetch_add(1, Ordering::Relaxed);
            });
        });
        scope.spawn(|| {
            until_done(&|| {
                let (handle, call) = opened_at(&other);
                all_functions_work(call);
                // SAFETY: nothing of the library is used any more.
                assert_eq!(unsafe { libc::dlclose(handle) }, 0);
                loaded.fetch_add(1, Ordering::Relaxed);
            });
        });
        // An emulator goes on running replaced code for a while (`TAKING_TURNS` in `xtask/src/aarch64/system.rs`).
        let is_emulated = std::env::var_os(BUILT).is_some();
        let switcher = (!is_emulated).then_some(|| {
            until_done(&|| {
                let known = fresh.load(Ordering::Relaxed);
                if known < KEYED.len().min(2 + flip.load(Ordering::Relaxed)) {
                    // For the first time, somewhere in the middle of an exchange, between the comparison and the move.
                    std::thread::sleep(Duration::from_millis(lasts.load(Ordering::Relaxed) / 2));
                    fresh.store(known + 1, Ordering::Relaxed);
                    return KEYED[known].switch(State::On);
                }
                let count = switched.fetch_add(1, Ordering::Relaxed);
                let state = if (count / known).is_multiple_of(2) { State::Off } else { State::On };
                KEYED[count % known].switch(state);
            });
        });
        switcher.map(|switcher| scope.spawn(switcher));
        for count in 0..flips {
            // One of them has failed, and the scope tells how.
            if done.load(Ordering::Relaxed) {
                break;
            }
            flip.store(count, Ordering::Relaxed);
            let options = TextOptions::new().node(nodes[count % 2]).reach(Reach::Everything);
            let begun = Instant::now();
            let text = localized(&options);
            lasts.store(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            // By its address: a copy has no name of a file.
            let part = text.parts().iter().find(|part| part.span.range().contains(&(call as usize)));
            assert!(part.is_some_and(|part| part.exchanged >= 8 << 20), "{count}: {part:?}");
        }
        // Each of them has done its work while text was exchanged, or does so now.
        let counts = if is_emulated { [&forked, &loaded, &loaded] } else { [&forked, &loaded, &switched] };
        while !done.load(Ordering::Relaxed) && counts.iter().any(|count| count.load(Ordering::Relaxed) < 3) {
            std::thread::yield_now();
        }
    });
    // After the last.
    KEYED.iter().for_each(|keyed| [State::On, State::Off, State::On].into_iter().for_each(|state| keyed.switch(state)));
    all_functions_work(call);
    let [forked, loaded, switched] = [forked, loaded, switched].map(AtomicUsize::into_inner);
    println!("{flips} exchanges, {forked} children, {loaded} libraries, {switched} switches");
}

/// Forks a child that runs through the text, and asserts that it does.
fn child_runs(call: Call) {
    // SAFETY: the child only calls functions of the library and the keyed ones, which use neither locks nor the heap.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let functions = (0..FUNCTIONS).step_by(97).all(|number| {
            let number = number as i32;
            call(number, 5) == number + 5
        });
        let keys = KEYED.iter().all(Keyed::is_right);
        // SAFETY: ends the child.
        unsafe { libc::_exit(if functions && keys { 0 } else { 1 + i32::from(functions) }) };
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: a child of this thread's, and a local. A signal that holds threads may come meanwhile.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}
