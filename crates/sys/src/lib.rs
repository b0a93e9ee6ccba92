//! The one seam between Palimpsest and what it runs on: Linux and the CPU.
//!
//! Everything above this crate is free of operating-system and architecture conditions. What is here:
//!
//! | module or type | what it does |
//! |---|---|
//! | [`SharedMemory`], [`Mapping`], [`Reservation`], [`View`] | memory objects and mappings that end with their owner; none is ever writable and executable |
//! | [`collapse`] | huge pages by request |
//! | [`pagemap`] | which pages are populated, and which are private copies |
//! | [`CoreSync`] | makes every core of this process drop what it has fetched ahead |
//! | [`arch`] | traps, instruction-cache maintenance, serialising instructions, pointer tags |
//! | [`ProcMem`], [`TextWriter`] | writing without the right to write |
//! | [`trap`] | SIGTRAP, shared with whoever else handles it |
//! | [`ForkDetector`], [`ForkWitness`] | who was forked from whom |
//! | [`objects_with_note`], [`keep_loaded`], [`Caller`] | loaded objects, and who is calling |
//! | [`vmas`], [`extent`], [`mapped_vec`], [`world`] | changing memory in place: what is mapped, sealed contents, arrays outside the heap, other threads held still |
//! | [`proc`], [`seccomp`], [`capabilities`] | what this machine, kernel, container and user allow |

#![cfg(target_os = "linux")]

pub mod arch;
mod caller;
pub mod capabilities;
mod core_sync;
pub mod extent;
mod fork;
mod huge;
pub mod mapped_vec;
mod mapping;
mod objects;
pub mod pagemap;
pub mod proc;
mod proc_mem;
mod reservation;
pub mod seccomp;
mod shared_memory;
mod symbols;
mod text_writer;
mod tracer;
pub mod trap;
pub mod vmas;
pub mod world;

pub use caller::Caller;
pub use core_sync::{CoreSync, SetupError as CoreSyncSetupError, SyncError, SyncPath};
pub use fork::{ForkDetector, ForkWitness, Heirs, RetiredWitness, SpareWitness, WitnessError};
pub use huge::{CollapseError, HUGE_PAGE, collapse};
pub use mapping::{Area, MapError, Mapping, OnFork, Protection, Source};
pub use objects::{NotLoaded, NotedObject, in_program, in_secure_execution, keep_loaded, objects_with_note};
pub use proc_mem::{ProcMem, ProcMemError};
pub use reservation::{Reservation, View};
pub use shared_memory::{CreateError, ExecRung, Pages, SharedMemory};
pub use symbols::global_symbol;
pub use text_writer::{TextWay, TextWriteError, TextWriter};
