//! Prints what forks take, to look at a machine: `cargo test --release -p palimpsest-fork --test engine_times --
//! --ignored --nocapture`. Asserts nothing about time.

mod common;

use std::time::{Duration, Instant};

use common::{Memory, freeze, play, slice, wait};
use palimpsest_fork::{Options, Pages, Pause};

const MIB: usize = 1 << 20;

/// Returns the shortest and the median of `count` forks by the library; each child ends at once, and `before` is called
/// before each.
fn forks(count: usize, mut before: impl FnMut(usize)) -> (Duration, Duration) {
    let mut times: Vec<_> = (0..count)
        .map(|index| {
            before(index);
            let started = Instant::now();
            // SAFETY: one thread, and the guards are not needed: nothing is discarded.
            let forked = unsafe { palimpsest_fork::fork() }.expect("children can be made");
            let taken = started.elapsed();
            match forked {
                // SAFETY: ends the child.
                palimpsest_fork::Forked::Child => unsafe { libc::_exit(0) },
                palimpsest_fork::Forked::Parent(pid) => assert_eq!(wait(pid.as_raw_nonzero().get()), 0),
            }
            taken
        })
        .collect();
    times.sort_unstable();
    (times[0], times[count / 2])
}

fn look_at(len: usize, pages: Pages) {
    println!("empty: {:?}", forks(50, |_| {}));
    let memory = Memory::apart(len);
    memory.fill(0..len, 1);
    println!("{} MiB plain: {:?}", len / MIB, forks(10, |_| {}));
    freeze(&Options::new().pages(pages));
    println!("{} MiB frozen {pages:?}: {:?}", len / MIB, forks(100, |_| {}));
    assert!(memory.holds(0..len, 1));
    println!("{} MiB frozen, all read: {:?}", len / MIB, forks(100, |_| {}));
    memory.set(len / 2, 7);
    println!("{} MiB frozen, all read, one page written once: {:?}", len / MIB, forks(100, |_| {}));
    let step = len / 256;
    let written = forks(400, |_| {
        for index in 0..256 {
            memory.set(index * step + 64, 9);
        }
    });
    println!("{} MiB frozen, 256 pages written before each: {written:?}", len / MIB);
    println!("{} MiB frozen, left in peace again: {:?}", len / MIB, forks(400, |_| {}));
    println!("{:?}", palimpsest_fork::status());
}

#[test]
#[ignore = "prints times, asserts none"]
fn of_64_mib() {
    play("of_64_mib", || look_at(64 * MIB, Pages::Base));
}

#[test]
#[ignore = "prints times, asserts none"]
fn of_512_mib() {
    play("of_512_mib", || look_at(512 * MIB, Pages::Base));
}

#[test]
#[ignore = "prints times, asserts none"]
fn of_512_mib_with_huge_pages() {
    play("of_512_mib_with_huge_pages", || look_at(512 * MIB, Pages::Collapse));
}

#[test]
#[ignore = "prints times, asserts none; needs 5 GB"]
fn of_4_gib() {
    play("of_4_gib", || look_at(4096 * MIB, Pages::Base));
}

/// Returns the CPU time of this thread: wall-clock time includes what other processes do.
fn cpu_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) }, 0);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).expect("below a second"))
}

/// What forked memory is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contestant {
    Plain,
    Huge,
    Frozen,
}

/// Forks of memory that is written to between forks and while the child lives.
struct Contest {
    memory: Memory,
    dice: u64,
}

impl Contest {
    /// Reads a page, as a look-up does, and writes to another.
    fn write(&mut self) {
        let mut roll = || {
            self.dice ^= self.dice << 13;
            self.dice ^= self.dice >> 7;
            self.dice ^= self.dice << 17;
            usize::try_from(self.dice).expect("64 bits") % (self.memory.len / 4096) * 4096
        };
        let (read, written) = (roll(), roll());
        self.memory.get(read);
        self.memory.set(written + 64, 9);
    }

    /// Returns what a fork and its repairs take; `beside` writes follow while the child lives.
    fn fork(&mut self, beside: usize) -> Duration {
        let (mut told, teller) = std::io::pipe().expect("a pipe");
        let started = cpu_time();
        // SAFETY: one thread, and the guards are not needed: nothing is discarded.
        let forked = unsafe { palimpsest_fork::fork() }.expect("children can be made");
        // A child begins with no time of its own.
        let taken = cpu_time().saturating_sub(started);
        match forked {
            palimpsest_fork::Forked::Child => {
                drop(teller);
                let _ = std::io::Read::read(&mut told, &mut [0]);
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) }
            }
            palimpsest_fork::Forked::Parent(pid) => {
                (0..beside).for_each(|_| self.write());
                drop(teller);
                assert_eq!(wait(pid.as_raw_nonzero().get()), 0);
            }
        }
        taken
    }

    /// Returns the first, the median and the longest of `count` forks.
    fn forks(&mut self, count: usize, between: usize, beside: usize) -> [f64; 3] {
        let one = |_| {
            (0..between).for_each(|_| self.write());
            self.fork(beside).as_secs_f64() * 1e3
        };
        let mut times: Vec<f64> = (0..count).map(one).collect();
        let first = times[0];
        times.sort_unstable_by(f64::total_cmp);
        [first, times[count / 2], times[count - 1]]
    }
}

fn contest(contestant: Contestant, len: usize) {
    let memory = Memory::unadvised(len);
    let advice = if contestant == Contestant::Huge { libc::MADV_HUGEPAGE } else { 0 };
    if advice != 0 {
        // SAFETY: changes no contents.
        assert_eq!(unsafe { libc::madvise(memory.at(0), len, advice) }, 0);
    }
    memory.fill(0..len, 1);
    if contestant == Contestant::Frozen {
        freeze(&Options::new());
    }
    let mut contest = Contest { memory, dice: 88_172_645_463_325_252 };
    let show = |contest: &Contest, what: &str, [first, median, longest]: [f64; 3]| {
        let (present, huge) = (contest.memory.present() / MIB, contest.memory.huge() / MIB);
        println!(
            "{contestant:?}, {what}: first {first:.2}, median {median:.2}, longest {longest:.2} ms; \
             {present} MiB present, {huge} huge"
        );
    };
    let idle = contest.forks(11, 0, 0);
    show(&contest, "idle", idle);
    for writes in [100, 1000, 10_000, 100_000] {
        let fresh = contest.forks(1, writes, 0);
        show(&contest, &format!("{writes} writes, once"), fresh);
        let settling = contest.forks(60, 0, 0);
        show(&contest, "60 forks later", settling);
        let again = contest.forks(21, writes, 0);
        show(&contest, &format!("{writes} writes before each"), again);
    }
    let beside = contest.forks(60, 0, 400);
    show(&contest, "400 writes beside each child", beside);
    let settling = contest.forks(60, 0, 0);
    show(&contest, "60 forks later", settling);
    let idle = contest.forks(11, 0, 0);
    show(&contest, "idle", idle);
}

#[test]
#[ignore = "prints times, asserts none"]
fn plain_memory_is_written_to() {
    play("plain_memory_is_written_to", || contest(Contestant::Plain, 512 * MIB));
}

#[test]
#[ignore = "prints times, asserts none"]
fn huge_memory_is_written_to() {
    play("huge_memory_is_written_to", || contest(Contestant::Huge, 512 * MIB));
}

#[test]
#[ignore = "prints times, asserts none"]
fn frozen_memory_is_written_to() {
    play("frozen_memory_is_written_to", || contest(Contestant::Frozen, 512 * MIB));
}

/// Plays forks two seconds apart, of which slices get their share.
fn contest_with_slices(pause: Pause) {
    let memory = Memory::unadvised(256 * MIB);
    memory.fill(0..memory.len, 1);
    freeze(&Options::new().pause(pause));
    let mut longest = Duration::ZERO;
    let mut slices = || {
        let (mut count, mut all) = (0, Duration::ZERO);
        while let Some(rest) = palimpsest_fork::next_slice() {
            std::thread::sleep(rest);
            let started = cpu_time();
            slice();
            let taken = cpu_time().saturating_sub(started);
            (count, all, longest) = (count + 1, all + taken, longest.max(taken));
        }
        format!("{count} slices, {:.1} ms, longest so far {:.2}", all.as_secs_f64() * 1e3, longest.as_secs_f64() * 1e3)
    };
    println!("{pause:?}: frozen: {}", slices());
    let mut contest = Contest { memory, dice: 88_172_645_463_325_252 };
    contest.forks(5, 0, 0);
    for beside in [0, 400] {
        for _ in 0..8 {
            (0..1000).for_each(|_| contest.write());
            let taken = contest.fork(beside).as_secs_f64() * 1e3;
            let huge = contest.memory.huge() / MIB;
            std::thread::sleep(Duration::from_secs(2));
            println!(
                "{pause:?}: fork {taken:.2} ms, {beside} writes beside the child: {huge} MiB huge, then {}: {}",
                slices(),
                contest.memory.huge() / MIB
            );
        }
    }
}

#[test]
#[ignore = "prints times, asserts none"]
fn slices_mend_between_forks() {
    play("slices_mend_between_forks", || contest_with_slices(Pause::Within(Duration::from_millis(2))));
}
