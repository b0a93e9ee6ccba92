//! Programs that fork: parents and children see their own stores and no others.

use palimpsest_paging::PAGE;

use super::{DATA, Number, PATIENCE, SHARED, await_value, exit, expect, fork, wait};
use crate::arch::user::{call, load, store};
use crate::cpu::CPUS;

/// Parent and child, the latter on `child_cpu`, store different values to the same addresses.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn family(child_cpu: u64) -> ! {
    store(DATA, 1);
    store(DATA + PAGE, 7);
    let child = fork(child_cpu);
    if child == 0 {
        expect(DATA, 1, 10);
        store(DATA, 2);
        store(SHARED, 1);
        await_value(SHARED + 8, 1);
        expect(DATA, 2, 11);
        expect(DATA + PAGE, 7, 12);
        exit(0);
    }
    store(DATA, 3);
    await_value(SHARED, 1);
    expect(DATA, 3, 13);
    expect(DATA + PAGE, 7, 14);
    store(SHARED + 8, 1);
    exit(wait(child));
}

/// A child withdraws its own right to write to a page and stores to it; the parent may still store. Ends with the
/// child's code.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn protector(child_cpu: u64) -> ! {
    store(DATA, 1);
    let child = fork(child_cpu);
    if child == 0 {
        call(Number::Protect as u64, [DATA, 1, 1]);
        expect(DATA, 1, 50);
        store(DATA, 2);
        exit(51);
    }
    store(DATA, 3);
    let code = wait(child);
    expect(DATA, 3, 52);
    // A page that loses the right and gets it back.
    call(Number::Protect as u64, [DATA, 1, 1]);
    call(Number::Protect as u64, [DATA, 1, 3]);
    store(DATA, 4);
    expect(DATA, 4, 53);
    exit(code);
}

/// Forks `argument >> 32` times, onto all CPUs in turn; each child stores to each of the first `argument & 0xffff_ffff`
/// pages.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn breaker(argument: u64) -> ! {
    let (rounds, pages) = (argument >> 32, argument & 0xffff_ffff);
    let mut page = 0;
    while page < pages {
        store(DATA + page * PAGE, page);
        page += 1;
    }
    let mut round = 0;
    while round < rounds {
        let child = fork(round % CPUS as u64);
        if child == 0 {
            let mut page = 0;
            while page < pages {
                expect(DATA + page * PAGE, page, 60);
                store(DATA + page * PAGE, page + round + 1);
                expect(DATA + page * PAGE, page + round + 1, 61);
                page += 1;
            }
            exit(0);
        }
        let code = wait(child);
        if code != 0 {
            exit(code);
        }
        round += 1;
    }
    let mut page = 0;
    while page < pages {
        expect(DATA + page * PAGE, page, 62);
        page += 1;
    }
    exit(0);
}

/// Forks again and again while [`counter`] stores on the last CPU: no child may see a store made after its fork.
/// Argument as for [`stale_writer`](super::stale_writer), with the number of forks in bits 55:48.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn snapshots(argument: u64) -> ! {
    let forks = argument >> 48 & 0xff;
    call(Number::Thread as u64, [argument & !(0xffff << 48), 0, argument >> 56]);
    await_value(SHARED, 1);
    let mut done = 0;
    while done < forks {
        // The last CPU is the counter's.
        let child = fork(done % (CPUS as u64 - 1));
        if child == 0 {
            // The counter stores to the first page before the second.
            let (first, second) = (load(DATA), load(DATA + PAGE));
            let mut turn = 0;
            while turn < 200 {
                expect(DATA, first, 70);
                expect(DATA + PAGE, second, 71);
                turn += 1;
            }
            exit(if second > first { 72 } else { 0 });
        }
        let code = wait(child);
        if code != 0 {
            store(SHARED + 8, 1);
            exit(code);
        }
        done += 1;
    }
    store(SHARED + 8, 1);
    exit(0);
}

/// See [`snapshots`].
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn counter(_argument: u64) -> ! {
    let mut count = 1;
    while load(SHARED + 8) == 0 && count < PATIENCE {
        store(DATA, count);
        store(DATA + PAGE, count);
        if load(DATA) != count || load(DATA + PAGE) != count {
            exit(80);
        }
        store(SHARED, 1);
        count += 1;
    }
    exit(0);
}
