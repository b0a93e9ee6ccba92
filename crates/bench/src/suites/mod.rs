//! The suites.

use crate::{BenchError, Suite};

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

/// The suites with these names, all if there are no names.
///
/// # Errors
///
/// [`BenchError::UnknownSuite`] names the one that does not exist and those that do.
pub fn named(names: &[String]) -> Result<Vec<Box<dyn Suite>>, BenchError> {
    let known = all();
    for name in names {
        if !known.iter().any(|suite| suite.id() == name) {
            return Err(BenchError::UnknownSuite {
                name: name.clone(),
                known: known.iter().map(|suite| suite.id()).collect::<Vec<_>>().join(", "),
            });
        }
    }
    Ok(known.into_iter().filter(|suite| names.is_empty() || names.iter().any(|name| suite.id() == name)).collect())
}
