//! How code that other cores may be running is changed: the order of stores, synchronisations and publications.
//!
//! Nothing here knows of an operating system. A kernel implements [`Machine`] with its alias mapping and inter-processor interrupts.
//!
//! # By traps
//!
//! ```text
//!   publish the table
//!   1. trap in the place of each first byte;  sync
//!   2. the tails;                             sync     (skipped if no tail changes)
//!   3. the first bytes;                       sync
//!   withdraw the table
//! ```
//!
//! A core fetches an instruction's bytes at times of its own, so that it can put one together from bytes of different ages; what it has fetched it may
//! run later. A sync ends that: bytes that were fetched before it are not run after it.
//!
//! A. *Old first byte, new tail.* CPU 1 fetches the old first byte, CPU 0 stores the tail, CPU 1 fetches that. Forbidden by the first
//!    sync: when a tail is stored, every core has fetched the trap since, or will.
//!
//! B. *New first byte, old tail.* Forbidden by the second sync in the same way.
//!
//! C. *A trap that nobody knows.* CPU 1 runs into a trap, and its handler finds no table. The table is published before the
//!    first trap is stored; a core that has fetched the trap sees the table (store order, and the sync on machines that have none).
//!
//! ```text
//!   D.  CPU 0                         CPU 1
//!       trap in place
//!                                     runs into the trap
//!       tails, first bytes, sync
//!       withdraws the table
//!                                     handler: no table; the byte in memory is no trap: run it again
//! ```
//!
//! The third sync bounds D: after it no core holds the trap, so that a retry is not followed by another trap of this batch. It also
//! makes the new instruction the only one that runs once the call has returned.
//!
//! ```text
//!   E.  CPU 0                         CPU 1
//!       batch 1: trap in place
//!                                     runs into the trap
//!       batch 1 done, table withdrawn
//!                                     handler: no table
//!       batch 2: publishes, trap in the same place
//!                                     handler: the byte is a trap
//! ```
//!
//! Here the trap looks foreign, and is not. The table's stamp has changed since the search ([`judge`](super::table::judge)), so the handler searches again and
//! finds batch 2: what it does then is what the instruction of batch 2 does, which is right from its publication on.
//!
//! ```text
//!   F.  CPU 0                         CPU 1
//!                                     handler: finds the entry of batch 1, target T
//!       batch 1 done; batch 2 puts the old instruction back
//!                                     handler: goes on at T
//! ```
//!
//! The instruction of batch 1 has run at the time of the search; that the thread arrives at T late is as if it had been
//! interrupted there.
//!
//! # By single stores
//!
//! If each site lies in one naturally aligned word that fetch reads as a whole, a store changes it without a state between. One round, one
//! sync. (AMD APM vol. 2, 7.6.1, on naturally aligned quadwords; Arm ARM, DDI 0487, B2.2.5, for certain instructions of AArch64.)
//!
//! # After a failure
//!
//! Before the tails are stored, old first bytes can be put back without a sync: A needs a new tail. After that nothing is safe without
//! a sync, and the traps stay with their table published: every thread goes on to behave as the new code says, slowly.

use super::site::{Part, Site};

/// What the protocol needs of the world. Calls come from one thread at a time.
pub trait Machine {
    /// What can go wrong.
    type Error;

    /// The instruction that traps, one byte.
    const TRAP: &'static [u8];

    /// Stores a part of each site, in any order, such that instruction fetch will see it. A part of one byte, and [`Part::Whole`] in a word that
    /// fetch reads as a whole, by one store.
    ///
    /// # Errors
    ///
    /// Some of the parts may have been stored.
    fn write(&self, sites: &[Site], part: Part) -> Result<(), Self::Error>;

    /// Makes every core that can run the sites drop what it has fetched, as of some time during this call.
    ///
    /// # Errors
    ///
    /// Some core may not have done so.
    fn sync_cores(&self) -> Result<(), Self::Error>;

    /// Makes handlers know the sites, all of which have an action.
    fn publish(&self, sites: &[Site]);

    /// Makes handlers forget them.
    fn withdraw(&self);
}

/// Why a batch failed, and what has become of the sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed<E> {
    /// All sites are as they were.
    Undone(E),
    /// Traps are in place at some sites, with the table published.
    Stuck(E),
    /// All sites are new; some core may still run old ones.
    Unsynced(E),
}

/// Changes `sites`, sorted by address, by traps.
///
/// # Errors
///
/// See [`Failed`].
pub fn apply_by_traps<M: Machine>(machine: &M, sites: &[Site]) -> Result<(), Failed<M::Error>> {
    machine.publish(sites);
    let trapped = machine.write(sites, Part::Trap(M::TRAP)).and_then(|()| machine.sync_cores());
    if let Err(error) = trapped {
        return Err(match machine.write(sites, Part::OldFirst) {
            Ok(()) => {
                machine.withdraw();
                Failed::Undone(error)
            }
            Err(_) => Failed::Stuck(error),
        });
    }
    if sites.iter().any(Site::changes_tail) {
        machine.write(sites, Part::Tail).map_err(Failed::Stuck)?;
        machine.sync_cores().map_err(Failed::Stuck)?;
    }
    machine.write(sites, Part::First).map_err(Failed::Stuck)?;
    let synced = machine.sync_cores();
    machine.withdraw();
    synced.map_err(Failed::Unsynced)
}

/// Changes `sites` by one store each.
///
/// # Errors
///
/// See [`Failed`]; a failed store leaves earlier sites new ([`Failed::Unsynced`]).
pub fn apply_by_single_stores<M: Machine>(machine: &M, sites: &[Site]) -> Result<(), Failed<M::Error>> {
    machine.write(sites, Part::Whole).map_err(Failed::Unsynced)?;
    machine.sync_cores().map_err(Failed::Unsynced)
}
