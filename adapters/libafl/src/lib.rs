//! Executors for [LibAFL](libafl) whose every run finds the target as it was, at a cost that does not grow with the
//! target's memory.
//!
//! | executor | each run | choose it when |
//! |---|---|---|
//! | [`FrozenForkExecutor`] | in a fork of a frozen process | the target may do anything: open files, start threads, exit |
//! | [`ResetExecutor`] | in one process that puts its memory back afterwards | the target keeps to memory, and speed counts |
//!
//! The target lives in a server process of its own ([`Host`]), so that no run pays for the fuzzer's corpus, and a crash
//! of the target never touches the fuzzer. Inputs and the coverage map lie in memory that both share. Start the host
//! before any thread.
//!
//! ```no_run
//! use std::time::Duration;
//! use palimpsest_libafl::{FrozenForkExecutor, Host, HostOptions, Mode, map_observer};
//! use libafl_bolts::tuples::tuple_list;
//!
//! let options = HostOptions::new(Mode::frozen());
//! let set_up = || {
//!     let table = vec![0u8; 1 << 30];
//!     move |input: &[u8]| assert_ne!(input, &table[..3])
//! };
//! // SAFETY: (1) glibc's allocator, no discarding of memory; (2) no threads; (3) LibAFL's observers rest while a
//! // target runs.
//! let mut host = unsafe { Host::start(options, set_up) }.expect("a server");
//! let observer = map_observer(&mut host, "edges").expect("the map");
//! let executor = FrozenForkExecutor::new(host, tuple_list!(observer), Duration::from_secs(1));
//! ```
#![forbid(unsafe_code)]

mod executors;
mod observer;
mod target;

pub use executors::{FrozenForkExecutor, ResetExecutor};
pub use observer::map_observer;
pub use palimpsest_forkserver::Mode;
pub use palimpsest_forkserver::host::{Host, HostOptions, Output};
