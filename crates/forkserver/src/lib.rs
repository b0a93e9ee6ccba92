//! Fork servers: a target of AFL++ that forks from frozen memory or resets itself, and the same for a fuzzer of one's
//! own.
//!
//! [`Server`] is the target's side of AFL++'s protocol, for programs in Rust (with C linked in, where there is any):
//! `afl-fuzz`, `afl-showmap` and everything else that starts such targets can start this one. [`host::Host`] is a
//! fuzzer's side, for fuzzers that hold the target as a closure: it keeps the target in a process of its own.
//! [`coverage`] is the map that both fill.
//!
//! ```no_run
//! use palimpsest_forkserver::{Mode, Server};
//!
//! let database: Vec<String> = (0..1_000_000).map(|n| n.to_string()).collect();
//! let server = Server::new(Mode::reset()).token(b"SELECT");
//! // SAFETY: (1) this process has no other thread; (2) it uses glibc's allocator; (3) descriptors 198 and 199 are
//! // AFL++'s or closed.
//! let ended = unsafe {
//!     server.start(|input| {
//!         palimpsest_forkserver::edge!();
//!         assert!(database.iter().all(|line| line.as_bytes() != input));
//!     })
//! };
//! ended.expect("served");
//! ```

pub mod coverage;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
mod input;
mod protocol;
mod serve;
mod server;
mod sysv;
mod wire;

pub use error::{HostError, ServeError};
pub use protocol::Protocol;
pub use serve::Mode;
pub use server::{Ended, Inputs, Server};
