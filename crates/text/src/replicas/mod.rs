//! Programs with a copy on every NUMA node.
//!
//! At one address, all threads of a process see the same page, whatever node they run on. So each node has its own
//! packs, with memory of that node, and a program has an entry in each: a [`ReplicatedProgram`] is one handle for all
//! copies, and [`entry`](ReplicatedProgram::entry) is that of the near one.
//!
//! ```ignore-aarch64
//! use palimpsest_sys::numa::NodeId;
//! use palimpsest_text::poke::Batch;
//! use palimpsest_text::{Packs, ReplicatedPacks};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Which nodes there are, and which of these is nearest to a thread, is told by the crate `palimpsest-numa`.
//! let packs = ReplicatedPacks::open(&[NodeId(0), NodeId(1)], |node| node, |_| Packs::builder())?;
//! // mov eax, 42; ret
//! let program = packs.load(&[0xB8, 42, 0, 0, 0, 0xC3], 8)?;
//! let mut batch = Batch::new();
//! // SAFETY: the displacement is the instruction's own, and both answers will do.
//! unsafe { batch.add_to_all(program.replicas(), 0, |_| ([0xB8, 42, 0, 0, 0], [0xB8, 43, 0, 0, 0])) }?;
//! assert_eq!(batch.apply()?.syncs, 1, "as for one copy");
//! // SAFETY: the bytes are a function of that type, and `program` outlives the call.
//! let answer = unsafe { program.function::<extern "C" fn() -> i32>() };
//! assert_eq!(answer(), 43);
//! # Ok(())
//! # }
//! ```
//!
//! # What each copy has
//!
//! Its own place in its own packs: a copy is a [`Program`](crate::Program) like any other, which look-ups, observers,
//! batches and reclaiming know. Relative references to something outside differ from copy to copy; [`StagedReplicas`]
//! and [`ReplicatedPacks::load_each`] tell each address, and [`Batch::add_to_all`](crate::poke::Batch::add_to_all) asks
//! for the bytes of each copy.
//!
//! A thread that is pinned is pinned for all copies. With one node there is one copy, in ordinary packs, and nothing
//! costs more than without replicas.
//!
//! Static keys have their sites in the text of objects, not in programs; `palimpsest-numa` brings text to nodes.

mod data;
mod nodes;
mod packs;
mod program;
mod staged;
mod status;

pub use data::ReplicatedData;
pub use packs::ReplicatedPacks;
pub use program::ReplicatedProgram;
pub use staged::StagedReplicas;
pub use status::NodePacks;
