//! A program that does things at random, on as many CPUs as its children get to, and always knows what its pages must
//! hold.

use palimpsest_paging::PAGE;

use super::{DATA, MODEL, Number, await_exit, exit, fork};
use crate::arch::user::{call, load, store};
use crate::cpu::CPUS;

/// Number of pages that it stores to; [`MODEL`] has as many.
pub(crate) const PAGES: u64 = 48;
/// Pages of one table, so few that tables become empty now and then.
pub(crate) const GROUP: u64 = 2;
/// Bytes that a table of pages translates.
const TABLE: u64 = 512 * PAGE;

/// Returns the address of page `page`.
#[inline(always)]
pub(crate) const fn address(page: u64) -> u64 {
    DATA + page / GROUP * TABLE + page % GROUP * PAGE
}

/// The model's value for a page that is not mapped.
const UNMAPPED: u64 = u64::MAX;

/// Stores, forks, withdraws and gives back rights, unmaps and maps. Argument: a seed in the low 32 bits, the number of
/// turns in the next 24, and the number of generations that may follow in the rest. Children do half as many turns.
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn wanderer(argument: u64) -> ! {
    let mut random = (argument & 0xffff_ffff) << 8 | 1;
    let (mut turns, mut generations) = (argument >> 32 & 0xff_ffff, argument >> 56);
    let mut child = 0;
    while turns > 0 {
        turns -= 1;
        // Marsaglia's xorshift.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let page = (random >> 32 & 0xffff) % PAGES;
        let (data, model) = (address(page), MODEL + page * PAGE);
        let value = load(model);
        if value == UNMAPPED {
            call(Number::Map as u64, [data, 1, 0]);
            store(model, 0);
            continue;
        }
        if load(data) != value {
            exit(100 + page);
        }
        match random >> 56 & 15 {
            0 => {
                call(Number::Unmap as u64, [data, 1, 0]);
                store(model, UNMAPPED);
            }
            1 => {
                call(Number::Protect as u64, [data, 1, 1]);
                if load(data) != value {
                    exit(200 + page);
                }
                call(Number::Protect as u64, [data, 1, 3]);
            }
            2 if generations > 0 => {
                // At most one child at a time.
                await_exit(child);
                child = fork((random >> 48 & 0xff) % CPUS as u64);
                if child == 0 {
                    generations -= 1;
                    turns /= 2;
                    random ^= 0x5eed_0000_0000;
                }
            }
            _ => {
                store(data, random >> 1);
                store(model, random >> 1);
            }
        }
    }
    await_exit(child);
    exit(0)
}
