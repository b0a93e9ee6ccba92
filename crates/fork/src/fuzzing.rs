//! Internals for the fuzz targets (feature `fuzzing`).

pub use crate::arena::fuzzing::Blocks;
pub use crate::guard::mirror::play as compare_guards_with_the_kernel;
pub use crate::snapshot::fuzzing::{Difference, differences};
