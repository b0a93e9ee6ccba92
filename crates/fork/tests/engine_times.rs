//! Prints what forks take, for a look at a machine:
//! `cargo test --release -p palimpsest-fork --test engine_times -- --ignored --nocapture`. Nothing is asserted of
//! times.

mod common;

use std::time::{Duration, Instant};

use common::{Memory, freeze, play, wait};
use palimpsest_fork::{Options, Pages};

const MIB: usize = 1 << 20;

/// The shortest and the median fork by the library of `count`, each child ending at once, with `before` called before
/// each.
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
