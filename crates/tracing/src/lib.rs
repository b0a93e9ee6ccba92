//! Events and spans of [`tracing`](https://docs.rs/tracing) behind static keys: while they are disabled, a pass costs
//! one instruction without effect.
//!
//! A disabled event of `tracing` itself loads the greatest level of all subscribers, compares, and then loads the
//! callsite's interest. Here, nothing is loaded: the code that does that is out of line, and an instruction without
//! effect stands in place of the jump to it.
//!
//! There are two kinds of guards.
//!
//! **By level.** [`error!`], [`warn!`], [`info!`], [`debug!`], [`trace!`] and [`event!`] are used like those of
//! `tracing`. One key for each level guards them, `tracing.error` to `tracing.trace`. All are on at first, so that
//! nothing is lost. [`follow`] turns off those that no subscriber currently wants:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).init();
//! palimpsest_tracing::follow()?;
//! palimpsest_tracing::debug!(bytes = 3, "costs one instruction");
//! # Ok(())
//! # }
//! ```
//!
//! **By key.** [`event_if!`] and [`span_if!`] take a key of your own. It is checked first: subscribers get the event if
//! its key is on and they want it.
//!
//! ```
//! use palimpsest_text::static_key;
//! use palimpsest_tracing::event_if;
//!
//! static_key!(static NET_TRACE: "net.trace" = off);
//!
//! fn send(packet: &[u8]) {
//!     event_if!(NET_TRACE, tracing::Level::INFO, len = packet.len(), "sending");
//! }
//! # send(b"abc");
//! ```
//!
//! Arguments are evaluated only if the key is on, as `tracing` evaluates them only if a subscriber wants the event.

#![forbid(unsafe_code)]

mod level;
mod macros;

pub use level::{follow, key_of, keys};

#[doc(hidden)]
pub mod hidden {
    //! What the macros expand to.
    pub use palimpsest_text::branch;
    pub use tracing;
}
