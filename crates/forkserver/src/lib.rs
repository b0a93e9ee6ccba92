//! Fork servers: targets that fork from frozen memory or reset themselves, for AFL++ and for your own fuzzer.
//!
//! [`Server`] is the target's side of AFL++'s protocol, for programs in Rust (perhaps with linked C code): `afl-fuzz`,
//! `afl-showmap` and all other programs that start such targets can start this one. [`host::Host`] is a fuzzer's side,
//! for fuzzers whose target is a closure: it keeps the target in its own process. [`coverage`] is the map that both
//! fill.
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
mod sigchld;
mod sysv;
mod wire;

pub use error::{HostError, ServeError};
pub use protocol::Protocol;
pub use serve::Mode;
pub use server::{Ended, Inputs, Server};
