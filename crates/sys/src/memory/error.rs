//! Why memory could not be mapped.

use std::io;
use std::ops::ControlFlow;

use rustix::io::Errno;
use rustix::process::Resource;

use crate::pages::lines::each_mapping;
use crate::proc::sysctl;

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The process has nearly as many mappings as the kernel grants.
    #[error(
        "cannot map {len} bytes: the process has {count} mappings and vm.max_map_count is {limit}; raise it \
         (`sysctl -w vm.max_map_count={}`)",
        limit * 4
    )]
    TooManyMappings {
        /// Requested bytes.
        len: usize,
        /// Mappings at the time of the failure.
        count: usize,
        /// The kernel's limit.
        limit: u64,
    },
    /// The process may not have that much address space.
    #[error(
        "cannot map {len} bytes: RLIMIT_AS is {limit} bytes; raise it (`ulimit -v unlimited`) or ask for a smaller \
         region"
    )]
    AddressSpaceLimit {
        /// Requested bytes.
        len: usize,
        /// The soft limit, in bytes.
        limit: u64,
    },
    /// The process locks all future memory (`mlockall(MCL_FUTURE)`), and may not lock that much.
    #[error(
        "cannot map {len} bytes, which would be locked: RLIMIT_MEMLOCK is {limit} bytes; \
         raise it (`ulimit -l unlimited`) or do without MCL_FUTURE"
    )]
    LockedLimit {
        /// Requested bytes.
        len: usize,
        /// The soft limit, in bytes.
        limit: u64,
    },
    /// A place was requested that is out of bounds or already in use.
    #[error(
        "bytes {offset:#x}..{end:#x} of a reservation of {len:#x} bytes are out of bounds, misaligned or occupied",
        end = offset.saturating_add(*wanted)
    )]
    Place {
        /// Start of the place, in bytes from the reservation's base.
        offset: usize,
        /// Length of the place, in bytes.
        wanted: usize,
        /// Length of the reservation, in bytes.
        len: usize,
    },
    /// No gap of the address space is near enough to the target.
    #[error(
        "no {len} free bytes within {reach:#x} bytes of {target:#x}; ask for a smaller region or let it lie anywhere"
    )]
    NoneNear {
        /// Requested bytes.
        len: usize,
        /// The address that it should be near.
        target: usize,
        /// The largest allowed distance, in bytes.
        reach: usize,
    },
    /// The kernel refused for another reason.
    #[error("the kernel refused {call} of {len} bytes")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Requested bytes.
        len: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl MapError {
    /// Finds out which limit an errno stands for; the kernel uses one for several.
    pub(crate) fn diagnose(call: &'static str, len: usize, errno: Errno) -> Self {
        let limit = |resource| rustix::process::getrlimit(resource).current;
        match errno {
            Errno::NOMEM => {
                // Without the heap, which may not get a mapping any more.
                let (mut count, mut used) = (0_usize, 0_u64);
                let counted = each_mapping(&mut |mapping, _| {
                    count += 1;
                    used += (mapping.end - mapping.start) as u64;
                    ControlFlow::Continue(())
                });
                if counted.is_ok()
                    && let Ok(limit) = sysctl::max_map_count()
                    // A fixed mapping inside another temporarily needs two more than it ends with.
                    && count as u64 + 3 > limit
                {
                    return Self::TooManyMappings { len, count, limit };
                }
                let is_above = |limit: &u64| used + len as u64 > *limit || counted.is_err();
                if let Some(limit) = limit(Resource::As).filter(is_above) {
                    return Self::AddressSpaceLimit { len, limit };
                }
            }
            // `mlock_future_ok` in mm/mmap.c.
            Errno::AGAIN => {
                if let Some(limit) = limit(Resource::Memlock) {
                    return Self::LockedLimit { len, limit };
                }
            }
            _ => {}
        }
        Self::Kernel { call, len, source: errno.into() }
    }
}
