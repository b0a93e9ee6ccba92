//! What measures every suite: rounds in which contestants take turns, a time budget, medians with their spread,
//! comparison, records, progress.
//!
//! A [`Suite`] has [`Group`]s of [`Contestant`]s and leaves [`Samples`] in its [`Context`], which makes entries of
//! them; [`run`] adds the machine. The harness knows no suite: it is given them.

pub(crate) mod clock;
mod contestant;
mod context;
mod error;
pub mod host;
pub mod progress;
pub mod record;
mod request;
pub mod sampler;
mod suite;

pub use contestant::{Contestant, Group, Samples};
pub use context::Context;
pub use error::BenchError;
pub(crate) use error::{expect, failed};
pub use request::{Effort, HELPER, Request, Wanted};
pub use suite::{Asked, Suite, named, run};
