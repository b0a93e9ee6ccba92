//! A program that does something by chance between slices, beside a list of what all of its pages must hold.

use std::ops::Range;

use palimpsest_fork::{Options, progress};

use crate::common::gathering::{Child, LEN, end, filled, needs_huge_pages, plan, slices, to_the_end};
use crate::common::{guarded, in_child, page, slice};

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }

    fn pages(&mut self) -> Range<usize> {
        let start = self.below(LEN / page());
        start..(start + 1 + self.below(700)).min(LEN / page())
    }
}

/// Plays so many turns. Whatever is done, memory and that of children is what the list says.
pub(crate) fn play(options: &Options, turns: u64) {
    needs_huge_pages();
    let seed = std::env::var("PALIMPSEST_ORACLE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(88_172_645_463_325_252);
    println!("PALIMPSEST_ORACLE_SEED={seed}");
    let mut random = Random(seed);
    let memory = filled();
    // 0 for zeros.
    let mut salts = vec![1_u64; LEN / page()];
    let is_right = |salts: &[u64]| {
        salts.iter().enumerate().all(|(index, salt)| {
            let bytes = index * page()..(index + 1) * page();
            if *salt == 0 { memory.is_zero(bytes) } else { memory.holds(bytes, *salt) }
        })
    };
    plan(options);
    let mut child = None;
    // Most at any time: a later plan begins to count anew.
    let mut gathered = 0;
    for turn in 2..turns {
        let pages = random.pages();
        let bytes = pages.start * page()..pages.end * page();
        match random.below(8) {
            0 => {
                guarded::madvise(&memory, bytes.start, bytes.len(), libc::MADV_DONTNEED).expect("discarded");
                salts[pages].fill(0);
            }
            1 => {
                // SAFETY: the scenario's own memory.
                assert_eq!(unsafe { libc::mprotect(memory.at(bytes.start), bytes.len(), libc::PROT_READ) }, 0);
                slice();
                let all = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: as above.
                assert_eq!(unsafe { libc::mprotect(memory.at(bytes.start), bytes.len(), all) }, 0);
            }
            2 => {
                // The next one would have its pipe, too.
                end(&mut child);
                let then = salts.clone();
                child = Some(Child::fork(|| is_right(&then)));
            }
            3 => end(&mut child),
            _ => {
                memory.fill(bytes, turn);
                salts[pages].fill(turn);
            }
        }
        slices(random.below(4));
        gathered = gathered.max(progress().gathered_bytes).max(memory.huge());
        if turn % 16 == 0 {
            assert!(is_right(&salts), "after {turn} turns");
            assert_eq!(in_child(|| i32::from(!is_right(&salts))), 0, "after {turn} turns");
        }
    }
    end(&mut child);
    to_the_end(|_| palimpsest_fork::dismiss_deputy());
    assert!(is_right(&salts));
    assert!(gathered > 0, "{:?}", progress());
}
