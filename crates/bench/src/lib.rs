//! Measurement suites for Palimpsest, each measured in one run with what people do today.
//!
//! A [`Suite`] produces [`record::Entry`] values; [`record::Report`] puts the machine beside them. The contestants of
//! one figure run interleaved (see [`sampler`]), so that a machine that slows down half-way slows all of them.
//!
//! Unsafe code is confined to the private module `machine`: the mappings of the baselines, the peers' unsafe
//! interfaces, and entering compiled code.
#![deny(unsafe_code)]

mod arch;
mod clock;
mod error;
pub mod host;
mod machine;
mod placers;
mod programs;
pub mod progress;
pub mod record;
mod repeat;
mod resident;
pub mod sampler;
mod suite;
pub mod suites;

pub use error::{BenchError, PlaceError, TableError};
pub use suite::{Context, Effort, Group, Request, Suite, Wanted, named, run};
