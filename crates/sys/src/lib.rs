//! The only interface between Palimpsest and what it runs on: Linux and the CPU.
//!
//! The crates above contain no conditions on operating system or architecture. Contents:
//!
//! | module or type | what it does |
//! |---|---|
//! | [`SharedMemory`], [`Mapping`], [`Reservation`], [`PlacedMapping`] | owned memory, never writable and executable |
//! | [`collapse`] | huge pages by request |
//! | [`pages`] | the kernel's information on memory: mappings, populated pages, private copies |
//! | [`brief_file`], [`in_children`] | files that are open for a moment; what forked children undo first |
//! | [`CoreSync`] | makes every core of this process drop what it has fetched ahead |
//! | [`arch`] | traps, instruction-cache maintenance, serialising instructions, pointer tags |
//! | [`ProcMem`], [`TextWriter`] | writing to memory without the right to write |
//! | [`trap`], [`fault`] | SIGTRAP, and SIGSEGV with SIGBUS, shared with other handlers |
//! | [`ForkDetector`], [`ForkWitness`] | who was forked from whom |
//! | [`objects_with_note`], [`keep_loaded`], [`stay_loaded`], [`Caller`] | loaded objects, and who is calling |
//! | [`async_io`] | memory that the kernel may hold for requests under way |
//! | [`memory`], [`threads`] | changing memory in place: sealed contents, arrays outside the heap, held threads |
//! | [`published`] | a value that is replaced while threads read it without a fence |
//! | [`SetOnce`] | a cell that is set once, and for which no child of `fork` waits |
//! | [`signals`], [`event`] | the signals that a program can wait for, by name or number; events that one thread signals to others |
//! | [`broken_pipe`] | how this process was started with respect to broken pipes and closed streams |
//! | [`clock`] | the kernel's clocks |
//! | [`numa`] | nodes, this thread's node, memory policies, where pages are |
//! | [`is_one_open_file`] | which descriptors share offset and flags |
//! | [`open_regular`] | files that others name, without a wait or an effect |
//! | [`Causes`] | an error with its sources in one line |
//! | [`proc`], [`seccomp`], [`capabilities`] | what this machine, kernel, container and user allow |
//!
//! ```
//! use palimpsest_sys::{CoreSync, capabilities::Capabilities};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // After this, every core has dropped what it had fetched of code that was changed before.
//! CoreSync::new()?.sync()?;
//! // What `palimpsest doctor` shows.
//! println!("{:?}", Capabilities::probe().huge_text);
//! # Ok(())
//! # }
//! ```

#![cfg(target_os = "linux")]

pub mod arch;
pub mod async_io;
pub mod brief_file;
pub mod broken_pipe;
mod caller;
pub mod capabilities;
mod causes;
pub mod clock;
mod closed_streams;
mod errno;
pub mod event;
pub mod fault;
mod fork;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod in_children;
pub mod memory;
pub mod numa;
mod objects;
mod open_file;
pub mod pages;
pub mod proc;
mod proc_mem;
// Its models are the only user of loom here.
#[cfg(any(test, not(loom)))]
pub mod published;
mod random;
mod regular_file;
pub mod seccomp;
mod set_once;
pub mod signals;
mod symbols;
mod text_writer;
pub mod threads;
pub mod trap;

pub use caller::Caller;
pub use causes::Causes;
pub use errno::last_errno;
pub use fork::{ForkDetector, ForkWitness, Heirs, RetiredWitness, SpareWitness, WitnessError};
pub use memory::area::{Area, OnFork};
pub use memory::error::MapError;
pub use memory::file::ExecRung;
pub use memory::huge::{CollapseError, HUGE_PAGE, collapse};
pub use memory::mapping::{Mapping, Protection, Source};
pub use memory::reservation::{PlacedMapping, Reservation};
pub use memory::shared_memory::{CreateError, Pages, SharedMemory};
pub use memory::shutter::{Shutter, Window};
pub use objects::{
    Held, Loads, NotLoaded, NotedObject, ObjectName, hold, holder_of_note, in_program, in_secure_execution,
    keep_loaded, objects_with_note, stay_loaded,
};
pub use open_file::is_one_open_file;
pub use proc_mem::{ProcMem, ProcMemError};
pub use random::{random_below, random_words};
pub use regular_file::{FileKind, OpenRegularError, open_regular};
pub use set_once::SetOnce;
pub use symbols::global_symbol;
pub use text_writer::{Piece, TextPlan, TextWay, TextWriteError, TextWriter, Unstored, Within};
pub use threads::core_sync::{CoreSync, SyncPath};
pub use threads::sync_error::{SetupError as CoreSyncSetupError, SyncError};
