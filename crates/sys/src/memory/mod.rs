//! Memory of this process: the objects behind it, mappings of them, and what replaces a mapping in place.

pub mod call;
pub mod calls;
pub mod extent;
pub mod file;
pub(crate) mod huge;
pub(crate) mod mapping;
pub mod own;
pub mod remap;
pub(crate) mod reservation;
pub mod segment;
pub(crate) mod shared_memory;
pub(crate) mod shutter;
pub mod span;
pub mod traits;
pub mod vec;
pub mod view;
pub mod words;
