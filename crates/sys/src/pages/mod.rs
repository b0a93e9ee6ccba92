//! What the kernel says of memory: mappings with their flags, and pages.

pub mod maps;
pub mod pagemap;
pub mod policy;
pub(crate) mod query;
pub mod smaps;
pub mod vmas;
