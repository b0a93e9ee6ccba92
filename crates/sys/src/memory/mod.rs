//! Memory of this process: the objects behind it, their mappings, and replacing mappings in place.

pub(crate) mod area;
pub mod calls;
pub(crate) mod error;
pub mod extent;
pub mod file;
pub(crate) mod full;
mod gaps;
mod handed_over;
pub(crate) mod huge;
pub(crate) mod mapping;
pub mod own;
pub mod peek;
pub mod readable;
pub mod remap;
pub(crate) mod reservation;
pub mod sealed;
pub mod sealed_file;
pub(crate) mod shared_memory;
pub(crate) mod shutter;
pub mod span;
pub mod sysv;
pub mod traits;
pub mod vec;
pub mod words;

pub use gaps::stack_room;
pub use handed_over::hand_over;
