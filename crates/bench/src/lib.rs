//! Measurement suites for Palimpsest, each compared in one run with what people do today.
//!
//! [`harness`] measures every suite; [`suites`] are what is measured. The contestants of one figure run interleaved
//! (see [`harness::sampler`]), so that a machine that slows down half-way slows all of them.
//!
//! ```
//! use palimpsest_bench::harness::progress::Silent;
//! use palimpsest_bench::harness::{Effort, Request};
//! use palimpsest_bench::suites;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // One round: shows that all do the same work. `Effort::Quick` measures.
//! let request = Request::default().filter("pack.load").effort(Effort::Check);
//! let report = suites::run(suites::all(), &request, &Silent)?;
//! for figure in &report.results {
//!     println!("{}: {} {:?}, ratio {:?}", figure.id, figure.median, figure.unit, figure.ratio);
//! }
//! for left_out in &report.skipped {
//!     println!("{}: {}", left_out.id, left_out.reason);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Unsafe code is confined to the private module `machine`: the mappings of the baselines, the peers' unsafe
//! interfaces, and entering compiled code.
#![deny(unsafe_code)]

mod arch;
mod error;
mod footprint;
pub mod harness;
mod machine;
mod placers;
mod programs;
mod repeat;
mod resident;
pub mod suites;

pub use error::{PlaceError, TableError};
