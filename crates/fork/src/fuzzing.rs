//! Inner parts, for the fuzz targets (feature `fuzzing`).

pub use crate::arena::fuzzing::Blocks;
pub use crate::snapshot::fuzzing::{Difference, differences};
