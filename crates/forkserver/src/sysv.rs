//! Segments of shared memory that a fuzzer has made and named in the environment.

use std::io;

use palimpsest_sys::memory::sysv::{SharedAccess, SharedBytes};

use crate::error::ServeError;

/// Attaches the segment that `variable` names; `None` if it is not set.
pub(crate) fn attach(variable: &'static str, access: SharedAccess) -> Result<Option<SharedBytes>, ServeError> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let id = value.to_str().and_then(|text| text.parse().ok());
    let segment = id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
    let segment = segment.and_then(|id| SharedBytes::attach(id, access));
    segment.map(Some).map_err(|source| ServeError::Attach { variable, value, source })
}
