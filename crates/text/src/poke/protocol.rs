//! How code that other cores may be running is changed: the order of stores, synchronisations and publications.
//!
//! Nothing here depends on an operating system. A kernel implements [`Machine`] with its alias mapping and
//! inter-processor interrupts.
//!
//! A core fetches an instruction's bytes at times of its own choice, so that it can combine bytes of different ages,
//! and it may run what it has fetched later. A sync ends that: bytes that were fetched before it are not run after it.
//!
//! | protocol | sites | syncs | what a thread finds meanwhile |
//! |---|---|---|---|
//! | [`apply_by_single_stores`] | what changes fits one store | 1 | the old or the new instruction |
//! | [`apply_by_detours`] | jumps, before another way to the same place | 2 | the other way |
//! | [`apply_by_traps`] | any that a handler can stand in for | 3 | a trap |
//!
//! # By single stores
//!
//! One store changes a site without an intermediate state, and one sync ends the old version. There are two kinds:
//!
//! * *One byte.* The versions differ in one byte, so that every mixture of ages that a core fetches is one of them,
//!   wherever the site lies: across words, cache lines and pages. Any way of writing will do, since every store is at
//!   least a byte. The CPU must only fetch values that were stored in the byte. Every other protocol needs as much: a
//!   trap in place of a first byte is such a store, and so is its removal.
//! * *One word.* Several bytes of one naturally aligned word, which fetch reads as a whole.
//!
//! What manuals and other projects say:
//!
//! * Intel SDM vol. 3A, "Handling Self- and Cross-Modifying Code", knows one algorithm for code that another core runs:
//!   keep that core out, store, let it pass a serialising instruction. It promises nothing for code that other cores
//!   may run meanwhile. Several specification updates have an erratum ("Unsynchronized Cross-Modifying Code Operations
//!   Can Cause Unexpected Instruction Execution Results"). Linux nevertheless stores `int3` over first bytes of running
//!   code, and first bytes over `int3`: H. P. Anvin, then of Intel, wrote on 12 and 18 January 2010 (linux-kernel,
//!   "x86: Introduce generic jump patching without stop_machine") that the procedure works on all of Intel's hardware
//!   as far as he could learn, and that it stands on updates of single bytes being atomic.
//! * AMD APM vol. 2, 7.6.1 "Cross-Modifying Code": a store inside a naturally aligned quadword is seen by another
//!   core's fetch as a whole.
//! * Arm ARM (DDI 0487), B2.2.5 "Concurrent modification and execution of instructions": between certain instructions,
//!   one aligned store of four bytes.
//! * HotSpot redirects calls by one store to an aligned displacement, and blocks others by one store of jumps to
//!   themselves (`NativeCall::set_destination_mt_safe`, `replace_mt_safe` in `nativeInst_x86.cpp`), while other threads
//!   run them. .NET did as much to the jumps of its precode stubs (`rel32SetInterlocked`), before it moved their
//!   targets into data. Neither synchronises first, and both change several bytes at once: they rely on more than is
//!   needed here. Go does not rewrite running code.
//!
//! # By detours
//!
//! A site is `jmp rel32`, and what follows it leads to the same place, more slowly. One byte turns the jump into an
//! instruction that ignores the displacement: `test eax, imm32`. That byte plays the part of the trap below, and
//! falling through that of the handler. So it needs no handler, no table, and no mask that lets a signal in.
//!
//! ```text
//!   what follows leads to the new place
//!   1. the detour in place of each first byte;      sync
//!   2. the displacements;                           sync     (skipped if none changes)
//!   3. the first bytes
//! ```
//!
//! The first sync forbids A below, the second B. There is no third: a core that still has the detour goes to the new
//! place too, and the next change begins with the same detour.
//!
//! # By traps
//!
//! ```text
//!   publish the table
//!   1. trap in place of each first byte;      sync
//!   2. the tails;                             sync     (skipped if no tail changes)
//!   3. the first bytes;                       sync
//!   withdraw the table
//! ```
//!
//! A. *Old first byte, new tail.* CPU 1 fetches the old first byte, CPU 0 stores the tail, CPU 1 fetches that.
//! Forbidden by the first sync: when a tail is stored, every core has fetched the trap since, or will.
//!
//! B. *New first byte, old tail.* Forbidden by the second sync in the same way.
//!
//! C. *A trap that nobody knows.* CPU 1 runs into a trap, and its handler finds no table. The table is published before
//! the first trap is stored; a core that has fetched the trap sees the table (store order, and the sync on machines
//! that have none).
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
//! The third sync bounds D: after it no core holds the trap, so that a retry does not meet another trap of this batch.
//! It also makes the new instruction the only one that runs once the call has returned.
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
//! Here the trap looks foreign, but is not. The table's stamp has changed since the search
//! ([`judge`](super::table::judge)), so the handler searches again and finds batch 2. It then does what the instruction
//! of batch 2 does, which is right from its publication on.
//!
//! ```text
//!   F.  CPU 0                         CPU 1
//!                                     handler: finds the entry of batch 1, target T
//!       batch 1 done; batch 2 puts the old instruction back
//!                                     handler: continues at T
//! ```
//!
//! The instruction of batch 1 has run at the time of the search; the thread arrives at T late, as if it had been
//! interrupted there.
//!
//! # After a failure
//!
//! Before the tails are stored, old first bytes can be put back without a sync: A needs a new tail. After that nothing
//! is safe without a sync. Traps stay with their table published: every thread behaves as the new code says, slowly.
//! Detours stay, and lead to what follows them. Single stores are taken back by further ones, if those succeed.
//!
//! # Models
//!
//! `model_tests` runs the real steps of these functions against a core that fetches each byte at its own time, and
//! `loom_tests` the table against a handler. Both catch their mutants: each step dropped, publications moved, handlers
//! that look once; a single store of two bytes; a detour without either sync.

use super::site::{Part, Site};

/// What the protocol needs from its environment. Calls come from one thread at a time.
pub trait Machine {
    /// The error of a call.
    type Error;

    /// The instruction that traps, one byte.
    const TRAP: &'static [u8];

    /// Stores a part of each site, in any order, and makes instruction fetch see it. Stores one byte, or
    /// [`Part::Stored`], by one store.
    ///
    /// # Errors
    ///
    /// Some of the parts may have been stored.
    fn write(&self, sites: &[Site], part: Part) -> Result<(), Self::Error>;

    /// Makes every core that can run the sites drop what it has fetched, at some time during this call.
    ///
    /// # Errors
    ///
    /// Some core may not have done so.
    fn sync_cores(&self) -> Result<(), Self::Error>;

    /// Makes the sites, all of which have an action, known to handlers.
    fn publish(&self, sites: &[Site]);

    /// Makes handlers forget the sites.
    fn withdraw(&self);
}

/// Why a batch failed, and the state of the sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed<E> {
    /// All sites are as they were.
    Undone(E),
    /// Traps are in place at some sites, with the table published.
    Stuck(E),
    /// All sites are new; some core may still run old ones.
    Unsynced(E),
    /// Some sites may be new, and the others are as they were.
    Partial(E),
}

/// Changes `sites`, sorted by address, by traps.
///
/// # Errors
///
/// See [`Failed`].
pub fn apply_by_traps<M: Machine>(machine: &M, sites: &[Site]) -> Result<(), Failed<M::Error>> {
    machine.publish(sites);
    let trapped = machine.write(sites, Part::Interim(M::TRAP)).and_then(|()| machine.sync_cores());
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

/// Changes `sites`, sorted by address, by detours. Until it has succeeded, threads may meet either jump, and what
/// follows it.
///
/// # Errors
///
/// [`Failed::Undone`]: the sites lead where they did, or to what follows them. [`Failed::Unsynced`]: some are new.
pub fn apply_by_detours<M: Machine>(
    machine: &M,
    sites: &[Site],
    detour: &'static [u8],
) -> Result<(), Failed<M::Error>> {
    machine.write(sites, Part::Interim(detour)).and_then(|()| machine.sync_cores()).map_err(Failed::Undone)?;
    if sites.iter().any(Site::changes_tail) {
        machine.write(sites, Part::Tail).and_then(|()| machine.sync_cores()).map_err(Failed::Undone)?;
    }
    machine.write(sites, Part::First).map_err(Failed::Unsynced)
}

/// Changes `sites` by one store each.
///
/// # Errors
///
/// See [`Failed`]; after a failed store earlier sites are new ([`Failed::Partial`]).
pub fn apply_by_single_stores<M: Machine>(machine: &M, sites: &[Site]) -> Result<(), Failed<M::Error>> {
    machine.write(sites, Part::Stored).map_err(Failed::Partial)?;
    machine.sync_cores().map_err(Failed::Unsynced)
}
