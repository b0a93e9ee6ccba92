//! Counters of what the machine has done.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64),* }

        /// Values of the counters, or their growth.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct Counts { $($(#[$doc])* pub(crate) $name: u64),* }

        pub(crate) static COUNTS: Counters = Counters { $($name: AtomicU64::new(0)),* };

        /// Reads the counters.
        pub(crate) fn now() -> Counts {
            // Relaxed: statistics.
            Counts { $($name: COUNTS.$name.load(Ordering::Relaxed)),* }
        }

        impl Counts {
            /// Returns what was counted since `self`.
            pub(crate) fn since(self) -> Self {
                let now = now();
                Self { $($name: now.$name - self.$name),* }
            }
        }
    };
}

counts! {
    /// Tables taken from arenas.
    tables_allocated,
    /// Tables given back.
    tables_freed,
    /// Pages copied because they were written.
    pages_copied,
    /// Pages given back.
    pages_freed,
    /// Flushes.
    flushes,
    /// Flushes on only the CPU that has faulted.
    local_flushes,
    /// Calls of other CPUs for flushes.
    flush_calls,
    /// Calls of other CPUs to synchronise instruction fetch.
    sync_calls,
    /// System calls.
    system_calls,
    /// Times that instruction caches were invalidated for new code.
    code_flushes,
    /// Loads of programs that faulted and were resumed.
    probes_resumed,
    /// Page faults of user mode.
    faults,
    /// Shared tables that faults copied.
    unshared,
    /// Pages that faults copied.
    broken,
    /// Pages that faults took over.
    reused,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    // Relaxed: a statistic.
    counter.fetch_add(value, Ordering::Relaxed);
}
