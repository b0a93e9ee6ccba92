//! Programs whose threads, on two CPUs, look for stale translations: one changes what the other uses.

use palimpsest_paging::PAGE;

use super::{DATA, Number, PATIENCE, SHARED, await_value, exit, expect, fork, spin_while, wait};
use crate::arch::user::{call, load, store};

/// After a fork, a store of one thread must reach the other, which has read the page before and stays in user mode.
/// Argument: the address of [`stale_reader`], and its CPU in bits 63:56.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn stale_writer(reader: u64) -> ! {
    store(DATA, 1);
    store(DATA + PAGE, 0);
    call(Number::Thread as u64, [reader & !(0xff << 56), 0, reader >> 56]);
    // The reader has the old translation.
    await_value(SHARED, 1);
    let child = fork(0);
    if child == 0 {
        await_value(SHARED + 16, 1);
        expect(DATA, 1, 20);
        exit(0);
    }
    // Copies the table, and this page.
    store(DATA, 2);
    // Tells the reader through a page that both reach; from now on the reader walks the new table.
    store(SHARED + 8, 1);
    await_value(SHARED + 24, 1);
    // Copies a page that the reader has read through the table that stays.
    store(DATA + PAGE, 5);
    store(SHARED + 8, 2);
    await_value(SHARED + 24, 2);
    store(SHARED + 16, 1);
    exit(wait(child));
}

/// See [`stale_writer`]: 0 if it sees the new values, 30 or 31 if an old one.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn stale_reader(_argument: u64) -> ! {
    load(DATA);
    store(SHARED, 1);
    spin_while(SHARED + 8, 0, DATA);
    let first = load(DATA);
    load(DATA + PAGE);
    store(SHARED + 24, 1);
    spin_while(SHARED + 8, 1, DATA + PAGE);
    let second = load(DATA + PAGE);
    store(SHARED + 24, 2);
    if first != 2 {
        exit(30);
    }
    exit(if second == 5 { 0 } else { 31 });
}

/// Unmaps a page that [`unmapped_reader`] reads on another CPU. Argument as for [`stale_writer`].
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn unmapper(reader: u64) -> ! {
    store(DATA, 1);
    call(Number::Thread as u64, [reader & !(0xff << 56), 0, reader >> 56]);
    await_value(SHARED, 1);
    call(Number::Unmap as u64, [DATA, 1, 0]);
    store(SHARED + 8, 1);
    exit(0);
}

/// Must fault at [`DATA`]; ends with 40 if it can still read it.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn unmapped_reader(_argument: u64) -> ! {
    load(DATA);
    store(SHARED, 1);
    spin_while(SHARED + 8, 0, SHARED);
    load(DATA);
    exit(40);
}

/// Takes the right to write from a page to which [`writer`] stores on another CPU. Argument as for [`stale_writer`].
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn withdrawer(writer: u64) -> ! {
    store(DATA, 1);
    call(Number::Thread as u64, [writer & !(0xff << 56), 0, writer >> 56]);
    await_value(SHARED, 1);
    call(Number::Protect as u64, [DATA, 1, 1]);
    let last = load(DATA);
    store(SHARED + 8, 1);
    let mut turn = 0;
    while turn < 1000 {
        expect(DATA, last, 55);
        turn += 1;
    }
    exit(0);
}

/// Must fault at [`DATA`]; ends with 56 if it can still store to it.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn writer(_argument: u64) -> ! {
    let mut value = 2;
    while load(SHARED + 8) == 0 && value < PATIENCE {
        store(DATA, value);
        store(SHARED, 1);
        value += 1;
    }
    store(DATA, 0);
    exit(56);
}
