//! Measurement suites for Palimpsest, each measured in one run with what people do today.
//!
//! [`harness`] is what every suite is measured by; [`suites`] are what is measured. The contestants of one figure run
//! interleaved (see [`harness::sampler`]), so that a machine that slows down half-way slows all of them.
//!
//! Unsafe code is confined to the private module `machine`: the mappings of the baselines, the peers' unsafe
//! interfaces, and entering compiled code.
#![deny(unsafe_code)]

mod arch;
mod error;
pub mod harness;
mod machine;
mod placers;
mod programs;
mod repeat;
mod resident;
pub mod suites;

pub use error::{PlaceError, TableError};
