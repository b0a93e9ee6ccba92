//! Programs that look for the kernel, and for what another CPU maps where their root had no table before.

use super::{DATA, Number, SHARED, await_value, exit, expect, spin_while};
use crate::arch::user::{call, load, store};

/// An address to which no entry of the root leads, until a page is mapped there.
pub(crate) const FAR: u64 = 1 << 40;

/// Loads from an address; ends with 0 if the load succeeds.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn peeker(address: u64) -> ! {
    load(address);
    exit(0);
}

/// Maps a page at [`FAR`] while [`far_reader`] runs, and unmaps it again. The argument: that program's address, with
/// its CPU in bits 63:56.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn far_mapper(reader: u64) -> ! {
    call(Number::Thread as u64, [reader & !(0xff << 56), 0, reader >> 56]);
    await_value(SHARED, 1);
    call(Number::Map as u64, [FAR, 1, 0]);
    store(FAR, 5);
    store(SHARED + 8, 1);
    await_value(SHARED, 2);
    call(Number::Unmap as u64, [FAR, 1, 0]);
    // What was a table is now a page, or another table.
    call(Number::Map as u64, [DATA + (1 << 30), 4, 0]);
    store(SHARED + 8, 2);
    exit(0);
}

/// See [`far_mapper`]: finds the page, and no longer finds it when it is unmapped.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn far_reader(_argument: u64) -> ! {
    store(SHARED, 1);
    spin_while(SHARED + 8, 0, SHARED);
    expect(FAR, 5, 120);
    store(SHARED, 2);
    spin_while(SHARED + 8, 1, SHARED);
    load(FAR);
    exit(121);
}
