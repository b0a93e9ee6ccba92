//! Forking, and when to repair.
//!
//! # The policy
//!
//! Memory that the parent writes to makes forks slower, and a repair takes time too. It is the ski-rental problem: what each fork takes above the
//! quickest one is debt, and when the debt exceeds what a repair takes, one repair is bought. So the time lost is at most about twice of what the best
//! choice in hindsight would have lost. A repair that gains nothing doubles the price of the next one.

use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::process::Pid;

use crate::engine::measure::last_errno;
use crate::engine::registry::{self, Counters};
use crate::engine::repair::Repaired;
use crate::engine::round::Mode;
use crate::error::{ForkError, FreezeError};
use crate::hazards;
use crate::options::{Chunk, Options, OtherThreads};
use crate::process::{nanos, played};

/// Who one is after a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forked {
    /// The parent, with the child's process id.
    Parent(Pid),
    /// The child.
    Child,
}

/// The longest patience: after this many fruitless doublings a repair must be worth as many times its price.
const MOST_PATIENCE: u64 = 1 << 20;

/// `fork(2)` through the C library, with its handlers (`pthread_atfork`). In a process that has frozen, it keeps account of what forks take, and
/// repairs frozen memory when that pays.
///
/// # Safety
///
/// 1. As for `fork`: in the child of a process with several threads, nothing may be called that is not async-signal-safe.
/// 2. The contract of [`freeze`](crate::freeze) holds, if this process or one that it was forked from has frozen.
///
/// # Errors
///
/// [`ForkError`] with the kernel's answer.
pub unsafe fn fork() -> Result<Forked, ForkError> {
    let counters = registry::shared().map(|shared| &shared.counters);
    if counters.is_some_and(is_due) {
        // SAFETY: 1. is (2).
        let outcome = unsafe { repair() };
        if let Err(error) = outcome {
            tracing::debug!(%error, "frozen memory is not repaired");
        }
    }
    let started = Instant::now();
    // SAFETY: (1).
    let child = unsafe { libc::fork() };
    let taken = nanos(started.elapsed());
    match Pid::from_raw(child) {
        Some(pid) if child > 0 => {
            counters.inspect(|counters| account(counters, taken));
            Ok(Forked::Parent(pid))
        }
        _ if child == 0 => {
            // The debt was the parent's; Relaxed: one thread.
            counters.inspect(|counters| counters.debt.store(0, Ordering::Relaxed));
            Ok(Forked::Child)
        }
        _ => Err(ForkError(last_errno())),
    }
}

/// Whether the debt exceeds the price.
fn is_due(counters: &Counters) -> bool {
    // Relaxed, here and below: figures, not protocols. Two threads that fork at once may lose one's debt.
    let price = counters.repair_cost.load(Ordering::Relaxed);
    let patience = counters.patience.load(Ordering::Relaxed).max(1);
    counters.debt.load(Ordering::Relaxed) > price.max(1).saturating_mul(patience)
}

/// Adds a fork of `taken` nanoseconds to the account.
fn account(counters: &Counters, taken: u64) {
    counters.forks.fetch_add(1, Ordering::Relaxed);
    let before = counters.before_repair.swap(0, Ordering::Relaxed);
    if before != 0 {
        // The first fork since a repair tells what that was worth.
        let patience = counters.patience.load(Ordering::Relaxed).max(1);
        let gained = taken < before - before / 10;
        let patience = if gained { 1 } else { (patience * 2).min(MOST_PATIENCE) };
        counters.patience.store(patience, Ordering::Relaxed);
    }
    let clean = counters.clean.load(Ordering::Relaxed);
    let clean = if clean == 0 { taken } else { clean.min(taken) };
    counters.clean.store(clean, Ordering::Relaxed);
    counters.debt.fetch_add(taken - clean, Ordering::Relaxed);
}

/// Makes frozen memory cheap again that was written to, and freezes what is new. Called by [`fork`](crate::fork) when it pays.
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
    let debt = counters.debt.swap(0, Ordering::Relaxed);
    let price = counters.repair_cost.load(Ordering::Relaxed);
    // Whatever comes of it, the next trial must be worth twice as much; a fork that is quicker afterwards takes that back.
    let patience = counters.patience.load(Ordering::Relaxed).max(1);
    counters.patience.store((patience * 2).min(MOST_PATIENCE), Ordering::Relaxed);
    let may_stop = counters.may_stop_threads.load(Ordering::Relaxed) != 0;
    let options = Options::new()
        .chunk(Chunk::Bytes(counters.chunk.load(Ordering::Relaxed)))
        .other_threads(if may_stop { OtherThreads::Stop } else { OtherThreads::Refuse })
        .answers(counters.answers.load(Ordering::Relaxed));
    hazards::check(&options)?;
    let repaired = played(&options, Mode::Freeze, |_, done| done.repaired)?;
    counters.repairs.fetch_add(1, Ordering::Relaxed);
    counters.before_repair.store(counters.clean.load(Ordering::Relaxed) + debt.min(price), Ordering::Relaxed);
    counters.clean.store(0, Ordering::Relaxed);
    counters.repair_cost.store(nanos(started.elapsed()), Ordering::Relaxed);
    Ok(repaired)
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
    /// Pieces of 2 MiB that are written to all the time and left anonymous for now.
    pub hot_pieces: usize,
    /// Forks by [`fork`](crate::fork()).
    pub forks: u64,
    /// Repairs.
    pub repairs: u64,
    /// Nanoseconds that forks took above the quickest since the last freeze or repair.
    pub debt: u64,
    /// Nanoseconds of the quickest fork since then; 0 for none.
    pub clean: u64,
    /// Nanoseconds of debt from which on a repair is bought.
    pub price: u64,
}

/// What this process knows of its frozen memory; all zero if there is none.
pub fn status() -> Status {
    let Some(shared) = registry::shared() else { return Status::default() };
    let Counters { frozen_bytes, chunks, hot_pieces, forks, repairs, debt, clean, repair_cost, patience, .. } =
        &shared.counters;
    Status {
        frozen_bytes: frozen_bytes.load(Ordering::Relaxed),
        chunks: chunks.load(Ordering::Relaxed),
        hot_pieces: hot_pieces.load(Ordering::Relaxed),
        forks: forks.load(Ordering::Relaxed),
        repairs: repairs.load(Ordering::Relaxed),
        debt: debt.load(Ordering::Relaxed),
        clean: clean.load(Ordering::Relaxed),
        price: repair_cost.load(Ordering::Relaxed).saturating_mul(patience.load(Ordering::Relaxed).max(1)),
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
    fn debt_buys_a_repair_and_fruitless_ones_get_dearer() {
        let counters = Counters::default();
        counters.repair_cost.store(1000, Ordering::Relaxed);
        counters.clean.store(50, Ordering::Relaxed);
        for _ in 0..10 {
            account(&counters, 150);
        }
        assert!(!is_due(&counters), "1000 is not above the price");
        account(&counters, 51);
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

    #[test]
    fn a_process_that_never_froze_has_nothing() {
        assert_eq!((status(), frozen_bytes()), (Status::default(), 0));
    }
}
