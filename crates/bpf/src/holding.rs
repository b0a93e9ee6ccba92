//! Which locks of maps, hooks and timers the calling thread holds: for which others it may wait.
//!
//! # Why nobody waits for ever
//!
//! A thread also holds what it held when a signal handler interrupted it, and goes on with that only when the handler
//! has returned. So no holder is sure to go on by itself. Instead locks have levels:
//!
//! | [`Level`] | locks | what holders do meanwhile |
//! |---|---|---|
//! | `Value` | in values (`map/lock`) | run code of a program, or of the host (`change_locked`) |
//! | `Turn` | turns (`map/turns`) of hooks and maps of maps | change lists, keys, and what is kept |
//! | `Part` | buckets of hash maps and tries, queues | copy values, and remove their timers |
//! | `Timers` | the lock of a host's timers | change timers, ask for the time |
//!
//! **A thread waits only for locks of a level below all that it holds.** Were there a circle of threads of which each
//! waits for a lock of the next one, each of these locks would be of a lower level than the one before, all around.
//!
//! The rule leaves out nothing that is done without handlers, but a value lock inside another one's, and what a
//! `TimeSource` does. Whoever may not wait tries for a short time, since the other thread is likely to go on, and gives
//! up: a change is refused (`Deadlock`), and a look-up takes what is there, as from a writer that it has interrupted.
//!
//! The lock of timers does not ask here: whoever is inside one is refused all others but those that it drops, of which
//! `timer` says why they may be waited for. Who waits for a timer's call (`cancel`, `look`) waits for what may need any
//! lock, and so must hold none.

#[cfg(feature = "std")]
std::thread_local! {
    /// How many locks of each level are held: 16 bits for each, the lowest level lowest.
    static HELD: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// What a lock guards, and so what its holder may still wait for: locks of lower levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// The timers of a host.
    #[cfg(feature = "std")]
    Timers,
    /// Part of a map.
    Part,
    /// A hook, or what a map of maps keeps.
    #[cfg(feature = "std")]
    Turn,
    /// A value of a map.
    Value,
}

#[cfg(feature = "std")]
impl Level {
    const BITS: u32 = 16;

    /// The bits of this level, and of those below it.
    const fn up_to(self) -> u64 {
        u64::MAX >> (u64::BITS - Self::BITS * (self as u32 + 1))
    }

    /// The bits of those below it.
    const fn below(self) -> u64 {
        self.up_to() >> Self::BITS
    }
}

/// Counts a lock from before it is taken until after it was given back, so that no handler sees it uncounted.
#[derive(Debug)]
pub(crate) struct Holding {
    level: Level,
    may_wait: bool,
}

impl Holding {
    pub(crate) fn begin(level: Level) -> Self {
        Self { level, may_wait: begin(level) }
    }

    /// Whether the thread may wait for this lock, beside what it held before.
    pub(crate) const fn may_wait(&self) -> bool {
        self.may_wait
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        end(self.level);
    }
}

/// Whether this thread may wait for a lock of this level, or for its holder.
pub(crate) fn may_wait(level: Level) -> bool {
    #[cfg(feature = "std")]
    return HELD.get() & level.up_to() == 0;
    #[cfg(not(feature = "std"))]
    {
        // Nobody knows what was interrupted: `map` says what must not be.
        let _ = level;
        true
    }
}

/// Counts a lock that is about to be taken, and given back by another call. Returns whether the thread may wait for it.
pub(crate) fn begin(level: Level) -> bool {
    let may_wait = may_wait(level);
    #[cfg(feature = "std")]
    HELD.set(HELD.get().wrapping_add(level.below() + 1));
    may_wait
}

/// Counts a lock that was given back, or could not be taken.
pub(crate) fn end(level: Level) {
    #[cfg(feature = "std")]
    if HELD.get() & level.up_to() & !level.below() != 0 {
        HELD.set(HELD.get() - (level.below() + 1));
    }
    #[cfg(not(feature = "std"))]
    let _ = level;
}

/// Whether this thread holds a lock of a map or a hook.
#[cfg(feature = "std")]
pub(crate) fn is_holding() -> bool {
    HELD.get() & !Level::Timers.up_to() != 0
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_lock_waits_only_for_lower_ones() {
        let levels = [Level::Timers, Level::Part, Level::Turn, Level::Value];
        for (height, held) in levels.into_iter().enumerate() {
            let holding = Holding::begin(held);
            let again = Holding::begin(held);
            assert_eq!((holding.may_wait(), again.may_wait()), (true, false), "{held:?}");
            drop(again);
            let waits = levels.map(may_wait);
            assert_eq!(waits, [0, 1, 2, 3].map(|level| level < height), "{held:?}");
            assert_eq!(is_holding(), held != Level::Timers, "{held:?}");
            drop(holding);
            // One too many, as for a lock that was taken over in a child.
            end(held);
            assert_eq!(levels.map(may_wait), [true; 4], "{held:?}");
        }
    }
}
