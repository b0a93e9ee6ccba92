//! NUMA: information on the nodes of this machine, and a copy of read-only data on each of them.
//!
//! | item | meaning |
//! |---|---|
//! | [`Topology`] | nodes, CPUs, distances and memory, and which of them this process may use |
//! | [`current_node`] | the node that the calling thread runs on |
//! | [`Replicated`] | plain read-only data, with a copy on every node that is worth one |
//! | [`ProgramText`] | the program's own text, in huge pages on its node |
//! | [`FileText`] | the text of a program that loads no object, in huge pages of its file |
//! | [`Folder`] | where processes of one user find each other's copies |
//!
//! ```
//! use palimpsest_numa::{ReplicateOptions, Replicated};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let primes = Replicated::<[u32]>::new(&[2, 3, 5, 7], ReplicateOptions::new())?;
//! // The copy of the node that this thread runs on.
//! assert_eq!(primes.get()[2], 5);
//! for node in primes.status() {
//!     println!("{node}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here needs a C library for NUMA. On a machine with one node everything works and costs next to nothing.
#![forbid(unsafe_code)]

mod copy;
mod plain;
mod replicated;
mod shared;
mod status;
mod text;
mod topology;
mod wishes;

pub use copy::CopyError;
pub use palimpsest_sys::memory::sealed::SealError;
pub use palimpsest_sys::memory::sealed_file::AdoptError;
pub use palimpsest_sys::numa::policy::NumaError;
pub use palimpsest_sys::numa::{Locating, NodeId, NodeSet, current_node, locating};
pub use palimpsest_sys::{Causes, Loads};
pub use plain::Plain;
pub use replicated::{Local, ReplicateError, ReplicateOptions, Replicated, When};
pub use shared::{Folder, FolderError, NotShared, Origin, Sharing};
pub use status::{NodeStatus, Placed};
pub use text::{Alone, FileText, FileTextError, Localized, Pages, Piece, ProgramText, Reach, TextOptions, TextRefusal};
pub use topology::{Allowance, Basis, Memory, NoSuchNode, Node, Topology};
