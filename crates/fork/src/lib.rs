//! Fork in constant time, however big the heap, and snapshots that reset in microseconds, on unmodified kernels.
//!
//! | module or item | what it is |
//! |---|---|
//! | [`freeze`], [`survey`] | replaces a process's memory in place by mappings that a fork need not copy |
//! | [`freeze_slice`], [`progress`] | the same in slices, while the program runs ([`Pause`]) |
//! | [`fork()`], [`status`] | forking with an account of what it costs, and repairs when they pay |
//! | [`arena`] | an allocator whose memory is made for this |
//! | [`snapshot`] | taking a process's state and going back to it |
//! | [`guard`] | what a frozen process's memory calls must become |
//! | [`figures`] | what others who may read its memory can learn |
//!
//! ```standalone_crate
//! use palimpsest_fork::{Forked, Options, fork, freeze};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let table = vec![7_u8; 64 << 20];
//! // SAFETY: 1. nobody discards or moves what is frozen: the C library's allocator counts on no zeros. 2. There is no
//! // I/O under way. 3. This program has one thread, and nobody shares its memory. 4. Nor later.
//! unsafe { freeze(&Options::new()) }?;
//! // SAFETY: 1. this program has one thread. 2. As above.
//! match unsafe { fork() }? {
//!     Forked::Child => std::process::exit(i32::from(table[0] != 7)),
//!     Forked::Parent(child) => println!("{child:?} has the table, and the kernel copied no page table for it"),
//! }
//! # Ok(())
//! # }
//! ```

pub mod arena;
mod clock;
mod engine;
mod error;
pub mod figures;
mod fork;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod guard;
mod hazards;
mod lock;
mod options;
mod own_stack;
mod planning;
mod process;
mod report;
mod rounds;
mod slices;
pub mod snapshot;
mod tending;
mod worth;

pub use engine::progress::{Progress, Stage};
pub use error::{ForkError, FreezeError};
pub use fork::{Forked, Status, fork, fork_by, frozen_bytes, status};
pub use guard::forget;
pub use hazards::{RawAllocator, RingHold};
pub use options::{Answer, Errands, ExtentLen, Measure, Options, OtherThreads, Pages, Pause, Pays};
pub use own_stack::{NoStack, await_own_stack, on_own_stack};
pub use palimpsest_sys::Causes;
pub use process::{freeze, survey};
pub use report::{FrozenRange, Report, Skip, SkippedRange, Verdict};
pub use slices::{dismiss_deputy, freeze_slice, freeze_while, make_room, next_slice, progress, put_off_slices};
pub use worth::{Basis, Worth};

/// The examples of the book.
#[cfg(doctest)]
#[doc = include_str!("../docs/snapshot.md")]
struct Book;
