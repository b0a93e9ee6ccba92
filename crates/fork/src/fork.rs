//! Forking, and when to repair.
//!
//! # The policy
//!
//! Memory that the parent writes to makes forks slower, and a repair takes time too. It is the ski-rental problem: what
//! each fork takes above a clean one is debt, and when the debt exceeds the price of a repair, one is bought. So the
//! time lost is at most about twice of what the best choice in hindsight would have lost.
//!
//! Forks are measured by the CPU time of the thread, since on a busy machine the clock on the wall tells of the
//! neighbours. A clean fork is what a repair can reach: the quickest since the last repair, or the first one after it
//! if that is slower, by half. Else what no repair can take away (`pthread_atfork` handlers, memory that is hot, noise)
//! would be debt for ever.
//!
//! The price depends on how much was written, and finding that out takes time by itself. So when the debt exceeds the
//! time of the last look, there is another one, which gives a quote; from then on the debt is compared with the quote.
//! Right before the repair there is a look again, so that none is bought that has become dearer. Quotes are corrected
//! by what the last repairs took indeed. A repair that gains nothing doubles the price of the next one.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use palimpsest_sys::last_errno;
use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};

use crate::engine::registry::{self, Counters, Shared};
use crate::engine::repair::Repaired;
use crate::engine::round::{Mode, SCALE};
use crate::error::{ForkError, FreezeError};
use crate::guard;
use crate::hazards;
use crate::options::{Chunk, Options, OtherThreads, Pages};
use crate::process::{nanos, played};

/// Who one is after a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forked {
    /// The parent, with the child's process id.
    Parent(Pid),
    /// The child.
    Child,
}

/// The longest patience: how many times its price a repair must be worth after many that gained nothing. More would
/// save next to nothing, and put off the repair that does gain something when a program becomes quiet.
const MOST_PATIENCE: u64 = 1 << 5;

/// `fork(2)` through the C library, with its handlers (`pthread_atfork`). In a process that has frozen, it keeps
/// account of what forks take, and repairs frozen memory when that pays.
///
/// # Safety
///
/// 1. As for `fork`: in the child of a process with several threads, nothing may be called that is not
///    async-signal-safe.
/// 2. The contract of [`freeze`](crate::freeze) holds, if this process or one that it was forked from has frozen.
///
/// # Errors
///
/// [`ForkError`] with the kernel's answer.
pub unsafe fn fork() -> Result<Forked, ForkError> {
    let shared = registry::shared().filter(|shared| shared.has_frozen());
    let counters = shared.map(|shared| &shared.counters);
    if counters.is_some_and(is_due) || shared.is_some_and(Shared::has_erased) {
        // SAFETY: 1. is (2).
        let outcome = unsafe { repair() };
        if let Err(error) = outcome {
            tracing::debug!(%error, "frozen memory is not repaired");
        }
    }
    let started = counters.map(|_| cpu_time());
    // SAFETY: (1).
    let child = unsafe { libc::fork() };
    if child == 0 {
        // From here on it is known that the memory is the child's own.
        let _ = hazards::borrowed::owner();
        // The debt was the parent's; Relaxed: one thread.
        counters.inspect(|counters| counters.debt.store(0, Ordering::Relaxed));
        guard::forget_erased();
        return Ok(Forked::Child);
    }
    // -1 is no process, and not to be taken for one.
    let Some(pid) = Pid::from_raw(child.max(0)) else { return Err(ForkError(last_errno())) };
    if let (Some(counters), Some(started)) = (counters, started) {
        account(counters, nanos(cpu_time().saturating_sub(started)));
    }
    Ok(Forked::Parent(pid))
}

/// What the calling thread has had of CPUs.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Whether the debt exceeds the price.
fn is_due(counters: &Counters) -> bool {
    // Relaxed, here and below: figures, not protocols. Two threads that fork at once may lose one's debt.
    counters.debt.load(Ordering::Relaxed) > price(counters)
}

/// The debt from which on there is a look or, if there was one, a repair.
fn price(counters: &Counters) -> u64 {
    let patience = counters.patience.load(Ordering::Relaxed).max(1);
    match counters.quote.load(Ordering::Relaxed) {
        0 => counters.look.load(Ordering::Relaxed).max(1),
        quote => quote,
    }
    .saturating_mul(patience)
}

/// Adds a fork of `taken` nanoseconds to the account.
fn account(counters: &Counters, taken: u64) {
    counters.forks.fetch_add(1, Ordering::Relaxed);
    let before = counters.before_repair.swap(0, Ordering::Relaxed);
    let known = counters.clean.load(Ordering::Relaxed);
    let mut clean = if known == 0 { taken } else { known.min(taken) };
    if before != 0 {
        // The first fork since a repair tells what that was worth, and what a repair cannot take away.
        clean = u64::midpoint(clean, taken);
        let patience = counters.patience.load(Ordering::Relaxed).max(1);
        let gained = taken < before - before / 4;
        let patience = if gained { 1 } else { (patience * 2).min(MOST_PATIENCE) };
        counters.patience.store(patience, Ordering::Relaxed);
    }
    // Of two, since after one outlier any repair would look like a gain; but the first fork after a repair is not one
    // of them.
    let previous = counters.last.swap(if before == 0 { taken } else { 0 }, Ordering::Relaxed);
    counters.typical.store(if previous == 0 { taken } else { taken.min(previous) }, Ordering::Relaxed);
    counters.clean.store(clean, Ordering::Relaxed);
    counters.debt.fetch_add(taken - clean, Ordering::Relaxed);
}

/// Looks at what was written to frozen memory, and makes it cheap again if the debt exceeds what that is expected to
/// take. Called by [`fork`](crate::fork) when it may pay.
///
/// # Safety
///
/// 1. The contract of [`freeze`](crate::freeze).
///
/// # Errors
///
/// [`FreezeError`]; everything is as it was.
pub(crate) unsafe fn repair() -> Result<Repaired, FreezeError> {
    let Some(shared) = registry::shared() else { return Ok(Repaired::default()) };
    let counters = &shared.counters;
    let started = Instant::now();
    let debt = counters.debt.load(Ordering::Relaxed);
    let patience = counters.patience.load(Ordering::Relaxed).max(1);
    let may_stop = counters.may_stop_threads.load(Ordering::Relaxed) != 0;
    let collapses = counters.collapses.load(Ordering::Relaxed) != 0;
    let options = Options::new()
        .least(counters.least.load(Ordering::Relaxed))
        .pages(if collapses { Pages::Collapse } else { Pages::Base })
        .chunk(Chunk::Bytes(counters.chunk.load(Ordering::Relaxed)))
        .other_threads(if may_stop { OtherThreads::Stop } else { OtherThreads::Refuse })
        .answers(counters.answers.load(Ordering::Relaxed));
    // What was erased is to go, whatever that takes.
    let most = if shared.has_erased() { u64::MAX } else { debt / patience };
    let outcome = hazards::check(&options).and_then(|()| {
        played(&options, Mode::FreezeWithin(most), |_, done| {
            (done.repaired, done.quote, nanos(done.looked), nanos(done.taken.saturating_sub(done.looked)))
        })
    });
    let taken = nanos(started.elapsed());
    let Ok((repaired, quote, looked, worked)) = outcome else {
        // Whatever forbids it, the next trial must be worth twice as much, and starts from nothing.
        counters.debt.store(0, Ordering::Relaxed);
        counters.look.fetch_max(taken, Ordering::Relaxed);
        counters.patience.store((patience * 2).min(MOST_PATIENCE), Ordering::Relaxed);
        return outcome.map(|(repaired, ..)| repaired);
    };
    if quote > most {
        counters.look.store(taken, Ordering::Relaxed);
        // The next look, which is a part of the repair, must have been earned again.
        counters.quote.store(quote.max((debt + taken) / patience), Ordering::Relaxed);
        return Ok(repaired);
    }
    counters.debt.store(0, Ordering::Relaxed);
    counters.quote.store(0, Ordering::Relaxed);
    counters.look.store(looked.max(1), Ordering::Relaxed);
    counters.scale.store(corrected(counters.scale.load(Ordering::Relaxed), quote, worked), Ordering::Relaxed);
    counters.repairs.fetch_add(1, Ordering::Relaxed);
    counters.before_repair.store(counters.typical.load(Ordering::Relaxed), Ordering::Relaxed);
    Ok(repaired)
}

/// The scale of quotes, moved half-way to where this one would have been right.
fn corrected(scale: u64, quote: u64, taken: u64) -> u64 {
    let right = u128::from(scale) * u128::from(taken) / u128::from(quote.max(1));
    let right = u64::try_from(right).unwrap_or(u64::MAX).clamp(SCALE / 8, SCALE * 8);
    u64::midpoint(scale, right)
}

/// What this process knows of its frozen memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Status {
    /// Bytes of address space that show frozen memory.
    pub frozen_bytes: usize,
    /// Sealed files that are mapped.
    pub chunks: usize,
    /// Pieces of up to 2 MiB that are written to all the time and left alone for now.
    pub hot_pieces: usize,
    /// Forks by [`fork`](crate::fork()).
    pub forks: u64,
    /// Repairs.
    pub repairs: u64,
    /// Nanoseconds of CPU time that forks took above `clean` since the last freeze or repair.
    pub debt: u64,
    /// Nanoseconds of CPU time of a fork when nothing was written since the last freeze or repair; 0 for none.
    pub clean: u64,
    /// Nanoseconds of debt from which on a repair is bought, or a look is taken at what it would take.
    pub price: u64,
}

/// What this process knows of its frozen memory; all zero if there is none.
pub fn status() -> Status {
    let Some(shared) = registry::shared().filter(|shared| shared.has_frozen()) else { return Status::default() };
    let Counters { frozen_bytes, chunks, hot_pieces, forks, repairs, debt, clean, .. } = &shared.counters;
    Status {
        frozen_bytes: frozen_bytes.load(Ordering::Relaxed),
        chunks: chunks.load(Ordering::Relaxed),
        hot_pieces: hot_pieces.load(Ordering::Relaxed),
        forks: forks.load(Ordering::Relaxed),
        repairs: repairs.load(Ordering::Relaxed),
        debt: debt.load(Ordering::Relaxed),
        clean: clean.load(Ordering::Relaxed),
        price: price(&shared.counters),
    }
}

/// Bytes of address space that show frozen memory, as of the last freeze or repair.
pub fn frozen_bytes() -> usize {
    // Relaxed: a figure.
    registry::shared().map_or(0, |shared| shared.counters.frozen_bytes.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debt_buys_a_look_and_then_a_repair_and_fruitless_ones_get_dearer() {
        let counters = Counters::default();
        counters.look.store(1000, Ordering::Relaxed);
        counters.clean.store(50, Ordering::Relaxed);
        for _ in 0..10 {
            account(&counters, 150);
        }
        assert!(!is_due(&counters), "1000 is not above the price");
        account(&counters, 51);
        assert!(is_due(&counters));
        counters.quote.store(5000, Ordering::Relaxed);
        assert!(!is_due(&counters), "a look has told that a repair is dearer");
        (0..40).for_each(|_| account(&counters, 150));
        assert!(is_due(&counters));
        counters.patience.store(2, Ordering::Relaxed);
        assert!(!is_due(&counters));
        counters.before_repair.store(150, Ordering::Relaxed);
        account(&counters, 149);
        assert_eq!(counters.patience.load(Ordering::Relaxed), 4, "nothing gained");
        counters.before_repair.store(150, Ordering::Relaxed);
        account(&counters, 60);
        assert_eq!(counters.patience.load(Ordering::Relaxed), 1, "worth it");
    }

    /// Forks of `take(n)` for the n-th since the last repair, repaired whenever that is due: how many repairs there
    /// were.
    fn repairs(forks: usize, price: u64, take: impl Fn(usize) -> u64) -> usize {
        let counters = Counters::default();
        counters.look.store(price, Ordering::Relaxed);
        counters.clean.store(50, Ordering::Relaxed);
        let (mut repairs, mut since) = (0, 0);
        for _ in 0..forks {
            if is_due(&counters) {
                counters.debt.store(0, Ordering::Relaxed);
                counters.before_repair.store(counters.typical.load(Ordering::Relaxed), Ordering::Relaxed);
                (repairs, since) = (repairs + 1, 0);
            }
            account(&counters, take(since));
            since += 1;
        }
        repairs
    }

    #[test]
    fn what_no_repair_takes_away_is_not_debt_for_ever() {
        // Handlers of `pthread_atfork`, say: every fork takes thrice what the freeze has measured.
        let constant = repairs(10_000, 300, |_| 150);
        assert!(constant <= 10, "{constant} repairs gained nothing");
        // Noise: one fork of eight takes long, whatever is repaired.
        let noisy = repairs(10_000, 300, |n| if n % 8 == 7 { 400 } else { 60 + (n % 3) as u64 * 10 });
        assert!(noisy <= 10_000 / 80, "{noisy} repairs gained nothing");
        // A parent that writes after each clean fork: two dear ones pay for a repair, and every repair gains.
        let written = repairs(10_000, 1000, |n| if n == 0 { 60 } else { 560 });
        assert!((3_000..=3_400).contains(&written), "{written} repairs");
    }

    /// The ski-rental bound, in nanoseconds that are made up: whatever forks take, repairs cost no more than what the
    /// forks before them took above a clean one. So forks and repairs together lose at most twice of what forks without
    /// any repair would.
    #[test]
    fn repairs_never_cost_more_than_what_dear_forks_have_lost() {
        const CLEAN: u64 = 50;
        let mut state = 1_u64;
        let mut random = move || {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200 {
            let counters = Counters::default();
            let (price, dearest) = (1 + random() % 100_000, 1 + random() % 20_000);
            counters.look.store(price, Ordering::Relaxed);
            counters.clean.store(CLEAN, Ordering::Relaxed);
            let (mut lost, mut spent) = (0, 0);
            for _ in 0..2_000 {
                if is_due(&counters) {
                    spent += price;
                    assert!(spent <= lost, "repairs for {spent}, and forks have lost {lost}");
                    counters.debt.store(0, Ordering::Relaxed);
                    counters.before_repair.store(counters.typical.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                // From cheap ones to dear ones and back, at random.
                let above = if random() % 3 == 0 { 0 } else { random() % dearest };
                lost += above;
                account(&counters, CLEAN + above);
            }
        }
    }

    #[test]
    fn quotes_learn_from_repairs() {
        let once = corrected(SCALE, 1000, 3000);
        assert_eq!(once, 2 * SCALE);
        assert!((0..20).fold(SCALE, |scale, _| corrected(scale, scale, 3 * SCALE)).abs_diff(3 * SCALE) < 10);
        assert!(corrected(SCALE, 1, u64::MAX) <= 5 * SCALE && corrected(SCALE, u64::MAX, 1) >= SCALE / 2);
    }

    #[test]
    fn a_process_that_never_froze_has_nothing() {
        assert_eq!((status(), frozen_bytes()), (Status::default(), 0));
    }
}
