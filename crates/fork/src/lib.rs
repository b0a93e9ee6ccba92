//! Fork in constant time however big the heap, and snapshots that reset in microseconds, on unmodified kernels.
//!
//! | module or item | what it is |
//! |---|---|
//! | [`freeze`], [`survey`] | replaces a process's memory in place by mappings that a fork need not copy |
//! | [`fork()`], [`status`] | forking with an account of what it costs, and repairs when they pay |
//! | [`arena`] | an allocator whose memory is made for this |
//! | [`snapshot`] | taking a process's state, and going back to it |
//! | [`forkserver`] | targets for AFL++ and for fuzzers of one's own that fork frozen or reset |
//! | [`guard`] | what a frozen process's memory calls must become |

pub mod arena;
mod engine;
mod error;
mod fork;
pub mod forkserver;
pub mod guard;
mod hazards;
mod options;
mod process;
mod report;
pub mod snapshot;

pub use error::{ForkError, FreezeError};
pub use fork::{Forked, Status, fork, frozen_bytes, status};
pub use options::{Answer, Chunk, Measure, Options, OtherThreads, Pages};
pub use process::{freeze, survey};
pub use report::{FrozenRange, Report, Skip, SkippedRange, Verdict};
