//! Memory that is moved as in a freeze: copied to a file, which then replaces it.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palimpsest_sys::threads::hold::World;

use crate::support::{ends, go_deaf, is_playing, play, start, wait_until};

/// Number of counters in the moved memory, one for each of the longest-lived threads.
const COUNTERS: usize = 8;
const LEN: usize = 1 << 20;

/// Memory that can be moved under its users.
struct Movable {
    start: NonNull<AtomicU64>,
}

// SAFETY: only atomics are in it.
unsafe impl Sync for Movable {}
// SAFETY: as above.
unsafe impl Send for Movable {}

impl Movable {
    fn new() -> Self {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: makes a mapping at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: NonNull::new(start.cast()).expect("a mapping") }
    }

    /// Returns counter `index`; the counters lie far apart.
    fn counter(&self, index: usize) -> &AtomicU64 {
        assert!(index < COUNTERS);
        // SAFETY: within the mapping.
        let place = unsafe { self.start.add(index * (LEN / COUNTERS / 8)) };
        // SAFETY: mapped as long as the process lives, zeroed, aligned, and used by atomics alone.
        unsafe { place.as_ref() }
    }

    fn all(&self) -> [u64; COUNTERS] {
        std::array::from_fn(|index| self.counter(index).load(Ordering::Relaxed))
    }

    /// Replaces it by a private mapping of a file with the same bytes. Writes meanwhile are lost.
    fn move_to_file(&self) {
        // SAFETY: the name is a C string that lives for ever.
        let file = unsafe { libc::memfd_create(c"moved".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0);
        // SAFETY: made above, and nobody else's.
        let file = unsafe { File::from_raw_fd(file) };
        // SAFETY: mapped; all threads that could write are held.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<u8>(), LEN) };
        file.write_all_at(bytes, 0).expect("room in memory");
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: this value's own range, which keeps its bytes.
        let moved = unsafe { libc::mmap(self.start.as_ptr().cast(), LEN, access, kind, file.as_raw_fd(), 0) };
        assert_eq!(moved, self.start.as_ptr().cast());
    }
}

/// Returns how often memory is moved: `usual`, or fewer according to `PALIMPSEST_HOLDS`, for machines on which holding
/// threads that spin takes long.
fn moves(usual: usize) -> usize {
    let most = std::env::var("PALIMPSEST_HOLDS").ok().and_then(|text| text.parse().ok());
    most.map_or(usual, |most: usize| usual.min(most.max(1)))
}

/// Moves memory again and again while threads count in it, and each also for itself.
fn count_and_move(moves: usize) {
    let memory = Movable::new();
    let end = AtomicBool::new(false);
    let world = World::prepare().expect("a free signal");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..COUNTERS)
            .map(|index| {
                let (counter, end) = (memory.counter(index), &end);
                scope.spawn(move || {
                    // Threads with an even number cannot be signalled.
                    if index % 2 == 0 {
                        go_deaf();
                    }
                    let mut count = 0_u64;
                    while !end.load(Ordering::Relaxed) {
                        counter.fetch_add(1, Ordering::Relaxed);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut times = Vec::new();
        for _ in 0..moves {
            let before = memory.all();
            wait_until("all have counted", || {
                memory.all().iter().zip(before).all(|(now, then)| *now != then).then_some(())
            });
            let started = Instant::now();
            let stopped = world.stop_others().expect("they can be held");
            times.push(started.elapsed());
            assert!(stopped.traced() >= COUNTERS / 2, "{}", stopped.traced());
            let before = memory.all();
            memory.move_to_file();
            assert_eq!(memory.all(), before, "somebody runs");
            drop(stopped);
        }
        end.store(true, Ordering::Relaxed);
        // SAFETY: no status is requested.
        let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((waited, errno), (-1, Some(libc::ECHILD)), "a tracer was left behind");
        times.sort_unstable();
        println!("holding {COUNTERS} threads: median {:?}, at most {:?}", times[moves / 2], times[moves - 1]);
        for (index, thread) in threads.into_iter().enumerate() {
            let counted = thread.join().expect("alive");
            assert_eq!(memory.counter(index).load(Ordering::Relaxed), counted, "thread {index} has lost increments");
        }
    });
}

#[test]
fn no_increment_is_lost() {
    play("memory::no_increment_is_lost", || count_and_move(moves(100)));
}

#[test]
fn no_increment_is_lost_while_the_process_is_stopped_and_continued() {
    let name = "memory::no_increment_is_lost_while_the_process_is_stopped_and_continued";
    if is_playing(name) {
        return count_and_move(moves(60));
    }
    let status = ends(&mut start(name), |pid| {
        for signal in [libc::SIGSTOP, libc::SIGCONT] {
            // SAFETY: a child of this process that was not waited for.
            unsafe { libc::kill(pid, signal) };
            thread::sleep(Duration::from_micros(700));
        }
    });
    assert!(status.success(), "{status}");
}

#[test]
fn threads_come_and_go_meanwhile() {
    play("memory::threads_come_and_go_meanwhile", || {
        let memory = Movable::new();
        let end = AtomicBool::new(false);
        let world = World::prepare().expect("a free signal");
        // In the scope of each starter, two short-lived threads at a time: one deaf, one hearing.
        let counted: u64 = thread::scope(|scope| {
            let starters: Vec<_> = (0..3)
                .map(|index| {
                    let (memory, end) = (&memory, &end);
                    scope.spawn(move || {
                        if index == 0 {
                            go_deaf();
                        }
                        let mut counted = 0;
                        while !end.load(Ordering::Relaxed) {
                            let count = |counter: &AtomicU64| {
                                (0..2000).for_each(|_| _ = counter.fetch_add(1, Ordering::Relaxed));
                            };
                            thread::scope(|scope| {
                                scope.spawn(|| count(memory.counter(index)));
                                scope.spawn(|| {
                                    go_deaf();
                                    count(memory.counter(index + 3));
                                });
                            });
                            counted += 4000;
                        }
                        counted
                    })
                })
                .collect();
            let mut refused = 0;
            for _ in 0..150 {
                // Threads that start all the time may not all be found, or answer, on a busy machine.
                let Ok(stopped) = world.stop_others() else {
                    refused += 1;
                    continue;
                };
                let before = memory.all();
                memory.move_to_file();
                assert_eq!(memory.all(), before, "somebody runs");
                drop(stopped);
                thread::sleep(Duration::from_millis(1));
            }
            assert!(refused < 75, "{refused} of 150");
            end.store(true, Ordering::Relaxed);
            starters.into_iter().map(|starter| starter.join().expect("alive")).sum()
        });
        assert_eq!(memory.all().iter().sum::<u64>(), counted, "increments are lost");
    });
}
