//! The suites.

use crate::Suite;

pub mod fork;
pub mod keys;
pub mod pack;
pub mod paging;

/// Every suite there is.
#[must_use]
pub fn all() -> Vec<Box<dyn Suite>> {
    vec![
        Box::new(pack::Pack),
        Box::new(keys::Keys),
        Box::new(fork::Fork),
        Box::new(fork::Reset),
        Box::new(paging::Paging),
    ]
}
