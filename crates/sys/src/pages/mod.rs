//! The kernel's information on memory: mappings with their flags, and pages.

pub mod apart;
pub mod kept;
pub(crate) mod lines;
pub mod maps;
pub mod pagemap;
pub mod policy;
pub mod query;
pub mod smaps;
pub mod vmas;
