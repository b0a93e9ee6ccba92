//! Random programs of allocations, frees, resizes, freezes and forks: every block keeps its own bytes, in every
//! process.

mod arena_support;

use std::sync::atomic::{AtomicBool, Ordering};

use arena_support::{Filled, forked};
use palimpsest_fork::arena::{Arena, Backing};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        len: usize,
        align_log: u32,
    },
    Zeroed {
        len: usize,
        align_log: u32,
    },
    Free(usize),
    Resize(usize, usize),
    Rewrite(usize),
    Freeze,
    Refreeze,
    Trim,
    /// The child runs the following steps on its own copy, and must come to the same end.
    Fork,
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0_usize..300,
        6 => 300_usize..20_000,
        3 => 20_000_usize..300_000,
        2 => 300_000_usize..6_000_000,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let align = prop_oneof![10 => 0_u32..5, 3 => 5_u32..17, 1 => 17_u32..22];
    prop_oneof![
        10 => (len(), align.clone()).prop_map(|(len, align_log)| Step::Allocate { len, align_log }),
        5 => (len(), align).prop_map(|(len, align_log)| Step::Zeroed { len, align_log }),
        10 => any::<usize>().prop_map(Step::Free),
        5 => (any::<usize>(), len()).prop_map(|(which, len)| Step::Resize(which, len)),
        4 => any::<usize>().prop_map(Step::Rewrite),
        2 => Just(Step::Freeze),
        1 => Just(Step::Refreeze),
        1 => Just(Step::Trim),
        1 => Just(Step::Fork),
    ]
}

/// Runs the steps and frees everything; panics where a block is wrong.
fn run(arena: &Arena, steps: &[Step], mut blocks: Vec<Filled>) {
    for (index, step) in steps.iter().enumerate() {
        let seed = index as u64 * 2 + 1;
        match *step {
            Step::Allocate { len, align_log } => {
                blocks.push(Filled::new(arena, len, 1 << align_log, seed).expect("memory"));
            }
            Step::Zeroed { len, align_log } => {
                blocks.push(Filled::zeroed(arena, len, 1 << align_log, seed).expect("memory"));
            }
            Step::Free(which) if !blocks.is_empty() => {
                let which = which % blocks.len();
                blocks.swap_remove(which).free(arena);
            }
            Step::Resize(which, len) if !blocks.is_empty() => {
                let which = which % blocks.len();
                assert!(blocks[which].resize(arena, len));
            }
            Step::Rewrite(which) if !blocks.is_empty() => {
                let which = which % blocks.len();
                blocks[which].refill(seed);
            }
            Step::Free(_) | Step::Resize(..) | Step::Rewrite(_) => {}
            Step::Freeze => drop(arena.freeze().expect("the files are open")),
            // SAFETY: the arena is this thread's alone.
            Step::Refreeze => drop(unsafe { arena.refreeze() }.expect("a pagemap and files")),
            Step::Trim => drop(arena.trim()),
            Step::Fork => {
                let mut rest = Some(blocks);
                let child_blocks = rest.take().expect("there");
                // Both go on: the child with its copy of the list, which is on the ordinary heap.
                let list = std::cell::Cell::new(Some(child_blocks));
                let status = forked(
                    || {
                        let blocks = list.take().expect("there");
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            run(arena, &without_forks(&steps[index + 1..]), blocks);
                        }))
                        .is_ok()
                    },
                    || {},
                );
                assert_eq!(status, 0, "the child saw wrong bytes");
                blocks = list.take().expect("the parent's");
                assert!(blocks.iter().all(Filled::is_right), "the child's writes are seen");
            }
        }
    }
    for block in blocks {
        block.free(arena);
    }
}

fn without_forks(steps: &[Step]) -> Vec<Step> {
    steps.iter().filter(|step| !matches!(step, Step::Fork)).cloned().collect()
}

/// 40, or fewer by `PROPTEST_CASES`.
fn cases() -> u32 {
    ProptestConfig::default().cases.min(40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn every_block_keeps_its_bytes(steps in proptest::collection::vec(step(), 1..120), anonymous in any::<bool>()) {
        let arena = Arena::with_backing(if anonymous { Backing::Anonymous } else { Backing::Memfd });
        run(&arena, &steps, Vec::new());
        let stats = arena.stats();
        prop_assert_eq!((stats.in_use.blocks, stats.in_use.bytes), (0, 0));
    }
}

/// Threads that allocate, hand blocks to each other, and free, while another freezes and forks.
#[test]
fn threads_keep_their_bytes_while_others_freeze_and_fork() {
    static ARENA: Arena = Arena::new();
    const THREADS: u64 = 3;
    let stop = AtomicBool::new(false);
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Filled>(64);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let sender = sender.clone();
            let stop = &stop;
            scope.spawn(move || {
                let mut own = Vec::new();
                let mut state = thread + 1;
                // Relaxed: only a flag.
                while !stop.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let len = [40, 700, 9000, 70_000, 400_000][(state >> 33) as usize % 5];
                    own.push(Filled::zeroed(&ARENA, len, 16, state).expect("memory"));
                    if own.len() > 40 {
                        let at = (state >> 40) as usize % own.len();
                        let mut block: Filled = own.swap_remove(at);
                        assert!(block.is_right());
                        block.refill(state ^ 5);
                        if let Err(back) = sender.try_send(block) {
                            let (std::sync::mpsc::TrySendError::Full(block)
                            | std::sync::mpsc::TrySendError::Disconnected(block)) = back;
                            block.free(&ARENA);
                        }
                    }
                }
                own.into_iter().for_each(|block| block.free(&ARENA));
            });
        }
        drop(sender);
        for round in 0..40_u64 {
            if round % 2 == 0 {
                ARENA.freeze().expect("the files are open");
            }
            let kept = Filled::new(&ARENA, 3000, 16, round).expect("memory");
            // The child has locks that nobody holds, and an arena of its own.
            let status = forked(
                || {
                    (0..100).all(|index| {
                        let block = Filled::zeroed(&ARENA, 1 << (index % 20), 16, index);
                        block.is_some_and(|block| block.is_right()) && kept.is_right()
                    })
                },
                || {},
            );
            assert_eq!(status, 0);
            kept.free(&ARENA);
            receiver.try_iter().take(20).for_each(|block| block.free(&ARENA));
        }
        stop.store(true, Ordering::Relaxed);
        receiver.iter().for_each(|block| block.free(&ARENA));
    });
    assert_eq!(ARENA.stats().in_use.blocks, 0);
}

/// Ends the threads that watch it, even if an assertion fails, which would otherwise wait for them for ever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        // Relaxed: only a flag.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Twice as many threads as a class has bins, so that at a fork some other thread is likely to hold the lock that the
/// child needs.
#[test]
fn a_child_waits_for_no_lock_of_a_thread_that_it_does_not_have() {
    static ARENA: Arena = Arena::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..8 {
            scope.spawn(|| {
                // Relaxed: only a flag.
                while !stop.load(Ordering::Relaxed) {
                    let block = std::ptr::NonNull::new(ARENA.allocate(8, 16)).expect("memory");
                    // SAFETY: allocated just now.
                    unsafe { ARENA.release(block) };
                }
            });
        }
        for round in 0..60 {
            let status = forked(|| Filled::new(&ARENA, 8, 16, 1).is_some_and(|block| block.is_right()), || {});
            assert_eq!(status, 0, "in round {round}");
        }
    });
}
