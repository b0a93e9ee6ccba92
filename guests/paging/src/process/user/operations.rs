//! A program that makes the system calls whose fetches are watched.

use palimpsest_paging::PAGE;

use super::{DATA, NULL, Number, calls::NOBODY, exit, fork, give_way, wait};
use crate::arch::user::{call, store};
use crate::fetches::{Operation, ROUNDS};

/// Where pages are mapped and unmapped: in a table of their own.
const FRESH: u64 = DATA + (PAGE << 9);
/// Turns after which a child that gets no signal gives up.
const PATIENCE: u64 = 1000;

/// Watches `body`, and counts it for `operation`.
#[inline(always)]
fn watch(operation: Operation, round: u64, body: impl FnOnce() -> u64) -> u64 {
    call(Number::Watch as u64, [round, 0, 0]);
    let result = body();
    call(Number::Unwatch as u64, [operation as u64, round, 0]);
    result
}

/// Does each operation a few times. The argument: the address of [`signalled`], with this CPU in bits 63:56.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn operations(argument: u64) -> ! {
    let (handler, cpu) = (argument & !(0xff << 56), argument >> 56);
    for round in 0..ROUNDS as u64 {
        watch(Operation::Call, round, || call(Number::Wait as u64, [NOBODY, 0, 0]));
    }
    for round in 0..ROUNDS as u64 {
        store(DATA, round);
        call(Number::Watch as u64, [round, 0, 0]);
        let child = fork(cpu);
        if child == 0 {
            exit(0);
        }
        call(Number::Unwatch as u64, [Operation::Fork as u64, round, 0]);
        wait(child);
    }
    for round in 0..ROUNDS as u64 {
        watch(Operation::Map, round, || {
            call(Number::Map as u64, [FRESH, 1, 0]);
            call(Number::Unmap as u64, [FRESH, 1, 0])
        });
    }
    for round in 0..ROUNDS as u64 {
        watch(Operation::MapLocked, round, || {
            call(Number::Map as u64, [FRESH, 1, 0]);
            call(Number::Lock as u64, [FRESH, 0, 0]);
            call(Number::Unlock as u64, [FRESH, 0, 0]);
            call(Number::Unmap as u64, [FRESH, 1, 0])
        });
    }
    for round in 0..ROUNDS as u64 {
        // Alternately read-only and writable.
        let rights = 1 | (round & 1) << 1;
        watch(Operation::Protect, round, || call(Number::Protect as u64, [DATA + PAGE, 1, rights]));
    }
    for round in 0..ROUNDS as u64 {
        let handle = watch(Operation::Open, round, || {
            let handle = call(Number::Open as u64, [NULL, 0, 0]);
            call(Number::Close as u64, [handle, 0, 0]);
            handle
        });
        if handle != 0 {
            exit(110);
        }
    }
    for round in 0..ROUNDS as u64 {
        let child = fork(cpu);
        if child == 0 {
            store(DATA, round);
            for _ in 0..PATIENCE {
                give_way();
            }
            exit(111);
        }
        store(DATA, round);
        give_way();
        call(Number::Watch as u64, [round, 0, 0]);
        if call(Number::Signal as u64, [child, handler, 0]) != 1 {
            exit(112);
        }
        // The child's handler runs now.
        give_way();
        let code = wait(child);
        if code != 0 {
            exit(code);
        }
    }
    exit(0);
}

/// The handler of a signal. It finds the round in memory that the child inherited.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn signalled(_argument: u64) -> ! {
    let round = crate::arch::user::load(DATA);
    call(Number::Unwatch as u64, [Operation::Signal as u64, round, 0]);
    exit(0);
}
